//! Tests of the manager with its thread.

use crossbeam_channel::{Receiver, unbounded};

use super::*;
use crate::clock::TestClock;
use crate::model::CaConfig;

const PATIENCE: Duration = Duration::from_secs(20);
const SECOND: Duration = Duration::from_secs(1);

type Value = Result<triomphe::Arc<IssuedCert>, CaError>;

struct Bench {
    clock: Arc<TestClock>,
    authority: Arc<Authority>,
    manager: Arc<LeafManager>,
}

impl Bench {
    fn new() -> Self {
        let clock = Arc::new(TestClock::new());
        let authority = Authority::bootstrap(clock.clone(), "dc1", CaConfig::default()).unwrap();
        let authority = Arc::new(authority);
        let options = LeafOptions {
            seed: Some(1),
            ..LeafOptions::default()
        };
        let manager = LeafManager::start(authority.clone(), clock.clone(), options).unwrap();
        Self {
            clock,
            authority,
            manager: Arc::new(manager),
        }
    }

    fn subscribe(&self, request: &LeafRequest) -> (LeafSubscription, Receiver<Value>) {
        let (send, receive) = unbounded();
        let sink: LeafSink = Box::new(move |value| {
            let _ = send.send(value);
        });
        (self.manager.subscribe(request, sink), receive)
    }
}

fn web() -> LeafRequest {
    LeafRequest::for_service("web")
}

#[test]
fn store_127_every_leaf_follows_a_rotation_within_the_jitter_window() {
    let bench = Bench::new();
    let receivers: Vec<_> = (0..10)
        .map(|i| {
            bench
                .subscribe(&LeafRequest::for_service(format!("s{i}")))
                .1
        })
        .collect();
    for receiver in &receivers {
        assert!(receiver.recv_timeout(PATIENCE).unwrap().is_ok());
    }
    bench.authority.rotate().unwrap();
    bench.manager.roots_changed();
    bench.clock.advance(29_999 * SECOND / 1000);
    // All are due now; the limit lets one pass every 20 ms.
    let key = bench.authority.active_signing_key_id();
    for receiver in &receivers {
        let deadline = std::time::Instant::now() + PATIENCE;
        loop {
            match receiver.try_recv() {
                Ok(value) => {
                    assert_eq!(value.unwrap().authority_key_id, key);
                    break;
                }
                Err(_) => {
                    assert!(std::time::Instant::now() < deadline);
                    bench.clock.advance(Duration::from_millis(20));
                    thread::yield_now();
                }
            }
        }
    }
}

#[test]
fn fc_075_the_thread_renews_by_itself() {
    let bench = Bench::new();
    let (_, receiver) = bench.subscribe(&web());
    let mut last = receiver.recv_timeout(PATIENCE).unwrap().unwrap();
    for _ in 0..3 {
        bench.clock.advance(60 * 3600 * SECOND);
        let deadline = std::time::Instant::now() + PATIENCE;
        let next = loop {
            if let Ok(value) = receiver.try_recv() {
                break value.unwrap();
            }
            assert!(std::time::Instant::now() < deadline);
            bench.clock.advance(60 * SECOND);
            thread::yield_now();
        };
        assert_ne!(next.serial_number, last.serial_number);
        last = next;
    }
}

#[test]
fn a_panicking_sink_harms_nobody_else() {
    let bench = Bench::new();
    bench
        .manager
        .subscribe(&web(), Box::new(|_| panic!("on purpose")));
    let (_, receiver) = bench.subscribe(&web());
    assert!(receiver.recv_timeout(PATIENCE).unwrap().is_ok());
}

#[test]
fn a_sink_may_call_the_manager() {
    let bench = Bench::new();
    let (send, receive) = unbounded();
    let manager = Arc::downgrade(&bench.manager);
    bench.manager.subscribe(
        &web(),
        Box::new(move |value| {
            let manager = manager.upgrade().unwrap();
            let read = manager.get(&web()).unwrap();
            assert!(manager.get(&LeafRequest::for_service("other")).is_ok());
            let _ = send.send(triomphe::Arc::ptr_eq(&read, &value.unwrap()));
        }),
    );
    assert!(receive.recv_timeout(PATIENCE).unwrap());
}

#[test]
fn renew_and_unsubscribe_through_the_thread() {
    let bench = Bench::new();
    let (subscription, receiver) = bench.subscribe(&web());
    let first = receiver.recv_timeout(PATIENCE).unwrap().unwrap();
    assert!(bench.manager.renew(&web()));
    let second = receiver.recv_timeout(PATIENCE).unwrap().unwrap();
    assert!(first.create_index < second.create_index);
    assert!(bench.manager.unsubscribe(subscription));
    assert!(!bench.manager.unsubscribe(subscription));
    assert!(
        receiver.recv_timeout(PATIENCE).is_err(),
        "the sink is dropped"
    );
}

#[test]
fn close_ends_the_thread_and_later_reads() {
    let bench = Bench::new();
    let (_, receiver) = bench.subscribe(&web());
    assert!(receiver.recv_timeout(PATIENCE).is_ok());
    bench.manager.close();
    bench.manager.close();
    assert!(matches!(bench.manager.get(&web()), Err(CaError::Closed)));
    let (_, late) = bench.subscribe(&LeafRequest::for_service("late"));
    assert!(late.try_recv().is_err());
}

#[test]
fn the_last_handle_may_go_inside_a_sink() {
    let Bench { manager, .. } = Bench::new();
    let (send, receive) = unbounded();
    let (give, take) = unbounded::<Arc<LeafManager>>();
    manager.subscribe(
        &web(),
        Box::new(move |_| {
            drop(take.recv_timeout(PATIENCE).unwrap());
            let _ = send.send(());
        }),
    );
    give.send(manager).unwrap();
    receive.recv_timeout(PATIENCE).unwrap();
}
