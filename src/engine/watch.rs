//! Watches: how snapshots reach whoever wants them.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use crate::model::ProxyId;
use crate::sync::fault::{self, Point};
use crate::sync::{Read, WakerId};

use super::callbacks::on_engine_thread;
use super::core::Core;
use super::registry::{SnapshotCell, SnapshotRef};
use super::status::WaitError;

/// Why a watch gave its last snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WatchEnd {
    /// The proxy ended (its token is no longer valid) or the engine was closed; watch again if you still want it.
    #[error("the watch has ended; watch again")]
    Ended,
}

/// A watch on the snapshots of one proxy: a cell that the holder reads or waits on. Dropping it cancels it.
///
/// It gives the newest snapshot, skips what came between, never gives one twice, and never goes back in time.
pub struct Watch {
    subscription: Subscription,
    seen: u64,
}

/// One watcher of a proxy in the registry.
struct Subscription {
    core: Arc<Core>,
    id: ProxyId,
    cell: Arc<SnapshotCell>,
    waker: Option<WakerId>,
}

impl Subscription {
    fn open(core: &Arc<Core>, id: &ProxyId) -> Self {
        let cell = core.registry.with(id, |proxy| {
            if proxy.cell.is_ended() && proxy.entry.as_ref().is_none_or(|e| e.has_ended()) {
                // The old cell ended with its generation; a new watch waits for the next.
                proxy.cell = Arc::default();
                proxy.watchers = 0;
            }
            proxy.watchers += 1;
            proxy.cell.clone()
        });
        core.registry.watches.fetch_add(1, Ordering::Relaxed);
        Self {
            core: core.clone(),
            id: id.clone(),
            cell,
            waker: None,
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Some(waker) = self.waker {
            self.cell.remove_waker(waker);
        }
        self.core.registry.watches.fetch_sub(1, Ordering::Relaxed);
        self.core.registry.with(&self.id, |proxy| {
            // A watcher of an ended cell isn't counted with those of the cell that replaced it.
            if Arc::ptr_eq(&proxy.cell, &self.cell) {
                proxy.watchers = proxy.watchers.saturating_sub(1);
            }
        });
    }
}

impl Watch {
    pub(super) fn open(core: &Arc<Core>, id: &ProxyId) -> Self {
        Self {
            subscription: Subscription::open(core, id),
            seen: 0,
        }
    }

    /// The proxy watched.
    #[must_use]
    pub fn proxy_id(&self) -> &ProxyId {
        &self.subscription.id
    }

    /// The newest snapshot, if there is one that this watch hasn't given yet.
    ///
    /// # Errors
    /// The watch has ended.
    pub fn try_next(&mut self) -> Result<Option<SnapshotRef>, WatchEnd> {
        let read = self.subscription.cell.read_after(self.seen);
        self.take(read)
    }

    /// Waits for a snapshot that this watch hasn't given yet. `None` at the deadline.
    ///
    /// # Errors
    /// The watch has ended, or the call comes from a thread of the engine, where a wait could never end.
    pub fn next(&mut self, deadline: Option<Instant>) -> Result<Option<SnapshotRef>, WaitError> {
        if on_engine_thread() {
            return Err(WaitError::EngineThread);
        }
        let read = self.subscription.cell.wait_after(self.seen, deadline);
        self.take(read).map_err(|WatchEnd::Ended| WaitError::Ended)
    }

    fn take(&mut self, read: Read<SnapshotRef>) -> Result<Option<SnapshotRef>, WatchEnd> {
        match read {
            Read::New(snapshot, version) => {
                self.seen = version;
                Ok(Some(snapshot))
            }
            Read::Unchanged => Ok(None),
            Read::Ended => Err(WatchEnd::Ended),
        }
    }

    /// The newest snapshot, whether given before or not.
    #[must_use]
    pub fn current(&self) -> Option<SnapshotRef> {
        self.subscription.cell.get()
    }

