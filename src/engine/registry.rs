//! The proxies of an engine: who is registered, who watches, and when each state runs.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::model::{ProxyId, ProxySource, ServiceKind};
use crate::proxy::{CohortOutput, Issue, ProxyState, Registration};
use crate::snapshot::{ConfigSnapshot, PartRef};
use crate::source::{AuthScope, QueryError, QueryId};
use crate::sync::Latest;

use super::cohorts::Cohort;
use super::progress::{Gate, Gates};
use super::queries::QuerySlot;

/// A snapshot as it is handed out.
pub type SnapshotRef = triomphe::Arc<ConfigSnapshot>;

/// The cell that the watchers of a proxy read.
pub(super) type SnapshotCell = Latest<SnapshotRef>;

/// One generation of a registered proxy: it ends with deregistration, a change of kind or token, or a terminal error.
pub(super) struct Entry {
    /// Number of the state; never used again.
    pub number: u64,
    pub id: triomphe::Arc<ProxyId>,
    pub kind: ServiceKind,
    /// On whose behalf data is fetched.
    pub scope: AuthScope,
    pub cell: Arc<SnapshotCell>,
    /// Nothing of this generation may be delivered any more.
    pub retired: AtomicBool,
    /// The state ended by itself; [`Meta::ended`] says why.
    pub ended: AtomicBool,
    pub meta: Mutex<Meta>,
    pub schedule: Mutex<Schedule>,
    pub run: Mutex<RunState>,
}

/// What may change while a generation lives.
#[derive(Debug)]
pub(super) struct Meta {
    pub source: ProxySource,
    pub registration: PartRef<Registration>,
    /// Why the state ended by itself.
    pub ended: Option<Box<QueryError>>,
    /// The store index of the last snapshot.
    pub store_index: Option<u64>,
    /// The last panic or internal error.
    pub fault: Option<Box<Fault>>,
    /// Whether the state had all that a current snapshot needs after its last run.
    pub ready: bool,
    /// What it lacked after its last run.
    pub issues: Box<[Issue]>,
}

/// What went wrong inside.
#[derive(Debug, Default)]
pub(super) struct Fault {
    pub text: String,
    /// How many in a row.
    pub in_a_row: u32,
}

/// When the state runs: a token stands in each lane at most once.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    pub in_fast: bool,
    pub in_bulk: bool,
    pub running: bool,
    /// Answers that changed since the last run.
    pub marks: Marks,
    /// The step of the last run.
    pub ran_at: u64,
    /// Look at everything.
    pub all: bool,
    /// A run is wanted.
    pub wanted: bool,
    /// What this state hasn't taken in.
    pub gates: Gates,
}

impl Schedule {
    /// Whether the state has run at the step of `work`, and nobody is at it.
    pub fn has_taken_in(&self, work: &Gate) -> bool {
        !self.running && self.is_at(work)
    }

    fn is_at(&self, work: &Gate) -> bool {
        work.step().is_some_and(|seq| self.ran_at >= seq)
    }

    /// Keeps the step of `work` open until the state has taken it in. Returns whether that needs another run.
    pub fn want_for(&mut self, work: &Gate) -> bool {
        // An older one holds back newer steps too.
        if !self.gates.holds_step() {
            self.gates.add(work.clone());
        }
        let wanted = !self.is_at(work);
        self.wanted |= wanted;
        wanted
    }
}

/// The queries that a state holds, sorted by id: a proxy's own parts need one or two.
pub(super) type Held = SmallVec<[Arc<QuerySlot>; 2]>;

/// Lets go of the queries that aren't among `wants`, which is sorted.
pub(super) fn keep_wanted(held: &mut Held, wants: &[QueryId]) -> Vec<Arc<QuerySlot>> {
    let mut dropped = Vec::new();
    held.retain(|slot| {
        let keep = wants.binary_search(&slot.id).is_ok();
        if !keep {
            dropped.push(slot.clone());
        }
        keep
    });
    dropped
}

/// Queries whose change may not be marked: because the state came for them while the step given was being marked, or because
/// their answer wasn't taken care of. Looked at again in every run until one at that step.
#[derive(Debug, Default)]
pub(super) struct Recent(pub Vec<(QueryId, u64)>);

impl Recent {
    /// Adds them to what a run at step `seq` looks at. Returns whether there are any.
    pub fn look_at(&mut self, seq: u64, dirty: &mut Vec<QueryId>) -> bool {
        dirty.extend(self.0.iter().map(|(query, _)| *query));
        let any = !self.0.is_empty();
        self.0.retain(|(_, marking)| *marking > seq);
        any
    }
}

