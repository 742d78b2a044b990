//! Outside sources: late answers, batches, errors and panics (decisions E4, E5, E7).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use proxycfg::engine::{Registered, WatchEnd};
use proxycfg::model::ProxySource;
use proxycfg::source::{Query, QueryError};
use serde_json::json;

use crate::host::*;
use crate::world::*;

fn gone(text: &str) -> QueryError {
    QueryError::token_invalid(text)
}

#[test]
fn engine_m8_a_terminal_error_ends_the_watches_of_its_proxy_alone() {
    let host = Host::new();
    let (web, api) = (proxy_id("web"), proxy_id("api"));
    host.register_as(&web, sidecar("web", &[]), "t1");
    host.register_as(&api, sidecar("api", &[]), "t2");
    let (mut of_web, mut of_api) = (host.manager.watch(&web), host.manager.watch(&api));
    next(&mut of_web);
    next(&mut of_api);
    host.feed().send(
        |q| matches!(q, Query::Leaf { service } if service == "web"),
        |_| Err(gone("ACL not found")),
    );
    eventually("the end", || {
        matches!(of_web.try_next(), Err(WatchEnd::Ended))
    });
    assert!(of_api.try_next().unwrap().is_none(), "others go on");
    let status = host.manager.status(&web).unwrap();
    assert_eq!(status.ended.as_deref(), Some("ACL not found"));
    assert!(!status.ready);
    let mut waiting = host.manager.watch(&web);
    assert!(
        waiting.try_next().unwrap().is_none(),
        "a new watch waits for a new state"
    );
    // The same definition, again: begins anew, at once, and lives.
    assert_eq!(
        host.register_as(&web, sidecar("web", &[]), "t1"),
        Registered::Created
    );
    next(&mut waiting);
    host.settle();
    assert!(host.manager.status(&web).unwrap().ready);
    assert!(waiting.try_next().unwrap().is_none());
}

#[test]
fn engine_m7_an_ended_proxy_is_replaced_by_any_source_and_can_be_deregistered() {
    let host = Host::new();
    let id = proxy_id("web");
    let end = || {
        host.ready(&id);
        host.feed().send(is_leaf, |_| Err(gone("ACL not found")));
        eventually("the end", || {
            host.manager.status(&id).unwrap().ended.is_some()
        });
    };
    host.register(&id, sidecar("web", &[]));
    end();
    let mut other = options(sidecar("web", &[]));
    other.source = ProxySource::new("other");
    other.overwrite = false;
    assert_eq!(
        host.manager.register(&id, other).unwrap(),
        Registered::Created
    );
    assert_eq!(
        host.manager.status(&id).unwrap().source,
        Some(ProxySource::new("other"))
    );
    end();
    assert!(host.manager.deregister(&id, &ProxySource::new("other")));
    assert!(host.manager.status(&id).is_none());
    assert_eq!(host.manager.counts().states, 0);
}

#[test]
fn fc_004_a_token_that_is_unknown_once_ends_and_is_revived_within_the_linger_time() {
    let host = Host::new();
    let refused = Arc::new(AtomicU32::new(0));
    let counted = refused.clone();
    host.feed().answer_with(move |_, query| {
        if counted.fetch_add(1, Ordering::SeqCst) < 3 {
            return Some(Err(gone("ACL not found")));
        }
        certificate_for(query)
    });
    let id = proxy_id("web");
    for _ in 0..3 {
        assert_eq!(
            host.register_as(&id, sidecar("web", &[]), "t"),
            Registered::Created
        );
        eventually("the end", || {
            host.manager.status(&id).unwrap().ended.is_some()
        });
    }
    host.register_as(&id, sidecar("web", &[]), "t");
    host.ready(&id);
}

#[test]
fn fc_043_a_replaced_token_is_used_from_then_on_and_the_old_one_ends_nothing() {
    for round in 0..50 {
        let host = Host::new();
        host.feed().answer_with(|scope, query| {
            if *scope == token("t0") {
                return Some(Err(gone("ACL not found")));
            }
            certificate_for(query)
        });
        let id = proxy_id("web");
        let mut watch = host.manager.watch(&id);
        // The refusal of the first token races with its replacement.
        host.register_as(&id, sidecar("web", &[]), "t0");
        for _ in 0..round * 20 {
            std::hint::spin_loop();
        }
        host.register_as(&id, sidecar("web", &[]), "t1");
        host.ready(&id);
        let mut again = host.manager.watch(&id);
        next(&mut again);
        // Whether the old watch has ended depends on who was first; a new one never ends.
        let _ = watch.try_next();
        host.settle();
        assert!(again.try_next().unwrap().is_none());
        assert!(host.manager.status(&id).unwrap().ready);
    }
}

