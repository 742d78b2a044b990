//! The control plane as a program of its own, killed under writes and traffic, and started again on the same folder.

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::identity::{own_certificates, trusted_serials};
use crate::member::Member;
use crate::support::apps::{http_name, tcp_name};
use crate::support::envoy::Envoy;
use crate::support::http::{self, Response};
use crate::support::ports::free_port;
use crate::support::{DEADLINE, wait_until};
use crate::traffic::{Traffic, from_now_on};

/// A `proxycfg serve` that can be killed and started again: its folder and its ports stay.
struct Program {
    folder: TempDir,
    http: String,
    xds: String,
    child: Option<Child>,
}

impl Program {
    fn start() -> Self {
        let address = || format!("127.0.0.1:{}", free_port());
        let mut program = Self {
            folder: tempfile::tempdir().unwrap(),
            http: address(),
            xds: address(),
            child: None,
        };
        program.start_again();
        program
    }

    fn start_again(&mut self) {
        let child = Command::new(env!("CARGO_BIN_EXE_proxycfg"))
            .current_dir(self.folder.path())
            .args(["serve", "--data-dir", "data", "--node-name", "n1"])
            .args(["--http-addr", &self.http, "--xds-addr", &self.xds])
            .args(["--log-level", "warn"])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        self.child = Some(child);
        wait_until("the HTTP API", DEADLINE, || {
            self.get("/v1/status/leader").map(drop)
        });
    }

    fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    fn get(&self, path: &str) -> Result<Value, String> {
        match http::get(&self.http, path) {
            Ok(response) if response.status == 200 => Ok(response.json()),
            Ok(response) => Err(format!("{}: {}", response.status, response.body)),
            Err(error) => Err(error.to_string()),
        }
    }

    fn put(&self, path: &str, body: &Value) -> std::io::Result<Response> {
        http::request(&self.http, "PUT", path, &[], &body.to_string())
    }

    fn must_put(&self, path: &str, body: &Value) {
        let response = self.put(path, body).unwrap();
        assert_eq!(response.status, 200, "{path}: {}", response.body);
    }

    fn envoy(&self, member: &Member) -> Envoy {
        let admin = format!("127.0.0.1:{}", free_port());
        let output = Command::new(env!("CARGO_BIN_EXE_proxycfg"))
            .args(["envoy", "--proxy-id", &member.proxy_id(), "--bootstrap"])
            .args(["--http-addr", &self.http, "--admin-bind", &admin])
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{error}");
        let bootstrap = serde_json::from_slice(&output.stdout).unwrap();
        let envoy = Envoy::start(&bootstrap, &member.proxy_id());
        envoy.wait_ready();
        envoy
    }

    /// Waits until as many certificates are kept as are in use.
    fn wait_leaves_kept(&self, count: usize) {
        let file = self.folder.path().join("backup");
        wait_until("the certificates are kept", DEADLINE, || {
            let status = Command::new(env!("CARGO_BIN_EXE_proxycfg"))
                .current_dir(self.folder.path())
                .args(["backup", "backup", "--data-dir", "data"])
                .stdout(Stdio::null())
                .status();
            assert!(status.unwrap().success());
            let text = std::fs::read_to_string(&file).unwrap();
            match text.matches("leaf-certificate/").count() {
                found if found == count => Ok(()),
                found => Err(format!("{found} of {count}")),
            }
        });
    }

