//! A cache of what proxies share (decision E9).
//!
//! Each entry is built once, also when several threads ask for it at the same time: the others wait for the first. Who
//! uses an entry holds it; entries that only the cache holds are dropped when it has grown to twice what was in use.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::OnceLock;

use parking_lot::Mutex;
use triomphe::Arc;

/// A value that is built by the first who asks for it. Holding it keeps it in the cache.
#[derive(Debug)]
pub(super) struct Entry<V>(Arc<OnceLock<V>>);

impl<V> Clone for Entry<V> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<V> Entry<V> {
    /// The value, built now if nobody has built it yet.
    pub(super) fn get(&self, build: impl FnOnce() -> V) -> &V {
        self.0.get_or_init(build)
    }
}

/// Entries by what they are built from.
#[derive(Debug)]
pub(super) struct Cache<K, V> {
    state: Mutex<State<K, V>>,
}

#[derive(Debug)]
struct State<K, V> {
    entries: HashMap<K, Entry<V>, foldhash::fast::RandomState>,
    /// How many entries there may be before unused ones are looked for.
    sweep_at: usize,
}

/// A cache of this size isn't worth sweeping.
const SMALL: usize = 64;

impl<K, V> Default for Cache<K, V> {
    fn default() -> Self {
        Self {
            state: Mutex::new(State {
                entries: HashMap::default(),
                sweep_at: SMALL,
            }),
        }
    }
}

impl<K: Eq + Hash, V> Cache<K, V> {
    /// The entry of a key. No lock is held while its value is built.
    pub(super) fn entry(&self, key: K) -> Entry<V> {
        let mut state = self.state.lock();
        if let Some(entry) = state.entries.get(&key) {
            return entry.clone();
        }
        if state.entries.len() >= state.sweep_at {
            state.entries.retain(|_, entry| !entry.0.is_unique());
            state.sweep_at = SMALL.max(state.entries.len() * 2);
        }
        let entry = Entry(Arc::new(OnceLock::new()));
        state.entries.insert(key, entry.clone());
        entry
    }

    /// How many entries there are.
    pub(super) fn len(&self) -> usize {
        self.state.lock().entries.len()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn each_entry_is_built_once_by_however_many_threads() {
        let cache = Cache::<u32, u32>::default();
        let built = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for key in 0..100 {
                        let entry = cache.entry(key % 10);
                        let value = entry.get(|| {
                            built.fetch_add(1, Ordering::Relaxed);
                            key % 10
                        });
                        assert_eq!(*value, key % 10);
                    }
                });
            }
        });
        assert_eq!(built.load(Ordering::Relaxed), 10);
    }

    #[test]
    fn e9_entries_that_nobody_holds_are_swept() {
        let cache = Cache::<u32, u32>::default();
        let held: Vec<_> = (0..100).map(|key| cache.entry(key)).collect();
        for key in 100..10_000 {
            cache.entry(key).get(|| key);
        }
        assert!(cache.len() <= 2 * held.len() + SMALL, "{}", cache.len());
        let before = cache.len();
        assert_eq!(*cache.entry(7).get(|| 1), 1);
        assert_eq!(cache.len(), before);
        drop(held);
        for key in 10_000..11_000 {
            cache.entry(key);
        }
        assert!(cache.len() <= 4 * SMALL, "{}", cache.len());
    }
}
