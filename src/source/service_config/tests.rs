use std::cell::RefCell;

use proptest::prelude::*;

use super::*;
use crate::model::{Decode, decode_document};

/// Entries as a mesh operator writes them, and a request, to be resolved.
#[derive(Default)]
struct Case {
    proxy_defaults: Option<ProxyDefaults>,
    /// Service-defaults by name; `web` is the service that asks.
    service_defaults: BTreeMap<String, ServiceDefaults>,
    request: ServiceConfigQuery,
}

fn read<T: Decode>(json: &Value) -> T {
    let document = crate::hcl::Value::from_json(json);
    match decode_document(&document) {
        Ok((record, _)) => record,
        Err(problems) => panic!("{}", problems.text()),
    }
}

impl Case {
    fn new() -> Self {
        let mut case = Self::default();
        case.request.service = "web".into();
        case
    }

    fn proxy_defaults(mut self, json: Value) -> Self {
        self.proxy_defaults = Some(read(&json));
        self
    }

    fn service_defaults(mut self, name: &str, json: Value) -> Self {
        self.service_defaults.insert(name.to_owned(), read(&json));
        self
    }

    fn mode(mut self, mode: ProxyMode) -> Self {
        self.request.mode = mode;
        self
    }

    fn mesh_gateway(mut self, mode: MeshGatewayMode) -> Self {
        self.request.mesh_gateway = mode;
        self
    }

    fn upstream(self, name: &str) -> Self {
        self.peered("", name)
    }

    fn peered(mut self, peer: &str, name: &str) -> Self {
        self.request.upstreams.push((peer.into(), name.into()));
        self
    }

    fn resolve(&self) -> ResolvedServiceConfig {
        self.resolve_and_note_reads().0
    }

    fn resolve_and_note_reads(&self) -> (ResolvedServiceConfig, Vec<String>) {
        let reads: RefCell<Vec<String>> = RefCell::default();
        let resolved = resolve(&ResolveInput {
            request: &self.request,
            proxy_defaults: self.proxy_defaults.as_ref(),
            service_defaults: self.service_defaults.get("web"),
            upstream_defaults: &|name| {
                reads.borrow_mut().push(name.to_owned());
                self.service_defaults.get(name)
            },
        });
        (resolved, reads.into_inner())
    }

    /// The settings of upstreams by `name` or `peer/name`.
    fn upstreams(&self) -> Value {
        self.resolve()
            .upstream_configs
            .into_iter()
            .map(|c| {
                let name = if c.peer.is_empty() {
                    c.name.to_string()
                } else {
                    format!("{}/{}", c.peer, c.name)
                };
                (name, Value::Object(c.config))
            })
            .collect()
    }
}

fn gateway(mode: &str) -> Value {
    json!({"mesh_gateway": {"mode": mode}})
}

#[test]
fn store_72_numbers_of_service_defaults_reach_the_proxy_and_nothing_else_does() {
    let resolved = Case::new()
        .service_defaults(
            "web",
            json!({"MaxInboundConnections": 20, "LocalConnectTimeoutMs": 20000, "LocalRequestTimeoutMs": 30000}),
        )
        .resolve();
    let wanted = json!({
        "max_inbound_connections": 20, "local_connect_timeout_ms": 20000, "local_request_timeout_ms": 30000,
    });
    assert_eq!(Value::Object(resolved.proxy_config), wanted);
    assert_eq!(resolved.upstream_configs, []);
}

#[test]
fn store_73_mesh_gateway_mode_of_proxy_defaults() {
    let case = Case::new()
        .proxy_defaults(json!({"MeshGateway": {"Mode": "remote"}}))
        .upstream("u");
    assert_eq!(case.resolve().mesh_gateway.mode, MeshGatewayMode::Remote);
    let wanted = json!({"*": gateway("remote"), "u": gateway("remote")});
    assert_eq!(case.upstreams(), wanted);
}

