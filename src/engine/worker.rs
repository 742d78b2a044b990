//! Workers: threads that take states from the run queue and run them against the newest step.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crossbeam_channel::{Receiver, TryRecvError, select};

use crate::proxy::{Changed, Input, Inputs, ProxyState, RunOutcome};
use crate::snapshot::PartId;
use crate::source::{Query, QueryError, QueryId, Route};
use crate::sync::fault::{self, Point};

use super::answers::{AnswerCell, Step};
use super::core::Core;
use super::progress::Gates;
use super::queries::QuerySlot;
use super::registry::{Entry, RunState, SnapshotRef};
use super::stepper::Recheck;

/// After this many runs from the fast lane in a row, one from the bulk lane has its turn.
const MOST_FAST: u32 = 32;

/// Runs states until both lanes are closed. The fast lane goes first, but an endless flow in it doesn't stop the other.
pub(super) fn work(core: &Arc<Core>, fast: &Receiver<Arc<Entry>>, bulk: &Receiver<Arc<Entry>>) {
    let mut in_a_row = 0;
    loop {
        if in_a_row >= MOST_FAST {
            in_a_row = 0;
            if let Ok(entry) = bulk.try_recv() {
                run(core, &entry, true);
            }
        }
        let (entry, from_bulk) = match fast.try_recv() {
            Ok(entry) => (entry, false),
            Err(TryRecvError::Disconnected) => match bulk.recv() {
                Ok(entry) => (entry, true),
                Err(_) => return,
            },
            Err(TryRecvError::Empty) => select! {
                recv(fast) -> entry => match entry {
                    Ok(entry) => (entry, false),
                    Err(_) => continue,
                },
                recv(bulk) -> entry => match entry {
                    Ok(entry) => (entry, true),
                    Err(_) => match fast.recv() {
                        Ok(entry) => (entry, false),
                        Err(_) => return,
                    },
                },
            },
        };
        in_a_row = if from_bulk { 0 } else { in_a_row + 1 };
        run(core, &entry, from_bulk);
    }
}

/// Takes a state's token and runs it, if a run is still wanted and nobody else is at it.
fn run(core: &Arc<Core>, entry: &Arc<Entry>, from_bulk: bool) {
    {
        let mut schedule = entry.schedule.lock();
        if from_bulk {
            schedule.in_bulk = false;
        } else {
            schedule.in_fast = false;
        }
        if schedule.running || !schedule.wanted {
            return;
        }
        schedule.running = true;
    }
    loop {
        let mut state = entry.run.lock();
        run_once(core, entry, &mut state);
        drop(state);
        let mut schedule = entry.schedule.lock();
        schedule.running = false;
        if !schedule.wanted {
            // Gates of what this run has taken in already.
            let gates = std::mem::take(&mut schedule.gates);
            drop(schedule);
            drop(gates);
            return;
        }
        if core.put(entry, &mut schedule, from_bulk) {
            return;
        }
        // The engine ended during the run: the last one, which lets go of the state's queries, is done here.
        schedule.running = true;
    }
}

fn run_once(core: &Arc<Core>, entry: &Arc<Entry>, run: &mut RunState) {
    let now = core.clock.monotonic();
    let (mut dirty, all, gates, step) = {
        let mut schedule = entry.schedule.lock();
        schedule.wanted = false;
        let gates = std::mem::take(&mut schedule.gates);
        if now < run.blocked_until && !entry.is_retired() {
            // After a fault: what changed is kept for the run that the timer brings, and nobody waits for it.
            drop(schedule);
            return;
        }
        // Under this lock, so that whoever wakes the state for a step finds it taken in, or not running yet.
        let step = core.current_step();
        schedule.ran_at = step.seq;
        let dirty = schedule.take_dirty(step.seq);
        (dirty, std::mem::take(&mut schedule.all), gates, step)
    };
    if entry.is_retired() || entry.has_ended() {
        release_all(core, entry, run);
        return;
    }
    dirty.extend(run.recent.iter().map(|(query, _)| *query));
    run.recent.retain(|(_, marking)| *marking > step.seq);
    dirty.sort_unstable();
    dirty.dedup();
    let registration = entry.meta.lock().registration.clone();
    core.counters.runs.fetch_add(1, Ordering::Relaxed);
    let mut inputs = StepInputs {
        core,
        entry,
        step: &step,
        gates: &gates,
        held: &mut run.held,
        added: Vec::new(),
    };
    let state = &mut run.state;
    state.set_registration(registration);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let changed = if all {
            Changed::All
        } else {
            Changed::Queries(&dirty)
        };
        state.run(
            &core.config.proxies,
            &core.shared,
            &mut inputs,
            changed,
            step.store.index(),
            now,
        )
    }));
    let added = std::mem::take(&mut inputs.added);
    run.recent.extend(added);
    match outcome {
        Ok(outcome) => finish(core, entry, run, outcome, now),
        Err(panic) => fault(core, entry, run, super::panic_text(panic.as_ref()), now),
    }
    // Whoever waits for the step goes on only now, with the snapshot published.
    catch_up(core, entry, run, &step, gates);
}

