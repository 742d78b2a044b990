//! Workers: threads that take states from the run queue and run them against the newest step.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crossbeam_channel::{Receiver, TryRecvError, select};

use crate::proxy::{Changed, CohortOutput, ProxyState};
use crate::source::{QueryError, QueryId};
use crate::sync::fault::{self, Point};

use super::answers::Step;
use super::cohorts::{Found, Reader};
use super::core::Core;
use super::inputs::StepInputs;
use super::progress::Gates;
use super::registry::{Entry, RunState, SnapshotRef, keep_wanted};

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
        let end = run_once(core, entry, &mut state);
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
        let at_once = matches!(end, RunEnd::Behind);
        if !at_once && core.put(entry, &mut schedule, from_bulk) {
            return;
        }
        // The proxy's cohort is at a later step already; or the engine ended during the run: the last one, which lets go of the
        // state's queries, is done here.
        schedule.running = true;
    }
}

/// How a run ended.
enum RunEnd {
    /// All is as of the run's step.
    Done,
    /// The proxy's cohort is at a later step: another run is wanted.
    Behind,
}

fn run_once(core: &Arc<Core>, entry: &Arc<Entry>, run: &mut RunState) -> RunEnd {
    let now = core.clock.monotonic();
    let (mut dirty, all, gates, step) = {
        let mut schedule = entry.schedule.lock();
        schedule.wanted = false;
        let gates = std::mem::take(&mut schedule.gates);
        if now < run.blocked_until && !entry.is_retired() {
            // After a fault: what changed is kept for the run that the timer brings, and nobody waits for it.
            drop(schedule);
            return RunEnd::Done;
        }
        // Under this lock, so that whoever wakes the state for a step finds it taken in, or not running yet.
        let step = core.current_step();
        schedule.ran_at = step.seq;
        let dirty = schedule.marks.take(step.seq);
        (dirty, std::mem::take(&mut schedule.all), gates, step)
    };
    if entry.is_retired() || entry.has_ended() {
        release_all(core, entry, run);
        return RunEnd::Done;
    }
    core.counters.runs.fetch_add(1, Ordering::Relaxed);
    run.recent.look_at(step.seq, &mut dirty);
    if let Err(panic) = run_own(core, entry, run, &step, &gates, all, dirty, now) {
        fault(core, entry, run, &panic, now);
        catch_up(core, entry, run, &step, gates, false);
        return RunEnd::Done;
    }
    if entry.has_ended() {
        release_all(core, entry, run);
        return RunEnd::Done;
    }
    let mut again = false;
    match meet_cohort(core, entry, run, &step, &gates, now) {
        Some((
            Found::Current {
                output,
                again: more,
            },
            missed,
        )) => {
            again = more || missed;
            finish(core, entry, run, &output, step.store.index(), now);
        }
        Some((Found::Behind, _)) => {
            want(entry, gates);
            return RunEnd::Behind;
        }
        Some((Found::Panicked(text), missed)) => {
            again = missed;
            fault(core, entry, run, &text, now);
        }
        None => {
            let nothing = CohortOutput::default();
            finish(core, entry, run, &nothing, step.store.index(), now);
        }
    }
    // Whoever waits for the step goes on only now, with the snapshot published.
    catch_up(core, entry, run, &step, gates, again);
    RunEnd::Done
}

/// Brings the proxy's own parts up to the step. Returns the text of a panic.
#[allow(
    clippy::too_many_arguments,
    reason = "the parts of one run, which has no name of its own"
)]
fn run_own(
    core: &Arc<Core>,
    entry: &Arc<Entry>,
    run: &mut RunState,
    step: &Step,
    gates: &Gates,
    all: bool,
    mut dirty: Vec<QueryId>,
    now: Duration,
) -> Result<(), String> {
    if !all && dirty.is_empty() && run.own_deadline.is_none() {
        // What changed is the cohort's.
        return Ok(());
    }
    dirty.sort_unstable();
    dirty.dedup();
    let reader = Reader::Proxy(entry.clone());
    let mut inputs = StepInputs {
        core,
        scope: &entry.scope,
        reader: &reader,
        step,
        gates,
        held: &mut run.held,
        added: Vec::new(),
    };
    let state = &mut run.state;
    if all {
        state.set_registration(entry.meta.lock().registration.clone());
    }
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
            now,
        )
    }));
    let added = std::mem::take(&mut inputs.added);
    run.recent.0.extend(added);
    let outcome = outcome.map_err(|panic| super::panic_text(panic.as_ref()).to_owned())?;
    core.counters
        .parts
        .fetch_add(outcome.built, Ordering::Relaxed);
    run.untold |= outcome.built > 0;
    run.own_deadline = outcome.deadline;
    if let Some(error) = outcome.terminal {
        end(entry, error);
        return Ok(());
    }
    if outcome.rewired {
        let dropped = keep_wanted(&mut run.held, &run.state.wants());
        core.release(entry.number, dropped);
    }
    Ok(())
}

