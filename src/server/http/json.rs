//! Consul's public JSON of catalog records: which keys are there even if they say nothing, and how rows are composed.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use crate::model::{
    CheckDefinition, Connect, HealthCheck, Locality, Node, ProxyConfig, ServiceInstance,
    ServiceKind, TaggedAddress, Weights,
};
use crate::store::{InstanceRow, Row};

/// A node.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct NodeJson<'a> {
    #[serde(rename = "ID")]
    id: &'a str,
    node: &'a str,
    address: &'a str,
    datacenter: &'a str,
    tagged_addresses: &'a BTreeMap<String, String>,
    meta: &'a BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    locality: Option<&'a Locality>,
    #[serde(skip_serializing_if = "str::is_empty")]
    peer_name: &'a str,
    create_index: u64,
    modify_index: u64,
}

impl<'a> From<&'a Row<Node>> for NodeJson<'a> {
    fn from(row: &'a Row<Node>) -> Self {
        Self {
            id: &row.id,
            node: &row.node,
            address: &row.address,
            datacenter: &row.datacenter,
            tagged_addresses: &row.tagged_addresses,
            meta: &row.meta,
            locality: row.locality.as_ref(),
            peer_name: &row.peer_name,
            create_index: row.create_index,
            modify_index: row.modify_index,
        }
    }
}

/// An instance as part of its node, of a health answer, or of the agent.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ServiceJson<'a> {
    #[serde(skip_serializing_if = "is_typical")]
    kind: ServiceKind,
    #[serde(rename = "ID")]
    id: &'a str,
    service: &'a str,
    tags: &'a [String],
    meta: &'a BTreeMap<String, String>,
    port: u16,
    address: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    socket_path: &'a str,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    tagged_addresses: &'a BTreeMap<String, TaggedAddress>,
    weights: &'a Weights,
    enable_tag_override: bool,
    proxy: ProxyJson<'a>,
    connect: &'a Connect,
    #[serde(skip_serializing_if = "Option::is_none")]
    locality: Option<&'a Locality>,
    #[serde(skip_serializing_if = "str::is_empty")]
    peer_name: &'a str,
    create_index: u64,
    modify_index: u64,
    #[serde(skip_serializing_if = "str::is_empty")]
    datacenter: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    content_hash: &'a str,
}

impl<'a> ServiceJson<'a> {
    /// An instance that isn't a row of the store.
    pub fn of(service: &'a ServiceInstance, create_index: u64, modify_index: u64) -> Self {
        Self {
            kind: service.kind,
            id: &service.id,
            service: &service.service,
            tags: &service.tags,
            meta: &service.meta,
            port: service.port,
            address: &service.address,
            socket_path: &service.socket_path,
            tagged_addresses: &service.tagged_addresses,
            weights: &service.weights,
            enable_tag_override: service.enable_tag_override,
            proxy: ProxyJson(&service.proxy),
            connect: &service.connect,
            locality: service.locality.as_ref(),
            peer_name: &service.peer_name,
            create_index,
            modify_index,
            datacenter: "",
            content_hash: "",
        }
    }

    /// As the agent shows it.
    pub fn in_datacenter(mut self, datacenter: &'a str) -> Self {
        self.datacenter = datacenter;
        self
    }

    /// With the hash of its content.
    pub fn with_hash(mut self, hash: &'a str) -> Self {
        self.content_hash = hash;
        self
    }
}

impl<'a> From<&'a Row<ServiceInstance>> for ServiceJson<'a> {
    fn from(row: &'a Row<ServiceInstance>) -> Self {
        Self::of(row, row.create_index, row.modify_index)
    }
}

fn is_typical(kind: &ServiceKind) -> bool {
    *kind == ServiceKind::Typical
}

/// A proxy block, with the keys that are always there.
struct ProxyJson<'a>(&'a ProxyConfig);

impl Serialize for ProxyJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut value = if *self.0 == ProxyConfig::default() {
            json!({})
        } else {
            serde_json::to_value(self.0).map_err(serde::ser::Error::custom)?
        };
        if let Value::Object(members) = &mut value {
            members.entry("Mode").or_insert_with(|| json!(""));
            members.entry("MeshGateway").or_insert_with(|| json!({}));
            members.entry("Expose").or_insert_with(|| json!({}));
        }
        value.serialize(serializer)
    }
}

