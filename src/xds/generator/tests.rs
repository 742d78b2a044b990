use serde_json::json;

use super::*;
use crate::model::EndpointHealth::Passing;
use crate::snapshot::Part;
use crate::xds::fixtures::*;

const DB: &str = "db.default.dc1.internal.11111111-2222-3333-4444-555555555555.consul";

fn versions(generated: &Generated, kind: ResourceType) -> BTreeMap<SmolStr, SmolStr> {
    let resources = generated.set.of(kind).iter();
    resources
        .map(|r| (r.name().clone(), r.version().clone()))
        .collect()
}

/// The types and names of what differs.
fn changed(old: &Generated, new: &Generated) -> Vec<String> {
    let mut changes = Vec::new();
    for kind in ResourceType::ALL {
        let (old, new) = (versions(old, kind), versions(new, kind));
        let mut names: Vec<_> = old.keys().chain(new.keys()).collect();
        names.sort_unstable();
        names.dedup();
        names.retain(|name| old.get(*name) != new.get(*name));
        changes.extend(names.into_iter().map(|name| format!("{kind} {name}")));
    }
    changes
}

#[test]
fn xds_part_6_the_worked_example() {
    let generated = example().generate();
    assert_eq!(generated.problems, []);
    assert_consistent(&generated);
    assert_eq!(
        names(&generated.set, ResourceType::Cluster),
        [DB, "local_app"]
    );
    assert_eq!(names(&generated.set, ResourceType::Endpoint), [DB]);
    assert_eq!(
        names(&generated.set, ResourceType::Listener),
        ["db:127.0.0.1:5432", "public_listener:0.0.0.0:21000"]
    );
    assert!(generated.set.of(ResourceType::Route).is_empty());
    assert_eq!(
        names(&generated.set, ResourceType::Secret),
        ["leaf", "roots"]
    );

    assert_eq!(
        shown(&generated, ResourceType::Cluster, "local_app"),
        json!({
            "name": "local_app", "type": "STATIC", "connectTimeout": "5s",
            "loadAssignment": {"clusterName": "local_app", "endpoints": [{"lbEndpoints": [{"endpoint": {"address":
                {"socketAddress": {"address": "127.0.0.1", "portValue": 3000}}}}]}]},
        })
    );
    let sds =
        |name: &str| json!({"name": name, "sdsConfig": {"ads": {}, "resourceApiVersion": "V3"}});
    assert_eq!(
        shown(&generated, ResourceType::Cluster, DB),
        json!({
            "name": DB, "altStatName": DB, "type": "EDS", "connectTimeout": "5s",
            "edsClusterConfig": {"edsConfig": {"ads": {}, "resourceApiVersion": "V3"}},
            "circuitBreakers": {}, "outlierDetection": {},
            "commonLbConfig": {"healthyPanicThreshold": {}},
            "transportSocket": {"name": "tls", "typedConfig": {
                "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
                "sni": DB,
                "commonTlsContext": {
                    "tlsParams": {},
                    "tlsCertificateSdsSecretConfigs": [sds("leaf")],
                    "combinedValidationContext": {
                        "defaultValidationContext": {"matchTypedSubjectAltNames": [{
                            "sanType": "URI",
                            "matcher": {"exact": format!("spiffe://{TD}/ns/default/dc/dc1/svc/db")},
                        }]},
                        "validationContextSdsSecretConfig": sds("roots"),
                    },
                },
            }},
        })
    );
    let lb_endpoint = |address: &str, status: &str| {
        json!({
            "endpoint": {"address": {"socketAddress": {"address": address, "portValue": 21001}}},
            "healthStatus": status, "loadBalancingWeight": 1,
        })
    };
    assert_eq!(
        shown(&generated, ResourceType::Endpoint, DB),
        json!({"clusterName": DB, "endpoints": [{"lbEndpoints": [
            lb_endpoint("10.0.0.5", "HEALTHY"), lb_endpoint("10.0.0.6", "UNHEALTHY"),
        ]}]})
    );
    let listener = shown(&generated, ResourceType::Listener, "db:127.0.0.1:5432");
    assert_eq!(listener["trafficDirection"], "OUTBOUND");
    assert_eq!(
        listener["address"],
        json!({"socketAddress": {"address": "127.0.0.1", "portValue": 5432}})
    );
    assert_eq!(
        listener["filterChains"],
        json!([{"filters": [{"name": "envoy.filters.network.tcp_proxy", "typedConfig": {
            "@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
            "statPrefix": "upstream.db.default.default.dc1", "cluster": DB,
        }}]}])
    );
    let public = shown(
        &generated,
        ResourceType::Listener,
        "public_listener:0.0.0.0:21000",
    );
    assert_eq!(public["trafficDirection"], "INBOUND");
    assert_eq!(
        public["filterChains"],
        json!([{
            "filters": [
                {"name": "envoy.filters.network.rbac", "typedConfig": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.network.rbac.v3.RBAC",
                    "statPrefix": "connect_authz",
                    "rules": {"policies": {"consul-intentions-layer4": {
                        "permissions": [{"any": true}],
                        "principals": [{"authenticated": {"principalName": {"safeRegex": {
                            "regex": format!("^spiffe://{TD_PATTERN}/ns/default/dc/[^/]+/svc/api$"),
                        }}}}],
                    }}},
                }},
                {"name": "envoy.filters.network.tcp_proxy", "typedConfig": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
                    "statPrefix": "public_listener", "cluster": "local_app",
                    "upstreamConnectMode": "ON_DOWNSTREAM_TLS_HANDSHAKE", "maxEarlyDataBytes": 0,
                }},
            ],
            "transportSocket": {"name": "tls", "typedConfig": {
                "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
                "requireClientCertificate": true,
                "commonTlsContext": {
                    "tlsParams": {},
                    "tlsCertificateSdsSecretConfigs": [sds("leaf")],
                    "combinedValidationContext": {
                        "defaultValidationContext": {"matchTypedSubjectAltNames": [{
                            "sanType": "URI", "matcher": {"safeRegex": {
                                "regex": format!("^spiffe://{TD_PATTERN}/ns/default/dc/[^/]+/svc/api$"),
                            }},
                        }]},
                        "validationContextSdsSecretConfig": sds("roots"),
                    },
                },
            }},
        }])
    );
    assert_eq!(
        shown(&generated, ResourceType::Secret, "leaf"),
        json!({"name": "leaf", "tlsCertificate": {
            "certificateChain": {"inlineString": pem("CERTIFICATE", "LEAF1")}, "privateKey": "<redacted>",
        }})
    );
    assert_eq!(
        shown(&generated, ResourceType::Secret, "roots"),
        json!({"name": "roots", "validationContext": {"trustedCa": {"inlineString": pem("CERTIFICATE", "A")}}})
    );
}

