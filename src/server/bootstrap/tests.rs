use super::*;

fn no_environment(_: &str) -> Option<String> {
    None
}

fn params(config: Value) -> BootstrapParams {
    let Value::Object(config) = config else {
        panic!("settings are an object")
    };
    BootstrapParams {
        config,
        ..BootstrapParams::new("web-sidecar-proxy", "web", "127.0.0.1", 8502)
    }
}

fn build(config: Value) -> Value {
    params(config).build(&no_environment).unwrap()
}

fn problems(config: Value) -> Vec<String> {
    params(config).build(&no_environment).unwrap_err().problems
}

#[test]
fn the_form_of_xds_is_the_api_type() {
    let params = BootstrapParams {
        xds_protocol: Protocol::StateOfTheWorld,
        ..BootstrapParams::new("web-sidecar-proxy", "web", "127.0.0.1", 8502)
    };
    let bootstrap = params.build(&no_environment).unwrap();
    let ads_config = &bootstrap["dynamic_resources"]["ads_config"];
    assert_eq!(ads_config["api_type"], "GRPC");
}

#[test]
fn part2_the_essentials() {
    let bootstrap = BootstrapParams {
        node_name: Some("n1".into()),
        ..params(json!({}))
    }
    .build(&no_environment)
    .unwrap();
    assert_eq!(
        bootstrap["node"],
        json!({
            "id": "web-sidecar-proxy",
            "cluster": "web",
            "metadata": {"namespace": "default", "partition": "default", "node_name": "n1"},
        })
    );
    assert_eq!(bootstrap["layered_runtime"]["layers"][0]["name"], "base");
    assert_eq!(
        bootstrap["layered_runtime"]["layers"][0]["static_layer"]["re2.max_program_size.error_level"],
        1_048_576
    );
    let ads = json!({"ads": {}, "resource_api_version": "V3", "initial_fetch_timeout": "0s"});
    assert_eq!(bootstrap["dynamic_resources"]["lds_config"], ads);
    assert_eq!(bootstrap["dynamic_resources"]["cds_config"], ads);
    let ads_config = &bootstrap["dynamic_resources"]["ads_config"];
    assert_eq!(ads_config["api_type"], "DELTA_GRPC");
    assert_eq!(ads_config["transport_api_version"], "V3");
    assert_eq!(
        ads_config["grpc_services"],
        json!([{"envoy_grpc": {"cluster_name": "local_agent"}}])
    );
    let admin = &bootstrap["admin"];
    assert_eq!(admin["address"], socket("127.0.0.1", 19000));
    assert_eq!(admin["access_log"][0]["typed_config"]["path"], "/dev/null");
    let cluster = &bootstrap["static_resources"]["clusters"][0];
    assert_eq!(
        (
            &cluster["name"],
            &cluster["type"],
            &cluster["connect_timeout"],
            &cluster["ignore_health_on_host_removal"]
        ),
        (
            &json!("local_agent"),
            &json!("STATIC"),
            &json!("1s"),
            &json!(false)
        )
    );
    assert_eq!(
        cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"],
        socket("127.0.0.1", 8502)
    );
    assert!(
        cluster["typed_extension_protocol_options"]
            .to_string()
            .contains("http2_protocol_options")
    );
    assert_eq!(bootstrap["static_resources"].get("listeners"), None);
    assert_eq!(bootstrap["stats_config"]["use_all_default_tags"], true);
    let tags = bootstrap["stats_config"]["stats_tags"].as_array().unwrap();
    for (name, value) in [
        ("local_cluster", "web"),
        ("consul.source.service", "web"),
        ("consul.source.namespace", "default"),
        ("consul.source.partition", "default"),
        ("consul.source.datacenter", "dc1"),
    ] {
        assert!(
            tags.contains(&json!({"tag_name": name, "fixed_value": value})),
            "{name}"
        );
    }
}

#[test]
fn part2_equal_parameters_give_equal_text() {
    let config =
        json!({"envoy_prometheus_bind_addr": "0.0.0.0:9102", "envoy_stats_tags": ["b=1", "a=2"]});
    assert_eq!(build(config.clone()).to_string(), build(config).to_string());
}

