//! The example `examples/web-db/run` shows what the README says it shows.
#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

mod support;

use std::fs::OpenOptions;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use support::envoy::binary;
use support::ports::free_port;

/// Where the example's applications and sidecars listen; its files say so.
const PORTS: [u16; 5] = [8080, 8081, 9191, 21_000, 21_001];

#[test]
fn the_example_carries_traffic_refuses_it_and_carries_it_again() {
    // The ports are fixed: one run of this test at a time on a machine.
    let path = std::env::temp_dir().join("proxycfg-example-web-db.lock");
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

    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let output = Command::new(root.join("examples/web-db/run"))
        .env("PROXYCFG", env!("CARGO_BIN_EXE_proxycfg"))
        .env("ENVOY", binary())
        .env("HTTP_PORT", free_port().to_string())
        .env("XDS_PORT", free_port().to_string())
        .env("WEB_ADMIN_PORT", free_port().to_string())
        .env("DB_ADMIN_PORT", free_port().to_string())
        .env_remove("CONSUL_HTTP_TOKEN")
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&output.stdout);
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{out}\n{err}");

    // In this order.
    let mut rest = &*out;
    for expected in [
        "web-sidecar-proxy",
        "db says hello; you asked for /hello",
        "connect_authz",
        ".allowed: ",
        "refused",
        "db says hello; you asked for /again",
        "update_rejected: 0",
        "done",
    ] {
        let Some((_, after)) = rest.split_once(expected) else {
            panic!("{expected:?} is missing or too early:\n{out}\n{err}");
        };
        rest = after;
    }
    // It cleans up after itself.
    for port in PORTS {
        TcpListener::bind(("127.0.0.1", port))
            .unwrap_or_else(|error| panic!("port {port} is still in use: {error}"));
    }
}
