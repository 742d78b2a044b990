//! Cohorts: what proxies have in common, kept once for all of them ([`CohortState`]).
//!
//! A cohort has no runs of its own. It reads answers like a proxy's state does, and is marked like one; but what is woken
//! is its members, and the first of them that runs at a step brings the cohort up to it. The others find it done. So a member's snapshot
//! is of one moment, its own parts and the cohort's; and a member that finds its cohort at a later step than its own run
//! takes in that step first.
//!
//! What only the cohort knows of (an answer looked at again, a deadline) is told to the other members by the one that ran.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use foldhash::fast::RandomState;
use parking_lot::Mutex;

use crate::proxy::{Changed, CohortOutput, CohortSpec, CohortState};
use crate::source::{AuthScope, QueryId};

use super::answers::Step;
use super::core::{Core, CounterCells};
use super::inputs::StepInputs;
use super::lanes::Gathering;
use super::progress::{Gate, Gates};
use super::registry::{Entry, Held, Marks, Recent, keep_wanted};
use super::stepper::FEW_READERS;

/// Who reads an answer: a proxy's own state, or a cohort.
#[derive(Debug, Clone)]
pub(super) enum Reader {
    Proxy(Arc<Entry>),
    Cohort(Arc<Cohort>),
}

impl Reader {
    /// The state's number; never used again.
    pub fn number(&self) -> u64 {
        match self {
            Self::Proxy(entry) => entry.number,
            Self::Cohort(cohort) => cohort.number,
        }
    }

    /// How many proxies are woken for it.
    pub fn proxies(&self) -> usize {
        match self {
            Self::Proxy(_) => 1,
            Self::Cohort(cohort) => cohort.members.lock().entries.len(),
        }
    }

    /// Notes that an answer of the state changed in step `seq`, which isn't published yet.
    pub fn mark(&self, query: QueryId, seq: u64) {
        match self {
            Self::Proxy(entry) => entry.schedule.lock().marks.add(query, seq),
            Self::Cohort(cohort) => cohort.marks.lock().add(query, seq),
        }
    }

    /// Adds the proxies that are woken for it.
    pub fn gather(self, into: &mut Gathering<'_>) {
        match self {
            Self::Proxy(entry) => into.add(entry),
            Self::Cohort(cohort) => into.add_all(&cohort.members()),
        }
    }

    /// Has the state run that was marked for the step of `work`, which is published now. `gates`: what else isn't done until it
    /// has run.
    pub fn wake(&self, core: &Core, bulk: bool, work: &Gate, gates: Gates) {
        match self {
            Self::Proxy(entry) => core.wake_marked(entry, bulk, work, gates),
            Self::Cohort(cohort) => {
                let members = cohort.members();
                if let Some((last, others)) = members.split_last() {
                    for member in others {
                        core.wake_marked(member, bulk, work, gates.again());
                    }
                    core.wake_marked(last, bulk, work, gates);
                }
            }
        }
    }
}

/// What its members have in common, and who they are.
pub(super) struct Cohort {
    pub number: u64,
    key: CohortKey,
    /// Answers that changed since it was last brought up to date.
    marks: Mutex<Marks>,
    members: Mutex<Members>,
    run: Mutex<CohortRun>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct CohortKey {
    /// On whose behalf data is fetched.
    scope: AuthScope,
    spec: CohortSpec,
}

#[derive(Default)]
struct Members {
    entries: HashMap<u64, Arc<Entry>, RandomState>,
    /// All of them, as a list; made when it is asked for.
    list: Option<Arc<[Arc<Entry>]>>,
    /// The last has left: who comes now needs a new cohort.
    disbanded: bool,
}

/// What only the worker that brings the cohort up to date touches.
struct CohortRun {
    state: CohortState,
    /// The queries held, sorted by id.
    held: Held,
    recent: Recent,
    /// Look at everything.
    all: bool,
    /// The step that it is at.
    at: u64,
}

/// What a member finds.
pub(super) enum Found {
    /// The cohort at the member's step. `again`: it is to be looked at again in a later step.
    Current { output: CohortOutput, again: bool },
    /// The cohort is at a later step: the member must take that in first.
    Behind,
    /// A part of it panicked; it begins anew with the next member that runs.
    Panicked(String),
}

impl std::fmt::Debug for Cohort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cohort")
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

impl Cohort {
    fn new(number: u64, key: CohortKey) -> Arc<Self> {
        let state = CohortState::new(key.spec.clone());
        Arc::new(Self {
            number,
            key,
            marks: Mutex::default(),
            members: Mutex::default(),
            run: Mutex::new(CohortRun {
                state,
                held: Held::new(),
                recent: Recent::default(),
                all: true,
                at: 0,
            }),
        })
    }

    /// Whether it is the cohort that a spec describes.
    pub fn is_of(&self, spec: &CohortSpec) -> bool {
        self.key.spec == *spec
    }

    /// The members at this moment.
    fn members(&self) -> Arc<[Arc<Entry>]> {
        let mut members = self.members.lock();
        let Members { entries, list, .. } = &mut *members;
        list.get_or_insert_with(|| entries.values().cloned().collect())
            .clone()
    }

    /// Adds a member. Returns false if the cohort is disbanded.
    fn add(&self, entry: &Arc<Entry>) -> bool {
        let mut members = self.members.lock();
        if members.disbanded {
            return false;
        }
        members.entries.insert(entry.number, entry.clone());
        let old = members.list.take();
        drop(members);
        drop(old);
        true
    }

