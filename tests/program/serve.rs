//! `serve`: what it refuses, what it needs, how it ends.

use std::net::{TcpListener, UdpSocket};

use super::world::{Server, folder, run, until};

const WEB: &str =
    "service {\n  name = \"web\"\n  port = 8080\n  connect { sidecar_service {} }\n}\n";

#[test]
fn files_are_served_and_a_signal_ends_it() {
    let there = folder(&[("conf/web.hcl", WEB)]);
    let server = Server::start(there.path(), &["--config", "conf"]);
    let services = server.get("/v1/agent/services").unwrap();
    assert_eq!(services["web"]["Port"], 8080);
    assert_eq!(services["web-sidecar-proxy"]["Kind"], "connect-proxy");
    // In the catalog, and a proxy, before anybody could ask.
    assert!(server.get("/v1/catalog/service/web").unwrap()[0].is_object());
    let proxies = server.client(&["proxies", "--json"]);
    assert_eq!(proxies.code, 0, "{}", proxies.err);
    let proxies: serde_json::Value = serde_json::from_str(&proxies.out).unwrap();
    assert_eq!(proxies[0]["ID"], "web-sidecar-proxy");
    assert_eq!(proxies[0]["Source"], "local");
    // Decision R2: without a data folder.
    server.logged("a restart makes a new trust domain");
    let (code, out) = server.stop();
    assert_eq!(code, 0);
    assert_eq!(out, "", "the banner is for terminals");
}

#[test]
fn without_files_it_serves_what_comes_over_http() {
    let there = folder(&[]);
    let server = Server::start(there.path(), &[]);
    assert_eq!(
        server.get("/v1/agent/services").unwrap(),
        serde_json::json!({})
    );
    assert_eq!(server.stop().0, 0);
}

#[test]
fn interrupt_ends_it_as_terminate_does() {
    let there = folder(&[]);
    let server = Server::start(there.path(), &[]);
    server.signal("INT");
    server.logged("stopping");
    server.logged("stopped");
}

#[test]
fn bad_files_end_it_with_2_before_anything_listens() {
    let there = folder(&[
        ("conf/a.hcl", "servce { }\n"),
        (
            "conf/b.json",
            "{\"service\": {\"name\": \"web\", \"port\": 70000}}",
        ),
    ]);
    // A port that can't be bound shows that binding isn't tried.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let ended = run(
        there.path(),
        &["serve", "--config", "conf", "--http-addr", &address],
    );
    assert_eq!(ended.code, 2, "{}", ended.err);
    assert_eq!(
        ended.err,
        "conf/a.hcl:1:1: servce: unknown key; did you mean service?\n\
         conf/b.json:1:29: service.Port: 70000 is out of range (0 to 65535)\n"
    );
}

#[test]
fn fc_049_entries_that_contradict_each_other_end_it_with_the_reason() {
    let there = folder(&[(
        "a.hcl",
        "config_entries {\n  bootstrap = [\n    { Kind = \"service-router\" Name = \"web\" Routes = [{ Match { HTTP { PathPrefix = \"/\" } } }] }\n  ]\n}\n",
    )]);
    let ended = run(there.path(), &["serve", "--config", "a.hcl"]);
    assert_eq!(ended.code, 2, "{}", ended.err);
    assert!(
        ended
            .err
            .starts_with("a.hcl:3:5: config_entries.bootstrap[0]: "),
        "{}",
        ended.err
    );
    assert!(ended.err.contains("set protocol http"), "{}", ended.err);
    assert_eq!(ended.err.lines().count(), 1, "{}", ended.err);
}

#[test]
fn a_port_in_use_is_one_line_and_1() {
    let there = folder(&[]);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for (flag, other) in [("--http-addr", "--xds-addr"), ("--xds-addr", "--http-addr")] {
        let ended = run(
            there.path(),
            &["serve", flag, &address, other, "127.0.0.1:0"],
        );
        assert_eq!(ended.code, 1, "{}", ended.err);
        let expected = format!("error: {flag} {address}: the port is in use; ");
        assert!(ended.err.starts_with(&expected), "{}", ended.err);
        assert_eq!(ended.err.lines().count(), 1, "{}", ended.err);
    }
}

#[test]
fn c2_other_machines_are_let_in_only_when_told_so() {
    let there = folder(&[]);
    for flag in ["--http-addr", "--xds-addr"] {
        let ended = run(there.path(), &["serve", flag, "0.0.0.0:0"]);
        assert_eq!(ended.code, 2, "{}", ended.err);
        assert!(ended.err.contains("--insecure"), "{}", ended.err);
        assert!(ended.err.starts_with(flag), "{}", ended.err);
    }
}

#[test]
fn c2_insecure_opens_it() {
    let there = folder(&[]);
    let server = Server::start(there.path(), &["--insecure"]);
    assert_eq!(server.stop().0, 0);
}

