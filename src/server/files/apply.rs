//! Brings the records of files into the store and the local state: what changed since the last time, all or nothing.
//!
//! What the last time was is kept in the store itself, in the same commit as the entries: for each file the hash of its
//! content and the entries that it wrote. So a durable store knows after a restart which files have changed meanwhile, and
//! what was written over HTTP after a file stands until that file changes (design: "records follow their file").

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::across::ids;
use super::problem::{FileProblem, FileProblems};
use super::set::{FileRecords, FileSet, Source};
use crate::model::{
    AgentCheck, ConfigEntry, EntryKey, EntryKind, NameKey, Problems, ServiceDefinition,
};
use crate::source::ChainCheck;
use crate::store::{MemoryBackend, Op, OpaqueState, Store, StoreError, StoreSnapshot, Transaction};

/// The name of the state in the store.
const STATE: &str = "files";

/// Where services and checks of files go: the local state of this agent.
pub trait LocalRecords: Send + Sync {
    /// Replaces all records of the given files at once: what one of them had before and isn't named any more goes.
    ///
    /// # Errors
    /// Every record that can't be taken in; nothing is changed then.
    fn replace(&self, records: Vec<OwnedRecords>) -> Result<(), Vec<RefusedRecord>>;

    /// What there is already when a process starts, because it was kept.
    fn kept(&self) -> KeptRecords {
        KeptRecords::default()
    }
}

/// What the local state holds at the start of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeptRecords {
    /// The files, by absolute path, that own records.
    pub files: BTreeSet<String>,
    /// Ids of services that were written over HTTP.
    pub services: BTreeSet<NameKey>,
    /// Ids of checks that were written by themselves over HTTP.
    pub checks: BTreeSet<NameKey>,
}

/// All services and checks of one file.
#[derive(Debug, Clone, PartialEq)]
pub struct OwnedRecords {
    /// The file's absolute path.
    pub file: String,
    /// Its services.
    pub services: Vec<ServiceDefinition>,
    /// Its checks that are not part of a service's definition.
    pub checks: Vec<AgentCheck>,
}

/// A record that can't be taken in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedRecord {
    /// The file's absolute path.
    pub file: String,
    /// Whether it is one of [`OwnedRecords::checks`] rather than of the services.
    pub is_check: bool,
    /// Its position among them.
    pub position: usize,
    /// What is wrong, with places within the record.
    pub problems: Problems,
}

/// Where the records of files go.
#[derive(Clone)]
pub struct FileTargets {
    /// Config entries.
    pub store: Arc<Store>,
    /// Services and checks.
    pub local: Arc<dyn LocalRecords>,
}

/// What was changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ApplyReport {
    /// The store index afterwards. Services reach the store later.
    pub store_index: u64,
    /// Files that are new or changed.
    pub files_changed: usize,
    /// Files that are gone.
    pub files_gone: usize,
    /// Config entries written; those equal to what was stored count too.
    pub entries_written: usize,
    /// Config entries deleted.
    pub entries_deleted: usize,
}

/// What is remembered of the files between two times.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct Manifest(BTreeMap<String, ManifestFile>);

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct ManifestFile {
    hash: String,
    /// Kind and name of the entries.
    entries: Vec<(String, String)>,
}

impl Manifest {
    fn of(set: &FileSet) -> Self {
        let files = set.files.iter().map(|(path, file)| {
            let keys = file.entries.iter().map(|entry| entry.record.key());
            let entries = keys.map(|key| (key.kind.to_string(), key.name.to_string()));
            let file = ManifestFile {
                hash: file.hash.to_string(),
                entries: entries.collect(),
            };
            (text(path), file)
        });
        Self(files.collect())
    }

    fn load(snapshot: &StoreSnapshot) -> Result<Self, FileProblem> {
        match snapshot.reader().state(STATE) {
            None => Ok(Self::default()),
            Some(row) => serde_json::from_slice(&row.value.0).map_err(|error| {
                FileProblem::of_all(format!(
                    "the stored list of files can't be read ({error}); start with an empty data folder"
                ))
            }),
        }
    }

