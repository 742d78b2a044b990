//! Requests that are refused for what they are, not for their bodies: queries, paths, methods, headers. Each answer names
//! the place and what mends it, and nothing changes.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use serde_json::json;

use crate::world::{PATIENCE, World};

/// Method, path with its query, status, and what the answer must have.
type Case = (&'static str, &'static str, u16, &'static [&'static str]);

#[rustfmt::skip]
const TABLE: &[Case] = &[
    // Queries.
    ("GET", "/v1/catalog/nodes?index=-1", 400, &["\"index\"", "-1"]),
    ("GET", "/v1/catalog/nodes?index=18446744073709551616", 400, &["\"index\""]),
    ("GET", "/v1/catalog/nodes?index=1.5", 400, &["\"index\""]),
    ("GET", "/v1/catalog/nodes?index=1&wait=-5s", 400, &["\"wait\"", "-5s"]),
    ("GET", "/v1/catalog/nodes?index=1&wait=99999999999999999999s", 400, &["\"wait\""]),
    ("GET", "/v1/catalog/nodes?index=1&wait=5%20s", 400, &["\"wait\"", "5 s"]),
    ("GET", "/v1/catalog/nodes?dc=dc2", 500, &["No path to datacenter", "dc1"]),
    ("GET", "/v1/catalog/nodes?ns=team", 400, &["\"ns\"", "enterprise only", "leave it out"]),
    ("GET", "/v1/catalog/nodes?partition=p", 400, &["\"partition\"", "leave it out"]),
    ("GET", "/v1/catalog/nodes?ap=p", 400, &["\"ap\"", "leave it out"]),
    ("GET", "/v1/health/service/web?sg=group", 400, &["\"sg\"", "leave it out"]),
    ("GET", "/v1/health/service/web?passing=maybe", 400, &["\"passing\"", "maybe"]),
    ("GET", "/v1/health/service/web?filter=(", 400, &["\"filter\"", "column"]),
    ("GET", "/v1/health/service/web?filter=Service.Port%20==%2099999999999999999999", 400, &["\"filter\""]),
    ("GET", "/v1/health/service/web?filter=Nope%20==%201", 400, &["\"filter\"", "Nope"]),
    ("GET", "/v1/health/service/web?filter=Service.Tags%20matches%20%22(%22", 400, &["\"filter\""]),
    ("GET", "/v1/catalog/service/web?node-meta=a", 400, &["node-meta", "KEY:VALUE"]),
    ("GET", "/v1/catalog/nodes?filter=%c0%af", 400, &["query"]),
    ("GET", "/v1/health/state/..", 400, &["\"..\"", "passing"]),
    ("GET", "/v1/discovery-chain/web?dc=dc2", 500, &["No path to datacenter", "dc1"]),
    // Paths: what looks like a way out of a folder is a name, or none.
    ("GET", "/v1/../../etc/passwd", 404, &["/v1/catalog"]),
    ("GET", "/v1/%2e%2e/%2e%2e/etc/passwd", 404, &["/v1/catalog"]),
    ("GET", "//v1/catalog/nodes", 404, &["/v1/catalog"]),
    ("GET", "/v1/catalog/nodes/", 404, &["/v1/catalog"]),
    ("GET", "/V1/CATALOG/NODES", 404, &["/v1/catalog"]),
    ("GET", "/v1/agent/service/..%2f..%2fetc%2fpasswd", 404, &["../../etc/passwd"]),
    ("GET", "/v1/config/..%2f..%2fetc/passwd", 400, &["../../etc", "service-defaults"]),
    ("GET", "/v1/config/service-defaults/..%2f..%2fetc%2fpasswd", 404, &["../../etc/passwd"]),
    ("GET", "/v1/agent/connect/ca/leaf/..%2fweb", 400, &["../web", "letters"]),
    ("GET", "/v1/agent/connect/ca/leaf/web%00", 400, &["letters"]),
    ("GET", "/v1/agent/connect/ca/leaf/%ff", 400, &[]),
    ("GET", "/v1/proxycfg/snapshot/..%2f..%2fx", 404, &["../../x"]),
    ("PUT", "/v1/agent/service/deregister/..%2fx", 404, &["../x"]),
    ("PUT", "/v1/agent/check/pass/..%2fx", 404, &["../x"]),
    // Methods.
    ("POST", "/v1/catalog/nodes", 405, &["POST", "/v1/catalog/nodes"]),
    ("DELETE", "/v1/catalog/register", 405, &["DELETE"]),
    ("PATCH", "/v1/config", 405, &["PATCH"]),
    ("BREW", "/v1/config", 405, &["BREW"]),
    ("PUT", "/v1/health/service/web", 405, &["PUT"]),
    ("DELETE", "/v1/proxycfg/proxies", 405, &["DELETE"]),
    // What can't be deleted.
    ("DELETE", "/v1/config/nonsense/web", 400, &["nonsense", "service-defaults"]),
    ("DELETE", "/v1/config/service-defaults/web?cas=x", 400, &["\"cas\"", "\"x\""]),
    ("DELETE", "/v1/config/service-defaults/web?cas=-1", 400, &["\"cas\""]),
];

