//! Runs the health checks of the local agent's services (decision R1).
//!
//! One thread, the *scheduler*, owns all checks: it knows when each is due (on the [`Clock`]), hands due ones to a small
//! async runtime, takes their outcomes back and tells the [`CheckSink`] what changed. Nothing else calls the sink, so
//! reports of one check arrive in order. Everything from outside (the desired checks, heartbeats of TTL checks,
//! outcomes) is laid into one *inbox* and the scheduler is woken; the desired checks are a level, so only the latest set
//! counts.
//!
//! A run holds a socket but no thread, so a target that hangs costs only itself. At most [`MAX_CONCURRENT_RUNS`] run at
//! a time, to stay clear of the limit of open files; a run's time starts when it is let in.
//!
//! Kinds: TCP, UDP, HTTP, gRPC (standard health service), HTTP/2 ping, TTL and alias. The first attempt is made at once;
//! then one interval passes between the end of a run and the start of the next. The second run of each check is late by
//! a small time that depends on its id alone, so that checks that start together don't keep firing together.

mod connect;
mod grpc;
mod http;
mod plan;
mod probe;
mod scheduler;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::thread::{JoinHandle, ThreadId};

use crossbeam_channel::{Sender, bounded};
use parking_lot::Mutex;
use smol_str::SmolStr;

use crate::clock::Clock;
use crate::model::{CheckDefinition, CheckStatus};

use probe::Outcome;
use scheduler::Scheduler;

/// How many checks may be asking their targets at the same time.
pub const MAX_CONCURRENT_RUNS: usize = 512;

/// Names a check of the local agent.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CheckKey {
    /// Instance that it is of; empty for a check of the node.
    pub service_id: SmolStr,
    /// Its id, unique on the node.
    pub check_id: SmolStr,
}

impl CheckKey {
    /// A key.
    pub fn new(service_id: impl Into<SmolStr>, check_id: impl Into<SmolStr>) -> Self {
        Self {
            service_id: service_id.into(),
            check_id: check_id.into(),
        }
    }
}

/// A check that is to be run.
#[derive(Debug, Clone, PartialEq)]
pub struct DesiredCheck {
    /// Its name.
    pub key: CheckKey,
    /// What to do.
    pub definition: CheckDefinition,
    /// Its state until the first run ends. Counts only when the check is new.
    pub status: CheckStatus,
}

/// What an alias check finds at its target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AliasTarget {
    /// There is no such instance (or node): critical.
    Missing,
    /// The instance exists and has no checks: passing.
    NoChecks,
    /// All checks of the instance and of its node pass.
    Passing,
    /// A check doesn't pass; of several the worst one, by state and then by id.
    Failing {
        /// Its state.
        status: CheckStatus,
        /// Its name.
        name: String,
        /// Its output.
        output: String,
    },
}

/// Where outcomes go, and where alias checks read.
///
/// Called from one thread at a time, with no lock of the runner held: it may call the runner. A panic is caught and
/// logged. A check that was just taken out of the desired set may still be reported once: ignore ids that aren't known.
pub trait CheckSink: Send + Sync + 'static {
    /// The state or the output of a check changed, or it has been run for the first time.
    fn report(&self, key: &CheckKey, status: CheckStatus, output: String);

    /// A check of the instance has been critical for as long as its `DeregisterCriticalServiceAfter` (at least a minute)
    /// allows. Called again after the same time if the check is still there.
    fn deregister_service(&self, service_id: &str);

    /// What an alias check copies: the checks of the instance and of its node; only the node's own checks if
    /// `service_id` is empty. An empty `node` is the local one. The check that asks is itself to be left out.
    fn alias_target(&self, asking: &CheckKey, node: &str, service_id: &str) -> AliasTarget;
}

/// A heartbeat for a check that isn't a TTL check of the local agent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "check {check_id:?} is no TTL check of this agent; only those are updated by hand: give its definition a TTL"
)]
pub struct NotTtl {
    /// The id that was given.
    pub check_id: SmolStr,
}

/// Runs checks until dropped.
///
/// Dropping stops everything: when it returns no report runs or will run, except when it is dropped by the sink itself
/// inside a report, where that one report still ends.
pub struct CheckRunner {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    thread_id: ThreadId,
}

