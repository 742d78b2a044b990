//! The command line: what can be asked of the program, and how it ends.
//!
//! `serve` and `validate` work on files, `backup` and `restore` on a data folder; all other commands ask a running server over
//! its HTTP API. A command prints its
//! answer on standard output, or one error on standard error. Exit codes: 0 done, 1 failed, 2 bad input.

mod backup;
mod chain;
mod client;
mod envoy;
mod limits;
mod proxies;
mod resources;
mod restore;
mod serve;
mod snapshot;
mod table;
mod validate;

use std::io::Write as _;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use serde_json::Value;

/// Keeps the configuration of every proxy of a service mesh and serves it to Envoy.
#[derive(Debug, Parser)]
#[command(name = "proxycfg", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the control plane until SIGINT or SIGTERM.
    Serve(Box<serve::Args>),
    /// Check configuration files as `serve` would, without serving them.
    Validate(validate::Args),
    /// Run Envoy as the proxy of a registered service, or print its bootstrap.
    Envoy(envoy::Args),
    /// List the proxies: which are ready, what the others wait for, and the Envoys that are connected.
    Proxies(proxies::Args),
    /// Show the configuration snapshot of a proxy.
    Snapshot(snapshot::Args),
    /// Show the Envoy resources of a proxy, with private keys left out.
    Resources(resources::Args),
    /// Show the compiled discovery chain of a service.
    Chain(chain::Args),
    /// Save all records and the certificate authority of a data folder to a file, also
    /// while it is served. The file holds private keys.
    Backup(backup::Args),
    /// Put a backup into a data folder that no server uses.
    Restore(restore::Args),
}

/// Why a command didn't do what it was asked to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// It couldn't be done: no such proxy, no server, a port in use. Exit code 1.
    #[error("{0}")]
    Failed(String),
    /// What was given can't be right, whatever the state of the world. Exit code 2.
    #[error("{0}")]
    BadInput(String),
}

impl Failure {
    const fn code(&self) -> u8 {
        match self {
            Self::Failed(_) => 1,
            Self::BadInput(_) => 2,
        }
    }
}

/// Runs the command that the arguments of this process name. A usage error ends the process with code 2.
#[must_use]
pub fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // If standard error is closed there is nobody to tell; the code still says it.
            let _ = writeln!(std::io::stderr(), "{}", shown(&failure));
            ExitCode::from(failure.code())
        }
    }
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Serve(args) => serve::run(*args),
        Command::Validate(args) => validate::run(&args),
        Command::Envoy(args) => envoy::run(&args),
        Command::Proxies(args) => proxies::run(&args),
        Command::Snapshot(args) => snapshot::run(&args),
        Command::Resources(args) => resources::run(&args),
        Command::Chain(args) => chain::run(&args),
        Command::Backup(args) => backup::run(&args),
        Command::Restore(args) => restore::run(&args),
    }
}

/// Lists of problems stand for themselves: each line begins with its place.
fn shown(failure: &Failure) -> String {
    let text = failure.to_string();
    if text.contains('\n') || matches!(failure, Failure::BadInput(_)) {
        text
    } else {
        format!("error: {text}")
    }
}

/// Writes to standard output. A reader that has gone away (`| head`) is no failure.
fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    let written = out
        .write_all(text.as_bytes())
        .and_then(|()| out.write_all(b"\n"))
        .and_then(|()| out.flush());
    match written {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::Failed(format!("can't write the output: {error}")))
        }
        _ => Ok(()),
    }
}

/// Writes JSON: on one line for machines, indented for people.
fn print_json(value: &Value, one_line: bool) -> Result<(), Failure> {
    let text = if one_line {
        serde_json::to_string(value)
    } else {
        serde_json::to_string_pretty(value)
    };
    match text {
        Ok(text) => print(&text),
        Err(error) => Err(Failure::Failed(format!("can't write the output: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn failures_have_their_documented_codes() {
        assert_eq!(Failure::Failed(String::new()).code(), 1);
        assert_eq!(Failure::BadInput(String::new()).code(), 2);
    }
}