#[test]
fn xds_36_a_renewal_touches_the_leaf_secret_and_nothing_else() {
    let generator = Generator::new();
    let before = example();
    let first = generator.resources(&before.snapshot(), None);
    let mut after = before.clone();
    after.leaf = Part::new(leaf("web", 2));
    let second = generator.resources(&after.snapshot(), Some(&first));
    assert_eq!(changed(&first, &second), ["secret leaf"]);
    assert!(second.set.shares(&first.set, ResourceType::Cluster));

    after.roots = Part::new(roots(&["A", "B"]));
    let third = generator.resources(&after.snapshot(), Some(&second));
    assert_eq!(changed(&second, &third), ["secret roots"]);
}

#[test]
fn xds_16_an_equal_snapshot_gives_the_same_set() {
    let generator = Generator::new();
    let first = generator.resources(&example().snapshot(), None);
    let encodings = generator.encodings();
    // Equal content under other part ids.
    let second = generator.resources(&example().snapshot(), Some(&first));
    assert_eq!(changed(&first, &second), [""; 0]);
    for kind in ResourceType::ALL {
        assert!(second.set.shares(&first.set, kind), "{kind}");
    }
    assert!(generator.encodings() > encodings);
}

#[test]
fn fc_070_an_intention_changes_the_public_listener_only() {
    let generator = Generator::new();
    let fixture = example();
    let mut last = generator.resources(&fixture.snapshot(), None);
    for toggle in 0..20 {
        let action = if toggle % 2 == 0 { "deny" } else { "allow" };
        let before = generator.encodings();
        let next = fixture.clone().intentions(&[("api", json!(action))]);
        let next = generator.resources(&next.snapshot(), Some(&last));
        assert_eq!(
            changed(&last, &next),
            ["listener public_listener:0.0.0.0:21000"]
        );
        assert_eq!(generator.encodings() - before, 1);
        last = next;
    }
}

