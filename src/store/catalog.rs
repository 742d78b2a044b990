//! The store itself: commits transactions, publishes snapshots, and tells who is concerned.
//!
//! A commit drafts the next tables beside those of the commit before, lets the check judge, and joins the queue of commits
//! that are to be kept. Of the writers that wait for that, one gives everything that has queued up to the back end in one go,
//! publishes the snapshots in order by swapping a pointer, hands the changed keys to all feeds and collects the waits they
//! end; then it lets go of the locks and wakes. So a durable back end is waited for once by many writers, readers see
//! nothing that isn't kept, and they never wait longer than that swap. If the back end fails, the queue is refused as a whole:
//! each draft stands on the one before.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_channel::bounded;
use parking_lot::{Condvar, Mutex, RwLock};
use triomphe::Arc;

use crate::clock::Clock;
use crate::model::HealthCheck;
use crate::store::backend::{Backend, BackendError, CommitRecord, Image};
use crate::store::draft::{Draft, take_peer};
use crate::store::feed::{ChangeFeed, Feeds};
use crate::store::key::{InstanceKey, Key, PeeredName};
use crate::store::snapshot::{Reader, Reads, StoreSnapshot};
use crate::store::tables::Tables;
use crate::store::transaction::{
    Applied, Op, Refusal, Register, StoreError, Transaction, WriteCheck,
};
use crate::store::wait::{BlockingQuery, Found, WaitHandle, Waits, Waker, wake_all};
use crate::sync::fault::{self, Point};

/// The catalog and the configuration. Share it by reference or in an `Arc`; all methods may be called from any thread.
pub struct Store {
    current: RwLock<StoreSnapshot>,
    drafts: Mutex<Drafts>,
    /// Signalled when a group has been kept or refused; goes with `drafts`.
    settled: Condvar,
    /// Only whoever has set [`Drafts::keeping`] locks it.
    backend: Mutex<Box<dyn Backend>>,
    feeds: Arc<Feeds>,
    waits: Arc<Waits>,
    observer: OnceLock<CommitObserver>,
    next_id: AtomicU64,
}

/// Is told the store index of each commit, on the thread that commits, just before it can be seen.
pub type CommitObserver = Box<dyn Fn(u64) + Send + Sync>;

/// The commits that aren't published yet.
struct Drafts {
    check: std::sync::Arc<dyn WriteCheck>,
    /// The state after the last of them; the published one if there are none.
    head: StoreSnapshot,
    /// Those that the back end hasn't been given yet, in order.
    queue: Vec<Queued>,
    /// How the last one ended, or will.
    last: Option<Outcome>,
    /// Whether somebody is having a group kept: one at a time does. Snapshots are published by that one only.
    keeping: bool,
}

/// A drafted commit.
struct Queued {
    record: CommitRecord,
    after: StoreSnapshot,
    keys: Vec<Key>,
    outcome: Outcome,
}

/// Set when a commit is published or refused by the back end.
type Outcome = Arc<OnceLock<Result<(), BackendError>>>;

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store")
            .field("index", &self.snapshot().index())
            .finish_non_exhaustive()
    }
}

impl Store {
    /// A store with what the back end has kept, whose writes are judged by `check`.
    ///
    /// # Errors
    /// If the back end can't be read.
    pub fn new(
        mut backend: Box<dyn Backend>,
        check: std::sync::Arc<dyn WriteCheck>,
    ) -> Result<Self, StoreError> {
        let mut tables = Tables::default();
        if let Some(image) = backend.load()? {
            tables = load(&image, image.index);
        }
        let snapshot = StoreSnapshot {
            tables: Arc::new(tables),
        };
        Ok(Self {
            current: RwLock::new(snapshot.clone()),
            backend: Mutex::new(backend),
            drafts: Mutex::new(Drafts {
                check,
                head: snapshot,
                queue: Vec::new(),
                last: None,
                keeping: false,
            }),
            settled: Condvar::new(),
            feeds: Arc::default(),
            waits: Arc::default(),
            observer: OnceLock::new(),
            next_id: AtomicU64::new(1),
        })
    }

    /// The current state. Costs one reference count.
    #[must_use]
    pub fn snapshot(&self) -> StoreSnapshot {
        self.current.read().clone()
    }

    /// Applies a transaction: all of it takes effect at the next store index, or nothing does. If it writes only what is
    /// stored already, the index stays and nobody is woken.
    ///
    /// # Errors
    /// If a write contradicts what is stored, the check refuses the outcome, or the back end can't keep it.
    pub fn apply(&self, transaction: Transaction) -> Result<Applied, StoreError> {
        let (answer, outcome) = self.drafts.lock().draft(transaction);
        if let Some(outcome) = outcome {
            self.settle(&outcome)?;
        }
        answer
    }