#[test]
fn store_74_mesh_gateway_mode_of_service_defaults_wins_over_proxy_defaults() {
    let case = Case::new()
        .proxy_defaults(json!({"MeshGateway": {"Mode": "local"}}))
        .service_defaults("web", json!({"MeshGateway": {"Mode": "none"}}))
        .upstream("u");
    let wanted = json!({"*": gateway("none"), "u": gateway("none")});
    assert_eq!(case.upstreams(), wanted);
}

#[test]
fn store_75_mesh_gateway_mode_of_upstream_defaults_wins_for_upstreams() {
    let case = Case::new()
        .proxy_defaults(json!({"MeshGateway": {"Mode": "local"}}))
        .service_defaults(
            "web",
            json!({
                "MeshGateway": {"Mode": "none"},
                "UpstreamConfig": {"Defaults": {"MeshGateway": {"Mode": "remote"}}},
            }),
        )
        .upstream("u");
    assert_eq!(case.resolve().mesh_gateway.mode, MeshGatewayMode::None);
    let wanted = json!({"*": gateway("remote"), "u": gateway("remote")});
    assert_eq!(case.upstreams(), wanted);
}

#[test]
fn store_76_mesh_gateway_mode_of_the_instance_wins_over_upstream_defaults() {
    let case = Case::new()
        .service_defaults(
            "web",
            json!({"UpstreamConfig": {"Defaults": {"MeshGateway": {"Mode": "none"}}}}),
        )
        .mesh_gateway(MeshGatewayMode::Remote)
        .upstream("u");
    let wanted = json!({"*": gateway("remote"), "u": gateway("remote")});
    assert_eq!(case.upstreams(), wanted);
}

#[test]
fn store_77_mesh_gateway_mode_of_an_override_wins_over_the_instance() {
    let case = Case::new()
        .service_defaults(
            "web",
            json!({"UpstreamConfig": {
                "Defaults": {"MeshGateway": {"Mode": "local"}},
                "Overrides": [{"Name": "u", "MeshGateway": {"Mode": "remote"}}],
            }}),
        )
        .mesh_gateway(MeshGatewayMode::Local)
        .upstream("u");
    let wanted = json!({"*": gateway("local"), "u": gateway("remote")});
    assert_eq!(case.upstreams(), wanted);
}

#[test]
fn store_79_wildcard_inherits_the_mesh_gateway_mode() {
    let case = Case::new()
        .proxy_defaults(json!({"MeshGateway": {"Mode": "local"}}))
        .service_defaults(
            "web",
            json!({"UpstreamConfig": {"Defaults": {"Protocol": "http"}}}),
        )
        .mode(ProxyMode::Transparent);
    let wanted = json!({"*": {"mesh_gateway": {"mode": "local"}, "protocol": "http"}});
    assert_eq!(case.upstreams(), wanted);
}

#[test]
fn store_80_protocol_of_proxy_defaults_never_gets_into_the_wildcard() {
    let case = Case::new()
        .proxy_defaults(json!({"Config": {"protocol": "http"}}))
        .mode(ProxyMode::Transparent);
    assert_eq!(case.upstreams(), json!({}));
    // Not even where the wildcard exists for another reason.
    let case = case
        .service_defaults("web", json!({"UpstreamConfig": {"Defaults": {}}}))
        .upstream("u");
    let wanted = json!({"*": {}, "u": {"protocol": "http"}});
    assert_eq!(case.upstreams(), wanted);
}

#[test]
fn store_81_protocol_of_the_upstream_wins_over_proxy_defaults() {
    let case = Case::new()
        .proxy_defaults(json!({"Config": {"protocol": "http"}}))
        .upstream("u");
    assert_eq!(case.upstreams(), json!({"u": {"protocol": "http"}}));
    let case = case.service_defaults("u", json!({"Protocol": "grpc"}));
    assert_eq!(case.upstreams(), json!({"u": {"protocol": "grpc"}}));
}

