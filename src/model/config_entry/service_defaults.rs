//! `service-defaults` (store.md 3.2).

use std::collections::BTreeMap;

use crate::model::config_entry::EntryKind;
use crate::model::decode::{Opaque, Place, Problems, record};
use crate::model::duration::GoDuration;
use crate::model::proxy::{
    EnvoyExtension, Expose, MeshGateway, MutualTlsMode, ProxyMode, TransparentProxy,
};
use crate::model::rules;
use crate::model::validate::Validate;

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

/// The name of the extension that carries the rate limits of service-defaults to the proxy; its arguments are theirs,
/// under the public JSON names.
pub const RATE_LIMIT_EXTENSION: &str = "builtin/proxycfg/rate-limits";

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

impl Validate for ServiceDefaults {
    /// store.md 3.2.
    fn validate(&self, at: &Place<'_>, problems: &mut Problems) {
        if self.name == "*" {
            problems.error(
                &at.key("Name"),
                "\"*\" is not a service; defaults of all services are in proxy-defaults",
            );
        } else {
            rules::mesh_name("service name", &self.name, &at.key("Name"), problems);
        }
        rules::meta(&self.meta, &at.key("Meta"), problems);
        self.expose.validate(&at.key("Expose"), problems);
        EnvoyExtension::validate_all(&self.envoy_extensions, &at.key("EnvoyExtensions"), problems);
        balance(
            &self.balance_inbound_connections,
            &at.key("BalanceInboundConnections"),
            problems,
        );
        for (key, number) in [
            ("MaxInboundConnections", self.max_inbound_connections),
            ("LocalConnectTimeoutMs", self.local_connect_timeout_ms),
            ("LocalRequestTimeoutMs", self.local_request_timeout_ms),
        ] {
            rules::natural(number, &at.key(key), problems);
        }
        if !self.external_sni.is_empty() && !rules::is_dns_name(&self.external_sni) {
            problems.error(
                &at.key("ExternalSNI"),
                format!("{} is not a DNS name", rules::shown(&self.external_sni)),
            );
        }
        if let Some(upstreams) = &self.upstream_config {
            let here = at.key("UpstreamConfig");
            if self.destination.is_some() {
                problems.error(&here, "UpstreamConfig and Destination exclude each other");
            }
            upstreams.validate(&here, problems);
        }
        if let Some(destination) = &self.destination {
            destination.validate(&at.key("Destination"), problems);
        }
        if let Some(limits) = &self.rate_limits {
            let at = at.key("RateLimits");
            limits
                .instance_level
                .validate(&at.key("InstanceLevel"), problems);
        }
    }

    fn enterprise_only(&self, at: &Place<'_>, problems: &mut Problems) {
        rules::only_default(&self.namespace, &self.partition, at, problems);
        let Some(upstreams) = &self.upstream_config else {
            return;
        };
        let at = at.key("UpstreamConfig");
        let overrides = at.key("Overrides");
        for (i, item) in upstreams.overrides.iter().enumerate() {
            // A wildcard namespace is refused with a text of its own.
            if item.namespace != "*" {
                let at = overrides.index(i);
                rules::only_default(&item.namespace, &item.partition, &at, problems);
            }
        }
    }

    fn normalize(&mut self) {
        self.kind = EntryKind::ServiceDefaults.to_string();
        self.protocol.make_ascii_lowercase();
        rules::clear_default(&mut self.namespace);
        rules::clear_default(&mut self.partition);
        self.expose.normalize();
        let Some(upstreams) = &mut self.upstream_config else {
            return;
        };
        for item in upstreams
            .defaults
            .iter_mut()
            .chain(&mut upstreams.overrides)
        {
            item.protocol.make_ascii_lowercase();
            item.connect_timeout_ms = item.connect_timeout_ms.max(0);
            rules::clear_default(&mut item.namespace);
            rules::clear_default(&mut item.partition);
        }
    }
}

