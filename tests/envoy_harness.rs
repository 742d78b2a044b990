//! The harness for tests with real Envoys works: a static Envoy proxies to the applications.

mod support;

use serde_json::{Value, json};
use support::apps::{App, count_names, http_name, tcp_name};
use support::envoy::{Envoy, validate};
use support::ports::free_port;
use support::{http, wait_until};

fn socket(port: u16) -> Value {
    json!({"socket_address": {"address": "127.0.0.1", "port_value": port}})
}

/// A listener on each port that proxies TCP to its application.
fn static_bootstrap(admin: u16, proxied: &[(u16, &App)]) -> Value {
    let cluster = |app: &App| {
        json!({
            "name": app.name(),
            "connect_timeout": "5s",
            "load_assignment": {
                "cluster_name": app.name(),
                "endpoints": [{"lb_endpoints": [{"endpoint": {"address": socket(app.port())}}]}],
            },
        })
    };
    let listener = |port: u16, app: &App| {
        json!({
            "name": format!("to-{}", app.name()),
            "address": socket(port),
            "filter_chains": [{"filters": [{
                "name": "envoy.filters.network.tcp_proxy",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
                    "stat_prefix": app.name(),
                    "cluster": app.name(),
                },
            }]}],
        })
    };
    json!({
        "node": {"id": "harness", "cluster": "harness"},
        "admin": {"address": socket(admin)},
        "static_resources": {
            "clusters": proxied.iter().map(|(_, app)| cluster(app)).collect::<Vec<_>>(),
            "listeners": proxied.iter().map(|(port, app)| listener(*port, app)).collect::<Vec<_>>(),
        },
    })
}

#[test]
fn an_envoy_proxies_to_the_applications() {
    let (tcp, web) = (App::tcp("echo-app"), App::http("web-app"));
    let (tcp_port, web_port) = (free_port(), free_port());
    let bootstrap = static_bootstrap(free_port(), &[(tcp_port, &tcp), (web_port, &web)]);
    validate(&bootstrap, "harness").unwrap();
    let envoy = Envoy::start(&bootstrap, "harness");
    envoy.wait_ready();

    let tcp_address = format!("127.0.0.1:{tcp_port}");
    let counts = count_names(5, || tcp_name(&tcp_address));
    assert_eq!(counts, [("echo-app".to_owned(), 5)].into());
    assert_eq!(tcp.served(), 5);

    let web_address = format!("127.0.0.1:{web_port}");
    assert_eq!(http_name(&web_address).unwrap(), "web-app");
    let response = http::request(
        &web_address,
        "POST",
        "/a/b?c=d",
        &[("X-Status", "418"), ("X-Mine", "1")],
        "hello",
    )
    .unwrap();
    assert_eq!(response.status, 418);
    let seen = response.json();
    assert_eq!(
        (
            &seen["method"],
            &seen["path"],
            &seen["headers"]["x-mine"],
            &seen["body"]
        ),
        (
            &json!("POST"),
            &json!("/a/b?c=d"),
            &json!("1"),
            &json!("hello")
        )
    );
    assert_eq!(web.served(), 2);

    envoy.wait_until(
        "counted the connections",
        support::DEADLINE,
        |envoy| match envoy.stat("cluster.echo-app.upstream_cx_total") {
            5 => Ok(()),
            other => Err(format!("{other} connections")),
        },
    );
    envoy.assert_nothing_rejected();
    let clusters = envoy.clusters();
    let names: Vec<&Value> = clusters["cluster_statuses"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| &c["name"])
        .collect();
    assert!(names.contains(&&json!("echo-app")), "{names:?}");
    assert!(
        envoy.config_dump()["configs"]
            .as_array()
            .is_some_and(|configs| !configs.is_empty())
    );

    // An application that is gone refuses, and one that comes back on its port is reached again.
    let address = tcp.address().to_owned();
    drop(tcp);
    assert!(tcp_name(&address).is_err());
    assert!(tcp_name(&tcp_address).is_err());
    let _again = App::tcp_on("echo-again", &address);
    let name = wait_until("back", support::DEADLINE, || {
        tcp_name(&tcp_address).map_err(|error| error.to_string())
    });
    assert_eq!(name, "echo-again");
}

#[test]
fn envoy_says_what_is_wrong_with_a_bootstrap() {
    let error = validate(&json!({"admin": {"no_such_field": 1}}), "harness-wrong").unwrap_err();
    assert!(error.contains("no_such_field"), "{error}");
}

#[test]
fn ports_are_handed_out_once() {
    let mut ports: Vec<u16> = (0..50).map(|_| free_port()).collect();
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 50);
}
