//! Every command that the README shows is run by a test.
#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use support::ports::free_address;
use support::{DEADLINE, http, wait_until};

/// The commands that the server test below runs with the arguments that the README gives.
const RUN_HERE: [&str; 4] = [
    "cargo run --release -- serve --config examples/web-db",
    "proxycfg envoy --sidecar-for web -- -l warning",
    "proxycfg envoy --sidecar-for db --admin-bind 127.0.0.1:19001 -- -l warning --base-id 1",
    "proxycfg proxies",
];

/// A script that a test file runs, or that runs the tests.
const RUN_ELSEWHERE: [(&str, &str); 2] = [
    ("bash .ci/test", ".ci/run"),
    ("examples/web-db/run", "tests/example_web_db.rs"),
];

/// Commands that stand in a test file as they are, which runs them with ports of its own.
const RUN_BY_EXAMPLE: [&str; 5] = [
    "proxycfg validate examples/http-routing",
    "examples/http-routing/run keep",
    "proxycfg chain api",
    "curl 127.0.0.1:9180/hello",
    r#"curl -H "Authorization: Bearer $(cat examples/http-routing/admin.jwt)" 127.0.0.1:9180/admin/users"#,
];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The lines of the README's shell blocks.
fn commands() -> Vec<String> {
    let mut commands = Vec::new();
    let mut shell = false;
    for line in read("README.md").lines() {
        if line.starts_with("```") {
            shell = line == "```sh";
        } else if shell && !line.trim().is_empty() {
            commands.push(line.trim().to_owned());
        }
    }
    commands
}

#[test]
fn every_command_of_the_readme_is_run() {
    let mut covered: Vec<&str> = RUN_HERE.to_vec();
    covered.extend(RUN_ELSEWHERE.map(|(command, _)| command));
    covered.extend(RUN_BY_EXAMPLE);
    covered.sort_unstable();
    let mut shown = commands();
    shown.sort();
    assert_eq!(
        shown, covered,
        "left: what README.md shows; right: what tests run. Change the lists in this file, and run what is new"
    );
    for (command, by) in RUN_ELSEWHERE {
        let script = command.trim_start_matches("bash ");
        assert!(read(by).contains(script), "{by} doesn't run {script}");
        assert!(root().join(script).is_file(), "{script} doesn't exist");
    }
    let example = read("tests/example_http_routing.rs");
    for command in RUN_BY_EXAMPLE {
        assert!(
            example.contains(command),
            "the example's test doesn't run {command}"
        );
    }
    let mode = fs::metadata(root().join("examples/web-db/run")).unwrap();
    assert_ne!(mode.permissions().mode() & 0o111, 0, "not executable");
}

/// The arguments that the README gives to the program.
fn arguments(command: &str) -> Vec<&str> {
    let of_the_program = command
        .strip_prefix("cargo run --release -- ")
        .or_else(|| command.strip_prefix("proxycfg "))
        .unwrap_or_else(|| panic!("{command:?} doesn't run the program"));
    of_the_program.split(' ').collect()
}

fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_proxycfg"));
    command.current_dir(root()).stdin(Stdio::null());
    for name in [
        "PROXYCFG_HTTP_ADDR",
        "CONSUL_HTTP_ADDR",
        "CONSUL_HTTP_TOKEN",
    ] {
        command.env_remove(name);
    }
    command
}

/// What a command that succeeds writes.
fn succeed(command: &mut Command) -> String {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    let out = String::from_utf8_lossy(&stdout).into_owned();
    assert!(
        status.success(),
        "{command:?}: {status}\n{out}{}",
        String::from_utf8_lossy(&stderr)
    );
    out
}

/// The control plane of the README's first command, on ports of its own.
struct Serving {
    child: Child,
    http: String,
}

impl Serving {
    fn start() -> Self {
        let http = free_address();
        let mut child = program()
            .args(arguments(RUN_HERE[0]))
            .args(["--http-addr", &http, "--xds-addr", &free_address()])
            .spawn()
            .unwrap();
        wait_until("the HTTP API", DEADLINE, || {
            if let Some(status) = child.try_wait().unwrap() {
                panic!("it ended: {status}");
            }
            match http::get(&http, "/v1/status/leader") {
                Ok(answer) if answer.status == 200 => Ok(()),
                other => Err(format!("{other:?}")),
            }
        });
        Self { child, http }
    }

    /// One of the README's client commands, with more arguments before its `--`.
    fn client(&self, command: &str, more: &[&str]) -> String {
        let given = arguments(command);
        let end = given.iter().position(|a| *a == "--").unwrap_or(given.len());
        let (own, envoys) = given.split_at(end);
        succeed(
            program()
                .args(own)
                .args(["--http-addr", &self.http])
                .args(more)
                .args(envoys),
        )
    }

    fn interrupt(mut self) {
        succeed(Command::new("kill").args(["-INT", &self.child.id().to_string()]));
        let status = wait_until("the end after an interrupt", DEADLINE, || {
            let ended = self.child.try_wait().unwrap();
            ended.ok_or_else(|| "it runs on".to_owned())
        });
        assert_eq!(status.code(), Some(0), "{status}");
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // Fails if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_commands_of_the_readme_work_as_they_stand_there() {
    let serving = Serving::start();
    let [_, web, db, proxies] = RUN_HERE;
    // In place of an Envoy something that says how it was run.
    for (command, id, admin, envoys) in [
        (web, "web-sidecar-proxy", 19_000, "-l warning"),
        (db, "db-sidecar-proxy", 19_001, "-l warning --base-id 1"),
    ] {
        let run = serving.client(command, &["--envoy-binary", "echo"]);
        assert!(run.trim_end().ends_with(envoys), "{run}");
        let text = serving.client(command, &["--bootstrap"]);
        let bootstrap: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(bootstrap["node"]["id"], id);
        let port = &bootstrap["admin"]["address"]["socket_address"]["port_value"];
        assert_eq!(port, admin);
    }
    let table = serving.client(proxies, &[]);
    for id in ["web-sidecar-proxy", "db-sidecar-proxy"] {
        assert!(table.contains(id), "{table}");
    }
    serving.interrupt();
}

#[test]
fn the_commands_in_the_readmes_table_exist() {
    let readme = read("README.md");
    let mut known = 0;
    for line in readme.lines() {
        let Some(rest) = line.strip_prefix("| `proxycfg ") else {
            continue;
        };
        let (command, _) = rest.split_once('`').unwrap();
        let mut words = command.split(' ');
        let help = succeed(program().args([words.next().unwrap(), "--help"]));
        let in_code = rest.split('`').step_by(2);
        let flags = in_code.flat_map(|code| code.split(' ').filter(|word| word.starts_with("--")));
        for flag in flags {
            assert!(help.contains(flag), "{command}: there is no {flag}\n{help}");
        }
        known += 1;
    }
    assert!(known > 0, "the table is gone");
    let folder = Path::new("examples/web-db");
    let said = succeed(program().arg("validate").arg(folder));
    assert!(!said.contains("warning"), "{said}");
}
