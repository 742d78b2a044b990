//! Writes to a data folder: how many a second, by how many writers, and how long opening takes.
//!
//! `cargo bench --bench durable` runs the full size; `-- --quick` a small one.
//! `PROXYCFG_BENCH_DIR` names a folder on the disk to measure.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a measurement that can't go on panics"
)]

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use proxycfg::model::{Node, ServiceInstance};
use proxycfg::store::durable::DurableBackend;
use proxycfg::store::{AllowAll, Op, Register, Store, Transaction};

fn register(node: u64, port: u16) -> Op {
    let name = format!("service-{}", node % 100);
    Op::Register(Box::new(Register {
        node: Node {
            node: format!("node-{node}"),
            address: "10.0.0.1".into(),
            ..Node::default()
        },
        service: Some(ServiceInstance {
            service: name.as_str().into(),
            port,
            ..ServiceInstance::default()
        }),
        ..Register::default()
    }))
}

/// Sizes and times of groups.
type Groups = Arc<Mutex<Vec<(usize, Duration)>>>;

fn open(folder: &Path, groups: &Groups) -> Store {
    let groups = groups.clone();
    let backend = DurableBackend::open(folder)
        .unwrap()
        .observed(Box::new(move |group| {
            groups.lock().unwrap().push((group.commits, group.elapsed));
        }));
    Store::new(Box::new(backend), Arc::new(AllowAll)).unwrap()
}

/// Lets writers write for a while.
fn writes(folder: &Path, writers: u64, time: Duration) {
    let groups = Groups::default();
    let store = open(folder, &groups);
    let written = AtomicU64::new(0);
    let start = Instant::now();
    std::thread::scope(|scope| {
        for writer in 0..writers {
            let (store, written) = (&store, &written);
            scope.spawn(move || {
                for i in 0_u64.. {
                    if start.elapsed() >= time {
                        return;
                    }
                    let port = u16::try_from(i % 60_000).unwrap() + 1;
                    let op = register(writer * 50 + i % 50, port);
                    store.apply(Transaction::of(op)).unwrap();
                    written.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let elapsed = start.elapsed().as_secs_f64();
    let groups = groups.lock().unwrap();
    let mut times: Vec<Duration> = groups.iter().map(|(_, time)| *time).collect();
    times.sort();
    #[allow(clippy::cast_precision_loss, reason = "counts of a few seconds")]
    let per_second = written.load(Ordering::Relaxed) as f64 / elapsed;
    println!(
        "{writers:>3} writers: {per_second:>8.0} writes/s, {} groups, largest {}, median {:?}, 99 % {:?}",
        groups.len(),
        groups
            .iter()
            .map(|(commits, _)| *commits)
            .max()
            .unwrap_or(0),
        times[times.len() / 2],
        times[times.len() * 99 / 100],
    );
}

fn opening(folder: &Path, instances: u64) {
    let groups = Groups::default();
    let store = open(folder, &groups);
    let ops: Vec<Op> = (0..instances).map(|i| register(i, 80)).collect();
    let start = Instant::now();
    for batch in ops.chunks(1000) {
        store.apply(Transaction::from(batch.to_vec())).unwrap();
    }
    let filled = start.elapsed();
    drop(store);
    let size = std::fs::metadata(folder.join("records.redb"))
        .unwrap()
        .len();
    let start = Instant::now();
    let store = open(folder, &groups);
    println!(
        "{instances} nodes with an instance each: written by thousands in {filled:?}, {} MiB, opened in {:?} ({} rows)",
        size >> 20,
        start.elapsed(),
        store.image().rows.len(),
    );
}

fn main() {
    let parent = std::env::var_os("PROXYCFG_BENCH_DIR").map(PathBuf::from);
    let folder = match &parent {
        Some(parent) => tempfile::tempdir_in(parent),
        None => tempfile::tempdir(),
    };
    let folder = folder.unwrap();
    let quick = std::env::args().any(|a| a == "--quick" || a == "--test");
    let time = Duration::from_millis(if quick { 200 } else { 3000 });
    for writers in [1, 4, 32, 128] {
        writes(&folder.path().join(format!("by-{writers}")), writers, time);
    }
    opening(
        &folder.path().join("opening"),
        if quick { 1000 } else { 20_000 },
    );
}
