//! Nested sidecars: what they take from their services, their ports and checks.

use std::collections::BTreeSet;

use serde_json::{Value as Json, json};

use super::{bad, expand, good, read};
use crate::model::{CheckStatus, PortError, ServiceKind, SidecarPortRange, SidecarPorts, Weights};

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
