//! The upstreams of a snapshot, in runs that snapshots share.
//!
//! A gateway may have ten thousand upstreams, of which one changes. So that the next snapshot costs what changed, the list is cut
//! into runs, about as many as a run is long: a change copies one run and the list of runs, the square root of the whole.

use smallvec::{SmallVec, smallvec};
use triomphe::Arc;

use super::UpstreamEntry;
use crate::model::UpstreamId;

/// Upstreams of one proxy, sorted by id, each once. Cloning shares them.
#[derive(Clone)]
pub struct UpstreamList {
    runs: Arc<[Run]>,
    len: usize,
}

type Run = Arc<[UpstreamEntry]>;

const SHORTEST_RUN: usize = 8;

impl UpstreamList {
    /// The list of these entries, which are sorted by id, each once.
    #[must_use]
    pub fn new(entries: Vec<UpstreamEntry>) -> Self {
        let len = entries.len();
        let length = run_length(len);
        let mut runs = Vec::with_capacity(len.div_ceil(length));
        let mut entries = entries.into_iter();
        while entries.len() > 0 {
            let run: Vec<_> = entries.by_ref().take(length).collect();
            runs.push(Arc::from(run));
        }
        Self {
            runs: Arc::from(runs),
            len,
        }
    }

    /// How many.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All of them, by id.
    pub fn iter(&self) -> impl Iterator<Item = &UpstreamEntry> + Clone {
        self.runs.iter().flat_map(|run| run.iter())
    }

    /// The upstream with an id.
    #[must_use]
    pub fn find(&self, id: &UpstreamId) -> Option<&UpstreamEntry> {
        let run = self.runs.partition_point(|run| run[0].id() <= id);
        let run = self.runs.get(run.checked_sub(1)?)?;
        let at = run.binary_search_by(|entry| entry.id().cmp(id)).ok()?;
        run.get(at)
    }

    /// The upstream at a place.
    #[must_use]
    pub fn get(&self, at: usize) -> Option<&UpstreamEntry> {
        let length = run_length(self.len);
        self.runs.get(at / length)?.get(at % length)
    }

    /// The upstreams of two lists of equal length, place by place, but for those in runs that the two share.
    pub fn pairs<'a>(
        &'a self,
        newer: &'a Self,
    ) -> impl Iterator<Item = (usize, &'a UpstreamEntry, &'a UpstreamEntry)> {
        let length = run_length(self.len);
        let runs = self.runs.iter().zip(newer.runs.iter()).enumerate();
        runs.filter(|(_, (old, new))| !Arc::ptr_eq(old, new))
            .flat_map(move |(run, (old, new))| {
                let pairs = old.iter().zip(new.iter()).enumerate();
                pairs.map(move |(at, (old, new))| (run * length + at, old, new))
            })
    }

    /// Whether the two share everything: the answer "no" may be wrong, "yes" is not.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.runs, &other.runs)
    }

    /// The list with some entries replaced by others of the same id: by position, ascending. Costs the runs that they stand in.
    #[must_use]
    pub(crate) fn with(&self, changes: &[(usize, UpstreamEntry)]) -> Self {
        let length = run_length(self.len);
        let mut changes = changes.iter().peekable();
        let mut end = 0;
        let runs = self.runs.iter().map(|old| {
            let begin = end;
            end += length;
            if changes.peek().is_none_or(|(position, _)| *position >= end) {
                return old.clone();
            }
            let entries = old.iter().enumerate().map(|(at, entry)| {
                let change = changes.next_if(|(position, _)| *position == begin + at);
                change.map_or(entry, |(_, new)| new).clone()
            });
            entries.collect()
        });
        Self {
            runs: runs.collect(),
            len: self.len,
        }
    }

    /// Whether the two are made of the same parts.
    pub(super) fn has_same_parts(&self, other: &Self) -> bool {
        self.is_same(other)
            || self.len == other.len
                && self.stretches(other).iter().all(|(old, new)| {
                    let mut pairs = old.iter().zip(new.iter());
                    pairs.all(|(a, b)| a.is_same(b))
                })
    }

    /// Pairs of stretches of the two lists that may differ: everything else is shared.
    pub(super) fn stretches<'a>(&'a self, newer: &'a Self) -> Stretches<'a> {
        let cut_alike = self.runs.len() == newer.runs.len()
            && self
                .runs
                .iter()
                .zip(newer.runs.iter())
                .all(|(a, b)| Arc::ptr_eq(a, b) || a[0].id() == b[0].id());
        if !cut_alike {
            return smallvec![(Stretch(&self.runs), Stretch(&newer.runs))];
        }
        let old = self.runs.chunks(1);
        let pairs = old.zip(newer.runs.chunks(1));
        pairs
            .filter(|(a, b)| !Arc::ptr_eq(&a[0], &b[0]))
            .map(|(a, b)| (Stretch(a), Stretch(b)))
            .collect()
    }
}

