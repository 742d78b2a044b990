//! Reads the files again when they change.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded, select};
use notify::event::{AccessKind, AccessMode};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use tracing::{debug, warn};

use super::apply::{ApplyReport, FileTargets, apply};
use super::problem::{FileProblem, FileProblems};
use super::scan::{Fingerprint, folders_to_watch, scan};
use super::set::FileSet;
use super::{FileLimits, FileRecords, read_all};
use crate::clock::Clock;
use crate::sync::Background;

/// What came of looking at the files again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReloadOutcome {
    /// The files are as they were when they were last looked at.
    Unchanged,
    /// What changed is in effect.
    Applied {
        /// What was changed.
        report: ApplyReport,
        /// Warnings that weren't there before.
        warnings: Vec<FileProblem>,
        /// Settings of the agent that changed: they take effect at the next start.
        settings: Vec<&'static str>,
    },
    /// The files contradict themselves, each other or what is stored. Nothing was changed.
    Refused(FileProblems),
}

/// Looks at the files again, on demand.
pub struct Reloader {
    paths: Vec<PathBuf>,
    limits: FileLimits,
    targets: FileTargets,
    /// The files when they were last looked at, good or bad.
    seen: Option<Fingerprint>,
    /// The records in effect.
    current: FileSet,
    refused: bool,
}

impl Reloader {
    /// A reloader of files whose records, `current`, are in effect.
    #[must_use]
    pub fn new(
        paths: Vec<PathBuf>,
        limits: FileLimits,
        targets: FileTargets,
        current: FileSet,
    ) -> Self {
        Self {
            paths,
            limits,
            targets,
            seen: None,
            current,
            refused: false,
        }
    }

    /// The records in effect.
    #[must_use]
    pub fn current(&self) -> &FileSet {
        &self.current
    }

    /// Looks at the files, and applies them if they differ from when they were last looked at. `forced` tries again what
    /// was refused, since other records may have changed meanwhile.
    pub fn reload(&mut self, forced: bool) -> ReloadOutcome {
        let scan = scan(&self.paths, &self.limits);
        let fingerprint = scan.fingerprint();
        let seen = self.seen.replace(fingerprint.clone());
        let is_seen = match seen {
            Some(seen) => seen == fingerprint,
            // The first look: what is in effect was read earlier.
            None => {
                scan.problems.is_empty() && {
                    let hashes = scan.files.iter().map(|(path, f)| (path, f.hash));
                    let current = self.current.files.iter();
                    let hash_of = |file: &FileRecords| file.hash;
                    hashes.eq(current.map(|(path, f)| (path, hash_of(f))))
                }
            }
        };
        if is_seen && !(forced && self.refused) {
            return ReloadOutcome::Unchanged;
        }
        let outcome = read_all(scan).and_then(|set| {
            let report = apply(&set, &self.targets, false)?;
            Ok((set, report))
        });
        match outcome {
            Err(problems) => {
                self.refused = true;
                ReloadOutcome::Refused(problems)
            }
            Ok((set, report)) => {
                self.refused = false;
                let known: BTreeSet<_> = self.current.warnings.iter().collect();
                let new = set.warnings.iter().filter(|w| !known.contains(w));
                let warnings = new.cloned().collect();
                let settings = set.settings.changed_from(&self.current.settings);
                self.current = set;
                ReloadOutcome::Applied {
                    report,
                    warnings,
                    settings,
                }
            }
        }
    }
}

/// How files are watched.
#[derive(Debug, Clone, Copy)]
pub struct WatchOptions {
    /// How long nothing must happen before the files are read: editors and tools write in several steps.
    pub quiet: Duration,
    /// How long to wait at most while something keeps happening.
    pub longest: Duration,
    /// How often to look without having been told, for file systems that don't tell.
    pub poll: Duration,
    /// The same if the operating system's notices can't be had at all.
    pub poll_alone: Duration,
}

impl Default for WatchOptions {
    fn default() -> Self {
        Self {
            quiet: Duration::from_millis(250),
            longest: Duration::from_secs(3),
            poll: Duration::from_secs(30),
            poll_alone: Duration::from_secs(2),
        }
    }
}

/// A thread that reloads the files when they change. Dropping it ends the thread.
pub struct FileWatcher {
    // First, so that the thread has ended before the channel to it closes.
    _thread: Background,
    force: Sender<()>,
}

