//! Real Envoys take the bootstraps that are made for them.
#![cfg(feature = "server")]

mod support;

use proxycfg::server::bootstrap::{BootstrapParams, XdsTls};
use serde_json::{Value, json};
use support::envoy::{Envoy, validate};
use support::http;
use support::ports::{free_address, free_port};

fn params(config: Value) -> BootstrapParams {
    let Value::Object(config) = config else {
        panic!("settings are an object")
    };
    BootstrapParams {
        config,
        node_name: Some("n1".to_owned()),
        admin_port: free_port(),
        token: "a-token".to_owned(),
        ..BootstrapParams::new("web-sidecar-proxy", "web", "127.0.0.1", free_port())
    }
}

fn build(params: &BootstrapParams) -> Value {
    params
        .build(&|_| None)
        .unwrap_or_else(|error| panic!("{error}"))
}

fn cluster(name: &str, port: u16) -> Value {
    json!({
        "name": name,
        "connect_timeout": "1s",
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": [{"endpoint": {"address": {
            "socket_address": {"address": "127.0.0.1", "port_value": port},
        }}}]}]},
    })
}

/// Every setting that concerns the bootstrap.
fn everything() -> Value {
    json!({
        "envoy_prometheus_bind_addr": free_address(),
        "envoy_stats_bind_addr": free_address(),
        "envoy_ready_bind_address": "127.0.0.1",
        "envoy_ready_bind_port": free_port(),
        "envoy_statsd_url": "udp://127.0.0.1:8125",
        "envoy_dogstatsd_url": "unix:///tmp/no-such.sock",
        "envoy_stats_tags": ["team=core"],
        "envoy_stats_flush_interval": "7s",
        "envoy_extra_static_clusters_json": cluster("extra", 1).to_string(),
        "envoy_extra_static_listeners_json": json!({
            "name": "extra",
            "address": {"socket_address": {"address": "127.0.0.1", "port_value": free_port()}},
            "filter_chains": [{"filters": [{
                "name": "envoy.filters.network.tcp_proxy",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
                    "stat_prefix": "extra",
                    "cluster": "extra",
                },
            }]}],
        }).to_string(),
        "envoy_extra_stats_sinks_json": json!({
            "name": "envoy.stat_sinks.hystrix",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.config.metrics.v3.HystrixSink",
                "num_buckets": 10,
            },
        }).to_string(),
        "envoy_tracing_json": json!({"http": {
            "name": "envoy.tracers.zipkin",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.config.trace.v3.ZipkinConfig",
                "collector_cluster": "extra",
                "collector_endpoint": "/api/v2/spans",
                "collector_endpoint_version": "HTTP_JSON",
            },
        }}).to_string(),
    })
}

#[test]
fn part2_envoy_accepts_every_setting() {
    let plain = params(json!({}));
    validate(&build(&plain), "bootstrap-plain").unwrap();
    validate(&build(&params(everything())), "bootstrap-everything").unwrap();
    let replaced = params(
        json!({"envoy_stats_config_json": "{\"stats_tags\": [{\"tag_name\": \"a\", \"fixed_value\": \"b\"}]}"}),
    );
    validate(&build(&replaced), "bootstrap-stats-config").unwrap();
    let named = BootstrapParams {
        xds_host: "localhost".to_owned(),
        ..plain.clone()
    };
    validate(&build(&named), "bootstrap-named").unwrap();
    let authority = rcgen::generate_simple_self_signed(vec!["xds.example".to_owned()]).unwrap();
    for host in ["xds.example", "127.0.0.1"] {
        let tls = XdsTls {
            ca_pem: authority.cert.pem(),
            ..XdsTls::default()
        };
        let secured = BootstrapParams {
            xds_host: host.to_owned(),
            xds_tls: Some(tls),
            ..plain.clone()
        };
        validate(&build(&secured), "bootstrap-tls").unwrap();
    }
}

#[test]
fn part2_a_running_envoy_shows_what_it_was_told_to() {
    let name = "v1.api.default.dc2.internal.11111111-2222-3333-4444-555555555555.consul";
    let ready_port = free_port();
    let (metrics, stats) = (free_address(), free_address());
    let params = params(json!({
        "envoy_prometheus_bind_addr": metrics,
        "envoy_stats_bind_addr": stats,
        "envoy_ready_bind_address": "127.0.0.1",
        "envoy_ready_bind_port": ready_port,
        "envoy_stats_tags": ["team=core"],
        "envoy_extra_static_clusters_json": cluster(name, 1).to_string(),
    }));
    let mut bootstrap = build(&params);
    // Nothing answers on the xDS port: Envoy waits, and serves nothing that it wasn't told to.
    let waiting = Envoy::start(&bootstrap, "bootstrap-waiting");
    assert!(!waiting.ready());
    drop(waiting);
    // The rest needs no control plane.
    bootstrap
        .as_object_mut()
        .unwrap()
        .remove("dynamic_resources");
    let envoy = Envoy::start(&bootstrap, "bootstrap");
    envoy.wait_ready();
    let ready = envoy.wait_until("ready listener", support::DEADLINE, |_| {
        http::get(&format!("127.0.0.1:{ready_port}"), "/ready").map_err(|error| error.to_string())
    });
    assert_eq!((ready.status, ready.body.trim()), (200, "LIVE"));
    let text = http::get(&metrics, "/metrics").unwrap().body;
    let line = text
        .lines()
        .find(|line| line.starts_with("envoy_cluster_upstream_cx_total{") && line.contains("dc2"))
        .unwrap_or_else(|| panic!("no statistic of the cluster in {text}"));
    for label in [
        "consul_destination_service_subset=\"v1\"",
        "consul_destination_service=\"api\"",
        "consul_destination_namespace=\"default\"",
        "consul_destination_datacenter=\"dc2\"",
        "consul_destination_routing_type=\"internal\"",
        "consul_destination_trust_domain=\"11111111-2222-3333-4444-555555555555\"",
        "consul_destination_target=\"v1.api.default.dc2\"",
        "consul_source_service=\"web\"",
        "consul_source_datacenter=\"dc1\"",
        "local_cluster=\"web\"",
        "team=\"core\"",
    ] {
        assert!(line.contains(label), "{label} is missing in {line}");
    }
    assert!(
        http::get(&stats, "/stats?filter=server.live")
            .unwrap()
            .body
            .contains("server.live")
    );
    for address in [&metrics, &stats] {
        assert_eq!(http::get(address, "/quitquitquit").unwrap().status, 404);
    }
}
