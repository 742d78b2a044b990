//! The JSON form of a snapshot. Private keys never appear in it (decision C1).

use serde::ser::{Serialize, SerializeMap, Serializer};

use super::{
    ConfigSnapshot, ConnectProxySnapshot, Header, KindSnapshot, Part, TargetEndpoints,
    UpstreamEntry, UpstreamList,
};

impl ConfigSnapshot {
    /// The snapshot as JSON, with Consul's names. Private keys are left out.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        // Fails only for maps with keys that aren't text, which there are none of.
        shown(self)
    }
}

/// A value; if it can't be had, why.
fn shown<T: Serialize>(value: &T) -> serde_json::Value {
    serde_json::to_value(value).unwrap_or_else(
        |error| serde_json::json!({"Error": format!("this can't be shown as JSON: {error}")}),
    )
}

impl<T: Serialize> Serialize for Part<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (**self).serialize(serializer)
    }
}

/// Serializes what a reference-counted pointer points at.
struct Inner<'a, T>(&'a triomphe::Arc<T>);

impl<T: Serialize> Serialize for Inner<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (**self.0).serialize(serializer)
    }
}

impl Serialize for ConfigSnapshot {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("Index", &self.store_index)?;
        header(&self.header, &mut map)?;
        map.serialize_entry("Roots", &Inner(self.roots()))?;
        match &self.kind {
            KindSnapshot::ConnectProxy(sidecar) => map.serialize_entry("ConnectProxy", sidecar)?,
        }
        map.end()
    }
}

fn header<M: SerializeMap>(header: &Header, map: &mut M) -> Result<(), M::Error> {
    map.serialize_entry("Kind", &header.kind)?;
    map.serialize_entry("Service", &header.service)?;
    map.serialize_entry(
        "ProxyID",
        &serde_json::json!({"ID": header.proxy_id.service_id, "NodeName": header.proxy_id.node}),
    )?;
    map.serialize_entry("Address", &header.address)?;
    map.serialize_entry("Port", &header.port)?;
    map.serialize_entry("ServiceMeta", &header.service_meta)?;
    map.serialize_entry("TaggedAddresses", &header.tagged_addresses)?;
    if let Some(locality) = &header.locality {
        map.serialize_entry("ServiceLocality", locality)?;
    }
    map.serialize_entry("Proxy", &without_keys(&header.proxy))?;
    map.serialize_entry("Datacenter", &header.datacenter)?;
    map.serialize_entry("IntentionDefaultAllow", &header.intention_default_allow)
}

impl Serialize for ConnectProxySnapshot {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("Leaf", &Inner(&self.leaf))?;
        map.serialize_entry("Intentions", &Inner(&self.intentions))?;
        map.serialize_entry("MeshConfig", &Inner(&self.mesh))?;
        let providers = self.jwt_providers.iter();
        let providers: Vec<_> = providers.map(|p| p.without_secrets()).collect();
        map.serialize_entry("JWTProviders", &providers)?;
        map.serialize_entry("ExposedChecks", &self.exposed_checks().paths)?;
        map.serialize_entry("Upstreams", &Upstreams(&self.upstreams))?;
        map.end()
    }
}

/// A record whose free settings may hold whole resources, and in them private keys: such a setting isn't shown.
fn without_keys<T: Serialize>(record: &T) -> serde_json::Value {
    fn hide(value: &mut serde_json::Value) {
        match value {
            serde_json::Value::String(text) if text.contains("PRIVATE KEY") => {
                "<redacted>".clone_into(text);
            }
            serde_json::Value::Array(items) => items.iter_mut().for_each(hide),
            serde_json::Value::Object(members) => members.values_mut().for_each(hide),
            _ => {}
        }
    }
    let mut shown = shown(record);
    hide(&mut shown);
    shown
}

/// Upstreams as an object keyed by upstream id.
struct Upstreams<'a>(&'a UpstreamList);

impl Serialize for Upstreams<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|entry| (entry.id(), entry)))
    }
}

impl Serialize for UpstreamEntry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("Definition", &without_keys(&self.definition.upstream))?;
        if let Some(target) = &self.target {
            map.serialize_entry("DiscoveryChain", &Inner(&target.chain))?;
            map.serialize_entry("Endpoints", &Targets(&target.endpoints))?;
        }
        map.end()
    }
}

/// Endpoints as an object keyed by target id; `null` while they aren't known.
struct Targets<'a>(&'a [TargetEndpoints]);

impl Serialize for Targets<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(
            self.0
                .iter()
                .map(|entry| (&entry.target, entry.endpoints.as_ref().map(Inner))),
        )
    }
}
