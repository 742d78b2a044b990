//! The commands that ask a running server.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;

use serde_json::{Value, json};

use super::world::{Server, folder, program, run, until, write};

const WEB: &str =
    "service {\n  name = \"web\"\n  port = 8080\n  connect { sidecar_service {} }\n}\n";

/// An address that nobody listens on: bound, and let go of.
fn nobody() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

#[test]
fn without_a_server_each_says_so_in_one_line_and_1() {
    let there = folder(&[]);
    let address = nobody();
    for args in [
        &["proxies"][..],
        &["snapshot", "web"],
        &["snapshot", "web", "--watch"],
        &["resources", "web"],
        &["chain", "web"],
        &["envoy", "--sidecar-for", "web", "--bootstrap"],
        &["envoy", "--proxy-id", "web"],
    ] {
        let ended = run(there.path(), &[args, &["--http-addr", &address]].concat());
        assert_eq!(ended.code, 1, "{args:?}: {}", ended.err);
        let expected =
            format!("error: no server answers at http://{address} (connection refused); ");
        assert!(ended.err.starts_with(&expected), "{args:?}: {}", ended.err);
        assert_eq!(ended.err.lines().count(), 1, "{}", ended.err);
        assert_eq!(ended.out, "");
    }
}

#[test]
fn the_address_comes_from_flag_then_environment() {
    let there = folder(&[]);
    let address = nobody();
    let with = |name: &str, args: &[&str]| {
        let output = program(there.path())
            .env(name, &address)
            .args(args)
            .output();
        String::from_utf8(output.unwrap().stderr).unwrap()
    };
    for name in ["PROXYCFG_HTTP_ADDR", "CONSUL_HTTP_ADDR"] {
        let err = with(name, &["proxies"]);
        assert!(err.contains(&address), "{name}: {err}");
        let other = nobody();
        let err = with(name, &["proxies", "--http-addr", &other]);
        assert!(err.contains(&other), "{name}: {err}");
    }
}

#[test]
fn bad_arguments_are_2() {
    let there = folder(&[]);
    for (args, word) in [
        (
            &["proxies", "--http-addr", "unix:///x"][..],
            "give HOST:PORT",
        ),
        (
            &["snapshot", "web", "--pointer", "Roots"],
            "begins with '/'",
        ),
        (&["resources", "web", "--type", "clusters"], "cluster"),
        (&["envoy"], "--proxy-id"),
        (
            &["envoy", "--proxy-id", "a", "--sidecar-for", "b"],
            "cannot be used with",
        ),
        (
            &["envoy", "--proxy-id", "a", "--admin-bind", "x"],
            "--admin-bind",
        ),
        (&["validate"], "PATH"),
        (&["nonsense"], "nonsense"),
        (&[], "Usage"),
    ] {
        let ended = run(there.path(), args);
        assert_eq!(ended.code, 2, "{args:?}: {}", ended.err);
        assert!(ended.err.contains(word), "{args:?}: {}", ended.err);
    }
}

#[test]
fn version_and_help_are_0() {
    let there = folder(&[]);
    let version = run(there.path(), &["--version"]);
    assert_eq!(version.code, 0);
    assert_eq!(
        version.out,
        format!("proxycfg {}\n", env!("CARGO_PKG_VERSION"))
    );
    for command in [
        "serve",
        "validate",
        "envoy",
        "proxies",
        "snapshot",
        "resources",
        "chain",
    ] {
        let help = run(there.path(), &[command, "--help"]);
        assert_eq!(help.code, 0, "{command}");
    }
}

