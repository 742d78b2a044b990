//! Central configuration, merged into the registration of a proxy (store.md 4.18, "Merge"; kinds.md 8.2).
//!
//! What the registration says wins; what it leaves open is filled from the resolved configuration. Free-form maps are
//! filled key by key, and so are the maps in them; a key counts as given in any of its spellings, unless its value is
//! zero. The exceptions are extensions, which central configuration alone decides, and the protocol of a peered
//! upstream, which the peer decides. In transparent mode the settings of upstreams that the registration doesn't list
//! become upstreams too, marked as centrally configured, so that an upstream found later finds its settings.
//!
//! Such marked upstreams are dropped from the registration first, and made anew: an instance that was merged already,
//! by this function or by another agent before it was written to the catalog, can be merged again with any outcome of
//! resolving, and merging twice is the same as merging once.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use smol_str::SmolStr;

use crate::model::decode::same_key;
use crate::model::{
    AccessLogs, EnvoyExtension, Expose, MeshGatewayMode, MutualTlsMode, NameKey, Opaque,
    ProxyConfig, ProxyMode, RATE_LIMIT_EXTENSION, RateLimits, ResolvedServiceConfig,
    ResolvedUpstreamConfig, ServiceInstance, Upstream,
};
use crate::source::{ServiceConfigQuery, find_setting};

/// The question for the central configuration of an instance (store.md 4.18).
///
/// A sidecar asks on behalf of the service that it stands for, with its upstreams of type service; any other proxy asks
/// under its own name, without upstreams. Ask with the instance as it was registered: in a merged one, the mesh gateway
/// mode that was filled in would count as the instance's own, and win over that of upstream defaults.
#[must_use]
pub fn central_config_query(instance: &ServiceInstance) -> ServiceConfigQuery {
    let mut upstreams = BTreeMap::new();
    if instance.is_sidecar() {
        let named = instance.proxy.upstreams.iter();
        for upstream in named.filter(|u| !u.is_prepared_query() && !u.centrally_configured) {
            let spelled = (
                SmolStr::from(&upstream.destination_peer),
                SmolStr::from(&upstream.destination_name),
            );
            let kept = upstreams
                .entry(upstream_key(&spelled.0, &spelled.1))
                .or_insert_with(|| spelled.clone());
            // Of several spellings always the same one, whatever the order in the registration.
            if spelled < *kept {
                *kept = spelled;
            }
        }
    }
    let mut upstreams: Vec<_> = upstreams.into_values().collect();
    upstreams.sort();
    ServiceConfigQuery {
        service: SmolStr::from(instance.central_name()),
        mode: instance.proxy.mode,
        mesh_gateway: instance.proxy.mesh_gateway.mode,
        upstreams,
    }
}

/// The instance with its central configuration merged in (store.md 4.18, "Merge").
///
/// Neither input is changed. An instance that is no proxy is returned as it is.
#[must_use]
pub fn merge_central_config(
    instance: &ServiceInstance,
    resolved: &ResolvedServiceConfig,
) -> ServiceInstance {
    let mut merged = instance.clone();
    if merged.kind.is_proxy() {
        merge_block(&mut merged.proxy, resolved);
        let upstreams = std::mem::take(&mut merged.proxy.upstreams);
        merged.proxy.upstreams = merge_upstreams(upstreams, merged.proxy.mode, resolved);
    }
    merged
}

/// The proxy block without its upstreams, with its central configuration merged in.
pub(super) fn merged_block(
    instance: &ServiceInstance,
    resolved: &ResolvedServiceConfig,
) -> ProxyConfig {
    let mut merged = without_upstreams(&instance.proxy);
    if instance.kind.is_proxy() {
        merge_block(&mut merged, resolved);
    }
    merged
}

/// The upstreams of an instance, with their central configuration merged in. `mode` is the merged block's.
pub(super) fn merged_upstreams(
    instance: &ServiceInstance,
    mode: ProxyMode,
    resolved: &ResolvedServiceConfig,
) -> Vec<Upstream> {
    let upstreams = instance.proxy.upstreams.clone();
    if instance.kind.is_proxy() {
        merge_upstreams(upstreams, mode, resolved)
    } else {
        upstreams
    }
}

