//! `tests/SPEC.md` names a test, or a reason for having none, for every rule and case; and the tests that it names exist.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// What a row without a test begins with.
const REASONS: [&str; 4] = ["changed: ", "later: ", "not yet tested: ", "void: "];

fn numbered(prefix: &str, last: usize) -> Vec<String> {
    (1..=last).map(|n| format!("{prefix}{n}")).collect()
}

/// The sections of the table, and the ids that each must have, in order.
fn sections() -> Vec<(&'static str, Vec<String>)> {
    let of_engine = [
        ("M", 15),
        ("S", 15),
        ("L", 9),
        ("C", 13),
        ("X", 5),
        ("E", 4),
    ];
    let vectors = [
        "compile",
        "validate",
        "gateway",
        "targetNames",
        "customizationHash",
        "relatedServices",
        "headerMerge",
    ];
    vec![
        ("Contract of the manager", numbered("", 8)),
        (
            "field-cases.md: scenarios",
            (1..=98).map(|n| format!("FC-{n:03}")).collect(),
        ),
        ("field-cases.md: must hold", numbered("", 15)),
        ("store.md 6", numbered("", 150)),
        (
            "engine.md 7",
            of_engine
                .iter()
                .flat_map(|(letter, last)| numbered(letter, *last))
                .collect(),
        ),
        ("kinds.md 14", numbered("T", 103)),
        ("xds.md 5", numbered("", 61)),
        (
            "xds-conformance.md",
            numbered("D", 24)
                .into_iter()
                .chain(numbered("S", 24))
                .collect(),
        ),
        ("discovery-chain.md 15.3", numbered("", 15)),
        ("discovery-chain.md 16", vectors.map(str::to_owned).to_vec()),
    ]
}

/// Rows by section: id and the last cell.
fn rows() -> BTreeMap<String, Vec<(String, String)>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/SPEC.md");
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut rows: BTreeMap<String, Vec<_>> = BTreeMap::new();
    let mut section = String::new();
    for line in text.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            section = title.to_owned();
            continue;
        }
        let Some(row) = line.strip_prefix("| ").and_then(|l| l.strip_suffix(" |")) else {
            continue;
        };
        let cells: Vec<&str> = row.split(" | ").collect();
        if cells.len() != 3 {
            panic!("{section}: a row has three cells: {line}");
        }
        if cells[0] != "id" {
            let row = (cells[0].to_owned(), cells[2].to_owned());
            rows.entry(section.clone()).or_default().push(row);
        }
    }
    rows
}

/// The names of all tests in a folder's sources.
fn tests_in(folder: &Path, into: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let kind = path
            .extension()
            .and_then(|e| e.to_str())
            .unwrap_or_default();
        if path.is_dir() {
            tests_in(&path, into);
        } else if kind == "c" || kind == "go" {
            // C tests are run by `RUN(name);`, Go's are `func TestName(`.
            for line in fs::read_to_string(&path).unwrap().lines().map(str::trim) {
                let rest = line
                    .strip_prefix("RUN(")
                    .or_else(|| line.strip_prefix("func "));
                into.extend(rest.and_then(|rest| Some(rest.split(['(', ')']).next()?.to_owned())));
            }
        } else if kind == "rs" {
            let mut marked = false;
            for line in fs::read_to_string(&path).unwrap().lines().map(str::trim) {
                let name = line
                    .strip_prefix("async ")
                    .unwrap_or(line)
                    .strip_prefix("fn ")
                    .and_then(|rest| rest.split('(').next());
                match name {
                    Some(name) if marked => {
                        into.insert(name.to_owned());
                        marked = false;
                    }
                    _ if line.starts_with("#[test]") || line.starts_with("#[tokio::test") => {
                        marked = true;
                    }
                    _ => marked &= line.starts_with("#[") || line.starts_with("//"),
                }
            }
        }
    }
}

/// The words of a cell in backticks that look like a function's name.
fn named(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2).filter(|word| {
        let of_go = word.starts_with("Test") && word.chars().all(|c| c.is_ascii_alphanumeric());
        let of_others = word.contains('_')
            && word
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        of_go || of_others
    })
}

#[test]
fn every_rule_is_mapped() {
    let rows = rows();
    let sections = sections();
    let titles: BTreeSet<&str> = sections.iter().map(|(title, _)| *title).collect();
    let found: BTreeSet<&str> = rows.keys().map(String::as_str).collect();
    assert_eq!(found, titles, "the sections with tables");
    for (title, ids) in &sections {
        let found: Vec<&String> = rows[*title].iter().map(|(id, _)| id).collect();
        assert_eq!(found, ids.iter().collect::<Vec<_>>(), "{title}");
    }
}

#[test]
fn the_tests_named_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut tests = BTreeSet::new();
    for folder in ["src", "tests", "ffi", "bindings"] {
        tests_in(&root.join(folder), &mut tests);
    }
    let mut problems = Vec::new();
    for (section, rows) in rows() {
        for (id, cell) in rows {
            let mut names = named(&cell).peekable();
            let reason = REASONS.iter().any(|reason| cell.starts_with(reason));
            if names.peek().is_none() && !reason {
                problems.push(format!(
                    "{section}, {id}: neither test nor reason: {cell:?}"
                ));
            }
            for name in names.filter(|name| !tests.contains(*name)) {
                problems.push(format!("{section}, {id}: there is no test {name}"));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
