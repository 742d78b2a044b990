//! HCL and JSON texts: parsing, the way back through JSON, and reading as a configuration file.
//!
//! - Nothing panics, whatever the bytes.
//! - What is read and written as JSON is read again as the same data.
//! - Every JSON text that we accept another JSON reader accepts, with the same data.
//! - Every node and every problem has a place inside the text, and every problem is a bounded, printable sentence.

use std::path::PathBuf;

use proxycfg::hcl::{self, Data, MAX_DEPTH, Pos, SyntaxErrors, Value};
use proxycfg::server::files;

/// Runs one input.
pub fn run(bytes: &[u8]) {
    let text = Text::of(bytes);
    for (parsed, json) in [(hcl::parse(bytes), false), (hcl::parse_json(bytes), true)] {
        match parsed {
            Ok(value) => {
                assert!(json || matches!(value.data, Data::Object(_)), "{value:?}");
                text.check_value(&value);
                check_written(&value);
                if json {
                    check_other_reader(bytes, &value);
                }
            }
            Err(problems) => text.check_problems(&problems),
        }
    }
    for extension in ["hcl", "json"] {
        check_file(bytes, extension);
    }
}

/// The lengths of an input's lines in characters; none if it isn't UTF-8.
struct Text {
    lines: Option<Vec<usize>>,
    bytes: usize,
}

impl Text {
    fn of(bytes: &[u8]) -> Self {
        let text = std::str::from_utf8(bytes).ok();
        Self {
            lines: text.map(|text| text.split('\n').map(|line| line.chars().count()).collect()),
            bytes: bytes.len(),
        }
    }

    fn check_pos(&self, pos: Pos) {
        assert!(pos.line >= 1 && pos.column >= 1, "{pos}");
        let Some(lines) = &self.lines else { return };
        let line = lines.get(pos.line as usize - 1);
        // The end of the line counts as a place.
        let inside = line.is_some_and(|length| pos.column as usize <= length + 1);
        assert!(inside, "{pos} is outside the text");
    }

    fn check_value(&self, value: &Value) {
        self.check_pos(value.pos);
        match &value.data {
            Data::List(items) => items.iter().for_each(|item| self.check_value(item)),
            Data::Object(members) => {
                for (i, member) in members.iter().enumerate() {
                    self.check_pos(member.pos);
                    let twin = members[..i].iter().any(|other| other.key == member.key);
                    assert!(!twin, "{:?} is twice in an object", member.key);
                    self.check_value(&member.value);
                }
            }
            Data::Float(number) => assert!(number.is_finite()),
            Data::Null | Data::Bool(_) | Data::Int(_) | Data::String(_) => {}
        }
    }

    fn check_problems(&self, problems: &SyntaxErrors) {
        assert!(problems.iter().count() <= 21);
        problems
            .iter()
            .for_each(|problem| self.check_pos(problem.pos));
        super::check_message(&problems.to_string(), self.bytes);
    }
}

fn depth(value: &Value) -> usize {
    match &value.data {
        Data::List(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Data::Object(members) => 1 + members.iter().map(|m| depth(&m.value)).max().unwrap_or(0),
        _ => 0,
    }
}

fn check_written(value: &Value) {
    // The list that a repeated block becomes isn't written as a level in HCL.
    if depth(value) > MAX_DEPTH {
        return;
    }
    let json = value.to_json();
    let written = serde_json::to_vec(&json).unwrap();
    let again = hcl::parse_json(&written).unwrap_or_else(|e| panic!("{json}: {e}"));
    assert_eq!(again.to_json(), json);
    assert_eq!(Value::from_json(&json).to_json(), json);
}

fn check_other_reader(bytes: &[u8], value: &Value) {
    if depth(value) >= MAX_DEPTH {
        return;
    }
    let other: serde_json::Value = serde_json::from_slice(bytes).expect("we accept too much");
    assert_eq!(Value::from_json(&other).to_json(), value.to_json());
}

fn check_file(bytes: &[u8], extension: &str) {
    let path = scratch(extension);
    std::fs::write(&path, bytes).unwrap();
    match files::load(std::slice::from_ref(&path), &files::FileLimits::default()) {
        Ok(set) => {
            for warning in &set.warnings {
                super::check_message(&warning.to_string(), bytes.len());
            }
            if let Err(problems) = files::check_together(&set) {
                super::check_message(&problems.to_string(), bytes.len());
            }
        }
        Err(problems) => {
            assert!(problems.iter().len() > 0);
            super::check_message(&problems.to_string(), bytes.len());
        }
    }
    std::fs::remove_file(path).unwrap();
}

/// A file of this thread.
fn scratch(extension: &str) -> PathBuf {
    let thread = format!("{:?}", std::thread::current().id());
    let thread: String = thread.chars().filter(char::is_ascii_digit).collect();
    let name = format!("proxycfg-fuzz-{}-{thread}.{extension}", std::process::id());
    std::env::temp_dir().join(name)
}
