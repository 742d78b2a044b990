//! Answers at a step: cells that are computed once.
//!
//! A [`Step`] is immutable: a store snapshot and, for every query in use, the cell with its answer at that snapshot. A state
//! runs against one step and so sees one moment of the store, while newer steps come into being beside it.
//!
//! A cell is filled by whoever needs it first. Its answer holds from the index it was computed at until one of the keys
//! that were read changes. The step loop replaces cells whose keys changed, but it can only do so for cells whose reads are
//! registered. So whoever fills a cell registers the reads and compares them, under the same lock, with the store that the
//! step loop has got to: if nothing changed in between, the cell is *confirmed*, and from then on the step loop takes
//! care of it; if something did, the step loop is told to look again, and a state that runs at a later step than
//! the cell's checks the cell for itself.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use foldhash::fast::RandomState;
use parking_lot::Mutex;

use crate::proxy::Input;
use crate::source::{Answer, Query, QueryError, QueryId, Sources};
use crate::store::{Reads, StoreSnapshot};
use crate::sync::fault::{self, Point};

use super::queries::QuerySlot;

/// A moment of the store, and the answers at it.
#[derive(Debug)]
pub(super) struct Step {
    /// Number of the step, from 0.
    pub seq: u64,
    /// The store.
    pub store: StoreSnapshot,
    /// The answers.
    pub answers: rpds::HashTrieMapSync<u64, Arc<AnswerCell>, RandomState>,
}

/// The answer of one query from one store index on.
#[derive(Debug)]
pub(super) struct AnswerCell {
    value: OnceLock<Filled>,
    /// The store to compute from, and the answer before; taken when the cell is filled.
    task: Mutex<Option<(StoreSnapshot, Option<Input>)>>,
    /// The store index that the answer is computed at.
    bound: u64,
    confirmed: AtomicBool,
}

#[derive(Debug)]
struct Filled {
    input: Input,
    reads: Reads,
}

impl AnswerCell {
    /// A cell to be computed from `store` by whoever needs it first.
    pub fn lazy(store: &StoreSnapshot, previous: Option<Input>) -> Arc<Self> {
        Arc::new(Self {
            value: OnceLock::new(),
            task: Mutex::new(Some((store.clone(), previous))),
            bound: store.index(),
            confirmed: AtomicBool::new(false),
        })
    }

    /// A cell with an answer from a feed: it depends on nothing in the store.
    pub fn given(input: Input, store: &StoreSnapshot) -> Arc<Self> {
        let value = OnceLock::new();
        let _ = value.set(Filled {
            input,
            reads: Reads::default(),
        });
        Arc::new(Self {
            value,
            task: Mutex::new(None),
            bound: store.index(),
            confirmed: AtomicBool::new(true),
        })
    }

    /// The store index that the answer is computed at.
    pub fn bound(&self) -> u64 {
        self.bound
    }

    /// The answer if the cell is filled.
    pub fn peek(&self) -> Option<&Input> {
        self.value.get().map(|filled| &filled.input)
    }

    /// Whether the step loop takes care of the cell: it is filled, and what it read is registered.
    pub fn is_confirmed(&self) -> bool {
        self.confirmed.load(Ordering::Acquire)
    }

    /// Whether the cell is filled, and the step loop takes care that steps from `step` on have it as long as it holds.
    pub fn is_current_at(&self, step: &Step) -> bool {
        self.is_confirmed() && self.bound <= step.store.index()
    }

    /// The answer if the cell is filled, else the one before.
    pub fn latest_known(&self) -> Option<Input> {
        if let Some(input) = self.peek() {
            return Some(input.clone());
        }
        let task = self.task.lock();
        match &*task {
            Some((_, previous)) => previous.clone(),
            // Filled in the meantime.
            None => self.peek().cloned(),
        }
    }
}

/// Computes answers and keeps track of what they read.
pub(super) struct Evaluator {
    pub sources: Arc<dyn Sources>,
    readers: Mutex<ReadersState>,
    /// Answers computed, over the engine's life.
    pub computed: AtomicU64,
    /// How many of them were discovery chains.
    pub chains: AtomicU64,
}

struct ReadersState {
    index: crate::store::Readers<QueryId>,
    /// The store index that the reads of each query were recorded at.
    bounds: HashMap<QueryId, u64, RandomState>,
    /// The store that the step loop has got to.
    store: StoreSnapshot,
}

impl Evaluator {
    pub fn new(sources: Arc<dyn Sources>, store: StoreSnapshot) -> Self {
        let readers = Mutex::new(ReadersState {
            index: crate::store::Readers::default(),
            bounds: HashMap::default(),
            store,
        });
        Self {
            sources,
            readers,
            computed: AtomicU64::new(0),
            chains: AtomicU64::new(0),
        }
    }

    /// Moves on to a store and returns the queries that read one of the keys that changed on the way; and those of them that
    /// read one that at most `few` queries read. Both sorted.
    pub fn advance(
        &self,
        store: &StoreSnapshot,
        keys: &[crate::store::Key],
        few: usize,
    ) -> (Vec<QueryId>, Vec<QueryId>) {
        let mut readers = self.readers.lock();
        readers.store = store.clone();
        let affected = readers.index.affected(keys);
        let with_few = if affected.len() <= few {
            affected.clone()
        } else {
            readers.index.affected_with_few(keys, few)
        };
        (affected, with_few)
    }

