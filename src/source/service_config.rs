//! Central configuration of a service, resolved from config entries (store.md 4.18, 4.19).
//!
//! What proxy-defaults say is overlaid by what the service's own service-defaults say, field by field. Then come the
//! settings of upstreams, as free-form maps, since that is what they are merged into later:
//!
//! 1. The *wildcard* map, emitted under the name `*`: the mesh gateway mode (proxy-defaults, then service-defaults),
//!    `UpstreamConfig.Defaults`, the mode of the asking instance.
//! 2. One map for each upstream that the instance asks for or that `UpstreamConfig.Overrides` names. Later wins: protocol of
//!    proxy-defaults, wildcard map, protocol in the upstream's own service-defaults, mesh gateway mode resolved for the
//!    service, `Defaults`, mode of the asking instance, the override for exactly this peer and name.
//!
//! An instance with no upstreams and no transparent mode gets no upstream settings at all, and nothing is read for them.
//! Entries are only read, never written to. An override without a peer holds for the local service alone: the older
//! reading, by which it holds for peered services of that name too, is left out on purpose.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use smol_str::SmolStr;

use super::ServiceConfigQuery;
use crate::model::decode::same_key;
use crate::model::{
    MeshGateway, MeshGatewayMode, MutualTlsMode, NameKey, Opaque, PassiveHealthCheck,
    ProxyDefaults, ProxyMode, ResolvedServiceConfig, ResolvedUpstreamConfig, ServiceDefaults,
    UpstreamDefaults, UpstreamLimits,
};

/// What the central configuration of a service is resolved from.
pub struct ResolveInput<'a> {
    /// Whose configuration, for an instance in which mode and with which upstreams.
    pub request: &'a ServiceConfigQuery,
    /// The entry proxy-defaults `global`, if there is one.
    pub proxy_defaults: Option<&'a ProxyDefaults>,
    /// The service-defaults of the service itself, if there are any.
    pub service_defaults: Option<&'a ServiceDefaults>,
    /// Looks up the service-defaults of an upstream by name. Called once for each local upstream that gets settings, in
    /// order of names, and for no other name: a caller that records what is read records exactly what the result depends
    /// on.
    pub upstream_defaults: &'a dyn Fn(&str) -> Option<&'a ServiceDefaults>,
}

/// Resolves the central configuration of a service (store.md 4.18, "Resolve").
///
/// Pure: equal inputs give equal results. The upstream settings are sorted by peer and name, and each upstream occurs
/// once.
#[must_use]
pub fn resolve(input: &ResolveInput<'_>) -> ResolvedServiceConfig {
    let mut resolved = ResolvedServiceConfig::default();
    if let Some(defaults) = input.proxy_defaults {
        take_proxy_defaults(&mut resolved, defaults);
    }
    if let Some(defaults) = input.service_defaults {
        take_service_defaults(&mut resolved, defaults);
    }
    let transparent = ProxyMode::Transparent;
    if !input.request.upstreams.is_empty()
        || input.request.mode == transparent
        || resolved.mode == transparent
    {
        resolved.upstream_configs = resolve_upstreams(input, resolved.mesh_gateway.mode);
    }
    resolved
}

/// The protocol of a service: what its service-defaults say, else what proxy-defaults say, else `tcp`; in lower case
/// (store.md 4.19).
///
/// Service-defaults that exist without a protocol mean `tcp`, whatever proxy-defaults say: the discovery chain goes by the
/// same rule (discovery-chain.md 7), and the two must agree.
#[must_use]
pub fn protocol_of(
    proxy_defaults: Option<&ProxyDefaults>,
    service_defaults: Option<&ServiceDefaults>,
) -> SmolStr {
    let protocol = match service_defaults {
        Some(defaults) => lower_case(&defaults.protocol),
        None => default_protocol(proxy_defaults),
    };
    if protocol.is_empty() {
        SmolStr::new_static("tcp")
    } else {
        protocol
    }
}

/// The protocol in the free settings of proxy-defaults, in lower case; empty if there is none. It is typed weakly: a
/// number or a boolean counts as its text.
fn default_protocol(proxy_defaults: Option<&ProxyDefaults>) -> SmolStr {
    match proxy_defaults.and_then(|defaults| find_setting(&defaults.config, "protocol")) {
        Some(Value::String(text)) => lower_case(text),
        Some(Value::Number(number)) => SmolStr::from(number.to_string()),
        Some(Value::Bool(yes)) => SmolStr::new_static(if *yes { "1" } else { "0" }),
        _ => SmolStr::default(),
    }
}

fn lower_case(text: &str) -> SmolStr {
    SmolStr::from(text.to_lowercase())
}

