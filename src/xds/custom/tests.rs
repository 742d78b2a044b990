use serde_json::{Value, json};

use crate::xds::fixtures::*;
use crate::xds::{Generated, Generator, ResourceType};

const MANAGER: &str = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";

pub(in crate::xds) fn socket(port: u16) -> Value {
    json!({"socket_address": {"address": "10.0.0.9", "port_value": port}})
}

/// A listener with a chain for each list of filters.
pub(in crate::xds) fn listener(name: &str, chains: &[Value]) -> Value {
    let chains: Vec<_> = chains
        .iter()
        .enumerate()
        .map(|(number, filters)| {
            json!({"filter_chain_match": {"destination_port": 7000 + number}, "filters": filters,
                "transport_socket": {"name": "raw_buffer", "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.transport_sockets.raw_buffer.v3.RawBuffer"}}})
        })
        .collect();
    json!({
        "@type": "type.googleapis.com/envoy.config.listener.v3.Listener",
        "name": name, "address": socket(9443), "filter_chains": chains,
        "metadata": {"filter_metadata": {"b": {"z": 1, "y": 2, "x": {"k2": [true], "k1": null}}, "a": {}, "c": {"d": "e"}}},
    })
}

pub(in crate::xds) fn manager() -> Value {
    json!({"name": "envoy.http_connection_manager", "typed_config": {
        "@type": MANAGER, "stat_prefix": "mine", "route_config": {"name": "mine", "virtual_hosts": [{
            "name": "mine", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "local_app"}}],
        }]},
        "http_filters": [
            {"name": "lua", "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua",
                "default_source_code": {"inline_string": "function envoy_on_request(h) end"}}},
            {"name": "router", "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}},
        ],
    }})
}

pub(in crate::xds) fn tcp() -> Value {
    json!({"name": "tcp", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
        "stat_prefix": "mine", "cluster": "local_app"}})
}

/// A sidecar with this public listener.
fn public(protocol: &str, listener: &Value) -> Fixture {
    Fixture::web()
        .intentions(&[("api", json!("allow"))])
        .config(json!({"protocol": protocol, "envoy_public_listener_json": listener.to_string()}))
}

fn names_of(filters: &Value) -> Vec<&str> {
    let filters = filters.as_array().unwrap().iter();
    filters.map(|f| f["name"].as_str().unwrap()).collect()
}

#[test]
fn xds_4_2_3_a_public_listener_of_ones_own_gets_rules_and_tls() {
    let mut written = listener("mine", &[json!([tcp()]), json!([tcp()])]);
    written["default_filter_chain"] = json!({"filters": [tcp()]});
    let generated = public("tcp", &written).generate();
    assert_eq!(generated.problems, []);
    assert_eq!(names(&generated.set, ResourceType::Listener), ["mine"]);
    let built = shown(&generated, ResourceType::Listener, "mine");
    let chains = built["filterChains"].as_array().unwrap().iter();
    let mut seen = 0;
    for chain in chains.chain([&built["defaultFilterChain"]]) {
        assert_eq!(
            names_of(&chain["filters"]),
            ["envoy.filters.network.rbac", "tcp"]
        );
        assert_eq!(
            chain["transportSocket"]["typedConfig"]["requireClientCertificate"],
            true
        );
        seen += 1;
    }
    assert_eq!(seen, 3);
    assert_eq!(built["metadata"]["filterMetadata"]["c"], json!({"d": "e"}));
}

#[test]
fn xds_4_2_3_rules_about_requests_stand_first_in_each_manager() {
    let written = listener("mine", &[json!([manager()]), json!([manager()])]);
    let fixture = public("http", &written)
        .jwt_providers(&[local_provider("okta")])
        .jwt(&json!({"Providers": [{"Name": "okta"}]}));
    let generated = fixture.generate();
    assert_eq!(generated.problems, []);
    let built = shown(&generated, ResourceType::Listener, "mine");
    for chain in built["filterChains"].as_array().unwrap() {
        assert_eq!(
            names_of(&chain["filters"]),
            ["envoy.http_connection_manager"]
        );
        let filters = &chain["filters"][0]["typedConfig"]["httpFilters"];
        assert_eq!(
            names_of(filters),
            [
                "envoy.filters.http.jwt_authn",
                "envoy.filters.http.rbac",
                "lua",
                "router"
            ]
        );
        assert_eq!(chain["transportSocket"]["name"], "tls");
    }
    // A chain that can't see requests: rules about connections guard all of them, and what is about requests denies.
    let written = listener("mine", &[json!([manager()]), json!([tcp()])]);
    let permissions = json!([{"Action": "allow", "HTTP": {"PathPrefix": "/"}}]);
    let generated = public("http", &written)
        .intentions(&[("api", permissions)])
        .generate();
    assert_eq!(generated.problems.len(), 2, "{:?}", generated.problems);
    let built = shown(&generated, ResourceType::Listener, "mine");
    for chain in built["filterChains"].as_array().unwrap() {
        assert_eq!(names_of(&chain["filters"])[0], "envoy.filters.network.rbac");
        assert_eq!(chain["filters"][0]["typedConfig"]["rules"], json!({}));
    }
}