    /// Waits until an Envoy's stream is up to date with a proxy's snapshot.
    fn wait_connected(&self, members: &[&Member]) {
        wait_until("every Envoy is connected", DEADLINE, || {
            let proxies = self.get("/v1/proxycfg/proxies")?;
            for member in members {
                let proxy = proxies
                    .as_array()
                    .unwrap()
                    .iter()
                    .find(|proxy| proxy["ID"] == member.proxy_id().as_str());
                let proxy = proxy.ok_or_else(|| format!("no {}", member.proxy_id()))?;
                let streams = proxy["Streams"].as_array().map_or(0, Vec::len);
                if proxy["Ready"] != true || streams != 1 {
                    return Err(proxy.to_string());
                }
            }
            Ok(())
        });
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The versions of the clusters and listeners that an Envoy has, by name.
fn versions(envoy: &Envoy) -> BTreeMap<String, String> {
    fn collect(value: &Value, found: &mut BTreeMap<String, String>) {
        match value {
            Value::Object(members) => {
                let version = members.get("version_info").and_then(Value::as_str);
                let of = members.get("cluster").or_else(|| members.get("listener"));
                let name = of.and_then(|of| of["name"].as_str());
                if let (Some(version), Some(name)) = (version, name) {
                    found.insert(name.to_owned(), version.to_owned());
                }
                members.values().for_each(|value| collect(value, found));
            }
            Value::Array(items) => items.iter().for_each(|item| collect(item, found)),
            _ => {}
        }
    }
    let mut found = BTreeMap::new();
    collect(&envoy.config_dump(), &mut found);
    found
}

/// What an Envoy counts when something is taken from it, changed or refused.
fn disturbances(envoy: &Envoy) -> BTreeMap<String, u64> {
    envoy.stats(
        "^(cluster_manager.cluster_(added|removed|modified)|listener_manager.listener_(added|removed|modified)|.*update_rejected|.*membership_change|.*ssl_context_update_by_sds)$",
    )
}

/// The certificates that an Envoy presents, and those that it trusts.
fn certificates(envoy: &Envoy) -> (Vec<(String, String)>, Vec<String>) {
    (own_certificates(envoy), trusted_serials(envoy))
}

#[test]
fn r2_a_killed_control_plane_comes_back_unnoticed() {
    let mut program = Program::start();
    program.must_put(
        "/v1/config",
        &json!({"Kind": "service-defaults", "Name": "api", "Protocol": "http"}),
    );
    let db = Member::tcp("db", "db-1");
    let api = Member::http("api", "api-1");
    let web = Member::tcp("web", "web-1").upstream("db").upstream("api");
    let members = [&web, &db, &api];
    for member in members {
        program.must_put("/v1/agent/service/register", &member.definition());
    }
    let allow = json!([{"Name": "web", "Action": "allow"}]);
    program.must_put(
        "/v1/config",
        &json!({"Kind": "service-intentions", "Name": "db", "Sources": allow}),
    );
    let envoys = members.map(|member| program.envoy(member));
    let (to_db, to_api) = (web.address_of("db"), web.address_of("api"));
    from_now_on("db-1", || tcp_name(&to_db));
    from_now_on("api-1", || http_name(&to_api));
    program.wait_connected(&members);
    program.wait_leaves_kept(members.len());
    let traffic = [
        (Traffic::start(move || tcp_name(&to_db)), "db-1"),
        (Traffic::start(move || http_name(&to_api)), "api-1"),
    ];
    let roots = program.get("/v1/connect/ca/roots").unwrap();
    let known: Vec<_> = envoys
        .iter()
        .map(|envoy| (versions(envoy), certificates(envoy), disturbances(envoy)))
        .collect();
    for (versions, (own, trusted), disturbances) in &known {
        assert!(
            versions.len() > 1 && own.len() == 1 && trusted.len() == 1,
            "{known:?}"
        );
        assert!(
            disturbances["cluster_manager.cluster_added"] > 0,
            "{known:?}"
        );
    }

    let (stop, acknowledged) = (AtomicBool::new(false), AtomicUsize::new(0));
    for round in 0..4_u64 {
        stop.store(false, Ordering::SeqCst);
        std::thread::scope(|scope| {
            let (of_writer, stop, acknowledged) = (&program, &stop, &acknowledged);
            let writer = scope.spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    let number = acknowledged.load(Ordering::SeqCst) + 1;
                    let entry = json!({"Kind": "service-defaults", "Name": "noise", "Meta": {"n": number.to_string()}});
                    match of_writer.put("/v1/config", &entry) {
                        Ok(response) if response.status == 200 => {
                            acknowledged.store(number, Ordering::SeqCst);
                        }
                        Ok(response) => panic!("{}: {}", response.status, response.body),
                        // Killed.
                        Err(_) => return,
                    }
                }
            });
            let before = acknowledged.load(Ordering::SeqCst);
            wait_until("writes", DEADLINE, || {
                let now = acknowledged.load(Ordering::SeqCst);
                if now > before + 3 {
                    Ok(())
                } else {
                    Err(format!("{now}"))
                }
            });
            // At another moment of a write in each round.
            std::thread::sleep(Duration::from_millis(7 * round));
            let pid = program.child.as_ref().unwrap().id().to_string();
            let killed = Command::new("kill").args(["-KILL", &pid]).status().unwrap();
            assert!(killed.success());
            stop.store(true, Ordering::SeqCst);
            writer.join().unwrap();
        });
        program.kill();
        traffic.iter().for_each(|(traffic, _)| traffic.more(20));
        program.start_again();
        program.wait_connected(&members);
        traffic.iter().for_each(|(traffic, _)| traffic.more(20));
        let noise = program.get("/v1/config/service-defaults/noise").unwrap();
        let number: usize = noise["Meta"]["n"].as_str().unwrap().parse().unwrap();
        assert!(number >= acknowledged.load(Ordering::SeqCst), "{noise}");
        acknowledged.store(number, Ordering::SeqCst);
    }

    let again = program.get("/v1/connect/ca/roots").unwrap();
    assert_eq!(again, roots);
    for (envoy, (versions_before, certificates_before, disturbed)) in envoys.iter().zip(&known) {
        assert_eq!(&versions(envoy), versions_before);
        assert_eq!(&certificates(envoy), certificates_before);
        assert_eq!(&disturbances(envoy), disturbed);
        assert_eq!(envoy.stat("control_plane.connected_state"), 1);
        envoy.assert_nothing_rejected();
    }
    for (traffic, answer) in traffic {
        traffic.assert_always(answer);
    }
}
