//! Bodies that are refused: each answer names the place and what mends it, and nothing changes.

use crate::world::World;

const REGISTER: &str = "/v1/catalog/register";
const DEREGISTER: &str = "/v1/catalog/deregister";
const CONFIG: &str = "/v1/config";
const TRANSACTION: &str = "/v1/proxycfg/transaction";
const AGENT: &str = "/v1/agent/service/register";
const CHECK: &str = "/v1/agent/check/register";
const CA: &str = "/v1/connect/ca/configuration";

/// Endpoint, body, and what the answer must have.
const TABLE: &[(&str, &str, &[&str])] = &[
    // Nothing there.
    (REGISTER, "", &["no body", "a registration"]),
    (CONFIG, " \n", &["no body", "a config entry"]),
    (TRANSACTION, "", &["no body", "a transaction"]),
    (AGENT, "", &["no body", "a service definition"]),
    (CA, "", &["no body", "CA configuration"]),
    // Syntax.
    (
        REGISTER,
        "{\"Node\": \"n1\",\n \"Address\" \"x\"}",
        &["line 2, column 12"],
    ),
    (CONFIG, "{\"Kind\": \"mesh\"", &["line 1"]),
    (
        CONFIG,
        "{\"Kind\": \"mesh\", \"Kind\": \"mesh\"}",
        &["Kind", "line 1, column 18"],
    ),
    (CONFIG, "{\"Kind\": \"mesh\"} x", &["line 1, column 18"]),
    (CA, "{\"Config\": }", &["line 1, column 12"]),
    // Another type than an object.
    (REGISTER, "[]", &["object", "list"]),
    (CONFIG, "\"mesh\"", &["object", "string"]),
    (DEREGISTER, "null", &["object"]),
    // Unknown keys.
    (
        REGISTER,
        r#"{"Node": "n1", "Address": "a", "Sevice": {}}"#,
        &["Sevice", "Service"],
    ),
    (
        REGISTER,
        r#"{"Node": "n1", "Address": "a", "Service": {"Service": "w", "Prot": 1}}"#,
        &["Service", "Prot", "Port"],
    ),
    (
        AGENT,
        r#"{"Name": "w", "Conect": {}}"#,
        &["Conect", "Connect"],
    ),
    (
        CHECK,
        r#"{"Name": "w", "TTL": "1s", "Intervall": "1s"}"#,
        &["Intervall", "Interval"],
    ),
    // Wrong types.
    (
        REGISTER,
        r#"{"Node": 1, "Address": "a"}"#,
        &["Node", "a string", "a number"],
    ),
    (
        REGISTER,
        r#"{"Node": "n", "Address": "a", "Service": {"Service": "w", "Port": "80"}}"#,
        &["Service.Port", "whole number"],
    ),
    (AGENT, r#"{"Name": "w", "Tags": "a"}"#, &["Tags"]),
    (
        CONFIG,
        r#"{"Kind": "service-resolver", "Name": "w", "ConnectTimeout": "soon"}"#,
        &["ConnectTimeout", "soon"],
    ),
    // Out of range.
    (
        REGISTER,
        r#"{"Node": "n", "Address": "a", "Service": {"Service": "w", "Port": 65536}}"#,
        &["Service.Port", "65536", "65535"],
    ),
    (
        REGISTER,
        r#"{"Node": "n", "Address": "a", "Service": {"Service": "w", "Port": -1}}"#,
        &["Service.Port", "-1"],
    ),
    (
        CONFIG,
        r#"{"Kind": "service-splitter", "Name": "w", "Splits": [{"Weight": 50}]}"#,
        &["Splits", "100"],
    ),
    // Missing or empty.
    (REGISTER, "{}", &["Node", "Address"]),
    (DEREGISTER, "{}", &["Node"]),
    (CONFIG, "{}", &["Kind"]),
    (CONFIG, r#"{"Kind": "service-defaults"}"#, &["Name"]),
    (
        CONFIG,
        r#"{"Kind": "nonsense", "Name": "x"}"#,
        &["Kind", "nonsense", "service-defaults"],
    ),
    (AGENT, "{}", &["Name"]),
    (CHECK, r#"{"Name": "c"}"#, &["exactly one of", "TTL"]),
    (
        CHECK,
        r#"{"Name": "c", "TCP": "127.0.0.1:1"}"#,
        &["Interval"],
    ),
    // Names in the mesh (decision E12), tenancy (R4), patterns (R4).
    (
        REGISTER,
        r#"{"Node": "n", "Address": "a", "Service": {"Service": "a.b", "Port": 1}}"#,
        &["Service.Service", "a.b", "letters"],
    ),
    (AGENT, r#"{"Name": "a b"}"#, &["Name", "a b", "letters"]),
    (
        CONFIG,
        r#"{"Kind": "service-defaults", "Name": "a.b"}"#,
        &["Name", "a.b"],
    ),
    (
        CONFIG,
        r#"{"Kind": "service-defaults", "Name": "w", "Namespace": "team"}"#,
        &["Namespace", "enterprise only"],
    ),
    (
        CONFIG,
        r#"{"Kind": "service-router", "Name": "w", "Routes": [{"Match": {"HTTP": {"PathRegex": "("}}}]}"#,
        &["Routes[0].Match.HTTP.PathRegex", "regular expression"],
    ),
];

#[test]
fn each_problem_is_named_with_its_place_and_nothing_changes() {
    let world = World::new();
    let before = world.index();
    for (path, body, parts) in TABLE {
        let answer = world.put_bytes(path, body.as_bytes());
        assert_eq!(answer.status, 400, "{path} {body}: {}", answer.text);
        for part in *parts {
            assert!(
                answer.text.contains(part),
                "{path} {body}: no {part:?} in {:?}",
                answer.text
            );
        }
    }
    assert_eq!(world.index(), before);
    assert!(world.local.services().is_empty());
}

#[test]
fn all_problems_are_named_at_once() {
    let world = World::new();
    let body = r#"{
  "Node": "", "Address": "10.0.0.1",
  "Service": {
    "Kind": "connect-proxy", "Service": "a.b", "Connect": {"Native": true}
  }
}"#;
    let answer = world.put_bytes(REGISTER, body.as_bytes());
    answer.refused(
        400,
        &[
            "Node:",
            "Service.Service:",
            "Service.Port:",
            "Service.Connect.Native:",
            "line 2, column 3",
            "line 4",
        ],
    );
    assert!(answer.text.lines().count() >= 5, "{}", answer.text);
}

#[test]
fn what_is_not_utf_8_is_refused() {
    let world = World::new();
    let before = world.index();
    for path in [REGISTER, DEREGISTER, CONFIG, TRANSACTION, AGENT, CHECK, CA] {
        let answer = world.put_bytes(path, b"{\"Name\": \"\xff\"}");
        answer.refused(400, &["UTF-8"]);
    }
    assert_eq!(world.index(), before);
}

#[test]
fn what_is_too_large_is_refused() {
    let world = World::with(|config| config.max_body = 10_000);
    let before = world.index();
    let fill = |size: usize| {
        let free = "x".repeat(size);
        format!(r#"{{"Kind": "proxy-defaults", "Name": "global", "Config": {{"a": "{free}"}}}}"#)
    };
    for size in [10_000, 1_000_000, 12_000_000] {
        let answer = world.put_bytes(CONFIG, fill(size).as_bytes());
        answer.refused(413, &["10000 bytes"]);
        // Also where no body is wanted.
        world
            .put_bytes("/v1/nonsense", fill(size).as_bytes())
            .refused(413, &["10000 bytes"]);
    }
    assert_eq!(world.index(), before);
    assert_eq!(world.put_bytes(CONFIG, fill(9_000).as_bytes()).status, 200);
}

#[test]
fn what_is_accepted_but_looks_wrong_is_warned_of() {
    let world = World::new();
    let body = r#"{"Node": "n", "Address": "a", "Service": {"Service": "w", "Port": 1, "Weights": {"Passing": 0, "Warning": 1}}}"#;
    let answer = world.put_bytes(REGISTER, body.as_bytes());
    assert_eq!(answer.status, 200);
    let warning = answer.header("x-proxycfg-warning");
    assert!(warning.contains("Service.Weights"), "{warning}");
}

#[test]
fn a_body_that_does_not_come_is_not_waited_for_for_ever() {
    use std::io::{Read as _, Write as _};

    let world = World::with(|config| config.body_timeout = std::time::Duration::from_millis(50));
    let mut client = std::net::TcpStream::connect(world.address).unwrap();
    let head = "PUT /v1/config HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{";
    client.write_all(head.as_bytes()).unwrap();
    let mut text = String::new();
    client.read_to_string(&mut text).unwrap();
    assert!(
        text.starts_with("HTTP/1.1 408") && text.contains("50ms"),
        "{text}"
    );
}

#[test]
fn a_refused_request_with_a_body_keeps_the_connection() {
    let world = World::new();
    let large = "x".repeat(1_000_000);
    for _ in 0..3 {
        world
            .put_bytes("/v1/nonsense", large.as_bytes())
            .refused(404, &["nonsense"]);
        world
            .put_bytes("/v1/catalog/nodes", large.as_bytes())
            .refused(405, &["PUT"]);
        world
            .put_bytes("/v1/config?ns=a", large.as_bytes())
            .refused(400, &["enterprise only"]);
    }
}
