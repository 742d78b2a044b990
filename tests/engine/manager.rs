//! The contract of the manager, and the life of a proxy (engine.md 7).

use std::time::{Duration, Instant};

use proxycfg::engine::{RegisterError, Registered, WaitError, WatchEnd};
use proxycfg::model::{ProxySource, Upstream};
use proxycfg::source::{Query, QueryError};
use serde_json::json;

use crate::host::*;
use crate::world::*;

const OTHER: &str = "other";

#[test]
fn engine_m1_a_watch_before_registration_is_empty_and_requests_carry_the_token() {
    let host = Host::new();
    let id = proxy_id("web");
    let mut watch = host.manager.watch(&id);
    assert!(watch.try_next().unwrap().is_none());
    host.register_as(&id, sidecar("web", &[]), "secret");
    next(&mut watch);
    assert!(watch.try_next().unwrap().is_none(), "one snapshot arrives");
    let leaves = host.feed().of(is_leaf);
    assert_eq!(leaves.len(), 1);
    assert_eq!(leaves[0].1.scope, token("secret"));
}

/// The stages of the life of a sidecar, over the chain entries given, which lead to the targets given.
fn lifecycle(entries: &[serde_json::Value], targets: &[&str]) {
    let host = Host::new();
    for n in 1..=2 {
        host.apply(instance_ops("db", n));
    }
    for entry in entries {
        host.apply(vec![entry_op(entry.clone())]);
    }
    let id = proxy_id("web");
    let definition = |port: u16| {
        let mut instance = sidecar("web", &["db"]);
        instance.port = port;
        instance.proxy.upstreams[0].config = json!({"connect_timeout_ms": 1000})
            .as_object()
            .unwrap()
            .clone();
        instance.proxy.upstreams.push(Upstream {
            destination_type: "prepared_query".into(),
            destination_name: "geo-cache".into(),
            local_bind_port: 9009,
            ..Upstream::default()
        });
        instance
    };
    let mut first = host.manager.watch(&id);
    assert_eq!(host.register(&id, definition(9999)), Registered::Created);
    let snapshot = next(&mut first);
    assert_eq!(snapshot.header.port, 9999);
    assert_eq!(snapshot.header.datacenter, "dc1");
    assert!(snapshot.header.service_meta.is_empty());
    assert!(snapshot.header.tagged_addresses.is_empty());
    let target = upstream(&snapshot, "db").target.clone().unwrap();
    let found: Vec<&str> = target.endpoints.iter().map(|t| t.target.as_str()).collect();
    assert_eq!(found, targets);
    for endpoints in &target.endpoints {
        let count = endpoints.endpoints.as_ref().unwrap().len();
        assert_eq!(count, 2 / targets.len(), "{}", endpoints.target);
    }
    for node in target.chain.nodes.values() {
        if let Some(resolver) = &node.resolver {
            assert_eq!(resolver.connect_timeout.to_string(), "1s");
        }
    }

    host.register(&id, definition(7777));
    assert_eq!(next(&mut first).header.port, 7777);
    let mut second = host.manager.watch(&id);
    let current = second.try_next().unwrap().unwrap();
    assert_eq!(current.header.port, 7777, "a second watch has it at once");

    host.register_as(&id, definition(7777), "token");
    for watch in [&mut first, &mut second] {
        assert_eq!(next(watch).header.port, 7777, "a new token is a change");
    }
    assert!(
        host.feed()
            .of(is_leaf)
            .iter()
            .any(|(_, s)| s.scope == token("token"))
    );

    let leaf_before = first.current().unwrap().leaf().unwrap().id();
    host.feed().send(is_leaf, |q| certificate_for(q).unwrap());
    for watch in [&mut first, &mut second] {
        assert_ne!(next(watch).leaf().unwrap().id(), leaf_before);
    }

    assert!(host.manager.deregister(&id, &ProxySource::LOCAL));
    host.apply(instance_ops("db", 3));
    host.settle();
    for watch in [&mut first, &mut second] {
        assert!(
            watch.try_next().unwrap().is_none(),
            "not told, and not ended"
        );
    }
    host.register(&id, definition(3333));
    for watch in [&mut first, &mut second] {
        assert_eq!(next(watch).header.port, 3333);
    }
    drop(first);
    assert_eq!(host.manager.status(&id).unwrap().watchers, 1);
    let report = host.manager.close(Instant::now() + PATIENCE);
    assert_eq!(report.stuck_threads, 0);
    assert!(host.manager.proxies().is_empty());
    assert_eq!(second.try_next().unwrap_err(), WatchEnd::Ended);
}

