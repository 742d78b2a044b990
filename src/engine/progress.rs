//! How far the engine has got: lets a caller wait until everything that follows from a commit is done.
//!
//! Every wake carries a [`Gate`] of the step that caused it, kept until the state has run at that step or a later one. A step is
//! done when it and all before it have no gate left.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

/// Work that a step or a registry operation has caused; when the last gate of it is dropped, it is done. Cloning is one atomic
/// operation: a herd takes as many as there are proxies.
#[derive(Debug, Clone)]
pub(super) struct Gate(Arc<Work>);

impl Gate {
    /// A gate of its own behind this one: to be cloned by one thread at a time, while others clone other parts.
    pub fn part(&self) -> Self {
        Self(Arc::new(Work {
            of: self.0.of,
            behind: Behind::Gate {
                _whole: self.clone(),
            },
        }))
    }

    /// The step that it is of, if it is of one.
    pub fn step(&self) -> Option<u64> {
        match self.0.of {
            Of::Step(seq) => Some(seq),
            Of::Floating(_) => None,
        }
    }
}

#[derive(Debug)]
struct Work {
    of: Of,
    behind: Behind,
}

/// What is told, or let go of, when work is done.
#[derive(Debug)]
enum Behind {
    Progress(Arc<Progress>),
    Gate { _whole: Gate },
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
        let place = match gate.0.of {
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
            step: self.step.clone(),
            operation: self.operation.clone(),
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
    /// Steps from the oldest unfinished one on: number, store index, and whether it is done.
    steps: VecDeque<(u64, u64, bool)>,
    /// The store index up to which everything is done.
    done_index: u64,
    /// Registry operations whose work isn't done.
    floating: BTreeSet<u64>,
    next_floating: u64,
    closed: bool,
}

impl Progress {
    /// Opens a step: it isn't done as long as the gate, or a clone of it, lives.
    pub fn open(self: &Arc<Self>, seq: u64, store_index: u64) -> Gate {
        self.inner.lock().steps.push_back((seq, store_index, false));
        self.gate(Of::Step(seq))
    }

    /// A gate of a registry operation: waits that begin later wait for it too.
    pub fn floating_gate(self: &Arc<Self>) -> Gate {
        let mut inner = self.inner.lock();
        inner.next_floating += 1;
        let number = inner.next_floating;
        inner.floating.insert(number);
        drop(inner);
        self.gate(Of::Floating(number))
    }

    fn gate(self: &Arc<Self>, of: Of) -> Gate {
        Gate(Arc::new(Work {
            of,
            behind: Behind::Progress(self.clone()),
        }))
    }

    fn done(&self, of: Of) {
        let mut inner = self.inner.lock();
        match of {
            Of::Step(seq) => {
                if let Some(step) = inner.steps.iter_mut().find(|s| s.0 == seq) {
                    step.2 = true;
                }
                while let Some(&(_, index, true)) = inner.steps.front() {
                    inner.steps.pop_front();
                    inner.done_index = inner.done_index.max(index);
                }
            }
            Of::Floating(number) => {
                inner.floating.remove(&number);
            }
        }
        self.moved.notify_all();
    }

    /// Waits until everything up to a store index, and every registry operation begun before, is done. Returns false at the deadline or the engine's end.
    pub fn wait(&self, index: u64, deadline: Instant) -> bool {
        let mut inner = self.inner.lock();
        let operations = inner.next_floating;
        let done = |inner: &Inner| {
            inner.done_index >= index
                && inner
                    .floating
                    .first()
                    .is_none_or(|oldest| *oldest > operations)
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

impl Drop for Work {
    fn drop(&mut self) {
        if let Behind::Progress(progress) = &self.behind {
            progress.done(self.of);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_done_when_it_and_all_before_it_have_no_gate_left() {
        let progress = Arc::new(Progress::default());
        let first = progress.open(1, 10);
        let one_more = first.clone();
        let second = progress.open(2, 20);
        drop(second);
        drop(one_more);
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
        assert!(gates.add(progress.open(1, 10)).is_none());
        drop(gates.add(progress.open(2, 20)));
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
    fn a_step_is_done_when_all_parts_of_its_gate_are_let_go() {
        let progress = Arc::new(Progress::default());
        let gate = progress.open(1, 10);
        let parts = [gate.part(), gate.part()];
        assert_eq!(parts[0].step(), Some(1));
        drop(gate);
        let [first, second] = parts;
        drop(first);
        assert_eq!(progress.done_index(), 0);
        drop(second);
        assert_eq!(progress.done_index(), 10);
    }

    #[test]
    fn gates_put_back_win_over_newer_ones() {
        let progress = Arc::new(Progress::default());
        let mut older = Gates::default();
        older.add(progress.open(1, 10));
        let mut gates = Gates::default();
        gates.add(progress.open(2, 20));
        drop(gates.put_back(older));
        assert_eq!(progress.done_index(), 0);
        drop(gates);
        assert_eq!(progress.done_index(), 20);
    }
}