#[test]
fn c1_private_keys_in_what_operators_write_are_not_shown() {
    let mut written = custom_cluster("local_app", "STATIC");
    written["transport_socket"] = json!({"name": "tls", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
        "common_tls_context": {"tls_certificates": [{
            "certificate_chain": {"inline_string": "CHAIN"},
            "private_key": {"inline_string": pem("PRIVATE KEY", "TOP-SECRET")},
        }]},
    }});
    let fixture = Fixture::web()
        .config(json!({"envoy_local_cluster_json": written.to_string(), "bind_port": 7}));
    let shown = fixture.snapshot().to_json();
    assert!(!shown.to_string().contains("TOP-SECRET"));
    assert_eq!(shown["Proxy"]["Config"]["bind_port"], 7);
    let generated = fixture.generate();
    assert_eq!(generated.problems, []);
    let json = generated.set.to_json(None).to_string();
    assert!(json.contains("CHAIN") && !json.contains("TOP-SECRET"));
    let debug = format!("{generated:?}");
    assert!(!debug.contains("TOP-SECRET"));

    let mut provider = local_provider("okta");
    let keys = base64::Engine::encode(
        &base64::engine::general_purpose::STANDARD,
        r#"{"keys": [{"kty": "oct", "k": "TOP-SECRET"}]}"#,
    );
    provider["JSONWebKeySet"]["Local"]["JWKS"] = keys.as_str().into();
    let fixture = public("http", &listener("mine", &[json!([manager()])]))
        .jwt_providers(&[provider])
        .jwt(&json!({"Providers": [{"Name": "okta"}]}));
    assert!(!fixture.snapshot().to_json().to_string().contains(&keys));
    let json = fixture.generate().set.to_json(None).to_string();
    assert!(json.contains("jwt_payload_okta") && !json.contains("TOP-SECRET"));
}

#[test]
fn x3_who_needs_a_token_is_denied_where_requests_cannot_be_seen() {
    let written = listener("mine", &[json!([tcp()])]);
    let fixture = public("http", &written)
        .intentions(&[("api", json!("allow")), ("web", json!("deny"))])
        .jwt_providers(&[local_provider("okta")])
        .jwt(&json!({"Providers": [{"Name": "okta"}]}));
    let generated = fixture.generate();
    assert_eq!(generated.problems.len(), 2, "{:?}", generated.problems);
    let built = shown(&generated, ResourceType::Listener, "mine");
    let rules = &built["filterChains"][0]["filters"][0]["typedConfig"]["rules"];
    assert_eq!(*rules, json!({}));
}

#[test]
fn x3_a_name_that_is_taken_stays_with_the_sidecars_own() {
    let mut own = listener("public_listener:0.0.0.0:21000", &[json!([tcp()])]);
    own["address"] = socket(1234);
    let config = json!({
        "envoy_listener_json": own.to_string(),
        "envoy_cluster_json": custom_cluster("local_app", "STATIC").to_string(),
    });
    let generated = upstream(config, default_chain("db", "tcp")).generate();
    assert_eq!(generated.problems.len(), 2, "{:?}", generated.problems);
    let cluster = shown(&generated, ResourceType::Cluster, "local_app");
    assert_eq!(cluster["connectTimeout"], "5s");
    let listener = shown(
        &generated,
        ResourceType::Listener,
        "public_listener:0.0.0.0:21000",
    );
    assert_eq!(listener["address"]["socketAddress"]["portValue"], 21000);
}

