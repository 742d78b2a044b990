//! Blocking reads (store.md 2.4): a reader that found nothing new waits until one of its keys changes.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use parking_lot::Mutex;
use triomphe::Arc;

use crate::store::key::Key;
use crate::store::readers::Readers;
use crate::store::snapshot::Reads;
use crate::sync::fault::{self, Point};

/// Called once when something that was read has changed. Runs on the thread that commits, without any lock; it should
/// only pass the news on. If it panics, that is logged and the commit stands.
pub type Waker = Box<dyn FnOnce() + Send>;

/// A pending wait; dropping it cancels. A waker that is just being called may still run after that.
#[derive(Debug)]
pub struct WaitHandle {
    id: u64,
    waits: Arc<Waits>,
}

impl Drop for WaitHandle {
    fn drop(&mut self) {
        // The waker is dropped outside of the lock, since it may own anything.
        let _waker = self.waits.cancel(self.id);
    }
}

/// The pending waits of a store.
#[derive(Default)]
pub(super) struct Waits(Mutex<Pending>);

#[derive(Default)]
struct Pending {
    readers: Readers<u64>,
    wakers: HashMap<u64, Waker, foldhash::quality::RandomState>,
}

impl std::fmt::Debug for Waits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Waits({})", self.len())
    }
}

impl Waits {
    /// Adds a wait on keys.
    pub fn add(waits: &Arc<Self>, id: u64, reads: Reads, waker: Waker) -> WaitHandle {
        let mut pending = waits.0.lock();
        pending.readers.set(id, reads);
        pending.wakers.insert(id, waker);
        drop(pending);
        WaitHandle {
            id,
            waits: waits.clone(),
        }
    }

    /// Ends a wait; its waker if it wasn't called yet.
    pub fn cancel(&self, id: u64) -> Option<Waker> {
        let mut pending = self.0.lock();
        pending.readers.remove(&id);
        pending.wakers.remove(&id)
    }

    /// Ends the waits that a commit affects; `None` means all of them. The caller wakes them when it holds no lock.
    pub fn take(&self, keys: Option<&[Key]>) -> Vec<Waker> {
        let mut pending = self.0.lock();
        let ids = match keys {
            Some(keys) => pending.readers.affected(keys),
            None => pending.readers.all(),
        };
        ids.iter()
            .filter_map(|id| {
                pending.readers.remove(id);
                pending.wakers.remove(id)
            })
            .collect()
    }

    pub fn len(&self) -> usize {
        self.0.lock().wakers.len()
    }
}

/// Calls wakers, each on its own: one that panics doesn't keep the others from being called.
pub(super) fn wake_all(wakers: Vec<Waker>) {
    for waker in wakers {
        if catch_unwind(AssertUnwindSafe(|| {
            waker();
            let _ = fault::hit(Point::Waker);
        }))
        .is_err()
        {
            tracing::error!("a waker of a blocking read panicked");
        }
    }
}

/// What a run of a blocking query found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// There is an answer.
    Yes,
    /// What was asked for doesn't exist.
    No,
    /// The answer is the one of the run before.
    Same,
}

/// When a blocking query answers (store.md 2.4). Feed it each run; it says whether that run's answer goes out, or
/// what to wait for.
///
/// - A first run with an index above the asked one answers, also with "not found".
/// - A run again not found, or again the same, raises the asked index to its own: noise doesn't wake the waiter.
/// - A restore in between answers with whatever there is.
#[derive(Debug, Clone)]
pub struct BlockingQuery {
    min_index: u64,
    not_found_before: bool,
    first: bool,
    restored_at: Option<u64>,
}

impl BlockingQuery {
    /// A query that asks for an index above `min_index`; 0 asks for an answer at once.
    #[must_use]
    pub fn new(min_index: u64) -> Self {
        Self {
            min_index,
            not_found_before: false,
            first: true,
            restored_at: None,
        }
    }

    /// Whether the run answers: `index` is the query's, `restored_at` the snapshot's.
    pub fn answers(&mut self, index: u64, restored_at: u64, found: Found) -> bool {
        let restored = self
            .restored_at
            .replace(restored_at)
            .is_some_and(|at| at != restored_at);
        let first = std::mem::replace(&mut self.first, false);
        if self.min_index == 0 || restored {
            return true;
        }
        let again_not_found = found == Found::No && self.not_found_before;
        let again_same = found == Found::Same && !first;
        self.not_found_before = found == Found::No;
        if again_not_found || again_same {
            self.min_index = self.min_index.max(index);
        }
        index > self.min_index
    }
}
