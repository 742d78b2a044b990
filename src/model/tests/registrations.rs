//! Services as their owners register them, sidecars, catalog registrations and transactions.

use std::collections::BTreeSet;

use serde_json::{Value as Json, json};

use crate::hcl::Value;
use crate::model::{
    AgentCheck, CatalogDeregistration, CatalogRegistration, CheckStatus, Expanded, Op, PortError,
    ServiceDefinition, ServiceKind, SidecarPortRange, SidecarPorts, Transaction, Weights,
};

fn read(json: &Json) -> Result<ServiceDefinition, String> {
    ServiceDefinition::read(&Value::from_json(json))
        .map(|(definition, _)| definition)
        .map_err(|problems| problems.text())
}

#[track_caller]
fn good(json: Json) -> ServiceDefinition {
    read(&json).unwrap_or_else(|problems| panic!("{json}: {problems}"))
}

#[track_caller]
fn bad(json: Json, texts: &[&str]) {
    match read(&json) {
        Ok(_) => panic!("{json} is accepted"),
        Err(problems) => {
            for text in texts {
                assert!(problems.contains(text), "{json}: no {text:?} in {problems}");
            }
        }
    }
}

/// Expands a definition where some ports are taken.
fn expand(json: Json, held: Option<u16>, taken: &[u16]) -> Result<Expanded, String> {
    let ports = SidecarPorts {
        range: SidecarPortRange::default(),
        held,
        taken: &|port| taken.contains(&port),
    };
    good(json)
        .expand("n1", &ports)
        .map_err(|problems| problems.text())
}

fn web() -> Json {
    json!({"ID": "web1", "Name": "web", "Port": 8080, "connect": {"sidecar_service": {}}})
}

#[test]
fn store_36_a_sidecar_with_all_defaults() {
    let expanded = expand(web(), None, &[]).unwrap();
    assert_eq!(expanded.service.service.id, "web1");
    assert!(expanded.service.checks.is_empty());
    let sidecar = expanded.sidecar.unwrap();
    let service = &sidecar.service;
    assert_eq!(service.id, "web1-sidecar-proxy");
    assert_eq!(service.service, "web-sidecar-proxy");
    assert_eq!(service.kind, ServiceKind::ConnectProxy);
    assert_eq!(service.port, 21_000);
    assert_eq!(service.weights, Weights::DEFAULT);
    assert_eq!(service.proxy.destination_service_name, "web");
    assert_eq!(service.proxy.destination_service_id, "web1");
    assert_eq!(service.proxy.local_service_address, "127.0.0.1");
    assert_eq!(service.proxy.local_service_port, 8080);
    let [listening, aliasing] = sidecar.checks.as_slice() else {
        panic!("{:?}", sidecar.checks);
    };
    assert_eq!(listening.name, "Connect Sidecar Listening");
    assert_eq!(listening.check_id, "service:web1-sidecar-proxy:1");
    assert_eq!(listening.kind, "tcp");
    assert_eq!(listening.definition.tcp, "127.0.0.1:21000");
    assert_eq!(listening.definition.interval.to_string(), "10s");
    assert_eq!(listening.status, CheckStatus::Critical);
    assert_eq!(listening.node, "n1");
    assert_eq!(listening.service_name, "web-sidecar-proxy");
    assert_eq!(aliasing.name, "Connect Sidecar Aliasing web1");
    assert_eq!(aliasing.check_id, "service:web1-sidecar-proxy:2");
    assert_eq!(aliasing.kind, "alias");
    assert_eq!(aliasing.definition.alias_service, "web1");
}