#[test]
fn x3_a_listener_that_cannot_be_read_leaves_the_last_good_one_with_the_newest_rules() {
    let generator = Generator::new();
    let good = public("tcp", &listener("mine", &[json!([tcp()])]));
    let first = generator.resources(&good.snapshot(), None);
    let mut wrong_type = listener("mine", &[json!([tcp()])]);
    wrong_type["@type"] = "type.googleapis.com/envoy.config.cluster.v3.Cluster".into();
    let mut unknown = listener("mine", &[json!([tcp()])]);
    unknown["colour"] = "TOP-SECRET".into();
    let mut unknown_type = listener("mine", &[json!([tcp()])]);
    unknown_type["filter_chains"][0]["filters"][0]["typed_config"]["@type"] =
        "type.googleapis.com/no.Such".into();
    let mut bad_value = listener("mine", &[json!([tcp()])]);
    bad_value["address"]["socket_address"]["port_value"] = "TOP-SECRET".into();
    for bad in [
        json!({}),
        json!([]),
        listener("", &[json!([tcp()])]),
        listener("mine", &[]),
        wrong_type,
        unknown,
        unknown_type,
        bad_value,
    ] {
        let bad = public("tcp", &bad).intentions(&[("other", json!("allow"))]);
        let generated = generator.resources(&bad.snapshot(), Some(&first));
        assert_eq!(generated.problems.len(), 1, "{:?}", generated.problems);
        let message = &generated.problems[0].message;
        assert!(message.contains("envoy_public_listener_json"), "{message}");
        assert!(!message.contains("TOP-SECRET"), "{message}");
        let built = shown(&generated, ResourceType::Listener, "mine").to_string();
        assert!(built.contains("/svc/other$") && !built.contains("/svc/api$"));
        // Without a good one there is none.
        assert!(bad.generate().set.of(ResourceType::Listener).is_empty());
    }
}

#[test]
fn x2_what_operators_write_has_the_same_bytes_every_time() {
    let bytes = |generated: &Generated| {
        let listener = generated.set.get(ResourceType::Listener, "mine").unwrap();
        listener.bytes().clone()
    };
    let written = listener("mine", &[json!([manager()]), json!([manager()])]);
    let first = bytes(&public("http", &written).generate());
    for _ in 0..50 {
        assert_eq!(bytes(&public("http", &written).generate()), first);
    }
}

pub(in crate::xds) fn custom_cluster(name: &str, kind: &str) -> Value {
    let mut cluster = json!({
        "@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster",
        "name": name, "type": kind, "connect_timeout": "7s",
    });
    if kind == "EDS" {
        cluster["eds_cluster_config"] =
            json!({"eds_config": {"ads": {}, "resource_api_version": "V3"}});
    } else {
        cluster["load_assignment"] = json!({"cluster_name": name, "endpoints": [
            {"lb_endpoints": [{"endpoint": {"address": socket(80)}}]},
        ]});
    }
    cluster
}

fn upstream(config: Value, chain: crate::model::chain::CompiledChain) -> Fixture {
    let mut upstream = definition("db", 5432);
    merge(&mut upstream, json!({ "Config": config }));
    Fixture::web().upstream(upstream, chain, &db())
}

#[test]
fn xds_44_a_cluster_of_ones_own_keeps_the_meshs_tls() {
    let written = custom_cluster("mine", "EDS").to_string();
    let config = json!({"envoy_cluster_json": written});
    let generated = upstream(config.clone(), default_chain("db", "tcp")).generate();
    assert_eq!(generated.problems, []);
    assert_consistent(&generated);
    assert_eq!(
        names(&generated.set, ResourceType::Cluster),
        ["local_app", "mine"]
    );
    let cluster = shown(&generated, ResourceType::Cluster, "mine");
    assert_eq!(cluster["connectTimeout"], "7s");
    let socket = &cluster["transportSocket"]["typedConfig"];
    assert_eq!(socket["sni"], format!("db.default.dc1.internal.{TD}"));
    let listener = shown(&generated, ResourceType::Listener, "db:127.0.0.1:5432");
    assert_eq!(last_filter(&listener)["cluster"], "mine");
    let endpoints = shown(&generated, ResourceType::Endpoint, "mine");
    assert_eq!(
        endpoints["endpoints"][0]["lbEndpoints"]
            .as_array()
            .unwrap()
            .len(),
        2
    );

    let fixed = json!({"envoy_cluster_json": custom_cluster("fixed", "STATIC").to_string()});
    let generated = upstream(fixed, default_chain("db", "http")).generate();
    assert_consistent(&generated);
    assert!(generated.set.of(ResourceType::Endpoint).is_empty());

    // A configured chain decides itself.
    let mut chain = default_chain("db", "tcp");
    chain.default = false;
    let generated = upstream(config, chain).generate();
    assert_eq!(generated.problems.len(), 1);
    assert!(generated.set.get(ResourceType::Cluster, "mine").is_none());

    let generated = upstream(
        json!({"envoy_cluster_json": "{"}),
        default_chain("db", "tcp"),
    )
    .generate();
    assert!(
        generated.problems[0].message.contains("envoy_cluster_json"),
        "{:?}",
        generated.problems
    );
}

