//! What can go wrong with a data folder, and what mends it.

use std::io;
use std::path::{Path, PathBuf};

/// A data folder or a backup can't be used. The text names the file and the mend.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {problem}; {mend}", path.display())]
pub struct DurableError {
    /// What kind of trouble it is.
    pub kind: DurableErrorKind,
    /// The file or folder.
    pub path: PathBuf,
    /// What is wrong.
    pub problem: String,
    /// What mends it.
    pub mend: String,
}

/// The kinds of trouble with a data folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DurableErrorKind {
    /// The operating system refuses: no rights, read-only, full.
    System,
    /// Another process uses the folder.
    InUse,
    /// The file isn't one of this program.
    Foreign,
    /// The file is one of this program, and broken.
    Damaged,
    /// A newer version wrote the file.
    Newer,
    /// There are records already where a backup is to be restored to.
    NotEmpty,
    /// There is nothing to make a backup of.
    Missing,
    /// A record can't be written so that it reads back.
    Record,
}

impl DurableError {
    pub(super) fn new(
        kind: DurableErrorKind,
        path: &Path,
        problem: impl Into<String>,
        mend: impl Into<String>,
    ) -> Self {
        Self {
            kind,
            path: path.to_owned(),
            problem: problem.into(),
            mend: mend.into(),
        }
    }

    /// The operating system refused.
    pub(super) fn system(path: &Path, doing: &str, error: &io::Error) -> Self {
        let mend = match error.kind() {
            io::ErrorKind::PermissionDenied => {
                "give this user the right to read and write it, or choose another folder"
            }
            io::ErrorKind::ReadOnlyFilesystem => {
                "make the file system writable, or choose another folder"
            }
            io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::FileTooLarge => {
                "make room on the disk; what was kept before is unharmed"
            }
            io::ErrorKind::NotFound => "make the folder that it is to be in",
            io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => {
                "give the path of a folder, which is made if it doesn't exist"
            }
            _ => "see to the disk",
        };
        Self::new(
            DurableErrorKind::System,
            path,
            format!("can't be {doing}: {error}"),
            mend,
        )
    }

    pub(super) fn damaged(path: &Path, problem: impl std::fmt::Display) -> Self {
        Self::new(
            DurableErrorKind::Damaged,
            path,
            format!("the file is damaged ({problem})"),
            "restore a backup into an empty folder with `proxycfg restore`, or move the file away to start anew \
             (with a new trust domain)",
        )
    }

    pub(super) fn foreign(path: &Path, problem: &str) -> Self {
        Self::new(
            DurableErrorKind::Foreign,
            path,
            format!("not a file of proxycfg ({problem})"),
            "move it away, or choose another folder; nothing was changed",
        )
    }

    pub(super) fn newer(path: &Path, version: u64, written_by: &str, own: u64) -> Self {
        Self::new(
            DurableErrorKind::Newer,
            path,
            format!(
                "written in format {version} by version {written_by}, and this version reads up to format {own}"
            ),
            format!(
                "use version {written_by} or later, or restore a backup that this version made; nothing was changed"
            ),
        )
    }
}
