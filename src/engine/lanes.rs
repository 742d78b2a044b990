//! The run queue: two lanes of tokens, each of which has a worker run a proxy, or many.

use std::ops::Range;
use std::sync::Arc;

use crossbeam_channel::Sender;

use super::progress::Gate;
use super::registry::Entry;

/// Most proxies that one token names: a worker takes that many at a time, so this is what one of them may be left with while
/// the others have nothing to do.
const MOST_TOGETHER: usize = 64;

/// The sending ends of the run queue.
#[derive(Clone)]
pub(super) struct Lanes {
    /// States that are woken for a reason of few.
    pub fast: Sender<Arc<Entry>>,
    pub bulk: Sender<Token>,
}

/// What stands in the bulk lane.
pub(super) enum Token {
    /// One state; its schedule says that it is there.
    One(Arc<Entry>),
    /// States that a step concerns. They are woken by the worker that takes the token, so that the step loop is free for the
    /// next commit.
    Herd(Herd),
}

/// States that one step concerns, marked for it.
pub(super) struct Herd {
    groups: Vec<Group>,
    /// Where the group at hand has got to.
    at: usize,
    /// The step isn't done as long as this token is.
    gate: Gate,
}

enum Group {
    One(Arc<Entry>),
    Members(Arc<[Arc<Entry>]>, Range<usize>),
}

impl Herd {
    /// Of the step that they are woken for.
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// The next state to be woken.
    pub fn next(&mut self) -> Option<Arc<Entry>> {
        loop {
            let (entry, size) = match self.groups.last()? {
                Group::One(entry) => (Some(entry), 1),
                Group::Members(list, range) => (list[range.clone()].get(self.at), range.len()),
            };
            let entry = entry.cloned();
            self.at += 1;
            if self.at >= size {
                self.groups.pop();
                self.at = 0;
            }
            if entry.is_some() {
                return entry;
            }
        }
    }
}

/// Puts the states that a step concerns into tokens.
pub(super) struct Gathering<'s> {
    step: &'s Gate,
    groups: Vec<Group>,
    size: usize,
    full: Vec<Token>,
}

impl<'s> Gathering<'s> {
    pub fn new(step: &'s Gate) -> Self {
        Self {
            step,
            groups: Vec::new(),
            size: 0,
            full: Vec::new(),
        }
    }

    pub fn add(&mut self, entry: Arc<Entry>) {
        self.push(Group::One(entry), 1);
    }

    /// Adds the members of a cohort.
    pub fn add_all(&mut self, members: &Arc<[Arc<Entry>]>) {
        let mut from = 0;
        while from < members.len() {
            let to = members.len().min(from + MOST_TOGETHER - self.size);
            self.push(Group::Members(members.clone(), from..to), to - from);
            from = to;
        }
    }

    fn push(&mut self, group: Group, size: usize) {
        self.groups.push(group);
        self.size += size;
        if self.size >= MOST_TOGETHER {
            self.cut();
        }
    }

    fn cut(&mut self) {
        if self.size > 0 {
            self.full.push(Token::Herd(Herd {
                groups: std::mem::take(&mut self.groups),
                at: 0,
                gate: self.step.part(),
            }));
            self.size = 0;
        }
    }

    /// The tokens. All are handed out at the end: a worker that is woken for the first alone would only take this thread's core.
    pub fn finish(mut self) -> Vec<Token> {
        self.cut();
        self.full
    }
}
