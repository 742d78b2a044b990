//! The order of the rooms (ARCHITECTURE.md): a room uses only rooms on floors below its own, and nothing outside `ffi/`
//! is unsafe.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Rooms by floor, from the ground up.
const FLOORS: [&[&str]; 9] = [
    &["sync", "clock", "filter", "hcl"],
    &["model"],
    &["chain", "ca", "store", "snapshot"],
    &["source", "xds"],
    &["proxy"],
    &["engine"],
    &["config_source", "embedded"],
    &["server"],
    &["main"],
];

fn floors() -> BTreeMap<&'static str, usize> {
    FLOORS
        .iter()
        .enumerate()
        .flat_map(|(floor, rooms)| rooms.iter().map(move |room| (*room, floor)))
        .collect()
}

fn source_files(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            source_files(&path, into);
        } else if path.extension().is_some_and(|e| e == "rs") {
            into.push(path);
        }
    }
}

/// The rooms that a text names as `crate::ROOM` or `proxycfg::ROOM`, with the line; comments and tests' own modules don't
/// count.
fn rooms_used(text: &str) -> Vec<(usize, String)> {
    let mut used = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        for prefix in ["crate::", "proxycfg::"] {
            for (at, _) in code.match_indices(prefix) {
                let rest = &code[at + prefix.len()..];
                let grouped = rest
                    .strip_prefix('{')
                    .map(|group| group.split('}').next().unwrap_or(group));
                let names: Vec<&str> = match grouped {
                    Some(group) => group.split(',').map(str::trim).collect(),
                    None => vec![rest],
                };
                for name in names {
                    let end = name
                        .find(|c: char| !(c.is_alphanumeric() || c == '_'))
                        .unwrap_or(name.len());
                    used.push((number + 1, name[..end].to_owned()));
                }
            }
        }
    }
    used
}

#[test]
fn no_use_points_up_the_floors() {
    let floors = floors();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    source_files(&source, &mut files);
    assert!(
        files.len() > 50,
        "the sources are where this test looks for them"
    );
    let mut wrong = Vec::new();
    for file in files {
        let inside = file.strip_prefix(&source).unwrap();
        let room = inside
            .iter()
            .next()
            .unwrap()
            .to_str()
            .unwrap()
            .trim_end_matches(".rs")
            .to_owned();
        if room == "lib" {
            continue;
        }
        let Some(floor) = floors.get(room.as_str()) else {
            panic!(
                "{} is in no room; give it one in ARCHITECTURE.md and in this test",
                inside.display()
            );
        };
        for (line, used) in rooms_used(&fs::read_to_string(&file).unwrap()) {
            match floors.get(used.as_str()) {
                Some(other) if used != room && other >= floor => {
                    wrong.push(format!("{}:{line}: {room} uses {used}", inside.display()));
                }
                _ => {}
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "arrows that point up or sideways:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn every_room_of_the_front_door_has_a_floor() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs");
    let text = fs::read_to_string(source).unwrap();
    let floors = floors();
    let rooms: Vec<_> = text
        .lines()
        .filter_map(|l| l.strip_prefix("pub mod ")?.strip_suffix(';'))
        .collect();
    assert!(rooms.len() > 10);
    for room in rooms {
        assert!(floors.contains_key(room), "room {room} has no floor");
    }
    assert!(text.contains("#![forbid(unsafe_code)]"));
}

#[test]
fn the_engine_has_no_async_runtime() {
    // What `--no-default-features` links, as Cargo resolves it.
    let output = std::process::Command::new(env!("CARGO"))
        .args([
            "tree",
            "--package",
            "proxycfg",
            "--no-default-features",
            "--edges",
            "normal",
            "--prefix",
            "none",
            "--offline",
        ])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let tree = String::from_utf8(output.stdout).unwrap();
    assert!(tree.lines().count() > 10);
    let runtimes: Vec<_> = tree
        .lines()
        .filter(|l| l.starts_with("tokio") || l.starts_with("async-std"))
        .collect();
    assert!(runtimes.is_empty(), "{runtimes:?}");
}