#[test]
fn e9_one_endpoint_change_is_encoded_once_for_a_thousand_proxies() {
    let generator = Generator::new();
    let shared = example();
    let proxies: Vec<_> = (0..1000)
        .map(|number| {
            shared
                .clone()
                .proxy(|header| header.proxy_id = ProxyIdOf(number).into())
        })
        .collect();
    let first: Vec<_> = proxies
        .iter()
        .map(|p| generator.resources(&p.snapshot(), None))
        .collect();
    let cached = generator.cached();
    assert!(cached < 10, "{cached}");
    let before = generator.encodings();
    let changed_target = shared.retarget("db", |target| {
        target.endpoints[0].endpoints = Some(Part::new(vec![endpoint("10.0.0.7", Passing)]));
    });
    for (proxy, old) in proxies.iter().zip(&first) {
        let mut proxy = proxy.clone();
        proxy.upstreams.clone_from(&changed_target.upstreams);
        let new = generator.resources(&proxy.snapshot(), Some(old));
        assert_eq!(changed(old, &new), [format!("endpoint {DB}")]);
    }
    assert_eq!(generator.encodings() - before, 1);
}

struct ProxyIdOf(usize);

impl From<ProxyIdOf> for crate::model::ProxyId {
    fn from(number: ProxyIdOf) -> Self {
        Self::new(format!("web-{}", number.0), "n1")
    }
}

#[test]
fn xds_18_an_upstream_without_instances_has_an_empty_assignment() {
    let pending = example().retarget("db", |target| target.endpoints[0].endpoints = None);
    let none = example().retarget("db", |target| {
        target.endpoints[0].endpoints = Some(Part::new(Vec::new()));
    });
    for fixture in [pending, none] {
        let generated = fixture.generate();
        assert_consistent(&generated);
        let assignment = shown(&generated, ResourceType::Endpoint, DB);
        assert_eq!(assignment, json!({"clusterName": DB, "endpoints": [{}]}));
    }
}

#[test]
fn xds_28_another_port_is_another_listener() {
    let generator = Generator::new();
    let first = generator.resources(&example().snapshot(), None);
    let moved = Fixture::web()
        .intentions(&[("api", json!("allow"))])
        .upstream(definition("db", 5433), default_chain("db", "tcp"), &db())
        .config(json!({"bind_port": 21500, "bind_address": "10.0.0.1"}));
    let second = generator.resources(&moved.snapshot(), Some(&first));
    assert_eq!(
        names(&second.set, ResourceType::Listener),
        ["db:127.0.0.1:5433", "public_listener:10.0.0.1:21500"]
    );
}

