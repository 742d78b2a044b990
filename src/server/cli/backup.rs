//! `proxycfg backup`.

use std::path::PathBuf;

use super::{Failure, print};
use crate::server::backup_socket;
use crate::store::durable::{self, DurableError, DurableErrorKind};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The file to write; only its owner may read it. A backup of that name is replaced.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The data folder of `proxycfg serve`, which may be running.
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let failed = |error: DurableError| Failure::Failed(error.to_string());
    let index = match durable::backup(&args.data_dir, &args.file) {
        // By a server, most likely: it is asked.
        Err(error) if error.kind == DurableErrorKind::InUse => {
            let text = backup_socket::ask(&args.data_dir).map_err(|problem| {
                Failure::Failed(format!(
                    "{error} (asked for a backup, it doesn't answer: {problem})"
                ))
            })?;
            durable::write_backup_text(&text, &args.file).map_err(failed)?
        }
        other => other.map_err(failed)?,
    };
    print(&format!(
        "saved the records up to store index {index} to {}; it holds private keys",
        args.file.display()
    ))
}
