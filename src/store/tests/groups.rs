//! Commits that are kept in groups: what writers and readers see while the back end works, and when it fails.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender, unbounded};
use parking_lot::Mutex;

use super::*;
use crate::store::{BackendError, CommitRecord, Image};

/// How a group is to end.
#[derive(Debug, Clone, Copy)]
enum End {
    Kept,
    Failed,
    Panicked,
}

/// A back end that shows each group of indexes and waits to be told how it ends.
struct Gate {
    groups: Sender<Vec<u64>>,
    ends: Receiver<End>,
}

fn gate() -> (Gate, Receiver<Vec<u64>>, Sender<End>) {
    let (groups, shown) = unbounded();
    let (tell, ends) = unbounded();
    (Gate { groups, ends }, shown, tell)
}

impl Backend for Gate {
    fn load(&mut self) -> Result<Option<Image>, BackendError> {
        Ok(None)
    }

    fn persist(&mut self, commits: &[CommitRecord]) -> Result<(), BackendError> {
        self.groups
            .send(commits.iter().map(|commit| commit.index).collect())
            .unwrap();
        match self.ends.recv().unwrap() {
            End::Kept => Ok(()),
            End::Failed => Err(BackendError::new("kept", "disk full")),
            End::Panicked => panic!("as told"),
        }
    }

    fn replace(&mut self, _image: &Image) -> Result<(), BackendError> {
        Ok(())
    }
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + std::time::Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        std::thread::yield_now();
    }
}

/// Starts writers of different records one after another, each when the one before is drafted.
fn writers<'s>(
    scope: &'s std::thread::Scope<'s, '_>,
    store: &'s Store,
    names: &[&'static str],
) -> Vec<std::thread::ScopedJoinHandle<'s, Result<Applied, StoreError>>> {
    let mut started = Vec::new();
    for &name in names {
        let before = store.drafted();
        started.push(scope.spawn(move || store.apply(Transaction::of(reg(name, "n1")))));
        until("the draft", || store.drafted() > before);
    }
    started
}

#[test]
fn writers_that_wait_are_kept_together_and_in_order() {
    let (gate, shown, tell) = gate();
    let store = store_with(gate, AllowAll);
    std::thread::scope(|scope| {
        let first = writers(scope, &store, &["a"]);
        assert_eq!(shown.recv().unwrap(), [1]);
        let rest = writers(scope, &store, &["b", "c", "d"]);
        // Drafted, but nobody sees it and nobody is answered.
        assert_eq!((store.snapshot().index(), store.drafted()), (0, 4));
        assert!(!first[0].is_finished());
        tell.send(End::Kept).unwrap();
        assert_eq!(shown.recv().unwrap(), [2, 3, 4]);
        assert_eq!(store.snapshot().index(), 1);
        assert!(rest.iter().all(|writer| !writer.is_finished()));
        tell.send(End::Kept).unwrap();
        let indexes: Vec<u64> = first
            .into_iter()
            .chain(rest)
            .map(|writer| writer.join().unwrap().unwrap().index)
            .collect();
        assert_eq!(indexes, [1, 2, 3, 4]);
    });
    assert_eq!(store.snapshot().index(), 4);
}

#[test]
fn a_write_of_what_waits_to_be_kept_waits_too() {
    let (gate, shown, tell) = gate();
    let store = store_with(gate, AllowAll);
    let done = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let first = writers(scope, &store, &["a"]);
        assert_eq!(shown.recv().unwrap(), [1]);
        let again = scope.spawn(|| {
            let applied = store.apply(Transaction::of(reg("a", "n1")));
            done.fetch_add(1, Ordering::SeqCst);
            applied
        });
        // It can't be told from one that hasn't begun; but it mustn't end.
        std::thread::yield_now();
        assert_eq!(done.load(Ordering::SeqCst), 0);
        tell.send(End::Kept).unwrap();
        let applied = again.join().unwrap().unwrap();
        assert_eq!((applied.index, applied.changed), (1, false));
        for writer in first {
            writer.join().unwrap().unwrap();
        }
    });
}

#[test]
fn a_group_that_fails_takes_all_with_it_that_stand_on_it() {
    for end in [End::Failed, End::Panicked] {
        let (gate, shown, tell) = gate();
        let store = store_with(gate, AllowAll);
        let feed = store.changes();
        std::thread::scope(|scope| {
            let mut all = writers(scope, &store, &["a"]);
            assert_eq!(shown.recv().unwrap(), [1]);
            all.extend(writers(scope, &store, &["b", "c"]));
            tell.send(end).unwrap();
            for writer in all {
                let error = writer.join().unwrap().unwrap_err();
                assert!(matches!(error, StoreError::Backend(_)), "{error}");
            }
            assert_eq!((store.snapshot().index(), store.drafted()), (0, 0));
            assert!(feed.take().is_none());
            // The next one takes the same index, on top of what is there.
            let next = writers(scope, &store, &["d"]);
            assert_eq!(shown.recv().unwrap(), [1]);
            tell.send(End::Kept).unwrap();
            for writer in next {
                assert_eq!(writer.join().unwrap().unwrap().index, 1);
            }
        });
        let names = |store: &Store| {
            let snapshot = store.snapshot();
            let names = snapshot.reader().service_names_with_tags();
            names
                .into_iter()
                .map(|(name, _)| name.to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(names(&store), ["d"]);
    }
}

#[test]
fn a_restore_comes_after_what_was_drafted_before_it() {
    let (gate, shown, tell) = gate();
    let store = store_with(gate, AllowAll);
    std::thread::scope(|scope| {
        let first = writers(scope, &store, &["a"]);
        assert_eq!(shown.recv().unwrap(), [1]);
        let second = writers(scope, &store, &["b"]);
        let restore = scope.spawn(|| store.restore(&Image::default()));
        tell.send(End::Kept).unwrap();
        tell.send(End::Kept).unwrap();
        assert_eq!(restore.join().unwrap().unwrap(), 3);
        for writer in first.into_iter().chain(second) {
            writer.join().unwrap().unwrap();
        }
    });
    assert_eq!(store.snapshot().index(), 3);
    assert!(store.image().rows.is_empty());
}

/// Counts groups and commits.
#[derive(Clone, Default)]
struct Counting(Arc<Mutex<Vec<usize>>>);

impl Backend for Counting {
    fn load(&mut self) -> Result<Option<Image>, BackendError> {
        Ok(None)
    }

    fn persist(&mut self, commits: &[CommitRecord]) -> Result<(), BackendError> {
        self.0.lock().push(commits.len());
        Ok(())
    }

    fn replace(&mut self, _image: &Image) -> Result<(), BackendError> {
        Ok(())
    }
}

#[test]
fn each_commit_of_many_writers_is_kept_once_and_seen_by_its_writer() {
    let counting = Counting::default();
    let store = store_with(counting.clone(), AllowAll);
    std::thread::scope(|scope| {
        for writer in 0..8 {
            let store = &store;
            scope.spawn(move || {
                for i in 0..50 {
                    let name = format!("s{writer}-{i}");
                    let applied = apply(store, reg(&name, "n1"));
                    let snapshot = store.snapshot();
                    assert!(snapshot.index() >= applied.index);
                    assert_eq!(snapshot.reader().instances(name.as_str()).len(), 1);
                }
            });
        }
    });
    assert_eq!(store.snapshot().index(), 400);
    assert_eq!(counting.0.lock().iter().sum::<usize>(), 400);
}