#[test]
fn store_37_ports_are_assigned_in_order_and_kept() {
    let port = |held, taken: &[u16]| {
        expand(web(), held, taken)
            .unwrap()
            .sidecar
            .unwrap()
            .service
            .port
    };
    assert_eq!(port(None, &[21_000]), 21_001);
    assert_eq!(port(Some(21_000), &[21_001]), 21_000);
    assert_eq!(port(Some(21_007), &[]), 21_007);
    // One held outside the range, or taken by another meanwhile, is not kept.
    assert_eq!(port(Some(8443), &[]), 21_000);
    assert_eq!(port(Some(21_007), &[21_000, 21_007]), 21_001);
}

#[test]
fn store_38_no_port_left_or_assignment_switched_off() {
    let all: Vec<u16> = (21_000..=21_255).collect();
    assert_eq!(
        expand(web(), None, &all).unwrap_err(),
        "Connect.SidecarService.Port: no port provided for sidecar_service and none left in the configured range [21000, 21255]; give one or widen the range"
    );
    for (min, max) in [(0, 21_255), (21_000, 0), (0, 0)] {
        let ports = SidecarPorts {
            range: SidecarPortRange { min, max },
            held: Some(21_000),
            taken: &|_| false,
        };
        let problems = good(web()).expand("n1", &ports).unwrap_err();
        assert!(
            problems
                .text()
                .contains("auto-assignment disabled in config")
        );
    }
    let backwards = SidecarPortRange { min: 5, max: 4 };
    assert_eq!(
        backwards.assign(None, |_| false),
        Err(PortError::Exhausted(backwards))
    );
}

#[test]
fn store_39_tags_and_meta_of_the_service_unless_the_sidecar_has_its_own() {
    for (nested, tags, meta) in [
        (json!({}), "a", "1"),
        (json!({"Tags": []}), "a", "1"),
        (json!({"Tags": ["b"], "Meta": {"m": "2"}}), "b", "2"),
    ] {
        let sidecar = expand(
            json!({"Name": "web", "Port": 80, "Tags": ["a"], "Meta": {"m": "1"}, "Connect": {"SidecarService": nested}}),
            None,
            &[],
        )
        .unwrap()
        .sidecar
        .unwrap();
        assert_eq!(sidecar.service.tags, [tags]);
        assert_eq!(sidecar.service.meta["m"], meta);
    }
}

#[test]
fn store_40_a_service_on_a_socket() {
    let sidecar = expand(
        json!({"Name": "web", "SocketPath": "/run/web.sock", "Connect": {"SidecarService": {}}}),
        None,
        &[],
    )
    .unwrap()
    .sidecar
    .unwrap();
    assert_eq!(
        sidecar.service.proxy.local_service_socket_path,
        "/run/web.sock"
    );
    assert_eq!(sidecar.service.proxy.local_service_port, 0);
    assert_eq!(sidecar.checks[0].definition.tcp, "127.0.0.1:21000");
}

#[test]
fn store_41_own_checks_replace_the_default_ones() {
    let sidecar = expand(
        json!({"Name": "web", "Port": 80, "Connect": {"SidecarService": {"Check": {"TTL": "10s"}}}}),
        None,
        &[],
    )
    .unwrap()
    .sidecar
    .unwrap();
    assert_eq!(sidecar.checks.len(), 1);
    assert_eq!(sidecar.checks[0].check_id, "service:web-sidecar-proxy");
    assert_eq!(sidecar.checks[0].name, "Service 'web-sidecar-proxy' check");
    assert_eq!(sidecar.checks[0].kind, "ttl");
}