/// A check.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct CheckJson<'a> {
    node: &'a str,
    #[serde(rename = "CheckID")]
    check_id: &'a str,
    name: &'a str,
    status: &'a str,
    notes: &'a str,
    output: &'a str,
    #[serde(rename = "ServiceID")]
    service_id: &'a str,
    service_name: &'a str,
    service_tags: &'a [String],
    #[serde(rename = "Type")]
    kind: &'a str,
    interval: &'a str,
    timeout: &'a str,
    exposed_port: u16,
    definition: &'a CheckDefinition,
    #[serde(skip_serializing_if = "str::is_empty")]
    peer_name: &'a str,
    create_index: u64,
    modify_index: u64,
}

impl<'a> CheckJson<'a> {
    /// A check that isn't a row of the store.
    pub fn of(check: &'a HealthCheck, create_index: u64, modify_index: u64) -> Self {
        Self {
            node: &check.node,
            check_id: &check.check_id,
            name: &check.name,
            status: check.status.as_str(),
            notes: &check.notes,
            output: &check.output,
            service_id: &check.service_id,
            service_name: &check.service_name,
            service_tags: &check.service_tags,
            kind: &check.kind,
            interval: &check.interval,
            timeout: &check.timeout,
            exposed_port: check.exposed_port,
            definition: &check.definition,
            peer_name: &check.peer_name,
            create_index,
            modify_index,
        }
    }
}

impl<'a> From<&'a Row<HealthCheck>> for CheckJson<'a> {
    fn from(row: &'a Row<HealthCheck>) -> Self {
        Self::of(row, row.create_index, row.modify_index)
    }
}

/// An instance with its node and checks: a row of a health answer.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct HealthJson<'a> {
    node: NodeJson<'a>,
    service: ServiceJson<'a>,
    checks: Vec<CheckJson<'a>>,
}

impl<'a> From<&InstanceRow<'a>> for HealthJson<'a> {
    fn from(row: &InstanceRow<'a>) -> Self {
        Self {
            node: row.node.into(),
            service: row.service.into(),
            checks: row.checks.iter().map(|check| (*check).into()).collect(),
        }
    }
}

/// An instance with the address of its node: a row of a catalog answer.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct CatalogServiceJson<'a> {
    #[serde(rename = "ID")]
    id: &'a str,
    node: &'a str,
    address: &'a str,
    datacenter: &'a str,
    tagged_addresses: &'a BTreeMap<String, String>,
    node_meta: &'a BTreeMap<String, String>,
    service_kind: ServiceKind,
    #[serde(rename = "ServiceID")]
    service_id: &'a str,
    service_name: &'a str,
    service_tags: &'a [String],
    service_address: &'a str,
    service_tagged_addresses: &'a BTreeMap<String, TaggedAddress>,
    service_weights: &'a Weights,
    service_meta: &'a BTreeMap<String, String>,
    service_port: u16,
    service_socket_path: &'a str,
    service_enable_tag_override: bool,
    service_proxy: ProxyJson<'a>,
    service_connect: &'a Connect,
    #[serde(skip_serializing_if = "Option::is_none")]
    service_locality: Option<&'a Locality>,
    #[serde(skip_serializing_if = "str::is_empty")]
    peer_name: &'a str,
    create_index: u64,
    modify_index: u64,
}

impl<'a> From<&InstanceRow<'a>> for CatalogServiceJson<'a> {
    fn from(row: &InstanceRow<'a>) -> Self {
        let (node, service) = (row.node, row.service);
        Self {
            id: &node.id,
            node: &node.node,
            address: &node.address,
            datacenter: &node.datacenter,
            tagged_addresses: &node.tagged_addresses,
            node_meta: &node.meta,
            service_kind: service.kind,
            service_id: &service.id,
            service_name: &service.service,
            service_tags: &service.tags,
            service_address: &service.address,
            service_tagged_addresses: &service.tagged_addresses,
            service_weights: &service.weights,
            service_meta: &service.meta,
            service_port: service.port,
            service_socket_path: &service.socket_path,
            service_enable_tag_override: service.enable_tag_override,
            service_proxy: ProxyJson(&service.proxy),
            service_connect: &service.connect,
            service_locality: service.locality.as_ref(),
            peer_name: &service.peer_name,
            create_index: service.create_index,
            modify_index: service.modify_index,
        }
    }
}
