//! The step loop: one thread that turns commits and outside answers into steps.
//!
//! A step takes in everything that came since the last one. For each query whose keys changed the answer is computed anew;
//! one that comes out equal stops there. If many queries are affected at once (a herd: `proxy-defaults`, a wildcard
//! intention), they are not computed here but left to the workers, so that the loop is free for the next commit.
//! Then the states that want a changed answer are marked, the step is published, and they are woken: into the fast lane where
//! few states read the answer, else into the bulk lane.
//!
//! A run shows one moment of the store because of three things:
//!
//! - All marks of a step stand before a run can be at it, so a run never builds one part anew and leaves another as it was.
//! - A state that comes for an answer while a step is being marked looks at it again in its next runs, and is found by a second
//!   look once the step is out.
//! - A state that got an answer which nobody takes care of yet (it was computed while the loop moved on) does the same, and the
//!   loop has it run again when it has looked at the query.

use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, never, select};

use crate::proxy::Input;
use crate::source::{Answer, QueryError, QueryId, Route, SubscriptionId};
use crate::store::ChangeFeed;

use super::answers::{AnswerCell, Step, differs, merge};
use super::cohorts::Reader;
use super::core::Core;
use super::lanes::Gathering;
use super::progress::{Gate, Gates};
use super::queries::QuerySlot;
use super::registry::Entry;

/// With more affected queries than this, a step leaves their computation to the workers.
const MOST_EAGER: usize = 64;
/// An answer with more readers than this wakes them in the bulk lane.
pub(super) const FEW_READERS: usize = 64;

/// Most steps that are kept because there was no time to drop them.
const MOST_PASSED: usize = 8;

/// Parts that nobody holds stay for at most this long.
const SWEEP_AFTER: Duration = Duration::from_secs(30);

/// What other threads tell the step loop.
#[derive(Default)]
pub(super) struct Inbox {
    /// Queries with a new cell that isn't part of a step yet.
    pub fresh: Vec<Arc<QuerySlot>>,
    /// Queries to look at again.
    pub recheck: Vec<Recheck>,
    /// Outside answers by subscription.
    pub feed: HashMap<SubscriptionId, Given>,
    /// Queries that nobody wants any more.
    pub idle: Vec<Arc<QuerySlot>>,
    /// States to run at a monotonic time.
    pub timers: Vec<(Duration, Arc<Entry>)>,
}

/// What a subscription was given since the last step: a later answer replaces an earlier one, but an error doesn't take away
/// the good answer before it (decision E5).
#[derive(Default)]
pub(super) struct Given {
    good: Option<Answer>,
    /// After the good answer.
    error: Option<QueryError>,
}

impl Given {
    pub fn add(&mut self, result: Result<Answer, QueryError>) {
        match result {
            Ok(answer) => {
                self.good = Some(answer);
                self.error = None;
            }
            Err(error) => self.error = Some(error),
        }
    }

    /// What the query's state becomes.
    fn onto(self, before: Option<&Input>) -> Option<Input> {
        let good = self.good.map(|answer| merge(Ok(answer), before));
        match self.error {
            Some(error) => Some(merge(Err(error), good.as_ref().or(before))),
            None => good,
        }
    }
}

/// A state has read an answer that the step loop didn't take care of: it looks at the query, and has the state run again.
pub(super) struct Recheck {
    pub query: QueryId,
    pub reader: Reader,
    /// What isn't done until then.
    pub gates: Gates,
}

/// A state to be run at a time; ordered so that the earliest is on top of a heap.
struct Timer(Duration, Arc<Entry>);

impl PartialEq for Timer {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Timer {}

impl PartialOrd for Timer {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Timer {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (other.0, other.1.number).cmp(&(self.0, self.1.number))
    }
}

/// How far a step reaches.
struct Reach {
    /// It concerns many queries.
    wide: bool,
    /// Queries that changed for a reason of their own beside, sorted: a commit that the loop takes in together with a herd's is
    /// no slower for that.
    spared: Vec<QueryId>,
}

impl Reach {
    /// Whether a query is one of many.
    fn is_wide_for(&self, query: QueryId) -> bool {
        self.wide && self.spared.binary_search(&query).is_err()
    }
}

/// The step loop.
pub(super) struct Stepper {
    core: Arc<Core>,
    changes: ChangeFeed,
    woken: Receiver<()>,
    stop: Receiver<()>,
    timers: BinaryHeap<Timer>,
    /// Queries that nobody wants, with the time to let them go.
    idle: Vec<(Duration, Arc<QuerySlot>)>,
    /// When to let go of shared parts that nobody holds; none while nothing can have come to that.
    sweep: Option<Duration>,
    /// Steps that are over. After a herd, to drop one takes longer than to make the next: that is done when there is time.
    passed: Vec<Arc<Step>>,
}

impl Stepper {
    pub fn new(
        core: Arc<Core>,
        changes: ChangeFeed,
        woken: Receiver<()>,
        stop: Receiver<()>,
    ) -> Self {
        Self {
            core,
            changes,
            woken,
            stop,
            timers: BinaryHeap::new(),
            idle: Vec::new(),
            sweep: None,
            passed: Vec::new(),
        }
    }