#[test]
fn fc_043_the_snapshot_stays_while_the_token_is_replaced() {
    let host = Host::new();
    let id = proxy_id("web");
    host.register_as(&id, sidecar("web", &[]), "t1");
    let mut watch = host.manager.watch(&id);
    next(&mut watch);
    host.feed().answer_with(|scope, query| {
        assert_eq!(*scope, token("t2"));
        certificate_for(query)
    });
    assert_eq!(
        host.register_as(&id, sidecar("web", &[]), "t2"),
        Registered::Created
    );
    assert!(watch.current().is_some(), "valid throughout");
    next(&mut watch);
    eventually("the old subscription ends", || {
        host.clock.advance(Duration::from_secs(5));
        host.feed().count() == 1
    });
    assert_eq!(host.feed().of(is_leaf)[0].1.scope, token("t2"));
}

#[test]
fn decision_e7_late_answers_of_a_dropped_subscription_are_ignored() {
    let host = Host::new();
    let id = proxy_id("web");
    host.register(&id, sidecar("web", &[]));
    host.ready(&id);
    let (old, subscribed) = host.feed().of(is_leaf).remove(0);
    host.manager.deregister(&id, &ProxySource::LOCAL);
    eventually("the subscription ends", || {
        host.clock.advance(Duration::from_secs(5));
        host.feed().count() == 0
    });
    host.register(&id, sidecar("web", &[]));
    let fresh = host.ready(&id);
    let runs = host.manager.counts().runs;
    subscribed.sink.answer(old, Ok(certificate("web")));
    subscribed.sink.answer(old, Err(gone("late")));
    // A later, current answer shows that the late ones have been looked at.
    host.feed().send(is_leaf, |_| Ok(certificate("web")));
    let mut watch = host.manager.watch(&id);
    eventually("the current answer", || {
        watch
            .try_next()
            .unwrap()
            .is_some_and(|s| s.leaf().unwrap().id() != fresh.leaf().unwrap().id())
    });
    assert_eq!(host.manager.counts().runs, runs + 1);
    assert!(host.manager.status(&id).unwrap().ended.is_none());
}

#[test]
fn decision_e7_a_batch_is_one_step() {
    let host = Host::with(|_| {}, |q| matches!(q, Query::Endpoints(_)));
    host.feed().answer_with(|_, query| match query {
        Query::Endpoints(_) => Some(Ok(endpoints(0))),
        other => certificate_for(other),
    });
    let id = proxy_id("web");
    host.register(&id, sidecar("web", &["a", "b"]));
    let mut watch = host.manager.watch(&id);
    let known = |s: &proxycfg::engine::SnapshotRef| {
        ["a", "b"].map(|name| addresses(s, name)) == [["10.0.0.1:0 Passing"]; 2]
    };
    while !known(&next(&mut watch)) {}
    for n in 1..=200 {
        let batch: Vec<_> = host
            .feed()
            .of(|q| matches!(q, Query::Endpoints(_)))
            .into_iter()
            .map(|(id, subscribed)| (subscribed, id))
            .collect();
        let sink = batch[0].0.sink.clone();
        sink.answer_all(
            batch
                .iter()
                .map(|(_, id)| (*id, Ok(endpoints(n))))
                .collect(),
        );
        let snapshot = next(&mut watch);
        assert_eq!(
            addresses(&snapshot, "a"),
            addresses(&snapshot, "b"),
            "round {n}"
        );
    }
}

fn endpoints(n: u16) -> proxycfg::source::Answer {
    use proxycfg::model::{Endpoint, EndpointHealth};
    proxycfg::source::Answer::Endpoints(proxycfg::snapshot::Part::new(vec![Endpoint {
        node: "n".into(),
        service_id: "s".into(),
        datacenter: "dc1".into(),
        address: "10.0.0.1".into(),
        port: n,
        wan_address: "10.0.0.1".into(),
        wan_port: n,
        socket_path: Default::default(),
        health: EndpointHealth::Passing,
        weight_passing: 1,
        weight_warning: 1,
    }]))
}

