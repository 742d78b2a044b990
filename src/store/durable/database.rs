//! The file: one table of rows, one of what the file says about itself; read carefully, changed in transactions.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use parking_lot::Mutex;
use redb::{
    Builder, Database, DatabaseError, ReadableDatabase as _, ReadableTable as _, StorageBackend,
    StorageError, TableDefinition, TableError,
};
use serde::{Deserialize, Serialize};

use super::codec;
use super::error::DurableError;
use crate::store::backend::{AnyRow, Image};

/// The format that this version writes, and the newest that it reads.
pub(super) const FORMAT: u64 = 1;

/// What every file of the underlying library begins with.
const MAGIC: &[u8] = b"redb\x1A\x0A";

/// Memory for pages. Everything is read once, at the start; after that only what writes touch.
const CACHE: usize = 16 * 1024 * 1024;

const ROWS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("proxycfg.rows");
const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("proxycfg.meta");

/// What the file says about itself.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Format {
    format: u64,
    written_by: String,
}

/// A change of the file: rows by the bytes of their keys; removed if they have no value.
#[derive(Debug, Default)]
pub(super) struct Change {
    /// Whether all rows that aren't named go.
    pub clear: bool,
    /// The rows.
    pub rows: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
}

impl Change {
    /// The change that makes the file hold an image.
    pub fn to_image(image: &Image) -> Result<Self, String> {
        let mut change = Self {
            clear: true,
            ..Self::default()
        };
        for row in &image.rows {
            change.put(row)?;
        }
        Ok(change)
    }

    /// Adds a row. One that wouldn't read back as it is is refused: nothing is acknowledged that a restart would lose.
    pub fn put(&mut self, row: &AnyRow) -> Result<(), String> {
        let key = codec::key_bytes(&row.key());
        let value = codec::value_bytes(row)?;
        let again = codec::from_bytes(&key, &value)?;
        // Times of roots are cut to whole seconds, as certificates have them.
        if again != *row && !matches!(row, AnyRow::CaRoots(_)) {
            return Err(format!(
                "{}: it would read back as another record",
                codec::name_of(&row.key())
            ));
        }
        self.rows.insert(key, Some(value));
        Ok(())
    }
}

fn builder() -> Builder {
    let mut builder = Builder::new();
    builder.set_cache_size(CACHE);
    builder
}

/// Opens a file that [`check`] has found good, or an empty one.
pub(super) fn open(storage: impl StorageBackend) -> Result<Database, DatabaseError> {
    builder().create_with_backend(storage)
}

/// Writes a change durably, with the store index that it leads to. What comes back undoes it.
///
/// If it fails, the database must be dropped and opened again; it may or may not hold the change then.
pub(super) fn write(
    db: &Database,
    change: &Change,
    index: u64,
    undo: &mut Change,
) -> Result<(), redb::Error> {
    let mut transaction = db.begin_write()?;
    // So that a damaged file is noticed, instead of being taken back silently by a commit.
    transaction.set_two_phase_commit(true);
    {
        let mut meta = transaction.open_table(META)?;
        meta.insert("index", index.to_be_bytes().as_slice())?;
        if meta.get("format")?.is_none() {
            let own = Format {
                format: FORMAT,
                written_by: env!("CARGO_PKG_VERSION").to_owned(),
            };
            // Plain text and a number: that has a JSON form.
            let own = serde_json::to_vec(&own).unwrap_or_default();
            meta.insert("format", own.as_slice())?;
        }
        let mut rows = transaction.open_table(ROWS)?;
        if change.clear {
            undo.clear = true;
            for row in rows.iter()? {
                let (key, value) = row?;
                undo.rows
                    .insert(key.value().to_vec(), Some(value.value().to_vec()));
            }
            rows.retain(|_, _| false)?;
        }
        for (key, value) in &change.rows {
            let old = match value {
                Some(value) => rows.insert(key.as_slice(), value.as_slice())?,
                None => rows.remove(key.as_slice())?,
            };
            if !change.clear {
                undo.rows
                    .insert(key.clone(), old.map(|old| old.value().to_vec()));
            }
        }
    }
    transaction.commit()?;
    Ok(())
}