#[test]
fn store_1_4_what_a_sidecar_takes_from_its_service() {
    let json = json!({"Name": "web", "Port": 80, "Address": "10.0.0.9", "Token": "t", "Locality": {"Region": "r"},
        "Connect": {"SidecarService": {"Port": 8443, "Proxy": {"LocalServicePort": 81}}}});
    let sidecar = expand(json, None, &[]).unwrap().sidecar.unwrap();
    assert_eq!(sidecar.token, "t");
    assert_eq!(sidecar.service.address, "10.0.0.9");
    assert_eq!(sidecar.service.port, 8443);
    assert_eq!(sidecar.service.locality.unwrap().region, "r");
    assert_eq!(sidecar.service.proxy.local_service_address, "127.0.0.1");
    assert_eq!(sidecar.service.proxy.local_service_port, 81);
    assert_eq!(sidecar.checks[0].definition.tcp, "10.0.0.9:8443");
    let json = json!({"Name": "web", "Port": 80, "Address": "fd00::1", "Token": "t",
        "Connect": {"SidecarService": {"Token": "own", "Name": "other", "Proxy": {"LocalServiceSocketPath": "/s"}}}});
    let sidecar = expand(json, None, &[]).unwrap().sidecar.unwrap();
    assert_eq!(sidecar.token, "own");
    assert_eq!(sidecar.service.service, "other");
    assert_eq!(sidecar.service.id, "web-sidecar-proxy");
    assert_eq!(sidecar.service.proxy.local_service_socket_path, "/s");
    assert_eq!(sidecar.service.proxy.local_service_address, "");
    assert_eq!(sidecar.checks[0].definition.tcp, "[fd00::1]:21000");
}

#[test]
fn store_1_4_what_a_nested_sidecar_may_not_have() {
    bad(
        json!({"Name": "web", "Connect": {"SidecarService": {"ID": "x", "Connect": {"SidecarService": {}}}}}),
        &[
            "Connect.SidecarService.ID: ",
            "Connect.SidecarService.Connect.SidecarService: ",
        ],
    );
    bad(
        json!({"Name": "gw", "Kind": "mesh-gateway", "Port": 1, "Connect": {"SidecarService": {}}}),
        &["a mesh-gateway can't have a sidecar"],
    );
    bad(
        json!({"Name": "web", "Connect": {"SidecarService": {"Kind": "mesh-gateway"}}}),
        &["Connect.SidecarService.Kind: "],
    );
    bad(
        json!({"Name": "web", "Connect": {"SidecarService": {"Proxy": {"Upstreams": [{"DestinationName": "db"}]}}}}),
        &[
            "Connect.SidecarService.Proxy.Upstreams[0]: an upstream needs exactly one of LocalBindPort and LocalBindSocketPath",
        ],
    );
    // What is wrong with the service is said once.
    assert_eq!(
        read(&json!({"Name": "a.b", "Connect": {"SidecarService": {}}}))
            .unwrap_err()
            .lines()
            .count(),
        1
    );
}

#[test]
fn store_42_all_problems_of_a_proxy() {
    let problems =
        read(&json!({"Kind": "connect-proxy", "Name": "p", "Connect": {"Native": true}}))
            .unwrap_err();
    assert_eq!(
        problems.lines().collect::<Vec<_>>(),
        [
            "Port: a proxy needs a Port or a SocketPath",
            "Connect.Native: a proxy can't be Connect.Native as well",
            "Proxy.DestinationServiceName: a proxy needs the name of the service that it stands for",
        ]
    );
    bad(
        json!({"Kind": "connect-proxy", "Name": "p", "Port": 1, "Proxy": {"DestinationServiceName": "*"}}),
        &["Proxy.DestinationServiceName: "],
    );
}

/// A sidecar with upstreams.
fn proxy(upstreams: Json) -> Json {
    json!({"Kind": "connect-proxy", "Name": "web-sidecar-proxy", "Port": 21000, "Proxy": {"DestinationServiceName": "web", "Upstreams": upstreams}})
}

#[test]
fn store_43_two_upstreams_on_one_address() {
    bad(
        proxy(
            json!([{"DestinationName": "db", "LocalBindPort": 9000}, {"DestinationName": "cache", "LocalBindPort": 9000, "LocalBindAddress": "127.0.0.1"}]),
        ),
        &["Proxy.Upstreams[1]: listens on 127.0.0.1:9000, as does upstream 0 (\"db\")"],
    );
}

