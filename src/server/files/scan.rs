//! Which files the given paths mean, and their bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fmt;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use ring::digest::{SHA256, digest};

use super::FileLimits;
use super::problem::{FileProblem, ShownPath};
use crate::hcl::MAX_SIZE;

/// SHA-256 of a file's bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ContentHash([u8; 32]);

impl ContentHash {
    /// The hash of some bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        let mut hash = [0; 32];
        hash.copy_from_slice(digest(&SHA256, bytes).as_ref());
        Self(hash)
    }
}

impl fmt::Display for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ContentHash({self})")
    }
}

/// What lies at the paths at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Scan {
    /// The files by absolute path.
    pub files: BTreeMap<PathBuf, ScannedFile>,
    /// Paths and files that can't be read.
    pub problems: Vec<FileProblem>,
    /// What looks like a mistake.
    pub warnings: Vec<FileProblem>,
}

/// One file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ScannedFile {
    pub shown: ShownPath,
    pub bytes: Vec<u8>,
    pub hash: ContentHash,
}

/// What tells one state of the files from another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fingerprint {
    files: BTreeMap<PathBuf, ContentHash>,
    problems: Vec<FileProblem>,
}

impl Scan {
    pub fn fingerprint(&self) -> Fingerprint {
        let files = self.files.iter();
        Fingerprint {
            files: files.map(|(path, f)| (path.clone(), f.hash)).collect(),
            problems: self.problems.clone(),
        }
    }
}

/// Reads all files that the paths mean: a file itself, of a folder its `.json` and `.hcl` files. Hidden files are left
/// out, and with them what editors and volume mounts put beside the real ones. A file that is named twice is read once.
/// Reading ends where there is too much.
pub(super) fn scan(paths: &[PathBuf], limits: &FileLimits) -> Scan {
    let mut scan = Scan::default();
    let mut left = limits.all;
    for path in paths {
        let shown = ShownPath::from(path.to_string_lossy());
        match std::fs::metadata(path) {
            Err(error) => {
                let why = unreadable(path, &error);
                scan.problems.push(FileProblem::of_file(&shown, why));
            }
            Ok(there) if there.is_dir() => {
                scan_folder(path, &shown, limits, &mut left, &mut scan);
            }
            Ok(_) => scan_file(path, limits, &mut left, &mut scan),
        }
    }
    scan.problems.sort();
    scan.problems.dedup();
    scan.warnings.sort();
    scan.warnings.dedup();
    scan
}

/// Folders in which something happens when one of the files changes.
pub(super) fn folders_to_watch(paths: &[PathBuf]) -> BTreeSet<PathBuf> {
    let mut folders = BTreeSet::new();
    let parent = |path: &Path| match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => PathBuf::from("."),
        Some(parent) => parent.to_owned(),
        None => path.to_owned(),
    };
    for path in paths {
        let is_folder = path.is_dir();
        if is_folder {
            folders.insert(path.clone());
        }
        // Of a folder too: it may be a link that is pointed elsewhere.
        folders.insert(parent(path));
        let files = if is_folder {
            list(path).unwrap_or_default()
        } else {
            vec![path.clone()]
        };
        let real = files.iter().filter_map(|file| file.canonicalize().ok());
        folders.extend(real.map(|file| parent(&file)));
    }
    folders.retain(|folder| folder.is_dir());
    folders
}

fn scan_folder(
    folder: &Path,
    shown: &ShownPath,
    limits: &FileLimits,
    left: &mut usize,
    scan: &mut Scan,
) {
    let entries = match list(folder) {
        Ok(entries) => entries,
        Err(error) => {
            let why = unreadable(folder, &error);
            scan.problems.push(FileProblem::of_file(shown, why));
            return;
        }
    };
    let mut any = false;
    for path in entries {
        if path.is_dir() {
            let folder = ShownPath::from(path.to_string_lossy());
            scan.warnings.push(FileProblem::of_file(
                &folder,
                "a folder inside a folder is not read; give it a --config of its own or remove it",
            ));
        } else if is_config_name(&path) {
            any = true;
            scan_file(&path, limits, left, scan);
        }
    }
    if !any {
        scan.warnings.push(FileProblem::of_file(
            shown,
            "there is no .json or .hcl file in this folder",
        ));
    }
}

/// What is in a folder, by name, without hidden files.
fn list(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if !name.starts_with('.') {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

fn is_config_name(path: &Path) -> bool {
    let extension = path.extension().and_then(OsStr::to_str);
    matches!(extension, Some("json" | "hcl"))
}

fn scan_file(path: &Path, limits: &FileLimits, left: &mut usize, scan: &mut Scan) {
    let shown = ShownPath::from(path.to_string_lossy());
    if path.to_str().is_none() {
        scan.problems.push(FileProblem::of_file(
            &shown,
            "the file's name is not UTF-8; rename it",
        ));
        return;
    }
    let most = limits.file.min(MAX_SIZE);
    let read = std::path::absolute(path).and_then(|absolute| Ok((absolute, read(path, most)?)));
    match read {
        Ok((absolute, Ok(bytes))) => {
            let Some(rest) = left.checked_sub(bytes.len()) else {
                let most = size(limits.all);
                scan.problems.push(FileProblem::of_all(format!(
                    "the files together are larger than {most} (--max-config-total); give fewer or smaller ones"
                )));
                return;
            };
            *left = rest;
            let hash = ContentHash::of(&bytes);
            scan.files
                .entry(absolute)
                .or_insert(ScannedFile { shown, bytes, hash });
        }
        Ok((_, Err(why))) => scan.problems.push(FileProblem::of_file(&shown, why)),
        Err(error) => {
            let why = unreadable(path, &error);
            scan.problems.push(FileProblem::of_file(&shown, why));
        }
    }
}

/// The bytes of a file, or why it isn't one that can be configuration.
fn read(path: &Path, most: usize) -> std::io::Result<Result<Vec<u8>, String>> {
    // Before opening: opening a pipe would wait for a writer.
    if !std::fs::metadata(path)?.is_file() {
        return Ok(Err(
            "is not a regular file; give a .json or .hcl file".to_owned()
        ));
    }
    let mut bytes = Vec::new();
    std::fs::File::open(path)?
        .take((most as u64).saturating_add(1))
        .read_to_end(&mut bytes)?;
    if bytes.len() > most {
        let flag = if most < MAX_SIZE {
            " (--max-config-file)"
        } else {
            ""
        };
        return Ok(Err(format!(
            "is larger than {}{flag}; split it",
            size(most)
        )));
    }
    Ok(Ok(bytes))
}

/// A number of bytes in words.
fn size(bytes: usize) -> String {
    const MIB: usize = 1024 * 1024;
    if bytes.is_multiple_of(MIB) {
        format!("{} MiB", bytes / MIB)
    } else {
        format!("{bytes} bytes")
    }
}

fn unreadable(path: &Path, error: &std::io::Error) -> String {
    use std::io::ErrorKind;
    match error.kind() {
        ErrorKind::NotFound if path.is_symlink() => {
            "is a symbolic link to a file that doesn't exist; mend or remove the link".to_owned()
        }
        ErrorKind::NotFound => "there is no such file or folder; correct the path".to_owned(),
        ErrorKind::PermissionDenied => {
            "can't be read: permission denied; let this user read it".to_owned()
        }
        _ => format!("can't be read: {error}"),
    }
}
