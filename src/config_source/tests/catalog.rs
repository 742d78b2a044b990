//! The catalog config source (engine.md 5.2 to 5.6, C1 to C13).

use std::time::Duration;

use serde_json::json;

use crate::config_source::testing::{Rig, definition, eventually, node_record, sidecar, soon};
use crate::config_source::{
    CapacityReached, CatalogConfigSource, CatalogOptions, ConfigSource, LocalConfigSource,
    LocalSync, LocalSyncOptions, Origin, SessionLimiter, SourceWatch, StreamEnd, WatchError,
};
use crate::engine::SnapshotRef;
use crate::model::{ConfigEntry, ProxyDefaults, ProxyId, ProxySource, ServiceInstance};
use crate::store::Op;

struct Source {
    rig: Rig,
    limiter: SessionLimiter,
    source: CatalogConfigSource,
}

impl Source {
    fn new(grace: Duration) -> Self {
        let rig = Rig::new();
        let limiter = SessionLimiter::new();
        let local = LocalConfigSource::new(rig.manager.clone(), rig.state.clone());
        let options = CatalogOptions { grace };
        let source =
            CatalogConfigSource::start(rig.manager.clone(), local, limiter.clone(), &options)
                .unwrap();
        Self {
            rig,
            limiter,
            source,
        }
    }

    fn watch(&self, id: &ProxyId) -> SourceWatch {
        self.source.watch(id).unwrap()
    }

    fn registered(&self) -> Vec<ProxyId> {
        let registered = self.rig.manager.registered(&ProxySource::CATALOG);
        registered.into_iter().collect()
    }

    fn remove(&self, node: &str, id: &str) {
        self.rig.apply(vec![Op::DeregisterService {
            node: node.into(),
            id: id.into(),
        }]);
    }

    /// Nothing is left of any stream.
    fn assert_nothing_left(&self) {
        assert_eq!(self.registered(), []);
        assert_eq!(self.rig.manager.counts().watches, 0);
        assert_eq!(self.limiter.in_flight(), 0);
        assert_eq!(self.source.followed(), 0);
        assert_eq!(self.rig.store.waiting(), 0);
    }
}

fn id(token: &str) -> ProxyId {
    ProxyId::new("web-proxy", "n9").with_token(token)
}

fn record(port: u16) -> ServiceInstance {
    sidecar("web-proxy", port)
}

fn next(watch: &mut SourceWatch) -> SnapshotRef {
    watch.next(soon()).unwrap().expect("a snapshot in time")
}

/// Waits until a watch gives a snapshot of which something holds.
fn wait_for(watch: &mut SourceWatch, holds: impl Fn(&SnapshotRef) -> bool) {
    while !holds(&next(watch)) {}
}

#[test]
fn catalog_c1_success() {
    let s = Source::new(Duration::ZERO);
    s.rig.catalog("n9", record(9999));
    let mut first = s.watch(&id("T"));
    let snapshot = next(&mut first);
    assert_eq!(snapshot.header.port, 9999);
    assert_eq!(snapshot.header.proxy_id, id("T"));
    assert_eq!(s.rig.leaves.tokens(), ["T"]);
    assert_eq!(s.registered(), [id("T")]);

    s.rig.catalog("n9", record(8888));
    wait_for(&mut first, |s| s.header.port == 8888);
    let defaults = ProxyDefaults {
        name: "global".to_owned(),
        config: serde_json::from_value(json!({"max_inbound_connections": 321})).unwrap(),
        ..ProxyDefaults::default()
    };
    s.rig.apply(vec![Op::SetConfig {
        entry: Box::new(ConfigEntry::ProxyDefaults(defaults)),
        cas: None,
    }]);
    wait_for(&mut first, |s| {
        s.header.proxy.config.get("max_inbound_connections") == Some(&json!(321))
    });

    let states = s.rig.manager.counts().states;
    let mut second = s.watch(&id("T"));
    assert_eq!(next(&mut second).header.port, 8888);
    assert_eq!(s.rig.manager.counts().states, states);
    assert_eq!(s.limiter.in_flight(), 2);
    assert!(first.try_next().unwrap().is_none());

    drop(first);
    assert_eq!(s.registered(), [id("T")]);
    assert_eq!(s.limiter.in_flight(), 1);
    drop(second);
    s.assert_nothing_left();
}

