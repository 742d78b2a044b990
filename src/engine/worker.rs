//! Workers: threads that take states from the run queue and run them against the newest step.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crossbeam_channel::{Receiver, select};

use crate::proxy::{Changed, CohortOutput, Issue, ProxyState};
use crate::source::{QueryError, QueryId};
use crate::sync::fault::{self, Point};

use super::answers::Step;
use super::cohorts::{Found, Reader};
use super::core::{Core, CounterCells};
use super::inputs::StepInputs;
use super::lanes::{Herd, Token};
use super::progress::{Gate, Gates};
use super::registry::{Entry, Meta, RunState, Schedule, SnapshotRef, keep_wanted};

/// After this many runs from the fast lane in a row, one from the bulk lane has its turn.
const MOST_FAST: u32 = 32;

/// Runs states until both lanes are closed. The fast lane goes first, but an endless flow in it doesn't stop the other.
/// `number`: which worker this is, from 0.
pub(super) fn work(
    core: &Arc<Core>,
    number: usize,
    fast: &Receiver<Arc<Entry>>,
    bulk: &Receiver<Token>,
) {
    let mut worker = Worker {
        core,
        counters: core.counters_of(number),
        step: None,
    };
    let mut herd: Option<Herd> = None;
    let mut in_a_row = 0;
    loop {
        if in_a_row < MOST_FAST
            && let Ok(entry) = fast.try_recv()
        {
            in_a_row += 1;
            worker.run(&entry, &Call::Fast);
            continue;
        }
        in_a_row = 0;
        if let Some(many) = &mut herd {
            match many.next() {
                Some(entry) => worker.run(&entry, &Call::Herd(many.gate())),
                None => herd = None,
            }
            continue;
        }
        let token = match bulk.try_recv() {
            Ok(token) => Some(token),
            Err(_) => match worker.wait(fast, bulk) {
                Woken::Fast => None,
                Woken::Bulk(token) => Some(token),
                Woken::Closed => return,
            },
        };
        match token {
            Some(Token::One(entry)) => worker.run(&entry, &Call::Bulk),
            Some(Token::Herd(many)) => herd = Some(many),
            None => {}
        }
    }
}

/// Why a state is run.
enum Call<'h> {
    /// Its token stood in the fast lane.
    Fast,
    /// Its token stood in the bulk lane.
    Bulk,
    /// It is one of many that a step concerns; the gate is the step's.
    Herd(&'h Gate),
}

/// What ends a worker's wait.
enum Woken {
    /// A run from the fast lane, which is done.
    Fast,
    Bulk(Token),
    Closed,
}

/// What a thread that runs states has at hand.
struct Worker<'c> {
    core: &'c Arc<Core>,
    counters: &'c CounterCells,
    /// The newest step that it has seen. Workers that took the engine's own for every run would wait for each other.
    step: Option<Arc<Step>>,
}

/// What a run takes from a schedule.
struct Taken {
    dirty: Vec<QueryId>,
    all: bool,
    gates: Gates,
}

impl Worker<'_> {
    /// Waits for a token, with no step held meanwhile.
    fn wait(&mut self, fast: &Receiver<Arc<Entry>>, bulk: &Receiver<Token>) -> Woken {
        self.step = None;
        let entry = select! {
            recv(fast) -> entry => match entry {
                Ok(entry) => entry,
                Err(_) => match bulk.recv() {
                    Ok(token) => return Woken::Bulk(token),
                    Err(_) => return Woken::Closed,
                },
            },
            recv(bulk) -> token => match token {
                Ok(token) => return Woken::Bulk(token),
                Err(_) => match fast.recv() {
                    Ok(entry) => entry,
                    Err(_) => return Woken::Closed,
                },
            },
        };
        self.run(&entry, &Call::Fast);
        Woken::Fast
    }

    /// Runs a state, if a run is wanted and nobody else is at it.
    fn run(&mut self, entry: &Arc<Entry>, call: &Call<'_>) {
        let mut taken = {
            let mut schedule = entry.schedule.lock();
            match call {
                Call::Fast => schedule.in_fast = false,
                Call::Bulk => schedule.in_bulk = false,
                Call::Herd(gate) => {
                    if entry.is_retired() || schedule.has_taken_in(gate) {
                        return;
                    }
                    schedule.want_for(gate);
                }
            }
            if schedule.running || !schedule.wanted {
                return;
            }
            schedule.running = true;
            self.take(&mut schedule)
        };
        loop {
            let end = self.run_once(entry, taken);
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
            let bulk = !matches!(call, Call::Fast);
            if !at_once && self.core.put(entry, &mut schedule, bulk) {
                return;
            }
            // The proxy's cohort is at a later step already; or the engine ended during the run: the last one, which lets go of the
            // state's queries, is done here.
            schedule.running = true;
            taken = self.take(&mut schedule);
        }
    }

    /// Takes what the next run is for. The step is chosen here, under the schedule's lock, so that whoever wakes the state for
    /// a step finds it taken in, or not running yet.
    fn take(&mut self, schedule: &mut Schedule) -> Taken {
        let newest = self.core.current_seq();
        if self.step.as_ref().is_some_and(|seen| seen.seq != newest) {
            self.step = None;
        }
        let step = self.step.get_or_insert_with(|| self.core.current_step());
        schedule.wanted = false;
        schedule.ran_at = step.seq;
        Taken {
            dirty: schedule.marks.take(step.seq),
            all: std::mem::take(&mut schedule.all),
            gates: std::mem::take(&mut schedule.gates),
        }
    }

    fn run_once(&mut self, entry: &Arc<Entry>, taken: Taken) -> RunEnd {
        let step = self.step.get_or_insert_with(|| self.core.current_step());
        let pass = Pass {
            core: self.core,
            counters: self.counters,
            entry,
            step,
            now: self.core.clock.monotonic(),
        };
        let mut run = entry.run.lock();
        pass.run(&mut run, taken)
    }
}