/// A copy that doesn't copy the upstreams. Field by field, so that a new field isn't forgotten.
fn without_upstreams(proxy: &ProxyConfig) -> ProxyConfig {
    ProxyConfig {
        destination_service_name: proxy.destination_service_name.clone(),
        destination_service_id: proxy.destination_service_id.clone(),
        local_service_address: proxy.local_service_address.clone(),
        local_service_port: proxy.local_service_port,
        local_service_socket_path: proxy.local_service_socket_path.clone(),
        mode: proxy.mode,
        transparent_proxy: proxy.transparent_proxy.clone(),
        mesh_gateway: proxy.mesh_gateway.clone(),
        expose: proxy.expose.clone(),
        access_logs: proxy.access_logs.clone(),
        mutual_tls_mode: proxy.mutual_tls_mode,
        envoy_extensions: proxy.envoy_extensions.clone(),
        config: proxy.config.clone(),
        upstreams: Vec::new(),
    }
}

fn merge_block(proxy: &mut ProxyConfig, resolved: &ResolvedServiceConfig) {
    fill(&mut proxy.config, &resolved.proxy_config);
    fill_expose(&mut proxy.expose, &resolved.expose);
    fill_access_logs(&mut proxy.access_logs, &resolved.access_logs);
    proxy
        .envoy_extensions
        .clone_from(&resolved.envoy_extensions);
    if let Some(limits) = &resolved.rate_limits {
        proxy.envoy_extensions.push(rate_limit_extension(limits));
    }
    if proxy.mesh_gateway.mode == MeshGatewayMode::Default {
        proxy.mesh_gateway.mode = resolved.mesh_gateway.mode;
    }
    if proxy.mode == ProxyMode::Inherit {
        proxy.mode = resolved.mode;
    }
    if proxy.mutual_tls_mode == MutualTlsMode::Default {
        proxy.mutual_tls_mode = resolved.mutual_tls_mode;
    }
    let transparent = &mut proxy.transparent_proxy;
    if transparent.outbound_listener_port == 0 {
        transparent.outbound_listener_port = resolved.transparent_proxy.outbound_listener_port;
    }
    transparent.dialed_directly |= resolved.transparent_proxy.dialed_directly;
}

/// An upstream as a look-up key: peer, then name.
type UpstreamKey = (NameKey, NameKey);

fn upstream_key(peer: &str, name: &str) -> UpstreamKey {
    (NameKey::new(peer), NameKey::new(name))
}

fn merge_upstreams(
    mut upstreams: Vec<Upstream>,
    mode: ProxyMode,
    resolved: &ResolvedServiceConfig,
) -> Vec<Upstream> {
    let central: BTreeMap<UpstreamKey, &ResolvedUpstreamConfig> = resolved
        .upstream_configs
        .iter()
        .map(|config| (upstream_key(&config.peer, &config.name), config))
        .collect();
    let mut listed = BTreeSet::new();
    upstreams.retain(|u| !u.centrally_configured);
    // Prepared queries stay as they are: what they resolve to isn't known here (store.md 4.18).
    for upstream in upstreams.iter_mut().filter(|u| !u.is_prepared_query()) {
        let key = upstream_key(&upstream.destination_peer, &upstream.destination_name);
        if let Some(config) = central.get(&key) {
            merge_upstream(upstream, &config.config);
        }
        listed.insert(key);
    }
    if mode == ProxyMode::Transparent {
        let unlisted = central.iter().filter(|(key, _)| !listed.contains(*key));
        upstreams.extend(unlisted.map(|(_, config)| central_upstream(config)));
    }
    upstreams
}