#[test]
fn xds_4_2_4_a_listener_of_ones_own_replaces_that_of_an_upstream() {
    let mut written = listener("mine", &[json!([tcp()])]);
    let config = json!({"envoy_listener_json": written.to_string()});
    let generated = upstream(config.clone(), default_chain("db", "tcp")).generate();
    assert_eq!(generated.problems, []);
    assert_eq!(
        names(&generated.set, ResourceType::Listener),
        ["mine", "public_listener:0.0.0.0:21000"]
    );
    let mut chain = default_chain("db", "tcp");
    chain.default = false;
    let generated = upstream(config, chain).generate();
    assert_eq!(generated.problems.len(), 1);
    assert!(
        generated
            .set
            .get(ResourceType::Listener, "db:127.0.0.1:5432")
            .is_some()
    );

    // Two listeners don't bind to the same place.
    written["address"] = json!({"socket_address": {"address": "0.0.0.0", "port_value": 21000}});
    let config = json!({"envoy_listener_json": written.to_string()});
    let generated = upstream(config, default_chain("db", "tcp")).generate();
    assert_eq!(generated.problems.len(), 1, "{:?}", generated.problems);
    assert_eq!(
        names(&generated.set, ResourceType::Listener),
        ["public_listener:0.0.0.0:21000"]
    );
}

#[test]
fn xds_4_2_2_a_cluster_of_ones_own_for_the_application() {
    let local = |cluster: Value| {
        Fixture::web()
            .config(json!({"envoy_local_cluster_json": cluster.to_string()}))
            .generate()
    };
    let generated = local(custom_cluster("local_app", "STATIC"));
    assert_eq!(generated.problems, []);
    let cluster = shown(&generated, ResourceType::Cluster, "local_app");
    assert_eq!(cluster["connectTimeout"], "7s");
    assert!(cluster.get("transportSocket").is_none());
    let generated = local(custom_cluster("other", "STATIC"));
    assert_eq!(names(&generated.set, ResourceType::Cluster), ["other"]);
    assert_eq!(generated.problems.len(), 1);
    let generated = local(custom_cluster("local_app", "EDS"));
    assert!(
        generated.problems[0].message.contains("EDS"),
        "{:?}",
        generated.problems
    );
}

pub(in crate::xds) fn tracing() -> Value {
    json!({
        "@type": format!("{MANAGER}.Tracing"),
        "random_sampling": {"value": 10}, "custom_tags": [{"tag": "a", "literal": {"value": "b"}}],
        "provider": {"name": "envoy.tracers.zipkin", "typed_config": {
            "@type": "type.googleapis.com/envoy.config.trace.v3.ZipkinConfig",
            "collector_cluster": "local_app", "collector_endpoint": "/api/v2/spans", "collector_endpoint_version": "HTTP_JSON",
        }},
    })
}

#[test]
fn xds_3_5_tracing_of_all_http_listeners() {
    let with = |tracing: &str| {
        Fixture::web()
            .config(json!({"protocol": "http", "envoy_listener_tracing_json": tracing}))
            .upstream(definition("db", 5432), default_chain("db", "http"), &[])
            .generate()
    };
    let generated = with(&tracing().to_string());
    assert_eq!(generated.problems, []);
    for name in ["public_listener:0.0.0.0:21000", "db:127.0.0.1:5432"] {
        let listener = shown(&generated, ResourceType::Listener, name);
        let tracing = &last_filter(&listener)["tracing"];
        assert_eq!(tracing["randomSampling"], json!({"value": 10.0}));
        assert_eq!(
            tracing["provider"]["typedConfig"]["collectorEndpoint"],
            "/api/v2/spans"
        );
    }
    let generated = with("{\"random_sampling\": 1}");
    assert_eq!(generated.problems.len(), 1);
    assert!(
        generated.problems[0]
            .message
            .contains("envoy_listener_tracing_json")
    );
    let listener = shown(&generated, ResourceType::Listener, "db:127.0.0.1:5432");
    assert_eq!(
        last_filter(&listener)["tracing"],
        json!({"randomSampling": {}})
    );
}