    /// Has a function called after every new snapshot and at the end, for use with another event loop. It is called on a
    /// worker thread: it must only signal, and not block. A second one replaces the first.
    pub fn set_waker(&mut self, waker: impl Fn() + Send + Sync + 'static) {
        if let Some(old) = self.subscription.waker.take() {
            self.subscription.cell.remove_waker(old);
        }
        self.subscription.waker = Some(self.subscription.cell.add_waker(waker));
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch")
            .field("id", &self.subscription.id)
            .field("seen", &self.seen)
            .finish_non_exhaustive()
    }
}

/// What a watch callback is called with.
#[derive(Debug, Clone)]
pub enum WatchEvent {
    /// A new snapshot.
    Snapshot(SnapshotRef),
    /// The watch has ended; nothing more comes.
    Ended,
}

type Callback = Box<dyn FnMut(WatchEvent) + Send>;

/// A watch that calls a function with each new snapshot, on the engine's callback pool. Dropping it cancels it.
///
/// The function is never called by two threads at a time. If it is slow it gets only the newest snapshot; if it blocks, it
/// holds one thread of the pool; if it panics, the panic is logged and the next snapshot is tried again.
pub struct CallbackWatch {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    idle: Condvar,
    cell: Arc<SnapshotCell>,
    core: Arc<Core>,
    /// Given up, and the watch with it, when the watch is cancelled and no call is under way.
    held: Mutex<Option<(Callback, Subscription)>>,
}

#[derive(Default)]
struct State {
    seen: u64,
    queued: bool,
    running: bool,
    cancelled: bool,
    ended: bool,
}

impl CallbackWatch {
    pub(super) fn open(core: &Arc<Core>, id: &ProxyId, callback: Callback) -> Self {
        let mut subscription = Subscription::open(core, id);
        let cell = subscription.cell.clone();
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            idle: Condvar::new(),
            cell: cell.clone(),
            core: core.clone(),
            held: Mutex::new(None),
        });
        let weak = Arc::downgrade(&shared);
        subscription.waker = Some(cell.add_waker(move || {
            if let Some(shared) = weak.upgrade() {
                Shared::schedule(&shared);
            }
        }));
        *shared.held.lock() = Some((callback, subscription));
        Shared::schedule(&shared);
        Self { shared }
    }

    /// Ends the watch. After this returns no call of the function runs or will run, and the function has been dropped. Called
    /// from a thread of the engine (from within a callback) it doesn't wait: the drop of the function marks the end.
    pub fn cancel(&self) {
        self.shared.cancel();
    }
}

impl Drop for CallbackWatch {
    fn drop(&mut self) {
        self.shared.cancel();
    }
}

impl fmt::Debug for CallbackWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallbackWatch").finish_non_exhaustive()
    }
}

impl Shared {
    fn schedule(this: &Arc<Self>) {
        {
            let mut state = this.state.lock();
            if state.cancelled
                || state.ended
                || std::mem::replace(&mut state.queued, true)
                || state.running
            {
                return;
            }
        }
        let job = this.clone();
        this.core.callbacks.spawn(move || job.deliver());
    }

    /// Calls the function until there is nothing new.
    fn deliver(&self) {
        let mut state = self.state.lock();
        if state.running {
            return;
        }
        state.running = true;
        while !state.cancelled && !state.ended && std::mem::take(&mut state.queued) {
            let read = self.cell.read_after(state.seen);
            let event = match read {
                Read::New(snapshot, version) => {
                    state.seen = version;
                    // The end, if there is one, is found in the next round.
                    state.queued |= self.cell.is_ended();
                    WatchEvent::Snapshot(snapshot)
                }
                Read::Unchanged => continue,
                Read::Ended => {
                    state.ended = true;
                    WatchEvent::Ended
                }
            };
            drop(state);
            self.call(event);
            state = self.state.lock();
        }
        if state.cancelled {
            // Still running as far as others can see: whoever waits for the end waits for the drop of the function too.
            drop(state);
            self.let_go();
            state = self.state.lock();
        }
        state.running = false;
        drop(state);
        self.idle.notify_all();
    }

    fn call(&self, event: WatchEvent) {
        // Taken out for the call, so that no lock is held while foreign code runs.
        let Some((mut callback, subscription)) = self.held.lock().take() else {
            return;
        };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| {
            callback(event);
            let _ = fault::hit(Point::Callback);
        })) {
            tracing::error!(proxy = %subscription.id, panic = super::panic_text(panic.as_ref()), "a watch callback panicked");
        }
        *self.held.lock() = Some((callback, subscription));
    }

    fn cancel(&self) {
        let mut state = self.state.lock();
        state.cancelled = true;
        while state.running {
            if on_engine_thread() {
                // Whoever runs it lets go when done.
                return;
            }
            self.idle.wait(&mut state);
        }
        // A second cancel at the same time waits until the function is dropped.
        state.running = true;
        drop(state);
        self.let_go();
        self.state.lock().running = false;
        self.idle.notify_all();
    }

    /// Drops the function: foreign code, which may panic.
    fn let_go(&self) {
        let Some((callback, subscription)) = self.held.lock().take() else {
            return;
        };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(callback))) {
            tracing::error!(proxy = %subscription.id, panic = super::panic_text(panic.as_ref()), "the end of a watch callback panicked");
        }
    }
}