#[test]
fn store_82_protocol_of_upstream_defaults_and_overrides_wins_over_the_upstream() {
    let case = Case::new()
        .proxy_defaults(json!({"Config": {"protocol": "http"}}))
        .service_defaults("u", json!({"Protocol": "grpc"}))
        .service_defaults(
            "web",
            json!({"UpstreamConfig": {"Defaults": {"Protocol": "tcp"}}}),
        )
        .upstream("u");
    let wanted = json!({"*": {"protocol": "tcp"}, "u": {"protocol": "tcp"}});
    assert_eq!(case.upstreams(), wanted);

    let case = case.service_defaults(
        "web",
        json!({"UpstreamConfig": {
            "Defaults": {"Protocol": "tcp"}, "Overrides": [{"Name": "u", "Protocol": "http2"}],
        }}),
    );
    let wanted = json!({"*": {"protocol": "tcp"}, "u": {"protocol": "http2"}});
    assert_eq!(case.upstreams(), wanted);
}

#[test]
fn store_83_transparent_mode_from_central_configuration_counts() {
    let case = Case::new()
        .proxy_defaults(json!({"Mode": "transparent"}))
        .service_defaults(
            "web",
            json!({"UpstreamConfig": {
                "Defaults": {"ConnectTimeoutMs": 7}, "Overrides": [{"Name": "u", "Protocol": "http"}],
            }}),
        );
    let wanted = json!({
        "*": {"connect_timeout_ms": 7}, "u": {"connect_timeout_ms": 7, "protocol": "http"},
    });
    assert_eq!(case.upstreams(), wanted);
}

#[test]
fn store_84_no_upstreams_and_not_transparent_means_no_settings_of_upstreams_and_no_reads() {
    let (resolved, reads) = Case::new()
        .proxy_defaults(json!({"MeshGateway": {"Mode": "local"}, "Mode": "direct"}))
        .service_defaults(
            "web",
            json!({"UpstreamConfig": {"Defaults": {}, "Overrides": [{"Name": "u", "Protocol": "http"}]}}),
        )
        .resolve_and_note_reads();
    assert_eq!(resolved.upstream_configs, []);
    assert_eq!(reads, [""; 0]);
}

#[test]
fn store_85_empty_upstream_defaults_still_make_a_wildcard() {
    let case = Case::new()
        .service_defaults("web", json!({"UpstreamConfig": {"Defaults": {}}}))
        .mode(ProxyMode::Transparent);
    assert_eq!(case.upstreams(), json!({"*": {}}));
}

#[test]
fn store_86_limits_of_an_override_replace_those_of_the_defaults_as_a_whole() {
    let case = Case::new()
        .service_defaults(
            "web",
            json!({"UpstreamConfig": {
                "Defaults": {
                    "Limits": {"MaxConnections": 1, "MaxPendingRequests": 2},
                    "PassiveHealthCheck": {"Interval": "10s", "MaxFailures": 2},
                },
                "Overrides": [{
                    "Name": "u", "Limits": {"MaxConnections": 9},
                    "PassiveHealthCheck": {"MaxFailures": 5, "EnforcingConsecutive5xx": 0, "BaseEjectionTime": "30s"},
                }],
            }}),
        )
        .upstream("u")
        .upstream("v");
    let defaults = json!({
        "limits": {"max_connections": 1, "max_pending_requests": 2},
        "passive_health_check": {"interval": "10s", "max_failures": 2},
    });
    let single = json!({
        "limits": {"max_connections": 9},
        "passive_health_check": {"max_failures": 5, "enforcing_consecutive_5xx": 0, "base_ejection_time": "30s"},
    });
    let wanted = json!({"*": defaults, "u": single, "v": defaults});
    assert_eq!(case.upstreams(), wanted);
}