#[test]
fn part2_names_of_hosts_are_looked_up() {
    for (host, kind) in [
        ("xds.example", "STRICT_DNS"),
        ("localhost", "STRICT_DNS"),
        ("[::1]", "STATIC"),
        ("10.0.0.1", "STATIC"),
    ] {
        let params = BootstrapParams {
            xds_host: host.to_owned(),
            ..params(json!({}))
        };
        let bootstrap = params.build(&no_environment).unwrap();
        assert_eq!(
            bootstrap["static_resources"]["clusters"][0]["type"], kind,
            "{host}"
        );
    }
}

#[test]
fn part2_the_token_is_sent_and_not_shown() {
    let params = BootstrapParams {
        token: "very-secret".into(),
        ..params(json!({}))
    };
    let bootstrap = params.build(&no_environment).unwrap();
    assert_eq!(
        bootstrap["dynamic_resources"]["ads_config"]["grpc_services"][0]["initial_metadata"],
        json!([{"key": "x-consul-token", "value": "very-secret"}])
    );
    assert!(!format!("{params:?}").contains("very-secret"));
}

#[test]
fn part2_tls_to_the_control_plane() {
    let tls = XdsTls {
        ca_pem: "PEM".into(),
        server_name: String::new(),
        client_files: Some(("/c.pem".into(), "/k.pem".into())),
    };
    let build = |host: &str| {
        let params = BootstrapParams {
            xds_host: host.to_owned(),
            xds_tls: Some(tls.clone()),
            ..params(json!({}))
        };
        params.build(&no_environment).unwrap()["static_resources"]["clusters"][0]["transport_socket"]["typed_config"].take()
    };
    let context = build("xds.example");
    assert_eq!(context["sni"], "xds.example");
    let common = &context["common_tls_context"];
    assert_eq!(
        common["validation_context"]["trusted_ca"]["inline_string"],
        "PEM"
    );
    assert_eq!(
        common["validation_context"]["match_typed_subject_alt_names"],
        json!([{"san_type": "DNS", "matcher": {"exact": "xds.example"}}])
    );
    assert_eq!(
        common["tls_certificates"][0]["private_key"]["filename"],
        "/k.pem"
    );
    let context = build("10.0.0.1");
    assert_eq!(context.get("sni"), None);
    assert_eq!(
        context["common_tls_context"]["validation_context"]["match_typed_subject_alt_names"][0]["san_type"],
        "IP_ADDRESS"
    );
}

#[test]
fn part2_listeners_that_show_the_admin_interface() {
    let bootstrap = build(json!({
        "envoy_prometheus_bind_addr": "0.0.0.0:9102",
        "envoy_stats_bind_addr": "127.0.0.1:9103",
        "envoy_ready_bind_address": "127.0.0.1",
        "envoy_ready_bind_port": "9104",
    }));
    let listeners = bootstrap["static_resources"]["listeners"]
        .as_array()
        .unwrap();
    let seen: Vec<(&Value, &Value, &Value)> = listeners
        .iter()
        .map(|listener| {
            let manager = &listener["filter_chains"][0]["filters"][0]["typed_config"];
            let route = &manager["route_config"]["virtual_hosts"][0]["routes"][0];
            (
                &listener["name"],
                &listener["address"]["socket_address"]["port_value"],
                route,
            )
        })
        .collect();
    let route = |matching: Value, rewrite: &str| json!({"match": matching, "route": {"cluster": "self_admin", "prefix_rewrite": rewrite}});
    assert_eq!(
        seen,
        [
            (
                &json!("envoy_prometheus_metrics_listener"),
                &json!(9102),
                &route(json!({"path": "/metrics"}), "/stats/prometheus")
            ),
            (
                &json!("envoy_metrics_listener"),
                &json!(9103),
                &route(json!({"prefix": "/stats"}), "/stats")
            ),
            (
                &json!("envoy_ready_listener"),
                &json!(9104),
                &route(json!({"path": "/ready"}), "/ready")
            ),
        ]
    );
    let admin = &bootstrap["static_resources"]["clusters"][1];
    assert_eq!(admin["name"], "self_admin");
    assert_eq!(
        admin["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"],
        socket("127.0.0.1", 19000)
    );
}