    /// Moves on to a store that isn't the outcome of commits, and returns all queries.
    pub fn restart(&self, store: &StoreSnapshot) -> Vec<QueryId> {
        let mut readers = self.readers.lock();
        readers.store = store.clone();
        readers.index.all()
    }

    /// Forgets what a query read.
    pub fn forget(&self, id: QueryId) {
        let mut readers = self.readers.lock();
        readers.index.remove(&id);
        readers.bounds.remove(&id);
    }

    /// The answer of a cell, computed now if need be.
    pub fn force<'c>(&self, slot: &QuerySlot, cell: &'c AnswerCell) -> &'c Input {
        let filled = cell.value.get_or_init(|| {
            let task = cell.task.lock().take();
            let Some((store, previous)) = task else {
                // Only a filler takes the task, and the cell lets one filler in.
                let error = QueryError::new("the answer was lost; this is a defect of the engine");
                return Filled {
                    input: Input::Failed { error, last: None },
                    reads: Reads::default(),
                };
            };
            let (result, reads) = self.eval(slot, &store);
            let input = merge(result, previous.as_ref());
            let confirmed = self.register(slot.id, &reads, cell.bound);
            cell.confirmed.store(confirmed, Ordering::Release);
            Filled { input, reads }
        });
        &filled.input
    }

    /// The answer of a cell for a state that runs at `step`, and whether the step loop takes care of the cell. If it doesn't,
    /// and something that the cell read changed on the way to the step, the answer is computed for the step alone. Each state
    /// that gets such an answer must look at it again: a step that the query's change belongs to may have passed, or pass,
    /// without waking anybody.
    pub fn force_at<R>(
        &self,
        slot: &QuerySlot,
        cell: &AnswerCell,
        step: &Step,
        read: impl FnOnce(&Input) -> R,
    ) -> (R, bool) {
        let input = self.force(slot, cell);
        let confirmed = cell.is_confirmed();
        if cell.is_current_at(step) || self.holds_at(cell, step) {
            return (read(input), confirmed);
        }
        let anew = merge(self.eval(slot, &step.store).0, Some(input));
        (read(&anew), confirmed)
    }

    /// Whether a filled cell's answer also holds at a step.
    fn holds_at(&self, cell: &AnswerCell, step: &Step) -> bool {
        let Some(filled) = cell.value.get() else {
            return false;
        };
        let index = step.store.index();
        match cell.bound.cmp(&index) {
            std::cmp::Ordering::Equal => true,
            std::cmp::Ordering::Less => step.store.index_of(&filled.reads) <= cell.bound,
            // Computed at a later store: it held before if nothing that it read changed since the step.
            std::cmp::Ordering::Greater => {
                self.readers.lock().store.index_of(&filled.reads) <= index
            }
        }
    }

    fn eval(&self, slot: &QuerySlot, store: &StoreSnapshot) -> (Result<Answer, QueryError>, Reads) {
        self.computed.fetch_add(1, Ordering::Relaxed);
        if matches!(slot.key.query, Query::Chain(_)) {
            self.chains.fetch_add(1, Ordering::Relaxed);
        }
        let reader = store.reader();
        let result = catch_unwind(AssertUnwindSafe(|| {
            let result = self.sources.eval(&slot.key.query, &reader);
            if fault::hit(Point::View) {
                return Err(QueryError::new("fault point: view"));
            }
            result
        }));
        let result = result.unwrap_or_else(|panic| {
            let text = super::panic_text(panic.as_ref());
            tracing::error!(query = %slot.key.query, panic = text, "a view panicked");
            Err(QueryError::new(format!(
                "the {} can't be computed: internal error: {text}",
                slot.key.query
            )))
        });
        (result, reader.finish())
    }

    /// Registers what a query read at `bound`. Returns whether nothing of it has changed in the store that the step loop has
    /// got to. What was read at a later index stays: a newer cell relies on it.
    fn register(&self, id: QueryId, reads: &Reads, bound: u64) -> bool {
        let mut readers = self.readers.lock();
        let known = readers.bounds.entry(id).or_insert(bound);
        if *known > bound {
            return false;
        }
        *known = bound;
        readers.index.set(id, reads.clone());
        readers.store.index() <= bound || readers.store.index_of(reads) <= bound
    }
}

/// The new state of a query: an equal answer keeps its revision, a failure keeps the last good answer.
pub(super) fn merge(result: Result<Answer, QueryError>, previous: Option<&Input>) -> Input {
    let last = match previous {
        Some(Input::Answered(answer)) => Some(answer),
        Some(Input::Failed { last, .. }) => last.as_ref(),
        Some(Input::Pending) | None => None,
    };
    match result {
        Ok(answer) => match last {
            Some(last) if last.same_content(&answer) => Input::Answered(last.clone()),
            _ => Input::Answered(answer),
        },
        Err(error) => Input::Failed {
            error,
            last: last.cloned(),
        },
    }
}

/// Whether a state that saw `old` must look at `new`.
pub(super) fn differs(old: Option<&Input>, new: &Input) -> bool {
    match (old, new) {
        (Some(Input::Answered(a)), Input::Answered(b)) => a.id() != b.id(),
        (Some(Input::Failed { error: a, last: x }), Input::Failed { error: b, last: y }) => {
            a != b || x.as_ref().map(Answer::id) != y.as_ref().map(Answer::id)
        }
        (Some(Input::Pending), Input::Pending) => false,
        _ => true,
    }
}
