//! The cost of a change follows what changed, and a herd holds up nobody. All by counters and order, not by time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use proxycfg::model::CheckStatus;
use serde_json::json;

use crate::stress::size;
use crate::world::*;

/// Registers `count` proxies with the same upstream and waits until all are ready.
fn herd(world: &World, count: usize, upstreams: &[&str]) {
    let ids: Vec<_> = (0..count).map(|n| proxy_id(&format!("p{n}"))).collect();
    for (n, id) in ids.iter().enumerate() {
        world.register(id, sidecar(&format!("p{n}"), upstreams));
    }
    for id in &ids {
        world.ready(id);
    }
    world.settle();
}

#[test]
fn one_change_of_an_endpoint_is_computed_once_and_runs_its_readers_once() {
    let world = World::new();
    world.instance("db", 1);
    world.instance("unrelated", 1);
    let count = size("PROXYCFG_PROXIES", 1_000);
    herd(&world, count, &["db"]);

    let before = world.manager().counts();
    world.check("db", 1, CheckStatus::Warning);
    world.settle();
    let after = world.manager().counts();
    let did = |of: fn(&proxycfg::engine::EngineCounts) -> u64| of(&after) - of(&before);
    assert_eq!(did(|c| c.steps), 1);
    assert_eq!(did(|c| c.answers_computed), 1);
    assert_eq!(did(|c| c.targets_built), 1, "shared by all");
    assert_eq!(did(|c| c.runs), count as u64);
    assert_eq!(did(|c| c.published), count as u64);
    assert_eq!(did(|c| c.parts_built), count as u64, "one part each");

    world.check("unrelated", 1, CheckStatus::Warning);
    world.entry(json!({"Kind": "service-resolver", "Name": "unrelated", "ConnectTimeout": "1s"}));
    // Nobody reads the meta of an instance unless a subset filters by it, so the answer comes out equal.
    world.apply(retagged());
    world.settle();
    let end = world.manager().counts();
    assert_eq!(end.runs, after.runs, "an unrelated write runs nobody");
    assert_eq!(end.published, after.published);
    assert_eq!(end.targets_built, after.targets_built);
    assert!(end.answers_computed - after.answers_computed <= 1);
}

#[test]
fn replicas_share_their_state_and_one_change_is_built_once_for_all() {
    let world = World::new();
    world.instance("db", 1);
    world.instance("cache", 1);
    let count = size("PROXYCFG_PROXIES", 300);
    let ids: Vec<_> = (0..count).map(|n| proxy_id(&format!("p{n}"))).collect();
    let instance = |n: usize, upstreams: &[&str]| {
        let mut instance = sidecar("web", upstreams);
        instance.proxy.destination_service_id = format!("web-{n}");
        instance
    };
    for (n, id) in ids.iter().enumerate() {
        world.register(id, instance(n, &["db"]));
    }
    for id in &ids {
        world.ready(id);
    }
    world.settle();
    let before = world.manager().counts();
    assert_eq!(before.cohorts, 1);
    world.check("db", 1, CheckStatus::Warning);
    world.settle();
    let after = world.manager().counts();
    assert_eq!(after.answers_computed - before.answers_computed, 1);
    assert_eq!(after.parts_built - before.parts_built, 1, "once for all");
    assert_eq!(after.runs - before.runs, count as u64);
    assert_eq!(after.published - before.published, count as u64);
    let shared = |id| {
        let snapshot = world.ready(id);
        let proxycfg::snapshot::KindSnapshot::ConnectProxy(sidecar) = &snapshot.kind;
        sidecar.shared.clone()
    };
    let first = shared(&ids[0]);
    assert!(
        ids.iter()
            .all(|id| triomphe::Arc::ptr_eq(&first, &shared(id)))
    );

    // One of them comes to dial something else: it leaves the others.
    world.register(&ids[0], instance(0, &["cache", "db"]));
    world.settle();
    assert_eq!(world.manager().counts().cohorts, 2);
    assert_eq!(shared(&ids[0]).upstreams.len(), 2);
    assert!(triomphe::Arc::ptr_eq(&first, &shared(&ids[1])));
    for id in &ids {
        world
            .manager()
            .deregister(id, &proxycfg::ProxySource::LOCAL);
    }
    world.settle();
    assert_eq!(world.manager().counts().cohorts, 0);
}

fn retagged() -> Vec<proxycfg::store::Op> {
    let mut ops = instance_ops("db", 1);
    ops.retain_mut(|op| match op {
        proxycfg::store::Op::Register(register) => {
            register.checks.clear();
            let service = register.service.as_mut().unwrap();
            service.tags.push("blue".into());
            true
        }
        _ => false,
    });
    ops
}

