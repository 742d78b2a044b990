//! How far the engine has got: lets a caller wait until everything that follows from a commit is done.
//!
//! Every wake carries a [`Gate`] of the step that caused it, kept until the state has run at that step or a later one. A step is
//! done when it and all before it have no gate left.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

/// Work that a step has caused; dropping it marks the work as done.
#[derive(Debug)]
pub(super) struct Gate {
    progress: Arc<Progress>,
    of: Of,
}

/// What a state hasn't taken in: the oldest step, and the oldest registry operation. Older ones hold back newer ones, so one of
/// each is enough; one can't stand for the other, since a wait may have begun between the two.
#[derive(Debug, Default)]
pub(super) struct Gates {
    step: Option<Gate>,
    operation: Option<Gate>,
}

impl Gates {
    /// Whether a step waits for the state.
    pub fn holds_step(&self) -> bool {
        self.step.is_some()
    }

    /// Adds a gate unless there is one of its class. The one that isn't needed is handed back, to be dropped outside of locks.
    pub fn add(&mut self, gate: Gate) -> Option<Gate> {
        let place = match gate.of {
            Of::Step(_) => &mut self.step,
            Of::Floating(_) => &mut self.operation,
        };
        if place.is_some() {
            return Some(gate);
        }
        *place = Some(gate);
        None
    }

    /// Puts back what was taken: older than what has come since.
    pub fn put_back(&mut self, older: Self) -> Self {
        let newer = Self {
            step: older.step.is_some().then(|| self.step.take()).flatten(),
            operation: older
                .operation
                .is_some()
                .then(|| self.operation.take())
                .flatten(),
        };
        self.step = self.step.take().or(older.step);
        self.operation = self.operation.take().or(older.operation);
        newer
    }