#[test]
fn store_44_peer_and_datacenter_and_wildcards() {
    bad(
        proxy(
            json!([{"DestinationName": "db", "LocalBindPort": 1, "DestinationPeer": "p", "Datacenter": "dc2"}]),
        ),
        &["DestinationPeer and Datacenter exclude each other"],
    );
    bad(
        proxy(json!([{"DestinationName": "*", "LocalBindPort": 1}])),
        &["Upstreams[0].DestinationName: \"*\""],
    );
}

#[test]
fn fc_036_an_upstream_on_the_proxys_own_port() {
    let frontend = |address: &str, bind: &str| {
        json!({"Name": "frontend", "Port": 6060, "Connect": {"SidecarService": {"Port": 20000, "Address": address,
            "Proxy": {"Upstreams": [{"DestinationName": "backend", "LocalBindPort": 20000, "LocalBindAddress": bind}]}}}})
    };
    bad(
        frontend("", ""),
        &[
            "Connect.SidecarService.Proxy.Upstreams[0].LocalBindPort: ",
            "\"backend\"",
            "\"frontend-sidecar-proxy\"",
        ],
    );
    bad(frontend("127.0.0.1", ""), &["127.0.0.1:20000"]);
    bad(frontend("10.0.0.1", "0.0.0.0"), &["0.0.0.0:20000"]);
    // On different addresses both can listen.
    good(frontend("10.0.0.1", "127.0.0.1"));
    // An assigned port avoids the sidecar's own upstreams, and its service.
    let json = json!({"Name": "frontend", "Port": 21001, "Connect": {"SidecarService": {"Proxy": {"Upstreams": [{"DestinationName": "backend", "LocalBindPort": 21000}]}}}});
    assert_eq!(
        expand(json, None, &[])
            .unwrap()
            .sidecar
            .unwrap()
            .service
            .port,
        21_002
    );
}

#[test]
fn fc_038_two_upstreams_on_one_address_and_port() {
    bad(
        proxy(
            json!([{"DestinationName": "db", "LocalBindPort": 9191}, {"DestinationName": "cache", "LocalBindPort": 9191}]),
        ),
        &["127.0.0.1:9191"],
    );
    good(proxy(
        json!([{"DestinationName": "db", "LocalBindPort": 9191, "LocalBindAddress": "127.0.0.1"}, {"DestinationName": "cache", "LocalBindPort": 9191, "LocalBindAddress": "127.0.0.2"}]),
    ));
    bad(
        proxy(
            json!([{"DestinationName": "db", "LocalBindPort": 1}, {"DestinationName": "db", "LocalBindPort": 2}]),
        ),
        &["Upstreams[1]: leads to the same destination \"db\" as upstream 0"],
    );
    good(proxy(
        json!([{"DestinationName": "db", "LocalBindPort": 1}, {"DestinationName": "db", "LocalBindPort": 2, "Datacenter": "dc2"}, {"DestinationName": "db", "LocalBindPort": 3, "DestinationType": "prepared_query"}]),
    ));
    bad(
        proxy(
            json!([{"DestinationName": "db", "LocalBindSocketPath": "/s"}, {"DestinationName": "cache", "LocalBindSocketPath": "/s"}]),
        ),
        &["listens on /s"],
    );
    // Central ones have no address.
    good(proxy(
        json!([{"DestinationName": "db", "CentrallyConfigured": true}, {"DestinationName": "cache", "CentrallyConfigured": true}, {"DestinationName": "*", "CentrallyConfigured": true}]),
    ));
}

