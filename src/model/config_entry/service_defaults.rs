//! `service-defaults` (store.md 3.2).

use std::collections::BTreeMap;

use crate::model::decode::record;
use crate::model::duration::GoDuration;
use crate::model::proxy::{
    EnvoyExtension, Expose, MeshGateway, MutualTlsMode, ProxyMode, TransparentProxy,
};

record! {
    /// Defaults of a service: how it is called, and how its proxies call others.
    pub struct ServiceDefaults {
        /// Always `service-defaults`.
        kind: String = "Kind" always,
        /// The service.
        name: String = "Name" always,
        /// `tcp` (default), `http`, `http2`, `grpc`, or another that is treated as TCP.
        protocol: String = "Protocol",
        /// How traffic reaches its proxies.
        mode: ProxyMode = "Mode",
        /// Settings of the transparent mode.
        transparent_proxy: TransparentProxy = "TransparentProxy",
        /// Whether plain connections are accepted.
        mutual_tls_mode: MutualTlsMode = "MutualTLSMode",
        /// How traffic to other datacenters goes.
        mesh_gateway: MeshGateway = "MeshGateway",
        /// Plain paths.
        expose: Expose = "Expose",
        /// Server name of a service outside the mesh.
        external_sni: String = "ExternalSNI",
        /// How its proxies call others.
        upstream_config: Option<UpstreamsConfig> = "UpstreamConfig",
        /// Addresses outside the mesh that it stands for.
        destination: Option<Destination> = "Destination",
        /// Most inbound connections; 0 means no limit.
        max_inbound_connections: i64 = "MaxInboundConnections",
        /// Time to connect to the application, in milliseconds.
        local_connect_timeout_ms: i64 = "LocalConnectTimeoutMs",
        /// Time for a request to the application, in milliseconds.
        local_request_timeout_ms: i64 = "LocalRequestTimeoutMs",
        /// `exact_balance` spreads inbound connections over Envoy's threads.
        balance_inbound_connections: String = "BalanceInboundConnections",
        /// Rate limits.
        rate_limits: Option<RateLimits> = "RateLimits",
        /// Extensions.
        envoy_extensions: Vec<EnvoyExtension> = "EnvoyExtensions",
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
    /// How a service's proxies call others.
    pub struct UpstreamsConfig {
        /// For all upstreams.
        defaults: Option<UpstreamDefaults> = "Defaults",
        /// For single upstreams.
        overrides: Vec<UpstreamDefaults> = "Overrides",
    }
}

record! {
    /// Settings of one upstream or of all.
    pub struct UpstreamDefaults {
        /// The upstream; only in overrides.
        name: String = "Name",
        /// Its peer; only in overrides.
        peer: String = "Peer",
        /// Only `default`, only in overrides.
        namespace: String = "Namespace",
        /// Only `default`, only in overrides.
        partition: String = "Partition",
        /// A whole Envoy listener as JSON.
        envoy_listener_json: String = "EnvoyListenerJSON",
        /// A whole Envoy cluster as JSON.
        envoy_cluster_json: String = "EnvoyClusterJSON",
        /// Protocol to speak with it.
        protocol: String = "Protocol",
        /// Time to connect, in milliseconds.
        connect_timeout_ms: i64 = "ConnectTimeoutMs",
        /// Circuit breakers.
        limits: Option<UpstreamLimits> = "Limits",
        /// Ejection of failing instances.
        passive_health_check: Option<PassiveHealthCheck> = "PassiveHealthCheck",
        /// How traffic to other datacenters goes.
        mesh_gateway: MeshGateway = "MeshGateway",
        /// `exact_balance` spreads outbound connections over Envoy's threads.
        balance_outbound_connections: String = "BalanceOutboundConnections",
    }
}

record! {
    /// Circuit breakers; an explicit 0 means none at all.
    pub struct UpstreamLimits {
        /// Most connections.
        max_connections: Option<i64> = "MaxConnections",
        /// Most requests waiting for a connection.
        max_pending_requests: Option<i64> = "MaxPendingRequests",
        /// Most requests at a time.
        max_concurrent_requests: Option<i64> = "MaxConcurrentRequests",
    }
}

record! {
    /// Ejection of failing instances.
    pub struct PassiveHealthCheck {
        /// Time between evaluations.
        interval: GoDuration = "Interval",
        /// Consecutive failures that eject.
        max_failures: u32 = "MaxFailures",
        /// Chance in percent that such an instance is really ejected.
        enforcing_consecutive_5xx: Option<u32> = "EnforcingConsecutive5xx",
        /// Most instances ejected at a time, in percent.
        max_ejection_percent: Option<u32> = "MaxEjectionPercent",
        /// Time out of rotation, times the number of ejections.
        base_ejection_time: Option<GoDuration> = "BaseEjectionTime",
    }
}

record! {
    /// Addresses outside the mesh.
    pub struct Destination {
        /// IP addresses or DNS names.
        addresses: Vec<String> = "Addresses",
        /// Port.
        port: u16 = "Port",
    }
}

record! {
    /// Rate limits.
    pub struct RateLimits {
        /// For each instance.
        instance_level: InstanceLevelRateLimits = "InstanceLevel",
    }
}

record! {
    /// Rate limits of an instance.
    pub struct InstanceLevelRateLimits {
        /// Requests a second.
        requests_per_second: u32 = "RequestsPerSecond",
        /// Burst.
        requests_max_burst: u32 = "RequestsMaxBurst",
        /// For single paths.
        routes: Vec<RateLimitRoute> = "Routes",
    }
}

record! {
    /// Rate limit of a path.
    pub struct RateLimitRoute {
        /// This path.
        path_exact: String = "PathExact",
        /// Paths with this prefix.
        path_prefix: String = "PathPrefix",
        /// Paths that match.
        path_regex: String = "PathRegex",
        /// Requests a second.
        requests_per_second: u32 = "RequestsPerSecond",
        /// Burst.
        requests_max_burst: u32 = "RequestsMaxBurst",
    }
}