    /// Whether its members' token is no longer valid: who comes later asks anew (engine.md 7, M8).
    fn is_spent(&self) -> bool {
        let run = self.run.lock();
        run.state.output().terminal().is_some() || run.held.iter().any(|slot| slot.is_spent())
    }

    /// Brings the cohort up to a member's step, unless it is there already.
    pub fn refresh(
        self: &Arc<Self>,
        core: &Arc<Core>,
        counters: &CounterCells,
        member: &Arc<Entry>,
        step: &Step,
        gates: &Gates,
        now: Duration,
    ) -> Found {
        let mut guard = self.run.lock();
        let run = &mut *guard;
        if run.at > step.seq {
            return Found::Behind;
        }
        let mut dirty = self.marks.lock().take(step.seq);
        let due = run.state.output().deadline().is_some_and(|due| due <= now);
        // The other members know of what was marked: they are woken for it too.
        let mut others_know = !run.all && !due;
        if run.at < step.seq && run.recent.look_at(step.seq, &mut dirty) {
            others_know = false;
        }
        run.at = step.seq;
        let ending = run.state.output().terminal().is_some();
        if !run.all && !due && !ending && dirty.is_empty() {
            return run.found();
        }
        dirty.sort_unstable();
        dirty.dedup();
        let reader = Reader::Cohort(self.clone());
        let mut inputs = StepInputs {
            core,
            scope: &self.key.scope,
            reader: &reader,
            step,
            gates,
            held: &mut run.held,
            added: Vec::new(),
        };
        let changed = if run.all {
            Changed::All
        } else {
            Changed::Queries(&dirty)
        };
        let state = &mut run.state;
        let settings = &core.config.proxies;
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            state.run(settings, &core.shared, &mut inputs, changed, now)
        }));
        let added = std::mem::take(&mut inputs.added);
        run.recent.0.extend(added);
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(panic) => {
                run.state = CohortState::new(self.key.spec.clone());
                run.all = true;
                return Found::Panicked(super::panic_text(panic.as_ref()).to_owned());
            }
        };
        run.all = false;
        counters.parts.fetch_add(outcome.built, Ordering::Relaxed);
        let dropped = if outcome.rewired {
            keep_wanted(&mut run.held, &run.state.wants())
        } else {
            Vec::new()
        };
        let found = run.found();
        drop(guard);
        core.release(self.number, dropped);
        if outcome.changed && !others_know {
            let members = self.members();
            let others = members.iter().filter(|o| o.number != member.number);
            for other in others {
                core.wake_with(other, members.len() > FEW_READERS, gates.again());
            }
        }
        found
    }

    /// Takes over what another cohort serves, where this one has nothing to serve yet: for a member that comes from there.
    fn adopt(&self, from: &Self) {
        {
            let run = self.run.lock();
            if !run.all && run.state.output().issues().is_empty() {
                return;
            }
        }
        // A copy, so that no two cohorts are locked at a time.
        let old = from.run.lock().state.clone();
        let mut run = self.run.lock();
        run.state.adopt(&old);
        run.all = true;
    }
}

impl CohortRun {
    fn found(&self) -> Found {
        Found::Current {
            output: self.state.output().clone(),
            again: !self.recent.0.is_empty(),
        }
    }
}

/// All cohorts.
#[derive(Default)]
pub(super) struct Cohorts {
    by_key: Mutex<HashMap<CohortKey, Arc<Cohort>, RandomState>>,
}

impl Cohorts {
    /// Makes a proxy a member of the cohort that its spec describes. `from`: the one that it leaves.
    pub fn join(
        &self,
        core: &Core,
        entry: &Arc<Entry>,
        spec: &CohortSpec,
        from: Option<&Arc<Cohort>>,
    ) -> Arc<Cohort> {
        let key = CohortKey {
            scope: entry.scope.clone(),
            spec: spec.clone(),
        };
        loop {
            let cohort = {
                let mut cohorts = self.by_key.lock();
                let new = || Cohort::new(core.registry.next_number(), key.clone());
                cohorts.entry(key.clone()).or_insert_with(new).clone()
            };
            if (core.queries.ever_spent() && cohort.is_spent()) || !cohort.add(entry) {
                self.remove(&cohort);
                continue;
            }
            if let Some(from) = from {
                cohort.adopt(from);
            }
            return cohort;
        }
    }

    /// Ends a membership; the last member lets go of the cohort's queries.
    pub fn leave(&self, core: &Core, entry: &Entry, cohort: &Arc<Cohort>) {
        let left = {
            let mut members = cohort.members.lock();
            let left = (members.entries.remove(&entry.number), members.list.take());
            members.disbanded = members.entries.is_empty();
            if !members.disbanded {
                return;
            }
            left
        };
        drop(left);
        self.remove(cohort);
        let held = std::mem::take(&mut cohort.run.lock().held);
        core.release(cohort.number, held);
    }

    /// Sees to it that nobody joins a cohort any more.
    fn remove(&self, cohort: &Arc<Cohort>) {
        let mut cohorts = self.by_key.lock();
        let current = cohorts.get(&cohort.key);
        if current.is_some_and(|current| Arc::ptr_eq(current, cohort)) {
            cohorts.remove(&cohort.key);
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_key.lock().len()
    }
}
