//! The answers at one step, as the state that runs at it sees them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::proxy::{Input, Inputs};
use crate::snapshot::PartId;
use crate::source::{AuthScope, Query, QueryId, Route};

use super::answers::{AnswerCell, Step};
use super::cohorts::Reader;
use super::core::Core;
use super::progress::Gates;
use super::queries::QuerySlot;
use super::registry::Held;
use super::stepper::Recheck;

/// The answers at one step, for one state.
pub(super) struct StepInputs<'a> {
    pub core: &'a Arc<Core>,
    pub scope: &'a AuthScope,
    /// The state that asks.
    pub reader: &'a Reader,
    pub step: &'a Step,
    /// What the run is about to take in.
    pub gates: &'a Gates,
    /// The queries that the state holds, sorted by id.
    pub held: &'a mut Held,
    /// Queries to look at again in the next run, unless it is at a step before the one given.
    pub added: Vec<(QueryId, u64)>,
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
                reader: self.reader.clone(),
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
            let slot =
                self.core
                    .queries
                    .intern(self.scope, query, self.core.evaluator.sources.as_ref());
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
                    if slot.add_interest(self.reader) {
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
