//! `proxy-defaults` (store.md 3.1).

use std::collections::BTreeMap;

use crate::model::config_entry::EntryKind;
use crate::model::decode::{Opaque, Place, Problems, record};
use crate::model::proxy::{
    AccessLogs, EnvoyExtension, Expose, MeshGateway, MutualTlsMode, ProxyMode, TransparentProxy,
};
use crate::model::rules;
use crate::model::validate::Validate;

record! {
    /// Defaults of all proxies; its one name is `global`.
    pub struct ProxyDefaults {
        /// Always `proxy-defaults`.
        kind: String = "Kind" always,
        /// Always `global`.
        name: String = "Name" always,
        /// Free settings (xds.md 3.5), the default `protocol` among them.
        config: Opaque = "Config",
        /// How traffic reaches proxies.
        mode: ProxyMode = "Mode",
        /// Settings of the transparent mode.
        transparent_proxy: TransparentProxy = "TransparentProxy",
        /// Whether plain connections are accepted.
        mutual_tls_mode: MutualTlsMode = "MutualTLSMode",
        /// How traffic to other datacenters goes.
        mesh_gateway: MeshGateway = "MeshGateway",
        /// Plain paths.
        expose: Expose = "Expose",
        /// Access logs.
        access_logs: AccessLogs = "AccessLogs",
        /// Extensions.
        envoy_extensions: Vec<EnvoyExtension> = "EnvoyExtensions",
        /// Default order of failover targets.
        failover_policy: Option<FailoverPolicy> = "FailoverPolicy",
        /// Default preference for near instances.
        prioritize_by_locality: Option<PrioritizeByLocality> = "PrioritizeByLocality",
        /// Free labels.
        meta: BTreeMap<String, String> = "Meta",
        /// Only `default`.
        namespace: String = "Namespace",
        /// Only `default`.
        partition: String = "Partition",
    }
    ignored ["CreateIndex", "ModifyIndex", "Hash"]
}

record! {
    /// Order of failover targets.
    pub struct FailoverPolicy {
        /// `sequential` (default) or `order-by-locality`.
        mode: String = "Mode",
        /// Regions in order.
        regions: Vec<String> = "Regions",
    }
}

record! {
    /// Preference for near instances.
    pub struct PrioritizeByLocality {
        /// `none` (default) or `failover`.
        mode: String = "Mode",
    }
}

/// The one name of the entry.
pub(crate) const GLOBAL: &str = "global";

impl Validate for ProxyDefaults {
    /// store.md 3.1.
    fn validate(&self, at: &Place<'_>, problems: &mut Problems) {
        if !(self.name.is_empty() || self.name.eq_ignore_ascii_case(GLOBAL)) {
            problems.error(
                &at.key("Name"),
                format!(
                    "{}: proxy-defaults has the one name \"global\"",
                    rules::shown(&self.name)
                ),
            );
        }
        rules::meta(&self.meta, &at.key("Meta"), problems);
        let protocol = self
            .config
            .iter()
            .find(|(k, _)| k.eq_ignore_ascii_case("protocol"));
        if let Some((key, value)) = protocol
            && (value.is_object() || value.is_array())
        {
            problems.error(&at.key("Config").key(key), "a protocol is a text");
        }
        self.expose.validate(&at.key("Expose"), problems);
        self.access_logs.validate(&at.key("AccessLogs"), problems);
        EnvoyExtension::validate_all(&self.envoy_extensions, &at.key("EnvoyExtensions"), problems);
        if let Some(policy) = &self.failover_policy {
            policy.validate(&at.key("FailoverPolicy"), problems);
        }
        if let Some(near) = &self.prioritize_by_locality {
            near.validate(&at.key("PrioritizeByLocality"), problems);
        }
    }

    fn enterprise_only(&self, at: &Place<'_>, problems: &mut Problems) {
        rules::only_default(&self.namespace, &self.partition, at, problems);
        let policy = self.failover_policy.as_ref();
        let given = policy.is_some_and(|p| !p.mode.is_empty());
        rules::enterprise("FailoverPolicy", given, at, problems);
        let near = self.prioritize_by_locality.as_ref();
        let given = near.is_some_and(|p| !p.mode.is_empty());
        rules::enterprise("PrioritizeByLocality", given, at, problems);
    }

    fn normalize(&mut self) {
        self.kind = EntryKind::ProxyDefaults.to_string();
        if self.name.is_empty() || self.name.eq_ignore_ascii_case(GLOBAL) {
            GLOBAL.clone_into(&mut self.name);
        }
        rules::clear_default(&mut self.namespace);
        rules::clear_default(&mut self.partition);
        self.expose.normalize();
    }
}