#[test]
fn engine_m2_lifecycle_with_a_default_chain() {
    lifecycle(&[], &["db.default.default.dc1"]);
}

#[test]
fn engine_m2_lifecycle_with_a_split_chain() {
    lifecycle(
        &[
            json!({"Kind": "service-defaults", "Name": "db", "Protocol": "http"}),
            json!({"Kind": "service-resolver", "Name": "db", "Subsets": {
                "v1": {"Filter": "Service.Meta.version == v1"},
                "v2": {"Filter": "Service.Meta.version == v2"}}}),
            json!({"Kind": "service-splitter", "Name": "db", "Splits": [
                {"Weight": 60, "ServiceSubset": "v1"}, {"Weight": 40, "ServiceSubset": "v2"}]}),
        ],
        &["v1.db.default.default.dc1", "v2.db.default.default.dc1"],
    );
}

#[test]
fn engine_m4_nothing_is_sent_before_it_is_complete() {
    let host = Host::with(
        |_| {},
        |q| {
            matches!(
                q,
                Query::CaRoots | Query::Intentions { .. } | Query::Mesh | Query::JwtProviders
            )
        },
    );
    host.feed().answer_with(|_, _| None);
    let id = proxy_id("web");
    host.register(&id, sidecar("web", &[]));
    let mut watch = host.manager.watch(&id);
    eventually("five subscriptions", || host.feed().count() == 5);
    let reader_answer = |query: &Query| {
        let snapshot = host.store.snapshot();
        let reader = snapshot.reader();
        let views = proxycfg::source::StoreViews {
            datacenter: "dc1".into(),
        };
        views.answer(query, &reader)
    };
    type Stage = fn(&Query) -> bool;
    let stages: [(Stage, &str); 4] = [
        (|q| is_leaf(q), "certificate"),
        (|q| matches!(q, Query::CaRoots), "roots"),
        (|q| matches!(q, Query::Mesh), "mesh"),
        (|q| matches!(q, Query::JwtProviders), "providers"),
    ];
    for (stage, name) in stages {
        let runs = host.manager.counts().runs;
        host.feed().send(stage, |query| {
            certificate_for(query).unwrap_or_else(|| reader_answer(query))
        });
        eventually("a run", || host.manager.counts().runs > runs);
        host.settle();
        assert!(
            watch.try_next().unwrap().is_none(),
            "incomplete after {name}"
        );
        assert!(!host.manager.status(&id).unwrap().ready);
    }
    host.feed()
        .send(|q| matches!(q, Query::Intentions { .. }), reader_answer);
    next(&mut watch);
    eventually("readiness", || host.manager.status(&id).unwrap().ready);
}

#[test]
fn engine_m15_watchers_share_one_immutable_snapshot() {
    let host = Host::new();
    let id = proxy_id("web");
    host.register(&id, sidecar("web", &["db"]));
    host.ready(&id);
    host.settle();
    let mut watches = [host.manager.watch(&id), host.manager.watch(&id)];
    let [a, b] = &mut watches;
    assert!(is_same(&next(a), &next(b)));
}

