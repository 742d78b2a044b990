//! Listeners that the application dials.

use super::*;

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
fn xds_3_5_how_long_envoy_waits_for_endpoints_and_routes() {
    let mut chain = default_chain("db", "http");
    chain.default = false;
    let fixture = Fixture::web()
        .config(json!({"envoy_xds_fetch_timeout_ms": 2500}))
        .upstream(definition("db", 5432), chain, &[]);
    let generated = checked(&fixture);
    let waits = json!({"ads": {}, "resourceApiVersion": "V3", "initialFetchTimeout": "2.500s"});
    let cluster = shown(
        &generated,
        ResourceType::Cluster,
        &cluster_name("db.default.dc1"),
    );
    assert_eq!(cluster["edsClusterConfig"]["edsConfig"], waits);
    let listener = shown(&generated, ResourceType::Listener, "db:127.0.0.1:5432");
    assert_eq!(last_filter(&listener)["rds"]["configSource"], waits);
}
