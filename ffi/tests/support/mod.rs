//! What the tests of the C ABI share: where things are, and how to run a compiler.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "each test uses its part, and fails by panicking"
)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The repository.
pub fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .canonicalize()
        .unwrap()
}

/// One of the libraries, as it is released: built here, since tests of a crate don't build its C libraries, and with the
/// features that it has by itself rather than with those of the whole workspace.
pub fn library(name: &str) -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let folder = BUILT.get_or_init(|| {
        let exe = std::env::current_exe().unwrap();
        let folder = exe.parent().unwrap().parent().unwrap().to_owned();
        let profile = match folder.file_name().unwrap().to_str().unwrap() {
            "debug" => "dev",
            name => name,
        };
        run(Command::new(env!("CARGO"))
            .current_dir(top())
            .args([
                "build",
                "--package",
                "proxycfg-ffi",
                "--lib",
                "--profile",
                profile,
            ])
            .arg("--target-dir")
            .arg(Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap()));
        folder
    });
    folder.join(name)
}

/// A folder for one test, empty.
pub fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    path
}

/// What the static library needs beside itself.
pub const SYSTEM_LIBRARIES: [&str; 7] = [
    "-lgcc_s",
    "-lutil",
    "-lrt",
    "-lpthread",
    "-lm",
    "-ldl",
    "-lc",
];

/// A C compiler's command for a program of these sources, linked with the static library.
pub fn compile(sources: &[PathBuf], program: &Path, flags: &[&str]) -> Command {
    let mut gcc = Command::new("gcc");
    gcc.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-g"])
        .args(flags)
        .arg("-I")
        .arg(top().join("include"))
        .args(sources)
        .arg(library("libproxycfg.a"))
        .args(SYSTEM_LIBRARIES)
        .arg("-o")
        .arg(program);
    gcc
}

/// Runs a command that must succeed, and gives what it prints.
pub fn run(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// Whether a committed file is as it should be. With `PROXYCFG_WRITE` in the environment it is written instead.
pub fn hold(file: &Path, wanted: &str) {
    if std::env::var_os("PROXYCFG_WRITE").is_some() {
        std::fs::write(file, wanted).unwrap();
        return;
    }
    let found = std::fs::read_to_string(file).unwrap_or_default();
    let same = found
        .lines()
        .zip(wanted.lines())
        .take_while(|(a, b)| a == b);
    let line = same.count() + 1;
    assert!(
        found == wanted,
        "{} is not up to date, from line {line}: run `PROXYCFG_WRITE=1 cargo test -p proxycfg-ffi --test header`",
        file.display(),
    );
}
