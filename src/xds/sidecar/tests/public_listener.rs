//! The application of the sidecar itself: its cluster, and the listener that others dial.

use super::*;

#[test]
fn xds_4_2_2_where_the_application_listens() {
    let address = |proxy: Value| {
        let fixture = Fixture::web().proxy(|header| header.proxy = read(&proxy));
        let local_app = shown(&checked(&fixture), ResourceType::Cluster, "local_app");
        local_app["loadAssignment"]["endpoints"][0]["lbEndpoints"][0]["endpoint"]["address"].clone()
    };
    let socket = |address: &str, port: u16| json!({"socketAddress": {"address": address, "portValue": port}});
    assert_eq!(
        address(json!({"LocalServicePort": 80})),
        socket("127.0.0.1", 80)
    );
    assert_eq!(
        address(json!({"LocalServicePort": 80, "LocalServiceAddress": "::1"})),
        socket("::1", 80)
    );
    assert_eq!(
        address(json!({"LocalServiceSocketPath": "/run/web.sock"})),
        json!({"pipe": {"path": "/run/web.sock"}})
    );
    let named = Fixture::web()
        .proxy(|header| header.proxy.local_service_address = "web.example.com".into());
    let generated = named.generate();
    assert!(
        generated
            .set
            .get(ResourceType::Cluster, "local_app")
            .is_none()
    );
    assert!(
        generated.problems[0]
            .message
            .contains("LocalServiceAddress"),
        "{:?}",
        generated.problems
    );
}

#[test]
fn xds_56_the_connection_limit_shows_up_twice() {
    let fixture = Fixture::web().config(json!({"max_inbound_connections": 222}));
    let generated = checked(&fixture);
    let local_app = shown(&generated, ResourceType::Cluster, "local_app");
    assert_eq!(
        local_app["circuitBreakers"],
        json!({"thresholds": [{"maxConnections": 222}]})
    );
    let listener = shown(&generated, ResourceType::Listener, PUBLIC);
    assert_eq!(
        filters(&listener),
        [
            "envoy.filters.network.rbac",
            "envoy.filters.network.connection_limit",
            "envoy.filters.network.tcp_proxy"
        ]
    );
    let limit = &listener["filterChains"][0]["filters"][1]["typedConfig"];
    assert_eq!(limit["statPrefix"], "inbound_connection_limit");
    assert_eq!(limit["maxConnections"], "222");
}

#[test]
fn xds_29_http_has_its_rules_in_front_of_the_router() {
    let fixture = Fixture::web()
        .intentions(&[("api", json!("allow"))])
        .config(json!({"protocol": "http", "local_request_timeout_ms": 0, "local_idle_timeout_ms": 1500}));
    let listener = public(&fixture);
    assert_eq!(
        filters(&listener),
        ["envoy.filters.network.http_connection_manager"]
    );
    assert_eq!(
        http_filters(&listener),
        ["rbac", "header_to_metadata", "router"]
    );
    let manager = last_filter(&listener);
    assert_eq!(manager["statPrefix"], "public_listener");
    assert_eq!(manager["forwardClientCertDetails"], "APPEND_FORWARD");
    assert_eq!(
        manager["setCurrentClientCertDetails"],
        json!({"subject": true, "cert": true, "chain": true, "dns": true, "uri": true})
    );
    assert_eq!(manager["tracing"], json!({"randomSampling": {}}));
    assert_eq!(
        manager["upgradeConfigs"],
        json!([{"upgradeType": "websocket"}])
    );
    assert_eq!(manager["normalizePath"], true);
    assert_eq!(
        manager["routeConfig"],
        json!({"name": "public_listener", "virtualHosts": [{
            "name": "public_listener", "domains": ["*"],
            "routes": [{"match": {"prefix": "/"}, "route": {
                "cluster": "local_app", "timeout": "0s", "idleTimeout": "1.500s",
            }}],
        }]})
    );
    let tls = &listener["filterChains"][0]["transportSocket"]["typedConfig"]["commonTlsContext"];
    assert_eq!(tls["alpnProtocols"], json!(["http/1.1"]));
}

