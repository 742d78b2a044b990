//! Clusters of chains: failover, limits, load balancing, health, and targets elsewhere.

use super::*;

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
