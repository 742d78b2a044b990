//! `proxycfg restore`.

use std::path::PathBuf;

use super::{Failure, print};
use crate::embedded::{EmbeddedError, restored};
use crate::store::durable::{self, DurableError};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// A file that `proxycfg backup` wrote.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The data folder to put it into; it is made if it doesn't exist.
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// Replace what the folder holds.
    #[arg(long)]
    force: bool,
}

impl From<DurableError> for Failure {
    fn from(error: DurableError) -> Self {
        Self::Failed(error.to_string())
    }
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let amend = |image: &mut _| {
        restored(image).map_err(|error: EmbeddedError| Failure::Failed(error.to_string()))
    };
    let index = durable::restore(&args.file, &args.data_dir, args.force, amend)?;
    print(&format!(
        "restored {} into {}; the store goes on at index {index}",
        args.file.display(),
        args.data_dir.display()
    ))
}
