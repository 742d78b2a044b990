//! The example `examples/http-routing/run` shows what the README says it shows.
#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

mod support;

use std::fs::{File, OpenOptions};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use support::envoy::binary;
use support::ports::{free_port, free_ports};
use support::{DEADLINE, http, wait_until};

/// Where the example's applications and sidecars listen; its files say so.
const PORTS: [u16; 9] = [8180, 8181, 8182, 8183, 9180, 21_010, 21_011, 21_012, 21_013];

/// What the README shows.
const COMMANDS: [&str; 5] = [
    "proxycfg validate examples/http-routing",
    "examples/http-routing/run keep",
    "proxycfg chain api",
    "curl 127.0.0.1:9180/hello",
    r#"curl -H "Authorization: Bearer $(cat examples/http-routing/admin.jwt)" 127.0.0.1:9180/admin/users"#,
];

/// The ports are fixed: one run of the example at a time on a machine.
fn alone() -> File {
    let path = std::env::temp_dir().join("proxycfg-example-http-routing.lock");
    let lock = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .unwrap();
    lock.lock().unwrap();
    for port in PORTS {
        if let Err(error) = TcpListener::bind(("127.0.0.1", port)) {
            panic!(
                "the example needs port {port}, which something else on this machine uses: {error}"
            );
        }
    }
    lock
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The script, and the control plane's HTTP port.
fn script() -> (Command, u16) {
    let http = free_port();
    let mut command = Command::new(root().join("examples/http-routing/run"));
    command
        .env("PROXYCFG", env!("CARGO_BIN_EXE_proxycfg"))
        .env("ENVOY", binary())
        .env("HTTP_PORT", http.to_string())
        .env("XDS_PORT", free_port().to_string())
        .env("ADMIN_PORT", free_ports(4).to_string())
        .env_remove("CONSUL_HTTP_TOKEN");
    (command, http)
}

/// The program, run as a command of the README says.
fn program(command: &str) -> Command {
    let arguments = command.strip_prefix("proxycfg ").unwrap();
    let mut program = Command::new(env!("CARGO_BIN_EXE_proxycfg"));
    program.args(arguments.split(' ')).current_dir(root());
    program
}

/// The script cleans up after itself.
fn assert_all_closed() {
    for port in PORTS {
        TcpListener::bind(("127.0.0.1", port))
            .unwrap_or_else(|error| panic!("port {port} is still in use: {error}"));
    }
}

/// How many answers a line of the script's counts.
fn count(out: &str, name: &str) -> u32 {
    let ending = format!(" answers by {name}");
    let line = out.lines().find_map(|line| line.strip_suffix(&ending));
    line.map_or(0, |number| number.parse().unwrap())
}

#[test]
fn the_example_routes_splits_fails_over_and_asks_for_tokens() {
    let _alone = alone();
    let (mut command, _) = script();
    let output = command.output().unwrap();
    let out = String::from_utf8_lossy(&output.stdout);
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{out}\n{err}");

    // What stands between two headings.
    let part = |number: u32| {
        let (_, rest) = out.split_once(&format!("{number}. ")).unwrap();
        let end = format!("{}. ", number + 1);
        rest.split_once(&end).map_or(rest, |(part, _)| part)
    };
    let has = |number: u32, expected: &[&str]| {
        let mut rest = part(number);
        for text in expected {
            let Some((_, after)) = rest.split_once(text) else {
                panic!("{text:?} is missing or too early in part {number}:\n{out}\n{err}");
            };
            rest = after;
        }
    };
    has(2, &["router", "splitter", "resolver"]);
    // Five standard deviations of 500 requests.
    for number in [4, 9] {
        let (old, new) = (count(part(number), "api-v1"), count(part(number), "api-v2"));
        assert_eq!(old + new, 500, "{out}");
        assert!(new.abs_diff(100) <= 45, "{out}");
    }
    has(5, &["200 api-v2 answers /\n", "200 admin answers /status"]);
    assert_eq!(part(6).matches("200 api-v").count(), 4, "{out}");
    has(
        7,
        &["403 ", "403 ", "403 ", "403 ", "200 admin answers /users"],
    );
    let (old, new) = (count(part(8), "api-v1"), count(part(8), "api-v2"));
    assert_eq!((old, new), (0, 100), "{out}");
    has(10, &["update_rejected: 0", "done"]);
    assert_all_closed();
}

struct Kept(Child);

impl Drop for Kept {
    fn drop(&mut self) {
        let id = self.0.id().to_string();
        // As Ctrl-C does, so that it ends what it started.
        let _ = Command::new("kill").args(["-TERM", &id]).status();
        let _ = self.0.wait();
    }
}

#[test]
fn the_kept_example_answers_as_the_readme_says() {
    let [validate, keep, chain, hello, admin] = COMMANDS;
    let checked = program(validate).output().unwrap();
    let said = format!("{checked:?}");
    assert!(
        checked.status.success() && !said.contains("warning"),
        "{said}"
    );

    let _alone = alone();
    let (mut command, http_port) = script();
    let argument = keep.strip_prefix("examples/http-routing/run ").unwrap();
    let log = Path::new(env!("CARGO_TARGET_TMPDIR")).join("http-routing-kept.log");
    let output = File::create(&log).unwrap();
    let child = command
        .arg(argument)
        .stdout(output.try_clone().unwrap())
        .stderr(output)
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let mut kept = Kept(child);
    wait_until("the example is up", 2 * DEADLINE, || {
        let text = std::fs::read_to_string(&log).unwrap();
        if let Some(status) = kept.0.try_wait().unwrap() {
            panic!("it ended: {status}\n{text}");
        }
        if text.contains("Ctrl-C ends everything") {
            Ok(())
        } else {
            Err(text)
        }
    });
    let address = format!("127.0.0.1:{http_port}");
    let chain = program(chain)
        .args(["--http-addr", &address])
        .output()
        .unwrap();
    let tree = String::from_utf8_lossy(&chain.stdout);
    assert!(
        chain.status.success() && tree.contains("/admin/"),
        "{chain:?}"
    );
    // As curl does it.
    let (address, path) = hello
        .strip_prefix("curl ")
        .unwrap()
        .split_once('/')
        .unwrap();
    let answer = http::get(address, &format!("/{path}")).unwrap();
    assert!(answer.body.contains("answers /hello"), "{answer:?}");
    let file = admin
        .split_once("$(cat ")
        .unwrap()
        .1
        .split_once(')')
        .unwrap()
        .0;
    let token = std::fs::read_to_string(root().join(file)).unwrap();
    let bearer = format!("Bearer {}", token.trim());
    let (address, path) = admin.rsplit_once(' ').unwrap().1.split_once('/').unwrap();
    let headers = [("Authorization", bearer.as_str())];
    let answer = http::request(address, "GET", &format!("/{path}"), &headers, "").unwrap();
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(answer.body.contains("admin answers /users"), "{answer:?}");
    drop(kept);
    assert_all_closed();
}