impl CheckRunner {
    /// Starts a runner with nothing to run.
    ///
    /// # Errors
    /// The operating system refuses threads or sockets.
    pub fn new(sink: Arc<dyn CheckSink>, clock: Arc<dyn Clock>) -> io::Result<Self> {
        let (wake, woken) = bounded(1);
        let shared = Arc::new(Shared {
            inbox: Mutex::default(),
            wake,
        });
        let scheduler = Scheduler::new(shared.clone(), sink, clock)?;
        let thread = std::thread::Builder::new()
            .name("checks".to_owned())
            .spawn(move || scheduler.run(&woken))?;
        let thread_id = thread.thread().id();
        Ok(Self {
            shared,
            thread: Some(thread),
            thread_id,
        })
    }

    /// Sets the checks that are to be run. New ones start at once, those whose definition changed start anew, unchanged
    /// ones go on undisturbed, all others stop. A definition that can't be run is reported as critical, with the reason.
    ///
    /// Of several checks with one key the last counts. Doesn't wait.
    pub fn set_checks(&self, desired: Vec<DesiredCheck>) {
        let desired: BTreeMap<CheckKey, DesiredCheck> = desired
            .into_iter()
            .map(|check| (check.key.clone(), check))
            .collect();
        let ttl = desired
            .values()
            .filter(|check| plan::is_ttl(&check.definition))
            .map(|check| (check.key.check_id.clone(), check.key.clone()))
            .collect();
        let mut inbox = self.shared.inbox.lock();
        inbox.ttl = ttl;
        inbox.desired = Some(desired);
        drop(inbox);
        self.shared.wake();
    }

    /// A heartbeat of a TTL check: sets its state and output and starts its time anew.
    ///
    /// Waits until the sink was told, so the caller must hold no lock that the sink takes; called by the sink itself it
    /// doesn't wait.
    ///
    /// # Errors
    /// The check isn't in the desired set, or has no TTL.
    pub fn ttl_update(
        &self,
        check_id: &str,
        status: CheckStatus,
        output: String,
    ) -> Result<(), NotTtl> {
        let (done, told) = bounded(1);
        let mut inbox = self.shared.inbox.lock();
        let key = match inbox.ttl.get(check_id) {
            Some(key) if !inbox.stop => key.clone(),
            _ => {
                return Err(NotTtl {
                    check_id: check_id.into(),
                });
            }
        };
        inbox.heartbeats.push(Heartbeat {
            key,
            status,
            output,
            _done: done,
        });
        drop(inbox);
        self.shared.wake();
        if std::thread::current().id() != self.thread_id {
            // The other end is dropped when the heartbeat is dealt with; nothing is ever sent.
            let _ = told.recv();
        }
        Ok(())
    }

    /// Makes all alias checks look again. Those that copy an instance whose checks are run here need no telling; those
    /// that copy others look by themselves only once per interval.
    pub fn refresh_aliases(&self) {
        self.shared.inbox.lock().refresh_aliases = true;
        self.shared.wake();
    }
}

impl Drop for CheckRunner {
    fn drop(&mut self) {
        self.shared.inbox.lock().stop = true;
        self.shared.wake();
        if let Some(thread) = self.thread.take()
            && std::thread::current().id() != self.thread_id
            && thread.join().is_err()
        {
            tracing::error!("the thread that runs health checks panicked");
        }
    }
}

impl fmt::Debug for CheckRunner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CheckRunner").finish_non_exhaustive()
    }
}

/// What the scheduler and the outside share.
struct Shared {
    inbox: Mutex<Inbox>,
    wake: Sender<()>,
}

impl Shared {
    fn wake(&self) {
        // Full: a wake-up is already on its way, and whoever takes it sees the whole inbox.
        let _ = self.wake.try_send(());
    }
}

/// What the scheduler hasn't looked at yet.
#[derive(Default)]
struct Inbox {
    desired: Option<BTreeMap<CheckKey, DesiredCheck>>,
    heartbeats: Vec<Heartbeat>,
    /// Outcomes with the number of the run that they come from.
    outcomes: Vec<(CheckKey, u64, Outcome)>,
    refresh_aliases: bool,
    stop: bool,
    /// The TTL checks of the desired set by check id. Stays when the rest is taken out.
    ttl: BTreeMap<SmolStr, CheckKey>,
}

struct Heartbeat {
    key: CheckKey,
    status: CheckStatus,
    output: String,
    /// Dropped with the heartbeat: lets the sender go on.
    _done: Sender<()>,
}

#[cfg(test)]
mod tests;