    fn state(&self) -> Result<OpaqueState, FileProblem> {
        serde_json::to_vec(self).map(OpaqueState).map_err(|error| {
            FileProblem::of_all(format!("the list of files can't be written: {error}"))
        })
    }

    fn has(&self, path: &Path, file: &FileRecords) -> bool {
        self.0
            .get(&text(path))
            .is_some_and(|known| known.hash == file.hash.to_string())
    }
}

impl ManifestFile {
    fn keys(&self) -> impl Iterator<Item = EntryKey> {
        self.entries
            .iter()
            .filter_map(|(kind, name)| Some(EntryKey::new(EntryKind::from_text(kind)?, name)))
    }
}

/// The path as an owner's name. All paths in a set are UTF-8: the scan refuses others.
fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Writes what changed since the last call on this store. `start` is the first call of a process, whose local state holds at
/// most what was kept of it: services and checks of all files are given to it then, except those of unchanged files that were
/// written over HTTP afterwards, which stand.
///
/// # Errors
/// Everything that is refused, with its place; store and local state are as before then.
pub fn apply(
    set: &FileSet,
    targets: &FileTargets,
    start: bool,
) -> Result<ApplyReport, FileProblems> {
    let store = &*targets.store;
    let before = store.snapshot();
    let kept = start.then(|| targets.local.kept());
    let plan = Plan::new(set, &before, kept)?;
    let mut report = plan.report.clone();
    report.store_index = before.index();
    if plan.is_empty() {
        return Ok(report);
    }
    let undo = plan.undo(&before);
    match store.apply(Transaction::from(plan.ops)) {
        Ok(applied) => report.store_index = applied.index,
        Err(error) => return Err(refused_entries(set, &plan.sources, error)),
    }
    if let Err(refused) = targets.local.replace(plan.local) {
        let mut problems = refused_records(set, &plan.partial, refused);
        // Nothing is half-applied: the entries go back to what they were.
        if let Err(error) = store.apply(Transaction::from(undo)) {
            problems.push(FileProblem::of_all(format!(
                "the config entries of the files are written, since undoing failed: {error}"
            )));
        }
        FileProblems::none_of(problems)?;
    }
    Ok(report)
}

/// Whether the config entries of the files hold together (FC-049), tried on an empty store.
///
/// # Errors
/// Everything that is wrong with them.
pub fn check_together(set: &FileSet) -> Result<(), FileProblems> {
    let scratch = Store::new(Box::new(MemoryBackend), Arc::new(ChainCheck))
        .map_err(|error| FileProblem::of_all(error.to_string()))?;
    let plan = Plan::new(set, &scratch.snapshot(), Some(KeptRecords::default()))?;
    match scratch.apply(Transaction::from(plan.ops)) {
        Ok(_) => Ok(()),
        Err(error) => Err(refused_entries(set, &plan.sources, error)),
    }
}

/// What is to be written.
struct Plan {
    ops: Vec<Op>,
    /// Where each of `ops` comes from.
    sources: Vec<Option<Source>>,
    local: Vec<OwnedRecords>,
    /// Of files whose records aren't all in `local`: the positions of those that are, services and checks.
    partial: BTreeMap<String, (Vec<usize>, Vec<usize>)>,
    report: ApplyReport,
}