/// Pairs of stretches; mostly one.
pub(super) type Stretches<'a> = SmallVec<[(Stretch<'a>, Stretch<'a>); 1]>;

/// Some runs of a list.
pub(super) struct Stretch<'a>(&'a [Run]);

impl<'a> Stretch<'a> {
    pub(super) fn iter(&self) -> impl Iterator<Item = &'a UpstreamEntry> {
        self.0.iter().flat_map(|run| run.iter())
    }
}

fn run_length(len: usize) -> usize {
    len.isqrt().max(SHORTEST_RUN)
}

impl FromIterator<UpstreamEntry> for UpstreamList {
    fn from_iter<I: IntoIterator<Item = UpstreamEntry>>(entries: I) -> Self {
        Self::new(entries.into_iter().collect())
    }
}

impl std::fmt::Debug for UpstreamList {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Upstream;
    use crate::snapshot::{Part, UpstreamDefinition};

    fn entry(number: usize) -> UpstreamEntry {
        let upstream = Upstream {
            destination_name: format!("s{number:05}"),
            ..Upstream::default()
        };
        UpstreamEntry {
            definition: Part::new(UpstreamDefinition::from(upstream)),
            target: None,
        }
    }

    fn list(numbers: impl Iterator<Item = usize>) -> UpstreamList {
        numbers.map(entry).collect()
    }

    #[test]
    fn entries_are_found_wherever_they_stand() {
        for len in [0, 1, 7, 8, 9, 63, 64, 65, 100, 1_000, 1_025] {
            let list = list(0..len);
            assert_eq!(list.len(), len);
            assert_eq!(list.is_empty(), len == 0);
            assert_eq!(list.iter().count(), len);
            for known in list.iter() {
                let found = list.find(known.id()).expect("it is there");
                assert_eq!(found.definition.id(), known.definition.id());
            }
            assert!(list.find(entry(len).id()).is_none());
            assert!(list.find(&UpstreamId::service("a")).is_none());
        }
    }

    #[test]
    fn a_replaced_entry_leaves_all_other_runs_shared() {
        for len in [1, 8, 9, 100, 1_025] {
            let old = list(0..len);
            for position in [0, len / 2, len - 1] {
                let new = old.with(&[(position, entry(position))]);
                assert_eq!(new.len(), len);
                let differ =
                    |a: &UpstreamEntry, b: &UpstreamEntry| a.definition.id() != b.definition.id();
                let all = old.iter().zip(new.iter()).enumerate();
                let changed: Vec<usize> = all
                    .filter(|(_, (a, b))| differ(a, b))
                    .map(|(at, _)| at)
                    .collect();
                assert_eq!(changed, [position], "of {len}");
                let pairs = old.pairs(&new).filter(|(_, a, b)| differ(a, b));
                assert_eq!(pairs.map(|(at, ..)| at).collect::<Vec<_>>(), [position]);
                assert!(old.pairs(&new).count() <= run_length(len));
                let there = new.get(position).map(|entry| entry.definition.id());
                assert_ne!(there, old.get(position).map(|entry| entry.definition.id()));
                assert!(new.get(len).is_none());
                let stretches = old.stretches(&new);
                assert_eq!(stretches.len(), 1);
                assert!(stretches[0].0.iter().count() <= run_length(len));
            }
        }
    }

    #[test]
    fn lists_that_are_cut_in_other_places_are_compared_whole() {
        let old = list(0..100);
        let new = list(1..101);
        let stretches = old.stretches(&new);
        assert_eq!(stretches.len(), 1);
        assert_eq!(stretches[0].0.iter().count(), 100);
        assert!(old.is_same(&old.clone()));
        assert!(!old.is_same(&new));
    }
}