/// What only the worker that runs the state touches.
#[derive(Debug)]
pub(super) struct RunState {
    pub state: ProxyState,
    /// What the proxy shares with its replicas, once its registration is known.
    pub cohort: Option<Arc<Cohort>>,
    /// What of the cohort stands in the proxy's status.
    pub told: Option<CohortOutput>,
    /// When the proxy's own parts are to be looked at even if no answer changes.
    pub own_deadline: Option<Duration>,
    /// The proxy's own parts were built, which its status doesn't show yet.
    pub untold: bool,
    /// The queries held for the proxy's own parts, sorted by id.
    pub held: Held,
    pub recent: Recent,
    /// A snapshot that waits for its turn under a publish limit.
    pub unpublished: Option<SnapshotRef>,
    /// The earliest monotonic time to publish at.
    pub publish_at: Duration,
    /// The earliest time that the step loop was asked to run the state at, if that is still to come.
    pub armed: Option<Duration>,
    /// After a fault: don't run before this monotonic time.
    pub blocked_until: Duration,
}

/// Answers that changed since a state's last run, with the step that they changed in. They are marked before the step is
/// published, so that a run at it knows them all: else it would show half of a transaction. A run at an older step leaves them.
#[derive(Debug, Default)]
pub(super) struct Marks(Vec<(QueryId, u64)>);

impl Marks {
    /// Marks an answer as changed in step `seq`, which is published next.
    pub fn add(&mut self, query: QueryId, seq: u64) {
        let marks = &mut self.0;
        if marks.len() >= 64 && marks.len() == marks.capacity() {
            // A state that hasn't run for long: no run will be at a step before the newest.
            for mark in &mut *marks {
                mark.1 = mark.1.max(seq - 1);
            }
            marks.sort_unstable();
            marks.dedup();
        }
        marks.push((query, seq));
    }

    /// Takes the answers that changed up to step `seq`.
    pub fn take(&mut self, seq: u64) -> Vec<QueryId> {
        if self.0.is_empty() {
            return Vec::new();
        }
        let mut taken = Vec::with_capacity(self.0.len());
        self.0.retain(|(query, changed)| {
            let due = *changed <= seq;
            if due {
                taken.push(*query);
            }
            !due
        });
        if self.0.is_empty() {
            // Most states are marked seldom.
            self.0 = Vec::new();
        }
        taken
    }
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entry")
            .field("number", &self.number)
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl Entry {
    pub fn is_retired(&self) -> bool {
        self.retired.load(Ordering::SeqCst)
    }

    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }
}

/// A proxy id that is registered, watched, or both.
#[derive(Default)]
pub(super) struct Proxy {
    pub entry: Option<Arc<Entry>>,
    pub cell: Arc<SnapshotCell>,
    pub watchers: usize,
}

/// All proxies.
#[derive(Default)]
pub(super) struct Registry {
    proxies: Mutex<HashMap<triomphe::Arc<ProxyId>, Proxy, RandomState>>,
    next_number: AtomicU64,
    /// Watches alive.
    pub watches: AtomicU64,
    /// States alive.
    pub states: AtomicU64,
}

impl Registry {
    pub fn next_number(&self) -> u64 {
        self.next_number.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Works on one proxy under the registry's lock; a proxy that is then neither registered nor watched is forgotten.
    pub fn with<R>(&self, id: &ProxyId, work: impl FnOnce(&mut Proxy) -> R) -> R {
        let mut proxies = self.proxies.lock();
        if let Some(proxy) = proxies.get_mut(id) {
            let result = work(proxy);
            if proxy.entry.is_none() && proxy.watchers == 0 {
                proxies.remove(id);
            }
            return result;
        }
        let mut proxy = Proxy::default();
        let result = work(&mut proxy);
        if proxy.entry.is_some() || proxy.watchers > 0 {
            let shared = proxy.entry.as_ref().map(|entry| entry.id.clone());
            let shared = shared.unwrap_or_else(|| triomphe::Arc::new(id.clone()));
            proxies.insert(shared, proxy);
        }
        result
    }

    /// The registered generation of a proxy.
    pub fn entry(&self, id: &ProxyId) -> Option<Arc<Entry>> {
        self.proxies.lock().get(id).and_then(|p| p.entry.clone())
    }

    /// Every proxy: its generation if registered, and its number of watchers; sorted by id.
    pub fn all(&self) -> Vec<(ProxyId, Option<Arc<Entry>>, usize)> {
        let mut all: Vec<_> = self
            .proxies
            .lock()
            .iter()
            .map(|(id, p)| (ProxyId::clone(id), p.entry.clone(), p.watchers))
            .collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    }

    /// Takes everything out, for the end of the engine.
    pub fn drain(&self) -> Vec<Proxy> {
        self.proxies
            .lock()
            .drain()
            .map(|(_, proxy)| proxy)
            .collect()
    }

    /// How many proxies are registered or watched.
    pub fn len(&self) -> usize {
        self.proxies.lock().len()
    }
}
