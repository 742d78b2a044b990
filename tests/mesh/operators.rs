//! What operators add to a sidecar: rate limits, tracing, and whole resources of their own.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::member::Member;
use crate::support::apps::{App, http_name};
use crate::support::http::Client;
use crate::support::{DEADLINE, wait_until};
use crate::traffic::from_now_on;
use crate::world::Mesh;

fn static_cluster(name: &str, app: &App) -> Value {
    let address = json!({"socket_address": {"address": "127.0.0.1", "port_value": app.port()}});
    json!({
        "name": name, "type": "STATIC", "connect_timeout": "1s",
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}]},
    })
}

fn typed(kind: &str, mut message: Value) -> Value {
    message["@type"] = json!(format!("type.googleapis.com/envoy.{kind}"));
    message
}

/// A listener that hands requests on to a cluster and marks the answers.
fn listener(name: &str, port: &str, cluster: &str, mark: &str) -> Value {
    let port: u16 = port.parse().unwrap();
    let routes = json!({
        "name": name,
        "response_headers_to_add": [{"header": {"key": "x-custom", "value": mark}}],
        "virtual_hosts": [{"name": name, "domains": ["*"], "routes": [
            {"match": {"prefix": "/"}, "route": {"cluster": cluster}},
        ]}],
    });
    let router = typed("extensions.filters.http.router.v3.Router", json!({}));
    let manager = typed(
        "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        json!({
            "stat_prefix": name, "route_config": routes,
            "http_filters": [{"name": "envoy.filters.http.router", "typed_config": router}],
        }),
    );
    let filter =
        json!({"name": "envoy.filters.network.http_connection_manager", "typed_config": manager});
    typed(
        "config.listener.v3.Listener",
        json!({
            "name": name,
            "address": {"socket_address": {"address": "127.0.0.1", "port_value": port}},
            "filter_chains": [{"filters": [filter]}],
        }),
    )
}

#[test]
fn requests_are_limited_and_traced() {
    let mesh = Mesh::start();
    let zipkin = json!({
        "collector_cluster": "collector", "collector_endpoint": "/spans", "collector_endpoint_version": "HTTP_JSON",
    });
    let provider = json!({
        "name": "envoy.tracers.zipkin", "typed_config": typed("config.trace.v3.ZipkinConfig", zipkin),
    });
    let tracing = typed(
        "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager.Tracing",
        json!({"random_sampling": {"value": 100.0}, "provider": provider}),
    );
    let collector = App::http("collector");
    let api = Member::http("api", "api-1")
        .config(json!({"envoy_listener_tracing_json": tracing.to_string()}));
    let web = Member::tcp("web", "web-1").upstream("api");
    mesh.protocol("api", "http");
    mesh.register(&api);
    mesh.register(&web);
    let api_envoy = mesh.envoy_with(&api, |bootstrap| {
        let clusters = bootstrap.pointer_mut("/static_resources/clusters");
        let clusters = clusters.unwrap().as_array_mut().unwrap();
        clusters.push(static_cluster("collector", &collector));
    });
    let envoys = [api_envoy, mesh.envoy(&web)];
    let address = web.address_of("api");
    let mut client = Client::new(&address);
    let mut statuses = |path: &str, count: usize| {
        let mut counts: BTreeMap<u16, usize> = BTreeMap::new();
        for _ in 0..count {
            *counts
                .entry(client.get(path, &[]).unwrap().status)
                .or_default() += 1;
        }
        counts
    };
    // Spans are sent by fives.
    wait_until("spans", DEADLINE, || {
        statuses("/traced", 5);
        match collector.served() {
            0 => Err("none yet".to_owned()),
            _ => Ok(()),
        }
    });

    mesh.entry(json!({
        "Kind": "service-defaults", "Name": "api", "Protocol": "http", "RateLimits": {"InstanceLevel": {
            "RequestsPerSecond": 1, "RequestsMaxBurst": 5,
            "Routes": [
                {"PathExact": "/busy", "RequestsPerSecond": 1_000, "RequestsMaxBurst": 1_000},
                {"PathPrefix": "/seldom/", "RequestsPerSecond": 1, "RequestsMaxBurst": 1},
            ],
        }},
    }));
    wait_until("too many requests", DEADLINE, || {
        let counts = statuses("/", 10);
        if counts.contains_key(&429) {
            Ok(())
        } else {
            Err(format!("{counts:?}"))
        }
    });
    // Each limit of paths has tokens of its own.
    assert_eq!(statuses("/busy", 50), [(200, 50)].into());
    let counts = statuses("/seldom/a", 50);
    assert!(counts[&200] < 25 && counts[&429] > 25, "{counts:?}");
    mesh.protocol("api", "http");
    from_now_on("200", || {
        let response = Client::new(&address).get("/seldom/a", &[])?;
        Ok(response.status.to_string())
    });
    mesh.assert_calm(&envoys.each_ref());
}