#[test]
fn engine_s2_an_error_keeps_the_last_answer_and_heals() {
    let host = Host::new();
    let id = proxy_id("web");
    host.register(&id, sidecar("web", &[]));
    let mut watch = host.manager.watch(&id);
    let good = next(&mut watch);
    host.feed().send(is_leaf, |_| Err(QueryError::new("busy")));
    eventually("the error shows", || {
        let status = host.manager.status(&id).unwrap();
        status.ready
            && status
                .issues
                .iter()
                .any(|i| i.error.as_deref() == Some("busy"))
    });
    host.settle();
    assert!(
        watch.try_next().unwrap().is_none(),
        "no snapshot for an error"
    );
    assert_eq!(
        watch.current().unwrap().leaf().unwrap().id(),
        good.leaf().unwrap().id()
    );
    host.feed().send(is_leaf, |_| Ok(certificate("web")));
    assert_ne!(
        next(&mut watch).leaf().unwrap().id(),
        good.leaf().unwrap().id()
    );
    eventually("no issue", || {
        host.manager.status(&id).unwrap().issues.is_empty()
    });
}

#[test]
fn contract_7_a_view_that_panics_keeps_the_last_good_snapshot() {
    let host = Host::new();
    host.apply(instance_ops("db", 1));
    let id = proxy_id("web");
    host.register(&id, sidecar("web", &["db"]));
    let mut watch = host.manager.watch(&id);
    host.ready(&id);
    host.settle();
    let good = watch.try_next().unwrap().unwrap();
    host.hook(|query| match query {
        Query::Endpoints(_) => panic!("by intent"),
        _ => None,
    });
    host.apply(instance_ops("db", 2));
    host.settle();
    let status = host.manager.status(&id).unwrap();
    assert!(
        status
            .issues
            .iter()
            .any(|i| i.error.as_ref().is_some_and(|e| e.contains("by intent"))),
        "{status:?}"
    );
    assert!(
        status.ready && status.fault.is_none(),
        "a view's panic is its query's error"
    );
    assert_eq!(
        addresses(&watch.current().unwrap(), "db"),
        addresses(&good, "db")
    );
    assert!(watch.try_next().unwrap().is_none());
    host.unhook();
    host.apply(instance_ops("db", 3));
    host.settle();
    assert_eq!(addresses(&next(&mut watch), "db").len(), 3);
    assert!(host.manager.status(&id).unwrap().issues.is_empty());
}

#[test]
fn contract_7_a_view_that_fails_at_first_blocks_only_its_part() {
    let host = Host::new();
    host.apply(instance_ops("db", 1));
    host.hook(|query| match query {
        Query::Endpoints(_) => Some(Err(QueryError::new("no path"))),
        Query::Chain(chain) if chain.service == "broken" => {
            Some(Err(QueryError::new("doesn't compile")))
        }
        _ => None,
    });
    let id = proxy_id("web");
    host.register(&id, sidecar("web", &["db", "broken"]));
    let snapshot = host.ready(&id);
    host.settle();
    assert!(upstream(&snapshot, "broken").target.is_none());
    let issues = host.manager.status(&id).unwrap().issues;
    for text in ["no path", "doesn't compile"] {
        let issue = issues.iter().find(|i| i.error.as_deref() == Some(text));
        assert!(issue.is_some_and(|i| !i.blocks), "{issues:?}");
    }
}

