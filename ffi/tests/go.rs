//! The Go bindings' own tests, run on the library of this build: plain, with the race detector and cgo's checks, and the
//! example that a real Envoy connects to. They need Go, 1.26 or later.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

mod support;

use std::path::Path;
use std::process::Command;

use support::{SYSTEM_LIBRARIES, library, run, top};

/// The go command in a folder, with the library of this build.
fn go(folder: &Path, args: &[&str]) -> Command {
    let archive = library("libproxycfg.a");
    let mut go = Command::new("go");
    go.current_dir(folder)
        .args(args)
        .env(
            "CGO_CFLAGS",
            format!("-O2 -I{}", top().join("include").display()),
        )
        .env(
            "CGO_LDFLAGS",
            format!("{} {}", archive.display(), SYSTEM_LIBRARIES.join(" ")),
        )
        .env("GOTOOLCHAIN", "local");
    go
}

fn bindings() -> std::path::PathBuf {
    top().join("bindings/go")
}

const TEST: [&str; 4] = ["test", "-tags", "proxycfg_external", "-count=1"];

#[test]
fn formatted_and_vetted() {
    let unformatted = run(Command::new("gofmt").arg("-l").arg(bindings()));
    assert_eq!(unformatted, "");
    run(&mut go(
        &bindings(),
        &["vet", "-tags", "proxycfg_external", "./..."],
    ));
}

#[test]
fn no_dependencies() {
    let modules = run(&mut go(&bindings(), &["list", "-m", "all"]));
    assert_eq!(modules.trim(), "github.com/proxycfg/proxycfg/bindings/go");
}

#[test]
fn go_tests() {
    run(&mut go(
        &bindings(),
        &[
            TEST.as_slice(),
            &["-bench", ".", "-benchtime", "10x", "./..."],
        ]
        .concat(),
    ));
}

#[test]
fn go_tests_with_race_detector_and_pointer_checks() {
    run(go(
        &bindings(),
        &[TEST.as_slice(), &["-race", "-short", "./..."]].concat(),
    )
    .env("GOEXPERIMENT", "cgocheck2"));
}

#[test]
fn go_xds_server_serves_a_real_envoy() {
    run(&mut go(
        &bindings().join("examples/xds-server"),
        &[TEST.as_slice(), &["./..."]].concat(),
    ));
}