#[test]
fn resources_of_operators_take_the_place_of_generated_ones() {
    let mesh = Mesh::start();
    mesh.protocol("api", "http");
    let api = Member::http("api", "api-1");
    let web = Member::tcp("web", "web-1").upstream("api");
    mesh.register(&api);
    mesh.register(&web);
    let envoys = [mesh.envoy(&api), mesh.envoy(&web)];
    let address = web.address_of("api");
    let marked = |address: &str| -> std::io::Result<String> {
        let response = Client::new(address).get("/", &[])?;
        let mark = response.header("x-custom").unwrap_or("nothing");
        Ok(format!("{} {mark}", response.status))
    };
    from_now_on("api-1", || http_name(&address));

    let elsewhere = App::http("elsewhere");
    let cluster = typed(
        "config.cluster.v3.Cluster",
        static_cluster("local_app", &elsewhere),
    );
    let api = api.config(json!({"envoy_local_cluster_json": cluster.to_string()}));
    mesh.register(&api);
    from_now_on("elsewhere", || http_name(&address));

    // Access rules and mutual TLS are put into a listener of one's own.
    let public = listener("mine", &api.public.to_string(), "local_app", "inbound");
    let api = api.config(json!({"envoy_public_listener_json": public.to_string()}));
    mesh.register(&api);
    from_now_on("200 inbound", || marked(&address));
    from_now_on("api-1", || http_name(&address));
    Client::new(&api.public_address())
        .get("/", &[])
        .unwrap_err();
    mesh.intention("web", "api", "deny");
    from_now_on("403 inbound", || marked(&address));
    mesh.delete_entry("service-intentions", "api");
    from_now_on("200 inbound", || marked(&address));

    // On the caller's side, a cluster with its instances, and the listener before it.
    let ads = json!({"ads": {}, "resource_api_version": "V3"});
    let cluster = typed(
        "config.cluster.v3.Cluster",
        json!({"name": "my-api", "type": "EDS", "connect_timeout": "9s", "eds_cluster_config": {"eds_config": ads}}),
    );
    let mut web = web;
    let port = address.rsplit_once(':').unwrap().1;
    let outbound = listener("my-api-listener", port, "my-api", "outbound");
    web.configure_upstream(
        "api",
        json!({"envoy_cluster_json": cluster.to_string(), "envoy_listener_json": outbound.to_string()}),
    );
    mesh.register(&web);
    from_now_on("200 inbound,outbound", || {
        let response = Client::new(&address).get("/", &[])?;
        let marks = response.headers.iter().filter(|(key, _)| key == "x-custom");
        let marks: Vec<&str> = marks.map(|(_, value)| value.as_str()).collect();
        Ok(format!("{} {}", response.status, marks.join(",")))
    });
    let dump = envoys[1].admin_text("/config_dump?resource=dynamic_active_clusters");
    assert!(dump.contains("my-api") && dump.contains("9s"), "{dump}");
    mesh.assert_calm(&envoys.each_ref());
}