    /// Waits until a drafted commit is published. If nobody is having commits kept, does that itself, for all that wait.
    fn settle(&self, outcome: &Outcome) -> Result<(), BackendError> {
        let mut drafts = self.drafts.lock();
        loop {
            if let Some(settled) = outcome.get() {
                return settled.clone();
            }
            if !drafts.keeping {
                break;
            }
            self.settled.wait(&mut drafts);
        }
        drafts.keeping = true;
        let group = std::mem::take(&mut drafts.queue);
        drop(drafts);
        let wakers = self.keep(group);
        self.drafts.lock().keeping = false;
        self.settled.notify_all();
        self.feeds.wake();
        wake_all(wakers);
        outcome.get().cloned().unwrap_or_else(|| {
            let lost = "the commit got lost in the queue; this is a fault in the store";
            Err(BackendError::new("kept", lost))
        })
    }

    /// Has the back end keep a group, and publishes it; returns the wakers to call. For who is keeping.
    fn keep(&self, group: Vec<Queued>) -> Vec<Waker> {
        if group.is_empty() {
            return Vec::new();
        }
        let (records, rest): (Vec<_>, Vec<_>) = group
            .into_iter()
            .map(|queued| (queued.record, (queued.after, queued.keys, queued.outcome)))
            .unzip();
        let mut backend = self.backend.lock();
        let kept = catch_unwind(AssertUnwindSafe(|| {
            if fault::hit(Point::Persist) {
                return Err(BackendError::new("kept", "fault point: back end"));
            }
            backend.persist(&records)
        }));
        drop(backend);
        let kept = kept.unwrap_or_else(|_| Err(panicked()));
        let mut wakers = Vec::new();
        match kept {
            Ok(()) => {
                for (after, keys, outcome) in rest {
                    wakers.extend(self.publish(after, Some(&keys)));
                    // Set once only.
                    let _ = outcome.set(Ok(()));
                }
            }
            Err(error) => {
                let mut drafts = self.drafts.lock();
                drafts.head = self.snapshot();
                drafts.last = None;
                let later = std::mem::take(&mut drafts.queue);
                drop(drafts);
                let outcomes = rest.into_iter().map(|(.., outcome)| outcome);
                for outcome in outcomes.chain(later.into_iter().map(|queued| queued.outcome)) {
                    let _ = outcome.set(Err(error.clone()));
                }
            }
        }
        wakers
    }

    /// All rows of the current state.
    #[must_use]
    pub fn image(&self) -> Image {
        self.snapshot().tables.image()
    }

    /// Replaces everything by an image. The store index goes on from the higher of the two; rows keep their indexes. All
    /// waits end, and all feeds report that everything changed.
    ///
    /// # Errors
    /// If the back end can't keep it; the store is then as before.
    pub fn restore(&self, image: &Image) -> Result<u64, StoreError> {
        let mut drafts = self.drafts.lock();
        while drafts.keeping {
            self.settled.wait(&mut drafts);
        }
        drafts.keeping = true;
        let mut wakers = Vec::new();
        while !drafts.queue.is_empty() {
            let group = std::mem::take(&mut drafts.queue);
            drop(drafts);
            wakers.extend(self.keep(group));
            drafts = self.drafts.lock();
        }
        // Nothing is drafted from here on.
        let before = self.snapshot();
        let index = before.index().max(image.index) + 1;
        let tables = load(image, index);
        let rows = image.rows.clone();
        let replacement = Image { index, rows };
        let kept = catch_unwind(AssertUnwindSafe(|| {
            self.backend.lock().replace(&replacement)
        }));
        let kept = kept.unwrap_or_else(|_| Err(panicked()));
        if kept.is_ok() {
            let after = StoreSnapshot {
                tables: Arc::new(tables),
            };
            drafts.head = after.clone();
            wakers.extend(self.publish(after, None));
        }
        drafts.keeping = false;
        drop(drafts);
        self.settled.notify_all();
        // Only now: freeing all tables takes a while.
        drop(before);
        self.feeds.wake();
        wake_all(wakers);
        kept?;
        Ok(index)
    }

    /// A feed of all commits from now on. To miss nothing, make the feed before taking the first snapshot.
    #[must_use]
    pub fn changes(&self) -> ChangeFeed {
        Feeds::open(&self.feeds, self.new_id())
    }

