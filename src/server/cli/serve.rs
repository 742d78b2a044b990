//! `proxycfg serve`.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

use super::Failure;
use super::limits::LimitArgs;
use crate::server::files::{check_datacenter, check_node_name};
use crate::server::serve::{Protection, ServeError, ServeOptions, serve};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// A file, or a folder of .json and .hcl files: agent configuration or config entries. May be repeated.
    #[arg(long, value_name = "PATH")]
    config: Vec<PathBuf>,
    /// Name of this agent's node; that of the machine unless given here or in a file.
    #[arg(long, value_name = "NAME", value_parser = node_name)]
    node_name: Option<String>,
    /// Name of the datacenter; dc1 unless given here or in a file.
    #[arg(long, value_name = "NAME", value_parser = datacenter)]
    datacenter: Option<String>,
    /// Where the HTTP API listens; 127.0.0.1:8500 unless given.
    #[arg(long, value_name = "ADDR", value_parser = address)]
    http_addr: Option<SocketAddr>,
    /// Where Envoys connect; 127.0.0.1:8502 unless given.
    #[arg(long, value_name = "ADDR", value_parser = address)]
    xds_addr: Option<SocketAddr>,
    /// What holds for callers that no intention speaks of; allow unless given here or in a file.
    #[arg(long, value_name = "POLICY")]
    intention_default: Option<Policy>,
    /// Folder to keep records and the certificate authority in, over restarts and crashes; it is made if it doesn't exist.
    /// Without it they are kept in memory only.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Encrypt both ports with this certificate (PEM, with those between it and its root). Read again when it changes.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The key of the certificate (PEM).
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Let in only clients with a certificate of these authorities (PEM).
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_client_ca: Option<PathBuf>,
    /// A file of tokens and their rights: callers without one of them are refused. Read again when it changes.
    #[arg(long, value_name = "FILE")]
    tokens: Option<PathBuf>,
    /// Listen on addresses that other machines reach though strangers aren't kept out there; and on any address answer HTTP
    /// requests for any host.
    #[arg(long)]
    insecure: bool,
    /// What is logged: a level (error, warn, info, debug, trace), or levels by module as in RUST_LOG.
    #[arg(long, value_name = "LEVEL", env = "RUST_LOG", default_value = "info")]
    log_level: String,
    /// Log JSON, an object a line.
    #[arg(long)]
    log_json: bool,
    #[command(flatten)]
    limits: LimitArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Policy {
    Allow,
    Deny,
}

pub(super) fn run(args: Args) -> Result<(), Failure> {
    start_log(&args.log_level, args.log_json)?;
    let options = ServeOptions {
        config: args.config,
        node_name: args.node_name,
        datacenter: args.datacenter,
        http_addr: args.http_addr,
        xds_addr: args.xds_addr,
        intention_default_allow: args.intention_default.map(|p| p == Policy::Allow),
        protection: Protection {
            tls_cert: args.tls_cert,
            tls_key: args.tls_key,
            tls_client_ca: args.tls_client_ca,
            tokens: args.tokens,
            insecure: args.insecure,
        },
        limits: args.limits.into(),
        data_dir: args.data_dir,
    };
    serve(options).map_err(|error| match error {
        ServeError::BadInput(_) | ServeError::Files(_) => Failure::BadInput(error.to_string()),
        other => Failure::Failed(other.to_string()),
    })
}

fn start_log(level: &str, json: bool) -> Result<(), Failure> {
    let filter = EnvFilter::try_new(level).map_err(|error| {
        Failure::BadInput(format!(
            "--log-level {level:?}: {error}; give error, warn, info, debug or trace"
        ))
    })?;
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    let started = if json {
        log.json().try_init()
    } else {
        log.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
            .try_init()
    };
    started.map_err(|error| Failure::Failed(format!("can't start the log: {error}")))
}

fn node_name(text: &str) -> Result<String, String> {
    check_node_name(text).map(|()| text.to_owned())
}

fn datacenter(text: &str) -> Result<String, String> {
    check_datacenter(text).map(|()| text.to_owned())
}

fn address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let mend = "give ADDRESS:PORT, such as 127.0.0.1:8500";
    match text.to_socket_addrs() {
        Ok(mut addresses) => addresses
            .next()
            .ok_or_else(|| format!("the name has no address; {mend}")),
        Err(error) => Err(format!("{error}; {mend}")),
    }
}
