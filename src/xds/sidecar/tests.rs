use serde_json::{Value, json};

use crate::model::EndpointHealth::{Critical, Passing, Warning};
use crate::snapshot::Part;
use crate::xds::fixtures::*;
use crate::xds::{Generated, ResourceType};

const PUBLIC: &str = "public_listener:0.0.0.0:21000";

fn cluster_name(rest: &str) -> String {
    format!("{rest}.internal.{TD}")
}

fn public(fixture: &Fixture) -> Value {
    shown(&fixture.generate(), ResourceType::Listener, PUBLIC)
}

fn http_filters(listener: &Value) -> Vec<String> {
    let filters = last_filter(listener)["httpFilters"].as_array().unwrap();
    filters
        .iter()
        .map(|filter| {
            filter["name"]
                .as_str()
                .unwrap()
                .replace("envoy.filters.http.", "")
        })
        .collect()
}

fn checked(fixture: &Fixture) -> Generated {
    let generated = fixture.generate();
    assert_eq!(generated.problems, []);
    assert_consistent(&generated);
    generated
}

// --- local_app and the public listener ---

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

// --- clusters of chains ---

fn resolver_chain(
    service: &str,
    protocol: &str,
    resolver: Value,
    targets: &[Value],
) -> crate::model::chain::CompiledChain {
    chain(
        service,
        protocol,
        "resolver:x",
        json!({"resolver:x": resolver}),
        targets,
    )
}

#[test]
fn xds_38_39_failover_is_an_aggregate_of_clusters() {
    let chain = resolver_chain(
        "db",
        "tcp",
        resolver(
            "db.default.default.dc1",
            json!({"ConnectTimeout": "33s", "Failover": {"Targets": ["v2.db.default.default.dc2"]}}),
        ),
        &[target("db", "", "dc1"), target("db", "v2", "dc2")],
    );
    let mut remote = endpoint("10.0.0.9", Passing);
    (remote.datacenter, remote.wan_address, remote.wan_port) =
        ("dc2".into(), "198.18.0.9".into(), 443);
    let fixture = Fixture::web().upstream(definition("db", 5432), chain, &[remote]);
    let generated = checked(&fixture);
    let base = cluster_name("db.default.dc1");
    let members = [
        format!("failover-target~0~{base}"),
        format!("failover-target~1~{base}"),
    ];
    assert_eq!(
        shown(&generated, ResourceType::Cluster, &base),
        json!({
            "name": base, "altStatName": base, "connectTimeout": "33s", "lbPolicy": "CLUSTER_PROVIDED",
            "clusterType": {"name": "envoy.clusters.aggregate", "typedConfig": {
                "@type": "type.googleapis.com/envoy.extensions.clusters.aggregate.v3.ClusterConfig",
                "clusters": members,
            }},
        })
    );
    assert_eq!(names(&generated.set, ResourceType::Endpoint), members);
    let second = shown(&generated, ResourceType::Cluster, &members[1]);
    let tls = &second["transportSocket"]["typedConfig"];
    assert_eq!(tls["sni"], cluster_name("v2.db.default.dc2"));
    let san = &tls["commonTlsContext"]["combinedValidationContext"]["defaultValidationContext"];
    assert_eq!(
        san["matchTypedSubjectAltNames"][0]["matcher"],
        json!({"exact": format!("spiffe://{TD}/ns/default/dc/dc2/svc/db")})
    );
    let assignment = shown(&generated, ResourceType::Endpoint, &members[1]);
    assert_eq!(
        assignment["endpoints"][0]["lbEndpoints"][0]["endpoint"]["address"]["socketAddress"],
        json!({"address": "198.18.0.9", "portValue": 443})
    );
}

#[test]
fn xds_3_1_the_customization_hash_goes_in_front() {
    let mut chain = default_chain("db", "tcp");
    chain.customization_hash = "abcd".into();
    let generated = checked(&Fixture::web().upstream(definition("db", 5432), chain, &[]));
    let name = format!("abcd~{}", cluster_name("db.default.dc1"));
    let cluster = shown(&generated, ResourceType::Cluster, &name);
    assert_eq!(cluster["altStatName"], name.as_str());
    assert_eq!(
        cluster["transportSocket"]["typedConfig"]["sni"],
        cluster_name("db.default.dc1")
    );
}