#[test]
fn xds_55_grpc() {
    let fixture = Fixture::web().config(json!({"protocol": "grpc"}));
    let generated = checked(&fixture);
    let listener = shown(&generated, ResourceType::Listener, PUBLIC);
    assert_eq!(
        http_filters(&listener),
        ["grpc_stats", "grpc_http1_bridge", "rbac", "router"]
    );
    let manager = last_filter(&listener);
    assert_eq!(manager["http2ProtocolOptions"], json!({}));
    assert!(manager.get("forwardClientCertDetails").is_none());
    assert!(manager.get("upgradeConfigs").is_none());
    let tls = &listener["filterChains"][0]["transportSocket"]["typedConfig"]["commonTlsContext"];
    assert_eq!(tls["alpnProtocols"], json!(["h2", "http/1.1"]));
    let local_app = shown(&generated, ResourceType::Cluster, "local_app");
    let options = &local_app["typedExtensionProtocolOptions"]["envoy.extensions.upstreams.http.v3.HttpProtocolOptions"];
    assert_eq!(
        options["explicitHttpConfig"],
        json!({"http2ProtocolOptions": {}})
    );
}

#[test]
fn xds_4_2_3_mesh_settings_of_http() {
    let fixture = Fixture::web().config(json!({"protocol": "http"})).mesh(json!({"HTTP": {
        "SanitizeXForwardedClientCert": true,
        "Incoming": {"RequestNormalization": {
            "InsecureDisablePathNormalization": true, "MergeSlashes": true,
            "PathWithEscapedSlashesAction": "UNESCAPE_AND_FORWARD", "HeadersWithUnderscoresAction": "REJECT_REQUEST",
        }},
    }}));
    let listener = public(&fixture);
    assert_eq!(http_filters(&listener), ["rbac", "router"]);
    let manager = last_filter(&listener);
    assert!(manager.get("forwardClientCertDetails").is_none());
    assert_eq!(manager["normalizePath"], false);
    assert_eq!(manager["mergeSlashes"], true);
    assert_eq!(
        manager["pathWithEscapedSlashesAction"],
        "UNESCAPE_AND_FORWARD"
    );
    assert_eq!(
        manager["commonHttpProtocolOptions"],
        json!({"headersWithUnderscoresAction": "REJECT_REQUEST"})
    );
    let bad =
        Fixture::web()
            .config(json!({"protocol": "http"}))
            .mesh(json!({"HTTP": {"Incoming": {
                "RequestNormalization": {"HeadersWithUnderscoresAction": "EAT"},
            }}}));
    assert!(bad.generate().problems[0].message.contains("EAT"));
}

#[test]
fn xds_3_5_settings_of_the_public_listener() {
    let fixture = Fixture::web()
        .proxy(|header| header.address = "10.0.0.1".into())
        .config(json!({"balance_inbound_connections": "exact_balance"}));
    let generated = checked(&fixture);
    let listener = shown(
        &generated,
        ResourceType::Listener,
        "public_listener:10.0.0.1:21000",
    );
    assert_eq!(
        listener["connectionBalanceConfig"],
        json!({"exactBalance": {}})
    );
    let hostname = Fixture::web()
        .proxy(|header| header.address = "web.example.com".into())
        .generate();
    assert!(hostname.set.of(ResourceType::Listener).is_empty());
    assert_eq!(hostname.problems.len(), 1);
}

#[test]
fn xds_58_access_logs_stand_on_listeners_and_filters() {
    let fixture = Fixture::web()
        .upstream(definition("db", 5432), default_chain("db", "http"), &[])
        .proxy(|header| {
            header.proxy.access_logs = read(&json!({"Enabled": true, "TextFormat": "%PROTOCOL%"}))
        });
    let generated = checked(&fixture);
    for name in [PUBLIC, "db:127.0.0.1:5432"] {
        let listener = shown(&generated, ResourceType::Listener, name);
        assert_eq!(listener["accessLog"][0]["name"], "Consul Listener Log");
        assert_eq!(
            listener["accessLog"][0]["filter"],
            json!({"responseFlagFilter": {"flags": ["NR"]}})
        );
        let filter_log = &last_filter(&listener)["accessLog"][0];
        assert_eq!(filter_log["name"], "Consul Listener Filter Log");
        assert_eq!(
            filter_log["typedConfig"]["logFormat"],
            json!({"textFormatSource": {"inlineString": "%PROTOCOL%\n"}})
        );
    }
}

