//! Cases from the field (field-cases.md), as far as they concern snapshots.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use proxycfg::clock::Clock;
use proxycfg::engine::Registered;
use proxycfg::model::{CheckStatus, MeshGatewayMode, Upstream};
use proxycfg::snapshot::SnapshotChange;
use proxycfg::source::Query;
use proxycfg::store::Op;
use serde_json::json;

use crate::host::*;
use crate::stress::size;
use crate::world::*;

/// Counts publications in each second of test time, as `count` proxies take in a change under a limit.
fn publications(limit: f64, count: usize, raise_after: Option<u64>) -> Vec<u64> {
    let host = Host::with(|config| config.updates_per_second = 0.0, |_| false);
    let ids: Vec<_> = (0..count).map(|n| proxy_id(&format!("p{n}"))).collect();
    for (n, id) in ids.iter().enumerate() {
        host.register(id, sidecar(&format!("p{n}"), &[]));
    }
    for id in &ids {
        host.ready(id);
    }
    host.settle();
    host.manager.set_update_rate(limit);
    let base = host.manager.counts().published;
    let published = || host.manager.counts().published - base;
    host.apply(vec![entry_op(
        json!({"Kind": "service-intentions", "Name": "*",
        "Sources": [{"Name": "*", "Action": "deny"}]}),
    )]);
    host.settle();
    let mut seconds = Vec::new();
    let mut before = 0;
    let runs = |target: u64| {
        eventually("the publications of a moment", || published() >= target);
    };
    for second in 1..=60 {
        if raise_after == Some(second) {
            host.manager.set_update_rate(0.0);
            host.apply(vec![entry_op(
                json!({"Kind": "mesh", "TransparentProxy": {"MeshDestinationsOnly": true}}),
            )]);
            host.settle();
        }
        for tenth in 1..=10_u64 {
            host.clock.advance(Duration::from_millis(100));
            let elapsed = (second - 1) * 10 + tenth;
            let due = (elapsed as f64 / 10.0 * limit) as u64;
            runs(due.min(count as u64));
        }
        let now = published();
        seconds.push(now - before);
        before = now;
        if now >= count as u64 {
            break;
        }
    }
    seconds
}

#[test]
fn fc_008_a_limit_spreads_what_one_change_causes() {
    let count = size("PROXYCFG_PROXIES", 1_000);
    let seconds = publications(250.0, count, None);
    for (n, published) in seconds.iter().enumerate() {
        assert!(*published <= 251, "second {n}: {published} of {seconds:?}");
    }
    assert_eq!(seconds.iter().sum::<u64>(), count as u64);
    assert_eq!(seconds.len(), count.div_ceil(250), "{seconds:?}");
}

#[test]
fn engine_m13_changing_the_limit_takes_effect_for_what_comes_later() {
    let host = Host::with(|config| config.updates_per_second = 2.0, |_| false);
    let watches: Vec<_> = (0..5)
        .map(|n| {
            let service = format!("p{n}");
            host.register(&proxy_id(&service), sidecar(&service, &[]));
            host.manager.watch(&proxy_id(&service))
        })
        .collect();
    let there = || watches.iter().filter(|w| w.current().is_some()).count();
    eventually("the first", || there() == 1);
    for expected in 2..=5 {
        let due = Duration::from_millis(500) * (expected as u32 - 1);
        let before = due - Duration::from_millis(1);
        host.clock
            .advance(before.saturating_sub(host.clock.monotonic()));
        host.settle();
        assert!(
            there() < expected || host.clock.monotonic() >= due,
            "too early"
        );
        eventually("the next", || {
            host.clock.advance(Duration::from_millis(1));
            there() >= expected
        });
    }
    host.manager.set_update_rate(0.0);
    host.apply(vec![entry_op(
        json!({"Kind": "proxy-defaults", "Name": "global", "Config": {"a": 1}}),
    )]);
    host.settle();
    for watch in &watches {
        let config = &watch.current().unwrap().header.proxy.config;
        assert!(config.contains_key("a"), "at once");
    }
}

