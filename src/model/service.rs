//! Service instances as the catalog holds them.

use std::collections::BTreeMap;

use crate::model::decode::record;
use crate::model::ids::ServiceKind;
use crate::model::node::{Locality, TaggedAddress};
use crate::model::proxy::ProxyConfig;

record! {
    /// A service instance (store.md 1.2), without the node it is on.
    pub struct ServiceInstance {
        /// Kind.
        kind: ServiceKind = "Kind",
        /// Id on its node; the service name unless given.
        id: String = "ID" always,
        /// Service name.
        service: String = "Service" always,
        /// Labels.
        tags: Vec<String> = "Tags" always,
        /// Free labels with values.
        meta: BTreeMap<String, String> = "Meta" always,
        /// Port, unless it listens on a socket.
        port: u16 = "Port" always,
        /// Address; the node's unless given.
        address: String = "Address" always,
        /// Unix socket instead of a port.
        socket_path: String = "SocketPath",
        /// Addresses by tag: `lan`, `wan`, ...
        tagged_addresses: BTreeMap<String, TaggedAddress> = "TaggedAddresses",
        /// Load-balancing weights.
        weights: Weights = "Weights" always,
        /// Whether tags may be changed in the catalog.
        enable_tag_override: bool = "EnableTagOverride" always,
        /// The proxy block, of proxies and gateways.
        proxy: ProxyConfig = "Proxy",
        /// Mesh membership.
        connect: Connect = "Connect",
        /// Region and zone.
        locality: Option<Locality> = "Locality",
        /// The peer that it was imported from, or empty.
        peer_name: String = "PeerName",
        /// Namespace; only `default`.
        namespace: String = "Namespace",
        /// Partition; only `default`.
        partition: String = "Partition",
    }
    ignored ["CreateIndex", "ModifyIndex", "Datacenter", "ContentHash"]
}

impl ServiceInstance {
    /// Whether it is a sidecar: a connect-proxy that names the instance it stands for (store.md 1.2).
    #[must_use]
    pub fn is_sidecar(&self) -> bool {
        self.kind == ServiceKind::ConnectProxy && !self.proxy.destination_service_id.is_empty()
    }

    /// The service that central configuration is looked up under (store.md 4.18).
    #[must_use]
    pub fn central_name(&self) -> &str {
        if self.is_sidecar() {
            &self.proxy.destination_service_name
        } else {
            &self.service
        }
    }

    /// The service that this instance makes reachable over the mesh, if it does: a sidecar's destination, or itself if
    /// it speaks the mesh protocol natively.
    #[must_use]
    pub fn connect_target(&self) -> Option<&str> {
        if self.kind == ServiceKind::ConnectProxy {
            Some(&self.proxy.destination_service_name)
        } else if self.connect.native {
            Some(&self.service)
        } else {
            None
        }
    }
}

record! {
    /// Mesh membership of an instance.
    pub struct Connect {
        /// Speaks the mesh protocol itself.
        native: bool = "Native",
    }
    without_effect ["PeerMeta"]
}

record! {
    /// Load-balancing weights (store.md 1.2): unset or invalid means 1 and 1.
    pub struct Weights {
        /// When all checks pass.
        passing: i64 = "Passing" always,
        /// When a check warns.
        warning: i64 = "Warning" always,
    }
}
