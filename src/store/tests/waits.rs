//! Blocking reads, restore and back ends (store.md 2.4, FC-007).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::*;
use crate::clock::{RealClock, TestClock};
use crate::store::{BackendError, BlockingQuery, CommitRecord, Found, Image, WaitHandle};

const LONG: Duration = Duration::from_secs(60);

/// A blocking read of a service's instances; "not found" if there are none.
fn ask(
    store: &Store,
    clock: &dyn crate::clock::Clock,
    service: &'static str,
    min: u64,
) -> (u64, usize) {
    store
        .blocking_query(clock, min, LONG, |reader| {
            let count = reader.instances(service).len();
            let found = if count == 0 { Found::No } else { Found::Yes };
            Ok::<_, std::convert::Infallible>((count, found))
        })
        .unwrap()
}

/// Runs `asker` on a thread of its own; when a wait is pending, runs `then`, which must end it.
fn meanwhile<T: Send>(store: &Store, asker: impl FnOnce() -> T + Send, then: impl FnOnce()) -> T {
    std::thread::scope(|scope| {
        let asking = scope.spawn(asker);
        until(|| store.waiting() > 0);
        then();
        asking.join().unwrap()
    })
}

fn until(condition: impl Fn() -> bool) {
    let deadline = Instant::now() + LONG;
    while !condition() {
        assert!(Instant::now() < deadline, "waited too long");
        std::thread::yield_now();
    }
}

#[test]
fn a_change_ends_a_blocking_read_and_an_older_index_answers_at_once() {
    let store = new_store();
    apply(&store, reg("web", "n1"));
    let clock = RealClock::new();
    assert_eq!(ask(&store, &clock, "web", 0), (1, 1));
    let answer = meanwhile(
        &store,
        || ask(&store, &clock, "web", 1),
        || {
            apply(&store, reg("web", "n2"));
        },
    );
    assert_eq!(answer, (2, 2));
    assert_eq!(ask(&store, &clock, "web", 1), (2, 2));
    assert_eq!(store.waiting(), 0);
}

#[test]
fn store_05_unrelated_writes_do_not_end_a_blocking_read() {
    let store = new_store();
    apply(&store, reg("web", "n1"));
    let clock = TestClock::new();
    let answer = meanwhile(
        &store,
        || ask(&store, &clock, "web", 1),
        || {
            apply(&store, reg("api", "n2"));
            assert_eq!(store.waiting(), 1);
            clock.advance(LONG);
        },
    );
    assert_eq!(answer, (1, 1));
}

#[test]
fn store_13_and_fc_007_a_restore_ends_blocking_reads() {
    let store = new_store();
    apply(&store, reg("db", "n1"));
    let image = store.image();
    apply(&store, reg("db", "n2"));
    apply(&store, deregister("n1", "db"));
    let feed = store.changes();
    let clock = RealClock::new();
    let answer = meanwhile(
        &store,
        || ask(&store, &clock, "other", 3),
        || {
            store.restore(&image).unwrap();
        },
    );
    assert_eq!(answer, (4, 0));
    let changes = take(&feed);
    assert!(changes.everything);
    assert_eq!(changes.snapshot.index(), 4);
    // Rows keep their indexes; no key's index is below that of the restore.
    let snapshot = store.snapshot();
    let reader = snapshot.reader();
    let rows = reader.instances("db");
    assert_eq!((rows.len(), rows[0].service.modify_index), (1, 1));
    assert_eq!(snapshot.index_of(&reader.finish()), 4);
    // Watches go on with the restored state.
    let answer = meanwhile(
        &store,
        || ask(&store, &clock, "db", 4),
        || {
            apply(&store, reg("db", "n2"));
        },
    );
    assert_eq!(answer, (5, 2));
}

#[test]
fn not_found_twice_keeps_waiting() {
    // store.md 2.4: noise around a missing row doesn't wake its waiter.
    let mut query = BlockingQuery::new(5);
    assert!(!query.answers(4, 0, Found::No));
    assert!(!query.answers(9, 0, Found::No));
    assert!(query.answers(10, 0, Found::Yes));
    // The first answer goes out even if it is "not found".
    assert!(BlockingQuery::new(5).answers(9, 0, Found::No));
    assert!(BlockingQuery::new(0).answers(1, 0, Found::No));

    let mut query = BlockingQuery::new(5);
    assert!(!query.answers(5, 0, Found::Yes));
    assert!(!query.answers(8, 0, Found::Same));
    assert!(query.answers(9, 0, Found::Yes));

    let mut query = BlockingQuery::new(50);
    assert!(!query.answers(5, 0, Found::Yes));
    assert!(query.answers(6, 6, Found::Yes), "a restore answers");
}

#[test]
fn a_failing_query_answers_at_once() {
    let store = new_store();
    let failed: Result<(u64, ()), &str> =
        store.blocking_query(&RealClock::new(), 100, LONG, |_| Err("no"));
    assert_eq!(failed.unwrap_err(), "no");
}

fn counting(store: &Store, service: &str, count: &Arc<AtomicUsize>) -> WaitHandle {
    let snapshot = store.snapshot();
    let reader = snapshot.reader();
    reader.instances(service);
    let count = count.clone();
    store.wait_until_changed(
        reader.finish(),
        snapshot.index(),
        Box::new(move || {
            count.fetch_add(1, Ordering::SeqCst);
        }),
    )
}

