//! The agent form of a service: what files and `/v1/agent/service/register` hold (store.md 1.2, 1.4).

use std::collections::BTreeMap;

use crate::model::check::CheckStatus;
use crate::model::decode::record;
use crate::model::duration::GoDuration;
use crate::model::ids::ServiceKind;
use crate::model::node::{Locality, TaggedAddress};
use crate::model::proxy::ProxyConfig;
use crate::model::service::Weights;

record! {
    /// A service as its owner writes it.
    pub struct ServiceDefinition {
        /// Kind.
        kind: ServiceKind = "Kind",
        /// Id; the name unless given.
        id: String = "ID",
        /// Service name.
        name: String = "Name",
        /// Labels.
        tags: Vec<String> = "Tags",
        /// Free labels with values.
        meta: BTreeMap<String, String> = "Meta",
        /// Port.
        port: u16 = "Port",
        /// Address; the node's unless given.
        address: String = "Address",
        /// Unix socket instead of a port.
        socket_path: String = "SocketPath",
        /// Addresses by tag.
        tagged_addresses: BTreeMap<String, TaggedAddress> = "TaggedAddresses",
        /// Load-balancing weights.
        weights: Option<Weights> = "Weights",
        /// Whether tags may be changed in the catalog.
        enable_tag_override: bool = "EnableTagOverride",
        /// The proxy block, of proxies and gateways.
        proxy: Option<ProxyConfig> = "Proxy",
        /// Mesh membership, and a sidecar to register with the service.
        connect: Option<ConnectDefinition> = "Connect",
        /// Region and zone.
        locality: Option<Locality> = "Locality",
        /// One check.
        check: Option<AgentCheck> = "Check",
        /// Several checks.
        checks: Vec<AgentCheck> = "Checks",
        /// Token that the service's data is fetched with.
        token: String = "Token",
        /// Namespace; only `default`.
        namespace: String = "Namespace",
        /// Partition; only `default`.
        partition: String = "Partition",
    }
}

record! {
    /// The `connect` block of a service.
    pub struct ConnectDefinition {
        /// Speaks the mesh protocol itself.
        native: bool = "Native",
        /// A sidecar to register with the service.
        sidecar_service: Option<Box<ServiceDefinition>> = "SidecarService",
    }
}

record! {
    /// A check as its owner writes it.
    pub struct AgentCheck {
        /// Id; `service:<service id>[:n]` unless given.
        check_id: String = "CheckID",
        /// Also an id: the older key.
        id: String = "ID",
        /// Name.
        name: String = "Name",
        /// Notes.
        notes: String = "Notes",
        /// State until the first run; critical unless given.
        status: Option<CheckStatus> = "Status",
        /// Instance it belongs to, for checks registered on their own.
        service_id: String = "ServiceID",
        /// URL to get.
        http: String = "HTTP",
        /// Request headers.
        header: BTreeMap<String, Vec<String>> = "Header",
        /// Request method.
        method: String = "Method",
        /// Request body.
        body: String = "Body",
        /// Address and port to connect to.
        tcp: String = "TCP",
        /// Address and port to send to.
        udp: String = "UDP",
        /// `address:port[/service]`.
        grpc: String = "GRPC",
        /// Use TLS for gRPC.
        grpc_use_tls: bool = "GRPCUseTLS",
        /// `address:port` for an HTTP/2 ping.
        h2ping: String = "H2PING",
        /// Time between runs.
        interval: GoDuration = "Interval",
        /// Time allowed for a run.
        timeout: GoDuration = "Timeout",
        /// Time until an untouched TTL check turns critical.
        ttl: GoDuration = "TTL",
        /// Remove the instance after this long critical.
        deregister_critical_service_after: GoDuration = "DeregisterCriticalServiceAfter",
        /// Node whose state to copy.
        alias_node: String = "AliasNode",
        /// Instance whose state to copy.
        alias_service: String = "AliasService",
        /// Name to check in the server's certificate.
        tls_server_name: String = "TLSServerName",
        /// Don't check the server's certificate.
        tls_skip_verify: bool = "TLSSkipVerify",
    }
    ignored ["Token"]
    without_effect [
        "Args", "ScriptArgs", "DockerContainerID", "Shell", "OSService", "SuccessBeforePassing", "FailuresBeforeWarning",
        "FailuresBeforeCritical", "DisableRedirects", "OutputMaxSize", "H2PingUseTLS",
    ]
}
