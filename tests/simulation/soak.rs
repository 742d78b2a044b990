//! Rounds of register, change, deregister, connect and disconnect: what is held stays flat. The size is
//! `PROXYCFG_SOAK`; 100,000 on demand.

use std::collections::VecDeque;
use std::time::Duration;

use proxycfg::config_source::{ConfigSource as _, SourceWatch};
use proxycfg::engine::Watch;
use proxycfg::model::{CheckStatus, ProxyId};
use proxycfg::store::Transaction;

use crate::mesh::{Mesh, SOURCE, alive, handles};
use crate::world::*;

/// Resident memory of this process in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    number.unwrap().parse().unwrap()
}

/// Watches whose readers are gone without a word, and the rounds at which that is noticed.
type HalfOpen = VecDeque<(usize, Watch, SourceWatch)>;

fn round(mesh: &Mesh, half_open: &mut HalfOpen, n: usize) {
    let manager = &mesh.embedded.manager;
    let apply = |ops| mesh.embedded.store.apply(Transaction::from(ops)).unwrap();
    let service = ["api", "cache", "db", "web"][n % 4];
    let instance = (n / 4 % 5) as u32;
    apply(instance_ops(service, instance));
    let id = proxy_id(&format!("soak-{}", n % 10));
    let mut watch = manager.watch(&id);
    let called = manager.watch_with(&id, |_| {});
    let mut options = options(sidecar(service, &["db", "api"]));
    options.source = SOURCE;
    manager.register(&id, options).unwrap();
    let of_catalog = ProxyId::new(
        format!("{service}-{instance}-sidecar-proxy"),
        node_name(service, instance),
    );
    let mut stream = mesh.catalog.watch(&of_catalog).unwrap();
    apply(vec![check_op(
        service,
        instance,
        [CheckStatus::Critical, CheckStatus::Passing][n % 2],
    )]);
    let timeout = format!("{}s", n % 30 + 1);
    apply(vec![entry_op(serde_json::json!({
        "Kind": "service-resolver", "Name": "db", "ConnectTimeout": timeout}))]);
    if n.is_multiple_of(3) {
        next(&mut watch);
        let deadline = std::time::Instant::now() + PATIENCE;
        stream.next(deadline).unwrap().expect("a snapshot in time");
    }
    if n.is_multiple_of(7) {
        mesh.define(&format!("local-{}", n % 3), 8_000 + (n % 2) as u16);
    }
    if n.is_multiple_of(11) {
        // It may not be there.
        let _ = mesh.local.remove(&format!("local-{}", n % 3));
    }
    called.cancel();
    while half_open.front().is_some_and(|(until, ..)| *until <= n) {
        half_open.pop_front();
    }
    if n.is_multiple_of(5) {
        // 50 s from now.
        half_open.push_back((n + 100, watch, stream));
    } else {
        drop((watch, stream));
    }
    manager.deregister(&id, &SOURCE);
    if n.is_multiple_of(2) {
        apply(vec![proxycfg::store::Op::DeregisterNode {
            node: node_name(service, instance).as_str().into(),
        }]);
    }
    mesh.clock.advance(Duration::from_millis(500));
}

#[test]
fn rounds_without_end_leave_nothing() {
    let _alone = crate::alone();
    let rounds = crate::size("PROXYCFG_SOAK", 600);
    let (threads, _) = handles();
    {
        let mesh = Mesh::new(None);
        let base = alive(&mesh.embedded.manager.counts());
        let warm = (rounds / 4).max(100);
        let mut half_open = HalfOpen::new();
        for n in 0..warm {
            round(&mesh, &mut half_open, n);
        }
        let (files, memory) = (handles().1, resident());
        for n in warm..rounds {
            round(&mesh, &mut half_open, n);
            if n.is_multiple_of(5_000) {
                println!(
                    "round {n}: {} KiB, {:?} threads and files",
                    resident(),
                    handles()
                );
            }
        }
        let (files_after, memory_after) = (handles().1, resident());
        println!(
            "{rounds} rounds: {memory} KiB to {memory_after} KiB, {files} files to {files_after}"
        );
        assert!(files_after <= files, "{files} files, then {files_after}");
        // An allocator's slack; a leak of 100 bytes a round would show in a long run.
        let slack = memory / 5 + 8_192;
        assert!(
            memory_after < memory + slack,
            "{memory} KiB, then {memory_after} KiB"
        );
        drop(half_open);
        for entry in mesh.local.services() {
            // A sidecar goes with its service.
            let _ = mesh.local.remove(&entry.service.id);
        }
        mesh.flush();
        mesh.ends_at(base);
    }
    eventually("no thread is left", || handles().0 <= threads);
}