/// Has the proxy's cohort brought up to the step: the one that its registration says, which it joins if need be. Also returns
/// whether a step may have passed that the proxy wasn't woken for. None if the registration isn't known.
fn meet_cohort(
    core: &Arc<Core>,
    entry: &Arc<Entry>,
    run: &mut RunState,
    step: &Step,
    gates: &Gates,
    now: Duration,
) -> Option<(Found, bool)> {
    let spec = run.state.cohort()?;
    let mut left = None;
    let mut missed = false;
    let cohort = match &run.cohort {
        Some(cohort) if cohort.is_of(spec) => cohort.clone(),
        old => {
            let new = core.cohorts.join(core, entry, spec, old.as_ref());
            // The members of a cohort are woken once a step is out: this one is too if it joined before, and looks for itself if
            // it joined after.
            missed = core.current_step().seq != step.seq;
            left = run.cohort.replace(new.clone());
            new
        }
    };
    let found = cohort.refresh(core, entry, step, gates, now);
    if let Some(left) = left {
        // Last, so that the queries that both want stay in use.
        core.cohorts.leave(core, entry, &left);
    }
    Some((found, missed))
}

/// Publishes what the run came to.
fn finish(
    core: &Arc<Core>,
    entry: &Arc<Entry>,
    run: &mut RunState,
    cohort: &CohortOutput,
    store_index: u64,
    now: Duration,
) {
    if let Some(error) = cohort.terminal() {
        end(entry, error.clone());
        release_all(core, entry, run);
        return;
    }
    let told = run.told.as_ref();
    if run.untold || !told.is_some_and(|told| told.is_same(cohort)) {
        run.untold = false;
        run.told = Some(cohort.clone());
        let mut issues = run.state.issues();
        issues.extend(cohort.issues().iter().cloned());
        let ready = run.state.is_ready(cohort) && !issues.iter().any(|issue| issue.blocks);
        let mut meta = entry.meta.lock();
        // A fault is over: after one, all is built anew.
        meta.fault = None;
        meta.ready = ready;
        meta.issues = issues.into();
    }
    if let Some(snapshot) = run.state.snapshot(cohort, store_index)
        && run.unpublished.replace(snapshot).is_none()
    {
        // Reserved from now on, not from the end of the proxy's own interval: that would hold up all others.
        let turn = core.limiter.lock().reserve(now);
        run.publish_at = run.publish_at.max(turn);
    }
    publish_due(core, entry, run, now);
    if let Some(due) = run.own_deadline.into_iter().chain(cohort.deadline()).min() {
        arm(core, entry, run, due, now);
    }
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
    entry.meta.lock().ended = Some(Box::new(error));
    // A later generation has the same cell: its watchers aren't concerned (engine.md 2.7).
    entry.cell.end_if(|| !entry.is_retired());
}

pub(super) fn release_all(core: &Core, entry: &Entry, run: &mut RunState) {
    core.release(entry.number, std::mem::take(&mut run.held));
    run.told = None;
    if let Some(cohort) = run.cohort.take() {
        core.cohorts.leave(core, entry, &cohort);
    }
}

/// After a panic in a part: the last snapshot and the watchers stay; the state begins anew when an input changes, or after a
/// while that doubles with each fault in a row (decision E5).
fn fault(core: &Arc<Core>, entry: &Arc<Entry>, run: &mut RunState, text: &str, now: Duration) {
    core.counters.panics.fetch_add(1, Ordering::Relaxed);
    tracing::error!(proxy = %entry.id, panic = text, "a part of the proxy's state panicked; its last snapshot stays");
    let (in_a_row, registration) = {
        let mut meta = entry.meta.lock();
        let fault = meta.fault.get_or_insert_default();
        text.clone_into(&mut fault.text);
        fault.in_a_row = fault.in_a_row.saturating_add(1);
        let in_a_row = fault.in_a_row;
        meta.ready = false;
        (in_a_row, meta.registration.clone())
    };
    if let Ok(state) = ProxyState::new(entry.id.clone(), entry.kind, registration) {
        run.state = state;
        run.own_deadline = None;
        run.told = None;
    }
    let wait = Duration::from_millis(100) * 2_u32.saturating_pow(in_a_row.min(10) - 1);
    run.blocked_until = now + wait.min(Duration::from_secs(60));
    entry.schedule.lock().all = true;
    core.tell(|inbox| inbox.timers.push((run.blocked_until, entry.clone())));
}

/// If a query is to be looked at again and a later step is out, the state runs again. If none is, the step loop will find the
/// state when it publishes the next.
fn catch_up(core: &Core, entry: &Entry, run: &RunState, step: &Step, gates: Gates, again: bool) {
    let again = again || !run.recent.0.is_empty();
    if again && core.current_step().seq != step.seq {
        want(entry, gates);
    }
}

/// Has the worker that runs a state run it again; `gates` are those of the run before.
fn want(entry: &Entry, gates: Gates) {
    let mut schedule = entry.schedule.lock();
    schedule.wanted = true;
    let newer = schedule.gates.put_back(gates);
    drop(schedule);
    drop(newer);
}
