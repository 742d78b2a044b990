//! The front door: register, deregister, list, watch.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Sender, bounded, unbounded};
use parking_lot::Mutex;

use crate::clock::Clock;
use crate::model::{ProxyId, ProxySource};
use crate::proxy::ProxyState;
use crate::snapshot::Part;
use crate::source::{AuthScope, FeedSink, Query, Route, Sources};
use crate::store::Store;

use super::answers::{Evaluator, Step};
use super::callbacks::{Rest, mark_engine_thread, on_engine_thread};
use super::core::Core;
use super::lanes::Lanes;
use super::register::{RegisterError, RegisterOptions, Registered, validate};
use super::registry::{Entry, Held, Meta, Recent, RunState, Schedule};
use super::status::{EngineCounts, ProxyStatus, WaitError};
use super::stepper::{Inbox, Stepper};
use super::watch::{CallbackWatch, Watch, WatchEvent};
use super::{EngineConfig, worker};

/// An engine: registers proxies, keeps their snapshots current, and hands them to watchers.
///
/// A handle is cheap to clone and usable from any thread; no call waits for a slow watcher, a source or another call. The
/// engine ends when [`Manager::close`] is called or the last handle is dropped.
#[derive(Clone)]
pub struct Manager {
    inner: Arc<Handle>,
}

struct Handle {
    core: Arc<Core>,
    stop: Mutex<Option<Sender<()>>>,
    closed: AtomicBool,
}

/// How the end of an engine went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CloseReport {
    /// Threads that were still busy at the deadline: callbacks that block, or a view that doesn't return.
    pub stuck_threads: usize,
}

impl Manager {
    /// Starts an engine over a store and its sources.
    ///
    /// # Errors
    /// The operating system can't start its threads.
    pub fn start(
        config: EngineConfig,
        clock: Arc<dyn Clock>,
        store: Arc<Store>,
        sources: Arc<dyn Sources>,
    ) -> std::io::Result<Self> {
        // The feed is opened before the first snapshot is taken, so that no commit falls between.
        let changes = store.changes();
        let snapshot = store.snapshot();
        let (fast, fast_tokens) = unbounded();
        let (bulk, bulk_tokens) = unbounded();
        let (inbox_wake, woken) = bounded(1);
        let (stop, stopped) = bounded(1);
        let inbox = Arc::new(Mutex::new(Inbox::default()));
        let sink = {
            let (inbox, wake) = (inbox.clone(), inbox_wake.clone());
            FeedSink::new(move |answers| {
                let mut told = inbox.lock();
                for (subscription, answer) in answers {
                    told.feed.entry(subscription).or_default().add(answer);
                }
                drop(told);
                let _ = wake.try_send(());
            })
        };
        let evaluator = Evaluator::new(sources, snapshot.clone());
        let step = Step {
            seq: 0,
            store: snapshot.clone(),
            answers: Default::default(),
        };
        let workers = config.workers.max(1);
        let lanes = Lanes { fast, bulk };
        let core = Arc::new(Core::new(
            config, clock, store, evaluator, step, inbox, inbox_wake, sink, lanes,
        ));
        drop(core.progress.open(0, snapshot.index()));
        let handle = Handle {
            core: core.clone(),
            stop: Mutex::new(Some(stop)),
            closed: AtomicBool::new(false),
        };
        // From here on a failure drops the handle, which ends the threads that run.
        let manager = Self {
            inner: Arc::new(handle),
        };
        let stepper = Stepper::new(core.clone(), changes, woken, stopped);
        spawn(&core, "proxycfg-step".to_owned(), move || stepper.run())?;
        for n in 0..workers {
            let (core2, fast, bulk) = (core.clone(), fast_tokens.clone(), bulk_tokens.clone());
            spawn(&core, format!("proxycfg-work-{n}"), move || {
                worker::work(&core2, n, &fast, &bulk)
            })?;
        }
        Ok(manager)
    }

    fn core(&self) -> &Arc<Core> {
        &self.inner.core
    }

    /// The store that the engine reads.
    #[must_use]
    pub fn store(&self) -> &Arc<Store> {
        &self.core().store
    }

