//! C programs run on the library: the example and the tests, also under valgrind and AddressSanitizer.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

mod support;

use std::path::PathBuf;
use std::process::Command;

use support::{compile, folder, run, top};

const TESTS: [&str; 5] = ["arguments", "callbacks", "queues", "sources", "random"];

fn source(name: &str) -> PathBuf {
    top().join("ffi/tests/c").join(name).with_extension("c")
}

/// Compiles a C test into a folder of its own.
fn build(name: &str, how: &str, flags: &[&str]) -> PathBuf {
    let program = folder(&format!("c-{name}-{how}")).join(name);
    run(&mut compile(&[source(name)], &program, flags));
    program
}

#[test]
fn every_c_test_is_run() {
    let mut found: Vec<String> = std::fs::read_dir(top().join("ffi/tests/c"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "c"))
        .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    found.sort();
    let mut run = TESTS.to_vec();
    run.sort_unstable();
    assert_eq!(found, run);
}

#[test]
fn c_tests() {
    for name in TESTS {
        print!("{}", run(&mut Command::new(build(name, "plain", &[]))));
    }
}

#[test]
fn c_tests_under_address_sanitizer() {
    for name in TESTS {
        let program = build(
            name,
            "asan",
            &["-fsanitize=address", "-fno-omit-frame-pointer"],
        );
        run(Command::new(program).env("ASAN_OPTIONS", "detect_leaks=1"));
    }
}

#[test]
fn c_tests_under_valgrind() {
    for name in TESTS {
        let program = build(name, "valgrind", &[]);
        run(Command::new("valgrind")
            .args(["--quiet", "--leak-check=full", "--error-exitcode=9"])
            // One handle of the C main thread is "possibly lost", which is how the standard library is.
            .args([
                "--errors-for-leak-kinds=definite",
                "--show-leak-kinds=definite",
            ])
            .arg("--fair-sched=yes")
            .arg(program)
            .env("PROXYCFG_TEST_SMALL", "1"));
    }
}

#[test]
fn the_example_runs_the_complete_loop() {
    let program = folder("c-example").join("control_loop");
    run(&mut compile(
        &[top().join("ffi/examples/control_loop.c")],
        &program,
        &[],
    ));
    let printed = run(&mut Command::new(&program));
    for wanted in [
        "a snapshot of kind 1",
        "\"Health\":\"passing\"",
        "Cluster local_app: ",
        "Listener public_listener:",
        "changed: [{\"Change\":\"upstream-endpoints\",\"Upstream\":\"db\"",
        "\"Health\":\"critical\"",
        "closed, 0 threads stuck",
    ] {
        assert!(printed.contains(wanted), "{wanted:?} is not in:\n{printed}");
    }
}
