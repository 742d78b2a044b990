//! What the C ABI costs from C, and the bindings from Go, each beside a bare call into C. The full size with
//! `cargo bench -p proxycfg-ffi`; a small one, which only shows that the benches run, with `-- --quick`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a bench fails by panicking"
)]

#[path = "../tests/support/mod.rs"]
mod support;

use std::process::Command;

use support::{SYSTEM_LIBRARIES, compile, folder, library, run, top};

fn main() {
    let quick = std::env::args().any(|a| a == "--quick" || a == "--test");
    let program = folder("bench").join("calls");
    let source = top().join("ffi/benches/calls.c");
    run(&mut compile(&[source], &program, &["-O2"]));
    let mut bench = Command::new(&program);
    if quick {
        bench.arg("small");
    }
    println!("from C, linked statically:\n{}", run(&mut bench));
    let mut go = Command::new("go");
    go.current_dir(top().join("bindings/go"))
        .args([
            "test",
            "-tags",
            "proxycfg_external",
            "-count=1",
            "-run",
            "^$",
            "-bench",
            ".",
        ])
        .args(["-benchtime", if quick { "10x" } else { "2s" }])
        .env(
            "CGO_CFLAGS",
            format!("-O2 -I{}", top().join("include").display()),
        )
        .env(
            "CGO_LDFLAGS",
            format!(
                "{} {}",
                library("libproxycfg.a").display(),
                SYSTEM_LIBRARIES.join(" ")
            ),
        )
        .env("GOTOOLCHAIN", "local");
    println!("from Go:\n{}", run(&mut go));
}