#[test]
fn xds_4_1_limits_and_passive_health_checks() {
    let cluster = |config: Value| {
        let mut definition = definition("db", 5432);
        merge(&mut definition, json!({"Config": config}));
        let fixture = Fixture::web().upstream(definition, default_chain("db", "tcp"), &[]);
        shown(
            &checked(&fixture),
            ResourceType::Cluster,
            &cluster_name("db.default.dc1"),
        )
    };
    let plain = cluster(json!({}));
    assert_eq!(
        (&plain["circuitBreakers"], &plain["outlierDetection"]),
        (&json!({}), &json!({}))
    );
    let full = cluster(json!({
        "limits": {"max_connections": 0, "max_pending_requests": 2, "max_concurrent_requests": 3},
        "passive_health_check": {"interval": "10s", "max_failures": 5, "enforcing_consecutive_5xx": 0,
            "max_ejection_percent": 80, "base_ejection_time": "20s"},
    }));
    assert_eq!(
        full["circuitBreakers"],
        json!({"thresholds": [{"maxConnections": 0, "maxPendingRequests": 2, "maxRequests": 3}]})
    );
    assert_eq!(
        full["outlierDetection"],
        json!({"interval": "10s", "consecutive5xx": 5, "enforcingConsecutive5xx": 0, "maxEjectionPercent": 80,
            "baseEjectionTime": "20s"})
    );
    for bad in [
        json!({"limits": {"max_connections": -1}}),
        json!({"passive_health_check": {"max_ejection_percent": 101}}),
        json!({"passive_health_check": {"interval": "-1s"}}),
    ] {
        let mut definition = definition("db", 5432);
        merge(&mut definition, json!({"Config": bad}));
        let generated = Fixture::web()
            .upstream(definition, default_chain("db", "tcp"), &[])
            .generate();
        assert_eq!(names(&generated.set, ResourceType::Cluster), ["local_app"]);
        assert_eq!(generated.problems.len(), 1);
    }
}

#[test]
fn xds_4_1_load_balancing() {
    let cluster = |balancer: Value| {
        let mut node = resolver("db.default.default.dc1", json!({}));
        merge(&mut node, json!({"LoadBalancer": balancer}));
        let chain = resolver_chain("db", "tcp", node, &[target("db", "", "dc1")]);
        Fixture::web()
            .upstream(definition("db", 5432), chain, &[])
            .generate()
    };
    let name = cluster_name("db.default.dc1");
    let lb = |balancer: Value| {
        let cluster = shown(&cluster(balancer), ResourceType::Cluster, &name);
        let config = ["ringHashLbConfig", "leastRequestLbConfig"]
            .into_iter()
            .find_map(|key| cluster.get(key).cloned());
        (cluster.get("lbPolicy").cloned(), config)
    };
    assert_eq!(lb(json!({"Policy": ""})), (None, None));
    assert_eq!(
        lb(json!({"Policy": "random"})),
        (Some("RANDOM".into()), None)
    );
    assert_eq!(
        lb(json!({"Policy": "maglev"})),
        (Some("MAGLEV".into()), None)
    );
    assert_eq!(
        lb(json!({"Policy": "least_request", "LeastRequestConfig": {"ChoiceCount": 3}})),
        (
            Some("LEAST_REQUEST".into()),
            Some(json!({"choiceCount": 3}))
        )
    );
    assert_eq!(
        lb(
            json!({"Policy": "ring_hash", "RingHashConfig": {"MinimumRingSize": 20, "MaximumRingSize": 30}})
        ),
        (
            Some("RING_HASH".into()),
            Some(json!({"minimumRingSize": "20", "maximumRingSize": "30"}))
        )
    );
    for bad in [
        json!({"Policy": "fastest"}),
        json!({"Policy": "ring_hash", "RingHashConfig": {"MinimumRingSize": 40, "MaximumRingSize": 30}}),
        json!({"Policy": "least_request", "LeastRequestConfig": {"ChoiceCount": 1}}),
    ] {
        assert_eq!(cluster(bad).problems.len(), 1);
    }
}

