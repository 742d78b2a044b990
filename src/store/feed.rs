//! Feeds of changed keys: level-triggered, so that a slow consumer sees the union of what it missed.

use std::collections::HashSet;

use crossbeam_channel::{Receiver, Sender, bounded};
use parking_lot::Mutex;
use triomphe::Arc;

use crate::store::key::Key;
use crate::store::snapshot::StoreSnapshot;

/// A feed that isn't taken from collects up to this many keys; with more, it says that everything changed.
const MOST_KEYS: usize = 100_000;

/// What changed since the last take, with the state that it led to.
#[derive(Debug, Clone)]
pub struct Changes {
    /// The state after the last of these changes, and before any that isn't among them.
    pub snapshot: StoreSnapshot,
    /// The changed keys, sorted. May be empty where `everything` is set.
    pub keys: Vec<Key>,
    /// Whether any key may have changed: after a restore, or if the feed overflowed.
    pub everything: bool,
    /// How many commits these changes come from.
    pub commits: u64,
}

/// A consumer's view of the store's commits: wait on [`ChangeFeed::woken`], then [`ChangeFeed::take`].
///
/// Commits between two takes fold into one. Dropping the feed ends it.
#[derive(Debug)]
pub struct ChangeFeed {
    id: u64,
    inbox: Arc<Inbox>,
    woken: Receiver<()>,
    feeds: Arc<Feeds>,
}

impl ChangeFeed {
    /// A channel that holds one token while there may be something to take.
    #[must_use]
    pub fn woken(&self) -> &Receiver<()> {
        &self.woken
    }

    /// Takes the changes since the last take (since the feed was made, the first time); none if there were none.
    #[must_use]
    pub fn take(&self) -> Option<Changes> {
        let pending = self.inbox.pending.lock().take()?;
        let mut keys: Vec<Key> = pending.keys.into_iter().collect();
        keys.sort_unstable();
        Some(Changes {
            snapshot: pending.snapshot,
            keys,
            everything: pending.everything,
            commits: pending.commits,
        })
    }
}

impl Drop for ChangeFeed {
    fn drop(&mut self) {
        self.feeds.lock().retain(|feed| feed.id != self.id);
    }
}

#[derive(Debug)]
struct Inbox {
    id: u64,
    pending: Mutex<Option<Pending>>,
    wake: Sender<()>,
}

#[derive(Debug)]
struct Pending {
    snapshot: StoreSnapshot,
    keys: HashSet<Key, foldhash::quality::RandomState>,
    everything: bool,
    commits: u64,
}

/// All feeds of a store.
#[derive(Debug, Default)]
pub(super) struct Feeds(Mutex<Vec<Arc<Inbox>>>);

impl Feeds {
    fn lock(&self) -> parking_lot::MutexGuard<'_, Vec<Arc<Inbox>>> {
        self.0.lock()
    }

    /// Makes a feed.
    pub fn open(feeds: &Arc<Self>, id: u64) -> ChangeFeed {
        let (wake, woken) = bounded(1);
        let inbox = Arc::new(Inbox {
            id,
            pending: Mutex::new(None),
            wake,
        });
        feeds.lock().push(inbox.clone());
        ChangeFeed {
            id,
            inbox,
            woken,
            feeds: feeds.clone(),
        }
    }

    /// Adds a commit to all feeds, in the order of commits; `None` means that everything changed. Wakes nobody yet.
    pub fn push(&self, snapshot: &StoreSnapshot, keys: Option<&[Key]>) {
        for inbox in self.lock().iter() {
            let mut pending = inbox.pending.lock();
            let pending = pending.get_or_insert_with(|| Pending {
                snapshot: snapshot.clone(),
                keys: HashSet::default(),
                everything: false,
                commits: 0,
            });
            pending.snapshot = snapshot.clone();
            pending.commits += 1;
            match keys {
                Some(keys) if !pending.everything && pending.keys.len() < MOST_KEYS => {
                    pending.keys.extend(keys.iter().cloned());
                }
                _ => {
                    pending.everything = true;
                    pending.keys.clear();
                }
            }
        }
    }

    /// Wakes the consumers.
    pub fn wake(&self) {
        let inboxes = self.lock().clone();
        for inbox in inboxes {
            // Full means that a token lies there already.
            let _ = inbox.wake.try_send(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::NameKey;

    #[test]
    fn a_feed_that_nobody_takes_from_stays_bounded() {
        let feeds = Arc::new(Feeds::default());
        let feed = Feeds::open(&feeds, 1);
        let snapshot = StoreSnapshot {
            tables: Arc::default(),
        };
        let key = |i: usize| Key::Links(NameKey::new(&i.to_string()));
        let many: Vec<Key> = (0..MOST_KEYS).map(key).collect();
        feeds.push(&snapshot, Some(&many));
        feeds.push(&snapshot, Some(&[key(0)]));
        let changes = feed.take().unwrap();
        assert!(changes.everything && changes.keys.is_empty());
        feeds.push(&snapshot, Some(&[key(0)]));
        let changes = feed.take().unwrap();
        assert_eq!((changes.everything, changes.keys.len()), (false, 1));
    }
}