#[test]
fn fc_039_fields_of_an_upstream() {
    bad(
        proxy(
            json!([{"DestinationType": "service", "DestinationNamespace": "hawk", "DestinationName": "", "LocalBindPort": 14000}]),
        ),
        &[
            "Proxy.Upstreams[0].DestinationName: an upstream needs a DestinationName",
            "DestinationNamespace: ",
            "enterprise only",
        ],
    );
    bad(
        proxy(json!([{"DestinationType": "bogus", "DestinationName": "a", "LocalBindPort": 1}])),
        &["DestinationType: \"bogus\" is not one of"],
    );
    bad(
        proxy(json!([{"DestinationName": "a"}])),
        &["exactly one of LocalBindPort and LocalBindSocketPath"],
    );
    bad(
        proxy(json!([{"DestinationName": "a", "LocalBindPort": 1, "LocalBindSocketPath": "/s"}])),
        &["exactly one of"],
    );
    bad(
        proxy(json!([{"DestinationName": "a", "LocalBindPort": 1, "LocalBindAddress": "here"}])),
        &["LocalBindAddress: "],
    );
    bad(
        proxy(
            json!([{"DestinationName": "a", "LocalBindSocketPath": "/s", "LocalBindSocketMode": "rw"}]),
        ),
        &["LocalBindSocketMode: "],
    );
    good(proxy(
        json!([{"DestinationName": "a", "LocalBindSocketPath": "/s", "LocalBindSocketMode": "0600"}]),
    ));
}

#[test]
fn fc_051_names_of_services() {
    for name in ["redis_cache", "Service_A", &"x".repeat(63)] {
        let json = json!({"Name": name, "Port": 1, "Connect": {"SidecarService": {"Proxy": {"Upstreams": [{"DestinationName": name, "LocalBindPort": 2}]}}}});
        let sidecar = expand(json, None, &[]).unwrap().sidecar.unwrap().service;
        assert_eq!(sidecar.id, format!("{name}-sidecar-proxy"));
    }
    for name in [
        "",
        " ",
        "a.b.c",
        "team/app",
        "my app",
        "caf\u{e9}",
        "\u{670d}\u{52a1}",
        &"x".repeat(255),
    ] {
        bad(
            json!({"Name": name, "Port": 1, "Connect": {"SidecarService": {}}}),
            &["Name: the service name"],
        );
        bad(
            proxy(json!([{"DestinationName": name, "LocalBindPort": 1}])),
            &["Upstreams[0].DestinationName: "],
        );
    }
}

#[test]
fn store_1_2_gateways() {
    for kind in ["mesh-gateway", "terminating-gateway"] {
        bad(json!({"Kind": kind, "Name": "gw"}), &["Port: "]);
    }
    for kind in ["ingress-gateway", "api-gateway"] {
        good(json!({"Kind": kind, "Name": "gw"}));
    }
    bad(
        json!({"Kind": "mesh-gateway", "Name": "gw", "Port": 1, "Proxy": {"DestinationServiceName": "a", "DestinationServiceID": "a", "LocalServiceAddress": "a",
        "LocalServicePort": 1, "LocalServiceSocketPath": "/s", "Upstreams": [{"DestinationName": "x"}]}}),
        &[
            "Proxy.DestinationServiceName: ",
            "Proxy.DestinationServiceID: ",
            "Proxy.LocalServiceAddress: ",
            "Proxy.LocalServicePort: ",
            "Proxy.LocalServiceSocketPath: ",
            "Proxy.Upstreams: ",
        ],
    );
    good(
        json!({"Kind": "mesh-gateway", "Name": "gw", "Port": 1, "Meta": {"consul-wan-federation": "1"}}),
    );
    bad(
        json!({"Kind": "connect-proxy", "Name": "p", "Port": 1, "Proxy": {"DestinationServiceName": "a"}, "Meta": {"consul-x": "1"}}),
        &["Meta.consul-x: "],
    );
}