#[test]
fn snapshots_and_resources_of_a_proxy() {
    let there = folder(&[("web.hcl", WEB)]);
    let server = Server::start(there.path(), &["--config", "web.hcl"]);
    let proxy = "web-sidecar-proxy";
    // Its certificate may still be on its way.
    let roots = until("a snapshot", || {
        let ended = server.client(&["snapshot", proxy, "--pointer", "/Roots", "--json"]);
        (ended.code == 0).then_some(ended.out)
    });
    assert_eq!(roots.lines().count(), 1);
    let roots: Value = serde_json::from_str(&roots).unwrap();
    assert!(roots["TrustDomain"].is_string(), "{roots}");

    let whole = server.client(&["snapshot", proxy]);
    assert!(!whole.out.contains("PRIVATE KEY"), "decision C1");

    let secrets = server.client(&["resources", proxy, "--type", "secret"]);
    assert_eq!(secrets.code, 0, "{}", secrets.err);
    assert!(!secrets.out.contains("PRIVATE KEY"), "decision C1");
    let secrets: Value = serde_json::from_str(&secrets.out).unwrap();
    assert!(!secrets.as_array().unwrap().is_empty());

    let table = server.client(&["proxies"]);
    assert!(table.out.starts_with("ID "), "{}", table.out);
    assert!(table.out.contains(proxy), "{}", table.out);

    for command in ["snapshot", "resources"] {
        let ended = server.client(&[command, "ghost"]);
        assert_eq!(ended.code, 1);
        assert!(
            ended.err.starts_with("error: no proxy \"ghost\""),
            "{}",
            ended.err
        );
    }
}

#[test]
fn the_chain_of_a_service() {
    let there = folder(&[("web.hcl", WEB)]);
    let server = Server::start(there.path(), &["--config", "web.hcl"]);
    let tree = server.client(&["chain", "web"]);
    assert_eq!(tree.code, 0, "{}", tree.err);
    assert!(tree.out.contains("web.default.default.dc1"), "{}", tree.out);
    let json: Value =
        serde_json::from_str(&server.client(&["chain", "web", "--json"]).out).unwrap();
    assert_eq!(json["StartNode"], "resolver:web.default.default.dc1");
}