impl UpstreamsConfig {
    fn validate(&self, at: &Place<'_>, problems: &mut Problems) {
        if let Some(defaults) = &self.defaults {
            let at = at.key("Defaults");
            for (key, text) in [
                ("Name", &defaults.name),
                ("Peer", &defaults.peer),
                ("Namespace", &defaults.namespace),
                ("Partition", &defaults.partition),
            ] {
                if !text.is_empty() {
                    problems.error(
                        &at.key(key),
                        format!("{key} must be empty in the defaults of all upstreams"),
                    );
                }
            }
            defaults.validate(&at, problems);
        }
        let overrides = at.key("Overrides");
        for (i, item) in self.overrides.iter().enumerate() {
            let at = overrides.index(i);
            if item.name == "*" {
                problems.error(
                    &at.key("Name"),
                    "an override needs the name of one upstream; for all of them use Defaults",
                );
            } else {
                rules::mesh_name("upstream name", &item.name, &at.key("Name"), problems);
            }
            if item.namespace == "*" {
                problems.error(
                    &at.key("Namespace"),
                    "an override can't be for all namespaces",
                );
            }
            rules::optional_mesh_name("peer name", &item.peer, &at.key("Peer"), problems);
            item.validate(&at, problems);
        }
    }
}

impl UpstreamDefaults {
    fn validate(&self, at: &Place<'_>, problems: &mut Problems) {
        balance(
            &self.balance_outbound_connections,
            &at.key("BalanceOutboundConnections"),
            problems,
        );
        if let Some(limits) = &self.limits {
            let at = at.key("Limits");
            for (key, number) in [
                ("MaxConnections", limits.max_connections),
                ("MaxPendingRequests", limits.max_pending_requests),
                ("MaxConcurrentRequests", limits.max_concurrent_requests),
            ] {
                rules::natural(number.unwrap_or(0), &at.key(key), problems);
            }
        }
        if let Some(passive) = &self.passive_health_check {
            let at = at.key("PassiveHealthCheck");
            rules::not_negative(passive.interval, &at.key("Interval"), problems);
            rules::not_negative(
                passive.base_ejection_time.unwrap_or_default(),
                &at.key("BaseEjectionTime"),
                problems,
            );
            for (key, percent) in [
                ("EnforcingConsecutive5xx", passive.enforcing_consecutive_5xx),
                ("MaxEjectionPercent", passive.max_ejection_percent),
            ] {
                if let Some(percent) = percent.filter(|p| *p > 100) {
                    problems.error(&at.key(key), format!("{percent} is more than 100 percent"));
                }
            }
        }
        for (key, json) in [
            ("EnvoyListenerJSON", &self.envoy_listener_json),
            ("EnvoyClusterJSON", &self.envoy_cluster_json),
        ] {
            if !json.is_empty() && serde_json::from_str::<Opaque>(json).is_err() {
                problems.warning(&at.key(key), "is not a JSON object, and will not be used");
            }
        }
    }
}

impl Destination {
    fn validate(&self, at: &Place<'_>, problems: &mut Problems) {
        let addresses = at.key("Addresses");
        if self.addresses.is_empty() {
            problems.error(&addresses, "a destination needs at least one address");
        }
        for (i, address) in self.addresses.iter().enumerate() {
            let at = addresses.index(i);
            if address.contains('*') {
                problems.error(
                    &at,
                    format!("{}: an address can't have '*'", rules::shown(address)),
                );
            } else if !rules::is_host(address) {
                problems.error(
                    &at,
                    format!(
                        "{} is neither an IP address nor a DNS name",
                        rules::shown(address)
                    ),
                );
            }
            let same = |a: &String| a.eq_ignore_ascii_case(address);
            if self.addresses[..i].iter().any(same) {
                problems.error(
                    &at,
                    format!("the address {} is given twice", rules::shown(address)),
                );
            }
        }
        if self.port == 0 {
            problems.error(
                &at.key("Port"),
                "a destination needs a port from 1 to 65535",
            );
        }
    }
}

impl InstanceLevelRateLimits {
    fn validate(&self, at: &Place<'_>, problems: &mut Problems) {
        let routes = at.key("Routes");
        for (i, route) in self.routes.iter().enumerate() {
            let at = routes.index(i);
            let given = rules::paths(
                &route.path_exact,
                &route.path_prefix,
                &route.path_regex,
                &at,
                problems,
            );
            if given == 0 {
                problems.error(
                    &at,
                    "a rate limit of a route needs one of PathExact, PathPrefix and PathRegex",
                );
            }
        }
    }
}

fn balance(text: &str, at: &Place<'_>, problems: &mut Problems) {
    rules::one_of(text, &["", "exact_balance"], at, problems);
}