#[test]
fn fc_065_only_passing_takes_warning_instances_out() {
    for (only_passing, warning) in [(true, "UNHEALTHY"), (false, "HEALTHY")] {
        let mut subset = target("pay", "v1", "dc1");
        merge(
            &mut subset,
            json!({"Subset": {"OnlyPassing": only_passing}}),
        );
        let chain = resolver_chain(
            "pay",
            "tcp",
            resolver("v1.pay.default.default.dc1", json!({})),
            &[subset],
        );
        let instances = [
            endpoint("10.0.0.1", Passing),
            endpoint("10.0.0.2", Warning),
            endpoint("10.0.0.3", Critical),
        ];
        let generated =
            checked(&Fixture::web().upstream(definition("pay", 5432), chain, &instances));
        let assignment = shown(
            &generated,
            ResourceType::Endpoint,
            &cluster_name("v1.pay.default.dc1"),
        );
        let statuses: Vec<_> = assignment["endpoints"][0]["lbEndpoints"]
            .as_array()
            .unwrap()
            .iter()
            .map(|e| e["healthStatus"].clone())
            .collect();
        assert_eq!(
            statuses,
            [json!("HEALTHY"), json!(warning), json!("UNHEALTHY")]
        );
    }
}

#[test]
fn targets_behind_mesh_gateways_are_not_dialled_directly() {
    let mut remote = target("db", "", "dc2");
    merge(&mut remote, json!({"MeshGateway": {"Mode": "local"}}));
    let chain = resolver_chain(
        "db",
        "tcp",
        resolver("db.default.default.dc2", json!({})),
        &[remote],
    );
    let fixture = Fixture::web().upstream(
        definition("db", 5432),
        chain,
        &[endpoint("10.0.0.1", Passing)],
    );
    let generated = fixture.generate();
    let name = cluster_name("db.default.dc2");
    assert_eq!(
        shown(&generated, ResourceType::Endpoint, &name),
        json!({"clusterName": name, "endpoints": [{}]})
    );
    assert!(
        generated.problems[0].message.contains("mesh gateways"),
        "{:?}",
        generated.problems
    );
}

#[test]
fn xds_42_a_target_in_the_own_datacenter_is_dialled_directly() {
    for mode in ["remote", "local"] {
        let mut near = target("db", "", "dc1");
        merge(&mut near, json!({"MeshGateway": {"Mode": mode}}));
        let chain = resolver_chain(
            "db",
            "tcp",
            resolver("db.default.default.dc1", json!({})),
            &[near],
        );
        let instances = [endpoint("10.0.0.1", Passing)];
        let generated =
            checked(&Fixture::web().upstream(definition("db", 5432), chain, &instances));
        let name = cluster_name("db.default.dc1");
        let assignment = shown(&generated, ResourceType::Endpoint, &name);
        assert_eq!(
            assignment["endpoints"][0]["lbEndpoints"][0]["endpoint"]["address"]["socketAddress"]["address"],
            "10.0.0.1"
        );
    }
}

#[test]
fn xds_4_2_2_peered_targets_are_awaited() {
    let mut peered = target("db", "", "dc1");
    merge(&mut peered, json!({"Peer": "east", "Datacenter": ""}));
    let chain = resolver_chain(
        "db",
        "tcp",
        resolver("db.default.default.dc1", json!({})),
        &[peered],
    );
    let generated = checked(&Fixture::web().upstream(definition("db", 5432), chain, &[]));
    assert_eq!(names(&generated.set, ResourceType::Cluster), ["local_app"]);
    assert_eq!(names(&generated.set, ResourceType::Listener), [PUBLIC]);
}

// --- listeners of upstreams, and routes ---

