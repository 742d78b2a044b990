//! `proxycfg validate`.

use std::io::Write as _;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::limits::FileLimitArgs;
use super::{Failure, print, print_json};
use crate::server::files::{FileProblem, FileProblems, FileSet, check_together, load};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Files, and folders of .json and .hcl files.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Print errors and warnings as JSON on one line, for other programs.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    limits: FileLimitArgs,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let loaded = load(&args.paths, &args.limits.limits()).and_then(|set| {
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
        return loaded.map(drop).map_err(bad_input);
    }
    let set = loaded.map_err(bad_input)?;
    for warning in &set.warnings {
        // Warnings that nobody can read are no reason to fail.
        let _ = writeln!(std::io::stderr(), "warning: {warning}");
    }
    print(&summary(&set))
}

fn bad_input(problems: FileProblems) -> Failure {
    Failure::BadInput(problems.to_string())
}

/// What a set holds, in words.
fn summary(set: &FileSet) -> String {
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