fn take_proxy_defaults(resolved: &mut ResolvedServiceConfig, defaults: &ProxyDefaults) {
    resolved.proxy_config = defaults.config.clone();
    resolved.mode = defaults.mode;
    resolved.mutual_tls_mode = defaults.mutual_tls_mode;
    resolved.mesh_gateway = defaults.mesh_gateway.clone();
    resolved.transparent_proxy = defaults.transparent_proxy.clone();
    resolved.expose = defaults.expose.clone();
    resolved.access_logs = defaults.access_logs.clone();
    resolved.envoy_extensions = defaults.envoy_extensions.clone();
}

fn take_service_defaults(resolved: &mut ResolvedServiceConfig, defaults: &ServiceDefaults) {
    let config = &mut resolved.proxy_config;
    put_text(config, "protocol", &lower_case(&defaults.protocol));
    put_text(
        config,
        "balance_inbound_connections",
        &defaults.balance_inbound_connections,
    );
    for (key, number) in [
        ("max_inbound_connections", defaults.max_inbound_connections),
        (
            "local_connect_timeout_ms",
            defaults.local_connect_timeout_ms,
        ),
        (
            "local_request_timeout_ms",
            defaults.local_request_timeout_ms,
        ),
    ] {
        if number != 0 {
            put(config, key, number.into());
        }
    }

    if defaults.mode != ProxyMode::Inherit {
        resolved.mode = defaults.mode;
    }
    if defaults.mutual_tls_mode != MutualTlsMode::Default {
        resolved.mutual_tls_mode = defaults.mutual_tls_mode;
    }
    if is_set(&defaults.mesh_gateway) {
        resolved.mesh_gateway = defaults.mesh_gateway.clone();
    }
    let transparent = &defaults.transparent_proxy;
    if transparent.outbound_listener_port != 0 {
        resolved.transparent_proxy.outbound_listener_port = transparent.outbound_listener_port;
    }
    resolved.transparent_proxy.dialed_directly |= transparent.dialed_directly;
    resolved.expose.checks |= defaults.expose.checks;
    if !defaults.expose.paths.is_empty() {
        resolved.expose.paths.clone_from(&defaults.expose.paths);
    }
    resolved
        .envoy_extensions
        .extend_from_slice(&defaults.envoy_extensions);
    resolved.meta.clone_from(&defaults.meta);
    resolved.destination.clone_from(&defaults.destination);
    resolved.rate_limits.clone_from(&defaults.rate_limits);
}

/// An upstream as a look-up key: peer, then name.
type UpstreamKey = (NameKey, NameKey);

fn resolve_upstreams(
    input: &ResolveInput<'_>,
    resolved_mode: MeshGatewayMode,
) -> Vec<ResolvedUpstreamConfig> {
    let config = input
        .service_defaults
        .and_then(|defaults| defaults.upstream_config.as_ref());
    let defaults = config.and_then(|config| config.defaults.as_ref());
    let overrides: BTreeMap<UpstreamKey, &UpstreamDefaults> = config
        .into_iter()
        .flat_map(|config| &config.overrides)
        .map(|o| ((NameKey::new(&o.peer), NameKey::new(&o.name)), o))
        .collect();

    let wildcard = wildcard_settings(input, defaults, resolved_mode);
    let mut configs = Vec::new();
    if !wildcard.is_empty() || defaults.is_some() {
        configs.push(ResolvedUpstreamConfig {
            peer: SmolStr::default(),
            name: SmolStr::new_static("*"),
            config: wildcard.clone(),
        });
    }

    let requested = input
        .request
        .upstreams
        .iter()
        .map(|(peer, name)| (peer.clone(), name.clone()));
    let overridden = overrides
        .values()
        .map(|o| (SmolStr::from(&o.peer), SmolStr::from(&o.name)));
    let mut seen = BTreeSet::new();
    let mut upstreams: Vec<(UpstreamKey, (SmolStr, SmolStr))> = requested
        .chain(overridden)
        .map(|(peer, name)| ((NameKey::new(&peer), NameKey::new(&name)), (peer, name)))
        // Such overrides are refused when they are written; as the wildcard's twin one would be ambiguous.
        .filter(|(_, (_, name))| !name.is_empty() && name != "*")
        .filter(|(key, _)| seen.insert(key.clone()))
        .collect();
    upstreams.sort_by(|(a, _), (b, _)| a.cmp(b));

    for (key, (peer, name)) in upstreams {
        let mut settings = Opaque::new();
        put_text(
            &mut settings,
            "protocol",
            &default_protocol(input.proxy_defaults),
        );
        for (key, value) in &wildcard {
            put(&mut settings, key, value.clone());
        }
        if peer.is_empty()
            && let Some(own) = (input.upstream_defaults)(&name)
        {
            put_text(&mut settings, "protocol", &lower_case(&own.protocol));
        }
        put_mode(&mut settings, resolved_mode);
        if let Some(defaults) = defaults {
            put_settings(&mut settings, defaults, defaults.mesh_gateway.mode);
        }
        put_mode(&mut settings, input.request.mesh_gateway);
        if let Some(single) = overrides.get(&key) {
            put_settings(&mut settings, single, single.mesh_gateway.mode);
        }
        if !settings.is_empty() {
            configs.push(ResolvedUpstreamConfig {
                peer,
                name,
                config: settings,
            });
        }
    }
    configs
}

