//! Backups: all rows as text, a line each.
//!
//! ```text
//!  {"Proxycfg":"backup","Version":1,"WrittenBy":"0.1.0","Index":42,"Rows":7}
//!  {"Table":"node","Key":["","n1"],"CreateIndex":3,"ModifyIndex":3,"Value":{...}}
//!  ...
//!  {"SHA256":"<of all lines before, hex>"}
//! ```
//!
//! A version reads backups of its own version and all before. A backup holds private keys: whoever has it can sign
//! certificates of the mesh. So it is made from the data folder or over a socket in it, never sent over the HTTP API, and
//! readable by its owner alone.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::codec::{self, Parts};
use super::error::{DurableError, DurableErrorKind};
use super::folder::{Folder, create_private, sync_folder};
use super::{create, read_records};
use crate::store::backend::{AnyRow, Image};

/// The form that this version writes, and the newest that it reads.
const VERSION: u64 = 1;

/// What a backup begins with.
const BEGIN: &str = "{\"Proxycfg\":\"backup\",";

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Head {
    proxycfg: String,
    version: u64,
    written_by: String,
    index: u64,
    rows: u64,
}

#[derive(Serialize, Deserialize)]
struct Tail {
    #[serde(rename = "SHA256")]
    sha256: String,
}

/// Writes a backup of all rows to a file that its owner alone may read. It gets its name when it is complete; a backup that
/// has the name already is replaced.
///
/// # Errors
/// The file can't be written, or there is a file of that name that isn't a backup.
pub fn write_backup(image: &Image, path: &Path) -> Result<(), DurableError> {
    let text = backup_text(image).map_err(|problem| {
        DurableError::new(
            DurableErrorKind::Record,
            path,
            format!("a record can't be saved: {problem}"),
            "see to where it comes from",
        )
    })?;
    write_file(&text, path)
}

/// Writes a backup that came as text, if it is whole; as [`write_backup`] otherwise. Returns the store index that it holds.
///
/// # Errors
/// The text isn't a whole backup; else as for [`write_backup`].
pub fn write_backup_text(text: &[u8], path: &Path) -> Result<u64, DurableError> {
    let image = parse(text, path)?;
    write_file(text, path)?;
    Ok(image.index)
}

fn write_file(text: &[u8], path: &Path) -> Result<(), DurableError> {
    let system = |error: std::io::Error| DurableError::system(path, "written", &error);
    refuse_to_replace(path)?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let beside = path.with_file_name(name);
    let mut file = create_private(&beside).map_err(system)?;
    let written = file.write_all(text).and_then(|()| {
        file.sync_all()?;
        std::fs::rename(&beside, path)?;
        match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => sync_folder(parent),
            _ => sync_folder(Path::new(".")),
        }
    });
    written.map_err(|error| {
        // If it can't be removed either, the error that follows says more than this one would.
        let _ = std::fs::remove_file(&beside);
        system(error)
    })
}

fn refuse_to_replace(path: &Path) -> Result<(), DurableError> {
    let system = |error: &std::io::Error| DurableError::system(path, "written", error);
    let mut begin = Vec::new();
    match File::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(system(&error)),
        Ok(file) => {
            let read = file.take(BEGIN.len() as u64).read_to_end(&mut begin);
            read.map_err(|error| system(&error))?;
        }
    }
    if begin == BEGIN.as_bytes() {
        return Ok(());
    }
    Err(DurableError::foreign(
        path,
        "it is no backup, and would be overwritten",
    ))
}

