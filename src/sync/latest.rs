//! The latest-value cell.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use super::fault::{self, Point};
use super::primitive::{Condvar, Mutex};

/// A cell that holds the latest of a sequence of values.
///
/// Any number of threads publish and read. A reader remembers the version it saw last and asks for what is newer; it gets
/// the newest value, whatever was between. Publishing never waits for a reader.
pub struct Latest<T> {
    inner: Mutex<Inner<T>>,
    changed: Condvar,
}

struct Inner<T> {
    value: Option<T>,
    version: u64,
    ended: bool,
    wakers: Vec<(WakerId, Waker)>,
    next_waker: u64,
}

type Waker = Arc<dyn Fn() + Send + Sync>;

/// Names a waker of a cell; never used again within the cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WakerId(u64);

/// What a reader finds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Read<T> {
    /// A value newer than the one seen, and its version.
    New(T, u64),
    /// Nothing newer.
    Unchanged,
    /// The cell has ended and holds nothing newer.
    Ended,
}

impl<T> Default for Latest<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Latest<T> {
    /// An empty cell. Version 0 is "nothing seen".
    #[must_use]
    pub fn new() -> Self {
        Self {
            inner: Mutex::new(Inner {
                value: None,
                version: 0,
                ended: false,
                wakers: Vec::new(),
                next_waker: 0,
            }),
            changed: Condvar::new(),
        }
    }

    /// Puts a value in place of the last one and wakes whoever waits. Does nothing once the cell has ended.
    pub fn publish(&self, value: T) {
        self.publish_if(|_| true, value);
    }

    /// Publishes if `accept` agrees with the present value; it is called under the cell's lock, so nothing comes between.
    /// Returns whether the value was published.
    pub fn publish_if(&self, accept: impl FnOnce(Option<&T>) -> bool, value: T) -> bool {
        let (old, wakers) = {
            let mut inner = self.inner.lock();
            if inner.ended || !accept(inner.value.as_ref()) {
                return false;
            }
            inner.version += 1;
            (inner.value.replace(value), wakers(&inner))
        };
        self.changed.notify_all();
        // The old value may be the last handle of a large tree: it is dropped outside the lock.
        drop(old);
        wake(wakers);
        true
    }

    /// Takes the value back: whoever hasn't read it won't. Whatever is being published when this is called is over when it
    /// returns.
    pub fn clear(&self) {
        let old = self.inner.lock().value.take();
        drop(old);
    }

    /// Returns when whatever is being published at the moment of the call is over.
    pub fn fence(&self) {
        drop(self.inner.lock());
    }

    /// Ends the cell: readers get what they haven't seen yet, then the end.
    pub fn end(&self) {
        self.end_if(|| true);
    }

    /// Ends the cell if `accept` agrees; it is called under the cell's lock, so nothing comes between.
    pub fn end_if(&self, accept: impl FnOnce() -> bool) {
        let wakers = {
            let mut inner = self.inner.lock();
            if !accept() {
                return;
            }
            inner.ended = true;
            wakers(&inner)
        };
        self.changed.notify_all();
        wake(wakers);
    }

    /// Whether the cell has ended.
    pub fn is_ended(&self) -> bool {
        self.inner.lock().ended
    }

    /// Registers a function to be called after every publication and at the end; it must not block. It is called on the
    /// publisher's thread, with no lock of the cell held. A panic in it is logged.
    pub fn add_waker(&self, waker: impl Fn() + Send + Sync + 'static) -> WakerId {
        let mut inner = self.inner.lock();
        inner.next_waker += 1;
        let id = WakerId(inner.next_waker);
        inner.wakers.push((id, Arc::new(waker)));
        id
    }

    /// Removes a waker. A call that is under way on another thread may still finish after this returns.
    pub fn remove_waker(&self, id: WakerId) {
        let removed = {
            let mut inner = self.inner.lock();
            let at = inner.wakers.iter().position(|(known, _)| *known == id);
            at.map(|at| inner.wakers.swap_remove(at))
        };
        drop(removed);
    }
}

impl<T: Clone> Latest<T> {
    /// The latest value, if there is one.
    pub fn get(&self) -> Option<T> {
        self.inner.lock().value.clone()
    }