    /// The clock that the engine runs on.
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.core().clock
    }

    /// Registers a proxy, or changes its registration (engine.md 2.2).
    ///
    /// Registering the same again does nothing. A change takes effect in place: watchers stay attached and keep their last
    /// snapshot until the new one is complete. Only a change of kind or token begins anew.
    ///
    /// # Errors
    /// The kind or an upstream type isn't one that can be served, or the engine is closed. Nothing is changed then.
    pub fn register(
        &self,
        id: &ProxyId,
        options: RegisterOptions,
    ) -> Result<Registered, RegisterError> {
        if self.inner.closed.load(Ordering::SeqCst) {
            return Err(RegisterError::Closed);
        }
        let RegisterOptions {
            kind,
            registration,
            source,
            token,
            overwrite,
        } = options;
        validate(id, kind, &registration)?;
        let scope = AuthScope(token);
        let core = self.core();
        let mut old = None;
        let (result, entry) =
            core.registry.with(id, |proxy| {
                if let Some(entry) = &proxy.entry {
                    let mut meta = entry.meta.lock();
                    if meta.ended.is_none() {
                        if meta.source != source && !overwrite {
                            return Ok((Registered::OtherSource, None));
                        }
                        // Taking over an unchanged registration changes its owner (engine.md 2.2).
                        meta.source = source.clone();
                        if entry.kind == kind && entry.scope == scope {
                            if **meta.registration == registration {
                                return Ok((Registered::Unchanged, None));
                            }
                            meta.registration = Part::new(registration);
                            let entry = entry.clone();
                            drop(meta);
                            entry.schedule.lock().all = true;
                            return Ok((Registered::Changed, Some(entry)));
                        }
                    }
                }
                let registration = Part::new(registration);
                let shared_id = triomphe::Arc::new(id.clone());
                let state = ProxyState::new(shared_id.clone(), kind, registration.clone())
                    .map_err(|kind| RegisterError::Unsupported {
                        id: id.clone(),
                        kind,
                    })?;
                old = proxy.entry.take();
                if let Some(old) = &old {
                    old.retired.store(true, Ordering::SeqCst);
                }
                if proxy.cell.is_ended() {
                    proxy.cell = Arc::default();
                    proxy.watchers = 0;
                }
                let entry = Arc::new(Entry {
                    number: core.registry.next_number(),
                    id: shared_id,
                    kind,
                    scope,
                    cell: proxy.cell.clone(),
                    retired: AtomicBool::new(false),
                    ended: AtomicBool::new(false),
                    meta: Mutex::new(Meta {
                        source,
                        registration,
                        ended: None,
                        store_index: None,
                        fault: None,
                        ready: false,
                        issues: Box::default(),
                    }),
                    schedule: Mutex::new(Schedule {
                        all: true,
                        ..Schedule::default()
                    }),
                    run: Mutex::new(RunState {
                        state,
                        cohort: None,
                        told: None,
                        own_deadline: None,
                        untold: false,
                        held: Held::new(),
                        recent: Recent::default(),
                        unpublished: None,
                        publish_at: Duration::ZERO,
                        armed: None,
                        blocked_until: Duration::ZERO,
                    }),
                });
                proxy.entry = Some(entry.clone());
                core.registry.states.fetch_add(1, Ordering::Relaxed);
                Ok((Registered::Created, Some(entry)))
            })?;
        if let Some(old) = old {
            // What the old generation is publishing at this moment is over before this returns.
            old.cell.fence();
            retire(core, &old);
        }
        if let Some(entry) = entry {
            core.wake_for_registry(&entry, false);
        }
        if self.inner.closed.load(Ordering::SeqCst) {
            // It ended meanwhile, perhaps before this proxy was there to end.
            self.inner.end_all();
            return Err(RegisterError::Closed);
        }
        Ok(result)
    }

    /// Removes a proxy that `source` has registered; otherwise does nothing. Returns whether it was removed. Watchers stay
    /// attached and serve a later registration; after this returns nothing of the removed one is delivered.
    pub fn deregister(&self, id: &ProxyId, source: &ProxySource) -> bool {
        let core = self.core();
        let removed = core.registry.with(id, |proxy| {
            let owned = proxy
                .entry
                .as_ref()
                .is_some_and(|entry| entry.meta.lock().source == *source);
            if !owned {
                return None;
            }
            let entry = proxy.entry.take()?;
            entry.retired.store(true, Ordering::SeqCst);
            Some(entry)
        });
        match removed {
            Some(entry) => {
                entry.cell.clear();
                retire(core, &entry);
                true
            }
            None => false,
        }
    }

    /// The proxies that a source has registered, sorted.
    #[must_use]
    pub fn registered(&self, source: &ProxySource) -> BTreeSet<ProxyId> {
        let all = self.core().registry.all();
        let owned = |entry: &Arc<Entry>| entry.meta.lock().source == *source;
        all.into_iter()
            .filter(|(_, entry, _)| entry.as_ref().is_some_and(owned))
            .map(|(id, ..)| id)
            .collect()
    }

    /// Watches a proxy, registered or not. If it has a snapshot, the watch gives it at once.
    #[must_use]
    pub fn watch(&self, id: &ProxyId) -> Watch {
        let watch = Watch::open(self.core(), id);
        self.end_if_closed(id);
        watch
    }

    /// Watches a proxy with a function that is called, on the callback pool, with each new snapshot.
    #[must_use]
    pub fn watch_with(
        &self,
        id: &ProxyId,
        callback: impl FnMut(WatchEvent) + Send + 'static,
    ) -> CallbackWatch {
        let watch = CallbackWatch::open(self.core(), id, Box::new(callback));
        self.end_if_closed(id);
        watch
    }

    /// A watch on a closed engine has ended from the start.
    fn end_if_closed(&self, id: &ProxyId) {
        if self.inner.closed.load(Ordering::SeqCst) {
            let cell = self.core().registry.with(id, |proxy| proxy.cell.clone());
            cell.end();
        }
    }

    /// Every proxy that is registered or watched, sorted by id.
    #[must_use]
    pub fn proxies(&self) -> Vec<ProxyStatus> {
        self.core()
            .registry
            .all()
            .into_iter()
            .map(|(id, entry, watchers)| status(id, entry.as_ref(), watchers))
            .collect()
    }

    /// One proxy, if it is registered or watched.
    #[must_use]
    pub fn status(&self, id: &ProxyId) -> Option<ProxyStatus> {
        let (entry, watchers) = self
            .core()
            .registry
            .with(id, |proxy| (proxy.entry.clone(), proxy.watchers));
        (entry.is_some() || watchers > 0).then(|| status(id.clone(), entry.as_ref(), watchers))
    }

    /// Waits until everything that can be computed from commits up to a store index is in the cells; proxies that wait for
    /// outside answers or are held back by a rate limit are excepted.
    ///
    /// # Errors
    /// The deadline passed, the engine ended, or the call comes from a thread of the engine.
    pub fn wait_index(&self, store_index: u64, deadline: Instant) -> Result<(), WaitError> {
        if on_engine_thread() {
            return Err(WaitError::EngineThread);
        }
        if self.core().progress.wait(store_index, deadline) {
            Ok(())
        } else if self.inner.closed.load(Ordering::SeqCst) {
            Err(WaitError::Ended)
        } else {
            Err(WaitError::TimedOut)
        }
    }

    /// Waits until a proxy has a snapshot.
    ///
    /// # Errors
    /// The deadline passed, the proxy or the engine ended, or the call comes from a thread of the engine.
    pub fn wait_ready(
        &self,
        id: &ProxyId,
        deadline: Instant,
    ) -> Result<super::SnapshotRef, WaitError> {
        self.watch(id)
            .next(Some(deadline))?
            .ok_or(WaitError::TimedOut)
    }

    /// The store index up to which everything is done.
    #[must_use]
    pub fn done_index(&self) -> u64 {
        self.core().progress.done_index()
    }

    /// Asks the feed of a query for a fresh answer on behalf of a proxy: a new certificate now. Returns whether the proxy
    /// is registered and has such a query.
    pub fn refresh(&self, id: &ProxyId, query: &Query) -> bool {
        let core = self.core();
        let Some(entry) = core.registry.entry(id) else {
            return false;
        };
        let Some(slot) = core.queries.find(&entry.scope, query) else {
            return false;
        };
        match (&slot.route, slot.subscription()) {
            (Route::Feed(feed), Some(subscription)) => {
                let feed = feed.clone();
                slot.call_feed(&core.feeds, move || feed.refresh(subscription));
                true
            }
            _ => false,
        }
    }

    /// Changes the update rate limit: most snapshots a second over all proxies; 0 means none.
    pub fn set_update_rate(&self, per_second: f64) {
        self.core().limit.set(per_second);
    }

    /// What is alive, and what has been done.
    #[must_use]
    pub fn counts(&self) -> EngineCounts {
        let core = self.core();
        EngineCounts {
            queries: core.queries.len(),
            states: core.registry.states.load(Ordering::Relaxed),
            cohorts: core.cohorts.len(),
            proxies: core.registry.len(),
            watches: core.registry.watches.load(Ordering::Relaxed),
            threads: core.threads.load(Ordering::SeqCst),
            callback_threads: core.callbacks.threads() + core.feeds.threads(),
            shared_parts: core.shared.len(),
            steps: core.count(|cells| &cells.steps),
            answers_computed: core.evaluator.computed.load(Ordering::Relaxed),
            chains_compiled: core.evaluator.chains.load(Ordering::Relaxed),
            runs: core.count(|cells| &cells.runs),
            parts_built: core.count(|cells| &cells.parts),
            targets_built: core.shared.targets_built(),
            published: core.count(|cells| &cells.published),
            panics: core.count(|cells| &cells.panics),
        }
    }

    /// Ends the engine: every watch ends, no callback is begun any more, feeds are told that nobody wants their answers, and
    /// threads are joined until the deadline. From a thread of the engine it doesn't wait. Closing twice is fine.
    pub fn close(&self, deadline: Instant) -> CloseReport {
        self.inner.shut_down();
        let core = self.core();
        let mut stuck_threads = core.callbacks.close(deadline, Rest::Dropped);
        if !on_engine_thread() {
            stuck_threads += core.await_threads(deadline);
        }
        // Last: until then the step loop and the workers may be ending subscriptions, which feeds must hear of: what a feed
        // isn't told of it keeps, and the engine with it.
        if on_engine_thread() && core.threads.load(Ordering::SeqCst) > 0 {
            let waiting = core.clone();
            let started = std::thread::Builder::new()
                .name("proxycfg-close".to_owned())
                .spawn(move || {
                    waiting.await_threads(deadline);
                    waiting.feeds.close(deadline, Rest::Done);
                });
            if started.is_ok() {
                stuck_threads += core.feeds.threads();
                return CloseReport { stuck_threads };
            }
        }
        stuck_threads += core.feeds.close(deadline, Rest::Done);
        CloseReport { stuck_threads }
    }
}