/// Sends a request as it stands, which a client library wouldn't; status and text of the answer.
fn raw(world: &World, method: &str, target: &str, headers: &str) -> (u16, String) {
    let mut client = TcpStream::connect(world.address).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let head = format!(
        "{method} {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n{headers}\r\n"
    );
    // The server may cut the connection before it has read all.
    let _ = client.write_all(head.as_bytes());
    let mut answer = Vec::new();
    let _ = client.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let status = answer.split(' ').nth(1).and_then(|s| s.parse().ok());
    let (_, text) = answer.split_once("\r\n\r\n").unwrap_or_default();
    (status.unwrap_or(0), text.to_owned())
}

#[test]
fn each_request_is_told_what_is_wrong_with_it() {
    let world = World::new();
    let before = world.index();
    assert!(TABLE.len() >= 40);
    let mut wrong = Vec::new();
    for (method, target, wanted, parts) in TABLE {
        let (status, text) = raw(&world, method, target, "");
        let missing: Vec<_> = parts.iter().filter(|p| !text.contains(**p)).collect();
        if status != *wanted || !missing.is_empty() || text.is_empty() {
            wrong.push(format!(
                "{method} {target}: {status} {text:?}, without {missing:?}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(world.index(), before);
}

#[test]
fn headers_say_the_same_as_queries_and_are_refused_as_they() {
    let world = World::new();
    for (name, value) in [
        ("x-consul-namespace", "team"),
        ("x-consul-partition", "other"),
    ] {
        let answer = world.ask("GET", "/v1/catalog/nodes", &[(name, value)], None);
        answer.refused(400, &[value, "enterprise only", "leave it out"]);
    }
    // More of them than any client sends.
    let long = format!("x-filler: {}\r\n", "x".repeat(1 << 20));
    let many: String = (0..1_000).map(|n| format!("x-{n}: {n}\r\n")).collect();
    for headers in [long, many] {
        let (status, _) = raw(&world, "GET", "/v1/catalog/nodes", &headers);
        assert!(matches!(status, 0 | 400 | 431), "{status}");
    }
    assert_eq!(world.get("/v1/catalog/nodes").status, 200);
}

#[test]
fn what_is_no_http_is_answered_or_cut_and_the_server_goes_on() {
    let world = World::new();
    let before = world.index();
    let huge_target = format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "a".repeat(1 << 20));
    let cases: &[&[u8]] = &[
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\x00\x00\x00\x00\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /v1/catalog/nodes HTTP/9.9\r\n\r\n",
        b"GET /v1/catalog/nodes HTTP/1.1\r\nHost: x\r\nbad header\r\n\r\n",
        b"GET /v1/\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
        b"PUT /v1/config HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"PUT /v1/config HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        b"PUT /v1/config HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 5\r\n\r\n{}",
        b"PUT /v1/config HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
        huge_target.as_bytes(),
    ];
    for case in cases {
        let mut client = TcpStream::connect(world.address).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        // The server may have cut the connection already.
        let _ = client.write_all(case);
        let _ = client.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = client.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer);
        let shown = String::from_utf8_lossy(&case[..case.len().min(80)]);
        assert!(
            answer.is_empty() || answer.starts_with("HTTP/1.1 4"),
            "{shown}\n{answer}"
        );
    }
    assert_eq!(world.index(), before);
    assert_eq!(world.get("/v1/catalog/nodes").status, 200);
}

#[test]
fn bodies_that_are_made_to_exhaust_are_refused() {
    let world = World::new();
    let before = world.index();
    let config = "/v1/config";
    let nested = format!("{}1{}", "{\"a\":".repeat(200), "}".repeat(200));
    let wrapped = format!(r#"{{"Kind": "proxy-defaults", "Name": "global", "Config": {nested}}}"#);
    world
        .put_bytes(config, wrapped.as_bytes())
        .refused(400, &["flatten it"]);
    world
        .put_bytes(config, "[".repeat(1_000_000).as_bytes())
        .refused(400, &["flatten it"]);
    let number = r#"{"Kind": "service-defaults", "Name": "w", "MaxInboundConnections": 9223372036854775808}"#;
    world
        .put_bytes(config, number.as_bytes())
        .refused(400, &["9223372036854775808", "64-bit"]);
    let negative = r#"{"Kind": "service-resolver", "Name": "w", "RequestTimeout": "-1s"}"#;
    world
        .put_bytes(config, negative.as_bytes())
        .refused(400, &["RequestTimeout", "must not be negative"]);
    let twice =
        r#"{"Kind": "service-defaults", "Name": "w", "Protocol": "http", "Protocol": "tcp"}"#;
    world
        .put_bytes(config, twice.as_bytes())
        .refused(400, &["twice", "remove one"]);
    let control = "{\"Kind\": \"service-defaults\", \"Name\": \"w\u{1}\"}";
    world
        .put_bytes(config, control.as_bytes())
        .refused(400, &["control character"]);
    // A hundred thousand problems in one body are not a hundred thousand lines.
    let splits = r#"{"Weight": 1, "Servce": "a"},"#.repeat(50_000);
    let body = format!(
        r#"{{"Kind": "service-splitter", "Name": "w", "Splits": [{}]}}"#,
        splits.trim_end_matches(',')
    );
    let answer = world.put_bytes(config, body.as_bytes());
    answer.refused(400, &["Splits[0].Servce", "mend what is named before"]);
    assert!(
        answer.text.lines().count() < 250,
        "{}",
        answer.text.lines().count()
    );
    assert_eq!(world.index(), before);
    world.accept(config, &json!({"Kind": "service-defaults", "Name": "w"}));
}
