//! Delivery to watchers: latest only, callbacks, cancelling, closing.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use proxycfg::engine::{CallbackWatch, Manager, SnapshotRef, WaitError, WatchEvent};
use proxycfg::model::{CheckStatus, ProxyId, ProxySource};

use crate::host::*;
use crate::world::*;

/// A gate that callbacks block at.
#[derive(Default)]
struct Barrier {
    open: Mutex<bool>,
    opened: Condvar,
}

impl Barrier {
    fn pass(&self) {
        let mut open = self.open.lock();
        while !*open {
            self.opened.wait(&mut open);
        }
    }

    fn open(&self) {
        *self.open.lock() = true;
        self.opened.notify_all();
    }
}

fn flip(world: &World, n: u32) {
    let status = if n.is_multiple_of(2) {
        CheckStatus::Critical
    } else {
        CheckStatus::Passing
    };
    world.check("db", 1, status);
}

fn ready_world() -> (World, ProxyId) {
    let world = World::new();
    world.instance("db", 1);
    let id = proxy_id("web");
    world.register(&id, sidecar("web", &["db"]));
    world.ready(&id);
    (world, id)
}

#[test]
fn engine_m3_ten_thousand_changes_one_read() {
    let (world, id) = ready_world();
    let mut slow = world.manager().watch(&id);
    for n in 0..10_000 {
        flip(&world, n);
    }
    world.settle();
    let snapshot = slow.try_next().unwrap().unwrap();
    assert_eq!(addresses(&snapshot, "db"), ["10.0.0.2:21000 Passing"]);
    assert!(
        slow.try_next().unwrap().is_none(),
        "one read gives the newest"
    );
}

#[test]
fn engine_m9_watches_are_independent() {
    let (world, id) = ready_world();
    let mut watches: Vec<_> = (0..3).map(|_| world.manager().watch(&id)).collect();
    for watch in &mut watches {
        next(watch);
    }
    drop(watches.remove(1));
    watches.push(world.manager().watch(&id));
    next(&mut watches[2]);
    assert_eq!(world.manager().status(&id).unwrap().watchers, 3);
    flip(&world, 0);
    for watch in &mut watches {
        assert_eq!(addresses(&next(watch), "db"), ["10.0.0.2:21000 Critical"]);
    }
}

#[test]
fn a_waker_is_told_of_each_snapshot_and_of_the_end() {
    let (world, id) = ready_world();
    let calls = Arc::new(AtomicUsize::new(0));
    let mut watch = world.manager().watch(&id);
    let counted = calls.clone();
    watch.set_waker(move || {
        counted.fetch_add(1, Ordering::SeqCst);
    });
    flip(&world, 0);
    world.settle();
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    world.embedded.close_soon();
    assert_eq!(calls.load(Ordering::SeqCst), 2);
}

#[test]
fn contract_3_a_waker_that_panics_harms_no_worker() {
    let (world, id) = ready_world();
    let mut bad = world.manager().watch(&id);
    bad.set_waker(|| panic!("by intent"));
    let mut good = world.manager().watch(&id);
    next(&mut good);
    for n in 0..10 {
        flip(&world, n);
        next(&mut good);
    }
    assert_eq!(world.manager().counts().threads, 3);
}

#[test]
fn contract_3_a_callback_gets_each_snapshot_and_the_end() {
    let (world, id) = ready_world();
    let (send, receive) = mpsc::channel();
    let watch = world.manager().watch_with(&id, move |event| {
        let text = match event {
            WatchEvent::Snapshot(snapshot) => addresses(&snapshot, "db").join(","),
            WatchEvent::Ended => "ended".into(),
        };
        send.send(text).unwrap();
    });
    let heard = || receive.recv_timeout(PATIENCE).unwrap();
    assert_eq!(heard(), "10.0.0.2:21000 Passing");
    flip(&world, 0);
    assert_eq!(heard(), "10.0.0.2:21000 Critical");
    watch.cancel();
    flip(&world, 1);
    world.settle();
    assert!(
        receive.recv().is_err(),
        "the function is gone, with its sender"
    );
}

