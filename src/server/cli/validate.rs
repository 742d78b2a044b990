//! `proxycfg validate`.

use std::io::Write as _;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::{Failure, print, print_json};
use crate::server::files::{FileProblem, FileSet, check_together, load};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Files, and folders of .json and .hcl files.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Print errors and warnings as JSON on one line, for other programs.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let loaded = load(&args.paths).and_then(|set| {
        check_together(&set)?;
        Ok(set)
    });
    if args.json {
        let (errors, warnings) = match &loaded {
            Ok(set) => (Vec::new(), set.warnings.iter().map(to_json).collect()),
            Err(problems) => (problems.iter().map(to_json).collect(), Vec::new()),
        };
        let errors: Vec<Value> = errors;
        let warnings: Vec<Value> = warnings;
        print_json(&json!({"Errors": errors, "Warnings": warnings}), true)?;
        return match loaded {
            Ok(_) => Ok(()),
            Err(problems) => Err(Failure::BadInput(problem_count(problems.iter().len()))),
        };
    }
    let set = loaded.map_err(|problems| {
        let count = problem_count(problems.iter().len());
        Failure::BadInput(format!("{problems}\n{count}"))
    })?;
    for warning in &set.warnings {
        // Warnings that nobody can read are no reason to fail.
        let _ = writeln!(std::io::stderr(), "warning: {warning}");
    }
    print(&summary(&set))
}

fn problem_count(count: usize) -> String {
    match count {
        1 => "1 problem; nothing would be served".to_owned(),
        n => format!("{n} problems; nothing would be served"),
    }
}

/// What a set holds, in words.
pub(super) fn summary(set: &FileSet) -> String {
    let count = |n: usize, one: &str, many: &str| match n {
        1 => format!("1 {one}"),
        n => format!("{n} {many}"),
    };
    let sidecars = set.services().filter(|s| s.record.sidecar().is_some());
    let sidecars = match sidecars.count() {
        0 => String::new(),
        n => format!(" (and {})", count(n, "sidecar", "sidecars")),
    };
    format!(
        "{}: {}{sidecars}, {}",
        count(set.files.len(), "file", "files"),
        count(set.services().count(), "service", "services"),
        count(set.entries().count(), "config entry", "config entries"),
    )
}

fn to_json(problem: &FileProblem) -> Value {
    json!({
        "Path": &*problem.path,
        "Line": problem.pos.map(|pos| pos.line),
        "Column": problem.pos.map(|pos| pos.column),
        "Key": problem.key_text(),
        "Message": problem.message,
    })
}