    /// Runs until told to stop.
    pub fn run(mut self) {
        loop {
            let alarm = self.alarm();
            select! {
                recv(self.stop) -> _ => return,
                recv(self.changes.woken()) -> _ => {}
                recv(self.woken) -> _ => {}
                recv(alarm) -> _ => {}
                default => {
                    // Nothing waits for this thread.
                    self.passed.clear();
                    select! {
                        recv(self.stop) -> _ => return,
                        recv(self.changes.woken()) -> _ => {}
                        recv(self.woken) -> _ => {}
                        recv(alarm) -> _ => {}
                    }
                }
            }
            self.step();
            if self.passed.len() > MOST_PASSED {
                self.passed.clear();
            }
        }
    }

    /// Rings when the next timer is due.
    fn alarm(&self) -> Receiver<Instant> {
        let clock = &self.core.clock;
        let Some(due) = self.next_due() else {
            return never();
        };
        loop {
            let now = clock.monotonic();
            let alarm = clock.alarm(due.saturating_sub(now));
            // If time has passed in between, the alarm is late by as much.
            if clock.monotonic().saturating_sub(now) < Duration::from_millis(1) {
                return alarm;
            }
        }
    }

    fn next_due(&self) -> Option<Duration> {
        let timer = self.timers.peek().map(|t| t.0);
        let idle = self.idle.iter().map(|(due, _)| *due).min();
        timer.into_iter().chain(idle).chain(self.sweep).min()
    }

    fn step(&mut self) {
        let inbox = std::mem::take(&mut *self.core.inbox.lock());
        let now = self.core.clock.monotonic();
        self.timers.extend(
            inbox
                .timers
                .into_iter()
                .map(|(due, entry)| Timer(due, entry)),
        );
        self.idle.extend(
            inbox
                .idle
                .into_iter()
                .map(|slot| (now + self.core.config.linger, slot)),
        );
        self.answer(inbox.fresh, inbox.recheck, inbox.feed);
        self.fire_timers(now);
        self.let_go(now);
    }

    /// Makes a step, if there is anything to make it of.
    fn answer(
        &mut self,
        fresh: Vec<Arc<QuerySlot>>,
        recheck: Vec<Recheck>,
        feed: HashMap<SubscriptionId, Given>,
    ) {
        let changes = self.changes.take();
        if changes.is_none() && fresh.is_empty() && recheck.is_empty() && feed.is_empty() {
            return;
        }
        let last = self.core.current_step();
        let store = changes
            .as_ref()
            .map_or_else(|| last.store.clone(), |c| c.snapshot.clone());
        let evaluator = &self.core.evaluator;
        let (mut affected, mut with_few) = match &changes {
            Some(changes) if changes.everything => (evaluator.restart(&store), Vec::new()),
            Some(changes) => evaluator.advance(&store, &changes.keys, MOST_EAGER),
            None => (Vec::new(), Vec::new()),
        };
        if with_few.len() > MOST_EAGER {
            // Many small changes are a herd too.
            with_few.clear();
        }
        let looked_after = |id: &QueryId| {
            let slot = self.core.queries.get(*id);
            let newest = slot.and_then(|slot| slot.latest());
            newest.is_some_and(|cell| cell.is_confirmed())
        };
        let again = recheck.iter().map(|again| again.query);
        affected.extend(again.filter(|id| !looked_after(id)));
        affected.sort_unstable();
        affected.dedup();

        let mut answers = last.answers.clone();
        for slot in fresh {
            if let Some(cell) = slot.latest() {
                answers.insert_mut(slot.id.0, cell);
            }
        }
        let mut changed: Vec<Arc<QuerySlot>> = Vec::new();
        for (subscription, given) in feed {
            // A late answer of a dropped subscription is ignored (decision E7).
            let Some(slot) = self.core.queries.by_subscription(subscription) else {
                continue;
            };
            let before = answers.get(&slot.id.0).and_then(|cell| cell.latest_known());
            let spent = given.error.as_ref().is_some_and(|error| error.terminal);
            self.core.queries.set_spent(&slot, spent);
            let Some(input) = given.onto(before.as_ref()) else {
                continue;
            };
            if differs(before.as_ref(), &input) {
                let cell = AnswerCell::given(input, &store);
                slot.set_latest(Some(cell.clone()));
                answers.insert_mut(slot.id.0, cell);
                changed.push(slot);
            }
        }
        let herd = affected.len() > MOST_EAGER;
        for id in affected {
            let Some(slot) = self.core.queries.get(id) else {
                self.core.evaluator.forget(id);
                continue;
            };
            if !matches!(slot.route, Route::View) {
                continue;
            }
            if slot.readers() == 0 {
                // Lingering: if somebody wants it again, it is computed then.
                slot.set_latest(None);
                answers.remove_mut(&id.0);
                self.core.evaluator.forget(id);
                // A state that has just come for it runs at the step before: it is woken like any other.
                changed.push(slot);
                continue;
            }
            let known = answers.get(&id.0).cloned().or_else(|| slot.latest());
            let before = known.and_then(|cell| cell.latest_known());
            let cell = AnswerCell::lazy(&store, before.clone());
            if !herd {
                // Nothing moves on while this thread computes, so the cell is confirmed at once.
                let input = self.core.evaluator.force(&slot, &cell);
                if !differs(before.as_ref(), input) {
                    slot.set_latest(Some(cell.clone()));
                    answers.insert_mut(id.0, cell);
                    continue;
                }
            }
            slot.set_latest(Some(cell.clone()));
            answers.insert_mut(id.0, cell);
            changed.push(slot);
        }
        let seq = last.seq + 1;
        let work = self.core.progress.open(seq, store.index());
        let step = Step {
            seq,
            store,
            answers,
        };
        let reach = Reach {
            wide: herd,
            spared: with_few,
        };
        self.publish(step, changed, recheck, &reach, &work);
        self.passed.push(last);
    }