impl Plan {
    /// `kept` is given at the start of a process.
    fn new(
        set: &FileSet,
        before: &StoreSnapshot,
        kept: Option<KeptRecords>,
    ) -> Result<Self, FileProblem> {
        let manifest = Manifest::load(before)?;
        let mut plan = Self {
            ops: Vec::new(),
            sources: Vec::new(),
            local: Vec::new(),
            partial: BTreeMap::new(),
            report: ApplyReport::default(),
        };
        let changed: BTreeSet<&Path> = set
            .files
            .iter()
            .filter(|(path, file)| !manifest.has(path, file))
            .map(|(path, _)| path.as_path())
            .collect();
        let there: BTreeSet<String> = set.files.keys().map(|path| text(path)).collect();
        // A crash can have come between a file's going from the manifest and its records' going from the local state.
        let owners = kept.iter().flat_map(|kept| &kept.files);
        let known: BTreeSet<&String> = manifest.0.keys().chain(owners).collect();
        let gone: Vec<&String> = known
            .into_iter()
            .filter(|path| !there.contains(*path))
            .collect();
        plan.report.files_changed = changed.len();
        plan.report.files_gone = gone.len();
        if changed.is_empty() && gone.is_empty() && kept.is_none() {
            return Ok(plan);
        }
        plan.entries(set, &manifest, &changed);
        plan.ops.push(Op::SetState {
            name: STATE.into(),
            state: Some(Manifest::of(set).state()?),
        });
        plan.sources.push(None);
        plan.local(set, &changed, kept.as_ref());
        plan.local.extend(gone.into_iter().map(|path| OwnedRecords {
            file: path.clone(),
            services: Vec::new(),
            checks: Vec::new(),
        }));
        Ok(plan)
    }

    fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Entries of changed files are written, even if the entry itself is as before: it may have been overwritten since.
    fn entries(&mut self, set: &FileSet, manifest: &Manifest, changed: &BTreeSet<&Path>) {
        let wanted: BTreeSet<EntryKey> = set.entries().map(|entry| entry.record.key()).collect();
        let known: BTreeSet<EntryKey> = manifest.0.values().flat_map(ManifestFile::keys).collect();
        for key in known.difference(&wanted) {
            self.ops.push(Op::DeleteConfig {
                key: key.clone(),
                cas: None,
            });
            self.sources.push(None);
            self.report.entries_deleted += 1;
        }
        for (path, file) in &set.files {
            if !changed.contains(path.as_path()) {
                continue;
            }
            for entry in &file.entries {
                self.ops.push(Op::SetConfig {
                    entry: Box::new(entry.record.clone()),
                    cas: None,
                });
                self.sources.push(Some(entry.source.clone()));
                self.report.entries_written += 1;
            }
        }
    }

    fn local(&mut self, set: &FileSet, changed: &BTreeSet<&Path>, kept: Option<&KeptRecords>) {
        // A check goes with its service when that is written anew, so its file is written anew with it.
        let services: BTreeSet<NameKey> = set
            .files
            .iter()
            .filter(|(path, _)| changed.contains(path.as_path()))
            .flat_map(|(_, file)| &file.services)
            .flat_map(|service| ids(&service.record))
            .collect();
        for (path, file) in &set.files {
            let is_changed = changed.contains(path.as_path());
            let check_of_changed = |check: &super::Sourced<AgentCheck>| {
                services.contains(&NameKey::new(&check.record.service_id))
            };
            if kept.is_none() && !is_changed && !file.checks.iter().any(check_of_changed) {
                continue;
            }
            let stands = |ids: &BTreeSet<NameKey>, id: &str| ids.contains(&NameKey::new(id));
            let unchanged = kept.filter(|_| !is_changed);
            let services = file.services.iter().map(|s| &s.record).enumerate();
            let services = services.filter(|(_, service)| {
                unchanged.is_none_or(|kept| !stands(&kept.services, service.effective_id()))
            });
            let checks = file.checks.iter().map(|c| &c.record).enumerate();
            let checks = checks.filter(|(_, check)| {
                let id = match check.given_id() {
                    "" => &check.name,
                    given => given,
                };
                unchanged.is_none_or(|kept| !stands(&kept.checks, id))
            });
            let (service_positions, services): (Vec<_>, Vec<_>) =
                services.map(|(i, record)| (i, record.clone())).unzip();
            let (check_positions, checks): (Vec<_>, Vec<_>) =
                checks.map(|(i, record)| (i, record.clone())).unzip();
            let records = OwnedRecords {
                file: text(path),
                services,
                checks,
            };
            let whole = records.services.len() == file.services.len()
                && records.checks.len() == file.checks.len();
            if !whole {
                let positions = (service_positions, check_positions);
                self.partial.insert(records.file.clone(), positions);
            }
            self.local.push(records);
        }
    }