/// The store index that the file is at; none if it holds nothing yet.
pub(super) fn index_of(db: &Database) -> Result<Option<u64>, redb::Error> {
    let transaction = db.begin_read()?;
    let meta = match transaction.open_table(META) {
        Ok(meta) => meta,
        Err(TableError::TableDoesNotExist(_)) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let index = meta.get("index")?;
    Ok(index.and_then(|index| Some(u64::from_be_bytes(index.value().try_into().ok()?))))
}

/// Reads all rows from a copy of a file, which is verified first: a file that isn't good isn't touched at all, also not by
/// the repair that follows a crash.
pub(super) fn check(path: &Path, bytes: Vec<u8>) -> Result<Image, DurableError> {
    if !bytes.starts_with(MAGIC) {
        let problem = if bytes.is_empty() {
            "it is empty"
        } else {
            "it doesn't begin as such a file does"
        };
        return Err(DurableError::foreign(path, problem));
    }
    let copy = Copy(Mutex::new(bytes));
    // The library promises no panics for a file that it verifies; a promise is not a proof.
    let read = catch_unwind(AssertUnwindSafe(|| {
        let mut builder = builder();
        builder.set_check_integrity_on_open(true);
        let db = builder
            .create_with_backend(copy)
            .map_err(|error| unreadable(path, error))?;
        read(path, &db)
    }));
    read.unwrap_or_else(|_| Err(DurableError::damaged(path, "its structure is broken")))
}

fn unreadable(path: &Path, error: DatabaseError) -> DurableError {
    match error {
        DatabaseError::UpgradeRequired(version) => {
            DurableError::damaged(path, format!("its container has the version {version}"))
        }
        DatabaseError::Storage(StorageError::Corrupted(what)) => DurableError::damaged(path, what),
        other => DurableError::damaged(path, other),
    }
}

fn read(path: &Path, db: &Database) -> Result<Image, DurableError> {
    let damaged = |error: redb::Error| DurableError::damaged(path, error);
    let transaction = db.begin_read().map_err(|e| damaged(e.into()))?;
    let meta = match transaction.open_table(META) {
        Ok(meta) => meta,
        Err(TableError::Storage(error)) => return Err(damaged(error.into())),
        Err(_) => {
            return Err(DurableError::foreign(
                path,
                "it is another program's database",
            ));
        }
    };
    let format = meta.get("format").map_err(|e| damaged(e.into()))?;
    let format: Option<Format> =
        format.and_then(|format| serde_json::from_slice(format.value()).ok());
    let Some(format) = format else {
        return Err(DurableError::damaged(path, "it doesn't say its format"));
    };
    if format.format > FORMAT {
        return Err(DurableError::newer(
            path,
            format.format,
            &format.written_by,
            FORMAT,
        ));
    }
    let index = index_of(db).map_err(damaged)?;
    let index = index.ok_or_else(|| DurableError::damaged(path, "it has no store index"))?;
    let mut rows = Vec::new();
    let table = transaction.open_table(ROWS);
    let table = table.map_err(|e| damaged(e.into()))?;
    for row in table.iter().map_err(|e| damaged(e.into()))? {
        let (key, value) = row.map_err(|e| damaged(e.into()))?;
        let row = codec::from_bytes(key.value(), value.value())
            .map_err(|problem| DurableError::damaged(path, problem))?;
        rows.push(row);
    }
    rows.sort_by_cached_key(AnyRow::key);
    Ok(Image { index, rows })
}

/// A file's content in memory.
struct Copy(Mutex<Vec<u8>>);

impl fmt::Debug for Copy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Copy")
    }
}

fn range(offset: u64, len: usize) -> Option<std::ops::Range<usize>> {
    let start = usize::try_from(offset).ok()?;
    Some(start..start.checked_add(len)?)
}

impl StorageBackend for Copy {
    fn len(&self) -> Result<u64, std::io::Error> {
        Ok(self.0.lock().len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), std::io::Error> {
        let content = self.0.lock();
        let wanted = range(offset, out.len()).and_then(|range| content.get(range));
        match wanted {
            Some(wanted) => out.copy_from_slice(wanted),
            None => return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof)),
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> Result<(), std::io::Error> {
        let len = usize::try_from(len).map_err(std::io::Error::other)?;
        self.0.lock().resize(len, 0);
        Ok(())
    }

    fn sync_data(&self) -> Result<(), std::io::Error> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), std::io::Error> {
        let mut content = self.0.lock();
        match range(offset, data.len()).and_then(|range| content.get_mut(range)) {
            Some(place) => place.copy_from_slice(data),
            None => return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof)),
        }
        Ok(())
    }
}