/// The settings that hold for any upstream. The protocol of proxy-defaults isn't among them: it says how services are
/// spoken to unless they say otherwise, and here it would win over what they say.
fn wildcard_settings(
    input: &ResolveInput<'_>,
    defaults: Option<&UpstreamDefaults>,
    resolved_mode: MeshGatewayMode,
) -> Opaque {
    let mut settings = Opaque::new();
    let free = input
        .proxy_defaults
        .and_then(|defaults| find_setting(&defaults.config, "mesh_gateway"));
    if let Some(mesh_gateway) = free.filter(|value| !value.is_null()) {
        put(&mut settings, "mesh_gateway", mesh_gateway.clone());
    }
    put_mode(&mut settings, resolved_mode);
    if let Some(defaults) = defaults {
        let mode = match defaults.mesh_gateway.mode {
            MeshGatewayMode::Default => resolved_mode,
            mode => mode,
        };
        put_settings(&mut settings, defaults, mode);
    }
    put_mode(&mut settings, input.request.mesh_gateway);
    settings
}

/// Writes what is set in an item of `UpstreamConfig`; `limits` and `passive_health_check` replace what was there as a
/// whole.
fn put_settings(settings: &mut Opaque, item: &UpstreamDefaults, mode: MeshGatewayMode) {
    put_text(settings, "envoy_listener_json", &item.envoy_listener_json);
    put_text(settings, "envoy_cluster_json", &item.envoy_cluster_json);
    put_text(settings, "protocol", &lower_case(&item.protocol));
    if item.connect_timeout_ms > 0 {
        put(
            settings,
            "connect_timeout_ms",
            item.connect_timeout_ms.into(),
        );
    }
    put_mode(settings, mode);
    if let Some(limits) = &item.limits {
        put(settings, "limits", limits_json(limits));
    }
    if let Some(check) = &item.passive_health_check {
        put(settings, "passive_health_check", passive_check_json(check));
    }
    put_text(
        settings,
        "balance_outbound_connections",
        &item.balance_outbound_connections,
    );
}

fn limits_json(limits: &UpstreamLimits) -> Value {
    [
        ("max_connections", limits.max_connections),
        ("max_pending_requests", limits.max_pending_requests),
        ("max_concurrent_requests", limits.max_concurrent_requests),
    ]
    .into_iter()
    .filter_map(|(key, limit)| Some((key.to_owned(), Value::from(limit?))))
    .collect()
}

fn passive_check_json(check: &PassiveHealthCheck) -> Value {
    let mut json = Opaque::new();
    if !check.interval.is_zero() {
        put(&mut json, "interval", check.interval.to_string().into());
    }
    if check.max_failures != 0 {
        put(&mut json, "max_failures", check.max_failures.into());
    }
    for (key, percentage) in [
        ("enforcing_consecutive_5xx", check.enforcing_consecutive_5xx),
        ("max_ejection_percent", check.max_ejection_percent),
    ] {
        if let Some(percentage) = percentage {
            put(&mut json, key, percentage.into());
        }
    }
    if let Some(time) = check.base_ejection_time {
        put(&mut json, "base_ejection_time", time.to_string().into());
    }
    Value::Object(json)
}

fn is_set(mesh_gateway: &MeshGateway) -> bool {
    mesh_gateway.mode != MeshGatewayMode::Default
}

fn put_mode(settings: &mut Opaque, mode: MeshGatewayMode) {
    if mode != MeshGatewayMode::Default {
        put(settings, "mesh_gateway", json!({"mode": mode.as_str()}));
    }
}

fn put_text(settings: &mut Opaque, key: &str, text: &str) {
    if !text.is_empty() {
        put(settings, key, text.into());
    }
}

/// Sets a key, in place of any other spelling of it: left there, the two would contradict each other.
fn put(settings: &mut Opaque, key: &str, value: Value) {
    settings.retain(|other, _| other == key || !same_key(other, key));
    settings.insert(key.to_owned(), value);
}

/// The value of a key among free settings: in this spelling, else in any.
pub(crate) fn find_setting<'a>(settings: &'a Opaque, key: &str) -> Option<&'a Value> {
    settings.get(key).or_else(|| {
        let mut others = settings.iter();
        others.find_map(|(other, value)| same_key(other, key).then_some(value))
    })
}

#[cfg(test)]
mod tests;