#[test]
fn contract_1_watchers_keep_their_snapshot_until_the_new_one_is_complete() {
    let host = Host::new();
    let id = proxy_id("web");
    host.register(&id, sidecar("web", &[]));
    let mut watch = host.manager.watch(&id);
    let old = next(&mut watch);
    let name = |snapshot: &proxycfg::engine::SnapshotRef| {
        let leaf = snapshot.leaf().unwrap();
        (
            snapshot.header.proxy.destination_service_name.clone(),
            leaf.identity.clone(),
        )
    };
    host.feed().answer_with(|_, _| None);
    // It is to stand for another service, whose certificate isn't there yet.
    let mut changed = sidecar("api", &["db"]);
    changed.id = "web-sidecar-proxy".into();
    host.register(&id, changed);
    host.settle();
    assert_eq!(name(&watch.current().unwrap()), name(&old));
    assert!(!host.manager.status(&id).unwrap().ready);
    // What is served goes on to be renewed, and an error of the new one, and time, change nothing about that.
    let of = |service: &'static str| move |q: &Query| matches!(q, Query::Leaf { service: s } if s == service);
    host.feed()
        .send(of("api"), |_| Err(QueryError::new("busy")));
    host.clock.advance(Duration::from_secs(30));
    host.feed().send(of("web"), |q| certificate_for(q).unwrap());
    eventually("the renewed old certificate", || {
        let snapshot = watch.current().unwrap();
        assert_eq!(name(&snapshot), name(&old));
        snapshot.leaf().unwrap().id() != old.leaf().unwrap().id()
    });
    while watch.try_next().unwrap().is_some() {}
    host.feed().send(of("api"), |q| certificate_for(q).unwrap());
    let new = next(&mut watch);
    let (service, identity) = name(&new);
    assert_eq!(service, "api");
    assert_ne!(identity, name(&old).1, "both change together");
    assert!(upstream(&new, "db").target.is_some());
    eventually("readiness", || host.manager.status(&id).unwrap().ready);
}

#[test]
fn contract_2_no_snapshot_comes_twice_and_indexes_never_go_down() {
    let world = World::new();
    let id = proxy_id("web");
    let mut watch = world.manager().watch(&id);
    world.register(&id, sidecar("web", &["db"]));
    let mut last = next(&mut watch);
    for n in 0..100 {
        world.instance("db", n % 7);
        world.entry(json!({"Kind": "service-resolver", "Name": "db", "ConnectTimeout": format!("{}s", n % 5 + 1)}));
        if n % 10 == 0 {
            world.settle();
        }
        while let Some(snapshot) = watch.try_next().unwrap() {
            assert!(!is_same(&snapshot, &last));
            assert!(!last.diff(&snapshot).is_empty(), "equal content");
            assert!(snapshot.store_index >= last.store_index);
            last = snapshot;
        }
    }
}

#[test]
fn contract_5_only_the_owner_deregisters_and_watchers_stay() {
    let world = World::new();
    let id = proxy_id("web");
    world.register(&id, sidecar("web", &[]));
    let mut watch = world.manager().watch(&id);
    next(&mut watch);
    assert!(!world.manager().deregister(&id, &ProxySource::new(OTHER)));
    assert!(world.manager().deregister(&id, &ProxySource::LOCAL));
    assert!(watch.try_next().unwrap().is_none());
    assert!(
        watch.current().is_none(),
        "nothing of the removed one is left"
    );
    let status = world.manager().status(&id).unwrap();
    assert_eq!((status.kind, status.watchers), (None, 1));
    assert_eq!(
        world.register(&id, sidecar("web", &[])),
        Registered::Created
    );
    next(&mut watch);
}

#[test]
fn contract_6_tokens_share_nothing_that_depends_on_them() {
    let host = Host::new();
    let (a, b) = (
        proxy_id("web").with_token("a"),
        proxy_id("web").with_token("b"),
    );
    assert_ne!(a, b);
    host.register_as(&a, sidecar("web", &["db"]), "a");
    host.register_as(&b, sidecar("web", &["db"]), "b");
    let (of_a, of_b) = (host.ready(&a), host.ready(&b));
    assert_ne!(of_a.leaf().unwrap().id(), of_b.leaf().unwrap().id());
    assert_ne!(
        of_a.leaf().unwrap().serial_number,
        of_b.leaf().unwrap().serial_number
    );
    let scopes: Vec<_> = host
        .feed()
        .of(is_leaf)
        .into_iter()
        .map(|s| s.1.scope)
        .collect();
    assert_eq!(scopes.len(), 2);
    assert!(scopes.contains(&token("a")) && scopes.contains(&token("b")));
    assert_eq!(
        of_a.roots().id(),
        of_b.roots().id(),
        "what depends on no token is shared"
    );
}