#[test]
fn engine_m13_the_interval_of_one_proxy_does_not_hold_up_others() {
    let host = Host::with(
        |config| {
            config.updates_per_second = 1_000.0;
            config.min_publish_interval = Duration::from_secs(60);
        },
        |_| false,
    );
    let (busy, other) = (proxy_id("busy"), proxy_id("other"));
    host.register(&busy, sidecar("busy", &["db"]));
    host.ready(&busy);
    host.settle();
    host.apply(instance_ops("db", 1));
    host.settle();
    // Its change waits for the end of its interval; another proxy's first snapshot doesn't.
    host.register(&other, sidecar("other", &[]));
    let watch = host.manager.watch(&other);
    eventually("the other's snapshot", || {
        host.clock.advance(Duration::from_millis(1));
        watch.current().is_some()
    });
    assert!(host.manager.clock().monotonic() < Duration::from_secs(30));
    let watch = host.manager.watch(&busy);
    eventually("the busy one's change", || {
        host.clock.advance(Duration::from_secs(1));
        !addresses(&watch.current().unwrap(), "db").is_empty()
    });
    assert!(host.manager.clock().monotonic() >= Duration::from_secs(60));
}

#[test]
fn fc_011_an_edited_upstream_takes_effect() {
    let world = World::new();
    let id = proxy_id("web");
    let mut watch = world.manager().watch(&id);
    let mut instance = sidecar("web", &["db"]);
    type Edit = (fn(&mut Upstream), fn(&Upstream) -> bool);
    let edits: [Edit; 4] = [
        (|u| u.local_bind_port = 9191, |u| u.local_bind_port == 9191),
        (|u| u.local_bind_port = 9292, |u| u.local_bind_port == 9292),
        (
            |u| {
                u.config.insert("connect_timeout_ms".into(), 1500.into());
            },
            |u| u.config["connect_timeout_ms"] == 1500,
        ),
        (
            |u| u.mesh_gateway.mode = MeshGatewayMode::Local,
            |u| u.mesh_gateway.mode == MeshGatewayMode::Local,
        ),
    ];
    for (edit, shows) in edits {
        edit(&mut instance.proxy.upstreams[0]);
        assert!(matches!(
            world.register(&id, instance.clone()),
            Registered::Created | Registered::Changed
        ));
        let snapshot = next(&mut watch);
        world.settle();
        assert!(shows(&upstream(&snapshot, "db").definition.upstream));
        assert!(watch.try_next().unwrap().is_none(), "one new snapshot");
        assert_eq!(world.register(&id, instance.clone()), Registered::Unchanged);
        world.settle();
        assert!(watch.try_next().unwrap().is_none());
    }
    let snapshot = watch.current().unwrap();
    let target = upstream(&snapshot, "db").target.as_ref().unwrap();
    let resolver = target.chain.start().unwrap().resolver.as_ref().unwrap();
    assert_eq!(
        resolver.connect_timeout.to_string(),
        "1.5s",
        "it reaches the chain"
    );
}

#[test]
fn fc_019_all_instances_fail_or_go_in_one_transaction() {
    let world = World::new();
    for n in 1..=3 {
        world.instance("db", n);
    }
    let id = proxy_id("web");
    world.register(&id, sidecar("web", &["db"]));
    let watch = world.manager().watch(&id);
    world.ready(&id);
    let shown = || addresses(&watch.current().unwrap(), "db");
    // Decision R1: failing instances stay in the answer, marked.
    world.apply(
        (1..=3)
            .map(|n| check_op("db", n, CheckStatus::Critical))
            .collect(),
    );
    world.settle();
    assert_eq!(shown().len(), 3);
    assert!(
        shown().iter().all(|a| a.ends_with("Critical")),
        "{:?}",
        shown()
    );
    world.check("db", 2, CheckStatus::Passing);
    world.settle();
    let healthy: Vec<_> = shown()
        .into_iter()
        .filter(|a| a.ends_with("Passing"))
        .collect();
    assert_eq!(healthy, ["10.0.0.3:21000 Passing"]);
    world.apply(
        (1..=3)
            .map(|n| Op::DeregisterNode {
                node: node_name("db", n).as_str().into(),
            })
            .collect(),
    );
    world.settle();
    assert!(shown().is_empty());
    world.instance("db", 3);
    world.settle();
    assert_eq!(shown(), ["10.0.0.4:21000 Passing"]);
}