#[test]
fn contract_7_a_state_that_panics_is_shown_counted_and_tried_again() {
    let host = Host::new();
    host.apply(instance_ops("db", 1));
    let id = proxy_id("web");
    host.register(&id, sidecar("web", &["db"]));
    let mut watch = host.manager.watch(&id);
    host.ready(&id);
    host.settle();
    let good = watch.try_next().unwrap().unwrap();
    // The route of a query is asked for within the state's run.
    let bad = host.sources.clone();
    bad.panic_at_route.store(true, Ordering::SeqCst);
    host.apply(instance_ops("db", 2));
    host.settle();
    let status = host.manager.status(&id).unwrap();
    assert_eq!(status.fault.as_deref(), Some("by intent"));
    assert!(!status.ready);
    assert!(host.manager.counts().panics >= 1);
    assert!(
        watch.try_next().unwrap().is_none(),
        "the watch is not ended, and silent"
    );
    assert_eq!(
        addresses(&watch.current().unwrap(), "db"),
        addresses(&good, "db")
    );

    bad.panic_at_route.store(false, Ordering::SeqCst);
    let panics = host.manager.counts().panics;
    eventually("another run", || {
        host.clock.advance(Duration::from_millis(100));
        host.manager.status(&id).unwrap().fault.is_none()
    });
    host.settle();
    assert_eq!(addresses(&watch.current().unwrap(), "db").len(), 2);
    assert!(host.manager.status(&id).unwrap().ready);
    assert_eq!(host.manager.counts().panics, panics);
    // And it goes on as if nothing had been.
    host.apply(instance_ops("db", 3));
    host.settle();
    assert_eq!(addresses(&watch.current().unwrap(), "db").len(), 3);
}

#[test]
fn contract_7_back_off_after_a_panic_grows_and_ends() {
    let host = Host::new();
    let id = proxy_id("web");
    host.sources.panic_at_route.store(true, Ordering::SeqCst);
    host.register(&id, sidecar("web", &[]));
    let panics = || host.manager.counts().panics;
    eventually("the first", || panics() == 1);
    let mut waits = Vec::new();
    for n in 2..=6 {
        let mut waited = 0;
        let deadline = std::time::Instant::now() + PATIENCE;
        while panics() < n {
            assert!(std::time::Instant::now() < deadline);
            host.clock.advance(Duration::from_millis(50));
            waited += 50;
            // Gives the threads time to take the moved clock in, so that the wait isn't overestimated by much.
            std::thread::sleep(Duration::from_millis(2));
        }
        waits.push(waited);
    }
    // Time that passes until the test sees a panic counts for the wait before.
    let all: u64 = waits.iter().sum();
    assert!(all >= 3_000 && waits[4] > 4 * waits[0], "{waits:?}");
    host.sources.panic_at_route.store(false, Ordering::SeqCst);
    eventually("recovery", || {
        host.clock.advance(Duration::from_secs(1));
        host.manager.status(&id).unwrap().ready
    });
}

#[test]
fn decision_e5_a_feed_that_panics_is_its_querys_error() {
    let host = Host::new();
    host.feed().answer_with(|_, _| panic!("by intent"));
    let id = proxy_id("web");
    host.register(&id, sidecar("web", &[]));
    eventually("the error shows", || {
        let issues = host.manager.status(&id).unwrap().issues;
        issues
            .iter()
            .any(|i| i.error.as_ref().is_some_and(|e| e.contains("by intent")))
    });
}

/// Found by the simulation: a subscription that panicked after it had been answered left the proxy without its certificate.
#[test]
fn decision_e5_an_error_does_not_take_away_the_answer_before_it_in_the_same_step() {
    let host = Host::new();
    host.feed().answer_with(|_, _| None);
    let id = proxy_id("web");
    host.register(&id, sidecar("web", &[]));
    eventually("the subscription", || !host.feed().of(is_leaf).is_empty());
    for (subscription, live) in host.feed().of(is_leaf) {
        live.sink.answer_all(vec![
            (subscription, Ok(certificate("web"))),
            (subscription, Err(QueryError::new("late trouble"))),
        ]);
    }
    host.ready(&id);
    host.settle();
    let status = host.manager.status(&id).unwrap();
    assert!(status.ready);
    let shown = status
        .issues
        .iter()
        .filter_map(|issue| issue.error.as_deref());
    assert!(
        shown
            .into_iter()
            .any(|error| error.contains("late trouble"))
    );
}

#[test]
fn decision_e7_a_feed_call_that_blocks_holds_up_its_own_query_alone() {
    let host = Host::new();
    let open = Arc::new(AtomicBool::new(false));
    let gate = open.clone();
    host.feed().answer_with(move |_, query| {
        if matches!(query, Query::Leaf { service } if service == "slow") {
            while !gate.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
        }
        certificate_for(query)
    });
    let (slow, quick) = (proxy_id("slow"), proxy_id("quick"));
    host.register(&slow, sidecar("slow", &[]));
    eventually("the call", || host.feed().all.lock().len() == 1);
    host.register(&quick, sidecar("quick", &[]));
    host.ready(&quick);
    assert!(!host.manager.status(&slow).unwrap().ready);
    open.store(true, Ordering::SeqCst);
    host.ready(&slow);
}