#[test]
fn store_1_2_exposed_paths() {
    let expose = |paths: Json| json!({"Kind": "connect-proxy", "Name": "p", "Port": 21000, "Proxy": {"DestinationServiceName": "web", "Expose": {"Paths": paths}}});
    bad(expose(json!([{"ListenerPort": 1}])), &["Paths[0].Path: "]);
    bad(
        expose(json!([{"Path": "/a"}])),
        &["Paths[0].ListenerPort: "],
    );
    bad(
        expose(json!([{"Path": "/a", "ListenerPort": 1}, {"Path": "/a", "ListenerPort": 1}])),
        &["Paths[1].Path: ", "Paths[1].ListenerPort: "],
    );
    bad(
        expose(json!([{"Path": "/a", "ListenerPort": 1, "Protocol": "grpc"}])),
        &["Paths[0].Protocol: "],
    );
    bad(
        expose(json!([{"Path": "/a", "ListenerPort": 70000}])),
        &["ListenerPort: 70000 is out of range"],
    );
    bad(
        expose(json!([{"Path": "/a", "ListenerPort": 21000}])),
        &["is the proxy's own"],
    );
    let read = good(expose(
        json!([{"Path": "/a", "ListenerPort": 1, "Protocol": "HTTP2"}, {"Path": "/b", "ListenerPort": 2}]),
    ));
    let protocols: Vec<_> = read
        .proxy
        .unwrap()
        .expose
        .paths
        .into_iter()
        .map(|p| p.protocol)
        .collect();
    assert_eq!(protocols, ["http2", "http"]);
}

#[test]
fn r1_checks_of_a_service() {
    let check = |check: Json| json!({"Name": "web", "Port": 80, "Check": check});
    for one in [
        json!({"HTTP": "http://127.0.0.1:80/health", "Interval": "10s"}),
        json!({"HTTP": "https://[::1]/", "Interval": "1s", "Timeout": "500ms"}),
        json!({"TCP": "127.0.0.1:80", "Interval": "10s"}),
        json!({"GRPC": "127.0.0.1:80/web", "Interval": "10s"}),
        json!({"TTL": "30s"}),
        json!({"AliasService": "db"}),
        json!({"AliasNode": "n2"}),
    ] {
        good(check(one));
    }
    bad(check(json!({})), &["Check: a check needs exactly one of"]);
    bad(
        check(json!({"HTTP": "http://a", "TCP": "a:1", "Interval": "1s"})),
        &["Check: a check needs exactly one of"],
    );
    bad(
        check(json!({"HTTP": "http://a"})),
        &["Check.Interval: a check of type http needs an interval"],
    );
    bad(
        check(json!({"HTTP": "ftp://a", "Interval": "1s"})),
        &["Check.HTTP: "],
    );
    bad(
        check(json!({"TCP": "a", "Interval": "1s"})),
        &["Check.TCP: "],
    );
    bad(check(json!({"TTL": "-1s"})), &["Check.TTL: "]);
    for script in [
        json!({"ScriptArgs": ["/bin/true"], "Interval": "1s"}),
        json!({"Args": ["/bin/true"], "Interval": "1s"}),
        json!({"DockerContainerID": "x", "Shell": "/bin/sh", "Args": ["a"], "Interval": "1s"}),
        json!({"OSService": "x", "Interval": "1s"}),
    ] {
        bad(check(script), &["checks of this type are not run here"]);
    }
    let (_, problems) =
        AgentCheck::read(&Value::from_json(&json!({"UDP": "a:1", "Interval": "1s"}))).unwrap();
    assert_eq!(problems.warnings.len(), 1);
    bad(
        json!({"Name": "web", "Checks": [{"CheckID": "a", "TTL": "1s"}, {"ID": "a", "TTL": "1s"}]}),
        &["Checks[1]: the check id \"a\" is given twice"],
    );
}