#[test]
fn contract_3_blocked_and_panicking_callbacks_harm_nobody() {
    let (world, id) = ready_world();
    let barrier = Arc::new(Barrier::default());
    let blocked: Vec<CallbackWatch> = (0..8)
        .map(|_| {
            let barrier = barrier.clone();
            world.manager().watch_with(&id, move |_| barrier.pass())
        })
        .collect();
    let panics = Arc::new(AtomicU32::new(0));
    let counted = panics.clone();
    let panicking = world.manager().watch_with(&id, move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        panic!("by intent");
    });
    let (send, receive) = mpsc::channel();
    let good = world.manager().watch_with(&id, move |event| {
        if let WatchEvent::Snapshot(snapshot) = event {
            send.send(addresses(&snapshot, "db")).unwrap();
        }
    });
    receive.recv_timeout(PATIENCE).unwrap();
    for n in 0..20 {
        flip(&world, n);
        receive.recv_timeout(PATIENCE).unwrap();
    }
    eventually("more calls after a panic", || {
        panics.load(Ordering::SeqCst) > 1
    });
    assert_eq!(world.manager().counts().threads, 3);
    barrier.open();
    drop((blocked, panicking, good));
}

#[test]
fn contract_3_past_the_cap_callbacks_wait_but_proxies_do_not() {
    let world = World::with(|config| config.engine.callback_threads = 2);
    world.instance("db", 1);
    let id = proxy_id("web");
    world.register(&id, sidecar("web", &["db"]));
    world.ready(&id);
    let barrier = Arc::new(Barrier::default());
    let begun = Arc::new(AtomicUsize::new(0));
    let watches: Vec<_> = (0..3)
        .map(|_| {
            let (barrier, begun) = (barrier.clone(), begun.clone());
            world.manager().watch_with(&id, move |_| {
                begun.fetch_add(1, Ordering::SeqCst);
                barrier.pass();
            })
        })
        .collect();
    eventually("two calls", || begun.load(Ordering::SeqCst) == 2);
    // A new proxy needs a certificate, which is asked for on a thread of a pool: it must not wait for callbacks.
    let other = proxy_id("other");
    world.register(&other, sidecar("other", &["db"]));
    world.ready(&other);
    flip(&world, 0);
    world.settle();
    assert_eq!(
        begun.load(Ordering::SeqCst),
        2,
        "the third waits for a thread"
    );
    barrier.open();
    eventually("the third call", || begun.load(Ordering::SeqCst) >= 3);
    drop(watches);
}

#[test]
fn contract_4_a_wait_on_an_engine_thread_is_refused() {
    let (world, id) = ready_world();
    let (send, receive) = mpsc::channel();
    let manager: Manager = world.manager().clone();
    let inner = id.clone();
    let watch = world.manager().watch_with(&id, move |_| {
        let deadline = Instant::now() + PATIENCE;
        let errors = [
            manager.wait_index(u64::MAX, deadline).unwrap_err(),
            manager
                .wait_ready(&inner, deadline)
                .map(|_| ())
                .unwrap_err(),
            manager.watch(&inner).next(None).map(|_| ()).unwrap_err(),
        ];
        let _ = send.send(errors);
    });
    let errors = receive.recv_timeout(PATIENCE).unwrap();
    assert_eq!(errors, [WaitError::EngineThread; 3]);
    drop(watch);
}

/// Tells when it is dropped.
struct Marked {
    drops: Arc<AtomicU32>,
    running: Arc<AtomicBool>,
    at_drop: Arc<AtomicBool>,
}

