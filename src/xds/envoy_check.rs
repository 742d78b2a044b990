//! Whether a real Envoy takes what is generated (must-hold 61).

use std::process::Command;

use serde_json::{Value, json};

use super::fixtures::{
    Fixture, assert_consistent, default_chain, definition, everything, json_of, names,
};
use super::{Generated, ResourceType};

/// The resources as a static configuration: routes and endpoints stand in a listener and a cluster of their own.
fn bootstrap(generated: &Generated) -> Value {
    let of = |kind| {
        generated
            .set
            .of(kind)
            .iter()
            .map(|resource| json_of(resource))
    };
    let mut clusters = vec![json!({
        "name": "local_agent", "type": "STATIC", "connectTimeout": "1s",
        "typedExtensionProtocolOptions": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
            "explicitHttpConfig": {"http2ProtocolOptions": {}},
        }},
        "loadAssignment": {"clusterName": "local_agent", "endpoints": [{"lbEndpoints": [{"endpoint": {"address":
            {"socketAddress": {"address": "127.0.0.1", "portValue": 1}}}}]}]},
    })];
    clusters.extend(of(ResourceType::Cluster));
    clusters.extend(of(ResourceType::Endpoint).enumerate().map(|(number, assignment)| {
        json!({
            "name": format!("assignment-{number}"), "type": "STATIC", "connectTimeout": "1s", "loadAssignment": assignment,
        })
    }));
    let mut listeners: Vec<Value> = of(ResourceType::Listener).collect();
    listeners.extend(of(ResourceType::Route).enumerate().map(|(number, table)| {
        json!({
            "name": format!("table-{number}"),
            "address": {"socketAddress": {"address": "127.0.0.1", "portValue": 30000 + number}},
            "filterChains": [{"filters": [{"name": "envoy.filters.network.http_connection_manager", "typedConfig": {
                "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
                "statPrefix": "table", "routeConfig": table,
                "httpFilters": [{"name": "envoy.filters.http.router", "typedConfig": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
                }}],
            }}]}],
        })
    }));
    json!({
        "node": {"id": "web-sidecar-proxy", "cluster": "web"},
        "staticResources": {"clusters": clusters, "listeners": listeners},
        "dynamicResources": {"adsConfig": {
            "apiType": "DELTA_GRPC", "transportApiVersion": "V3",
            "grpcServices": [{"envoyGrpc": {"clusterName": "local_agent"}}],
        }},
    })
}

#[test]
#[ignore = "needs an Envoy: ENVOY_BINARY=path"]
fn xds_61_envoy_takes_the_resources() {
    let envoy = std::env::var("ENVOY_BINARY").expect("ENVOY_BINARY names an Envoy");
    let folder = tempfile::tempdir().unwrap();
    let grpc = Fixture::web().config(json!({"protocol": "grpc"})).upstream(
        definition("db", 5432),
        default_chain("db", "http2"),
        &[],
    );
    let tcp = super::fixtures::example().config(json!({"max_inbound_connections": 3}));
    for (number, fixture) in [everything(), grpc, tcp].iter().enumerate() {
        let generated = fixture.generate();
        assert_consistent(&generated);
        assert!(!names(&generated.set, ResourceType::Listener).is_empty());
        let path = folder.path().join(format!("{number}.json"));
        std::fs::write(
            &path,
            serde_json::to_vec_pretty(&bootstrap(&generated)).unwrap(),
        )
        .unwrap();
        let output = Command::new(&envoy)
            .args(["--mode", "validate", "-l", "warning", "-c"])
            .arg(&path)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}");
        assert!(!text.contains("Deprecated"), "{text}");
    }
}