/// A backup of all rows.
///
/// # Errors
/// A record that has no JSON form.
pub fn backup_text(image: &Image) -> Result<Vec<u8>, String> {
    fn line(out: &mut Vec<u8>, value: &impl Serialize) -> Result<(), String> {
        serde_json::to_writer(&mut *out, value).map_err(|error| error.to_string())?;
        out.push(b'\n');
        Ok(())
    }
    let mut out = Vec::new();
    let head = Head {
        proxycfg: "backup".to_owned(),
        version: VERSION,
        written_by: env!("CARGO_PKG_VERSION").to_owned(),
        index: image.index,
        rows: image.rows.len() as u64,
    };
    line(&mut out, &head)?;
    for row in &image.rows {
        line(&mut out, &codec::to_parts(row)?)?;
    }
    let digest = ring::digest::digest(&ring::digest::SHA256, &out);
    let tail = Tail {
        sha256: hex(digest.as_ref()),
    };
    line(&mut out, &tail)?;
    Ok(out)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads a backup, all of it or nothing.
///
/// # Errors
/// It can't be read, isn't complete, or a newer version wrote it.
pub fn read_backup(path: &Path) -> Result<Image, DurableError> {
    let text = std::fs::read(path).map_err(|error| DurableError::system(path, "read", &error))?;
    parse(&text, path)
}

fn parse(text: &[u8], path: &Path) -> Result<Image, DurableError> {
    if !text.starts_with(BEGIN.as_bytes()) {
        return Err(DurableError::foreign(
            path,
            "it doesn't begin as a backup does",
        ));
    }
    let broken = |line: usize, problem: &str| {
        DurableError::new(
            DurableErrorKind::Damaged,
            path,
            format!("the backup is damaged (line {line}: {problem})"),
            "use another backup; nothing was changed",
        )
    };
    let cut_off = "it is cut off";
    let mut lines = text.split_inclusive(|byte| *byte == b'\n');
    let head = lines.next().unwrap_or_default();
    let head: Head = serde_json::from_slice(head).map_err(|_| broken(1, cut_off))?;
    if head.version > VERSION {
        return Err(DurableError::newer(
            path,
            head.version,
            &head.written_by,
            VERSION,
        ));
    }
    let mut image = Image {
        index: head.index,
        rows: Vec::new(),
    };
    let mut number = 1;
    let mut end = text.len() - lines.clone().map(<[u8]>::len).sum::<usize>();
    for _ in 0..head.rows {
        number += 1;
        let line = lines.next().ok_or_else(|| broken(number, cut_off))?;
        end += line.len();
        // Messages may quote what they stumbled over, and this file holds keys: where it is must do.
        let parts: Parts = serde_json::from_slice(line).map_err(|error| {
            broken(
                number,
                &format!("column {} isn't as it was written", error.column()),
            )
        })?;
        let row = codec::from_parts(&parts).map_err(|problem| broken(number, &problem))?;
        image.rows.push(row);
    }
    number += 1;
    let tail = lines.next().ok_or_else(|| broken(number, cut_off))?;
    let tail: Tail = serde_json::from_slice(tail).map_err(|_| broken(number, cut_off))?;
    if lines.next().is_some() {
        return Err(broken(number + 1, "nothing should follow"));
    }
    let content = text.get(..end).unwrap_or_default();
    let digest = ring::digest::digest(&ring::digest::SHA256, content);
    if tail.sha256 != hex(digest.as_ref()) {
        return Err(broken(
            number,
            "the lines before aren't as they were written",
        ));
    }
    image.rows.sort_by_cached_key(AnyRow::key);
    Ok(image)
}

/// Makes a backup of a data folder that no process uses (see [`DurableErrorKind::InUse`]). Returns the store index that it holds.
///
/// # Errors
/// The folder is in use or isn't good, or the backup can't be written.
pub fn backup(folder: &Path, path: &Path) -> Result<u64, DurableError> {
    let folder = Folder::lock(folder, false)?;
    let Some(image) = read_records(&folder.records())? else {
        return Err(DurableError::new(
            DurableErrorKind::Missing,
            folder.path(),
            "the data folder holds no records",
            "give the folder that `proxycfg serve --data-dir` uses",
        ));
    };
    write_backup(&image, path)?;
    Ok(image.index)
}

/// Puts a backup into a data folder that no process uses; `amend` may change what is put in. If there are records already it
/// is refused, unless `force` is set: then they go, and the store index goes on from the higher of the two. Returns the
/// store index.
///
/// # Errors
/// The backup isn't good, the folder is in use, holds records, or can't be written. It is as before then.
pub fn restore<E: From<DurableError>>(
    path: &Path,
    folder: &Path,
    force: bool,
    amend: impl FnOnce(&mut Image) -> Result<(), E>,
) -> Result<u64, E> {
    let mut image = read_backup(path)?;
    let folder = Folder::lock(folder, true)?;
    let records = folder.records();
    if records.exists() {
        if !force {
            return Err(DurableError::new(
                DurableErrorKind::NotEmpty,
                &records,
                "there are records already",
                "give another folder, or add --force to replace them",
            )
            .into());
        }
        match read_records(&records) {
            Ok(Some(old)) if old.index >= image.index => image.index = old.index + 1,
            Ok(_) => {}
            // What can't be read can't be gone on from; to get rid of it is what --force is for.
            Err(error) => tracing::warn!("replaced: {error}"),
        }
    }
    amend(&mut image)?;
    create(&folder, &image)?;
    Ok(image.index)
}