#[test]
fn catalog_c2_x5_local_services_use_the_local_source() {
    let s = Source::new(Duration::ZERO);
    let web = json!({"Name": "web", "Connect": {"SidecarService": {}}});
    s.rig.state.add(definition(web), &Origin::API).unwrap();
    let options = LocalSyncOptions::new(node_record("n1"));
    let sync = LocalSync::start(s.rig.manager.clone(), s.rig.state.clone(), options).unwrap();
    sync.flush(soon()).unwrap();
    s.limiter.set_max_sessions(1);
    let _full = s.limiter.begin().unwrap();
    let mut watch = s.watch(&ProxyId::new("web-sidecar-proxy", "n1").with_token("T"));
    assert!(next(&mut watch).header.proxy_id.token.is_empty());
    assert!(watch.session_terminated().is_none() && watch.source_terminated().is_none());
    assert_eq!(s.registered(), []);
    assert_eq!(
        (
            s.limiter.in_flight(),
            s.rig.store.waiting(),
            s.source.followed()
        ),
        (1, 0, 0)
    );
}

#[test]
fn fc_027_local_proxies_take_no_session() {
    let s = Source::new(Duration::ZERO);
    let service =
        |n: u16| definition(json!({"Name": format!("s{n}"), "Connect": {"SidecarService": {}}}));
    for n in 0..5 {
        s.rig.state.add(service(n), &Origin::API).unwrap();
    }
    let options = LocalSyncOptions::new(node_record("n1"));
    let sync = LocalSync::start(s.rig.manager.clone(), s.rig.state.clone(), options).unwrap();
    sync.flush(soon()).unwrap();
    s.rig.catalog("n9", sidecar("a", 1));
    s.rig.catalog("n9", sidecar("b", 2));
    s.limiter.set_max_sessions(2);
    let local = (0..5).map(|n| ProxyId::new(format!("s{n}-sidecar-proxy"), "n1"));
    let ids = local.chain([ProxyId::new("a", "n9"), ProxyId::new("b", "n9")]);
    let mut watches: Vec<SourceWatch> = ids.map(|id| s.watch(&id)).collect();
    for watch in &mut watches {
        next(watch);
    }
    let eighth = s.source.watch(&ProxyId::new("a", "n9")).unwrap_err();
    assert_eq!(eighth, WatchError::Capacity(CapacityReached));
}

#[test]
fn catalog_c3_a_refused_registration_leaves_nothing() {
    let s = Source::new(Duration::ZERO);
    s.rig.catalog("n9", record(9999));
    s.rig.manager.close(soon());
    let error = s.source.watch(&id("T")).unwrap_err();
    assert!(matches!(error, WatchError::Register(_)), "{error}");
    s.assert_nothing_left();
}

#[test]
fn catalog_c4_a_service_that_is_no_proxy_is_an_error() {
    let s = Source::new(Duration::ZERO);
    let plain = definition(json!({"ID": "web-proxy", "Name": "web", "Port": 80}));
    s.rig.catalog("n9", plain.to_instance());
    let error = s.source.watch(&id("T")).unwrap_err().to_string();
    assert!(
        error.contains("must be a sidecar proxy or gateway"),
        "{error}"
    );
    assert!(
        error.contains("n9/web-proxy") && !error.contains('T'),
        "{error}"
    );
    s.assert_nothing_left();
}

#[test]
fn catalog_c5_a_full_server_refuses() {
    let s = Source::new(Duration::ZERO);
    s.rig.catalog("n9", record(9999));
    s.limiter.set_max_sessions(1);
    let full = s.limiter.begin().unwrap();
    let error = s.source.watch(&id("T")).unwrap_err();
    assert_eq!(error, WatchError::Capacity(CapacityReached));
    assert_eq!(error.to_string(), "active session limit reached");
    assert_eq!(s.rig.manager.counts().proxies, 0);
    drop(full);
    s.assert_nothing_left();
}