    /// Has every commit from now on told to `observer`, which must only take note, and not panic. There can be one: a second
    /// is ignored.
    pub fn observe_commits(&self, observer: CommitObserver) {
        // Whoever was first stays.
        let _ = self.observer.set(observer);
    }

    /// Calls `waker` once as soon as one of the keys has changed since the store index `after` (that of the snapshot
    /// they were read from): at once, on this thread, if that is so already. Dropping the handle cancels.
    #[must_use]
    pub fn wait_until_changed(&self, reads: Reads, after: u64, waker: Waker) -> WaitHandle {
        let id = self.new_id();
        let handle = Waits::add(&self.waits, id, reads.clone(), waker);
        // Only now, so that a commit in between isn't missed: it has seen either the wait or the older snapshot.
        let now = self.snapshot();
        if reads.keys().iter().any(|key| now.key_index(key) > after)
            && let Some(waker) = self.waits.cancel(id)
        {
            wake_all(vec![waker]);
        }
        handle
    }

    /// How many waits are pending.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waits.len()
    }

    /// Runs a query until it has something newer than `min_index`, or `wait` has passed by the clock; blocks the calling
    /// thread in between (store.md 2.4). The answer comes with the query's index, which is to be asked with the next time.
    ///
    /// # Errors
    /// The query's own, at once.
    pub fn blocking_query<T, E>(
        &self,
        clock: &dyn Clock,
        min_index: u64,
        wait: Duration,
        mut query: impl FnMut(&Reader<'_>) -> Result<(T, Found), E>,
    ) -> Result<(u64, T), E> {
        let mut alarm = None;
        let mut state = BlockingQuery::new(min_index);
        loop {
            let snapshot = self.snapshot();
            let reader = Reader::new(&snapshot);
            let (answer, found) = query(&reader)?;
            let reads = reader.finish();
            let index = snapshot.index_of(&reads);
            if state.answers(index, snapshot.restored_at(), found) {
                return Ok((index, answer));
            }
            let alarm = alarm.get_or_insert_with(|| clock.alarm(wait));
            let (wake, woken) = bounded(1);
            let waker = Box::new(move || {
                // The receiver lives as long as the handle; if it is gone, nobody waits.
                let _ = wake.try_send(());
            });
            let handle = self.wait_until_changed(reads, snapshot.index(), waker);
            let timed_out = crossbeam_channel::select! {
                recv(woken) -> _ => false,
                recv(alarm) -> _ => true,
            };
            drop(handle);
            if timed_out {
                return Ok((index, answer));
            }
        }
    }

    /// The store index of the last draft.
    #[cfg(test)]
    pub(super) fn drafted(&self) -> u64 {
        self.drafts.lock().head.index()
    }

    /// Makes a state the current one and tells the feeds; returns the wakers to call. For who is keeping.
    fn publish(&self, after: StoreSnapshot, keys: Option<&[Key]>) -> Vec<Waker> {
        if let Some(observer) = self.observer.get() {
            observer(after.index());
        }
        let replaced = std::mem::replace(&mut *self.current.write(), after.clone());
        self.feeds.push(&after, keys);
        let wakers = self.waits.take(keys);
        drop(replaced);
        wakers
    }

    fn new_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }
}

fn panicked() -> BackendError {
    BackendError::new("kept", "the back end panicked; the log has more")
}

impl Drafts {
    /// Drafts a commit and queues it. The outcome that comes with the answer must be good for the answer to hold: that of
    /// the commit; or, if nothing is to be written, that of the last commit, which the answer may stem from.
    fn draft(
        &mut self,
        transaction: Transaction,
    ) -> (Result<Applied, StoreError>, Option<Outcome>) {
        let before = self.head.clone();
        let as_is = |stale| Applied {
            index: before.index(),
            changed: false,
            stale,
        };
        let mut draft = Draft::new(&before.tables);
        match run(&mut draft, transaction) {
            Err(error) => return (Err(error), self.unsettled()),
            Ok(stale) if !stale.is_empty() || draft.is_unchanged() => {
                return (Ok(as_is(stale)), self.unsettled());
            }
            Ok(_) => {}
        }
        let keys = draft.changed_keys();
        for key in &keys {
            draft.tables.stamp(key);
        }
        let record = draft.record();
        let entries = draft.config_entries();
        let after = StoreSnapshot {
            tables: Arc::new(draft.tables),
        };
        if !entries.is_empty()
            && let Err(problems) = self.check.check(&before, &after, &entries)
        {
            return (Err(StoreError::Inconsistent(problems)), self.unsettled());
        }
        let applied = Applied {
            index: after.index(),
            changed: true,
            stale: Vec::new(),
        };
        let outcome = Outcome::default();
        self.head = after.clone();
        self.last = Some(outcome.clone());
        self.queue.push(Queued {
            record,
            after,
            keys,
            outcome: outcome.clone(),
        });
        (Ok(applied), Some(outcome))
    }

