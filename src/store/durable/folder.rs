//! The data folder: made with rights for its owner alone, and used by one process at a time.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::error::{DurableError, DurableErrorKind};

/// Name of the file that holds the records.
const RECORDS: &str = "records.redb";

/// Name of the file that whoever uses the folder has locked.
const LOCK: &str = "lock";

/// How long a holder that may be ending is waited for.
const LOCK_PATIENCE: Duration = Duration::from_millis(300);

/// A data folder that this process has to itself until this is dropped.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    /// Locked as long as it is open, also if the process dies.
    _lock: File,
}

impl Folder {
    /// Locks a folder. Makes it first if it doesn't exist and `make` is set.
    pub fn lock(path: &Path, make: bool) -> Result<Self, DurableError> {
        if make && !path.is_dir() {
            DirBuilder::new()
                .mode(0o700)
                .create(path)
                .map_err(|error| DurableError::system(path, "made", &error))?;
        }
        let metadata = path
            .metadata()
            .map_err(|error| DurableError::system(path, "read", &error))?;
        if metadata.permissions().mode() & 0o022 != 0 {
            tracing::warn!(
                folder = %path.display(),
                "others may write into the data folder: take that right away with `chmod go-w`"
            );
        }
        let lock_path = path.join(LOCK);
        let system = |error: &std::io::Error| DurableError::system(&lock_path, "written", error);
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&lock_path)
            .map_err(|error| system(&error))?;
        match lock_soon(&lock) {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                // Who it is is a courtesy: that it is there is what counts.
                let _ = lock.read_to_string(&mut holder);
                let holder = match holder.trim() {
                    "" => "another process".to_owned(),
                    pid => format!("process {pid}"),
                };
                return Err(DurableError::new(
                    DurableErrorKind::InUse,
                    path,
                    format!("the data folder is in use by {holder}"),
                    "stop that first, or give each its own --data-dir",
                ));
            }
            Err(TryLockError::Error(error)) => {
                return Err(DurableError::system(&lock_path, "locked", &error));
            }
        }
        let named = lock
            .set_len(0)
            .and_then(|()| lock.rewind())
            .and_then(|()| writeln!(lock, "{}", std::process::id()));
        named.map_err(|error| system(&error))?;
        Ok(Self {
            path: path.to_owned(),
            _lock: lock,
        })
    }

    /// The folder's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file that holds the records.
    pub fn records(&self) -> PathBuf {
        self.path.join(RECORDS)
    }

    /// A new, empty file beside the records, for the owner alone. One that was left behind is replaced.
    pub fn new_records(&self) -> Result<(PathBuf, File), DurableError> {
        let path = self.path.join(format!("{RECORDS}.new"));
        let file = create_private(&path)
            .map_err(|error| DurableError::system(&path, "written", &error))?;
        Ok((path, file))
    }

    /// Puts the file in the place of the records, for good.
    pub fn install(&self, new: &Path) -> Result<(), DurableError> {
        let records = self.records();
        std::fs::rename(new, &records)
            .and_then(|()| sync_folder(&self.path))
            .map_err(|error| DurableError::system(&records, "written", &error))
    }
}

/// Locks a file, waiting a moment for a holder that is just ending: a server that is being restarted, or a child process between
/// its start and the program that it becomes, which closes what it inherited.
fn lock_soon(file: &File) -> Result<(), TryLockError> {
    let deadline = Instant::now() + LOCK_PATIENCE;
    loop {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(10));
            }
            result => return result,
        }
    }
}

/// Makes a new file that only its owner may read, in the place of one that is there.
pub(super) fn create_private(path: &Path) -> std::io::Result<File> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
}

/// Makes new names in a folder durable.
pub(super) fn sync_folder(path: &Path) -> std::io::Result<()> {
    File::open(path)?.sync_all()
}
