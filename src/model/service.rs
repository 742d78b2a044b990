//! Service instances as the catalog holds them.

use std::collections::BTreeMap;

use crate::model::decode::{Place, Problems, record};
use crate::model::ids::ServiceKind;
use crate::model::node::{Locality, Node, TaggedAddress};
use crate::model::proxy::ProxyConfig;
use crate::model::rules;
use crate::model::validate::Validate;

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

impl Weights {
    /// What holds where weights are absent or invalid.
    pub const DEFAULT: Self = Self {
        passing: 1,
        warning: 1,
    };

    /// Largest weight that Envoy and DNS can carry.
    pub const MAX: i64 = 65_535;

    /// Whether they can be used as they are: passing from 1, warning from 0, both at most 65535 (store.md 1.2).
    #[must_use]
    pub fn is_valid(&self) -> bool {
        (1..=Self::MAX).contains(&self.passing) && (0..=Self::MAX).contains(&self.warning)
    }

    /// These weights, or 1 and 1 if they are invalid.
    #[must_use]
    pub fn or_default(&self) -> Self {
        if self.is_valid() {
            self.clone()
        } else {
            Self::DEFAULT
        }
    }
}

impl ServiceInstance {
    /// The best address and port from outside the datacenter (`wan`) or from within (store.md 1.2).
    #[must_use]
    pub fn best_address<'a>(&'a self, node: &'a Node, wan: bool) -> (&'a str, u16) {
        let (mut address, mut port) = (self.address.as_str(), self.port);
        if let Some(tagged) = self.tagged_addresses.get("wan").filter(|_| wan) {
            address = &tagged.address;
            if tagged.port != 0 {
                port = tagged.port;
            }
        }
        if address.is_empty() {
            address = node.best_address(wan);
        }
        (address, port)
    }

    /// As [`Validate::validate`]; `name` is the key of the service's name, and `port_pending` says that a missing port
    /// will be assigned later.
    pub(crate) fn check(
        &self,
        name: &str,
        port_pending: bool,
        at: &Place<'_>,
        problems: &mut Problems,
    ) {
        let name_at = at.key(name);
        if self.kind == ServiceKind::ConnectProxy {
            rules::proxy_name("service name", &self.service, &name_at, problems);
        } else {
            rules::mesh_name("service name", &self.service, &name_at, problems);
        }
        if !self.id.is_empty() {
            rules::plain_text("service id", &self.id, &at.key("ID"), problems);
        }
        rules::optional_mesh_name("peer name", &self.peer_name, &at.key("PeerName"), problems);
        self.check_meta(&at.key("Meta"), problems);
        if self.weights != Weights::default() && !self.weights.is_valid() {
            problems.warning(
                &at.key("Weights"),
                "invalid weights (passing 1 to 65535, warning 0 to 65535) count as 1 and 1",
            );
        }
        if self.port != 0 && !self.socket_path.is_empty() {
            problems.warning(&at.key("Port"), "is not used beside SocketPath");
        }
        let has_port = self.port != 0 || port_pending;
        let proxy = at.key("Proxy");
        match self.kind {
            ServiceKind::Typical => {
                if self.proxy != ProxyConfig::default() {
                    problems.warning(&proxy, "only has an effect in proxies and gateways");
                }
                return;
            }
            ServiceKind::ConnectProxy => {
                if !has_port && self.socket_path.is_empty() {
                    problems.error(&at.key("Port"), "a proxy needs a Port or a SocketPath");
                }
                if self.connect.native {
                    problems.error(
                        &at.key("Connect").key("Native"),
                        "a proxy can't be Connect.Native as well",
                    );
                }
                self.proxy.validate_sidecar(&proxy, problems);
                self.check_own_port(at, problems);
            }
            gateway => {
                let may_lack_port = matches!(
                    gateway,
                    ServiceKind::IngressGateway | ServiceKind::ApiGateway
                );
                if !has_port && !may_lack_port {
                    problems.error(&at.key("Port"), format!("a {gateway} needs a Port"));
                }
                self.proxy.validate_gateway(&proxy, problems);
            }
        }
        self.proxy.validate_common(&proxy, problems);
    }

    fn check_meta(&self, at: &Place<'_>, problems: &mut Problems) {
        rules::meta(&self.meta, at, problems);
        for key in self.meta.keys().filter(|k| k.starts_with("consul-")) {
            let known = self.kind == ServiceKind::MeshGateway && key == "consul-wan-federation";
            if !known {
                problems.error(
                    &at.key(key),
                    format!(
                        "the key {} has the reserved prefix \"consul-\"",
                        rules::shown(key)
                    ),
                );
            }
        }
    }

    /// What a proxy listens on for others, and each port that it opens on the same address, must differ from its own
    /// port: Envoy could bind one of them only.
    fn check_own_port(&self, at: &Place<'_>, problems: &mut Problems) {
        let text = |key: &str| self.proxy.config.get(key).and_then(|v| v.as_str());
        let number = |key: &str| {
            self.proxy
                .config
                .get(key)
                .and_then(serde_json::Value::as_u64)
        };
        let own_port = number("bind_port")
            .and_then(|p| u16::try_from(p).ok())
            .unwrap_or(self.port);
        let own_address = text("bind_address")
            .or(Some(self.address.as_str()))
            .filter(|a| !a.is_empty())
            .unwrap_or("0.0.0.0");
        if own_port == 0 || !self.socket_path.is_empty() {
            return;
        }
        let proxy = at.key("Proxy");
        let upstreams = proxy.key("Upstreams");
        for (i, upstream) in self.proxy.upstreams.iter().enumerate() {
            let clash = !upstream.centrally_configured
                && upstream.local_bind_socket_path.is_empty()
                && upstream.local_bind_port == own_port
                && overlap(own_address, upstream.bind_address());
            if clash {
                problems.error(
                    &upstreams.index(i).key("LocalBindPort"),
                    format!(
                        "the upstream {} listens on {}:{own_port}, where the proxy {} itself listens ({own_address}:{own_port})",
                        rules::shown(&upstream.destination_name),
                        upstream.bind_address(),
                        rules::shown(&self.service),
                    ),
                );
            }
        }
        let expose = proxy.key("Expose");
        let paths = expose.key("Paths");
        for (i, path) in self.proxy.expose.paths.iter().enumerate() {
            if path.listener_port == own_port {
                problems.error(
                    &paths.index(i).key("ListenerPort"),
                    format!("the port {own_port} is the proxy's own"),
                );
            }
        }
    }
}

/// Whether listening on one address takes the other.
fn overlap(a: &str, b: &str) -> bool {
    let any = |s: &str| {
        s.parse::<std::net::IpAddr>()
            .is_ok_and(|ip| ip.is_unspecified())
    };
    a == b || any(a) || any(b)
}

impl Validate for ServiceInstance {
    /// store.md 1.2.
    fn validate(&self, at: &Place<'_>, problems: &mut Problems) {
        self.check("Service", false, at, problems);
    }

    fn enterprise_only(&self, at: &Place<'_>, problems: &mut Problems) {
        rules::only_default(&self.namespace, &self.partition, at, problems);
        self.proxy.enterprise_only(&at.key("Proxy"), problems);
    }

    fn normalize(&mut self) {
        if self.id.is_empty() {
            self.id.clone_from(&self.service);
        }
        self.weights = self.weights.or_default();
        self.proxy.normalize();
        rules::clear_default(&mut self.namespace);
        rules::clear_default(&mut self.partition);
    }
}
