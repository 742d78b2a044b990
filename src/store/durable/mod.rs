//! Records that survive a kill at any moment: a [`Backend`] over one file in a data folder (decision R2).
//!
//! ```text
//!  DIR/            made with rights for its owner alone (0700)
//!    lock          locked by the process that uses the folder; says which that is
//!    records.redb  all rows, the store index and the format (0600: it holds private keys)
//! ```
//!
//! **Commits.** A group of commits is one transaction of the file, and is answered for when it is on the disk: a reader or a
//! writer never learns of anything that a crash could take back. The store gives whatever has queued up as one group, so many
//! writers pay for one wait together. A crash leaves the last group whole or not at all.
//!
//! **Failures.** If the disk fails (it may be full), the group is refused, and the file is closed and opened again for the
//! next one. Should the refused group have reached the disk after all, it is undone first, so that the file never holds what
//! the running store doesn't.
//!
//! **Starting.** The file is read into memory and verified there, page by page and row by row. Only when all of it is good
//! is the file itself opened for writing. So a damaged or foreign file, or one of a newer version, stays as it is.
//!
//! **Formats.** The file says in which format it is written. A version reads its own format and older ones. Records are kept
//! in their public JSON form (`codec`), in which later versions only add. Backups ([`write_backup`]) have a form of their own,
//! text, that doesn't depend on that of the file.

mod backup;
mod codec;
mod database;
mod error;
mod folder;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use redb::backends::FileBackend;
use redb::{Database, DatabaseError};

use crate::store::backend::{Backend, BackendError, CommitRecord, Image};
use database::Change;
use folder::Folder;

pub use backup::{backup, backup_text, read_backup, restore, write_backup, write_backup_text};
pub use error::{DurableError, DurableErrorKind};

/// Above this, a slow disk is worth a line in the log.
const SLOW: Duration = Duration::from_secs(1);

/// How keeping a group of commits went.
#[derive(Debug, Clone)]
pub struct Persisted {
    /// How many commits.
    pub commits: usize,
    /// How long it took until they were on the disk, or had failed.
    pub elapsed: Duration,
    /// Whether they are kept.
    pub kept: bool,
}

/// Is told of each group of commits, on the thread that keeps it. Must not block.
pub type Observer = Box<dyn FnMut(&Persisted) + Send>;

/// Keeps the commits of a store in a data folder, which it has to itself until it is dropped.
pub struct DurableBackend {
    path: PathBuf,
    opener: Box<dyn Fn() -> Result<Database, DatabaseError> + Send>,
    /// None after a failure, until the next group.
    db: Option<Database>,
    /// What was read at the start; taken by the store.
    image: Option<Image>,
    /// The store index of what is answered for.
    kept: u64,
    /// A group that failed and may have reached the disk: its index, and what undoes it.
    doubt: Option<(u64, Change)>,
    failing: bool,
    observer: Option<Observer>,
    /// Last, so that it is let go of last.
    _folder: Option<Folder>,
}

impl DurableBackend {
    /// Opens a data folder. One that doesn't exist is made (its parent must exist); an empty one gets its file.
    ///
    /// # Errors
    /// The folder can't be written, another process uses it, or what is in it isn't good. Nothing is changed then.
    pub fn open(folder: &Path) -> Result<Self, DurableError> {
        let started = Instant::now();
        let folder = Folder::lock(folder, true)?;
        let path = folder.records();
        let image = match read_records(&path)? {
            Some(image) => Some(image),
            None => {
                create(&folder, &Image::default())?;
                None
            }
        };
        let file = path.clone();
        let opener = move || {
            let file = std::fs::OpenOptions::new()
                .read(true)
                .write(true)
                .open(&file);
            let file = file.map_err(redb::StorageError::Io)?;
            database::open(FileBackend::new(file)?)
        };
        let backend = Self::over(path, Box::new(opener), image, Some(folder))?;
        tracing::info!(
            file = %backend.path.display(),
            store_index = backend.kept,
            rows = backend.image.as_ref().map_or(0, |image| image.rows.len()),
            elapsed = ?started.elapsed(),
            "the data folder is open: records and the certificate authority are kept in it"
        );
        Ok(backend)
    }

    fn over(
        path: PathBuf,
        opener: Box<dyn Fn() -> Result<Database, DatabaseError> + Send>,
        image: Option<Image>,
        folder: Option<Folder>,
    ) -> Result<Self, DurableError> {
        let db = opener().map_err(|error| failure(&path, "opened", error.into()))?;
        Ok(Self {
            path,
            opener,
            db: Some(db),
            kept: image.as_ref().map_or(0, |image| image.index),
            image,
            doubt: None,
            failing: false,
            observer: None,
            _folder: folder,
        })
    }

    /// Tells an observer of each group of commits from now on.
    #[must_use]
    pub fn observed(mut self, observer: Observer) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Writes a change, all or nothing.
    fn write(&mut self, change: &Change, index: u64) -> Result<(), DurableError> {
        // Kept out of `self` meanwhile, so that it is closed after any failure, a panic included.
        let db = match self.db.take() {
            Some(db) => db,
            None => self.reopen()?,
        };
        let mut undo = Change::default();
        match database::write(&db, change, index, &mut undo) {
            Ok(()) => {
                self.kept = index;
                self.db = Some(db);
                Ok(())
            }
            Err(error) => {
                self.doubt = Some((index, undo));
                Err(failure(&self.path, "written", error))
            }
        }
    }