    /// Gates of the same step and operation, for work that must be done beside.
    pub fn again(&self) -> Self {
        Self {
            step: self.step.as_ref().map(Gate::again),
            operation: self.operation.as_ref().map(Gate::again),
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Of {
    /// A step.
    Step(u64),
    /// A registry operation.
    Floating(u64),
}

/// The steps that still have work.
#[derive(Debug, Default)]
pub(super) struct Progress {
    inner: Mutex<Inner>,
    moved: Condvar,
}

#[derive(Debug, Default)]
struct Inner {
    /// Steps from the oldest unfinished one on: number, store index, gates out, and whether more gates may come.
    steps: VecDeque<(u64, u64, usize, bool)>,
    /// The store index up to which everything is done.
    done_index: u64,
    /// Registry operations whose work isn't done.
    floating: BTreeMap<u64, usize>,
    next_floating: u64,
    closed: bool,
}

impl Progress {
    /// Opens a step: gates may be taken until it is sealed.
    pub fn open(&self, seq: u64, store_index: u64) {
        self.inner
            .lock()
            .steps
            .push_back((seq, store_index, 0, true));
    }

    /// A gate of the open step `seq`.
    pub fn gate(self: &Arc<Self>, seq: u64) -> Gate {
        let mut inner = self.inner.lock();
        if let Some(step) = inner.steps.iter_mut().rev().find(|s| s.0 == seq) {
            step.2 += 1;
        }
        Gate {
            progress: self.clone(),
            of: Of::Step(seq),
        }
    }

    /// A gate of a registry operation: waits that begin later wait for it too.
    pub fn floating_gate(self: &Arc<Self>) -> Gate {
        let mut inner = self.inner.lock();
        inner.next_floating += 1;
        let number = inner.next_floating;
        inner.floating.insert(number, 1);
        Gate {
            progress: self.clone(),
            of: Of::Floating(number),
        }
    }

    /// Closes a step for new gates.
    pub fn seal(&self, seq: u64) {
        let mut inner = self.inner.lock();
        if let Some(step) = inner.steps.iter_mut().rev().find(|s| s.0 == seq) {
            step.3 = false;
        }
        self.advance(&mut inner);
    }

    fn advance(&self, inner: &mut Inner) {
        let mut moved = false;
        while let Some(&(_, index, 0, false)) = inner.steps.front() {
            inner.steps.pop_front();
            inner.done_index = inner.done_index.max(index);
            moved = true;
        }
        if moved {
            self.moved.notify_all();
        }
    }

    /// Waits until everything up to a store index, and every registry operation begun before, is done. Returns false at the deadline or the engine's end.
    pub fn wait(&self, index: u64, deadline: Instant) -> bool {
        let mut inner = self.inner.lock();
        let operations = inner.next_floating;
        let done = |inner: &Inner| {
            inner.done_index >= index
                && inner
                    .floating
                    .first_key_value()
                    .is_none_or(|(oldest, _)| *oldest > operations)
        };
        while !done(&inner) {
            if inner.closed || self.moved.wait_until(&mut inner, deadline).timed_out() {
                return done(&inner);
            }
        }
        true
    }

    /// Ends all waits.
    pub fn close(&self) {
        self.inner.lock().closed = true;
        self.moved.notify_all();
    }

    /// The store index up to which everything is done.
    pub fn done_index(&self) -> u64 {
        self.inner.lock().done_index
    }
}

impl Gate {
    /// One more gate of the same work.
    fn again(&self) -> Self {
        let mut inner = self.progress.inner.lock();
        match self.of {
            Of::Step(seq) => {
                // It is there: this gate holds it.
                if let Some(step) = inner.steps.iter_mut().find(|s| s.0 == seq) {
                    step.2 += 1;
                }
            }
            Of::Floating(number) => *inner.floating.entry(number).or_default() += 1,
        }
        Self {
            progress: self.progress.clone(),
            of: self.of,
        }
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        let mut inner = self.progress.inner.lock();
        match self.of {
            Of::Step(seq) => {
                if let Some(step) = inner.steps.iter_mut().find(|s| s.0 == seq) {
                    step.2 -= 1;
                }
                self.progress.advance(&mut inner);
            }
            Of::Floating(number) => {
                if let Some(gates) = inner.floating.get_mut(&number) {
                    *gates -= 1;
                    if *gates == 0 {
                        inner.floating.remove(&number);
                        self.progress.moved.notify_all();
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_done_when_it_and_all_before_it_have_no_gate_left() {
        let progress = Arc::new(Progress::default());
        progress.open(1, 10);
        let first = progress.gate(1);
        progress.seal(1);
        progress.open(2, 20);
        let second = progress.gate(2);
        progress.seal(2);
        drop(second);
        assert_eq!(progress.done_index(), 0);
        drop(first);
        assert_eq!(progress.done_index(), 20);
        assert!(progress.wait(20, Instant::now()));
        assert!(!progress.wait(21, Instant::now()));
    }

    #[test]
    fn a_registry_operation_that_waits_for_its_run_does_not_hide_a_step() {
        let progress = Arc::new(Progress::default());
        let mut gates = Gates::default();
        assert!(gates.add(progress.floating_gate()).is_none());
        progress.open(1, 10);
        assert!(gates.add(progress.gate(1)).is_none());
        progress.seal(1);
        progress.open(2, 20);
        drop(gates.add(progress.gate(2)));
        progress.seal(2);
        assert_eq!(progress.done_index(), 0);
        let again = gates.again();
        drop(gates);
        assert_eq!(progress.done_index(), 0);
        assert!(
            !progress.wait(0, Instant::now()),
            "the operation isn't done"
        );
        drop(again);
        assert_eq!(progress.done_index(), 20);
        assert!(progress.wait(20, Instant::now()));
    }

    #[test]
    fn gates_put_back_win_over_newer_ones() {
        let progress = Arc::new(Progress::default());
        progress.open(1, 10);
        let mut older = Gates::default();
        older.add(progress.gate(1));
        progress.seal(1);
        progress.open(2, 20);
        let mut gates = Gates::default();
        gates.add(progress.gate(2));
        progress.seal(2);
        drop(gates.put_back(older));
        assert_eq!(progress.done_index(), 0);
        drop(gates);
        assert_eq!(progress.done_index(), 20);
    }
}
