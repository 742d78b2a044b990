//! Paths, methods, metrics.

use serde_json::json;

use crate::world::World;

#[test]
fn unknown_paths_and_methods_are_told() {
    let world = World::new();
    world
        .get("/v1/nonsense")
        .refused(404, &["/v1/nonsense", "/v1/catalog"]);
    world.get("/").refused(404, &["/v1/catalog"]);
    world.put("/v1/kv/a", &json!(1)).refused(404, &["/v1/kv/a"]);
    let wrong = world.get("/v1/catalog/register");
    wrong.refused(405, &["GET", "/v1/catalog/register"]);
    assert_eq!(wrong.header("allow"), "PUT");
    world.post("/v1/config", b"{}").refused(405, &["POST"]);
    let wrong = world.put("/v1/catalog/nodes", &json!(1));
    wrong.refused(405, &["PUT"]);
    assert!(wrong.header("allow").contains("GET"));
}

#[test]
fn names_in_paths_are_decoded() {
    let world = World::new();
    world.accept(
        "/v1/catalog/register",
        &json!({"Node": "a b/c", "Address": "x"}),
    );
    let node = world.get("/v1/catalog/node/a%20b%2Fc").json();
    assert_eq!(node["Node"]["Node"], "a b/c");
    assert_eq!(world.get("/v1/catalog/node/%ff").status, 400);
    assert_eq!(world.get("/v1/catalog/nodes?filter=%ff").status, 400);
}

#[test]
fn metrics_count_requests_by_route_and_show_the_engine() {
    let world = World::new();
    for name in ["a", "b", "c"] {
        world.get(&format!("/v1/catalog/service/{name}"));
    }
    world.get("/v1/nonsense");
    let answer = world.get("/metrics");
    assert_eq!(answer.status, 200);
    let text = &answer.text;
    let line = |start: &str| {
        let found = text.lines().find(|line| line.starts_with(start));
        found
            .unwrap_or_else(|| panic!("no {start} in {text}"))
            .to_owned()
    };
    let requests = line(
        "proxycfg_http_requests_total{method=\"GET\",route=\"/v1/catalog/service/{name}\",status=\"200\"}",
    );
    assert!(requests.ends_with(" 3"), "{requests}");
    line("proxycfg_http_requests_total{method=\"GET\",route=\"other\",status=\"404\"} 1");
    assert_eq!(
        line("proxycfg_store_index"),
        format!("proxycfg_store_index {}", world.index())
    );
    line("proxycfg_http_requests_in_flight 1");
    line("proxycfg_http_request_seconds_bucket");
    line("proxycfg_steps_total");
    assert!(text.ends_with("# EOF\n"));
    assert_eq!(world.get("/v1/agent/metrics?format=prometheus").status, 200);
    world
        .get("/v1/agent/metrics")
        .refused(400, &["format=prometheus"]);
}

#[test]
fn c2_where_whoever_connects_is_let_in_other_hosts_are_refused_if_wanted() {
    let world = World::with(|config| config.local_hosts_only = true);
    let ask = |method: &str, path: &str, host: &str, body| {
        world.ask(method, path, &[("host", host)], body)
    };
    let node = json!({"Node": "n9", "Address": "10.0.0.9"});
    let evil = ask(
        "PUT",
        "/v1/catalog/register",
        "evil.example:8500",
        Some(&node),
    );
    evil.refused(403, &["evil.example:8500", "localhost", "--tokens"]);
    ask("GET", "/v1/nonsense", "evil.example", None).refused(403, &["evil.example"]);
    assert_eq!(world.get("/v1/catalog/node/n9").text, "null");
    for own in ["localhost:8500", "[::1]:8500", "127.0.0.1"] {
        assert_eq!(ask("GET", "/v1/agent/self", own, None).status, 200, "{own}");
    }

    let open = World::new();
    let other = open.ask("GET", "/v1/agent/self", &[("host", "mesh.example")], None);
    assert_eq!(other.status, 200);
}
