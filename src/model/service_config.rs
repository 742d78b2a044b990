//! Central configuration of a service, resolved (store.md 4.18).

use std::collections::BTreeMap;

use serde::Serialize;
use smol_str::SmolStr;

use crate::model::config_entry::{Destination, RateLimits};
use crate::model::decode::Opaque;
use crate::model::proxy::{
    AccessLogs, EnvoyExtension, Expose, MeshGateway, MutualTlsMode, ProxyMode, TransparentProxy,
};

/// What proxy-defaults and service-defaults say about the proxies of one service.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct ResolvedServiceConfig {
    /// Free settings of the proxy.
    pub proxy_config: Opaque,
    /// Free settings of upstreams, sorted by peer and name; `*` holds the defaults of all.
    pub upstream_configs: Vec<ResolvedUpstreamConfig>,
    /// Mesh gateway mode.
    pub mesh_gateway: MeshGateway,
    /// Plain paths.
    pub expose: Expose,
    /// Settings of the transparent mode.
    pub transparent_proxy: TransparentProxy,
    /// Whether plain connections are accepted.
    #[serde(rename = "MutualTLSMode")]
    pub mutual_tls_mode: MutualTlsMode,
    /// How traffic reaches proxies.
    pub mode: ProxyMode,
    /// Addresses outside the mesh.
    pub destination: Option<Destination>,
    /// Access logs.
    pub access_logs: AccessLogs,
    /// Rate limits.
    pub rate_limits: Option<RateLimits>,
    /// Labels of the service.
    pub meta: BTreeMap<String, String>,
    /// Extensions of proxy-defaults, then of the service.
    pub envoy_extensions: Vec<EnvoyExtension>,
}

/// Settings of one upstream.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct ResolvedUpstreamConfig {
    /// Its peer, or empty.
    pub peer: SmolStr,
    /// Its name, or `*`.
    pub name: SmolStr,
    /// Free settings.
    pub config: Opaque,
}