#[test]
fn catalog_c6_a_missing_service_is_waited_for() {
    let s = Source::new(Duration::ZERO);
    let mut watch = s.watch(&id("T"));
    assert_eq!(s.rig.store.waiting(), 1);
    // Writes of others wake nobody.
    s.rig.catalog("n9", sidecar("other", 1));
    assert_eq!(s.rig.store.waiting(), 1);
    assert!(watch.try_next().unwrap().is_none());
    s.rig.catalog("n9", record(9999));
    assert_eq!(next(&mut watch).header.port, 9999);

    s.remove("n9", "web-proxy");
    eventually("deregistered", || s.registered().is_empty());
    assert!(watch.try_next().unwrap().is_none());
    assert!(watch.current().is_none());
    eventually("it waits again", || s.rig.store.waiting() == 1);

    s.rig.catalog("n9", record(7777));
    assert_eq!(next(&mut watch).header.port, 7777);
    assert!(!watch.source_terminated().unwrap().is_given());
    drop(watch);
    s.assert_nothing_left();
}

#[test]
fn catalog_c7_streams_are_told_when_the_source_gives_up() {
    let s = Source::new(Duration::ZERO);
    s.rig.catalog("n9", record(9999));
    s.rig.catalog("n9", sidecar("other", 1));
    let (mut first, second) = (s.watch(&id("T")), s.watch(&id("T")));
    next(&mut first);
    let plain = definition(json!({"ID": "web-proxy", "Name": "web", "Port": 80}));
    s.rig.catalog("n9", plain.to_instance());
    assert!(first.source_terminated().unwrap().wait(soon()));
    assert!(second.source_terminated().unwrap().is_given());
    assert_eq!(first.next(soon()).unwrap_err(), StreamEnd::SourceTerminated);
    assert_eq!(s.registered(), []);
    let mut other = s.watch(&ProxyId::new("other", "n9"));
    next(&mut other);
    assert!(s.source.watch(&id("T")).is_err());
    // Mended, a new stream is served while the old ones haven't gone yet.
    s.rig.catalog("n9", record(6666));
    let mut third = s.watch(&id("T"));
    assert_eq!(next(&mut third).header.port, 6666);
    drop((first, second));
    assert_eq!(s.registered().len(), 2);
    assert!(!third.source_terminated().unwrap().is_given());
    drop((third, other));
    s.assert_nothing_left();
}

#[test]
fn catalog_c8_a_restored_store_is_read_again() {
    let s = Source::new(Duration::ZERO);
    s.rig.catalog("n9", record(9999));
    let image = s.rig.store.image();
    s.rig.catalog("n9", record(8888));
    let mut watch = s.watch(&id("T"));
    assert_eq!(next(&mut watch).header.port, 8888);
    s.rig.store.restore(&image).unwrap();
    wait_for(&mut watch, |s| s.header.port == 9999);
    eventually("it waits on the new one", || s.rig.store.waiting() == 1);
    s.remove("n9", "web-proxy");
    eventually("deregistered", || s.registered().is_empty());
}

#[test]
fn catalog_c9_c10_shutdown() {
    let s = Source::new(Duration::from_secs(10));
    s.rig.catalog("n9", record(9999));
    let mut watch = s.watch(&id("T"));
    let other = s.watch(&ProxyId::new("nobody", "n9"));
    next(&mut watch);
    s.source.shut_down();
    s.source.shut_down();
    assert_eq!(watch.try_next().unwrap_err(), StreamEnd::SourceTerminated);
    assert!(matches!(
        s.source.watch(&id("T")),
        Err(WatchError::ShutDown)
    ));
    drop((watch, other));
    s.assert_nothing_left();
}