#[test]
fn fc_025_an_older_computation_that_ends_last_changes_nothing() {
    let host = Host::new();
    host.apply(instance_ops("db", 1));
    // Computations of endpoints take a random time.
    let state = AtomicU64::new(7);
    host.hook(move |query| {
        if matches!(query, Query::Endpoints(_) | Query::ServiceConfig(_)) {
            let random = state.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::SeqCst);
            for _ in 0..(random >> 51) {
                std::hint::spin_loop();
            }
        }
        None
    });
    let rounds = size("PROXYCFG_ROUNDS", 300);
    for round in 0..rounds {
        // Proxies that come while changes are under way compute the same answers at different steps.
        let ids: Vec<_> = (0..3).map(|n| proxy_id(&format!("p{n}"))).collect();
        let mut watches: Vec<_> = ids.iter().map(|id| (host.manager.watch(id), 0)).collect();
        let upstream_name = format!("u{}", round % 2);
        host.apply(instance_ops(&upstream_name, 1));
        for (n, id) in ids.iter().enumerate() {
            host.register(id, sidecar(&format!("p{n}"), &["db", &upstream_name]));
            let status = [
                CheckStatus::Passing,
                CheckStatus::Warning,
                CheckStatus::Critical,
            ][(round + n) % 3];
            host.apply(vec![
                check_op("db", 1, status),
                check_op(&upstream_name, 1, status),
            ]);
        }
        host.settle();
        let last = ["Passing", "Warning", "Critical"][(round + 2) % 3];
        for (id, (watch, seen)) in ids.iter().zip(&mut watches) {
            host.ready(id);
            host.settle();
            while let Some(snapshot) = watch.try_next().unwrap() {
                assert!(snapshot.store_index >= *seen);
                *seen = snapshot.store_index;
                let of_db = addresses(&snapshot, "db");
                let of_other = addresses(&snapshot, &upstream_name);
                let before_the_round = of_other.is_empty() && of_db == ["10.0.0.2:21000 Passing"];
                assert!(
                    of_db == of_other || before_the_round,
                    "round {round}: half of a transaction: {of_db:?} and {of_other:?}"
                );
            }
            let current = watch.current().unwrap();
            assert_eq!(
                addresses(&current, "db"),
                [format!("10.0.0.2:21000 {last}")],
                "round {round}"
            );
        }
        for id in &ids {
            host.manager
                .deregister(id, &proxycfg::model::ProxySource::LOCAL);
        }
        host.apply(vec![
            check_op("db", 1, CheckStatus::Passing),
            Op::DeregisterNode {
                node: node_name(&upstream_name, 1).as_str().into(),
            },
        ]);
    }
}

#[test]
fn fc_026_to_zero_and_back() {
    let world = World::new();
    world.instance("db", 1);
    let id = proxy_id("web");
    world.register(&id, sidecar("web", &["db"]));
    let watch = world.manager().watch(&id);
    world.ready(&id);
    let shown = || addresses(&watch.current().unwrap(), "db");
    for n in [1, 2] {
        world.remove_instance("db", 1);
        world.settle();
        assert!(shown().is_empty());
        world.clock.advance(Duration::from_secs(60));
        let mut ops = instance_ops("db", 1);
        for op in &mut ops {
            if let Op::Register(register) = op {
                register.node.address = format!("10.0.0.{n}");
            }
        }
        world.apply(ops);
        world.settle();
        assert_eq!(shown(), [format!("10.0.0.{n}:21000 Passing")]);
    }
}

#[test]
fn fc_044_a_reader_never_finds_a_gap_while_the_registration_changes() {
    let world = World::new();
    let id = proxy_id("web");
    let mut instance = sidecar("web", &["db"]);
    world.register(&id, instance.clone());
    world.ready(&id);
    let mut watch = world.manager().watch(&id);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                let fresh = world.manager().watch(&id);
                assert!(fresh.current().is_some(), "absent");
                assert!(world.manager().status(&id).unwrap().kind.is_some());
            }
        });
        for n in 0..1_000 {
            instance.proxy.config.insert("n".into(), n.into());
            assert_eq!(world.register(&id, instance.clone()), Registered::Changed);
            while watch.try_next().unwrap().is_some() {}
        }
        done.store(true, Ordering::SeqCst);
    });
    world.settle();
    assert_eq!(watch.current().unwrap().header.proxy.config["n"], 999);
}