#[test]
fn ids_and_names_of_checks() {
    let ids = |json: Json| -> Vec<(String, String)> {
        let expanded = expand(json, None, &[]).unwrap();
        expanded
            .service
            .checks
            .into_iter()
            .map(|c| (c.check_id, c.name))
            .collect()
    };
    let pair = |id: &str, name: &str| (id.to_owned(), name.to_owned());
    assert_eq!(
        ids(json!({"Name": "web", "Check": {"TTL": "1s"}})),
        [pair("service:web", "Service 'web' check")]
    );
    assert_eq!(
        ids(
            json!({"ID": "w1", "Name": "web", "Check": {"TTL": "1s"}, "Checks": [{"TTL": "2s", "Name": "own"}, {"CheckID": "mine", "TTL": "3s"}]})
        ),
        [
            pair("service:w1:1", "Service 'web' check"),
            pair("service:w1:2", "own"),
            pair("mine", "Service 'web' check")
        ]
    );
    let (check, _) = AgentCheck::read(&Value::from_json(
        &json!({"Name": "disk", "TTL": "1s", "Status": "", "ServiceID": "w1"}),
    ))
    .unwrap();
    let health = check.to_health_check("n1", "disk", None);
    assert_eq!(
        (
            health.check_id.as_str(),
            health.name.as_str(),
            health.service_id.as_str()
        ),
        ("disk", "disk", "w1")
    );
    assert_eq!(health.status, CheckStatus::Critical);
}

#[test]
fn fc_034_assigned_ports_are_distinct() {
    let mut used = BTreeSet::new();
    for _ in 0..200 {
        let port = SidecarPortRange::default()
            .assign(None, |p| used.contains(&p))
            .unwrap();
        assert!(used.insert(port));
    }
    assert_eq!(used.first(), Some(&21_000));
    assert_eq!(used.last(), Some(&21_199));
}

fn registration(json: Json) -> Result<CatalogRegistration, String> {
    CatalogRegistration::read(&Value::from_json(&json))
        .map(|(registration, _)| registration)
        .map_err(|problems| problems.text())
}

#[test]
fn catalog_registration_is_checked_and_normalized() {
    let read = registration(json!({
        "ID": "40E4A748-2192-161A-0510-9BF59FE950B5", "Node": "n1", "Address": "10.0.0.1", "Datacenter": "dc1", "TaggedAddresses": null, "NodeMeta": {"a_b": "c"},
        "Service": {"Service": "web", "Port": 80, "Weights": {"Passing": 0, "Warning": 5}, "Connect": {"Native": false}, "Partition": "default"},
        "Check": {"Name": "serfHealth", "Status": "passing"},
        "Checks": [{"Node": "N1", "CheckID": "c1", "ServiceID": "web", "Status": ""}],
        "SkipNodeUpdate": false
    })).unwrap();
    let service = read.service.as_ref().unwrap();
    assert_eq!(service.id, "web");
    assert_eq!(service.weights, Weights::DEFAULT, "store test 33");
    let checks: Vec<_> = read
        .all_checks()
        .map(|c| (c.node.as_str(), c.check_id.as_str(), c.status))
        .collect();
    assert_eq!(
        checks,
        [
            ("n1", "serfHealth", CheckStatus::Passing),
            ("n1", "c1", CheckStatus::Critical)
        ]
    );
    let node = read.to_node();
    assert_eq!(node.id, "40e4a748-2192-161a-0510-9bf59fe950b5");
    assert_eq!(node.meta["a_b"], "c");
}

#[test]
fn catalog_registration_names_every_problem() {
    let problems = registration(json!({"ID": "x", "Service": {"Service": "a.b", "ID": "\u{7}"}, "Check": {"CheckID": "c", "Node": "other"}, "Checks": [{}, {"Name": "c"}], "Partition": "p"})).unwrap_err();
    for wanted in [
        "Node: the node name must not be empty",
        "Address: the node's address must not be empty",
        "ID: \"x\" is not a UUID",
        "Service.Service: ",
        "Service.ID: ",
        "Check.Node: ",
        "Checks[0].CheckID: ",
        "Checks[1].CheckID: the check \"c\" is given twice",
        "Partition: ",
    ] {
        assert!(problems.contains(wanted), "no {wanted:?} in {problems}");
    }
    registration(json!({"Node": "n1", "SkipNodeUpdate": true, "Service": {"Service": "web"}}))
        .unwrap();
}