#[test]
fn part2_statsd_sinks() {
    let environment = |name: &str| (name == "STATSD").then(|| "udp://10.0.0.9:8125".to_owned());
    let bootstrap = params(json!({
        "envoy_statsd_url": "$STATSD",
        "envoy_dogstatsd_url": "unix:///var/run/dsd.sock",
        "envoy_extra_stats_sinks_json": "{\"name\": \"mine\"}",
    }))
    .build(&environment)
    .unwrap();
    assert_eq!(
        bootstrap["stats_sinks"],
        json!([
            {
                "name": "envoy.stat_sinks.statsd",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.config.metrics.v3.StatsdSink",
                    "address": {"socket_address": {"protocol": "UDP", "address": "10.0.0.9", "port_value": 8125}},
                },
            },
            {
                "name": "envoy.stat_sinks.dog_statsd",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.config.metrics.v3.DogStatsdSink",
                    "address": {"pipe": {"path": "/var/run/dsd.sock"}},
                },
            },
            {"name": "mine"},
        ])
    );
}

#[test]
fn part2_extra_resources_and_overrides() {
    let bootstrap = build(json!({
        "envoy_extra_static_clusters_json": "{\"name\": \"a\"}, {\"name\": \"b\"},",
        "envoy_extra_static_listeners_json": "[{\"name\": \"c\"}]",
        "envoy_stats_flush_interval": "1m",
        "envoy_tracing_json": "{\"http\": {}}",
        "envoy_stats_tags": ["team=core", "empty="],
    }));
    let clusters = bootstrap["static_resources"]["clusters"]
        .as_array()
        .unwrap();
    let names: Vec<&Value> = clusters.iter().map(|cluster| &cluster["name"]).collect();
    assert_eq!(names, [&json!("local_agent"), &json!("a"), &json!("b")]);
    assert_eq!(
        bootstrap["static_resources"]["listeners"],
        json!([{"name": "c"}])
    );
    assert_eq!(bootstrap["stats_flush_interval"], "60s");
    assert_eq!(bootstrap["tracing"], json!({"http": {}}));
    let tags = bootstrap["stats_config"]["stats_tags"].as_array().unwrap();
    assert_eq!(
        tags[tags.len() - 2..],
        [
            json!({"tag_name": "team", "fixed_value": "core"}),
            json!({"tag_name": "empty", "fixed_value": ""}),
        ]
    );
    let bootstrap = build(
        json!({"envoy_stats_config_json": "{\"stats_tags\": []}", "envoy_stats_flush_interval": "1500ms"}),
    );
    assert_eq!(bootstrap["stats_config"], json!({"stats_tags": []}));
    assert_eq!(bootstrap["stats_flush_interval"], "1.500000000s");
}

#[test]
fn part2_every_problem_is_named_at_once() {
    let wrong = json!({
        "envoy_bootstrap_json_tpl": "{{ .ProxyID }}",
        "envoy_dogstatsd_url": "udp://statsd.example:8125",
        "envoy_extra_static_clusters_json": "{",
        "envoy_extra_static_listeners_json": "1",
        "envoy_extra_stats_sinks_json": ["x"],
        "envoy_prometheus_bind_addr": "9102",
        "envoy_ready_bind_address": "127.0.0.1",
        "envoy_stats_bind_addr": "127.0.0.1:0",
        "envoy_stats_config_json": "[]",
        "envoy_stats_flush_interval": "never",
        "envoy_stats_tags": ["novalue"],
        "envoy_statsd_url": "$UNSET",
        "envoy_tracing_json": "{",
    });
    let found = problems(wrong.clone());
    let keys: std::collections::BTreeSet<&str> = found
        .iter()
        .filter_map(|problem| problem.split(':').next())
        .collect();
    let mut want: std::collections::BTreeSet<&str> = wrong
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    // The missing half is the one that is named.
    want.remove("envoy_ready_bind_address");
    want.insert("envoy_ready_bind_port");
    assert_eq!(keys, want, "{found:#?}");
    for (config, word) in [
        (json!({"envoy_statsd_url": "tcp://1.2.3.4:5"}), "udp://"),
        (json!({"envoy_stats_flush_interval": "1h"}), "5m"),
        (
            json!({"envoy_ready_bind_address": "x", "envoy_ready_bind_port": 0}),
            "not a port",
        ),
        (
            json!({"envoy_ready_bind_port": 1}),
            "envoy_ready_bind_address",
        ),
    ] {
        let found = problems(config).join("\n");
        assert!(found.contains(word), "{found}");
    }
    let bad = BootstrapParams {
        proxy_id: String::new(),
        xds_port: 0,
        admin_address: "localhost".into(),
        admin_port: 0,
        xds_tls: Some(XdsTls::default()),
        ..params(json!({}))
    };
    assert_eq!(bad.build(&no_environment).unwrap_err().problems.len(), 5);
}