    /// The latest value if it is newer than version `seen`.
    pub fn read_after(&self, seen: u64) -> Read<T> {
        read(&self.inner.lock(), seen)
    }

    /// Waits until there is a value newer than `seen`, the cell ends, or the deadline passes (then `Unchanged`).
    pub fn wait_after(&self, seen: u64, deadline: Option<Instant>) -> Read<T> {
        let mut inner = self.inner.lock();
        loop {
            match read(&inner, seen) {
                Read::Unchanged => {}
                found => return found,
            }
            match deadline {
                None => self.changed.wait(&mut inner),
                Some(at) => {
                    if self.changed.wait_until(&mut inner, at).timed_out() {
                        return read(&inner, seen);
                    }
                }
            }
        }
    }
}

fn read<T: Clone>(inner: &Inner<T>, seen: u64) -> Read<T> {
    match &inner.value {
        Some(value) if inner.version > seen => Read::New(value.clone(), inner.version),
        _ if inner.ended => Read::Ended,
        _ => Read::Unchanged,
    }
}

fn wakers<T>(inner: &Inner<T>) -> Vec<Waker> {
    inner
        .wakers
        .iter()
        .map(|(_, waker)| waker.clone())
        .collect()
}

/// Calls each waker on its own: they are foreign code, and the thread that publishes must survive one that panics.
fn wake(wakers: Vec<Waker>) {
    for waker in wakers {
        if catch_unwind(AssertUnwindSafe(|| {
            waker();
            let _ = fault::hit(Point::Waker);
        }))
        .is_err()
        {
            tracing::error!("a waker panicked");
        }
    }
}