impl FileWatcher {
    /// Starts watching. `report` is told every outcome other than [`ReloadOutcome::Unchanged`], and that one too if the
    /// reload was forced.
    ///
    /// # Errors
    /// The operating system refuses a thread.
    pub fn start(
        reloader: Reloader,
        options: WatchOptions,
        clock: Arc<dyn Clock>,
        report: impl FnMut(&ReloadOutcome) + Send + 'static,
    ) -> std::io::Result<Self> {
        let (force, forced) = bounded(1);
        let task = WatchTask {
            reloader,
            options,
            clock,
            report: Box::new(report),
            forced,
            folders: BTreeSet::new(),
        };
        let thread = Background::spawn("proxycfg-files", move |stopped| task.run(stopped))?;
        Ok(Self {
            force,
            _thread: thread,
        })
    }

    /// Looks at the files now. Doesn't wait.
    pub fn reload_now(&self) {
        // Full: a request is on its way.
        let _ = self.force.try_send(());
    }
}

struct WatchTask {
    reloader: Reloader,
    options: WatchOptions,
    clock: Arc<dyn Clock>,
    report: Box<dyn FnMut(&ReloadOutcome) + Send>,
    forced: Receiver<()>,
    /// Folders that the operating system tells about.
    folders: BTreeSet<PathBuf>,
}

/// Why the files are looked at.
enum Reason {
    Notice,
    Poll,
    Forced,
    Stop,
}

impl WatchTask {
    fn run(mut self, stopped: &Receiver<()>) {
        let (wake, woken) = bounded(1);
        let mut watcher = open_watcher(wake);
        self.watch_folders(&mut watcher);
        // What changed before the watch began would otherwise go unnoticed.
        self.look(false);
        loop {
            let poll = match watcher {
                Some(_) => self.options.poll,
                None => self.options.poll_alone,
            };
            let forced = match self.wait(stopped, &woken, poll) {
                Reason::Stop => return,
                Reason::Notice => {
                    if !self.wait_for_quiet(stopped, &woken) {
                        return;
                    }
                    false
                }
                Reason::Poll => false,
                Reason::Forced => true,
            };
            // Before reading, so that a change after it is noticed.
            self.watch_folders(&mut watcher);
            self.look(forced);
        }
    }

    fn wait(&self, stopped: &Receiver<()>, woken: &Receiver<()>, poll: Duration) -> Reason {
        let poll = self.clock.alarm(poll);
        select! {
            recv(stopped) -> _ => Reason::Stop,
            recv(self.forced) -> asked => if asked.is_ok() { Reason::Forced } else { Reason::Stop },
            recv(woken) -> _ => Reason::Notice,
            recv(poll) -> _ => Reason::Poll,
        }
    }

    /// False if the watcher is to stop.
    fn wait_for_quiet(&self, stopped: &Receiver<()>, woken: &Receiver<()>) -> bool {
        let longest = self.clock.alarm(self.options.longest);
        loop {
            let quiet = self.clock.alarm(self.options.quiet);
            select! {
                recv(stopped) -> _ => return false,
                recv(woken) -> _ => {}
                recv(quiet) -> _ => return true,
                recv(longest) -> _ => return true,
            }
        }
    }

    fn look(&mut self, forced: bool) {
        let outcome = self.reloader.reload(forced);
        if forced || outcome != ReloadOutcome::Unchanged {
            (self.report)(&outcome);
        }
    }

    fn watch_folders(&mut self, watcher: &mut Option<RecommendedWatcher>) {
        let Some(watcher) = watcher else { return };
        let wanted = folders_to_watch(&self.reloader.paths);
        for folder in self.folders.difference(&wanted) {
            if let Err(error) = watcher.unwatch(folder) {
                debug!(folder = %folder.display(), %error, "folder is not watched any more");
            }
        }
        for folder in &wanted {
            // Again even if it is watched: a folder of that name may be another one by now.
            if let Err(error) = watcher.watch(folder, RecursiveMode::NonRecursive)
                && !self.folders.contains(folder)
            {
                warn!(folder = %folder.display(), %error, "can't watch this folder for changes; looking now and then");
            }
        }
        self.folders = wanted;
    }
}

fn open_watcher(wake: Sender<()>) -> Option<RecommendedWatcher> {
    let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        let concerns = match event {
            // Reading makes notices too, ours among them.
            Ok(event) => match event.kind {
                EventKind::Access(AccessKind::Close(AccessMode::Write)) => true,
                EventKind::Access(_) => false,
                _ => true,
            },
            Err(_) => true,
        };
        if concerns {
            // Full: a wake-up is on its way.
            let _ = wake.try_send(());
        }
    });
    match watcher {
        Ok(watcher) => Some(watcher),
        Err(error) => {
            warn!(%error, "the operating system doesn't tell when files change; looking every few seconds");
            None
        }
    }
}
