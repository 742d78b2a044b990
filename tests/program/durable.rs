//! `--data-dir`: what a restart finds, what is refused, and backups.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::world::{Server, folder, program, run, until, write};

const WEB: &str = "service {\n  name = \"web\"\n  port = 8080\n  connect {\n    sidecar_service {\n      proxy { upstreams = [{ destination_name = \"db\" local_bind_port = 9191 }] }\n    }\n  }\n}\n";
const DEFAULTS: &str = "Kind = \"service-defaults\"\nName = \"web\"\nProtocol = \"http\"\n";

fn serve(at: &Path) -> Server {
    Server::start(at, &["--config", "c", "--data-dir", "data"])
}

fn roots(server: &Server) -> Value {
    server.get("/v1/connect/ca/roots").unwrap()
}

/// The resources of the sidecar of `web` with their versions, its own certificate among them.
fn resources(server: &Server) -> Value {
    let path = "/v1/proxycfg/resources/web-sidecar-proxy";
    until("resources", || server.get(path))
}

/// Waits until as many certificates are kept as are in use.
fn wait_leaves_kept(at: &Path, count: usize) {
    until("the certificates are kept", || {
        let ended = run(at, &["backup", "leaves.bak", "--data-dir", "data"]);
        assert_eq!(ended.code, 0, "{}", ended.err);
        let text = std::fs::read_to_string(at.join("leaves.bak")).unwrap();
        (text.matches("leaf-certificate/").count() == count).then_some(())
    });
}

fn protocol(server: &Server) -> Value {
    let entry = server.get("/v1/config/service-defaults/web");
    entry.unwrap()["Protocol"].clone()
}

#[test]
fn r2_a_killed_server_goes_on_where_it_was() {
    let there = folder(&[("c/web.hcl", WEB), ("c/defaults.hcl", DEFAULTS)]);
    let at = there.path();
    // A rotation before there are certificates, so that each is signed once.
    let server = Server::start(at, &["--data-dir", "data"]);
    let config =
        json!({"Provider": "consul", "Config": {"LeafCertTTL": "24h", "PrivateKeyBits": 384}});
    server.put("/v1/connect/ca/configuration", &config);
    assert_eq!(server.stop().0, 0);

    let server = serve(at);
    server.put(
        "/v1/agent/service/register",
        &json!({"Name": "db", "Port": 90, "Connect": {"SidecarService": {}}}),
    );
    let node =
        json!({"Node": "n2", "Address": "10.0.0.2", "Service": {"Service": "api", "Port": 91}});
    server.put("/v1/catalog/register", &node);
    let intentions = json!({"Kind": "service-intentions", "Name": "web", "Sources": [{"Name": "api", "Action": "deny"}]});
    server.put("/v1/config", &intentions);
    let (kept, index) = (roots(&server), server.store_index());
    assert_eq!(kept["Roots"].as_array().unwrap().len(), 2, "rotated");
    wait_leaves_kept(at, 2);
    let before = resources(&server);
    let services = server.get("/v1/agent/services");
    let id = server.get("/v1/agent/service/db").unwrap();
    server.kill();

    let server = serve(at);
    assert_eq!(roots(&server), kept);
    assert_eq!(resources(&server), before);
    assert_eq!(server.get("/v1/agent/services"), services);
    assert_eq!(server.get("/v1/agent/service/db").unwrap(), id);
    assert_eq!(
        server.get("/v1/catalog/service/api").unwrap()[0]["ServicePort"],
        91
    );
    assert_eq!(
        server.get("/v1/config/service-intentions/web").unwrap()["Sources"][0]["Name"],
        "api"
    );
    let config = server.get("/v1/connect/ca/configuration").unwrap();
    assert_eq!(config["Config"]["LeafCertTTL"], "24h");
    assert!(server.store_index() >= index);
    server.logged("the data folder is open");
    assert_eq!(server.count_logged("new trust domain"), 0);
    let metrics = server.text("/metrics");
    assert!(
        metrics.contains("proxycfg_persist_seconds_count"),
        "{metrics}"
    );
    assert!(
        metrics.contains("proxycfg_persist_failures_total 0"),
        "{metrics}"
    );
    assert_eq!(server.stop().0, 0);
}