impl<T> fmt::Debug for Latest<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = self.inner.lock();
        f.debug_struct("Latest")
            .field("version", &inner.version)
            .field("ended", &inner.ended)
            .field("wakers", &inner.wakers.len())
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    #[test]
    fn engine_m3_latest_wins() {
        let cell = Latest::new();
        for n in 1..=10_000 {
            cell.publish(n);
        }
        assert_eq!(cell.read_after(0), Read::New(10_000, 10_000));
        assert_eq!(cell.read_after(10_000), Read::Unchanged);
    }

    #[test]
    fn the_end_comes_after_the_last_value() {
        let cell = Latest::new();
        cell.publish("a");
        cell.end();
        cell.publish("b");
        assert_eq!(cell.read_after(0), Read::New("a", 1));
        assert_eq!(cell.read_after(1), Read::Ended);
        assert_eq!(cell.wait_after(1, None), Read::Ended);
    }

    #[test]
    fn a_waiter_gets_the_value_and_a_deadline_ends_the_wait() {
        let cell = Arc::new(Latest::new());
        let publisher = std::thread::spawn({
            let cell = cell.clone();
            move || cell.publish(7)
        });
        assert_eq!(
            cell.wait_after(0, Some(Instant::now() + Duration::from_secs(10))),
            Read::New(7, 1)
        );
        publisher.join().unwrap();
        assert_eq!(cell.wait_after(1, Some(Instant::now())), Read::Unchanged);
    }

    #[test]
    fn a_waker_that_panics_harms_neither_the_publisher_nor_other_wakers() {
        let cell = Latest::new();
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = calls.clone();
        cell.add_waker(|| panic!("by intent"));
        cell.add_waker(move || {
            counted.fetch_add(1, Ordering::SeqCst);
        });
        cell.publish(1);
        assert_eq!(calls.load(Ordering::SeqCst), 1);
        assert_eq!(cell.get(), Some(1));
    }

    #[test]
    fn a_refused_end_changes_nothing() {
        let cell = Latest::new();
        cell.end_if(|| false);
        assert!(!cell.is_ended());
        cell.publish(1);
        assert_eq!(cell.read_after(0), Read::New(1, 1));
    }

    #[test]
    fn engine_m9_wakers_are_independent_and_their_ids_are_not_reused() {
        let cell = Latest::new();
        let calls = Arc::new([const { AtomicUsize::new(0) }; 4]);
        let add = |n: usize| {
            let calls = calls.clone();
            cell.add_waker(move || {
                calls[n].fetch_add(1, Ordering::SeqCst);
            })
        };
        let ids = [add(0), add(1), add(2)];
        cell.remove_waker(ids[1]);
        let fourth = add(3);
        assert!(!ids.contains(&fourth));
        cell.publish(());
        let counts: Vec<usize> = calls.iter().map(|c| c.load(Ordering::SeqCst)).collect();
        assert_eq!(counts, [1, 0, 1, 1]);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn two_publishers_and_a_reader() {
        loom::model(|| {
            let cell = Arc::new(Latest::new());
            let publishers: Vec<_> = [1, 2]
                .into_iter()
                .map(|n| {
                    let cell = cell.clone();
                    loom::thread::spawn(move || cell.publish(n))
                })
                .collect();
            let first = cell.read_after(0);
            for publisher in publishers {
                publisher.join().unwrap();
            }
            let Read::New(_, version) = cell.read_after(0) else {
                panic!("the value is lost")
            };
            assert_eq!(version, 2);
            if let Read::New(_, seen) = first {
                assert!(seen <= version);
            }
        });
    }

    #[test]
    fn nothing_is_published_after_the_end() {
        loom::model(|| {
            let cell = Arc::new(Latest::new());
            let publisher = {
                let cell = cell.clone();
                loom::thread::spawn(move || cell.publish(1))
            };
            cell.end();
            let at_end = cell.read_after(0);
            publisher.join().unwrap();
            assert_eq!(cell.read_after(0), at_end);
        });
    }

    #[test]
    fn a_wait_ends_with_the_value_or_the_end() {
        loom::model(|| {
            let cell = Arc::new(Latest::new());
            let publisher = {
                let cell = cell.clone();
                loom::thread::spawn(move || {
                    cell.publish(1);
                    cell.end();
                })
            };
            assert_eq!(cell.wait_after(0, None), Read::New(1, 1));
            assert_eq!(cell.wait_after(1, None), Read::Ended);
            publisher.join().unwrap();
        });
    }

    #[test]
    fn whoever_adds_a_waker_and_then_reads_misses_nothing() {
        loom::model(|| {
            let cell = Arc::new(Latest::new());
            let publisher = {
                let cell = cell.clone();
                loom::thread::spawn(move || cell.publish(1))
            };
            let calls = Arc::new(AtomicUsize::new(0));
            let counted = calls.clone();
            let waker = cell.add_waker(move || {
                counted.fetch_add(1, Ordering::SeqCst);
            });
            let seen = cell.read_after(0) != Read::Unchanged;
            publisher.join().unwrap();
            assert!(seen || calls.load(Ordering::SeqCst) == 1);
            cell.remove_waker(waker);
        });
    }

    #[test]
    fn nothing_of_a_retired_generation_is_left_after_it_is_cleared() {
        loom::model(|| {
            let cell = Arc::new(Latest::new());
            let retired = Arc::new(AtomicBool::new(false));
            let publisher = {
                let (cell, retired) = (cell.clone(), retired.clone());
                loom::thread::spawn(move || {
                    cell.publish_if(|_| !retired.load(Ordering::SeqCst), 1);
                })
            };
            retired.store(true, Ordering::SeqCst);
            cell.clear();
            assert_eq!(cell.get(), None);
            publisher.join().unwrap();
            assert_eq!(cell.get(), None);
        });
    }

    #[test]
    fn a_retired_generation_neither_ends_the_next_nor_follows_it() {
        loom::model(|| {
            let cell = Arc::new(Latest::new());
            let retired = Arc::new(AtomicBool::new(false));
            let old = {
                let (cell, retired) = (cell.clone(), retired.clone());
                loom::thread::spawn(move || {
                    cell.publish_if(|_| !retired.load(Ordering::SeqCst), "old");
                })
            };
            let late = {
                let (cell, retired) = (cell.clone(), retired.clone());
                loom::thread::spawn(move || {
                    if retired.load(Ordering::SeqCst) {
                        cell.end_if(|| !retired.load(Ordering::SeqCst));
                    }
                })
            };
            retired.store(true, Ordering::SeqCst);
            cell.fence();
            cell.publish("new");
            old.join().unwrap();
            late.join().unwrap();
            assert_eq!(cell.get(), Some("new"));
            assert!(!cell.is_ended());
        });
    }
}