#[test]
fn store_4_18_an_explicit_limit_of_zero_and_empty_limits_are_kept() {
    let case = Case::new()
        .service_defaults(
            "web",
            json!({"UpstreamConfig": {
                "Defaults": {"Limits": {}}, "Overrides": [{"Name": "u", "Limits": {"MaxConnections": 0}}],
            }}),
        )
        .mode(ProxyMode::Transparent);
    let wanted = json!({"*": {"limits": {}}, "u": {"limits": {"max_connections": 0}}});
    assert_eq!(case.upstreams(), wanted);
}

#[test]
fn store_87_extensions_of_proxy_defaults_come_first() {
    let resolved = Case::new()
        .proxy_defaults(json!({"EnvoyExtensions": [{"Name": "a"}]}))
        .service_defaults("web", json!({"EnvoyExtensions": [{"Name": "b"}]}))
        .resolve();
    let names: Vec<_> = resolved.envoy_extensions.iter().map(|e| &e.name).collect();
    assert_eq!(names, ["a", "b"]);
}

#[test]
fn store_96_resolving_leaves_the_entries_as_they_are() {
    let case = Case::new()
        .proxy_defaults(json!({"MeshGateway": {"Mode": "local"}, "Config": {"protocol": "http"}}))
        .service_defaults(
            "web",
            json!({"UpstreamConfig": {"Defaults": {"Protocol": "http"}, "Overrides": [{"Name": "u"}]}}),
        )
        .service_defaults("u", json!({"Protocol": "grpc"}))
        .upstream("u");
    let before = (case.proxy_defaults.clone(), case.service_defaults.clone());
    let first = case.resolve();
    let second = case.resolve();
    assert_eq!(first, second);
    assert_eq!((case.proxy_defaults, case.service_defaults), before);
    let defaults = before.1["web"].upstream_config.as_ref().unwrap();
    let defaults = defaults.defaults.as_ref().unwrap();
    assert_eq!(defaults.mesh_gateway.mode, MeshGatewayMode::Default);
}

#[test]
fn store_97_exactly_the_local_upstreams_are_read() {
    let case = Case::new()
        .service_defaults(
            "web",
            json!({"UpstreamConfig": {"Overrides": [
                {"Name": "b", "Protocol": "http"}, {"Name": "c", "Peer": "east", "Protocol": "http"}, {"Name": "Z"},
            ]}}),
        )
        .upstream("z")
        .upstream("a")
        .peered("east", "p");
    let (before, reads) = case.resolve_and_note_reads();
    assert_eq!(reads, ["a", "b", "z"]);

    // So a write to one of them changes the outcome, and a write to any other doesn't.
    let case = case.service_defaults("p", json!({"Protocol": "grpc"}));
    let case = case.service_defaults("other", json!({"Protocol": "grpc"}));
    assert_eq!(case.resolve(), before);
    let case = case.service_defaults("a", json!({"Protocol": "grpc"}));
    assert_ne!(case.resolve(), before);
}