impl Drop for Marked {
    fn drop(&mut self) {
        if self.running.load(Ordering::SeqCst) {
            self.at_drop.store(true, Ordering::SeqCst);
        }
        self.drops.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn fc_096_nothing_is_called_after_cancel_and_the_end_comes_once_and_last() {
    let (world, id) = ready_world();
    let rounds = crate::stress::size("PROXYCFG_ROUNDS", 2_000);
    let mut random = 1_u64;
    for round in 0..rounds {
        let drops = Arc::new(AtomicU32::new(0));
        let running = Arc::new(AtomicBool::new(false));
        let at_drop = Arc::new(AtomicBool::new(false));
        let gone = Arc::new(AtomicBool::new(false));
        let late = Arc::new(AtomicBool::new(false));
        let mark = Marked {
            drops: drops.clone(),
            running: running.clone(),
            at_drop: at_drop.clone(),
        };
        let watch = {
            let (gone, late) = (gone.clone(), late.clone());
            world.manager().watch_with(&id, move |_| {
                mark.running.store(true, Ordering::SeqCst);
                if gone.load(Ordering::SeqCst) {
                    late.store(true, Ordering::SeqCst);
                }
                std::hint::spin_loop();
                mark.running.store(false, Ordering::SeqCst);
            })
        };
        flip(&world, round as u32);
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        for _ in 0..(random >> 50) % 2_000 {
            std::hint::spin_loop();
        }
        watch.cancel();
        gone.store(true, Ordering::SeqCst);
        assert_eq!(
            drops.load(Ordering::SeqCst),
            1,
            "the function is dropped when cancel returns"
        );
        drop(watch);
        assert!(!running.load(Ordering::SeqCst));
        assert!(!late.load(Ordering::SeqCst));
        assert!(!at_drop.load(Ordering::SeqCst), "the end comes last");
        assert_eq!(drops.load(Ordering::SeqCst), 1);
    }
}

#[test]
fn contract_4_cancel_from_several_threads_waits_in_each_for_the_end() {
    let (world, id) = ready_world();
    for _ in 0..200 {
        let drops = Arc::new(AtomicU32::new(0));
        let mark = Marked {
            drops: drops.clone(),
            running: Arc::default(),
            at_drop: Arc::default(),
        };
        let watch = world.manager().watch_with(&id, move |_| {
            let _ = &mark;
        });
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    watch.cancel();
                    assert_eq!(drops.load(Ordering::SeqCst), 1);
                });
            }
        });
    }
}

#[test]
fn contract_4_cancel_from_within_the_callback_does_not_wait() {
    let (world, id) = ready_world();
    let drops = Arc::new(AtomicU32::new(0));
    let mark = Marked {
        drops: drops.clone(),
        running: Arc::default(),
        at_drop: Arc::default(),
    };
    let place: Arc<Mutex<Option<CallbackWatch>>> = Arc::default();
    let calls = Arc::new(AtomicU32::new(0));
    let watch = {
        let (place, calls) = (place.clone(), calls.clone());
        world.manager().watch_with(&id, move |_| {
            let _ = &mark;
            calls.fetch_add(1, Ordering::SeqCst);
            let watch = loop {
                if let Some(watch) = place.lock().take() {
                    break watch;
                }
                std::thread::yield_now();
            };
            watch.cancel();
            assert_eq!(mark.drops.load(Ordering::SeqCst), 0, "still in use");
        })
    };
    *place.lock() = Some(watch);
    eventually("the end", || drops.load(Ordering::SeqCst) == 1);
    flip(&world, 0);
    world.settle();
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    assert_eq!(world.manager().status(&id).unwrap().watchers, 0);
}

#[test]
fn contract_4_callbacks_that_cancel_each_other_do_not_deadlock() {
    let (world, id) = ready_world();
    for _ in 0..100 {
        let places: [Arc<Mutex<Option<CallbackWatch>>>; 2] = [Arc::default(), Arc::default()];
        let done = Arc::new(AtomicU32::new(0));
        for n in 0..2 {
            let (other, done) = (places[1 - n].clone(), done.clone());
            let watch = world.manager().watch_with(&id, move |_| {
                if let Some(other) = other.lock().take() {
                    other.cancel();
                }
                done.fetch_add(1, Ordering::SeqCst);
            });
            *places[n].lock() = Some(watch);
        }
        eventually("a call", || done.load(Ordering::SeqCst) >= 1);
        for place in &places {
            drop(place.lock().take());
        }
    }
}

#[test]
fn contract_4_an_end_that_panics_does_not_hang_the_cancel() {
    struct Bad;
    impl Drop for Bad {
        fn drop(&mut self) {
            panic!("by intent");
        }
    }
    let (world, id) = ready_world();
    for wait in [false, true] {
        let calls = Arc::new(AtomicU32::new(0));
        let counted = calls.clone();
        let bad = Bad;
        let watch = world.manager().watch_with(&id, move |_| {
            let _ = &bad;
            counted.fetch_add(1, Ordering::SeqCst);
        });
        if wait {
            eventually("a call", || calls.load(Ordering::SeqCst) > 0);
        }
        watch.cancel();
        watch.cancel();
    }
    assert_eq!(world.manager().status(&id).unwrap().watchers, 0);
}

