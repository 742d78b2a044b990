//! Tokens: who may ask for what (decision C2).

use std::collections::BTreeSet;

use proxycfg::server::access::TokenFile;
use serde_json::{Value, json};

use super::world::{Answer, World};

const TOKENS: &str = r#"
tokens = [
  { name = "web", secret = "web-web-web-web-web", watch = ["web"], write = ["web"] },
  { name = "db", secret = "db-db-db-db-db-db-db", watch = ["db"], write = ["db"] },
  { name = "reader", secret = "reader-reader-reader", read = ["*"] },
  { name = "ops", secret = "ops-ops-ops-ops-ops-ops", operator = true },
]
"#;

const WEB: &str = "web-web-web-web-web";
const DB: &str = "db-db-db-db-db-db-db";
const READER: &str = "reader-reader-reader";
const OPS: &str = "ops-ops-ops-ops-ops-ops";

/// A server with a file of tokens, two services with sidecars, and entries of each.
fn guarded() -> (World, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens.hcl");
    std::fs::write(&path, TOKENS).unwrap();
    let world = World::guarded(|clock| std::sync::Arc::new(TokenFile::start(path, clock).unwrap()));
    for name in ["web", "db"] {
        let service = json!({
            "Name": name, "Port": 80, "Check": {"CheckID": format!("{name}-ttl"), "TTL": "1h"},
            "Connect": {"SidecarService": {}}
        });
        let registered = ask(
            &world,
            "PUT",
            "/v1/agent/service/register",
            Some(OPS),
            Some(service),
        );
        assert_eq!(registered.status, 200, "{}", registered.text);
        let defaults = json!({"Kind": "service-defaults", "Name": name, "Protocol": "http"});
        let intentions = json!({
            "Kind": "service-intentions", "Name": name, "Sources": [{"Name": name, "Action": "allow"}]
        });
        for entry in [defaults, intentions] {
            let written = ask(&world, "PUT", "/v1/config", Some(OPS), Some(entry));
            assert_eq!(written.status, 200, "{}", written.text);
        }
    }
    world.flush();
    (world, folder)
}

fn ask(
    world: &World,
    method: &str,
    path: &str,
    token: Option<&str>,
    body: Option<Value>,
) -> Answer {
    let headers: Vec<(&str, &str)> = token
        .iter()
        .map(|token| ("X-Consul-Token", *token))
        .collect();
    world.ask(method, path, &headers, body.as_ref())
}

/// Every route that there is: with what `db` may not have of `web`, and what it may not write.
const OF_WEB: &[(&str, &str)] = &[
    ("GET", "/v1/agent/service/web"),
    ("PUT", "/v1/agent/service/deregister/web"),
    ("PUT", "/v1/agent/check/pass/web-ttl"),
    ("PUT", "/v1/agent/check/warn/web-ttl"),
    ("PUT", "/v1/agent/check/fail/web-ttl"),
    ("PUT", "/v1/agent/check/deregister/web-ttl"),
    ("GET", "/v1/agent/connect/ca/leaf/web"),
    ("GET", "/v1/catalog/service/web"),
    ("GET", "/v1/catalog/connect/web"),
    ("GET", "/v1/health/service/web"),
    ("GET", "/v1/health/service/web-sidecar-proxy"),
    ("GET", "/v1/health/connect/web"),
    ("GET", "/v1/health/checks/web"),
    ("GET", "/v1/discovery-chain/web"),
    (
        "GET",
        "/v1/connect/intentions/match?by=destination&name=web",
    ),
    (
        "GET",
        "/v1/connect/intentions/check?source=db&destination=web",
    ),
    (
        "GET",
        "/v1/connect/intentions/exact?source=db&destination=web",
    ),
    (
        "PUT",
        "/v1/connect/intentions/exact?source=db&destination=web",
    ),
    (
        "DELETE",
        "/v1/connect/intentions/exact?source=db&destination=web",
    ),
    ("GET", "/v1/config/service-defaults/web"),
    ("DELETE", "/v1/config/service-defaults/web"),
    ("GET", "/v1/proxycfg/snapshot/web-sidecar-proxy"),
    ("GET", "/v1/proxycfg/resources/web-sidecar-proxy"),
    ("PUT", "/v1/proxycfg/renew/web-sidecar-proxy"),
];

const OF_ALL: &[(&str, &str)] = &[
    ("GET", "/v1/catalog/nodes"),
    ("GET", "/v1/health/node/agent-1"),
    ("GET", "/v1/health/state/any"),
];

const OF_OPERATORS: &[(&str, &str)] = &[
    ("GET", "/metrics"),
    ("GET", "/v1/agent/metrics?format=prometheus"),
    ("GET", "/v1/connect/ca/configuration"),
    ("PUT", "/v1/connect/ca/configuration"),
    ("PUT", "/v1/proxycfg/ca/rotate"),
    ("PUT", "/v1/proxycfg/transaction"),
    ("PUT", "/v1/catalog/register"),
    ("PUT", "/v1/catalog/deregister"),
];