#[test]
fn store_16_a_cancelled_wait_is_not_woken_and_others_are_once() {
    let store = new_store();
    let count = Arc::new(AtomicUsize::new(0));
    let cancelled = counting(&store, "web", &count);
    let kept = counting(&store, "web", &count);
    let other = counting(&store, "api", &count);
    drop(cancelled);
    apply(&store, reg("web", "n1"));
    apply(&store, reg("web", "n2"));
    assert_eq!(count.load(Ordering::SeqCst), 1);
    drop(kept);
    drop(other);
    assert_eq!(store.waiting(), 0);
}

#[test]
fn a_wait_on_what_has_changed_already_is_woken_at_once() {
    let store = new_store();
    let old = store.snapshot();
    apply(&store, reg("web", "n1"));
    let reader = old.reader();
    reader.instances("web");
    let count = Arc::new(AtomicUsize::new(0));
    let woken = count.clone();
    let waker = Box::new(move || {
        woken.fetch_add(1, Ordering::SeqCst);
    });
    let _handle = store.wait_until_changed(reader.finish(), old.index(), waker);
    assert_eq!((count.load(Ordering::SeqCst), store.waiting()), (1, 0));
}

#[test]
fn wakers_hold_no_lock_and_may_panic() {
    let store = Arc::new(new_store());
    let seen = Arc::new(AtomicUsize::new(0));
    let reads = || {
        let snapshot = store.snapshot();
        let reader = snapshot.reader();
        reader.instances("web");
        reader.finish()
    };
    let _bad = store.wait_until_changed(reads(), 0, Box::new(|| panic!("on purpose")));
    let (inner, count) = (store.clone(), seen.clone());
    let _good = store.wait_until_changed(
        reads(),
        0,
        Box::new(move || {
            // Writing from a waker works.
            inner.apply(Transaction::of(reg("other", "n1"))).unwrap();
            count.store(inner.waiting() + 10, Ordering::SeqCst);
        }),
    );
    assert_eq!(apply(&store, reg("web", "n1")).index, 1);
    assert_eq!(
        (seen.load(Ordering::SeqCst), store.snapshot().index()),
        (10, 2)
    );
}

#[test]
fn fc_025_the_last_answer_is_the_one_of_the_highest_index() {
    let store = new_store();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let (mut min, mut count) = (0, 0);
            while count < 200 {
                let (index, now) = ask(&store, &RealClock::new(), "web", min);
                assert!(
                    index >= min && now >= count,
                    "went back: {min} -> {index}, {count} -> {now}"
                );
                (min, count) = (index, now);
            }
        });
        for writer in 0..2 {
            let store = &store;
            scope.spawn(move || {
                for i in 0..100 {
                    apply(store, reg("web", &format!("n{writer}-{i}")));
                }
            });
        }
        reader.join().unwrap();
    });
    assert_eq!(store.snapshot().index(), 200);
}

/// A back end that keeps rows in shared memory, and fails when told to.
#[derive(Clone, Default)]
struct Disk {
    image: Arc<Mutex<Image>>,
    fail: Arc<Mutex<bool>>,
}

impl Disk {
    fn fail(&self) -> Result<(), BackendError> {
        if *self.fail.lock() {
            return Err(BackendError::new("kept", "disk full"));
        }
        Ok(())
    }
}

impl Backend for Disk {
    fn load(&mut self) -> Result<Option<Image>, BackendError> {
        Ok(Some(self.image.lock().clone()))
    }

    fn persist(&mut self, commits: &[CommitRecord]) -> Result<(), BackendError> {
        self.fail()?;
        let mut image = self.image.lock();
        for commit in commits {
            assert_eq!(commit.index, image.index + 1, "commits come in order");
            image.index = commit.index;
            for (key, row) in &commit.rows {
                image.rows.retain(|row| row.key() != *key);
                image.rows.extend(row.clone());
            }
        }
        image.rows.sort_by_key(crate::store::AnyRow::key);
        Ok(())
    }

    fn replace(&mut self, image: &Image) -> Result<(), BackendError> {
        self.fail()?;
        *self.image.lock() = image.clone();
        Ok(())
    }
}

#[test]
fn what_a_back_end_kept_is_what_the_store_holds() {
    let backend = Disk::default();
    let store = store_with(backend.clone(), AllowAll);
    apply(
        &store,
        register(
            "n1",
            Some(service("web", 80)),
            vec![check("c", "web", CheckStatus::Passing)],
        ),
    );
    apply(
        &store,
        register(
            "n1",
            Some(proxy("web-proxy", "web")),
            vec![check("s", "", CheckStatus::Passing)],
        ),
    );
    apply(&store, set(defaults("web", "http")));
    apply(
        &store,
        set(intentions("web", &[("", "api", IntentionAction::Allow)])),
    );
    apply(&store, deregister("n1", "web"));
    apply(&store, reg("api", "n2"));
    let image = store.image();
    assert_eq!(*backend.image.lock(), image);

    let again = store_with(backend.clone(), AllowAll);
    assert_eq!(again.image(), image);
    assert_eq!(apply(&again, reg("db", "n2")).index, image.index + 1);

    *backend.fail.lock() = true;
    let feed = again.changes();
    let before = again.image();
    let text = refused(&again, reg("late", "n2"));
    assert_eq!(text, "the store's records could not be kept: disk full");
    assert!(again.restore(&image).is_err());
    assert_eq!(again.image(), before);
    assert!(feed.take().is_none());
}