#[test]
fn xds_43_default_chain_with_http_has_its_route_inline() {
    let mut upstream = definition("db", 5432);
    merge(
        &mut upstream,
        json!({"Config": {"balance_outbound_connections": "exact_balance"}}),
    );
    let generated = checked(&Fixture::web().upstream(upstream, default_chain("db", "http"), &[]));
    assert!(generated.set.of(ResourceType::Route).is_empty());
    let listener = shown(&generated, ResourceType::Listener, "db:127.0.0.1:5432");
    assert_eq!(
        listener["connectionBalanceConfig"],
        json!({"exactBalance": {}})
    );
    assert_eq!(http_filters(&listener), ["router"]);
    let manager = last_filter(&listener);
    assert_eq!(manager["statPrefix"], "upstream.db.default.default.dc1");
    assert_eq!(
        manager["routeConfig"],
        json!({"name": "db", "virtualHosts": [{
            "name": "db.default.default.dc1", "domains": ["*"],
            "routes": [{"match": {"prefix": "/"}, "route": {"cluster": cluster_name("db.default.dc1")}}],
        }]})
    );
    let cluster = shown(
        &generated,
        ResourceType::Cluster,
        &cluster_name("db.default.dc1"),
    );
    assert!(cluster.get("typedExtensionProtocolOptions").is_none());
}

#[test]
fn xds_43_configured_chain_with_http_has_a_route_table() {
    let chain = resolver_chain(
        "db",
        "http",
        resolver("db.default.default.dc1", json!({"RequestTimeout": "7s"})),
        &[target("db", "", "dc1")],
    );
    let upstream = json!({"DestinationName": "db", "Datacenter": "dc9", "LocalBindPort": 5432});
    let fixture = Fixture::web().upstream(upstream, chain, &[]);
    let generated = checked(&fixture);
    let listener = shown(
        &generated,
        ResourceType::Listener,
        "db?dc=dc9:127.0.0.1:5432",
    );
    assert_eq!(
        last_filter(&listener)["rds"],
        json!({"routeConfigName": "db?dc=dc9", "configSource": {"ads": {}, "resourceApiVersion": "V3"}})
    );
    let resource = generated
        .set
        .get(ResourceType::Listener, "db?dc=dc9:127.0.0.1:5432")
        .unwrap();
    assert_eq!(resource.children(), ["db?dc=dc9"]);
    assert_eq!(
        shown(&generated, ResourceType::Route, "db?dc=dc9"),
        json!({"name": "db?dc=dc9", "virtualHosts": [{
            "name": "db?dc=dc9", "domains": ["*"],
            "routes": [{"match": {"prefix": "/"}, "route": {"cluster": cluster_name("db.default.dc1"), "timeout": "7s"}}],
        }]})
    );
    let strict = fixture.mesh(json!({"ValidateClusters": true}));
    assert_eq!(
        shown(&checked(&strict), ResourceType::Route, "db?dc=dc9")["validateClusters"],
        true
    );
}

#[test]
fn xds_4_2_4_sockets() {
    let upstream = json!({"DestinationName": "db", "LocalBindSocketPath": "/run/db.sock", "LocalBindSocketMode": "0640"});
    let generated = checked(&Fixture::web().upstream(upstream, default_chain("db", "tcp"), &[]));
    let listener = shown(&generated, ResourceType::Listener, "db:/run/db.sock");
    assert_eq!(
        listener["address"],
        json!({"pipe": {"path": "/run/db.sock", "mode": 0o640}})
    );
    let bad = json!({"DestinationName": "db", "LocalBindSocketPath": "/run/db.sock", "LocalBindSocketMode": "rw"});
    let generated = Fixture::web()
        .upstream(bad, default_chain("db", "tcp"), &[])
        .generate();
    assert!(
        generated.problems[0].message.contains("octal"),
        "{:?}",
        generated.problems
    );
}

#[test]
fn x3_escape_hatches_are_told() {
    let mut upstream = definition("db", 5432);
    merge(
        &mut upstream,
        json!({"Config": {"envoy_listener_json": "{}", "envoy_cluster_json": "{}"}}),
    );
    let generated = Fixture::web()
        .upstream(upstream, default_chain("db", "tcp"), &[])
        .generate();
    assert_eq!(generated.problems.len(), 2);
    assert!(
        generated
            .set
            .get(ResourceType::Listener, "db:127.0.0.1:5432")
            .is_some()
    );
}