#[test]
fn fc_012_only_the_dependent_proxy_is_computed() {
    let world = World::new();
    let count = size("PROXYCFG_PROXIES", 500);
    for n in 0..count {
        let (service, upstream) = (format!("p{n}"), format!("u{n}"));
        world.instance(&upstream, 1);
        world.register(&proxy_id(&service), sidecar(&service, &[&upstream]));
    }
    for n in 0..count {
        world.ready(&proxy_id(&format!("p{n}")));
    }
    world.settle();
    let mut watches: Vec<_> = (0..count)
        .map(|n| world.manager().watch(&proxy_id(&format!("p{n}"))))
        .collect();
    for watch in &mut watches {
        next(watch);
    }
    let before = world.manager().counts();
    for n in 0..100 {
        let status = [CheckStatus::Critical, CheckStatus::Passing][n % 2];
        world.check("u7", 1, status);
        world.settle();
        next(&mut watches[7]);
    }
    let after = world.manager().counts();
    assert_eq!(after.runs - before.runs, 100);
    assert_eq!(after.answers_computed - before.answers_computed, 100);
    for (n, watch) in watches.iter_mut().enumerate() {
        assert!(
            watch.try_next().unwrap().is_none(),
            "p{n} doesn't depend on u7"
        );
    }
}

#[test]
fn an_entry_recompiles_only_the_chains_that_read_it() {
    let world = World::new();
    let count = size("PROXYCFG_PROXIES", 100);
    let defaults =
        |name: &str| json!({"Kind": "service-defaults", "Name": name, "Protocol": "http"});
    for n in 0..count {
        world.instance(&format!("u{n}"), 1);
        world.entry(defaults(&format!("u{n}")));
    }
    world.entry(defaults("alias"));
    // Two proxies have each upstream in common, and all of them one more: its chain leads to u7.
    let alias = json!({"Kind": "service-resolver", "Name": "alias", "Redirect": {"Service": "u7"}});
    world.entry(alias);
    for n in 0..2 * count {
        let (name, upstream) = (format!("p{n}"), format!("u{}", n % count));
        world.register(&proxy_id(&name), sidecar(&name, &[&upstream, "alias"]));
    }
    for n in 0..2 * count {
        world.ready(&proxy_id(&format!("p{n}")));
    }
    world.settle();
    let counts = || world.manager().counts();
    let mut before = counts();
    let mut compiled = |entry: serde_json::Value| {
        world.entry(entry);
        world.settle();
        let now = counts();
        let compiled = now.chains_compiled - before.chains_compiled;
        let runs = now.runs - before.runs;
        before = now;
        (compiled, runs)
    };
    let resolver = |name: &str, seconds: u32| {
        let timeout = format!("{seconds}s");
        json!({"Kind": "service-resolver", "Name": name, "ConnectTimeout": timeout})
    };
    // Its two proxies run.
    assert_eq!(compiled(resolver("u3", 1)), (1, 2));
    assert_eq!(compiled(resolver("u3", 2)), (1, 2));
    // Two chains lead here, one of them everybody's.
    assert_eq!(compiled(resolver("u7", 1)), (2, 2 * count as u64));
    // Nobody's, and nothing new.
    assert_eq!(compiled(resolver("nobody", 1)), (0, 0));
    assert_eq!(compiled(resolver("u3", 2)), (0, 0));
    let intentions = json!({"Kind": "service-intentions", "Name": "u5", "Sources": [{"Name": "*", "Action": "deny"}]});
    assert_eq!(compiled(intentions).0, 0);
    // A split between two services joins the chains of neither but its own.
    let split = json!({"Kind": "service-splitter", "Name": "u5", "Splits": [
        {"Weight": 60, "Service": "u5"}, {"Weight": 40, "Service": "u6"},
    ]});
    assert_eq!(compiled(split).0, 1);
    // Now two chains read this.
    assert_eq!(compiled(resolver("u6", 1)).0, 2);
    // What all chains read.
    let global =
        json!({"Kind": "proxy-defaults", "Name": "global", "Config": {"protocol": "http"}});
    assert_eq!(compiled(global).0, count as u64 + 1);
}

