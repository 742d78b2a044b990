//! What the threads of an engine share, and how a state is woken.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use parking_lot::{Mutex, RwLock};

use crate::clock::Clock;
use crate::proxy::SharedParts;
use crate::source::{FeedSink, QueryError, Route};
use crate::store::Store;
use crate::sync::fault::{self, Point};

use super::EngineConfig;
use super::answers::{Evaluator, Step};
use super::callbacks::CallbackPool;
use super::cohorts::Cohorts;
use super::lanes::{Lanes, Token};
use super::limit::PublishLimit;
use super::progress::{Gate, Gates, Progress};
use super::queries::{QuerySlot, QueryTable};
use super::registry::{Entry, Registry, Schedule};
use super::stepper::Inbox;

/// Everything that the threads of an engine share.
pub(super) struct Core {
    pub config: EngineConfig,
    pub clock: Arc<dyn Clock>,
    pub store: Arc<Store>,
    pub evaluator: Evaluator,
    pub queries: QueryTable,
    pub shared: SharedParts,
    pub cohorts: Cohorts,
    pub registry: Registry,
    pub progress: Arc<Progress>,
    pub callbacks: CallbackPool,
    /// Calls into feeds: on threads of their own, so that watch callbacks that block keep no proxy from its data.
    pub feeds: CallbackPool,
    pub sink: FeedSink,
    pub inbox: Arc<Mutex<Inbox>>,
    pub inbox_wake: Sender<()>,
    step: RwLock<Arc<Step>>,
    /// The number of `step`.
    step_seq: AtomicU64,
    /// The newest step whose changes are being marked, or have been.
    pub marking: AtomicU64,
    lanes: RwLock<Option<Lanes>>,
    /// Of the workers, one each, so that they don't wait for each other; then of all other threads.
    counters: Box<[CounterCells]>,
    pub limit: PublishLimit,
    /// Worker and step threads alive.
    pub threads: AtomicUsize,
}

/// Work done over the engine's life. On cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct CounterCells {
    pub steps: AtomicU64,
    pub runs: AtomicU64,
    pub parts: AtomicU64,
    pub published: AtomicU64,
    pub panics: AtomicU64,
}