#[test]
fn store_4_18_service_defaults_overlay_proxy_defaults_field_by_field() {
    let resolved = Case::new()
        .proxy_defaults(json!({
            "Config": {"Protocol": "http", "local_connect_timeout_ms": 5, "mine": [1]},
            "Mode": "direct", "MutualTLSMode": "strict",
            "TransparentProxy": {"OutboundListenerPort": 10101, "DialedDirectly": true},
            "Expose": {"Checks": true, "Paths": [{"Path": "/pd"}]},
            "AccessLogs": {"Enabled": true},
        }))
        .service_defaults(
            "web",
            json!({
                "Protocol": "GRPC", "Mode": "transparent", "MutualTLSMode": "permissive",
                "BalanceInboundConnections": "exact_balance",
                "TransparentProxy": {"OutboundListenerPort": 808},
                "Expose": {"Paths": [{"Path": "/m"}]},
                "Meta": {"k": "v"}, "Destination": {"Addresses": ["a.example"], "Port": 443},
                "RateLimits": {"InstanceLevel": {"RequestsPerSecond": 3}},
            }),
        )
        .resolve();
    let wanted = json!({
        "protocol": "grpc", "local_connect_timeout_ms": 5, "mine": [1], "balance_inbound_connections": "exact_balance",
    });
    assert_eq!(Value::Object(resolved.proxy_config), wanted);
    assert_eq!(resolved.mode, ProxyMode::Transparent);
    assert_eq!(resolved.mutual_tls_mode, MutualTlsMode::Permissive);
    assert_eq!(resolved.transparent_proxy.outbound_listener_port, 808);
    assert!(resolved.transparent_proxy.dialed_directly);
    assert!(resolved.expose.checks);
    assert_eq!(resolved.expose.paths.len(), 1);
    assert_eq!(resolved.expose.paths[0].path, "/m");
    assert!(resolved.access_logs.enabled);
    assert_eq!(resolved.meta["k"], "v");
    assert_eq!(resolved.destination.unwrap().port, 443);
    let limits = resolved.rate_limits.unwrap();
    assert_eq!(limits.instance_level.requests_per_second, 3);
}

#[test]
fn store_4_18_a_free_mesh_gateway_setting_counts_below_the_typed_one() {
    let case = Case::new()
        .proxy_defaults(json!({"Config": {"mesh_gateway": {"mode": "remote"}}}))
        .upstream("u");
    let wanted = json!({"*": gateway("remote"), "u": gateway("remote")});
    assert_eq!(case.upstreams(), wanted);
    let case = case.proxy_defaults(json!({
        "Config": {"MeshGateway": {"Mode": "remote"}}, "MeshGateway": {"Mode": "local"},
    }));
    let wanted = json!({"*": gateway("local"), "u": gateway("local")});
    assert_eq!(case.upstreams(), wanted);
}

#[test]
fn store_4_18_an_override_holds_for_exactly_its_peer_and_name() {
    let case = Case::new()
        .service_defaults(
            "web",
            json!({"UpstreamConfig": {"Overrides": [
                {"Name": "U", "ConnectTimeoutMs": 1}, {"Name": "u", "Peer": "east", "ConnectTimeoutMs": 2},
                {"Name": "silent"},
            ]}}),
        )
        .upstream("u")
        .peered("east", "u")
        .peered("west", "u");
    let wanted = json!({"u": {"connect_timeout_ms": 1}, "east/u": {"connect_timeout_ms": 2}});
    assert_eq!(case.upstreams(), wanted);
    let resolved = case.resolve();
    let order: Vec<_> = resolved
        .upstream_configs
        .iter()
        .map(|c| (c.peer.as_str(), c.name.as_str()))
        .collect();
    assert_eq!(order, [("", "u"), ("east", "u")]);
}

#[test]
fn store_4_18_all_settings_of_an_upstream_are_written() {
    let case = Case::new()
        .service_defaults(
            "web",
            json!({"UpstreamConfig": {"Defaults": {
                "EnvoyListenerJSON": "{}", "EnvoyClusterJSON": "{ }", "Protocol": "http", "ConnectTimeoutMs": 6,
                "MeshGateway": {"Mode": "local"}, "BalanceOutboundConnections": "exact_balance",
                "Limits": {"MaxConnections": 1, "MaxPendingRequests": 2, "MaxConcurrentRequests": 3},
                "PassiveHealthCheck": {
                    "Interval": "1m30s", "MaxFailures": 4, "EnforcingConsecutive5xx": 5, "MaxEjectionPercent": 6,
                    "BaseEjectionTime": "7s",
                },
            }}}),
        )
        .mode(ProxyMode::Transparent);
    let wanted = json!({"*": {
        "envoy_listener_json": "{}", "envoy_cluster_json": "{ }", "protocol": "http", "connect_timeout_ms": 6,
        "mesh_gateway": {"mode": "local"}, "balance_outbound_connections": "exact_balance",
        "limits": {"max_connections": 1, "max_pending_requests": 2, "max_concurrent_requests": 3},
        "passive_health_check": {
            "interval": "1m30s", "max_failures": 4, "enforcing_consecutive_5xx": 5, "max_ejection_percent": 6,
            "base_ejection_time": "7s",
        },
    }});
    assert_eq!(case.upstreams(), wanted);
}

