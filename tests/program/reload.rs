//! Files that change while they are served.

use serde_json::{Value, json};

use super::world::{Server, folder, until, write};

fn service(name: &str, port: u16) -> String {
    format!("service {{\n  name = \"{name}\"\n  port = {port}\n}}\n")
}

fn defaults(name: &str, protocol: &str) -> String {
    format!("Kind = \"service-defaults\"\nName = \"{name}\"\nProtocol = \"{protocol}\"\n")
}

fn port(server: &Server, id: &str) -> Option<u64> {
    server.get(&format!("/v1/agent/service/{id}"))?["Port"].as_u64()
}

fn protocol(server: &Server, name: &str) -> Option<String> {
    let entry = server.get(&format!("/v1/config/service-defaults/{name}"))?;
    entry["Protocol"].as_str().map(str::to_owned)
}

fn expect<T: PartialEq + std::fmt::Debug>(what: &str, wanted: &T, mut get: impl FnMut() -> T) {
    until(what, || (get() == *wanted).then_some(()));
}

#[test]
fn records_follow_their_file() {
    let there = folder(&[
        ("c/web.hcl", &service("web", 80)),
        ("c/web-defaults.hcl", &defaults("web", "http")),
    ]);
    let at = there.path();
    let server = Server::start(at, &["--config", "c"]);
    assert_eq!(port(&server, "web"), Some(80));
    assert_eq!(protocol(&server, "web").as_deref(), Some("http"));

    // Edited.
    write(at, "c/web.hcl", &service("web", 81));
    write(at, "c/web-defaults.hcl", &defaults("web", "grpc"));
    expect("the new port", &Some(81), || port(&server, "web"));
    let grpc = Some("grpc".to_owned());
    expect("the new protocol", &grpc, || protocol(&server, "web"));

    // New.
    write(
        at,
        "c/db.json",
        "{\"service\": {\"name\": \"db\", \"port\": 90}}",
    );
    expect("the new service", &Some(90), || port(&server, "db"));

    // Gone.
    std::fs::remove_file(at.join("c/web.hcl")).unwrap();
    std::fs::remove_file(at.join("c/web-defaults.hcl")).unwrap();
    expect("no web", &None, || port(&server, "web"));
    expect("no defaults", &None, || protocol(&server, "web"));
    let gone = Some(json!([]));
    expect("not in the catalog", &gone, || {
        server.get("/v1/catalog/service/web")
    });
    assert_eq!(port(&server, "db"), Some(90));
}

#[test]
fn a_bad_edit_is_reported_once_and_the_last_good_state_stays() {
    let there = folder(&[
        ("c/web.hcl", &service("web", 80)),
        ("c/db.hcl", &service("db", 90)),
    ]);
    let at = there.path();
    let server = Server::start(at, &["--config", "c"]);
    write(at, "c/db.hcl", &service("db", 91));
    expect("the good edit", &Some(91), || port(&server, "db"));

    // All or nothing: the good half of a bad change stays out too.
    write(
        at,
        "c/web.hcl",
        "service {\n  name = \"web\"\n  prot = 1\n}\n",
    );
    write(at, "c/db.hcl", &service("db", 92));
    let told = "c/web.hcl:3:3: service.prot: unknown key; did you mean Port?";
    server.logged(told);
    server.logged("the last good state stays");
    assert_eq!(
        (port(&server, "web"), port(&server, "db")),
        (Some(80), Some(91))
    );

    // Looked at again, but the same.
    server.signal("HUP");
    until("the forced look", || {
        (server.count_logged(told) == 2).then_some(())
    });
    write(at, "c/web.hcl", &service("web", 82));
    expect("the mended edit", &Some(82), || port(&server, "web"));
    assert_eq!(port(&server, "db"), Some(92));
    assert!(
        server.count_logged(told) <= 3,
        "once per content and signal"
    );
}