impl Core {
    #[allow(
        clippy::too_many_arguments,
        reason = "called once, by the engine's start"
    )]
    pub fn new(
        config: EngineConfig,
        clock: Arc<dyn Clock>,
        store: Arc<Store>,
        evaluator: Evaluator,
        step: Step,
        inbox: Arc<Mutex<Inbox>>,
        inbox_wake: Sender<()>,
        sink: FeedSink,
        lanes: Lanes,
    ) -> Self {
        let callbacks = CallbackPool::new(config.callback_threads, config.callback_idle_time);
        let limit = PublishLimit::new(config.updates_per_second);
        let counters = (0..=config.workers.max(1)).map(|_| CounterCells::default());
        let counters = counters.collect();
        let feeds = CallbackPool::new(config.callback_threads, config.callback_idle_time);
        Self {
            feeds,
            callbacks,
            config,
            clock,
            store,
            evaluator,
            queries: QueryTable::default(),
            shared: SharedParts::default(),
            cohorts: Cohorts::default(),
            registry: Registry::default(),
            progress: Arc::default(),
            sink,
            inbox,
            inbox_wake,
            step_seq: AtomicU64::new(step.seq),
            step: RwLock::new(Arc::new(step)),
            marking: AtomicU64::new(0),
            lanes: RwLock::new(Some(lanes)),
            counters,
            limit,
            threads: AtomicUsize::new(0),
        }
    }

    /// The newest step.
    pub fn current_step(&self) -> Arc<Step> {
        self.step.read().clone()
    }

    /// The number of the newest step. Whoever has been woken for a step finds it, or a later one.
    pub fn current_seq(&self) -> u64 {
        self.step_seq.load(Ordering::SeqCst)
    }

    pub fn publish_step(&self, step: Step) {
        let seq = step.seq;
        let old = {
            let mut current = self.step.write();
            let old = std::mem::replace(&mut *current, Arc::new(step));
            self.step_seq.store(seq, Ordering::SeqCst);
            old
        };
        // It may be the last handle of a large map: dropped outside the lock.
        drop(old);
    }

    /// Tells the step loop something.
    pub fn tell(&self, what: impl FnOnce(&mut Inbox)) {
        what(&mut self.inbox.lock());
        // A full channel already holds the token that wakes the loop.
        let _ = self.inbox_wake.try_send(());
    }

    /// Has a proxy run that was marked for the step of `work`, which is published now. `gates`: what else isn't done until it has
    /// run.
    pub fn wake_marked(&self, entry: &Arc<Entry>, bulk: bool, work: &Gate, gates: Gates) {
        let mut schedule = entry.schedule.lock();
        if entry.is_retired() || schedule.has_taken_in(work) {
            return;
        }
        let newer = schedule.gates.put_back(gates);
        if schedule.want_for(work) {
            self.enqueue(entry, &mut schedule, bulk);
        }
        drop(schedule);
        drop(newer);
    }

    /// Has many states run that were marked for one step, which is published now.
    pub fn wake_herd(&self, tokens: Vec<Token>) {
        if let Some(lanes) = &*self.lanes.read() {
            for token in tokens {
                // The workers end after the lanes are closed.
                let _ = lanes.bulk.send(token);
            }
        }
    }

    /// Has a proxy run for what another member of its cohort has found.
    pub fn wake_with(&self, entry: &Arc<Entry>, bulk: bool, gates: Gates) {
        let mut schedule = entry.schedule.lock();
        if entry.is_retired() {
            return;
        }
        let newer = schedule.gates.put_back(gates);
        schedule.wanted = true;
        self.enqueue(entry, &mut schedule, bulk);
        drop(schedule);
        drop(newer);
    }

    /// Has a state run because its time has come.
    pub fn wake_for_time(&self, entry: &Arc<Entry>) {
        let mut schedule = entry.schedule.lock();
        if !entry.is_retired() {
            schedule.wanted = true;
            self.enqueue(entry, &mut schedule, false);
        }
    }

    /// Has a state run for the sake of a registry operation: a registration to take in, or an end to clean up after.
    pub fn wake_for_registry(&self, entry: &Arc<Entry>, bulk: bool) {
        let gate = self.progress.floating_gate();
        let mut schedule = entry.schedule.lock();
        schedule.wanted = true;
        let spare = schedule.gates.add(gate);
        self.enqueue(entry, &mut schedule, bulk);
        drop(schedule);
        drop(spare);
    }

    fn enqueue(&self, entry: &Arc<Entry>, schedule: &mut Schedule, bulk: bool) {
        if schedule.running {
            // The worker that runs it looks again when done.
            return;
        }
        self.put(entry, schedule, bulk);
    }

    /// Puts a token of the state into a lane, unless one is there. A state that waits in the bulk lane moves ahead when
    /// a fast reason comes. Returns false if the lanes are closed.
    pub fn put(&self, entry: &Arc<Entry>, schedule: &mut Schedule, bulk: bool) -> bool {
        if schedule.in_fast || (bulk && schedule.in_bulk) {
            return true;
        }
        // The lanes have no bound, so sending doesn't block; they hold at most one token of a state each.
        let Some(lanes) = &*self.lanes.read() else {
            return false;
        };
        if bulk {
            schedule.in_bulk = lanes.bulk.send(Token::One(entry.clone())).is_ok();
        } else {
            schedule.in_fast = lanes.fast.send(entry.clone()).is_ok();
        }
        true
    }

    /// Closes the run queue: workers end when it is empty.
    pub fn close_lanes(&self) {
        self.lanes.write().take();
    }

    /// Subscribes a query to its feed if it isn't.
    pub fn subscribe(&self, slot: &Arc<QuerySlot>) {
        let Route::Feed(feed) = &slot.route else {
            return;
        };
        self.queries.subscribe(slot, |id| {
            let (feed, sink, called) = (feed.clone(), self.sink.clone(), slot.clone());
            slot.call_feed(&self.feeds, move || {
                let (scope, query) = (&called.key.scope, &called.key.query);
                let call = || {
                    feed.subscribe(id, scope, query, sink.clone());
                    let _ = fault::hit(Point::Subscribe);
                };
                if let Err(panic) = catch_unwind(AssertUnwindSafe(call)) {
                    let text = super::panic_text(panic.as_ref());
                    tracing::error!(%query, panic = text, "a feed panicked");
                    let error = format!("the source of the {query} failed: internal error: {text}");
                    sink.answer(id, Err(QueryError::new(error)));
                }
            });
        });
    }

    /// Ends a query's subscription.
    pub fn unsubscribe(&self, slot: &Arc<QuerySlot>) {
        if let (Route::Feed(feed), Some(id)) = (&slot.route, slot.subscription()) {
            let feed = feed.clone();
            slot.call_feed(&self.feeds, move || feed.unsubscribe(id));
        }
    }

    /// Ends all subscriptions.
    pub fn unsubscribe_all(&self) {
        for slot in self.queries.close() {
            self.unsubscribe(&slot);
        }
    }

    /// Lets go of queries that a state held.
    pub fn release(&self, number: u64, slots: impl IntoIterator<Item = Arc<QuerySlot>>) {
        let now = self.clock.monotonic();
        let idle: Vec<_> = slots
            .into_iter()
            .filter(|slot| slot.remove_interest(number, now))
            .collect();
        if !idle.is_empty() {
            self.tell(|inbox| inbox.idle.extend(idle));
        }
    }

    /// Waits until the engine's threads have ended, or for the deadline. Returns how many are left.
    pub fn await_threads(&self, deadline: Instant) -> usize {
        loop {
            let left = self.threads.load(Ordering::SeqCst);
            if left == 0 || Instant::now() >= deadline {
                return left;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The counters of a worker.
    pub fn counters_of(&self, worker: usize) -> &CounterCells {
        // The last is for whoever is no worker.
        let at = worker.min(self.counters.len() - 1);
        &self.counters[at]
    }

    /// The counters of a thread that is no worker.
    pub fn counters(&self) -> &CounterCells {
        self.counters_of(usize::MAX)
    }

    /// What all threads have counted.
    pub fn count(&self, of: impl Fn(&CounterCells) -> &AtomicU64) -> u64 {
        let each = self.counters.iter();
        each.map(|cells| of(cells).load(Ordering::Relaxed)).sum()
    }
}