    /// The writes that bring back what the plan's would replace.
    fn undo(&self, before: &StoreSnapshot) -> Vec<Op> {
        let reader = before.reader();
        let back = |key: EntryKey| match reader.config(key.kind, key.name.as_str()) {
            Some(row) => Op::SetConfig {
                entry: Box::new(ConfigEntry::clone(&row.value)),
                cas: None,
            },
            None => Op::DeleteConfig { key, cas: None },
        };
        self.ops
            .iter()
            .map(|op| match op {
                Op::SetConfig { entry, .. } => back(entry.key()),
                Op::DeleteConfig { key, .. } => back(key.clone()),
                _ => Op::SetState {
                    name: STATE.into(),
                    state: reader.state(STATE).map(|row| (*row.value).clone()),
                },
            })
            .collect()
    }
}

fn refused_records(
    set: &FileSet,
    partial: &BTreeMap<String, (Vec<usize>, Vec<usize>)>,
    refused: Vec<RefusedRecord>,
) -> Vec<FileProblem> {
    let mut problems = Vec::new();
    for record in refused {
        let file = set.files.get(Path::new(&record.file));
        let given = partial.get(&record.file);
        let in_file = |positions: Option<&Vec<usize>>| match positions {
            Some(positions) => positions.get(record.position).copied(),
            None => Some(record.position),
        };
        let source = file.and_then(|file| {
            if record.is_check {
                let position = in_file(given.map(|(_, checks)| checks))?;
                file.checks.get(position).map(|c| &c.source)
            } else {
                let position = in_file(given.map(|(services, _)| services))?;
                file.services.get(position).map(|s| &s.source)
            }
        });
        for problem in record.problems.errors {
            problems.push(match source {
                None => FileProblem::of_all(problem.to_string()),
                Some(source) => source.problem_at(&problem.path, problem.message),
            });
        }
    }
    problems
}

fn refused_entries(set: &FileSet, sources: &[Option<Source>], error: StoreError) -> FileProblems {
    let mut problems: Vec<FileProblem> = match error {
        StoreError::Refused(refusals) => refusals
            .into_iter()
            .map(|refusal| {
                let source = position(&refusal.place).and_then(|i| sources.get(i)?.as_ref());
                match source {
                    Some(source) => source.problem(None, refusal.problem),
                    None => FileProblem::of_all(refusal.to_string()),
                }
            })
            .collect(),
        StoreError::Inconsistent(messages) => messages
            .into_iter()
            .map(|message| match entry_meant(set, &message) {
                Some(source) => source.problem(None, message),
                None => FileProblem::of_all(message),
            })
            .collect(),
        other => vec![FileProblem::of_all(other.to_string())],
    };
    problems.sort();
    match FileProblems::none_of(problems) {
        Err(problems) => problems,
        Ok(()) => FileProblem::of_all("the store refuses the config entries").into(),
    }
}

/// The position in a place such as `Ops[2].Config`.
fn position(place: &str) -> Option<usize> {
    place.strip_prefix("Ops[")?.split(']').next()?.parse().ok()
}

/// The entry that a message about several entries names first; of a service's entries the one that shapes its chain.
fn entry_meant<'s>(set: &'s FileSet, message: &str) -> Option<&'s Source> {
    let rank = |kind| match kind {
        EntryKind::ServiceIntentions | EntryKind::ServiceRouter => 0,
        EntryKind::ServiceSplitter => 1,
        EntryKind::ServiceResolver => 2,
        _ => 3,
    };
    set.entries()
        .filter_map(|entry| {
            let name = entry.record.name();
            let by_key = message.find(&format!("{}/{name}", entry.record.kind()));
            let at = by_key.or_else(|| message.find(&format!("{name:?}")))?;
            Some((at, rank(entry.record.kind()), &entry.source))
        })
        .min_by_key(|(at, rank, _)| (*at, *rank))
        .map(|(.., source)| source)
}