#[test]
fn what_was_written_over_http_stands_until_its_file_changes() {
    let there = folder(&[("c/web.hcl", WEB), ("c/defaults.hcl", DEFAULTS)]);
    let at = there.path();
    let server = serve(at);
    server.put(
        "/v1/config",
        &json!({"Kind": "service-defaults", "Name": "web", "Protocol": "grpc"}),
    );
    server.put(
        "/v1/agent/service/register",
        &json!({"Name": "web", "Port": 8888}),
    );
    server.kill();

    let server = serve(at);
    let port = |server: &Server| server.get("/v1/agent/service/web").unwrap()["Port"].clone();
    assert_eq!(
        (protocol(&server), port(&server)),
        (json!("grpc"), json!(8888))
    );
    server.kill();

    // Changed and removed while nobody served.
    write(at, "c/web.hcl", &WEB.replace("8080", "8081"));
    write(at, "c/defaults.hcl", &DEFAULTS.replace("http", "http2"));
    let server = serve(at);
    assert_eq!(
        (protocol(&server), port(&server)),
        (json!("http2"), json!(8081))
    );
    server.kill();

    std::fs::remove_file(at.join("c/web.hcl")).unwrap();
    std::fs::remove_file(at.join("c/defaults.hcl")).unwrap();
    let server = serve(at);
    assert_eq!(server.get("/v1/agent/service/web"), None);
    assert_eq!(server.get("/v1/catalog/service/web"), Some(json!([])));
    assert_eq!(server.get("/v1/config/service-defaults/web"), None);
}

/// `serve` ends with 1 and one line that has the words.
#[track_caller]
fn refused(at: &Path, data: &str, words: &[&str]) {
    let ended = run(
        at,
        &[
            "serve",
            "--data-dir",
            data,
            "--node-name",
            "n1",
            "--http-addr",
            "127.0.0.1:0",
            "--xds-addr",
            "127.0.0.1:0",
            "--log-level",
            "off",
        ],
    );
    assert_eq!(ended.code, 1, "{}", ended.err);
    assert_eq!(ended.err.lines().count(), 1, "{}", ended.err);
    assert!(ended.err.starts_with("error: "), "{}", ended.err);
    for word in words {
        assert!(ended.err.contains(word), "{word} is not in: {}", ended.err);
    }
}

#[test]
fn folders_that_can_not_be_used_end_it_with_1() {
    let there = folder(&[
        ("c/web.hcl", WEB),
        ("foreign/records.redb", "mine"),
        ("file", ""),
    ]);
    let at = there.path();
    let server = serve(at);
    let pid = format!("process {}", server.pid());
    refused(
        at,
        "data",
        &[
            "data: the data folder is in use by",
            &pid,
            "give each its own --data-dir",
        ],
    );
    server.put(
        "/v1/config",
        &json!({"Kind": "service-defaults", "Name": "web"}),
    );
    server.kill();

    refused(
        at,
        "foreign",
        &[
            "foreign/records.redb: not a file of proxycfg",
            "nothing was changed",
        ],
    );
    assert_eq!(
        std::fs::read_to_string(at.join("foreign/records.redb")).unwrap(),
        "mine"
    );
    refused(at, "file", &["give the path of a folder"]);
    refused(at, "a/b", &["make the folder"]);
    // Nobody may write there, root neither.
    refused(at, "/proc/self", &["/proc/self/lock: can't be written"]);

    let path = at.join("data/records.redb");
    let good = std::fs::read(&path).unwrap();
    let cut = &good[..good.len() / 2];
    std::fs::write(&path, cut).unwrap();
    refused(
        at,
        "data",
        &["data/records.redb: the file is damaged", "proxycfg restore"],
    );
    assert_eq!(std::fs::read(&path).unwrap(), cut);

    std::fs::write(&path, &good).unwrap();
    let ended = run(
        at,
        &[
            "serve",
            "--data-dir",
            "data",
            "--datacenter",
            "dc2",
            "--http-addr",
            "127.0.0.1:0",
            "--xds-addr",
            "127.0.0.1:0",
        ],
    );
    assert_eq!(ended.code, 1, "{}", ended.err);
    assert!(
        ended.err.contains("of datacenter \"dc1\", not \"dc2\""),
        "{}",
        ended.err
    );
    serve(at).kill();
}

