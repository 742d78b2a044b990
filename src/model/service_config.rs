//! Central configuration of a service, resolved (store.md 4.18).

use std::collections::BTreeMap;

use smol_str::SmolStr;

use crate::model::config_entry::{Destination, RateLimits};
use crate::model::decode::{Opaque, record};
use crate::model::proxy::{
    AccessLogs, EnvoyExtension, Expose, MeshGateway, MutualTlsMode, ProxyMode, TransparentProxy,
};

record! {
    /// What proxy-defaults and service-defaults say about the proxies of one service.
    pub struct ResolvedServiceConfig {
        /// Free settings of the proxy.
        proxy_config: Opaque = "ProxyConfig" always,
        /// Free settings of upstreams, sorted by peer and name; `*` holds the defaults of all.
        upstream_configs: Vec<ResolvedUpstreamConfig> = "UpstreamConfigs" always,
        /// Mesh gateway mode.
        mesh_gateway: MeshGateway = "MeshGateway" always,
        /// Plain paths.
        expose: Expose = "Expose" always,
        /// Settings of the transparent mode.
        transparent_proxy: TransparentProxy = "TransparentProxy" always,
        /// Whether plain connections are accepted.
        mutual_tls_mode: MutualTlsMode = "MutualTLSMode" always,
        /// How traffic reaches proxies.
        mode: ProxyMode = "Mode" always,
        /// Addresses outside the mesh.
        destination: Option<Destination> = "Destination" always,
        /// Access logs.
        access_logs: AccessLogs = "AccessLogs" always,
        /// Rate limits.
        rate_limits: Option<RateLimits> = "RateLimits" always,
        /// Labels of the service.
        meta: BTreeMap<String, String> = "Meta" always,
        /// Extensions of proxy-defaults, then of the service.
        envoy_extensions: Vec<EnvoyExtension> = "EnvoyExtensions" always,
    }
}

record! {
    /// Settings of one upstream.
    pub struct ResolvedUpstreamConfig {
        /// Its peer, or empty.
        peer: SmolStr = "Peer" always,
        /// Its name, or `*`.
        name: SmolStr = "Name" always,
        /// Free settings.
        config: Opaque = "Config" always,
    }
}
