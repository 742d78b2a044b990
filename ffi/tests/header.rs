//! The committed header and list of symbols are those of the library, and the header compiles wherever it says.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

mod support;

use std::process::Command;

use support::{folder, hold, library, run, top};

#[test]
fn the_header_is_made_from_the_crate() {
    let crate_dir = top().join("ffi");
    let config = cbindgen::Config::from_file(crate_dir.join("cbindgen.toml")).unwrap();
    let bindings = cbindgen::Builder::new()
        .with_crate(crate_dir)
        .with_config(config)
        .generate()
        .unwrap();
    let mut header = Vec::new();
    bindings.write(&mut header);
    hold(
        &top().join("include/proxycfg.h"),
        &String::from_utf8(header).unwrap(),
    );
}

#[test]
fn the_header_stands_alone() {
    for (compiler, language, standards) in [
        ("gcc", "c", ["c99", "c11", "c17"].as_slice()),
        ("g++", "c++", &["c++11", "c++14", "c++17", "c++20"]),
    ] {
        for standard in standards {
            run(Command::new(compiler)
                .args(["-x", language, "-Wall", "-Wextra", "-Werror", "-pedantic"])
                .arg("-fsyntax-only")
                .arg(format!("-std={standard}"))
                .arg(top().join("include/proxycfg.h")));
        }
    }
}

/// The functions that a header declares.
fn declared() -> Vec<String> {
    let header = std::fs::read_to_string(top().join("include/proxycfg.h")).unwrap();
    let code: Vec<&str> = header
        .lines()
        .filter(|line| !line.starts_with("//") && !line.starts_with("typedef"))
        .collect();
    let mut names: Vec<String> = code
        .iter()
        .filter_map(|line| line.split_once('('))
        .filter_map(|(before, _)| before.rsplit([' ', '*']).next())
        .filter(|name| name.starts_with("proxycfg_"))
        .map(str::to_owned)
        .collect();
    names.sort();
    names.dedup();
    names
}

#[test]
fn the_shared_library_exports_what_the_header_declares_and_nothing_else() {
    let listed = run(Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(library("libproxycfg.so")));
    let mut symbols: Vec<&str> = listed
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .collect();
    symbols.sort_unstable();
    assert_eq!(symbols, declared());
    hold(
        &top().join("ffi/symbols.txt"),
        &format!("{}\n", symbols.join("\n")),
    );
}

#[test]
fn the_shared_library_has_its_soname() {
    let dynamic = run(Command::new("readelf")
        .arg("-d")
        .arg(library("libproxycfg.so")));
    assert!(dynamic.contains("[libproxycfg.so.0]"), "{dynamic}");
}

#[test]
fn an_installed_library_is_found_by_pkg_config_and_says_the_version_of_its_header() {
    let prefix = folder("installed");
    run(Command::new(top().join("ffi/install"))
        .arg(&prefix)
        .arg(library("libproxycfg.so").parent().unwrap()));
    let source = prefix.join("version.c");
    std::fs::write(
        &source,
        "#include <proxycfg.h>\n#include <stdio.h>\n\
         int main(void) { printf(\"%u\", proxycfg_abi_version()); return proxycfg_abi_version() != PROXYCFG_ABI_VERSION; }\n",
    )
    .unwrap();
    let pkg_config = |args: &[&str]| {
        let flags = run(Command::new("pkg-config")
            .args(args)
            .arg("proxycfg")
            .env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")));
        flags
            .split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let version: Vec<u32> = env!("CARGO_PKG_VERSION")
        .split('.')
        .map(|n| n.parse().unwrap())
        .collect();
    let wanted = version[0] * 1_000_000 + version[1] * 1_000 + version[2];
    assert_eq!(pkg_config(&["--modversion"]), [env!("CARGO_PKG_VERSION")]);
    for (kind, flags) in [
        ("shared", pkg_config(&["--cflags", "--libs"])),
        ("static", pkg_config(&["--cflags", "--libs", "--static"])),
    ] {
        let program = prefix.join(kind);
        // With the shared library out of the way the linker takes the other one.
        let shared = prefix.join("lib/libproxycfg.so");
        if kind == "static" {
            std::fs::remove_file(&shared).unwrap();
        }
        run(Command::new("gcc")
            .arg(&source)
            .args(flags)
            .arg("-o")
            .arg(&program));
        let printed = run(Command::new(&program).env("LD_LIBRARY_PATH", prefix.join("lib")));
        assert_eq!(printed, wanted.to_string());
    }
}
