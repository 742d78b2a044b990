//! `proxy-defaults` (store.md 3.1).

use std::collections::BTreeMap;

use crate::model::decode::{Opaque, record};
use crate::model::proxy::{
    AccessLogs, EnvoyExtension, Expose, MeshGateway, MutualTlsMode, ProxyMode, TransparentProxy,
};

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