fn merge_upstream(upstream: &mut Upstream, central: &Opaque) {
    if upstream.mesh_gateway.mode == MeshGatewayMode::Default {
        // A mode among the free settings of the registration is local too.
        upstream.mesh_gateway.mode = match mode_in(&upstream.config) {
            MeshGatewayMode::Default => mode_in(central),
            local => local,
        };
    }
    let is_protocol = |key: &str| same_key(key, "protocol");
    if upstream.destination_peer.is_empty() {
        fill(&mut upstream.config, central);
    } else {
        let mut central = central.clone();
        central.retain(|key, _| !is_protocol(key));
        fill(&mut upstream.config, &central);
    }
    upstream
        .config
        .retain(|key, _| !same_key(key, "mesh_gateway"));
}

fn central_upstream(config: &ResolvedUpstreamConfig) -> Upstream {
    let mut upstream = Upstream {
        destination_name: config.name.to_string(),
        destination_peer: config.peer.to_string(),
        config: config.config.clone(),
        centrally_configured: true,
        ..Upstream::default()
    };
    upstream.mesh_gateway.mode = mode_in(&config.config);
    upstream
}

/// The mesh gateway mode among free settings; default if there is none or it can't be read.
fn mode_in(settings: &Opaque) -> MeshGatewayMode {
    let text = find_setting(settings, "mesh_gateway")
        .and_then(Value::as_object)
        .and_then(|mesh_gateway| find_setting(mesh_gateway, "mode"))
        .and_then(Value::as_str);
    text.and_then(MeshGatewayMode::from_text)
        .unwrap_or_default()
}

fn rate_limit_extension(limits: &RateLimits) -> EnvoyExtension {
    let level = &limits.instance_level;
    let routes: Vec<Value> = level
        .routes
        .iter()
        .map(|route| {
            json!({
                "PathExact": route.path_exact,
                "PathPrefix": route.path_prefix,
                "PathRegex": route.path_regex,
                "RequestsPerSecond": route.requests_per_second,
                "RequestsMaxBurst": route.requests_max_burst,
            })
        })
        .collect();
    let level = json!({
        "RequestsPerSecond": level.requests_per_second,
        "RequestsMaxBurst": level.requests_max_burst,
        "Routes": routes,
    });
    EnvoyExtension {
        name: RATE_LIMIT_EXTENSION.to_owned(),
        arguments: std::iter::once(("InstanceLevel".to_owned(), level)).collect(),
        ..EnvoyExtension::default()
    }
}

fn fill_expose(local: &mut Expose, central: &Expose) {
    local.checks |= central.checks;
    if local.paths.is_empty() {
        local.paths.clone_from(&central.paths);
    }
}

fn fill_access_logs(local: &mut AccessLogs, central: &AccessLogs) {
    local.enabled |= central.enabled;
    local.disable_listener_logs |= central.disable_listener_logs;
    for (local, central) in [
        (&mut local.kind, &central.kind),
        (&mut local.path, &central.path),
    ] {
        if local.is_empty() {
            local.clone_from(central);
        }
    }
    // At most one format may be set: with one given locally, the other one is no gap to fill.
    if local.json_format.is_empty() && local.text_format.is_empty() {
        local.json_format.clone_from(&central.json_format);
        local.text_format.clone_from(&central.text_format);
    }
}

/// Fills what a free-form map leaves open: keys that it lacks in every spelling, or holds with a zero value; maps in it
/// in the same way. Its own spellings are kept.
fn fill(local: &mut Opaque, central: &Opaque) {
    for (key, value) in central.iter().filter(|(_, value)| !value.is_null()) {
        let spelled = if local.contains_key(key) {
            Some(key.clone())
        } else {
            local.keys().find(|k| same_key(k, key)).cloned()
        };
        let Some(own) = spelled.and_then(|key| local.get_mut(&key)) else {
            local.insert(key.clone(), value.clone());
            continue;
        };
        match (own, value) {
            (Value::Object(own), Value::Object(value)) => fill(own, value),
            (own, value) if is_zero(own) => own.clone_from(value),
            _ => {}
        }
    }
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(yes) => !yes,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
    }
}

#[cfg(test)]
mod tests;