#[test]
fn a_full_disk_refuses_writes_until_there_is_room() {
    let there = folder(&[("c/web.hcl", WEB)]);
    let at = there.path();
    serve(at).kill();
    // No file may grow beyond this: writes fail as on a full disk.
    let limit = std::fs::metadata(at.join("data/records.redb"))
        .unwrap()
        .len()
        / 1024
        + 300;
    let mut command = Command::new("bash");
    let binary = program(at).get_program().to_owned();
    command
        .current_dir(at)
        .args([
            "-c",
            &format!("trap '' XFSZ; ulimit -S -f {limit}; exec \"$0\" \"$@\""),
        ])
        .arg(binary);
    let server = Server::start_as(command, &["--config", "c", "--data-dir", "data"]);
    let entry = |i: usize| {
        let pairs = (0..40).map(|k| (format!("k{k}"), Value::from("x".repeat(500))));
        let meta: serde_json::Map<_, _> = pairs.collect();
        json!({"Kind": "service-defaults", "Name": format!("s{i}"), "Meta": meta})
    };
    let mut kept = 0;
    let refusal = loop {
        match server.try_put("/v1/config", &entry(kept)).unwrap() {
            (200, _) => kept += 1,
            refused => break refused,
        }
        assert!(kept < 1000, "the limit doesn't hold");
    };
    assert_eq!(refusal.0, 500);
    assert!(
        refusal.1.contains("data/records.redb: can't be"),
        "{}",
        refusal.1
    );
    assert!(refusal.1.contains("make room on the disk"), "{}", refusal.1);
    let agent = server.try_put(
        "/v1/agent/service/register",
        &json!({"Name": "late", "Tags": ["x".repeat(400_000)]}),
    );
    let (status, text) = agent.unwrap();
    assert_eq!(status, 500, "{text}");
    assert!(text.contains("not kept yet"), "{text}");
    // It goes on serving what it has.
    assert_eq!(
        server.get(&format!("/v1/config/service-defaults/s{kept}")),
        None
    );
    assert!(
        server
            .get(&format!("/v1/config/service-defaults/s{}", kept - 1))
            .is_some()
    );
    server.logged("writes are refused until they can be kept");

    let raised = Command::new("prlimit")
        .args(["--pid", &server.pid().to_string(), "--fsize=unlimited"])
        .status()
        .unwrap();
    assert!(raised.success());
    let more = json!({"Kind": "service-defaults", "Name": "more"});
    server.put("/v1/config", &more);
    server.logged("writes are kept again");
    server.kill();

    let server = serve(at);
    for i in 0..kept {
        assert!(
            server
                .get(&format!("/v1/config/service-defaults/s{i}"))
                .is_some(),
            "s{i} is gone"
        );
    }
    assert_eq!(
        server.get(&format!("/v1/config/service-defaults/s{kept}")),
        None
    );
    assert!(server.get("/v1/config/service-defaults/more").is_some());
}

