//! `proxycfg backup`.

use std::path::PathBuf;

use super::{Failure, print};
use crate::store::durable;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The file to write; only its owner may read it. A backup of that name is replaced.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The data folder of `proxycfg serve`.
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let index = durable::backup(&args.data_dir, &args.file)
        .map_err(|error| Failure::Failed(error.to_string()))?;
    print(&format!(
        "saved the records up to store index {index} to {}; it holds private keys",
        args.file.display()
    ))
}