#[test]
fn catalog_deregistration() {
    let read =
        |json: Json| CatalogDeregistration::read(&Value::from_json(&json)).map_err(|p| p.text());
    let (all, _) = read(
        json!({"Node": "n1", "Datacenter": "dc1", "ServiceID": "web", "Namespace": "default"}),
    )
    .unwrap();
    assert_eq!(
        (
            all.node.as_str(),
            all.service_id.as_str(),
            all.namespace.as_str()
        ),
        ("n1", "web", "")
    );
    assert!(read(json!({})).unwrap_err().contains("Node: "));
    assert!(
        read(json!({"Node": "n1", "Namespace": "x"}))
            .unwrap_err()
            .contains("enterprise only")
    );
}

#[test]
fn r3_transactions() {
    let read = |json: Json| {
        Transaction::read(&Value::from_json(&json))
            .map(|(t, _)| t)
            .map_err(|p| p.text())
    };
    let all = json!({"Ops": [
        {"Register": {"Node": "n1", "Address": "10.0.0.1", "Service": {"Service": "web", "Port": 80}}},
        {"Deregister": {"Node": "n1", "ServiceID": "web"}},
        {"Config": {"Kind": "service-defaults", "Name": "web", "Protocol": "HTTP"}},
        {"DeleteConfig": {"Kind": "Proxy-Defaults"}},
        {"Check": {"Node": "n1", "CheckID": "web", "ServiceID": "web", "Status": "passing"}}
    ]});
    let transaction = read(all).unwrap();
    let [
        Op::Register(_),
        Op::Deregister(_),
        Op::Config(entry),
        Op::DeleteConfig(deletion),
        Op::Check(_),
    ] = transaction.ops.as_slice()
    else {
        panic!("{transaction:?}");
    };
    assert_eq!(serde_json::to_value(entry).unwrap()["Protocol"], "http");
    assert_eq!(deletion.key().unwrap().to_string(), "proxy-defaults/global");
    let again = read(serde_json::to_value(&transaction).unwrap()).unwrap();
    assert_eq!(again, transaction);

    let problems = read(json!({"Ops": [
        {},
        {"Register": {"Node": "n1", "Address": "a"}, "Config": {"Kind": "mesh"}},
        {"Regster": {}},
        {"Register": {"Address": "a"}},
        {"Config": {"Kind": "service-splitter", "Name": "web"}},
        {"DeleteConfig": {"Kind": "bogus"}},
        {"DeleteConfig": {"Kind": "service-router"}},
        {"DeleteConfig": {"Kind": "mesh", "Name": "other"}},
        {"Check": {"CheckID": "x"}}
    ]}))
    .unwrap_err();
    for wanted in [
        "Ops[0]: a write needs exactly one key",
        "Ops[1]: a write needs exactly one key",
        "Ops[2].Regster: unknown key; did you mean Register?",
    ] {
        assert!(problems.contains(wanted), "no {wanted:?} in {problems}");
    }
    let problems = read(json!({"Ops": [
        {"Register": {"Address": "a"}},
        {"Config": {"Kind": "service-splitter", "Name": "web"}},
        {"DeleteConfig": {"Kind": "bogus"}},
        {"DeleteConfig": {"Kind": "service-router"}},
        {"DeleteConfig": {"Kind": "mesh", "Name": "other"}},
        {"Check": {"CheckID": "x"}}
    ]}))
    .unwrap_err();
    for wanted in [
        "Ops[0].Register.Node: ",
        "Ops[1].Config.Splits: ",
        "Ops[2].DeleteConfig.Kind: \"bogus\" is not one of",
        "Ops[3].DeleteConfig.Name: ",
        "Ops[4].DeleteConfig.Name: ",
        "Ops[5].Check.Node: ",
    ] {
        assert!(problems.contains(wanted), "no {wanted:?} in {problems}");
    }
}
