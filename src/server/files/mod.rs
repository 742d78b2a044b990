//! Configuration files: read, checked together, applied as a whole, and watched.
//!
//! ```text
//!  paths ──scan──▶ bytes ──read──▶ records of each file ──▶ FileSet ──apply──▶ store (config entries)
//!                    │                (checked together)                  └──▶ local state (services, checks)
//!                    └─ hashes: what has changed since the last time?
//! ```
//!
//! 1. *Scan* finds the files and reads their bytes ([`load`] does this and the next two).
//! 2. *Read* makes records of each file by the rules of [`model`](crate::model), as every other way into the system does.
//! 3. *Check across* finds what contradicts between files. All problems of all files are reported together.
//! 4. [`apply`] writes what changed since the last time, all or nothing. Records follow their file: those of a file whose
//!    content changed are written anew, those gone from the files are removed. What was written over HTTP in the meantime
//!    stands until the file changes again.
//! 5. [`FileWatcher`] does all this again whenever a file changes. A bad edit is reported once, and the last good state
//!    stays.

mod across;
mod agent_keys;
mod apply;
mod problem;
mod read;
mod scan;
mod set;
mod watch;

#[cfg(test)]
mod tests;

use std::path::PathBuf;

pub use apply::{
    ApplyReport, FileTargets, KeptRecords, LocalRecords, OwnedRecords, RefusedRecord, apply,
    check_together,
};
pub use problem::{FileProblem, FileProblems, ShownPath};
pub use read::{check_datacenter, check_node_name};
pub use scan::ContentHash;
pub use set::{FileRecords, FileSet, Setting, Settings, Source, Sourced};
pub use watch::{FileWatcher, ReloadOutcome, Reloader, WatchOptions};

/// How much is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileLimits {
    /// Most bytes of a file. Default, and never more than, [`MAX_SIZE`](crate::hcl::MAX_SIZE).
    pub file: usize,
    /// Most bytes of all files together. Default 256 MiB.
    pub all: usize,
}

impl Default for FileLimits {
    fn default() -> Self {
        Self {
            file: crate::hcl::MAX_SIZE,
            all: 256 * 1024 * 1024,
        }
    }
}

/// Reads all files that the paths mean: files, and folders of `.json` and `.hcl` files.
///
/// # Errors
/// Everything that is wrong with any of the files.
pub fn load(paths: &[PathBuf], limits: &FileLimits) -> Result<FileSet, FileProblems> {
    read_all(scan::scan(paths, limits))
}

/// Records of what was scanned.
fn read_all(scan: scan::Scan) -> Result<FileSet, FileProblems> {
    let mut problems = scan.problems;
    let mut set = FileSet {
        warnings: scan.warnings,
        ..FileSet::default()
    };
    for (path, file) in &scan.files {
        let mut read = read::read(file);
        problems.append(&mut read.errors);
        set.warnings.append(&mut read.warnings);
        set.settings.merge(read.settings, &mut problems);
        set.files.insert(path.clone(), read.records);
    }
    across::check(&set, &mut problems);
    set.warnings.append(&mut across::shared_ports(&set));
    set.warnings.sort();
    set.warnings.dedup();
    across::idle_keys_once(&mut set.warnings);
    FileProblems::none_of(problems)?;
    Ok(set)
}