#[test]
fn edits_that_contradict_stored_entries_change_nothing() {
    let there = folder(&[("c/a.hcl", &defaults("a", "http"))]);
    let at = there.path();
    let server = Server::start(at, &["--config", "c"]);
    server.put(
        "/v1/config",
        &json!({"Kind": "service-router", "Name": "a", "Routes": [{"Match": {"HTTP": {"PathPrefix": "/x"}}}]}),
    );
    // The router needs the protocol that the file gives.
    write(at, "c/a.hcl", &defaults("a", "tcp"));
    write(at, "c/web.hcl", &service("web", 80));
    server.logged("the last good state stays");
    assert_eq!(protocol(&server, "a").as_deref(), Some("http"));
    assert_eq!(port(&server, "web"), None);
    // Once the contradiction is gone, a signal brings the files into effect.
    let agent = ureq::agent();
    let url = format!("http://{}/v1/config/service-router/a", server.http);
    agent.delete(&url).call().unwrap();
    server.signal("HUP");
    expect("the protocol of the file", &Some("tcp".to_owned()), || {
        protocol(&server, "a")
    });
    expect("the service of the file", &Some(80), || {
        port(&server, "web")
    });
}

#[test]
fn what_is_written_over_http_stands_until_the_file_changes() {
    let there = folder(&[
        ("c/a.hcl", &defaults("a", "http")),
        ("c/b.hcl", &defaults("b", "http")),
    ]);
    let at = there.path();
    let server = Server::start(at, &["--config", "c"]);
    let entry = json!({"Kind": "service-defaults", "Name": "a", "Protocol": "grpc"});
    server.put("/v1/config", &entry);

    // Another file, a signal, and a touch are no change of this file.
    write(at, "c/b.hcl", &defaults("b", "http2"));
    expect("the other file", &Some("http2".to_owned()), || {
        protocol(&server, "b")
    });
    write(at, "c/a.hcl", &defaults("a", "http"));
    server.signal("HUP");
    server.logged("the files are unchanged");
    assert_eq!(protocol(&server, "a").as_deref(), Some("grpc"));

    // The file's entry is as it was, but the file has changed.
    write(
        at,
        "c/a.hcl",
        &format!("# again\n{}", defaults("a", "http")),
    );
    expect("the file's entry", &Some("http".to_owned()), || {
        protocol(&server, "a")
    });
}

#[test]
fn a_file_named_by_itself_is_watched_too() {
    let there = folder(&[("web.hcl", &service("web", 80))]);
    let server = Server::start(there.path(), &["--config", "web.hcl"]);
    write(there.path(), "web.hcl", &service("web", 81));
    expect("the new port", &Some(81), || port(&server, "web"));
    // Rewritten in place.
    std::fs::write(there.path().join("web.hcl"), service("web", 82)).unwrap();
    expect("the newest port", &Some(82), || port(&server, "web"));
}

#[test]
fn a_volume_that_swaps_its_folder_is_noticed() {
    let there = folder(&[
        ("c/..one/web.hcl", &service("web", 80)),
        ("c/..two/web.hcl", &service("web", 81)),
    ]);
    let config = there.path().join("c");
    let link = |from: &str, to: &str| std::os::unix::fs::symlink(from, config.join(to)).unwrap();
    link("..one", "..data");
    link("..data/web.hcl", "web.hcl");
    let server = Server::start(there.path(), &["--config", "c"]);
    assert_eq!(port(&server, "web"), Some(80));
    link("..two", "..data_new");
    std::fs::rename(config.join("..data_new"), config.join("..data")).unwrap();
    expect("the other volume", &Some(81), || port(&server, "web"));
}

#[test]
fn settings_that_need_a_restart_are_said_so() {
    let there = folder(&[("a.hcl", "datacenter = \"dc1\"\n")]);
    let server = Server::start(there.path(), &["--config", "a.hcl"]);
    write(there.path(), "a.hcl", "datacenter = \"dc2\"\n");
    server.logged("in effect after a restart: datacenter");
    let own: Value = server.get("/v1/agent/self").unwrap();
    assert_eq!(own["Config"]["Datacenter"], "dc1");
}