#[test]
fn contract_7_a_proxy_says_what_it_waits_for() {
    let host = Host::new();
    host.feed().answer_with(|_, _| None);
    let id = proxy_id("web");
    host.register(&id, sidecar("web", &["db"]));
    eventually("an issue", || {
        let status = host.manager.status(&id).unwrap();
        status
            .issues
            .iter()
            .any(|i| i.blocks && i.error.is_none() && i.subject == "certificate of web")
    });
    host.feed().send(is_leaf, |_| {
        Err(proxycfg::source::QueryError::new("the signer sleeps"))
    });
    eventually("the error", || {
        let status = host.manager.status(&id).unwrap();
        let error = status.issues.iter().find_map(|i| i.error.clone());
        !status.ready && error.is_some_and(|e| e == "the signer sleeps")
    });
    host.feed().send(is_leaf, |q| certificate_for(q).unwrap());
    host.ready(&id);
    eventually("no issues", || {
        let status = host.manager.status(&id).unwrap();
        status.ready && status.issues.is_empty()
    });
}

#[test]
fn contract_7_complaints_about_settings_stay_as_long_as_the_settings() {
    let world = World::new();
    let id = proxy_id("web");
    let mut instance = sidecar("web", &["db"]);
    instance.proxy.upstreams[0].config = json!({"connect_timeout_ms": "soon"})
        .as_object()
        .unwrap()
        .clone();
    world.register(&id, instance.clone());
    world.ready(&id);
    let complains = || {
        let status = world.manager().status(&id).unwrap();
        assert!(
            status.ready,
            "engine.md 7, S13: the upstream works without it"
        );
        status.issues.iter().any(|i| {
            i.error
                .as_ref()
                .is_some_and(|e| e.contains("connect_timeout_ms"))
        })
    };
    assert!(complains());
    world.entry(json!({"Kind": "proxy-defaults", "Name": "global", "Config": {"local_connect_timeout_ms": 7}}));
    world.settle();
    assert!(complains(), "also after central configuration changed");
    instance.proxy.upstreams[0].config.clear();
    world.register(&id, instance);
    world.settle();
    assert!(!complains());
}

#[test]
fn contract_8_waits_end_and_say_why() {
    let world = World::new();
    let manager = world.manager();
    let index = world.store().snapshot().index();
    manager
        .wait_index(index, Instant::now() + PATIENCE)
        .unwrap();
    assert!(manager.done_index() >= index);
    assert_eq!(
        manager.wait_index(index + 1, Instant::now()).unwrap_err(),
        WaitError::TimedOut
    );
    let id = proxy_id("web");
    assert_eq!(
        manager.wait_ready(&id, Instant::now()).unwrap_err(),
        WaitError::TimedOut
    );
    let waiting = {
        let manager = manager.clone();
        std::thread::spawn(move || manager.wait_index(u64::MAX, Instant::now() + PATIENCE))
    };
    std::thread::sleep(Duration::from_millis(1));
    manager.close(Instant::now() + PATIENCE);
    assert_eq!(waiting.join().unwrap().unwrap_err(), WaitError::Ended);
    assert_eq!(
        manager
            .wait_ready(&id, Instant::now() + PATIENCE)
            .unwrap_err(),
        WaitError::Ended
    );
}

#[test]
fn engine_2_9_a_closed_engine_refuses_and_ends() {
    let host = Host::new();
    let id = proxy_id("web");
    host.register(&id, sidecar("web", &[]));
    host.ready(&id);
    let mut watch = host.manager.watch(&id);
    for _ in 0..2 {
        let report = host.manager.close(Instant::now() + PATIENCE);
        assert_eq!(report.stuck_threads, 0);
    }
    // What it hadn't read yet comes first, then the end.
    assert!(watch.try_next().unwrap().is_some());
    assert_eq!(watch.try_next().unwrap_err(), WatchEnd::Ended);
    assert_eq!(
        host.manager
            .register(&id, options(sidecar("web", &[])))
            .unwrap_err(),
        RegisterError::Closed
    );
    assert!(!host.manager.deregister(&id, &ProxySource::LOCAL));
    assert_eq!(
        host.manager.watch(&id).try_next().unwrap_err(),
        WatchEnd::Ended
    );
    assert!(host.manager.proxies().is_empty());
    assert_eq!(host.feed().count(), 0, "feeds are told");
    assert_eq!(host.manager.counts().threads, 0);
}