/// Publishes what the run came to and lets go of queries that are no longer wanted.
fn finish(
    core: &Arc<Core>,
    entry: &Arc<Entry>,
    run: &mut RunState,
    outcome: RunOutcome,
    now: Duration,
) {
    core.counters
        .parts
        .fetch_add(outcome.built, Ordering::Relaxed);
    if let Some(error) = outcome.terminal {
        end(entry, error);
        release_all(core, entry, run);
        return;
    }
    if outcome.built == 0 {
        // Nothing differs from before; a fault is over, since after one all is built anew.
    } else {
        let issues = run.state.issues();
        let ready = run.state.is_ready() && !issues.iter().any(|issue| issue.blocks);
        let mut meta = entry.meta.lock();
        meta.fault = None;
        meta.faults = 0;
        meta.ready = ready;
        meta.issues = issues;
    }
    if let Some(snapshot) = outcome.snapshot
        && run.unpublished.replace(snapshot).is_none()
    {
        // Reserved from now on, not from the end of the proxy's own interval: that would hold up all others.
        let turn = core.limiter.lock().reserve(now);
        run.publish_at = run.publish_at.max(turn);
    }
    publish_due(core, entry, run, now);
    if let Some(due) = outcome.deadline {
        arm(core, entry, run, due, now);
    }
    if !outcome.rewired {
        return;
    }
    let wants = run.state.wants();
    let mut dropped = Vec::new();
    run.held.retain(|slot| {
        let keep = wants.binary_search(&slot.id).is_ok();
        if !keep {
            dropped.push(slot.clone());
        }
        keep
    });
    core.release(entry.number, dropped);
}

fn publish_due(core: &Arc<Core>, entry: &Arc<Entry>, run: &mut RunState, now: Duration) {
    let Some(snapshot) = run.unpublished.take() else {
        return;
    };
    if run.publish_at > now {
        run.unpublished = Some(snapshot);
        arm(core, entry, run, run.publish_at, now);
        return;
    }
    run.publish_at = now + core.config.min_publish_interval;
    publish(core, entry, snapshot);
}

/// Has the state run at a time, unless it will run before: every run arranges for what is still to come.
fn arm(core: &Core, entry: &Arc<Entry>, run: &mut RunState, due: Duration, now: Duration) {
    if run.armed.is_none_or(|armed| armed <= now || due < armed) {
        run.armed = Some(due);
        core.tell(|inbox| inbox.timers.push((due, entry.clone())));
    }
}