    /// Opens the file after a failure, and makes it hold exactly what was answered for.
    fn reopen(&mut self) -> Result<Database, DurableError> {
        let failed = |error: redb::Error| failure(&self.path, "opened", error);
        let db = (self.opener)().map_err(|error| failed(error.into()))?;
        let found = database::index_of(&db).map_err(failed)?.unwrap_or(0);
        if found != self.kept {
            match &self.doubt {
                Some((index, undo)) if *index == found => {
                    database::write(&db, undo, self.kept, &mut Change::default())
                        .map_err(failed)?;
                }
                _ => {
                    let problem = format!("it is at index {found} instead of {}", self.kept);
                    return Err(DurableError::damaged(&self.path, problem));
                }
            }
        }
        self.doubt = None;
        Ok(db)
    }

    /// Writes a change and tells how that went.
    fn keep(
        &mut self,
        change: Result<Change, String>,
        index: u64,
        commits: usize,
    ) -> Result<(), BackendError> {
        let started = Instant::now();
        let result = match change {
            Ok(change) => self.write(&change, index),
            Err(problem) => Err(DurableError::new(
                DurableErrorKind::Record,
                &self.path,
                format!("a record can't be kept: {problem}"),
                "write it in another form",
            )),
        };
        let elapsed = started.elapsed();
        if let Some(observer) = &mut self.observer {
            observer(&Persisted {
                commits,
                elapsed,
                kept: result.is_ok(),
            });
        }
        match &result {
            Ok(()) if self.failing => {
                self.failing = false;
                tracing::info!("writes are kept again");
            }
            Ok(()) if elapsed >= SLOW => {
                tracing::warn!(?elapsed, commits, "the disk is slow: writes wait for it");
            }
            Ok(()) => tracing::debug!(?elapsed, commits, index, "commits are kept"),
            Err(error) if !self.failing => {
                self.failing = true;
                tracing::error!("writes are refused until they can be kept: {error}");
            }
            Err(error) => tracing::debug!("writes are still refused: {error}"),
        }
        result.map_err(|error| BackendError::new("kept", error))
    }
}

impl Backend for DurableBackend {
    fn load(&mut self) -> Result<Option<Image>, BackendError> {
        Ok(self.image.take())
    }

    fn persist(&mut self, commits: &[CommitRecord]) -> Result<(), BackendError> {
        let Some(last) = commits.last() else {
            return Ok(());
        };
        self.keep(merge(commits), last.index, commits.len())
    }

    fn replace(&mut self, image: &Image) -> Result<(), BackendError> {
        self.keep(Change::to_image(image), image.index, 1)
    }
}

impl fmt::Debug for DurableBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DurableBackend")
            .field("path", &self.path)
            .field("kept", &self.kept)
            .finish_non_exhaustive()
    }
}

/// The change that a group comes to: of a row that is written more than once, the last counts.
fn merge(commits: &[CommitRecord]) -> Result<Change, String> {
    let mut last = BTreeMap::new();
    for (key, row) in commits.iter().flat_map(|commit| &commit.rows) {
        last.insert(key, row);
    }
    let mut change = Change::default();
    for (key, row) in last {
        match row {
            Some(row) => change.put(row)?,
            None => {
                change.rows.insert(codec::key_bytes(key), None);
            }
        }
    }
    Ok(change)
}

/// The rows of a file, if there is one, verified.
fn read_records(path: &Path) -> Result<Option<Image>, DurableError> {
    match std::fs::read(path) {
        Ok(bytes) => database::check(path, bytes).map(Some),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(DurableError::system(path, "read", &error)),
    }
}

/// Puts a file with an image in place, whole: one that isn't finished never has the name.
fn create(folder: &Folder, image: &Image) -> Result<(), DurableError> {
    let (path, file) = folder.new_records()?;
    let failed = |error: redb::Error| failure(&path, "written", error);
    let record = |problem: String| {
        DurableError::new(
            DurableErrorKind::Record,
            &path,
            format!("a record can't be kept: {problem}"),
            "see to where it comes from",
        )
    };
    let change = Change::to_image(image).map_err(record)?;
    let backend = FileBackend::new(file).map_err(|error| failed(error.into()))?;
    let db = database::open(backend).map_err(|error| failed(error.into()))?;
    database::write(&db, &change, image.index, &mut Change::default()).map_err(failed)?;
    db.close().map_err(|error| failed(error.into()))?;
    let synced = std::fs::File::open(&path).and_then(|file| file.sync_all());
    synced.map_err(|error| DurableError::system(&path, "written", &error))?;
    folder.install(&path)
}

/// What the library says, as an error of a file.
fn failure(path: &Path, doing: &str, error: redb::Error) -> DurableError {
    match error {
        redb::Error::Io(error) => DurableError::system(path, doing, &error),
        redb::Error::Corrupted(what) => DurableError::damaged(path, what),
        other => DurableError::new(
            DurableErrorKind::System,
            path,
            format!("can't be {doing}: {other}"),
            "see to the disk, and start again",
        ),
    }
}
