//! What is still to be sent of one type, and how it is cut into responses.

use std::collections::VecDeque;

use smol_str::SmolStr;
use triomphe::Arc;

use crate::xds::Resource;

/// Which kinds of change a step of the send pass may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kinds {
    /// Without composed ones.
    Upserts,
    /// Composed resources that replace what the client holds.
    Composed,
    Removals,
    Both,
}

impl Kinds {
    fn upserts(self) -> bool {
        matches!(self, Self::Upserts | Self::Both)
    }

    fn removals(self) -> bool {
        matches!(self, Self::Removals | Self::Both)
    }
}

/// The changes of one response.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) upserts: Vec<Arc<Resource>>,
    pub(super) removals: Vec<SmolStr>,
}

impl Batch {
    /// The resources of the child type that the client forgets when it gets this (xds.md 1.8).
    pub(super) fn children(&self) -> impl Iterator<Item = &SmolStr> {
        self.upserts.iter().flat_map(|parent| parent.children())
    }

    fn is_empty(&self) -> bool {
        self.upserts.is_empty() && self.removals.is_empty()
    }
}

/// What is still to be sent.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// What may go together.
    pub(super) batch: Batch,
    /// Composed resources that replace what the client holds: what they refer to goes first.
    pub(super) composed: Vec<Arc<Resource>>,
    /// Suspects, each to be sent in a response of its own.
    pub(super) alone: VecDeque<Lone>,
    /// Whether the client has to be told that there is nothing.
    pub(super) nothing: bool,
}

/// A change that is sent in a response of its own.
#[derive(Debug)]
pub(super) enum Lone {
    Upsert(Arc<Resource>),
    Removal(SmolStr),
}

impl Plan {
    /// Whether nothing is left.
    pub(super) fn is_done(&self) -> bool {
        self.batch.is_empty() && self.composed.is_empty() && self.alone.is_empty() && !self.nothing
    }

    /// Takes what goes into the next response: everything that may go together, else one suspect.
    pub(super) fn take(&mut self, kinds: Kinds) -> Option<Batch> {
        let mut batch = Batch::default();
        if kinds == Kinds::Composed {
            batch.upserts = std::mem::take(&mut self.composed);
            return (!batch.is_empty()).then_some(batch);
        }
        if kinds.upserts() {
            batch.upserts = std::mem::take(&mut self.batch.upserts);
        }
        if kinds.removals() {
            batch.removals = std::mem::take(&mut self.batch.removals);
        }
        if batch.is_empty() {
            match self.take_suspect(kinds)? {
                Lone::Upsert(resource) => batch.upserts.push(resource),
                Lone::Removal(name) => batch.removals.push(name),
            }
        }
        Some(batch)
    }

    fn take_suspect(&mut self, kinds: Kinds) -> Option<Lone> {
        let place = self.alone.iter().position(|lone| match lone {
            Lone::Upsert(_) => kinds.upserts(),
            Lone::Removal(_) => kinds.removals(),
        })?;
        self.alone.remove(place)
    }
}