#[test]
fn what_can_not_be_read_is_named() {
    let there = folder(&[("folder.hcl/x.txt", "")]);
    std::os::unix::fs::symlink("nowhere.hcl", there.path().join("link.hcl")).unwrap();
    for (path, mend) in [
        (
            "gone.hcl",
            "there is no such file or folder; correct the path",
        ),
        (
            "link.hcl",
            "is a symbolic link to a file that doesn't exist; mend or remove the link",
        ),
        (
            "/dev/null",
            "is not a regular file; give a .json or .hcl file",
        ),
    ] {
        let ended = run(there.path(), &["serve", "--config", path]);
        assert_eq!(ended.code, 2, "{}", ended.err);
        assert_eq!(ended.err, format!("{path}: {mend}\n"));
    }
    // A folder whose name looks like a file's is a folder in a folder.
    let ended = run(there.path(), &["validate", "."]);
    assert_eq!(ended.code, 2, "{}", ended.err);
    assert!(
        ended.err.starts_with("./link.hcl: is a symbolic link"),
        "{}",
        ended.err
    );
}

#[test]
fn flags_win_over_files_and_files_over_defaults() {
    let file =
        "node_name = \"from-file\"\ndatacenter = \"dc7\"\ndefault_intention_policy = \"deny\"\n";
    let there = folder(&[("a.hcl", file)]);
    // `Server` gives --node-name n1.
    let server = Server::start(there.path(), &["--config", "a.hcl"]);
    let own = server.get("/v1/agent/self").unwrap();
    assert_eq!(own["Config"]["NodeName"], "n1");
    assert_eq!(own["Config"]["Datacenter"], "dc7");
    assert_eq!(own["xDS"]["Ports"]["Plaintext"], server.xds.port());
}

#[test]
fn bad_flags_are_2() {
    let there = folder(&[]);
    for (args, word) in [
        (["serve", "--node-name", ""], "must not be empty"),
        (["serve", "--datacenter", "a b"], "the character ' '"),
        (["serve", "--http-addr", "8500"], "give ADDRESS:PORT"),
        (["serve", "--intention-default", "maybe"], "allow, deny"),
        (["serve", "--log-level", "web=loud"], "--log-level"),
        (["serve", "--no-such-flag", ""], "--no-such-flag"),
    ] {
        let ended = run(there.path(), &args);
        assert_eq!(ended.code, 2, "{args:?}: {}", ended.err);
        assert!(ended.err.contains(word), "{args:?}: {}", ended.err);
    }
    let same = ["serve", "--http-addr", "127.0.0.1:8502"];
    let ended = run(there.path(), &same);
    assert_eq!(ended.code, 2);
    assert!(
        ended.err.contains("give each a port of its own"),
        "{}",
        ended.err
    );
}

#[test]
fn r1_checks_of_files_are_run_and_sidecars_follow_their_service() {
    let listening = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listening.local_addr().unwrap();
    let quiet = UdpSocket::bind("127.0.0.1:0").unwrap();
    let datagrams = quiet.local_addr().unwrap();
    let file = format!(
        "services = [\n\
         {{ name = \"quiet\" check {{ udp = \"{datagrams}\" interval = \"1s\" }} }},\n\
         {{ name = \"up\" check {{ tcp = \"{address}\" interval = \"1s\" }} connect {{ sidecar_service {{}} }} }},\n\
         {{ name = \"told\" check {{ ttl = \"1h\" }} connect {{ sidecar_service {{}} }} }}\n\
         ]\n"
    );
    let there = folder(&[("a.hcl", &file)]);
    let server = Server::start(there.path(), &["--config", "a.hcl"]);
    let status = |id: &str| {
        let checks = server.get("/v1/agent/checks").unwrap();
        checks[id]["Status"].as_str().map(str::to_owned)
    };
    let becomes = |id: &str, wanted: &str| {
        until(id, || (status(id)? == wanted).then_some(()));
    };
    becomes("service:up", "passing");
    becomes("service:quiet", "passing");
    // The second check of a sidecar copies its service's state (store.md 1.4).
    becomes("service:up-sidecar-proxy:2", "passing");
    becomes("service:told-sidecar-proxy:2", "critical");
    server.put("/v1/agent/check/pass/service:told", &serde_json::json!({}));
    becomes("service:told", "passing");
    becomes("service:told-sidecar-proxy:2", "passing");
    drop(listening);
    becomes("service:up", "critical");
    becomes("service:up-sidecar-proxy:2", "critical");
    assert_eq!(server.stop().0, 0);
}

#[test]
fn c2_a_page_in_a_browser_does_not_get_in_under_a_name_of_its_own() {
    let folder = folder(&[]);
    let status = |server: &Server, host: &str| {
        let mut stream = std::net::TcpStream::connect(server.http).unwrap();
        let request =
            format!("GET /v1/agent/self HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        std::io::Write::write_all(&mut stream, request.as_bytes()).unwrap();
        let answer = std::io::read_to_string(stream).unwrap();
        answer.split(' ').nth(1).unwrap_or_default().to_owned()
    };
    let server = Server::start(folder.path(), &[]);
    assert_eq!(status(&server, "evil.example"), "403");
    assert_eq!(status(&server, "localhost:8500"), "200");
    server.stop();
    let server = Server::start(folder.path(), &["--insecure"]);
    assert_eq!(status(&server, "mesh.example"), "200");
    server.stop();
}