    /// The outcome of the last commit, if it isn't published yet.
    fn unsettled(&mut self) -> Option<Outcome> {
        if self.last.as_ref().is_some_and(|last| last.get().is_some()) {
            self.last = None;
        }
        self.last.clone()
    }
}

/// The tables of an image, at an index that no key's index is below.
fn load(image: &Image, index: u64) -> Tables {
    let mut draft = Draft::new(&Tables::default());
    draft.tables.index = index;
    for row in &image.rows {
        draft.load(row);
    }
    draft.tables.floor = index;
    draft.tables
}

/// Applies all writes to a draft; the positions of those whose expected row index didn't match. Stops at the first write
/// that is refused, with all its problems.
fn run(draft: &mut Draft, transaction: Transaction) -> Result<Vec<usize>, StoreError> {
    let mut stale = Vec::new();
    for (position, op) in transaction.ops.into_iter().enumerate() {
        let mut problems = Problems {
            position,
            found: Vec::new(),
        };
        if !run_op(draft, op, &mut problems) {
            stale.push(position);
        }
        if !problems.found.is_empty() {
            return Err(StoreError::Refused(problems.found));
        }
    }
    Ok(stale)
}

struct Problems {
    position: usize,
    found: Vec<Refusal>,
}

impl Problems {
    fn note<T>(&mut self, place: &str, result: Result<T, String>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(problem) => {
                self.found.push(Refusal {
                    place: format!("Ops[{}].{place}", self.position),
                    problem,
                });
                None
            }
        }
    }
}

/// Applies a write; whether the expected row index, if any, matched.
fn run_op(draft: &mut Draft, op: Op, problems: &mut Problems) -> bool {
    match op {
        Op::Register(register) => run_register(draft, *register, problems),
        Op::DeregisterNode { node } => draft.remove_node(&node),
        Op::DeregisterService { node, id } => draft.remove_instance(&InstanceKey { node, id }),
        Op::DeregisterCheck { node, check_id } => draft.remove_check(&node, &check_id),
        Op::SetCheck(check) => {
            let result = draft.put_check(*check);
            problems.note("Check", result);
        }
        Op::SetConfig { entry, cas } => {
            let result = draft.put_config(*entry, cas);
            return problems.note("Config", result).unwrap_or(true);
        }
        Op::DeleteConfig { key, cas } => return draft.remove_config(&key, cas),
        Op::SetCaRoots { roots, cas } => {
            let result = draft.put_ca_roots(*roots, cas);
            return problems.note("CaRoots", result).unwrap_or(true);
        }
        Op::SetCaConfig { config, cas } => return draft.put_ca_config(*config, cas),
        Op::SetState { name, state } => draft.put_state(name, state),
    }
    true
}

fn run_register(draft: &mut Draft, register: Register, problems: &mut Problems) {
    let Register {
        node,
        service,
        check,
        checks,
        skip_node_update,
    } = register;
    let name = node.node.clone();
    let key = PeeredName::new(&node.peer_name, &node.node);
    if !(skip_node_update && draft.tables.nodes.contains_key(&key)) {
        let result = if skip_node_update && node.address.is_empty() {
            Err(format!(
                "there is no node {name:?} to leave as it is; give its Address, or register it first"
            ))
        } else {
            draft.put_node(node)
        };
        if problems.note("Register.Node", result).is_none() {
            return;
        }
    }
    if let Some(service) = service {
        let result = draft.put_instance(&key, service);
        if problems.note("Register.Service", result).is_none() {
            return;
        }
    }
    if let Some(check) = check {
        let result = put_check_on(draft, &name, &key, check);
        problems.note("Register.Check", result);
    }
    for (i, check) in checks.into_iter().enumerate() {
        let result = put_check_on(draft, &name, &key, check);
        problems.note(&format!("Register.Checks[{i}]"), result);
    }
}

/// Writes a check that belongs to a registration of a node.
fn put_check_on(
    draft: &mut Draft,
    name: &str,
    node: &PeeredName,
    mut check: HealthCheck,
) -> Result<(), String> {
    if !check.node.is_empty() && !check.node.eq_ignore_ascii_case(name) {
        return Err(format!(
            "the check is of node {:?}, the registration of {name:?}; register it with its own node",
            check.node
        ));
    }
    name.clone_into(&mut check.node);
    take_peer(&mut check.peer_name, node)?;
    draft.put_check(check)
}