/// How a run ended.
enum RunEnd {
    /// All is as of the run's step.
    Done,
    /// The proxy's cohort is at a later step: another run is wanted.
    Behind,
}

/// What a run that came to its end changes in the status.
struct News {
    ready: bool,
    issues: Vec<Issue>,
}

impl News {
    fn tell(self, meta: &mut Meta) {
        // A fault is over: after one, all is built anew.
        meta.fault = None;
        meta.ready = self.ready;
        meta.issues = self.issues.into();
    }
}

/// One run of a state at a step.
struct Pass<'r> {
    core: &'r Arc<Core>,
    counters: &'r CounterCells,
    entry: &'r Arc<Entry>,
    step: &'r Step,
    /// Monotonic time.
    now: Duration,
}

impl Pass<'_> {
    fn run(&self, run: &mut RunState, taken: Taken) -> RunEnd {
        let Taken {
            mut dirty,
            all,
            gates,
        } = taken;
        let entry = self.entry;
        if self.now < run.blocked_until && !entry.is_retired() {
            // After a fault: all is looked at in the run that the timer brings, and nobody waits for it.
            entry.schedule.lock().all = true;
            return RunEnd::Done;
        }
        if entry.is_retired() || entry.has_ended() {
            release_all(self.core, entry, run);
            return RunEnd::Done;
        }
        self.counters.runs.fetch_add(1, Ordering::Relaxed);
        run.recent.look_at(self.step.seq, &mut dirty);
        if let Err(panic) = self.run_own(run, &gates, all, dirty) {
            self.fault(run, &panic);
            self.catch_up(run, gates, false);
            return RunEnd::Done;
        }
        if entry.has_ended() {
            release_all(self.core, entry, run);
            return RunEnd::Done;
        }
        let mut again = false;
        match self.meet_cohort(run, &gates) {
            Some((
                Found::Current {
                    output,
                    again: more,
                },
                missed,
            )) => {
                again = more || missed;
                self.finish(run, &output);
            }
            Some((Found::Behind, _)) => {
                self.want(gates);
                return RunEnd::Behind;
            }
            Some((Found::Panicked(text), missed)) => {
                again = missed;
                self.fault(run, &text);
            }
            None => self.finish(run, &CohortOutput::default()),
        }
        // Whoever waits for the step goes on only now, with the snapshot published.
        self.catch_up(run, gates, again);
        RunEnd::Done
    }

    /// Brings the proxy's own parts up to the step. Returns the text of a panic.
    fn run_own(
        &self,
        run: &mut RunState,
        gates: &Gates,
        all: bool,
        mut dirty: Vec<QueryId>,
    ) -> Result<(), String> {
        if !all && dirty.is_empty() && run.own_deadline.is_none() {
            // What changed is the cohort's.
            return Ok(());
        }
        let (core, entry) = (self.core, self.entry);
        dirty.sort_unstable();
        dirty.dedup();
        let reader = Reader::Proxy(entry.clone());
        let mut inputs = StepInputs {
            core,
            scope: &entry.scope,
            reader: &reader,
            step: self.step,
            gates,
            held: &mut run.held,
            added: Vec::new(),
        };
        let state = &mut run.state;
        if all {
            state.set_registration(entry.meta.lock().registration.clone());
        }
        let changed = if all {
            Changed::All
        } else {
            Changed::Queries(&dirty)
        };
        let settings = &core.config.proxies;
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            state.run(settings, &core.shared, &mut inputs, changed, self.now)
        }));
        let added = std::mem::take(&mut inputs.added);
        run.recent.0.extend(added);
        let outcome = outcome.map_err(|panic| super::panic_text(panic.as_ref()).to_owned())?;
        self.counters
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
    fn meet_cohort(&self, run: &mut RunState, gates: &Gates) -> Option<(Found, bool)> {
        let (core, entry) = (self.core, self.entry);
        let spec = run.state.cohort()?;
        let mut left = None;
        let mut missed = false;
        if run.cohort.as_ref().is_none_or(|cohort| !cohort.is_of(spec)) {
            let new = core.cohorts.join(core, entry, spec, run.cohort.as_ref());
            // The members of a cohort are woken once a step is out: this one is too if it joined before, and looks for itself if
            // it joined after.
            missed = core.current_seq() != self.step.seq;
            left = run.cohort.replace(new);
        }
        let cohort = run.cohort.as_ref()?;
        let found = cohort.refresh(core, self.counters, entry, self.step, gates, self.now);
        if let Some(left) = left {
            // Last, so that the queries that both want stay in use.
            core.cohorts.leave(core, entry, &left);
        }
        Some((found, missed))
    }

    /// Publishes what the run came to.
    fn finish(&self, run: &mut RunState, cohort: &CohortOutput) {
        let (core, entry, now) = (self.core, self.entry, self.now);
        if let Some(error) = cohort.terminal() {
            end(entry, error.clone());
            release_all(core, entry, run);
            return;
        }
        let told = run.told.as_ref();
        let mut news = None;
        if run.untold || !told.is_some_and(|told| told.is_same(cohort)) {
            run.untold = false;
            run.told = Some(cohort.clone());
            let mut issues = run.state.issues();
            issues.extend(cohort.issues().iter().cloned());
            let ready = run.state.is_ready(cohort) && !issues.iter().any(|issue| issue.blocks);
            news = Some(News { ready, issues });
        }
        if let Some(snapshot) = run.state.snapshot(cohort, self.step.store.index())
            && run.unpublished.replace(snapshot).is_none()
        {
            // Reserved from now on, not from the end of the proxy's own interval: that would hold up all others.
            run.publish_at = run.publish_at.max(core.limit.reserve(now));
        }
        self.publish_due(run, news);
        if let Some(due) = run.own_deadline.into_iter().chain(cohort.deadline()).min() {
            self.arm(run, due);
        }
    }

    fn publish_due(&self, run: &mut RunState, news: Option<News>) {
        let due = run.publish_at <= self.now;
        match run.unpublished.take() {
            Some(snapshot) if due => {
                run.publish_at = self.now + self.core.config.min_publish_interval;
                self.publish(snapshot, news);
            }
            waits => {
                if let Some(news) = news {
                    news.tell(&mut self.entry.meta.lock());
                }
                if waits.is_some() {
                    run.unpublished = waits;
                    self.arm(run, run.publish_at);
                }
            }
        }
    }

    /// Has the state run at a time, unless it will run before: every run arranges for what is still to come.
    fn arm(&self, run: &mut RunState, due: Duration) {
        if run
            .armed
            .is_none_or(|armed| armed <= self.now || due < armed)
        {
            run.armed = Some(due);
            let entry = self.entry.clone();
            self.core.tell(|inbox| inbox.timers.push((due, entry)));
        }
    }

    /// Hands a snapshot to the watchers, unless the generation is over: checked under the cell's lock, so that nothing of a
    /// deregistered generation is delivered (decision E6). The status is changed under that lock too: whoever has the snapshot
    /// finds it in the status, and whom the status tells that all is well finds the snapshot.
    fn publish(&self, snapshot: SnapshotRef, news: Option<News>) {
        let entry = self.entry;
        let _ = fault::hit(Point::Publish);
        self.counters.published.fetch_add(1, Ordering::Relaxed);
        let store_index = snapshot.store_index;
        let alive = |_: Option<&SnapshotRef>| {
            if entry.is_retired() {
                return false;
            }
            let mut meta = entry.meta.lock();
            meta.store_index = Some(store_index);
            if let Some(news) = news {
                news.tell(&mut meta);
            }
            true
        };
        if !entry.cell.publish_if(alive, snapshot) {
            self.counters.published.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// After a panic in a part: the last snapshot and the watchers stay; the state begins anew when an input changes, or after a
    /// while that doubles with each fault in a row (decision E5).
    fn fault(&self, run: &mut RunState, text: &str) {
        let entry = self.entry;
        self.counters.panics.fetch_add(1, Ordering::Relaxed);
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
        run.blocked_until = self.now + wait.min(Duration::from_secs(60));
        entry.schedule.lock().all = true;
        let due = run.blocked_until;
        self.core
            .tell(|inbox| inbox.timers.push((due, entry.clone())));
    }

    /// If a query is to be looked at again and a later step is out, the state runs again. If none is, the step loop will find the
    /// state when it publishes the next.
    fn catch_up(&self, run: &RunState, gates: Gates, again: bool) {
        let again = again || !run.recent.0.is_empty();
        if again && self.core.current_seq() != self.step.seq {
            self.want(gates);
        }
    }

    /// Has this worker run the state again; `gates` are those of the run before.
    fn want(&self, gates: Gates) {
        let mut schedule = self.entry.schedule.lock();
        schedule.wanted = true;
        let newer = schedule.gates.put_back(gates);
        drop(schedule);
        drop(newer);
    }
}

/// Ends a generation whose token is no longer valid: its watchers see the end (decision E5).
fn end(entry: &Arc<Entry>, error: QueryError) {
    tracing::warn!(proxy = %entry.id, %error, "the proxy's token is no longer valid; its watches end");
    entry.meta.lock().ended = Some(Box::new(error));
    entry.ended.store(true, Ordering::SeqCst);
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