#[test]
fn x3_a_broken_upstream_keeps_its_last_good_resources() {
    let generator = Generator::new();
    let good = example().upstream(definition("api", 5433), default_chain("api", "tcp"), &db());
    let first = generator.resources(&good.snapshot(), None);
    let broken = good.clone().retarget("db", |target| {
        let mut chain = (**target.chain).clone();
        chain.nodes.values_mut().for_each(|node| {
            node.load_balancer = Some(read(&json!({"Policy": "fastest"})));
        });
        target.chain = Part::new(chain);
        target.endpoints[0].endpoints = Some(Part::new(vec![endpoint("10.0.0.9", Passing)]));
    });
    let second = generator.resources(&broken.snapshot(), Some(&first));
    // Its instances are the newest all the same.
    assert_eq!(changed(&first, &second), [format!("endpoint {DB}")]);
    assert_eq!(second.problems.len(), 1);
    assert_eq!(second.problems[0].resource, "db");
    assert!(
        second.problems[0].message.contains("fastest"),
        "{:?}",
        second.problems
    );
    assert_consistent(&second);
    // Another generation with the same parts tells the same.
    let third = generator.resources(&broken.snapshot(), Some(&second));
    assert_eq!(third.problems, second.problems);

    let fresh = generator.resources(&broken.snapshot(), None);
    assert!(fresh.set.get(ResourceType::Cluster, DB).is_none());
    assert_eq!(names(&fresh.set, ResourceType::Listener).len(), 2);
    assert_consistent(&fresh);

    let mended = generator.resources(&good.snapshot(), Some(&second));
    assert_eq!(mended.problems, []);
    assert_eq!(changed(&first, &mended), [""; 0]);
}

#[test]
fn x3_last_good_clusters_keep_instances_that_nobody_watches_any_more() {
    let generator = Generator::new();
    let first = generator.resources(&example().snapshot(), None);
    let elsewhere = example().retarget("db", |target| {
        let mut chain = default_chain("other", "tcp");
        chain.start_node = "nowhere".into();
        target.chain = Part::new(chain);
        target.endpoints.clear();
    });
    let second = generator.resources(&elsewhere.snapshot(), Some(&first));
    assert_eq!(changed(&first, &second), [""; 0]);
    assert_eq!(second.problems.len(), 1);
    let mut unknown = example();
    unknown.upstreams[0].target = None;
    let third = generator.resources(&unknown.snapshot(), Some(&second));
    assert_eq!(changed(&first, &third), [""; 0]);
    assert_eq!(third.problems, []);
    let gone = Fixture::web().intentions(&[("api", json!("allow"))]);
    let fourth = generator.resources(&gone.snapshot(), Some(&third));
    assert_eq!(names(&fourth.set, ResourceType::Cluster), ["local_app"]);
    assert!(fourth.set.of(ResourceType::Endpoint).is_empty());
}

#[test]
fn x3_two_listeners_never_bind_to_the_same_place() {
    let generator = Generator::new();
    let both = |port: u16| {
        Fixture::web()
            .upstream(definition("api", 5432), default_chain("api", "tcp"), &db())
            .upstream(definition("db", port), default_chain("db", "tcp"), &db())
    };
    let first = generator.resources(&both(5433).snapshot(), None);
    assert_eq!(first.problems, []);
    let second = generator.resources(&both(5432).snapshot(), Some(&first));
    assert_eq!(changed(&first, &second), [""; 0]);
    assert_eq!(second.problems.len(), 1);
    assert!(
        second.problems[0].message.contains("127.0.0.1:5432"),
        "{:?}",
        second.problems
    );
    let fresh = generator.resources(&both(5432).snapshot(), None);
    assert_eq!(
        names(&fresh.set, ResourceType::Listener),
        ["api:127.0.0.1:5432", "public_listener:0.0.0.0:21000"]
    );
    assert_consistent(&fresh);
}

#[test]
fn x3_access_rules_are_the_newest_although_settings_are_broken() {
    let generator = Generator::new();
    let first = generator.resources(&example().snapshot(), None);
    let broken = example()
        .intentions(&[("api", json!("deny"))])
        .mesh(json!({"TLS": {"Incoming": {"TLSMinVersion": "TLSv9"}}}));
    let second = generator.resources(&broken.snapshot(), Some(&first));
    let public = shown(
        &second,
        ResourceType::Listener,
        "public_listener:0.0.0.0:21000",
    );
    let rbac = &public["filterChains"][0]["filters"][0]["typedConfig"];
    assert_eq!(rbac["rules"], json!({}));
    assert!(
        second.problems.iter().any(|p| p.message.contains("TLSv9")),
        "{:?}",
        second.problems
    );

    let fresh = generator.resources(&broken.snapshot(), None);
    assert_eq!(
        names(&fresh.set, ResourceType::Listener),
        ["db:127.0.0.1:5432"]
    );
}