#[test]
fn contract_4_close_reports_what_is_stuck_and_ends_what_is_not() {
    let host = Host::new();
    let id = proxy_id("web");
    host.register(&id, sidecar("web", &[]));
    host.ready(&id);
    let barrier = Arc::new(Barrier::default());
    let begun = Arc::new(AtomicBool::new(false));
    let watch = {
        let (barrier, begun) = (barrier.clone(), begun.clone());
        host.manager.watch_with(&id, move |_| {
            begun.store(true, Ordering::SeqCst);
            barrier.pass();
        })
    };
    eventually("a call", || begun.load(Ordering::SeqCst));
    let report = host
        .manager
        .close(Instant::now() + Duration::from_millis(50));
    assert_eq!(report.stuck_threads, 1);
    assert_eq!(host.manager.counts().threads, 0);
    barrier.open();
    let report = host.manager.close(Instant::now() + PATIENCE);
    assert_eq!(report.stuck_threads, 0);
    drop(watch);
}

#[test]
fn contract_4_close_from_a_callback_does_not_wait() {
    let host = Host::new();
    let id = proxy_id("web");
    host.register(&id, sidecar("web", &[]));
    host.ready(&id);
    let (send, receive) = mpsc::channel();
    let manager = host.manager.clone();
    let watch = host.manager.watch_with(&id, move |_| {
        manager.close(Instant::now() + PATIENCE);
        let _ = send.send(());
    });
    receive.recv_timeout(PATIENCE).unwrap();
    let report = host.manager.close(Instant::now() + PATIENCE);
    assert_eq!(report.stuck_threads, 0);
    drop(watch);
}

#[test]
fn contract_4_an_engine_ends_with_its_last_handle() {
    let host = Host::new();
    let id = proxy_id("web");
    host.register(&id, sidecar("web", &[]));
    host.ready(&id);
    let mut watch = host.manager.watch(&id);
    next(&mut watch);
    let feed = host.sources.feed.clone();
    let Host { .. } = &host;
    let manager = host.manager.clone();
    drop(manager);
    assert!(watch.try_next().unwrap().is_none(), "a handle is left");
    drop(host);
    assert!(watch.try_next().is_err());
    eventually("the feed is told", || feed.count() == 0);
}

#[test]
fn fc_009_a_watcher_that_never_reads_holds_up_nobody() {
    let (world, id) = ready_world();
    let mut lazy = world.manager().watch(&id);
    let stop = Arc::new(AtomicBool::new(false));
    let newest = Arc::new(AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..20 {
            let mut watch = world.manager().watch(&id);
            let (stop, newest) = (&stop, &newest);
            scope.spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    let soon = Instant::now() + Duration::from_millis(20);
                    if let Some(snapshot) = watch.next(Some(soon)).unwrap() {
                        newest.fetch_max(snapshot.store_index, Ordering::SeqCst);
                    }
                }
                assert_eq!(
                    watch.current().unwrap().store_index,
                    newest.load(Ordering::SeqCst)
                );
            });
        }
        for n in 0..1_000 {
            flip(&world, n);
        }
        world.settle();
        let index = world.ready(&id).store_index;
        eventually("the newest", || newest.load(Ordering::SeqCst) == index);
        stop.store(true, Ordering::SeqCst);
    });
    let snapshot: SnapshotRef = next(&mut lazy);
    assert_eq!(snapshot.store_index, newest.load(Ordering::SeqCst));
    assert!(lazy.try_next().unwrap().is_none());
}

#[test]
fn engine_2_6_deregistering_within_a_callback_and_watching_there_works() {
    let (world, id) = ready_world();
    let (send, receive) = mpsc::channel();
    let manager = world.manager().clone();
    let inner = id.clone();
    let watch = world.manager().watch_with(&id, move |_| {
        let again = manager.watch(&inner);
        assert!(again.current().is_some());
        assert!(manager.deregister(&inner, &ProxySource::LOCAL));
        assert!(again.current().is_none());
        send.send(manager.status(&inner).unwrap().watchers).unwrap();
    });
    assert_eq!(receive.recv_timeout(PATIENCE).unwrap(), 2);
    drop(watch);
}
