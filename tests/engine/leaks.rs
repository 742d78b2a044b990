//! What is let go is gone.

use std::time::Duration;

use proxycfg::engine::EngineCounts;
use proxycfg::model::{CheckStatus, ProxySource};
use serde_json::json;

use crate::host::*;
use crate::stress::size;
use crate::world::*;

/// What is alive in an engine.
type Alive = (usize, u64, usize, u64, usize, usize);

fn alive(counts: &EngineCounts) -> Alive {
    (
        counts.queries,
        counts.states,
        counts.proxies,
        counts.watches,
        counts.threads,
        counts.cohorts,
    )
}

/// Moves time on until what lingers is gone.
fn linger(host: &Host, expected: Alive) {
    eventually("all is let go", || {
        host.clock.advance(Duration::from_secs(3));
        alive(&host.manager.counts()) == expected
    });
}

#[test]
fn nothing_is_left_after_a_thousand_rounds() {
    let host = Host::new();
    host.apply(instance_ops("db", 1));
    let base = alive(&host.manager.counts());
    assert_eq!(base, (0, 0, 0, 0, 3, 0));
    for round in 0..size("PROXYCFG_ROUNDS", 1_000) {
        let id = proxy_id(&format!("web{}", round % 5));
        let mut watch = host.manager.watch(&id);
        let called = host.manager.watch_with(&id, |_| {});
        host.register(&id, sidecar("web", &["db", "api"]));
        if round % 3 == 0 {
            next(&mut watch);
        }
        host.apply(vec![check_op(
            "db",
            1,
            [CheckStatus::Passing, CheckStatus::Critical][round % 2],
        )]);
        if round % 2 == 0 {
            host.register_as(&id, sidecar("web", &["db"]), "token");
        }
        called.cancel();
        drop(watch);
        assert!(host.manager.deregister(&id, &ProxySource::LOCAL));
        if round % 100 == 0 {
            host.clock.advance(Duration::from_secs(1));
        }
    }
    host.settle();
    linger(&host, base);
    eventually("the feed is told", || host.feed().count() == 0);
    assert_eq!(host.manager.counts().panics, 0);
}

#[test]
fn engine_s10_an_upstream_that_goes_takes_its_queries_along() {
    let host = Host::new();
    let id = proxy_id("web");
    host.register(&id, sidecar("web", &["db"]));
    host.ready(&id);
    host.settle();
    let base = alive(&host.manager.counts());
    for _ in 0..10 {
        host.register(&id, sidecar("web", &["db", "api", "cache"]));
        host.settle();
        // For each upstream a chain and endpoints, and another central configuration, beside the one that lingers.
        assert_eq!(host.manager.counts().queries, base.0 + 5);
        host.register(&id, sidecar("web", &["db"]));
        host.settle();
        linger(&host, base);
    }
}

#[test]
fn engine_s8_a_redirect_that_changes_lets_the_old_target_go() {
    let host = Host::new();
    let id = proxy_id("web");
    host.register(&id, sidecar("web", &["db"]));
    host.ready(&id);
    host.settle();
    let base = alive(&host.manager.counts());
    for n in 0..20 {
        host.apply(vec![entry_op(json!({
            "Kind": "service-resolver", "Name": "db", "Redirect": {"Service": format!("other{n}")}}))]);
        host.settle();
        linger(&host, base);
    }
}

#[test]
fn decision_e8_a_reconnect_within_the_linger_time_costs_nothing() {
    let host = Host::new();
    let id = proxy_id("web");
    host.register(&id, sidecar("web", &["db"]));
    host.ready(&id);
    host.settle();
    let computed = host.manager.counts().answers_computed;
    for _ in 0..5 {
        assert!(host.manager.deregister(&id, &ProxySource::LOCAL));
        host.settle();
        host.clock.advance(Duration::from_secs(4));
        host.register(&id, sidecar("web", &["db"]));
        host.ready(&id);
        host.settle();
    }
    assert_eq!(host.manager.counts().answers_computed, computed);
    assert_eq!(host.feed().all.lock().len(), 1, "one subscription ever");
    assert_eq!(host.feed().count(), 1);
}

#[test]
fn decision_e8_a_lingering_answer_that_changed_is_computed_when_wanted_again() {
    let host = Host::new();
    host.apply(instance_ops("db", 1));
    let id = proxy_id("web");
    for n in 0..50 {
        host.register(&id, sidecar("web", &["db"]));
        let status = [CheckStatus::Passing, CheckStatus::Critical][n % 2];
        host.ready(&id);
        assert!(host.manager.deregister(&id, &ProxySource::LOCAL));
        host.apply(vec![check_op("db", 1, status)]);
        host.register(&id, sidecar("web", &["db"]));
        host.settle();
        host.ready(&id);
        host.settle();
        let snapshot = host.ready(&id);
        assert_eq!(
            addresses(&snapshot, "db"),
            [format!("10.0.0.2:21000 {}", ["Passing", "Critical"][n % 2])]
        );
        assert!(host.manager.deregister(&id, &ProxySource::LOCAL));
    }
}

#[test]
fn decision_e9_shared_parts_are_let_go() {
    let host = Host::new();
    host.apply(instance_ops("db", 1));
    let id = proxy_id("web");
    host.register(&id, sidecar("web", &["db"]));
    host.ready(&id);
    host.settle();
    assert!(
        host.manager.counts().shared_parts >= 2,
        "settings and target"
    );
    assert!(host.manager.deregister(&id, &ProxySource::LOCAL));
    host.settle();
    eventually("they are let go, also by an engine at rest", || {
        host.clock.advance(Duration::from_secs(5));
        host.manager.counts().shared_parts == 0
    });
}

#[test]
fn fc_042_registering_the_same_ten_thousand_times_changes_nothing() {
    let host = Host::new();
    let id = proxy_id("web");
    host.register(&id, sidecar("web", &["db"]));
    let mut watch = host.manager.watch(&id);
    host.ready(&id);
    host.settle();
    watch.try_next().unwrap();
    let before = host.manager.counts();
    for _ in 0..10_000 {
        host.register(&id, sidecar("web", &["db"]));
    }
    host.settle();
    let after = host.manager.counts();
    assert_eq!(
        (after.runs, after.published),
        (before.runs, before.published)
    );
    assert_eq!(alive(&after), alive(&before));
    assert_eq!(host.feed().all.lock().len(), 1);
    assert!(watch.try_next().unwrap().is_none());
}

/// A state that is running when its engine ends has no lane to wait in for its last run, which lets go of its queries.
#[test]
fn an_engine_that_ends_during_a_run_is_freed() {
    for _ in 0..size("PROXYCFG_ROUNDS", 20) {
        let host = Host::new();
        let (begun, started) = std::sync::mpsc::channel();
        let (release, released) = std::sync::mpsc::channel::<()>();
        let gate = std::sync::Mutex::new((begun, released));
        host.hook(move |query| {
            if matches!(query, proxycfg::source::Query::Intentions { .. }) {
                let gate = gate.lock().unwrap();
                let _ = gate.0.send(());
                let _ = gate.1.recv();
            }
            None
        });
        host.register(&proxy_id("web"), sidecar("web", &["db"]));
        started.recv_timeout(PATIENCE).unwrap();
        let store = std::sync::Arc::downgrade(&host.store);
        host.manager.close(std::time::Instant::now());
        drop(release);
        drop(host);
        eventually("the engine is freed", || store.strong_count() == 0);
    }
}
