//! The rows of the pure core: no thread takes part.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use proxycfg::ProxyId;
use proxycfg::model::LeafRequest;
use proxycfg::proxy::Changed;

use crate::rig::{Rig, authority};
use crate::world::{
    Size, endpoints_in, engine, percentile, print, print_peer, ready, register, service, settle,
    sidecar, write_services,
};
use crate::{allocations, chains};

/// A handle of a snapshot to a watcher, cloned and dropped: alone, and with another core at the same.
pub fn handle(size: &Size) {
    let engine = engine();
    let index = write_services(&engine.store, size.upstreams, size.endpoints);
    settle(&engine, index);
    let id = ProxyId::new("web", "bench");
    let instance = sidecar("web", "web", (0..size.upstreams).map(service));
    register(&engine, &id, triomphe::Arc::new(instance));
    let snapshot = ready(&engine, &id);
    assert_eq!(endpoints_in(&snapshot), size.upstreams * size.endpoints);
    let ours = || drop(black_box(snapshot.clone()));
    print("time", nanoseconds_each(ours), "ns");
    print("contended", beside_another(ours), "ns");
    // As near to the ground as the machine lets any counted handle come: one counter, up and down again.
    let counter = AtomicUsize::new(1);
    let bare = || {
        counter.fetch_add(1, Ordering::Relaxed);
        black_box(&counter).fetch_sub(1, Ordering::Release);
    };
    print_peer("time", BARE, nanoseconds_each(bare), "ns");
    print_peer("contended", BARE, beside_another(bare), "ns");
    engine.close_soon();
}

const BARE: &str = "bare counter";

fn nanoseconds_each(work: impl Fn()) -> f64 {
    let rounds = 5_000_000_u32;
    let begin = Instant::now();
    for _ in 0..rounds {
        work();
    }
    begin.elapsed().as_nanos() as f64 / f64::from(rounds)
}

/// The same while another thread does it too.
fn beside_another(work: impl Fn() + Sync) -> f64 {
    let stop = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                (0..1_000).for_each(|_| work());
            }
        });
        let each = nanoseconds_each(&work);
        stop.store(true, Ordering::Relaxed);
        each
    })
}

/// The next snapshot after one endpoint's check has changed, in the pure core: from the new answer to the new snapshot.
pub fn next_snapshot(size: &Size) {
    let mut rig = Rig::new(size.upstreams, size.endpoints);
    let mut proxy = rig.proxy();
    let mut last = rig.settle(&mut proxy);
    let (mut took, mut allocated) = (Vec::new(), Vec::new());
    for round in 0..size.rounds.max(5) * 40 {
        let changed = [rig.change(round % 2 == 1)];
        let counted = allocations();
        let begin = Instant::now();
        let next = rig.run(&mut proxy, Changed::Queries(&changed));
        took.push(begin.elapsed());
        allocated.push(allocations() - counted);
        let next = next.expect("a new snapshot");
        assert!(!last.diff(&next).is_empty(), "the endpoints changed");
        last = next;
    }
    let median = percentile(&mut took, 50);
    print("time", median.as_nanos() as f64 / 1e3, "us");
    allocated.sort_unstable();
    // The tables of shared parts grow now and then: not in the median.
    print("allocations", allocated[allocated.len() / 2] as f64, "");
}

/// A chain with so many splits, compiled.
pub fn chain(size: &Size) {
    let entries = chains::flat(size.splits);
    let time = chains::median(&entries, size.splits, size.rounds * 10);
    print("time", time.as_nanos() as f64 / 1e3, "us");
}

/// A leaf certificate with its key, issued; how many a second on one core.
pub fn leaf(size: &Size) {
    let authority = authority();
    let rounds = size.rounds * 20;
    let begin = Instant::now();
    for number in 0..rounds {
        let request = LeafRequest::for_service(service(number));
        let issued = authority.issue(&request).expect("a certificate");
        assert!(issued.cert_pem.starts_with("-----BEGIN"));
    }
    let took = begin.elapsed();
    print("time", took.as_nanos() as f64 / 1e3 / rounds as f64, "us");
}
