//! How many instructions the hot paths take: one row's work, a fixed number of times, for `benches/counts/run`, which runs
//! it under callgrind and counts what happens within [`counted`]. Instructions don't depend on how busy the machine is.
//!
//! `cargo bench -p proxycfg --no-default-features --features xds --bench counts -- ROW TIMES`; `rows` lists the rows. By itself
//! it only does the work.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a bench fails by panicking"
)]

#[path = "support/chains.rs"]
#[allow(dead_code, reason = "other benches use the rest")]
mod chains;
#[path = "support/rig.rs"]
mod rig;
#[path = "support/world.rs"]
#[allow(dead_code, reason = "other benches use the rest")]
mod world;

use std::hint::black_box;
use std::time::{Duration, Instant};

use proxycfg::chain::{ChainRequest, compile};
use proxycfg::model::LeafRequest;
use proxycfg::proxy::Changed;
use proxycfg::{Embedded, EmbeddedConfig, ProxyId, ProxySource, RegisterOptions, Registration};
use rig::{Rig, authority};
use triomphe::Arc;
use world::{service, sidecar};

/// A row does its work so many times.
type Row = (&'static str, fn(u32));

const ROWS: &[Row] = &[
    ("handle", handle),
    ("next-snapshot 10x10", |times| next_snapshot(10, 10, times)),
    ("next-snapshot 50x100", |times| {
        next_snapshot(50, 100, times)
    }),
    ("first-snapshot 10x10", first_snapshot),
    ("register", register),
    ("chain 1", |times| chain(1, times)),
    ("chain 10", |times| chain(10, times)),
    ("chain 100", |times| chain(100, times)),
    ("leaf", leaf),
    #[cfg(feature = "xds")]
    ("resources 10x10, all", all_resources),
    #[cfg(feature = "xds")]
    ("resources 10x10, next", next_resources),
];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let wanted = args.first().map_or("rows", String::as_str);
    if wanted == "rows" || wanted.starts_with("--") {
        for (name, _) in ROWS {
            println!("{name}");
        }
        return;
    }
    let times = args.get(1).map_or(1, |n| n.parse().expect("a number"));
    let row = ROWS.iter().find(|(name, _)| *name == wanted);
    let (_, run) = row.unwrap_or_else(|| panic!("no row {wanted:?}"));
    run(times);
}

/// What is counted. Not inlined, so that callgrind knows where it begins and ends.
#[inline(never)]
fn counted<T>(work: impl FnOnce() -> T) -> T {
    black_box(work())
}

/// Does a row's work, first once without counting: what is made once, such as tables, doesn't count.
fn repeat(times: u32, mut work: impl FnMut(bool)) {
    work(false);
    for _ in 0..times {
        work(true);
    }
}

/// Does the work, counted or not.
fn maybe<T>(count: bool, work: impl FnOnce() -> T) -> T {
    if count {
        counted(work)
    } else {
        black_box(work())
    }
}

/// A snapshot handed to a watcher: cloned and dropped.
fn handle(times: u32) {
    let mut rig = Rig::new(10, 10);
    let mut proxy = rig.proxy();
    let snapshot = rig.settle(&mut proxy);
    repeat(times, |count| {
        maybe(count, || drop(black_box(snapshot.clone())));
    });
}

/// From the new answer to the new snapshot.
fn next_snapshot(upstreams: usize, endpoints: usize, times: u32) {
    let mut rig = Rig::new(upstreams, endpoints);
    let mut proxy = rig.proxy();
    let mut last = rig.settle(&mut proxy);
    let mut passing = true;
    repeat(times, |count| {
        passing = !passing;
        let changed = [rig.change(passing)];
        let next = maybe(count, || rig.run(&mut proxy, Changed::Queries(&changed)));
        let next = next.expect("a new snapshot");
        assert!(!last.diff(&next).is_empty(), "the endpoints changed");
        last = next;
    });
}

/// A new proxy whose upstreams others have too: from its registration to its first snapshot, in the pure core.
fn first_snapshot(times: u32) {
    let mut rig = Rig::new(10, 10);
    let mut first = rig.proxy();
    rig.settle(&mut first);
    let mut proxies = Vec::new();
    repeat(times, |count| {
        let made = maybe(count, || {
            let mut proxy = rig.proxy();
            let snapshot = rig.run(&mut proxy, Changed::All);
            (proxy, snapshot)
        });
        assert!(made.1.is_some(), "complete at once");
        proxies.push(made.0);
    });
}

/// What the caller of `register` waits for; the snapshot is made on other threads, which aren't counted.
fn register(times: u32) {
    let engine = Embedded::start(EmbeddedConfig::default()).expect("an engine");
    let until = || Instant::now() + Duration::from_secs(600);
    let mut number = 0;
    repeat(times, |count| {
        number += 1;
        let id = ProxyId::new(format!("p{number}"), "bench");
        let instance = Arc::new(sidecar("web", &id.service_id, (0..10).map(service)));
        let options = RegisterOptions {
            kind: instance.kind,
            registration: Registration::Definition(instance),
            source: ProxySource::LOCAL,
            token: Default::default(),
            overwrite: true,
        };
        let registered = maybe(count, || engine.manager.register(&id, options));
        registered.expect("a registration");
        // So that no other thread is in the way of the next one.
        engine.manager.wait_ready(&id, until()).expect("a snapshot");
    });
    engine.close(until());
}

/// Compiles the chain of a splitter with so many legs, each to a subset of a service of its own.
fn chain(splits: usize, times: u32) {
    let entries = chains::flat(splits);
    let request = ChainRequest::new("api", "dc1", "trust.consul");
    repeat(times, |count| {
        let chain = maybe(count, || compile(&request, &entries));
        assert_eq!(chain.expect("it compiles").targets.len(), splits);
    });
}

/// Issues a certificate: a new key, signed.
fn leaf(times: u32) {
    let authority = authority();
    let request = LeafRequest::for_service("web");
    repeat(times, |count| {
        let issued = maybe(count, || authority.issue(&request));
        assert!(!issued.expect("a certificate").cert_pem.is_empty());
    });
}

/// All Envoy resources of a snapshot, none of which has been encoded before.
#[cfg(feature = "xds")]
fn all_resources(times: u32) {
    let mut rig = Rig::new(10, 10);
    let mut proxy = rig.proxy();
    let snapshot = rig.settle(&mut proxy);
    repeat(times, |count| {
        let generator = proxycfg::xds::Generator::new();
        let generated = maybe(count, || generator.resources(&snapshot, None));
        assert!(generator.encodings() > 0 && generated.problems.is_empty());
    });
}

/// The Envoy resources after an endpoint has changed: one is encoded.
#[cfg(feature = "xds")]
fn next_resources(times: u32) {
    let mut rig = Rig::new(10, 10);
    let mut proxy = rig.proxy();
    let snapshot = rig.settle(&mut proxy);
    let generator = proxycfg::xds::Generator::new();
    let mut last = generator.resources(&snapshot, None);
    let mut passing = true;
    repeat(times, |count| {
        passing = !passing;
        let changed = [rig.change(passing)];
        let next = rig.run(&mut proxy, Changed::Queries(&changed));
        let next = next.expect("a new snapshot");
        let before = generator.encodings();
        last = maybe(count, || generator.resources(&next, Some(&last)));
        assert_eq!(generator.encodings() - before, 1, "one is encoded");
    });
}