#[test]
fn catalog_c11_a_stream_that_joins_an_ended_proxy_revives_it() {
    let s = Source::new(Duration::ZERO);
    s.rig.catalog("n9", record(9999));
    let mut old = s.watch(&id("T"));
    let _other = s.watch(&id("T"));
    next(&mut old);
    s.rig.leaves.revoke("T");
    assert_eq!(old.next(soon()).unwrap_err(), StreamEnd::WatchEnded);
    eventually("the failed query is let go", || {
        s.rig.leaves.tokens().is_empty()
    });
    s.rig.leaves.allow("T");
    let mut new = s.watch(&id("T"));
    drop(old);
    assert_eq!(next(&mut new).header.port, 9999);
}

#[test]
fn catalog_c12_tokens_are_kept_apart() {
    let s = Source::new(Duration::ZERO);
    s.rig.catalog("n9", record(9999));
    let (mut a, mut b) = (s.watch(&id("A")), s.watch(&id("B")));
    assert_eq!(next(&mut a).header.proxy_id.token, "A");
    assert_eq!(next(&mut b).header.proxy_id.token, "B");
    assert_eq!(s.registered(), [id("A"), id("B")]);
    assert_eq!(s.rig.leaves.tokens(), ["A", "B"]);
}

#[test]
fn catalog_c13_no_waits_are_leaked() {
    let s = Source::new(Duration::ZERO);
    for n in 0..100 {
        let watch = s.watch(&id("T"));
        assert_eq!(s.rig.store.waiting(), 1);
        if n % 3 == 0 {
            s.rig.catalog("n9", record(1000 + n));
        }
        drop(watch);
    }
    s.assert_nothing_left();
}

#[test]
fn catalog_e8_a_reconnect_within_the_grace_finds_it_warm() {
    let s = Source::new(Duration::from_secs(10));
    s.rig.catalog("n9", record(9999));
    let mut watch = s.watch(&id("T"));
    next(&mut watch);
    let states = s.rig.manager.counts();
    drop(watch);
    s.rig.clock.advance(Duration::from_secs(9));
    let mut watch = s.watch(&id("T"));
    assert!(watch.try_next().unwrap().is_some(), "there is no wait");
    assert_eq!(s.rig.manager.counts().parts_built, states.parts_built);
    // The old time of grace is void.
    s.rig.clock.advance(Duration::from_secs(9));
    assert_eq!(s.registered(), [id("T")]);
    drop(watch);
    let due = Duration::from_secs(10);
    eventually("deregistered", || {
        s.rig.clock.advance(due);
        s.registered().is_empty()
    });
    eventually("forgotten", || s.source.followed() == 0);
    s.assert_nothing_left();
}

#[test]
fn catalog_5_6_a_service_that_becomes_local_takes_the_empty_token_s_proxy_over() {
    let s = Source::new(Duration::ZERO);
    let id = ProxyId::new("web-sidecar-proxy", "n1");
    let mut on_catalog = s.watch(&id);
    let web = json!({"Name": "web", "Connect": {"SidecarService": {}}});
    s.rig.state.add(definition(web), &Origin::API).unwrap();
    let options = LocalSyncOptions::new(node_record("n1"));
    let sync = LocalSync::start(s.rig.manager.clone(), s.rig.state.clone(), options).unwrap();
    sync.flush(soon()).unwrap();
    assert_eq!(next(&mut on_catalog).header.port, 21_000);
    assert_eq!(s.rig.source_of(&id).as_deref(), Some("local"));
    let mut on_local = s.watch(&id);
    next(&mut on_local);
    drop(on_catalog);
    assert_eq!(s.rig.source_of(&id).as_deref(), Some("local"));
    drop(on_local);
    assert_eq!(s.limiter.in_flight(), 0);
}

#[test]
fn catalog_many_streams_come_and_go() {
    let s = Source::new(Duration::ZERO);
    s.rig.catalog("n9", record(9999));
    std::thread::scope(|scope| {
        for t in 0..4 {
            let s = &s;
            scope.spawn(move || {
                for n in 0..50 {
                    let mut watch = s.watch(&id(if (t + n) % 2 == 0 { "A" } else { "B" }));
                    if n % 5 == 0 {
                        assert_eq!(next(&mut watch).header.proxy_id.node, "n9");
                    }
                }
            });
        }
    });
    s.assert_nothing_left();
}
