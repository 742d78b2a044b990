//! How far the engine has got: lets a caller wait until everything that follows from a commit is done.
//!
//! Every wake carries a [`Gate`] of the step that caused it, kept until the state has run at that step or a later one. A step is
//! done when it and all before it have no gate left.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

/// Work that a step has caused; dropping it marks the work as done.
#[derive(Debug)]
pub(super) struct Gate {
    progress: Arc<Progress>,
    of: Of,
}

#[derive(Debug)]
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
    floating: BTreeSet<u64>,
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
        inner.floating.insert(number);
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
                inner.floating.remove(&number);
                self.progress.moved.notify_all();
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
}