#[test]
fn a_herd_does_not_hold_up_an_unrelated_change() {
    let world = World::new();
    world.instance("db", 1);
    world.instance("other", 1);
    let count = size("PROXYCFG_PROXIES", 10_000);
    herd(&world, count, &["db"]);
    let lone = proxy_id("lone");
    world.register(&lone, sidecar("lone", &["other"]));
    world.ready(&lone);

    // Publications are numbered in their order.
    let sequence = Arc::new(AtomicU64::new(0));
    let number_of = |id: &proxycfg::model::ProxyId| {
        let (sequence, mine) = (sequence.clone(), Arc::new(AtomicU64::new(0)));
        let mut watch = world.manager().watch(id);
        let told = mine.clone();
        watch.set_waker(move || {
            let number = sequence.fetch_add(1, Ordering::SeqCst) + 1;
            told.store(number, Ordering::SeqCst);
        });
        (watch, mine)
    };
    let (lone_watch, lone_number) = number_of(&lone);
    let herd_watches: Vec<_> = (0..count)
        .map(|n| number_of(&proxy_id(&format!("p{n}"))).0)
        .collect();
    world.entry(json!({"Kind": "proxy-defaults", "Name": "global", "Config": {"local_connect_timeout_ms": 9}}));
    eventually("the herd is on its way", || {
        sequence.load(Ordering::SeqCst) > 10
    });
    let so_far = sequence.load(Ordering::SeqCst);
    // All are of the herd: the proxy whose endpoint changes now is part of it too, so the endpoint tells when.
    world.check("other", 1, CheckStatus::Warning);
    eventually("the lone endpoint", || {
        let snapshot = lone_watch.current().unwrap();
        addresses(&snapshot, "other") == ["10.0.0.2:21000 Warning"]
    });
    let at = lone_number.load(Ordering::SeqCst);
    world.settle();
    let total = sequence.load(Ordering::SeqCst);
    assert!(total >= count as u64, "{total}");
    assert!(
        so_far > total / 2 || at < total / 2 + so_far,
        "the lone proxy was number {at} of {total}; {so_far} were done before its change"
    );
    drop((lone_watch, herd_watches));
}

#[test]
fn a_small_change_in_one_commit_with_a_herd_goes_first() {
    let world = World::with(|config| config.engine.workers = 1);
    world.instance("db", 1);
    world.instance("other", 1);
    let count = size("PROXYCFG_PROXIES", 1_000);
    herd(&world, count, &["db"]);
    let lone = proxy_id("lone");
    world.register(&lone, sidecar("lone", &["other"]));
    world.ready(&lone);
    world.settle();

    let sequence = Arc::new(AtomicU64::new(0));
    let mut watches: Vec<_> = (0..count)
        .map(|n| world.manager().watch(&proxy_id(&format!("p{n}"))))
        .collect();
    for watch in &mut watches {
        let sequence = sequence.clone();
        watch.set_waker(move || {
            sequence.fetch_add(1, Ordering::SeqCst);
        });
    }
    let mut watch = world.manager().watch(&lone);
    let before_it = Arc::new(AtomicU64::new(u64::MAX));
    watch.set_waker({
        let (sequence, before_it) = (sequence.clone(), before_it.clone());
        move || {
            before_it.fetch_min(sequence.load(Ordering::SeqCst), Ordering::SeqCst);
        }
    });
    let defaults = json!({"Kind": "proxy-defaults", "Name": "global", "Config": {"local_connect_timeout_ms": 9}});
    world.apply(vec![
        entry_op(defaults),
        check_op("other", 1, CheckStatus::Warning),
    ]);
    world.settle();
    assert_eq!(sequence.load(Ordering::SeqCst), count as u64);
    assert_eq!(before_it.load(Ordering::SeqCst), 0);
    assert_eq!(
        addresses(&watch.current().unwrap(), "other"),
        ["10.0.0.2:21000 Warning"]
    );
}

#[test]
fn a_bulk_change_gets_its_turn_in_an_endless_flow_of_small_ones() {
    let world = World::with(|config| config.engine.workers = 1);
    world.instance("db", 1);
    herd(&world, 200, &["db"]);
    for n in 0..4 {
        world.instance(&format!("busy{n}"), 1);
        let service = format!("busy-p{n}");
        world.register(
            &proxy_id(&service),
            sidecar(&service, &[&format!("busy{n}")]),
        );
        world.ready(&proxy_id(&service));
    }
    let watch = world.manager().watch(&proxy_id("p199"));
    world.check("db", 1, CheckStatus::Warning);
    for n in 0.. {
        for busy in 0..4 {
            let status = [CheckStatus::Critical, CheckStatus::Passing][n % 2];
            world.check(&format!("busy{busy}"), 1, status);
        }
        if addresses(&watch.current().unwrap(), "db") == ["10.0.0.2:21000 Warning"] {
            break;
        }
        assert!(n < 100_000, "the herd starves");
    }
}