#[test]
fn backups_are_made_of_a_running_server_and_restored_to_a_stopped_one() {
    let there = folder(&[("c/web.hcl", WEB)]);
    let at = there.path();
    let server = serve(at);
    server.put(
        "/v1/config",
        &json!({"Kind": "service-defaults", "Name": "db", "Protocol": "http"}),
    );
    let kept = roots(&server);
    let command = |args: &[&str]| {
        let ended = run(at, args);
        (ended.code, ended.out + &ended.err)
    };
    let (code, text) = command(&["backup", "running.bak", "--data-dir", "data"]);
    assert_eq!(code, 0, "{text}");
    assert!(
        text.contains("saved the records up to store index"),
        "{text}"
    );
    server.logged("a backup was made");
    let (code, text) = command(&["restore", "running.bak", "--data-dir", "data", "--force"]);
    assert_eq!(code, 1);
    assert!(
        text.starts_with("error: data: the data folder is in use by process"),
        "{text}"
    );
    server.put(
        "/v1/config",
        &json!({"Kind": "service-defaults", "Name": "later"}),
    );
    server.kill();

    let (code, text) = command(&["backup", "stopped.bak", "--data-dir", "data"]);
    assert_eq!(code, 0, "{text}");
    for file in ["running.bak", "stopped.bak"] {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = at.join(file).metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
    let (code, text) = command(&["restore", "running.bak", "--data-dir", "data"]);
    assert_eq!(code, 1);
    assert!(
        text.contains("there are records already") && text.contains("--force"),
        "{text}"
    );

    let (code, text) = command(&["restore", "running.bak", "--data-dir", "moved"]);
    assert_eq!(code, 0, "{text}");
    let server = Server::start(at, &["--config", "c", "--data-dir", "moved"]);
    assert_eq!(roots(&server)["TrustDomain"], kept["TrustDomain"]);
    assert_eq!(roots(&server)["Roots"], kept["Roots"]);
    assert_eq!(
        server.get("/v1/config/service-defaults/db").unwrap()["Protocol"],
        "http"
    );
    assert_eq!(server.get("/v1/config/service-defaults/later"), None);
    server.kill();

    std::fs::write(at.join("broken.bak"), "{\"Proxycfg\":\"backup\",").unwrap();
    let (code, text) = command(&["restore", "broken.bak", "--data-dir", "new"]);
    assert_eq!(code, 1);
    assert!(
        text.contains("broken.bak: the backup is damaged (line 1"),
        "{text}"
    );
    assert!(!at.join("new").exists());
    let (code, text) = command(&["backup", "none.bak", "--data-dir", "nowhere"]);
    assert_eq!(code, 1);
    assert!(text.contains("nowhere: can't be read"), "{text}");
}

/// Whether all that a value says is in another, which may say more.
fn holds(value: &Value, part: &Value) -> bool {
    match (value, part) {
        (Value::Object(value), Value::Object(part)) => part
            .iter()
            .all(|(key, part)| value.get(key).is_some_and(|value| holds(value, part))),
        _ => value == part,
    }
}

/// The rows of a backup, with the state of parts in clear.
fn rows(backup: &str) -> Vec<Value> {
    use base64::Engine as _;
    let lines = backup
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let rows = lines.filter(|line| line.get("Table").is_some());
    rows.map(|mut row| {
        if row["Table"] == "state" {
            let encoded = row["Value"].as_str().unwrap();
            let decoded = base64::engine::general_purpose::STANDARD.decode(encoded);
            let mut state: Value = serde_json::from_slice(&decoded.unwrap()).unwrap();
            // Each restored authority counts on in numbers of its own.
            state.as_object_mut().unwrap().remove("Generation");
            row["Value"] = state;
        }
        row
    })
    .collect()
}

/// A backup that the first version made, with records of every table and keys that nobody uses.
#[test]
fn r2_a_backup_of_the_first_format_is_still_read() {
    let there = folder(&[]);
    let at = there.path();
    let first = include_str!("formats/backup-1.bak");
    std::fs::write(at.join("first.bak"), first).unwrap();
    for args in [
        ["restore", "first.bak", "--data-dir", "data"],
        ["backup", "again.bak", "--data-dir", "data"],
    ] {
        let ended = run(at, &args);
        assert_eq!(ended.code, 0, "{}", ended.err);
    }
    let again = rows(&std::fs::read_to_string(at.join("again.bak")).unwrap());
    let first = rows(first);
    assert_eq!(first.len(), 27);
    for row in &first {
        let found = again.iter().any(|other| holds(other, row));
        assert!(found, "{row} is not in {again:#?}");
    }
    let server = Server::start(at, &["--data-dir", "data"]);
    let of_roots = roots(&server);
    let domain = of_roots["TrustDomain"].as_str().unwrap();
    let row = first.iter().find(|row| row["Table"] == "ca-roots").unwrap();
    assert!(row.to_string().contains(domain), "{domain}: {row}");
    // The root of before its rotation is there too.
    assert_eq!(of_roots["Roots"].as_array().unwrap().len(), 2);
    let db = server.get("/v1/catalog/service/db").unwrap();
    assert_eq!(db[0]["ServicePort"], 5432);
    let router = server.get("/v1/config/service-router/db").unwrap();
    assert_eq!(router["Routes"][0]["Match"]["HTTP"]["PathPrefix"], "/a");
    assert!(server.store_index() >= 14);
    assert_eq!(server.stop().0, 0);
}