#[test]
fn x3_an_unusable_leaf_or_root_keeps_the_last_secret() {
    let generator = Generator::new();
    let first = generator.resources(&example().snapshot(), None);
    let mut broken = example();
    let mut bad = leaf("web", 2);
    bad.cert_pem = "nothing".into();
    broken.leaf = Part::new(bad);
    let mut set = roots(&["A"]);
    set.roots.clear();
    broken.roots = Part::new(set);
    let second = generator.resources(&broken.snapshot(), Some(&first));
    assert_eq!(changed(&first, &second), [""; 0]);
    let told: Vec<_> = second
        .problems
        .iter()
        .map(|p| p.resource.as_str())
        .collect();
    assert_eq!(told, ["leaf", "roots"]);
}

#[test]
fn clusters_of_shared_targets_have_the_settings_of_their_own_service() {
    let through = || {
        let id = "db.default.default.dc1";
        chain(
            "api",
            "tcp",
            "resolver:x",
            json!({"resolver:x": resolver(id, json!({"ConnectTimeout": "9s"}))}),
            &[target("db", "", "dc1")],
        )
    };
    let mut own = definition("db", 5432);
    merge(
        &mut own,
        json!({"Config": {"limits": {"max_connections": 3}}}),
    );
    let fixture = Fixture::web()
        .upstream(definition("api", 5433), through(), &db())
        .upstream(own, default_chain("db", "tcp"), &db());
    let generated = fixture.generate();
    assert_eq!(generated.problems, []);
    assert_consistent(&generated);
    let cluster = shown(&generated, ResourceType::Cluster, DB);
    assert_eq!(
        cluster["circuitBreakers"],
        json!({"thresholds": [{"maxConnections": 3}]})
    );
    assert_eq!(cluster["connectTimeout"], "5s");
}

#[test]
fn implicit_upstreams_and_the_wildcard_take_no_part() {
    let fixture = example()
        .upstream(
            json!({"DestinationName": "api"}),
            default_chain("api", "tcp"),
            &db(),
        )
        .upstream(definition("*", 7), default_chain("*", "tcp"), &db());
    let generated = fixture.generate();
    assert_eq!(
        names(&generated.set, ResourceType::Cluster),
        [DB, "local_app"]
    );
}

#[test]
fn xds_27_fc_064_every_name_that_is_referred_to_exists() {
    assert_consistent(&everything().generate());
    assert_consistent(&example().generate());
    assert_consistent(&Fixture::web().generate());
}

#[test]
fn xds_60_x2_the_bytes_are_the_same_each_time() {
    let first = everything().generate();
    assert_eq!(first.problems, []);
    assert_consistent(&first);
    for _ in 0..100 {
        let again = everything().generate();
        for kind in ResourceType::ALL {
            assert_eq!(versions(&first, kind), versions(&again, kind));
            for resource in again.set.of(kind) {
                let old = first.set.get(kind, resource.name()).unwrap();
                assert_eq!(old.bytes(), resource.bytes(), "{}", resource.name());
            }
        }
    }
}

#[test]
fn generators_may_be_used_from_many_threads() {
    let generator = Generator::new();
    let fixture = everything();
    let alone = generator.resources(&fixture.snapshot(), None);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..20 {
                    let made = generator.resources(&fixture.snapshot(), None);
                    assert_eq!(changed(&alone, &made), [""; 0]);
                }
            });
        }
    });
}

#[test]
fn incremental_results_equal_those_from_scratch() {
    let generator = Generator::new();
    let steps = [
        example(),
        everything(),
        example().config(json!({"protocol": "grpc"})),
        everything().mesh(json!({})),
        Fixture::web(),
        everything(),
    ];
    let mut last: Option<Generated> = None;
    for fixture in steps {
        let next = generator.resources(&fixture.snapshot(), last.as_ref());
        let scratch = fixture.generate();
        assert_eq!(changed(&next, &scratch), [""; 0]);
        assert_eq!(next.problems, scratch.problems);
        last = Some(next);
    }
}
