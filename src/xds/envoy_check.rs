//! Whether a real Envoy takes what is generated (must-hold 61).

use std::process::Command;

use serde_json::{Value, json};

use super::fixtures::{
    Fixture, assert_consistent, default_chain, definition, everything, json_of, local_provider,
    names,
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

/// The pinned Envoy, installed if need be.
fn envoy() -> String {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/.ci/envoy");
    let output = Command::new(script).output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn xds_61_envoy_takes_the_resources() {
    let envoy = envoy();
    let folder = tempfile::tempdir().unwrap();
    let grpc = Fixture::web().config(json!({"protocol": "grpc"})).upstream(
        definition("db", 5432),
        default_chain("db", "http2"),
        &[],
    );
    let mut remote = local_provider("remote");
    remote["JSONWebKeySet"] = json!({"Remote": {
        "URI": "https://localhost:1/jwks", "CacheDuration": "5m", "FetchAsynchronously": true,
        "RetryPolicy": {"NumRetries": 2, "RetryPolicyBackOff": {"BaseInterval": "1s", "MaxInterval": "5s"}},
        "JWKSCluster": {"TLSCertificates": {"TrustedCA": {"Filename": "/etc/ssl/certs/ca-certificates.crt"}}},
    }});
    let token = json!({"Providers": [
        {"Name": "local", "VerifyClaims": [{"Path": ["a", "b"], "Value": "c"}]}, {"Name": "remote"},
    ]});
    let tokens = Fixture::web()
        .config(json!({"protocol": "http"}))
        .intentions(&[
            ("api", json!("allow")),
            (
                "web",
                json!([{"Action": "allow", "HTTP": {"PathPrefix": "/a"}, "JWT": token}]),
            ),
        ])
        .jwt_providers(&[local_provider("local"), remote])
        .jwt(&token);
    use super::custom::tests as custom;
    let own_http = Fixture::web()
        .intentions(&[("api", json!("allow"))])
        .config(json!({
            "protocol": "http", "envoy_listener_tracing_json": custom::tracing().to_string(),
            "envoy_public_listener_json": custom::listener("mine", &[json!([custom::manager()])]).to_string(),
            "envoy_local_cluster_json": custom::custom_cluster("local_app", "STATIC").to_string(),
        }))
        .jwt_providers(&[local_provider("local")])
        .jwt(&json!({"Providers": [{"Name": "local"}]}))
        .upstream(definition("db", 5432), default_chain("db", "http"), &[]);
    let own_tcp = Fixture::web()
        .config(json!({
            "xds_fetch_timeout_ms": 1000,
            "envoy_public_listener_json": custom::listener("mine", &[json!([custom::tcp()]), json!([custom::tcp()])]).to_string(),
        }))
        .upstream(
            json!({"DestinationName": "db", "LocalBindPort": 5432, "Config": {
                "envoy_cluster_json": custom::custom_cluster("mine", "EDS").to_string(),
            }}),
            default_chain("db", "tcp"),
            &[],
        );
    let limited = Fixture::web()
        .config(json!({"protocol": "http2", "max_request_headers_kb": 96}))
        .mesh(json!({"HTTP": {"Incoming": {"RequestNormalization": {
            "MergeSlashes": true, "PathWithEscapedSlashesAction": "UNESCAPE_AND_FORWARD",
            "HeadersWithUnderscoresAction": "REJECT_REQUEST",
        }}}}))
        .proxy(|header| {
            header.proxy.envoy_extensions = vec![super::fixtures::read(&json!({
                "Name": crate::model::RATE_LIMIT_EXTENSION, "Arguments": {"InstanceLevel": {
                    "RequestsPerSecond": 100, "Routes": [{"PathPrefix": "/a", "RequestsPerSecond": 5, "RequestsMaxBurst": 9}],
                }},
            }))];
        });
    let mut checks = Fixture::web();
    checks.exposed_checks = crate::snapshot::Part::new(crate::model::ExposedChecks {
        paths: super::fixtures::read::<crate::model::Expose>(&json!({"Paths": [
            {"Path": "/health", "ListenerPort": 21600, "LocalPathPort": 3000, "Protocol": "http"},
        ]}))
        .paths,
        agent_address: "10.0.0.1".into(),
        complaints: Vec::new(),
    });
    let tcp = super::fixtures::example().config(json!({"max_inbound_connections": 3}));
    for (number, fixture) in [
        everything(),
        grpc,
        tcp,
        tokens,
        own_http,
        own_tcp,
        limited,
        checks,
    ]
    .iter()
    .enumerate()
    {
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