    /// Marks the states that want a changed answer, publishes the step, then wakes them. In this order, since a state that runs
    /// for one reason at the new step must know all others. A state that comes for an answer between the marking
    /// and the publishing is found by a second look.
    fn publish(
        &mut self,
        step: Step,
        changed: Vec<Arc<QuerySlot>>,
        recheck: Vec<Recheck>,
        reach: &Reach,
        work: &Gate,
    ) {
        let seq = step.seq;
        self.core.marking.store(seq, Ordering::SeqCst);
        for again in &recheck {
            again.reader.mark(again.query, seq);
        }
        let mut woken: Vec<(u64, bool, Reader)> = Vec::new();
        let mut seen = Vec::with_capacity(changed.len());
        for slot in changed {
            let (readers, joined) = slot.interested();
            let bulk = reach.is_wide_for(slot.id)
                || readers.iter().map(Reader::proxies).sum::<usize>() > FEW_READERS;
            for reader in &readers {
                reader.mark(slot.id, seq);
            }
            let mut numbers: Vec<_> = readers.iter().map(Reader::number).collect();
            numbers.sort_unstable();
            woken.extend(readers.into_iter().map(|r| (r.number(), bulk, r)));
            seen.push((slot, numbers, joined, bulk));
        }
        self.core.publish_step(step);
        self.core.counters().steps.fetch_add(1, Ordering::Relaxed);
        self.sweep_later();
        for again in recheck {
            // Its index may be done already: a step before didn't know what this one has found.
            again.reader.wake(&self.core, reach.wide, work, again.gates);
        }
        // Each state once, in the fast lane if one of its answers says so.
        woken.sort_unstable_by_key(|(number, bulk, _)| (*number, *bulk));
        woken.dedup_by_key(|(number, ..)| *number);
        let mut many = Gathering::new(work);
        for (_, bulk, reader) in woken {
            if bulk {
                reader.gather(&mut many);
            } else {
                reader.wake(&self.core, bulk, work, Gates::default());
            }
        }
        self.core.wake_herd(many.finish());
        for (slot, numbers, joined, bulk) in seen {
            for reader in slot.interested_since(joined) {
                if numbers.binary_search(&reader.number()).is_err() {
                    reader.mark(slot.id, seq);
                    reader.wake(&self.core, bulk, work, Gates::default());
                }
            }
        }
    }

    /// Parts may have been replaced: they are looked at after a while.
    fn sweep_later(&mut self) {
        let due = self.core.clock.monotonic() + SWEEP_AFTER;
        self.sweep.get_or_insert(due);
    }

    fn fire_timers(&mut self, now: Duration) {
        while self.timers.peek().is_some_and(|t| t.0 <= now) {
            if let Some(Timer(_, entry)) = self.timers.pop() {
                self.core.wake_for_time(&entry);
            }
        }
    }

    /// Lets go of queries that nobody has wanted for the linger time, and of parts that nobody holds.
    fn let_go(&mut self, now: Duration) {
        let linger = self.core.config.linger;
        let mut gone = Vec::new();
        self.idle.retain(|(due, slot)| {
            if *due > now {
                return true;
            }
            if self.core.queries.retire(slot, now.saturating_sub(linger)) {
                gone.push(slot.clone());
            }
            false
        });
        if !gone.is_empty() {
            self.sweep_later();
            let last = self.core.current_step();
            let mut answers = last.answers.clone();
            for slot in &gone {
                answers.remove_mut(&slot.id.0);
                self.core.evaluator.forget(slot.id);
                self.core.unsubscribe(slot);
            }
            let seq = last.seq + 1;
            let store = last.store.clone();
            self.core.publish_step(Step {
                seq,
                store,
                answers,
            });
        }
        if self.sweep.is_some_and(|due| due <= now) {
            self.sweep = None;
            self.core.shared.sweep();
        }
    }
}