/// Hands a snapshot to the watchers, unless the generation is over: checked under the cell's lock, so that nothing of a
/// deregistered generation is delivered (decision E6).
fn publish(core: &Arc<Core>, entry: &Arc<Entry>, snapshot: SnapshotRef) {
    let _ = fault::hit(Point::Publish);
    // First, so that whoever has the snapshot finds it in the status too.
    entry.meta.lock().store_index = Some(snapshot.store_index);
    core.counters.published.fetch_add(1, Ordering::Relaxed);
    if !entry.cell.publish_if(|_| !entry.is_retired(), snapshot) {
        core.counters.published.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Ends a generation whose token is no longer valid: its watchers see the end (decision E5).
fn end(entry: &Arc<Entry>, error: QueryError) {
    tracing::warn!(proxy = %entry.id, %error, "the proxy's token is no longer valid; its watches end");
    entry.meta.lock().ended = Some(error);
    // A later generation has the same cell: its watchers aren't concerned (engine.md 2.7).
    entry.cell.end_if(|| !entry.is_retired());
}

pub(super) fn release_all(core: &Core, entry: &Entry, run: &mut RunState) {
    core.release(entry.number, std::mem::take(&mut run.held));
}

/// After a panic in a part: the last snapshot and the watchers stay; the state begins anew when an input changes, or after a
/// while that doubles with each fault in a row (decision E5).
fn fault(core: &Arc<Core>, entry: &Arc<Entry>, run: &mut RunState, text: &str, now: Duration) {
    core.counters.panics.fetch_add(1, Ordering::Relaxed);
    tracing::error!(proxy = %entry.id, panic = text, "a part of the proxy's state panicked; its last snapshot stays");
    let (faults, registration) = {
        let mut meta = entry.meta.lock();
        meta.fault = Some(text.to_owned());
        meta.faults = meta.faults.saturating_add(1);
        meta.ready = false;
        (meta.faults, meta.registration.clone())
    };
    if let Ok(state) = ProxyState::new(entry.id.clone(), entry.kind, registration) {
        run.state = state;
    }
    let wait = Duration::from_millis(100) * 2_u32.saturating_pow(faults.min(10) - 1);
    run.blocked_until = now + wait.min(Duration::from_secs(60));
    entry.schedule.lock().all = true;
    core.tell(|inbox| inbox.timers.push((run.blocked_until, entry.clone())));
}

/// If a query is to be looked at again and a later step is out, the state runs again. If none is, the step loop will find the
/// state when it publishes the next.
fn catch_up(core: &Arc<Core>, entry: &Arc<Entry>, run: &RunState, step: &Step, gates: Gates) {
    if run.recent.is_empty() || core.current_step().seq == step.seq {
        return;
    }
    let mut schedule = entry.schedule.lock();
    schedule.wanted = true;
    let newer = schedule.gates.put_back(gates);
    drop(schedule);
    drop(newer);
}

/// The answers at one step, for one state.
struct StepInputs<'a> {
    core: &'a Arc<Core>,
    entry: &'a Arc<Entry>,
    step: &'a Step,
    /// What the run is about to take in.
    gates: &'a Gates,
    held: &'a mut Vec<Arc<QuerySlot>>,
    /// Queries to look at again in the next run, unless it is at a step before the one given.
    added: Vec<(QueryId, u64)>,
}

impl Inputs for StepInputs<'_> {
    fn get(&mut self, query: &Query) -> (QueryId, Input) {
        let slot = self.hold(query);
        if let Some(cell) = self.step.answers.get(&slot.id.0) {
            return (slot.id, self.force(&slot, cell, Input::clone));
        }
        match &slot.route {
            Route::View => {
                // Unknown to the step: computed here, once for all states that want it now, and told to the step loop.
                let cell = slot.cell_for(self.step, || {
                    self.core.tell(|inbox| inbox.fresh.push(slot.clone()));
                });
                (slot.id, self.force(&slot, &cell, Input::clone))
            }
            Route::Feed(_) => {
                self.core.subscribe(&slot);
                (slot.id, Input::Pending)
            }
        }
    }

    fn again(&mut self, query: QueryId) -> Option<Input> {
        self.held_answer(query, Input::clone)
    }

    fn revision(&mut self, query: QueryId) -> Option<PartId> {
        self.held_answer(query, |input| match input {
            Input::Answered(answer) => Some(answer.id()),
            Input::Pending | Input::Failed { .. } => None,
        })?
    }
}

impl StepInputs<'_> {
    /// The answer of a cell. One that the step loop doesn't take care of is looked at again: by the step loop, which then has
    /// this state run, and by every run at another step before that. Until then, what this run takes in isn't done.
    fn force<R>(
        &mut self,
        slot: &QuerySlot,
        cell: &AnswerCell,
        read: impl FnOnce(&Input) -> R,
    ) -> R {
        let (read, confirmed) = self.core.evaluator.force_at(slot, cell, self.step, read);
        if !confirmed {
            self.added.push((slot.id, self.step.seq + 1));
            let recheck = Recheck {
                query: slot.id,
                entry: self.entry.clone(),
                gates: self.gates.again(),
            };
            self.core.tell(|inbox| inbox.recheck.push(recheck));
        }
        read
    }

    /// Reads the answer of a query that this state holds and that the step knows.
    fn held_answer<R>(&mut self, query: QueryId, read: impl FnOnce(&Input) -> R) -> Option<R> {
        let cell = self.step.answers.get(&query.0)?;
        let at = self
            .held
            .binary_search_by_key(&query, |held| held.id)
            .ok()?;
        if self.held[at].is_spent() {
            return None;
        }
        if cell.is_current_at(self.step) {
            // The common case, without a look at anything that other states touch too.
            return cell.peek().map(read);
        }
        let slot = self.held[at].clone();
        Some(self.force(&slot, cell, read))
    }

    /// The query's slot, with this state among those to be woken.
    fn hold(&mut self, query: &Query) -> Arc<QuerySlot> {
        loop {
            let slot = self.core.queries.intern(
                &self.entry.scope,
                query,
                self.core.evaluator.sources.as_ref(),
            );
            match self.held.binary_search_by_key(&slot.id, |held| held.id) {
                Ok(_) => return slot,
                Err(at) => {
                    let before = slot
                        .replaces
                        .and_then(|old| self.held.binary_search_by_key(&old, |held| held.id).ok());
                    if let Some(before) = before {
                        return self.held[before].clone();
                    }
                    if slot.is_spent() {
                        self.core.queries.renew(&slot);
                        continue;
                    }
                    if slot.add_interest(self.entry) {
                        self.held.insert(at, slot.clone());
                        // Later steps will find the state among those that want the answer.
                        let marking = self.core.marking.load(Ordering::SeqCst);
                        if marking > self.step.seq {
                            self.added.push((slot.id, marking));
                        }
                        return slot;
                    }
                }
            }
        }
    }
}
