//! Who read which keys: finds the readers that a commit affects, in time proportional to what changed.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;

use crate::store::key::Key;
use crate::store::snapshot::Reads;

type HashState = foldhash::quality::RandomState;

/// An index from keys to those who read them. Each reader is known by an id and has one set of reads at a time.
#[derive(Debug, Clone)]
pub struct Readers<Id> {
    by_key: HashMap<Key, BTreeSet<Id>, HashState>,
    reads: HashMap<Id, Reads, HashState>,
}

impl<Id> Default for Readers<Id> {
    fn default() -> Self {
        Self {
            by_key: HashMap::default(),
            reads: HashMap::default(),
        }
    }
}

impl<Id: Clone + Eq + Hash + Ord> Readers<Id> {
    /// An index without readers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets what a reader read, in place of what it read before.
    pub fn set(&mut self, id: Id, reads: Reads) {
        if self.reads.get(&id) == Some(&reads) {
            return;
        }
        for key in reads.keys() {
            self.by_key
                .entry(key.clone())
                .or_default()
                .insert(id.clone());
        }
        if let Some(before) = self.reads.insert(id.clone(), reads) {
            let now = self.reads.get(&id).map_or(&[][..], Reads::keys);
            let gone = before
                .keys()
                .iter()
                .filter(|key| now.binary_search(key).is_err());
            forget(&mut self.by_key, gone, &id);
        }
    }

    /// Forgets a reader. False if there was none of that id.
    pub fn remove(&mut self, id: &Id) -> bool {
        let Some(reads) = self.reads.remove(id) else {
            return false;
        };
        forget(&mut self.by_key, reads.keys().iter(), id);
        true
    }

    /// The readers of any of these keys, sorted, each once.
    #[must_use]
    pub fn affected(&self, keys: &[Key]) -> Vec<Id> {
        self.affected_with_few(keys, usize::MAX)
    }

    /// The readers of those of the keys that have at most `few`, sorted, each once.
    #[must_use]
    pub fn affected_with_few(&self, keys: &[Key], few: usize) -> Vec<Id> {
        let mut ids: Vec<Id> = keys
            .iter()
            .filter_map(|key| self.by_key.get(key))
            .filter(|readers| readers.len() <= few)
            .flatten()
            .cloned()
            .collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// All readers, sorted.
    #[must_use]
    pub fn all(&self) -> Vec<Id> {
        let mut ids: Vec<Id> = self.reads.keys().cloned().collect();
        ids.sort_unstable();
        ids
    }

    /// How many readers there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.reads.len()
    }

    /// Whether there is no reader.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.reads.is_empty()
    }

    /// How many keys have a reader.
    #[must_use]
    pub fn key_count(&self) -> usize {
        self.by_key.len()
    }
}

fn forget<'a, Id: Ord>(
    by_key: &mut HashMap<Key, BTreeSet<Id>, HashState>,
    keys: impl Iterator<Item = &'a Key>,
    id: &Id,
) {
    for key in keys {
        if let Some(ids) = by_key.get_mut(key) {
            ids.remove(id);
            if ids.is_empty() {
                by_key.remove(key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::NameSet;

    fn reads(keys: &[Key]) -> Reads {
        keys.iter().cloned().collect()
    }

    #[test]
    fn affected_readers_are_found_and_forgotten_readers_leave_nothing() {
        let (a, b) = (Key::Service("a".into()), Key::Service("b".into()));
        let names = Key::Names(NameSet::All);
        let mut readers = Readers::new();
        readers.set(2, reads(&[a.clone(), names.clone()]));
        readers.set(1, reads(&[a.clone(), b.clone(), a.clone()]));
        assert_eq!(readers.affected(&[a.clone(), b.clone()]), [1, 2]);
        assert_eq!(readers.affected(std::slice::from_ref(&names)), [2]);
        assert_eq!(
            readers.affected_with_few(&[a.clone(), names.clone()], 1),
            [2]
        );

        readers.set(1, reads(std::slice::from_ref(&b)));
        assert_eq!(readers.affected(&[a]), [2]);
        assert_eq!(readers.affected(&[b]), [1]);

        assert!(readers.remove(&1));
        assert!(!readers.remove(&1));
        assert!(readers.remove(&2));
        assert!(readers.is_empty());
        assert_eq!(readers.key_count(), 0);
    }
}