#[test]
fn xds_57_exposed_paths() {
    let paths = json!({"Paths": [
        {"Path": "/health-check", "ListenerPort": 21500, "LocalPathPort": 3000},
        {"Path": "/metrics", "ListenerPort": 21501, "LocalPathPort": 9000, "Protocol": "http2"},
    ]});
    let generated = checked(&Fixture::web().proxy(|header| header.proxy.expose = read(&paths)));
    assert_eq!(
        names(&generated.set, ResourceType::Cluster),
        ["exposed_cluster_9000", "local_app"]
    );
    let own = shown(
        &generated,
        ResourceType::Listener,
        "exposed_path_healthcheck:0.0.0.0:21500",
    );
    assert!(own["filterChains"][0].get("transportSocket").is_none());
    let manager = last_filter(&own);
    assert_eq!(
        manager["statPrefix"],
        "exposed_path_filter_healthcheck_21500"
    );
    assert!(manager.get("tracing").is_none());
    let route = &manager["routeConfig"]["virtualHosts"][0]["routes"][0];
    assert_eq!(route["match"], json!({"path": "/health-check"}));
    assert_eq!(route["route"]["cluster"], "local_app");
    let other = shown(
        &generated,
        ResourceType::Listener,
        "exposed_path_metrics:0.0.0.0:21501",
    );
    let route = &last_filter(&other)["routeConfig"]["virtualHosts"][0]["routes"][0];
    assert_eq!(route["route"]["cluster"], "exposed_cluster_9000");

    let bad = json!({"Paths": [{"Path": "/a", "ListenerPort": 21000}, {"Path": "/b"}, {"Path": "c", "ListenerPort": 1}]});
    let generated = Fixture::web()
        .proxy(|header| header.proxy.expose = read(&bad))
        .generate();
    assert_eq!(names(&generated.set, ResourceType::Listener), [PUBLIC]);
    assert_eq!(generated.problems.len(), 3, "{:?}", generated.problems);
}

#[test]
fn xds_4_2_6_fc_090_checks_are_open_to_the_agents_machine_only() {
    let with = |address: &str, agent: &str| {
        let mut fixture = Fixture::web().proxy(|header| header.address = address.into());
        fixture.exposed_checks = Part::new(crate::model::ExposedChecks {
            paths: read::<crate::model::Expose>(&json!({"Paths": [
                {"Path": "/health", "ListenerPort": 21600, "LocalPathPort": 3000, "Protocol": "http", "ParsedFromCheck": true},
                {"Path": "/grpc.health.v1.Health/Check", "ListenerPort": 21601, "LocalPathPort": 9000, "Protocol": "http2"},
            ]}))
            .paths,
            agent_address: agent.into(),
            complaints: Vec::new(),
        });
        let generated = checked(&fixture);
        let name = format!("exposed_path_health:{address}:21600");
        let listener = shown(&generated, ResourceType::Listener, &name);
        let name = format!("exposed_path_grpchealthv1HealthCheck:{address}:21601");
        let grpc = shown(&generated, ResourceType::Listener, &name);
        let route = &last_filter(&grpc)["routeConfig"]["virtualHosts"][0]["routes"][0];
        assert_eq!(route["route"]["cluster"], "exposed_cluster_9000");
        listener["filterChains"][0]["filterChainMatch"]["sourcePrefixRanges"].clone()
    };
    let range = |address: &str, length: u8| json!({"addressPrefix": address, "prefixLen": length});
    assert_eq!(
        with("10.0.0.1", "10.0.0.1"),
        json!([range("127.0.0.1", 8), range("10.0.0.1", 32)])
    );
    assert_eq!(
        with("::", "fd00::1"),
        json!([
            range("127.0.0.1", 8),
            range("fd00::1", 128),
            range("::1", 128)
        ])
    );
    assert_eq!(
        with("10.0.0.1", "n1.example.com"),
        json!([range("127.0.0.1", 8)])
    );
}

#[test]
fn x3_extensions_are_told_and_a_required_one_is_not_left_out() {
    let with = |required: bool| {
        Fixture::web()
            .proxy(|header| {
                header.proxy.envoy_extensions = vec![read(&json!({
                    "Name": "builtin/ext-authz", "Required": required,
                }))];
            })
            .generate()
    };
    let optional = with(false);
    assert_eq!(optional.problems.len(), 1, "{:?}", optional.problems);
    assert_eq!(names(&optional.set, ResourceType::Listener), [PUBLIC]);
    let required = with(true);
    assert_eq!(required.problems.len(), 2, "{:?}", required.problems);
    assert!(required.set.of(ResourceType::Listener).is_empty());
}

#[test]
fn xds_4_2_6_checks_need_the_instance_that_they_are_of() {
    let whose = |id: &str| {
        let fixture = Fixture::web().proxy(|header| {
            header.proxy.expose.checks = true;
            header.proxy.destination_service_id = id.into();
        });
        fixture.generate().problems.len()
    };
    assert_eq!((whose("web-1"), whose("")), (0, 1));
}