/// The routes of a chain of `shop` with a router in front of the subsets v1 and v2.
fn routes(routes: Value) -> Vec<Value> {
    let nodes = json!({
        "router:shop": {"Type": "router", "Name": "shop", "Routes": routes},
        "splitter:shop": {"Type": "splitter", "Name": "shop", "Splits": [
            {"Definition": {"RequestHeaders": {"Set": {"x": "1"}}}, "Weight": 95.5, "NextNode": "resolver:v1"},
            {"Definition": {}, "Weight": 4.0, "NextNode": "resolver:v2"},
            {"Definition": {}, "Weight": 0.5, "NextNode": "resolver:v1"},
        ], "LoadBalancer": {"Policy": "maglev", "HashPolicies": [
            {"Field": "header", "FieldValue": "x-user", "Terminal": true},
            {"Field": "cookie", "FieldValue": "c", "CookieConfig": {"Session": true, "Path": "/p"}},
            {"SourceIP": true},
            {"Field": "query_parameter", "FieldValue": "q"},
        ]}},
        "resolver:v1": resolver("v1.shop.default.default.dc1", json!({"RequestTimeout": "3s"})),
        "resolver:v2": resolver("v2.shop.default.default.dc1", json!({})),
    });
    let targets = [target("shop", "v1", "dc1"), target("shop", "v2", "dc1")];
    let chain = chain("shop", "http", "router:shop", nodes, &targets);
    let generated = checked(&Fixture::web().upstream(definition("shop", 5432), chain, &[]));
    let table = shown(&generated, ResourceType::Route, "shop");
    table["virtualHosts"][0]["routes"]
        .as_array()
        .unwrap()
        .clone()
}

#[test]
fn xds_45_weights_of_a_split_and_its_hash_policies() {
    let routes = routes(json!([{"Definition": {}, "NextNode": "splitter:shop"}]));
    let (v1, v2) = (
        cluster_name("v1.shop.default.dc1"),
        cluster_name("v2.shop.default.dc1"),
    );
    assert_eq!(
        routes,
        [json!({"match": {"prefix": "/"}, "route": {
            "weightedClusters": {"clusters": [
                {"name": v1, "weight": 9550, "requestHeadersToAdd": [
                    {"header": {"key": "x", "value": "1"}, "appendAction": "OVERWRITE_IF_EXISTS_OR_ADD"},
                ]},
                {"name": v2, "weight": 400},
                {"name": v1, "weight": 50},
            ]},
            "hashPolicy": [
                {"header": {"headerName": "x-user"}, "terminal": true},
                {"cookie": {"name": "c", "path": "/p", "ttl": "0s"}},
                {"connectionProperties": {"sourceIp": true}},
                {"queryParameter": {"name": "q"}},
            ],
        }})]
    );
}