/// Lists, of which everybody gets what is theirs.
const LISTS: &[&str] = &[
    "/v1/agent/services",
    "/v1/agent/checks",
    "/v1/catalog/services",
    "/v1/catalog/node/agent-1",
    "/v1/catalog/node-services/agent-1",
    "/v1/config/service-defaults",
    "/v1/connect/intentions",
    "/v1/proxycfg/proxies",
];

const OF_EVERYBODY: &[&str] = &[
    "/v1/status/leader",
    "/v1/status/peers",
    "/v1/agent/self",
    "/v1/catalog/datacenters",
    "/v1/connect/ca/roots",
    "/v1/agent/connect/ca/roots",
];

/// Writes whose body says whose they are.
const BY_BODY: &[(&str, &str)] = &[
    ("PUT", "/v1/agent/service/register"),
    ("PUT", "/v1/agent/check/register"),
    ("PUT", "/v1/agent/check/update/web-ttl"),
    ("PUT", "/v1/config"),
];

fn everything() -> impl Iterator<Item = (&'static str, &'static str)> {
    let gets = LISTS.iter().chain(OF_EVERYBODY).map(|path| ("GET", *path));
    let all = OF_WEB
        .iter()
        .chain(OF_ALL)
        .chain(OF_OPERATORS)
        .chain(BY_BODY);
    all.copied().chain(gets)
}

/// The methods of each route, read from the server's sources.
fn routes() -> BTreeSet<(String, String)> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/server/http");
    let mut routes = BTreeSet::new();
    for file in std::fs::read_dir(folder).unwrap() {
        let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap();
        for call in code.split(".route(").skip(1) {
            let literal = call.trim_start().strip_prefix('"').unwrap();
            let (route, rest) = literal.split_once('"').unwrap();
            // To the end of the router's line, or of its function.
            let end = [".route(", ".merge(", ";", "\n}"]
                .iter()
                .filter_map(|end| rest.find(end));
            let handlers = &rest[..end.min().unwrap_or(rest.len())];
            let before = routes.len();
            for method in [
                "get", "put", "post", "delete", "patch", "any", "head", "options",
            ] {
                let call = format!("{method}(");
                let at = handlers.find(&call);
                if at.is_some_and(|at| {
                    !handlers[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_')
                }) {
                    routes.insert((method.to_uppercase(), route.to_owned()));
                }
            }
            assert!(routes.len() > before, "{route}: {handlers}");
        }
    }
    routes
}

/// Else a route that is added would be tried with no wrong token.
#[test]
fn c2_these_tables_hold_every_route() {
    let (world, _folder) = guarded();
    for (method, path) in everything() {
        let body = (method == "PUT").then(|| json!({}));
        ask(&world, method, path, Some(OPS), body);
    }
    let metrics = ask(&world, "GET", "/metrics", Some(OPS), None).text;
    let label = |line: &str, name: &str| {
        let rest = line.split_once(&format!("{name}=\""))?.1;
        Some(rest.split_once('"')?.0.to_owned())
    };
    let lines = metrics
        .lines()
        .filter(|line| line.starts_with("proxycfg_http_requests_total{"));
    let asked = lines.filter_map(|line| Some((label(line, "method")?, label(line, "route")?)));
    let asked: BTreeSet<_> = asked.collect();
    let missing: Vec<_> = routes().difference(&asked).cloned().collect();
    assert!(missing.is_empty(), "in no table of this file: {missing:?}");
}

#[test]
fn c2_strangers_are_refused_everywhere() {
    let (world, _folder) = guarded();
    for (method, path) in everything().chain([("GET", "/v1/nothing/here")]) {
        for token in [None, Some("wrong"), Some("web-web-web-web-we"), Some("")] {
            let body = (method == "PUT").then(|| json!({}));
            let answer = ask(&world, method, path, token, body);
            answer.refused(403, &["ACL not found"]);
        }
    }
}