#[test]
fn fc_065_each_instance_carries_its_health() {
    let world = World::new();
    world.entry(
        json!({"Kind": "service-resolver", "Name": "pay", "DefaultSubset": "v1", "Subsets": {
        "v1": {"Filter": "Service.Meta.version == v1", "OnlyPassing": true}}}),
    );
    // Even instances are of version 1.
    for (n, status) in [
        (2, CheckStatus::Passing),
        (4, CheckStatus::Warning),
        (6, CheckStatus::Critical),
        (1, CheckStatus::Passing),
    ] {
        world.instance("pay", n);
        world.check("pay", n, status);
    }
    let id = proxy_id("web");
    world.register(&id, sidecar("web", &["pay"]));
    let snapshot = world.ready(&id);
    assert_eq!(
        addresses(&snapshot, "pay"),
        [
            "10.0.0.3:21000 Passing",
            "10.0.0.5:21000 Warning",
            "10.0.0.7:21000 Critical"
        ]
    );
    let target = upstream(&snapshot, "pay").target.as_ref().unwrap();
    let chain_target = &target.chain.targets["v1.pay.default.default.dc1"];
    assert!(
        chain_target.subset.only_passing,
        "whoever makes clusters leaves out the warning one"
    );
}

#[test]
fn fc_070_an_intention_touches_nothing_else() {
    let world = World::new();
    world.instance("db", 1);
    let (web, other) = (proxy_id("web"), proxy_id("other"));
    for (id, service) in [(&web, "web"), (&other, "other")] {
        world.register(id, sidecar(service, &["db"]));
        world.ready(id);
    }
    let (mut of_web, mut of_other) = (world.manager().watch(&web), world.manager().watch(&other));
    let mut last = next(&mut of_web);
    next(&mut of_other);
    for n in 0..20 {
        let action = ["deny", "allow"][n % 2];
        world.entry(json!({"Kind": "service-intentions", "Name": "web", "Sources": [{"Name": "api", "Action": action}]}));
        world.settle();
        let snapshot = next(&mut of_web);
        assert_eq!(last.diff(&snapshot).changes, [SnapshotChange::Intentions]);
        last = snapshot;
    }
    assert_eq!(
        serde_json::to_value(&last.to_json()["ConnectProxy"]["Intentions"][0]["Action"]).unwrap(),
        "allow"
    );
    assert!(of_other.try_next().unwrap().is_none());
}

#[test]
fn engine_s9_an_equal_chain_keeps_everything() {
    let world = World::new();
    world.instance("db", 1);
    let id = proxy_id("web");
    world.register(&id, sidecar("web", &["db"]));
    let before = world.ready(&id);
    let counts = world.manager().counts();
    // Changes the entry, but not the chain: the timeout is what holds without it too.
    world.entry(json!({"Kind": "service-resolver", "Name": "db", "Meta": {"a": "b"}}));
    world.settle();
    let after = world.ready(&id);
    let target = |s: &proxycfg::engine::SnapshotRef| upstream(s, "db").target.clone().unwrap();
    let endpoints = |s| target(s).endpoints[0].endpoints.as_ref().unwrap().id();
    assert_eq!(endpoints(&before), endpoints(&after));
    let queries = world.manager().counts().queries;
    assert_eq!(queries, counts.queries, "no query begun or ended");
}

#[test]
fn engine_s15_a_restore_is_taken_in_and_unrelated_writes_are_not() {
    let world = World::new();
    world.instance("db", 1);
    let image = world.store().image();
    let id = proxy_id("web");
    world.register(&id, sidecar("web", &["db"]));
    let mut watch = world.manager().watch(&id);
    world.ready(&id);
    world.instance("db", 2);
    world.settle();
    while watch.try_next().unwrap().is_some() {}
    let runs = world.manager().counts().runs;
    world.instance("unrelated", 1);
    world.settle();
    assert_eq!(world.manager().counts().runs, runs);
    world.store().restore(&image).unwrap();
    world.settle();
    assert_eq!(
        addresses(&next(&mut watch), "db"),
        ["10.0.0.2:21000 Passing"]
    );
    world.instance("db", 3);
    world.settle();
    assert_eq!(
        addresses(&next(&mut watch), "db").len(),
        2,
        "and goes on from there"
    );
}