#[test]
fn store_4_19_protocol_of_a_service() {
    let proxy = |config: Value| read::<ProxyDefaults>(&json!({"Config": config}));
    let http = proxy(json!({"protocol": "HTTP"}));
    let grpc: ServiceDefaults = read(&json!({"Protocol": "Grpc"}));
    let silent = ServiceDefaults::default();
    assert_eq!(protocol_of(None, None), "tcp");
    assert_eq!(protocol_of(Some(&http), None), "http");
    assert_eq!(protocol_of(Some(&http), Some(&grpc)), "grpc");
    assert_eq!(protocol_of(None, Some(&grpc)), "grpc");
    assert_eq!(protocol_of(Some(&proxy(json!({"Protocol": 5}))), None), "5");
    assert_eq!(protocol_of(Some(&proxy(json!({}))), None), "tcp");
    // As in the discovery chain (discovery-chain.md 15.1): service-defaults that are silent mean tcp.
    assert_eq!(protocol_of(Some(&http), Some(&silent)), "tcp");
}

fn mode_text() -> impl Strategy<Value = &'static str> {
    prop_oneof![Just(""), Just("none"), Just("local"), Just("remote")]
}

fn overrides() -> impl Strategy<Value = Vec<Value>> {
    let single = (
        prop_oneof![Just("a"), Just("b"), Just("c"), Just("d")],
        prop_oneof![Just(""), Just("east")],
        prop_oneof![Just(""), Just("http"), Just("grpc")],
        mode_text(),
    );
    proptest::collection::btree_map("[a-d]", single, 0..4).prop_map(|items| {
        let mut seen = BTreeSet::new();
        items
            .into_values()
            .filter(|(name, peer, ..)| seen.insert((*name, *peer)))
            .map(|(name, peer, protocol, mode)| {
                json!({"Name": name, "Peer": peer, "Protocol": protocol, "MeshGateway": {"Mode": mode}})
            })
            .collect()
    })
}

proptest! {
    #[test]
    fn the_order_of_overrides_and_of_requested_upstreams_does_not_count(
        items in overrides(),
        requested in proptest::collection::vec(("[a-d]", prop_oneof![Just(""), Just("east")]), 0..5),
        (proxy_mode, own_mode, default_mode) in (mode_text(), mode_text(), mode_text()),
    ) {
        let case = |items: Vec<Value>, requested: Vec<(String, &str)>| {
            let case = Case::new()
                .proxy_defaults(json!({"MeshGateway": {"Mode": proxy_mode}, "Config": {"protocol": "http"}}))
                .service_defaults("a", json!({"Protocol": "grpc"}))
                .service_defaults("web", json!({
                    "MeshGateway": {"Mode": own_mode},
                    "UpstreamConfig": {"Defaults": {"MeshGateway": {"Mode": default_mode}}, "Overrides": items},
                }));
            requested.into_iter().fold(case, |case, (name, peer)| case.peered(peer, &name))
        };
        let forwards = case(items.clone(), requested.clone()).resolve();
        let backwards = case(
            items.into_iter().rev().collect(),
            requested.into_iter().rev().collect(),
        ).resolve();
        prop_assert_eq!(&forwards, &backwards);
        let keys: Vec<_> = forwards.upstream_configs.iter().map(|c| (c.peer.clone(), c.name.clone())).collect();
        let sorted: BTreeSet<_> = keys.iter().cloned().collect();
        prop_assert!(keys.iter().eq(sorted.iter()), "sorted, each once: {:?}", keys);
    }
}