impl std::fmt::Debug for Manager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Manager")
            .field("counts", &self.counts())
            .finish()
    }
}

impl Handle {
    fn shut_down(&self) {
        if self.closed.swap(true, Ordering::SeqCst) {
            return;
        }
        self.end_all();
        self.core.progress.close();
        self.stop.lock().take();
        self.core.close_lanes();
        self.core.unsubscribe_all();
    }

    /// Ends every watch and every state.
    fn end_all(&self) {
        for proxy in self.core.registry.drain() {
            proxy.cell.end();
            if let Some(entry) = proxy.entry {
                entry.retired.store(true, Ordering::SeqCst);
                retire(&self.core, &entry);
            }
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shut_down();
    }
}

/// Ends a generation: its next run, which is the last, lets go of its queries.
fn retire(core: &Arc<Core>, entry: &Arc<Entry>) {
    core.registry.states.fetch_sub(1, Ordering::Relaxed);
    core.wake_for_registry(entry, true);
}

fn spawn(
    core: &Arc<Core>,
    name: String,
    work: impl FnOnce() + Send + 'static,
) -> std::io::Result<()> {
    core.threads.fetch_add(1, Ordering::SeqCst);
    let counted = core.clone();
    let started = std::thread::Builder::new().name(name).spawn(move || {
        mark_engine_thread();
        let end = catch_unwind(AssertUnwindSafe(work));
        counted.threads.fetch_sub(1, Ordering::SeqCst);
        if let Err(panic) = end {
            tracing::error!(
                panic = super::panic_text(panic.as_ref()),
                "a thread of the engine panicked"
            );
        }
    });
    if started.is_err() {
        core.threads.fetch_sub(1, Ordering::SeqCst);
    }
    started.map(drop)
}

fn status(id: ProxyId, entry: Option<&Arc<Entry>>, watchers: usize) -> ProxyStatus {
    let Some(entry) = entry else {
        return ProxyStatus {
            id,
            kind: None,
            source: None,
            ready: false,
            issues: Vec::new(),
            store_index: 0,
            watchers,
            ended: None,
            fault: None,
        };
    };
    // Not from the state itself: that would wait for a run, and a run for a view.
    let meta = entry.meta.lock();
    ProxyStatus {
        id,
        kind: Some(entry.kind),
        source: Some(meta.source.clone()),
        ready: meta.ready && meta.ended.is_none() && meta.store_index.is_some(),
        issues: meta.issues.to_vec(),
        store_index: meta.store_index.unwrap_or(0),
        watchers,
        ended: meta.ended.as_ref().map(|e| e.message.clone()),
        fault: meta.fault.as_ref().map(|fault| fault.text.clone()),
    }
}