#[test]
fn a_watched_snapshot_is_printed_again_when_it_changes() {
    let there = folder(&[("web.hcl", WEB)]);
    let server = Server::start(there.path(), &["--config", "web.hcl"]);
    let address = server.http.to_string();
    let mut child = program(there.path())
        .args(["snapshot", "web-sidecar-proxy", "--watch", "--json"])
        .args(["--http-addr", &address])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let out = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut lines = std::io::BufRead::lines(out);
    let first: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    write(there.path(), "web.hcl", &WEB.replace("8080", "8081"));
    let second: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    assert_ne!(first, second);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn the_bootstrap_of_a_sidecar() {
    let web = WEB.replace(
        "sidecar_service {}",
        "sidecar_service { proxy { config { envoy_stats_bind_addr = \"127.0.0.1:9990\" } } }",
    );
    let defaults = "Kind = \"proxy-defaults\"\nName = \"global\"\nConfig {\n  envoy_prometheus_bind_addr = \"127.0.0.1:9991\"\n}\n";
    let there = folder(&[("c/web.hcl", &web), ("c/defaults.hcl", defaults)]);
    let server = Server::start(there.path(), &["--config", "c"]);
    let by_service = server.client(&["envoy", "--sidecar-for", "web", "--bootstrap"]);
    assert_eq!(by_service.code, 0, "{}", by_service.err);
    let by_id = server.client(&["envoy", "--proxy-id", "web-sidecar-proxy", "--bootstrap"]);
    assert_eq!(by_service.out, by_id.out);
    let by_node = [
        "envoy",
        "--proxy-id",
        "web-sidecar-proxy",
        "--node-name",
        "n1",
        "--bootstrap",
    ];
    assert_eq!(server.client(&by_node).out, by_id.out);

    let bootstrap: Value = serde_json::from_str(&by_id.out).unwrap();
    assert_eq!(bootstrap["node"]["id"], "web-sidecar-proxy");
    assert_eq!(bootstrap["node"]["cluster"], "web");
    assert_eq!(bootstrap["node"]["metadata"]["node_name"], "n1");
    let port = format!("\"port_value\":{}", server.xds.port());
    let text = bootstrap.to_string();
    assert!(text.contains(&port), "where xDS is: {text}");
    assert!(text.contains("9990"), "the proxy's own settings: {text}");
    assert!(text.contains("9991"), "those of all proxies: {text}");

    let of_form = |form: &str| {
        let args = [
            "envoy",
            "--sidecar-for",
            "web",
            "--bootstrap",
            "--xds-protocol",
            form,
        ];
        let ended = server.client(&args);
        let bootstrap: Value = serde_json::from_str(&ended.out).unwrap();
        bootstrap["dynamic_resources"]["ads_config"]["api_type"].clone()
    };
    assert_eq!(of_form("delta"), "DELTA_GRPC");
    assert_eq!(of_form("sotw"), "GRPC");
    let help = server.client(&["envoy", "--help"]);
    assert!(help.out.contains("api_type GRPC"), "{}", help.out);

    for (args, word) in [
        (
            ["envoy", "--sidecar-for", "db", "--bootstrap"],
            "no sidecar is registered for the service id \"db\"",
        ),
        (
            ["envoy", "--proxy-id", "db", "--bootstrap"],
            "no service with the id \"db\"",
        ),
        (
            ["envoy", "--proxy-id", "web", "--bootstrap"],
            "use --sidecar-for web",
        ),
    ] {
        let ended = server.client(&args);
        assert_eq!(ended.code, 1, "{args:?}");
        assert!(ended.err.contains(word), "{args:?}: {}", ended.err);
    }
}

#[test]
fn envoy_is_run_with_the_bootstrap_and_its_arguments() {
    let there = folder(&[("web.hcl", WEB)]);
    let server = Server::start(there.path(), &["--config", "web.hcl"]);
    // Shows what it was given.
    let fake = there.path().join("fake-envoy");
    std::fs::write(
        &fake,
        "#!/bin/sh\ncat \"$2\"\nrm \"$2\"\necho\nshift 2\necho \"$@\"\n",
    )
    .unwrap();
    std::fs::set_permissions(&fake, std::fs::Permissions::from_mode(0o755)).unwrap();
    let address = server.http.to_string();
    let fake = fake.to_str().unwrap();
    let ended = run(
        there.path(),
        &[
            "envoy",
            "--sidecar-for",
            "web",
            "--envoy-binary",
            fake,
            "--http-addr",
            &address,
            "--",
            "-l",
            "warning",
        ],
    );
    assert_eq!(ended.code, 0, "{}", ended.err);
    let mut lines = ended.out.lines();
    let bootstrap: Value = serde_json::from_str(lines.next().unwrap()).unwrap();
    assert_eq!(bootstrap["node"]["id"], "web-sidecar-proxy");
    assert_eq!(
        lines.next(),
        Some("--use-dynamic-base-id --drain-strategy immediate -l warning")
    );

    let ended = server.client(&[
        "envoy",
        "--sidecar-for",
        "web",
        "--envoy-binary",
        "/no/envoy",
    ]);
    assert_eq!(ended.code, 1);
    assert!(ended.err.contains("can't run /no/envoy"), "{}", ended.err);
    assert!(ended.err.contains("--envoy-binary"), "{}", ended.err);
}

#[test]
fn several_sidecars_of_one_service_are_told_apart_by_id() {
    let there = folder(&[("web.hcl", WEB)]);
    let server = Server::start(there.path(), &["--config", "web.hcl"]);
    server.put(
        "/v1/agent/service/register",
        &json!({"Kind": "connect-proxy", "Name": "web-second", "Port": 21500,
                "Proxy": {"DestinationServiceName": "web", "DestinationServiceID": "web"}}),
    );
    let ended = server.client(&["envoy", "--sidecar-for", "web", "--bootstrap"]);
    assert_eq!(ended.code, 1);
    assert!(
        ended.err.contains("choose one with --proxy-id"),
        "{}",
        ended.err
    );
}