#[test]
fn c2_another_services_token_reads_and_writes_nothing() {
    let (world, _folder) = guarded();
    for (method, path) in OF_WEB.iter().chain(OF_ALL).chain(OF_OPERATORS) {
        let body = (*method == "PUT").then(|| json!({}));
        let answer = ask(&world, method, path, Some(DB), body);
        answer.refused(403, &["Permission denied: token \"db\" lacks the right to"]);
    }
    for path in LISTS {
        let list = ask(&world, "GET", path, Some(DB), None);
        assert_eq!(list.status, 200, "{path}: {}", list.text);
        assert!(list.text.contains("db"), "{path}: {}", list.text);
        assert!(!list.text.contains("web"), "{path}: {}", list.text);
    }
    let update = json!({"Status": "passing"});
    for (path, body) in [
        ("/v1/agent/service/register", json!({"Name": "web"})),
        (
            "/v1/agent/service/register",
            json!({"Name": "db", "ID": "web"}),
        ),
        (
            "/v1/agent/service/register",
            json!({"Name": "db-x", "Kind": "connect-proxy", "Port": 1, "Proxy": {"DestinationServiceName": "web"}}),
        ),
        (
            "/v1/agent/check/register",
            json!({"Name": "c", "ServiceID": "web", "TTL": "1s"}),
        ),
        (
            "/v1/agent/check/register",
            json!({"Name": "of the node", "TTL": "1s"}),
        ),
        (
            "/v1/agent/check/register",
            json!({"CheckID": "web-ttl", "Name": "c", "ServiceID": "db", "TTL": "1s"}),
        ),
        ("/v1/agent/check/update/web-ttl", update),
        (
            "/v1/config",
            json!({"Kind": "service-defaults", "Name": "web", "Protocol": "tcp"}),
        ),
        (
            "/v1/config",
            json!({"Kind": "service-intentions", "Name": "web", "Sources": [{"Name": "db", "Action": "allow"}]}),
        ),
        (
            "/v1/config",
            json!({"Kind": "proxy-defaults", "Name": "global"}),
        ),
        ("/v1/config", json!({"Kind": "mesh"})),
    ] {
        let answer = ask(&world, "PUT", path, Some(DB), Some(body.clone()));
        assert_eq!(answer.status, 403, "{path} {body}: {}", answer.text);
    }
    let web = ask(&world, "GET", "/v1/agent/service/web", Some(OPS), None).json();
    assert_eq!(web["Service"], "web");
    let entry = ask(
        &world,
        "GET",
        "/v1/config/service-defaults/web",
        Some(OPS),
        None,
    )
    .json();
    assert_eq!(entry["Protocol"], "http");
}

#[test]
fn c2_the_own_token_is_enough_for_the_own_service() {
    let (world, _folder) = guarded();
    for (method, path) in OF_WEB {
        if *method == "GET" && !path.contains("/exact?") {
            let answer = ask(&world, method, path, Some(WEB), None);
            assert_eq!(answer.status, 200, "{path}: {}", answer.text);
        }
    }
    for path in OF_EVERYBODY.iter().chain(LISTS) {
        let answer = ask(&world, "GET", path, Some(WEB), None);
        assert_eq!(answer.status, 200, "{path}: {}", answer.text);
    }
    for (path, body) in [
        ("/v1/agent/check/pass/web-ttl", Value::Null),
        (
            "/v1/config",
            json!({"Kind": "service-resolver", "Name": "web"}),
        ),
        (
            "/v1/agent/service/register",
            json!({"Name": "web", "Port": 81}),
        ),
        ("/v1/agent/service/deregister/web", Value::Null),
    ] {
        let answer = ask(&world, "PUT", path, Some(WEB), Some(body));
        assert_eq!(answer.status, 200, "{path}: {}", answer.text);
    }
    let nobody = ask(
        &world,
        "GET",
        "/v1/config/proxy-defaults/global",
        Some(WEB),
        None,
    );
    assert_eq!(
        nobody.status, 404,
        "allowed, but there is none: {}",
        nobody.text
    );
}

#[test]
fn c2_readers_read_everything_and_stand_for_nobody() {
    let (world, _folder) = guarded();
    for (method, path) in OF_ALL {
        assert_eq!(
            ask(&world, method, path, Some(READER), None).status,
            200,
            "{path}"
        );
    }
    for path in ["/v1/catalog/service/web", "/v1/discovery-chain/db"] {
        assert_eq!(
            ask(&world, "GET", path, Some(READER), None).status,
            200,
            "{path}"
        );
    }
    for (method, path) in [
        ("GET", "/v1/agent/connect/ca/leaf/web"),
        ("GET", "/v1/proxycfg/resources/web-sidecar-proxy"),
        ("PUT", "/v1/agent/service/deregister/web"),
        ("GET", "/v1/connect/ca/configuration"),
    ] {
        ask(&world, method, path, Some(READER), None).refused(403, &["token \"reader\" lacks"]);
    }
}

#[test]
fn c2_tokens_come_as_consuls_clients_send_them() {
    let (world, _folder) = guarded();
    let path = "/v1/catalog/service/web";
    let bearer = format!("Bearer {WEB}");
    for headers in [
        [("X-Consul-Token", WEB)],
        [("Authorization", bearer.as_str())],
    ] {
        assert_eq!(
            world.ask("GET", path, &headers, None).status,
            200,
            "{headers:?}"
        );
    }
    let in_query = format!("{path}?token={WEB}");
    assert_eq!(world.ask("GET", &in_query, &[], None).status, 200);
    // The header wins, so that a link can't lend a request other rights.
    let other = [("X-Consul-Token", DB)];
    assert_eq!(world.ask("GET", &in_query, &other, None).status, 403);
    assert_eq!(
        world
            .ask("GET", path, &[("Authorization", "Basic eDp5")], None)
            .status,
        403
    );
}