#[test]
fn contract_7_listing_does_not_wait_for_a_view() {
    let host = Host::new();
    let open = Arc::new(AtomicBool::new(false));
    let inside = Arc::new(AtomicBool::new(false));
    let (gate, entered) = (open.clone(), inside.clone());
    host.hook(move |query| {
        if matches!(query, Query::Endpoints(_)) {
            entered.store(true, Ordering::SeqCst);
            while !gate.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
        }
        None
    });
    let id = proxy_id("web");
    host.register(&id, sidecar("web", &["db"]));
    eventually("the view is entered", || inside.load(Ordering::SeqCst));
    let (send, receive) = std::sync::mpsc::channel();
    let manager = host.manager.clone();
    let asked = id.clone();
    let lister = std::thread::spawn(move || {
        let _ = send.send((
            manager.proxies().len(),
            manager.status(&asked).unwrap().ready,
        ));
    });
    let listed = receive.recv_timeout(Duration::from_secs(10));
    open.store(true, Ordering::SeqCst);
    lister.join().unwrap();
    assert_eq!(listed.unwrap(), (1, false));
}

#[test]
fn a_refresh_asks_the_feed_for_a_new_certificate() {
    let host = Host::new();
    let id = proxy_id("web");
    host.register(&id, sidecar("web", &[]));
    let mut watch = host.manager.watch(&id);
    let before = next(&mut watch);
    let leaf = Query::Leaf {
        service: "web".into(),
    };
    assert!(host.manager.refresh(&id, &leaf));
    assert_ne!(
        next(&mut watch).leaf().unwrap().id(),
        before.leaf().unwrap().id()
    );
    assert!(
        !host.manager.refresh(&id, &Query::Mesh),
        "comes from no feed"
    );
    assert!(!host.manager.refresh(&proxy_id("nobody"), &leaf));
}

#[test]
fn make_before_break_an_upstream_keeps_its_endpoints_while_the_new_ones_are_awaited() {
    let host = Host::with(|_| {}, |q| matches!(q, Query::Endpoints(_)));
    let pending = Arc::new(AtomicBool::new(false));
    let gate = pending.clone();
    host.feed().answer_with(move |_, query| match query {
        Query::Endpoints(e) if e.service == "new" && gate.load(Ordering::SeqCst) => None,
        Query::Endpoints(e) => Some(Ok(endpoints(e.service.len() as u16))),
        other => certificate_for(other),
    });
    let id = proxy_id("web");
    host.register(&id, sidecar("web", &["db"]));
    let watch = host.manager.watch(&id);
    let ports = || watch.current().map(|s| addresses(&s, "db"));
    let old = vec!["10.0.0.1:2 Passing".to_owned()];
    eventually("the first endpoints", || ports() == Some(old.clone()));

    pending.store(true, Ordering::SeqCst);
    host.apply(vec![entry_op(
        json!({"Kind": "service-resolver", "Name": "db", "Redirect": {"Service": "new"}}),
    )]);
    eventually("the new subscription", || {
        !host
            .feed()
            .of(|q| matches!(q, Query::Endpoints(e) if e.service == "new"))
            .is_empty()
    });
    host.settle();
    assert_eq!(
        ports(),
        Some(old),
        "served while the replacement is awaited"
    );
    // What is served stays fresh meanwhile.
    host.feed().send(
        |q| matches!(q, Query::Endpoints(e) if e.service == "db"),
        |_| Ok(endpoints(77)),
    );
    eventually("a fresh old endpoint", || {
        ports() == Some(vec!["10.0.0.1:77 Passing".into()])
    });
    // The deadline ends it.
    eventually("the deadline", || {
        host.clock.advance(Duration::from_secs(1));
        let snapshot = watch.current().unwrap();
        let target = upstream(&snapshot, "db").target.as_ref().unwrap();
        target.chain.targets.contains_key("new.default.default.dc1")
    });
    host.feed().send(
        |q| matches!(q, Query::Endpoints(e) if e.service == "new"),
        |_| Ok(endpoints(3)),
    );
    eventually("the late answer", || {
        ports() == Some(vec!["10.0.0.1:3 Passing".into()])
    });
}