#[test]
fn xds_46_47_routes_of_a_router() {
    let routes = routes(json!([
        {"Definition": {
            "Match": {"HTTP": {
                "PathPrefix": "/a", "CaseInsensitive": true,
                "Header": [
                    {"Name": "x", "Exact": "1", "Invert": true}, {"Name": "y", "Regex": "a|b"}, {"Name": "p", "Present": true},
                    {"Name": "ignored"},
                ],
                "QueryParam": [{"Name": "q", "Exact": "1"}, {"Name": "r", "Regex": "[0-9]+"}, {"Name": "s", "Present": true}],
                "Methods": ["GET", "PUT"],
            }},
            "Destination": {
                "PrefixRewrite": "/b", "RequestTimeout": "33s", "IdleTimeout": "5s", "NumRetries": 4,
                "RetryOnConnectFailure": true, "RetryOn": ["connect-failure", "5xx"], "RetryOnStatusCodes": [401, 409],
                "RequestHeaders": {"Add": {"b": "2", "a": "1"}, "Set": {"c": "3"}, "Remove": ["d"]},
                "ResponseHeaders": {"Remove": ["e"]},
            },
        }, "NextNode": "resolver:v1"},
        {"Definition": {"Match": {"HTTP": {"PathExact": "/e", "PathPrefix": "/ignored"}}}, "NextNode": "resolver:v2"},
        {"Definition": {"Match": {"HTTP": {"PathRegex": "/r.*"}}, "Destination": {"IdleTimeout": "-1s"}}, "NextNode": "resolver:v2"},
        {"Definition": {"Match": {}}, "NextNode": "resolver:v2"},
    ]));
    let header = |key: &str, value: &str| json!({"key": key, "value": value});
    assert_eq!(
        routes[0],
        json!({
            "match": {
                "prefix": "/a", "caseSensitive": false,
                "headers": [
                    {"name": "x", "stringMatch": {"exact": "1"}, "invertMatch": true},
                    {"name": "y", "stringMatch": {"safeRegex": {"regex": "a|b"}}},
                    {"name": "p", "presentMatch": true},
                    {"name": ":method", "stringMatch": {"safeRegex": {"regex": "GET|PUT"}}},
                ],
                "queryParameters": [
                    {"name": "q", "stringMatch": {"exact": "1"}},
                    {"name": "r", "stringMatch": {"safeRegex": {"regex": "[0-9]+"}}},
                    {"name": "s", "presentMatch": true},
                ],
            },
            "route": {
                "cluster": cluster_name("v1.shop.default.dc1"), "prefixRewrite": "/b", "timeout": "33s", "idleTimeout": "5s",
                "retryPolicy": {"retryOn": "connect-failure,5xx,retriable-status-codes", "numRetries": 4,
                    "retriableStatusCodes": [401, 409]},
            },
            "requestHeadersToAdd": [
                {"header": header("a", "1")}, {"header": header("b", "2")},
                {"header": header("c", "3"), "appendAction": "OVERWRITE_IF_EXISTS_OR_ADD"},
            ],
            "requestHeadersToRemove": ["d"],
            "responseHeadersToRemove": ["e"],
        })
    );
    assert_eq!(routes[1]["match"], json!({"path": "/e"}));
    assert_eq!(routes[2]["match"], json!({"safeRegex": {"regex": "/r.*"}}));
    assert_eq!(routes[2]["route"]["idleTimeout"], "0s");
    assert_eq!(routes[3]["match"], json!({"prefix": "/"}));
    assert!(routes[3]["route"].get("timeout").is_none());
}

#[test]
fn fc_066_a_rewrite_is_handed_on_as_it_is() {
    let route = |rewrite: &str| {
        json!({"Definition": {
            "Match": {"HTTP": {"PathPrefix": "/sp"}}, "Destination": {"PrefixRewrite": rewrite},
        }, "NextNode": "resolver:v1"})
    };
    let routes = routes(json!([route("/"), route("")]));
    assert_eq!(routes[0]["route"]["prefixRewrite"], "/");
    assert!(routes[1]["route"].get("prefixRewrite").is_none());
}

#[test]
fn x3_a_broken_route_keeps_the_whole_upstream_out_or_as_it_was() {
    let table = |pattern: &str| {
        let nodes = json!({
            "router:db": {"Type": "router", "Name": "db", "Routes": [{
                "Definition": {"Match": {"HTTP": {"PathRegex": pattern}}}, "NextNode": "resolver:db",
            }]},
            "resolver:db": resolver("db.default.default.dc1", json!({})),
        });
        chain("db", "http", "router:db", nodes, &[target("db", "", "dc1")])
    };
    let generator = crate::xds::Generator::new();
    let good = Fixture::web().upstream(definition("db", 5432), table("/a+"), &[]);
    let first = generator.resources(&good.snapshot(), None);
    assert_eq!(first.problems, []);
    let broken = good.retarget("db", |target| target.chain = Part::new(table("/a(?=b)")));
    let second = generator.resources(&broken.snapshot(), Some(&first));
    assert!(
        second.problems[0].message.contains("PathRegex"),
        "{:?}",
        second.problems
    );
    for kind in ResourceType::ALL {
        assert!(second.set.shares(&first.set, kind));
    }
    let fresh = generator.resources(&broken.snapshot(), None);
    assert_eq!(names(&fresh.set, ResourceType::Cluster), ["local_app"]);
    assert_consistent(&fresh);
}
