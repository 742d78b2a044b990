//! The header compiles as C and C++, and a C program that links the library runs.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

use std::path::{Path, PathBuf};
use std::process::Command;

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Where Cargo has put the library: two folders above the test's executable.
fn library() -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    exe.parent()
        .unwrap()
        .parent()
        .unwrap()
        .join("libproxycfg.a")
}

fn run(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e}; install gcc and g++"));
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_header_stands_alone() {
    for (compiler, language, standards) in [
        ("gcc", "c", ["c99", "c11", "c17"]),
        ("g++", "c++", ["c++11", "c++17", "c++20"]),
    ] {
        for standard in standards {
            run(Command::new(compiler)
                .args([
                    "-x",
                    language,
                    "-Wall",
                    "-Wextra",
                    "-Werror",
                    "-pedantic",
                    "-fsyntax-only",
                ])
                .arg(format!("-std={standard}"))
                .arg(top().join("include/proxycfg.h")));
        }
    }
}

#[test]
fn a_c_program_links_and_finds_the_version_of_its_header() {
    let folder = std::env::temp_dir().join(format!("proxycfg-abi-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let source = folder.join("version.c");
    let program = folder.join("version");
    std::fs::write(
        &source,
        "#include <proxycfg.h>\n#include <stdio.h>\n\
         int main(void) { printf(\"%u\", proxycfg_abi_version()); return proxycfg_abi_version() != PROXYCFG_ABI_VERSION; }\n",
    )
    .unwrap();
    run(Command::new("gcc")
        .arg("-I")
        .arg(top().join("include"))
        .arg(&source)
        .arg(library())
        .args(["-lpthread", "-lm", "-ldl", "-lgcc_s", "-o"])
        .arg(&program));
    let printed = run(&mut Command::new(&program));
    std::fs::remove_dir_all(&folder).unwrap();
    let mut parts = env!("CARGO_PKG_VERSION")
        .split('.')
        .map(|n| n.parse::<u32>().unwrap());
    let version =
        parts.next().unwrap() * 1_000_000 + parts.next().unwrap() * 1_000 + parts.next().unwrap();
    assert_eq!(printed, version.to_string());
}
