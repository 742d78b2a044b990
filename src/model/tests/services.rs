//! Proxies, their upstreams, and gateways.

use serde_json::{Value as Json, json};

use super::{bad, expand, good, read};

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
