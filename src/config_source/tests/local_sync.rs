//! Local state into catalog and engine (engine.md 4.3, L1 to L9).

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use triomphe::Arc as Shared;

use crate::config_source::anti_entropy::StoreSync;
use crate::config_source::local_tables::{LocalEntry, LocalTables};
use crate::config_source::testing::{
    Rig, check, definition, empty_store, eventually, node_record, sidecar, soon,
};
use crate::config_source::{
    ConfigSource, LocalConfigSource, LocalState, LocalSync, LocalSyncOptions, Origin, Synced,
};
use crate::engine::{RegisterOptions, WatchEnd};
use crate::model::{
    CheckStatus, Locality, ProxyId, ProxySource, ServiceDefinition, ServiceInstance, ServiceKind,
    SidecarPortRange, Upstream,
};
use crate::proxy::Registration;
use crate::store::{InstanceKey, Op, Store};

fn start(rig: &Rig) -> LocalSync {
    start_with(rig, LocalSyncOptions::new(node_record("n1")))
}

fn start_with(rig: &Rig, options: LocalSyncOptions) -> LocalSync {
    LocalSync::start(rig.manager.clone(), rig.state.clone(), options).unwrap()
}

fn flush(rig: &Rig, sync: &LocalSync) -> Synced {
    let synced = sync.flush(soon()).unwrap();
    rig.manager.wait_index(synced.store_index, soon()).unwrap();
    synced
}

fn web(token: &str) -> ServiceDefinition {
    definition(
        json!({"Name": "web", "Port": 80, "Token": token, "Connect": {"SidecarService": {}}}),
    )
}

fn proxy_id() -> ProxyId {
    ProxyId::new("web-sidecar-proxy", "n1")
}

fn instances(store: &Store) -> Vec<String> {
    let snapshot = store.snapshot();
    let rows = snapshot.reader().node_services("n1");
    rows.iter().map(|row| row.id.clone()).collect()
}

fn instance(store: &Store, id: &str) -> Option<ServiceInstance> {
    let snapshot = store.snapshot();
    let row = snapshot.reader().instance("n1", id)?;
    Some((**row).clone())
}

/// An entry as it can't come from a valid definition.
fn entry(service: ServiceInstance) -> LocalEntry {
    LocalEntry {
        service: Shared::new(service),
        token: "".into(),
        origin: Origin::API,
        sidecar_of: None,
        checks: std::collections::BTreeMap::new(),
    }
}

#[test]
fn local_l1_registers_with_the_service_s_token_and_deregisters_others() {
    let rig = Rig::new();
    let stale = ProxyId::new("old", "n1");
    let options = RegisterOptions {
        kind: ServiceKind::ConnectProxy,
        registration: Registration::Definition(Shared::new(sidecar("old", 1))),
        source: ProxySource::LOCAL,
        token: "x".into(),
        overwrite: true,
    };
    rig.manager.register(&stale, options).unwrap();
    rig.state.add(web("T"), &Origin::API).unwrap();
    let mut options = LocalSyncOptions::new(node_record("n1"));
    options.default_token = "user".into();
    let sync = start_with(&rig, options);
    let synced = flush(&rig, &sync);
    assert!(synced.problems.is_empty(), "{:?}", synced.problems);
    let registered = rig.manager.registered(&ProxySource::LOCAL);
    assert_eq!(registered.into_iter().collect::<Vec<_>>(), [proxy_id()]);
    let snapshot = rig.manager.wait_ready(&proxy_id(), soon()).unwrap();
    assert_eq!(snapshot.header.port, 21_000);
    eventually("the token", || rig.leaves.tokens() == ["T"]);

    rig.state.add(web(""), &Origin::API).unwrap();
    flush(&rig, &sync);
    eventually("the default token", || rig.leaves.tokens() == ["user"]);
}

#[test]
fn local_l2_l3_only_proxies_are_registered() {
    let rig = Rig::new();
    let sync = start(&rig);
    rig.state.add(web(""), &Origin::API).unwrap();
    flush(&rig, &sync);
    assert_eq!(rig.manager.registered(&ProxySource::LOCAL).len(), 1);
    assert_eq!(instances(&rig.store), ["web", "web-sidecar-proxy"]);
    let plain = json!({"Name": "web-sidecar-proxy", "Port": 1});
    rig.state.add(definition(plain), &Origin::API).unwrap();
    flush(&rig, &sync);
    assert!(rig.manager.registered(&ProxySource::LOCAL).is_empty());
}

#[test]
fn local_l4_fc_013_one_bad_record_does_not_stop_the_others() {
    let rig = Rig::new();
    let mut tables = LocalTables::default();
    for n in 0..10 {
        let mut service = sidecar(&format!("s{n}"), 1000 + n);
        if n == 2 {
            service.proxy.upstreams = vec![Upstream {
                destination_type: "nonsense".to_owned(),
                destination_name: "db".to_owned(),
                ..Upstream::default()
            }];
        }
        tables.load(entry(service));
    }
    rig.state.load(tables);
    let sync = start(&rig);
    let synced = flush(&rig, &sync);
    assert_eq!(synced.problems.len(), 1);
    assert!(
        synced.problems[0].contains("nonsense"),
        "{:?}",
        synced.problems
    );
    assert_eq!(rig.manager.registered(&ProxySource::LOCAL).len(), 9);
    assert_eq!(instances(&rig.store).len(), 10);
    // Repaired, it is registered with the rest.
    let repaired = json!({"Kind": "connect-proxy", "ID": "s2", "Name": "web-sidecar-proxy", "Port": 1002,
        "Proxy": {"DestinationServiceName": "web"}});
    rig.state.add(definition(repaired), &Origin::API).unwrap();
    assert!(flush(&rig, &sync).problems.is_empty());
    assert_eq!(rig.manager.registered(&ProxySource::LOCAL).len(), 10);
}

#[test]
fn fc_013_a_record_that_the_store_refuses_concerns_only_itself() {
    let store = empty_store();
    let mut sync = StoreSync::new(store.clone(), node_record("n1")).unwrap();
    let mut tables = LocalTables::default();
    for n in 0..4 {
        let mut service = sidecar(&format!("s{n}"), 1000 + n);
        if n == 2 {
            service.service.clear();
        }
        tables.load(entry(service));
    }
    let outcome = sync.sync(&tables);
    assert_eq!(instances(&store), ["s0", "s1", "s3"]);
    assert_eq!(outcome.problems.len(), 1);
    assert!(
        outcome.problems[0].starts_with("n1/s2: "),
        "{:?}",
        outcome.problems
    );
    tables.load(entry(sidecar("s2", 1002)));
    assert!(sync.sync(&tables).problems.is_empty());
    assert_eq!(instances(&store), ["s0", "s1", "s2", "s3"]);
}

#[test]
fn local_l5_ended_proxies_come_back_with_the_resync() {
    let rig = Rig::new();
    rig.state.add(web("T"), &Origin::API).unwrap();
    let sync = start(&rig);
    let passes = flush(&rig, &sync).passes;
    rig.manager.wait_ready(&proxy_id(), soon()).unwrap();
    let mut watch = rig.manager.watch(&proxy_id());
    rig.leaves.revoke("T");
    eventually("the end", || {
        watch.try_next().err() == Some(WatchEnd::Ended)
    });
    eventually("the failed query is let go", || {
        rig.leaves.tokens().is_empty()
    });
    rig.leaves.allow("T");
    rig.clock.advance(Duration::from_secs(29));
    assert_eq!(sync.last().unwrap().passes, passes);
    rig.clock.advance(Duration::from_secs(1));
    rig.manager.wait_ready(&proxy_id(), soon()).unwrap();
    assert!(sync.last().unwrap().passes >= passes);
}

#[test]
fn local_l5_a_changed_default_token_is_picked_up() {
    let rig = Rig::new();
    rig.state.add(web(""), &Origin::API).unwrap();
    let sync = start(&rig);
    flush(&rig, &sync);
    eventually("no token", || rig.leaves.tokens() == [""]);
    sync.set_default_token("user");
    eventually("the default token", || rig.leaves.tokens() == ["user"]);
}

#[test]
fn local_l6_the_service_s_locality_wins_over_the_node_s() {
    let rig = Rig::new();
    let of = |name: &str| definition(json!({"Name": name, "Connect": {"SidecarService": {}}}));
    rig.state.add(of("web"), &Origin::API).unwrap();
    let own = Locality {
        region: "own".to_owned(),
        ..Locality::default()
    };
    let other = ServiceDefinition {
        locality: Some(own.clone()),
        ..of("other")
    };
    rig.state.add(other, &Origin::API).unwrap();
    let mut options = LocalSyncOptions::new(node_record("n1"));
    let of_node = Locality {
        region: "node".to_owned(),
        ..Locality::default()
    };
    options.node.locality = Some(of_node.clone());
    let sync = start_with(&rig, options);
    flush(&rig, &sync);
    let locality = |id: &str| {
        let snapshot = rig.manager.wait_ready(&ProxyId::new(id, "n1"), soon());
        snapshot.unwrap().header.locality.clone()
    };
    assert_eq!(locality("web-sidecar-proxy"), Some(of_node));
    assert_eq!(locality("other-sidecar-proxy"), Some(own));
    assert!(
        rig.state
            .service("web-sidecar-proxy")
            .unwrap()
            .service
            .locality
            .is_none()
    );
    assert!(
        instance(&rig.store, "web-sidecar-proxy")
            .unwrap()
            .locality
            .is_none()
    );
}

#[test]
fn local_l7_changes_do_not_put_off_the_resync() {
    let rig = Rig::new();
    rig.state.add(web(""), &Origin::API).unwrap();
    let sync = start(&rig);
    flush(&rig, &sync);
    for _ in 0..29 {
        rig.clock.advance(Duration::from_secs(1));
        rig.state.add(web(""), &Origin::API).unwrap();
        flush(&rig, &sync);
    }
    // Someone has removed the record from the catalog, which signals nothing to the local state.
    rig.apply(vec![Op::DeregisterService {
        node: "n1".into(),
        id: "web".into(),
    }]);
    assert!(instance(&rig.store, "web").is_none());
    rig.clock.advance(Duration::from_secs(1));
    eventually("the resync", || instance(&rig.store, "web").is_some());
}

#[test]
fn local_l8_the_local_source_ignores_the_token() {
    let rig = Rig::new();
    rig.state.add(web("T"), &Origin::API).unwrap();
    let sync = start(&rig);
    flush(&rig, &sync);
    let source = LocalConfigSource::new(rig.manager.clone(), rig.state.clone());
    let id = proxy_id();
    let mut watches: Vec<_> = ["", "a", "b"]
        .iter()
        .map(|token| source.watch(&id.clone().with_token(*token)).unwrap())
        .collect();
    let snapshots: Vec<_> = watches
        .iter_mut()
        .map(|w| w.next(soon()).unwrap().unwrap())
        .collect();
    assert!(snapshots.iter().all(|s| Shared::ptr_eq(s, &snapshots[0])));
    assert!(
        watches
            .iter()
            .all(|w| w.session_terminated().is_none() && w.source_terminated().is_none())
    );
    // Of an unknown one nothing arrives, and that is no error.
    let mut unknown = source.watch(&ProxyId::new("nobody", "n1")).unwrap();
    assert!(unknown.try_next().unwrap().is_none());
}

#[test]
fn fc_040_a_local_proxy_is_found_whatever_the_case() {
    let rig = Rig::new();
    let service = json!({"Name": "Service_A", "Connect": {"SidecarService": {}}});
    rig.state.add(definition(service), &Origin::API).unwrap();
    let sync = start(&rig);
    flush(&rig, &sync);
    let source = LocalConfigSource::new(rig.manager.clone(), rig.state.clone());
    let id = ProxyId::new("service_a-sidecar-proxy", "N1");
    let snapshot = source.watch(&id).unwrap().next(soon()).unwrap().unwrap();
    assert_eq!(
        snapshot.header.proxy_id,
        ProxyId::new("Service_A-sidecar-proxy", "n1")
    );
}

#[test]
fn local_l9_registrations_outlive_the_loop() {
    let rig = Rig::new();
    rig.state.add(web(""), &Origin::API).unwrap();
    let sync = start(&rig);
    flush(&rig, &sync);
    sync.stop();
    sync.stop();
    assert!(sync.flush(soon()).is_ok(), "what is there was taken in");
    rig.state.remove("web").unwrap();
    assert!(sync.flush(soon()).is_err());
    assert_eq!(rig.manager.registered(&ProxySource::LOCAL).len(), 1);
    assert_eq!(instances(&rig.store).len(), 2);
}

#[test]
fn fc_042_registering_the_same_again_costs_nothing() {
    let rig = Rig::new();
    rig.state.add(web(""), &Origin::API).unwrap();
    let sync = start(&rig);
    flush(&rig, &sync);
    rig.manager.wait_ready(&proxy_id(), soon()).unwrap();
    eventually("counted", || rig.manager.counts().published == 1);
    let (before, index) = (rig.manager.counts(), rig.store.snapshot().index());
    let mut watch = rig.manager.watch(&proxy_id());
    assert!(watch.try_next().unwrap().is_some());
    for _ in 0..1_000 {
        rig.state.add(web(""), &Origin::API).unwrap();
    }
    flush(&rig, &sync);
    let after = rig.manager.counts();
    assert_eq!(after.published, before.published);
    assert_eq!(after.states, before.states);
    assert_eq!(after.queries, before.queries);
    assert_eq!(rig.store.snapshot().index(), index);
    assert!(watch.try_next().unwrap().is_none());
}

#[test]
fn fc_043_a_replaced_token_is_used_and_the_old_one_let_go() {
    let rig = Rig::new();
    rig.state.add(web("T1"), &Origin::API).unwrap();
    let sync = start(&rig);
    flush(&rig, &sync);
    rig.manager.wait_ready(&proxy_id(), soon()).unwrap();
    let watch = rig.manager.watch(&proxy_id());
    rig.state.add(web("T2"), &Origin::API).unwrap();
    flush(&rig, &sync);
    eventually("the new token", || rig.leaves.tokens() == ["T2"]);
    rig.leaves.revoke("T1");
    assert!(watch.current().is_some());
    rig.manager.wait_ready(&proxy_id(), soon()).unwrap();
}

#[test]
fn fc_044_no_gap_during_updates() {
    let rig = Rig::new();
    let with = |n: i32| {
        let sidecar = json!({"Proxy": {"Config": {"local_connect_timeout_ms": n}}});
        definition(json!({"Name": "web", "Connect": {"SidecarService": sidecar}}))
    };
    rig.state.add(with(0), &Origin::API).unwrap();
    let sync = start(&rig);
    flush(&rig, &sync);
    rig.manager.wait_ready(&proxy_id(), soon()).unwrap();
    let mut watch = rig.manager.watch(&proxy_id());
    for n in 1..=200 {
        rig.state.add(with(n), &Origin::API).unwrap();
        assert!(watch.current().is_some());
        assert!(rig.state.exists("web-sidecar-proxy"));
        assert!(instance(&rig.store, "web-sidecar-proxy").is_some());
        watch.try_next().unwrap();
    }
    flush(&rig, &sync);
    eventually("the last one", || {
        let header = &watch.current().unwrap().header;
        header.proxy.config.get("local_connect_timeout_ms") == Some(&json!(200))
    });
}

#[test]
fn sync_writes_services_checks_and_their_states_under_the_own_node() {
    let rig = Rig::new();
    let service = json!({"Name": "web", "Check": {"CheckID": "c", "TTL": "10s"}});
    rig.state.add(definition(service), &Origin::API).unwrap();
    let disk = check(json!({"CheckID": "disk", "TTL": "10s", "Status": "passing"}));
    rig.state.add_check(disk, &Origin::API).unwrap();
    let sync = start(&rig);
    flush(&rig, &sync);
    let state_of = |id: &str| {
        let snapshot = rig.store.snapshot();
        let rows = snapshot.reader().node_checks("n1");
        rows.iter()
            .find(|row| row.check_id == id)
            .map(|row| row.status)
    };
    assert_eq!(state_of("c"), Some(CheckStatus::Critical));
    assert_eq!(state_of("disk"), Some(CheckStatus::Passing));
    rig.state
        .set_check("c", CheckStatus::Passing, "fine")
        .unwrap();
    flush(&rig, &sync);
    assert_eq!(state_of("c"), Some(CheckStatus::Passing));
    rig.state.remove_check("disk").unwrap();
    rig.state.remove_check("c").unwrap();
    flush(&rig, &sync);
    assert_eq!((state_of("c"), state_of("disk")), (None, None));
    assert_eq!(instances(&rig.store), ["web"]);
}

#[test]
fn sync_leaves_foreign_services_alone() {
    let rig = Rig::new();
    rig.catalog("n1", sidecar("foreign", 1));
    rig.state.add(web(""), &Origin::API).unwrap();
    let sync = start(&rig);
    flush(&rig, &sync);
    rig.state.remove("web").unwrap();
    flush(&rig, &sync);
    assert_eq!(instances(&rig.store), ["foreign"]);
    assert!(rig.manager.registered(&ProxySource::LOCAL).is_empty());
}

#[test]
fn sync_follows_the_catalog_s_tags_where_they_may_be_changed_there() {
    let rig = Rig::new();
    let service = |over| json!({"Name": "web", "Tags": ["a"], "EnableTagOverride": over});
    rig.state
        .add(definition(service(true)), &Origin::API)
        .unwrap();
    let sync = start(&rig);
    flush(&rig, &sync);
    let mut changed = instance(&rig.store, "web").unwrap();
    changed.tags = vec!["b".to_owned()];
    rig.catalog("n1", changed);
    rig.state
        .add(definition(service(true)), &Origin::API)
        .unwrap();
    flush(&rig, &sync);
    assert_eq!(instance(&rig.store, "web").unwrap().tags, ["b"]);
    rig.state
        .add(definition(service(false)), &Origin::API)
        .unwrap();
    flush(&rig, &sync);
    assert_eq!(instance(&rig.store, "web").unwrap().tags, ["a"]);
}

/// A local state after a restart on the same store.
fn restarted(store: &Store, node: &str) -> Arc<LocalState> {
    let state = LocalState::new(node, SidecarPortRange::default());
    state.restore(&store.snapshot()).unwrap();
    Arc::new(state)
}

#[test]
fn fc_041_a_sidecar_goes_with_its_service_after_a_restart() {
    let mut rig = Rig::new();
    rig.catalog("n1", sidecar("foreign", 1));
    let service = json!({"Name": "web", "Token": "T", "Check": {"CheckID": "c", "TTL": "10s"},
        "Connect": {"SidecarService": {}}});
    rig.state.add(definition(service), &Origin::API).unwrap();
    let own = json!({"Kind": "connect-proxy", "Name": "web-proxy-2", "Port": 2000,
        "Proxy": {"DestinationServiceName": "web"}});
    rig.state
        .replace_origin(&Origin::file("f"), vec![definition(own)])
        .unwrap();
    let alone = check(json!({"CheckID": "own", "ServiceID": "web", "TTL": "5s"}));
    rig.state.add_check(alone, &Origin::API).unwrap();
    rig.state
        .add_check(check(json!({"CheckID": "disk", "TTL": "5s"})), &Origin::API)
        .unwrap();
    rig.state
        .set_check("c", CheckStatus::Passing, "fine")
        .unwrap();
    let sync = start(&rig);
    flush(&rig, &sync);
    drop(sync);

    let index = rig.store.snapshot().index();
    let again = restarted(&rig.store, "n1");
    assert!(again.tables() == rig.state.tables());
    rig.state = again;
    let sync = start(&rig);
    flush(&rig, &sync);
    assert_eq!(rig.store.snapshot().index(), index);
    rig.state.remove("web").unwrap();
    flush(&rig, &sync);
    assert_eq!(instances(&rig.store), ["foreign", "web-proxy-2"]);
    let registered = rig.manager.registered(&ProxySource::LOCAL);
    assert_eq!(
        registered.into_iter().collect::<Vec<_>>(),
        [ProxyId::new("web-proxy-2", "n1")]
    );
}

#[test]
fn sync_removes_after_a_restart_what_went_meanwhile() {
    let mut rig = Rig::new();
    rig.state
        .replace_origin(&Origin::file("f"), vec![web("")])
        .unwrap();
    let sync = start(&rig);
    flush(&rig, &sync);
    drop(sync);
    rig.state = restarted(&rig.store, "n1");
    rig.state
        .replace_origin(&Origin::file("f"), Vec::new())
        .unwrap();
    let sync = start(&rig);
    flush(&rig, &sync);
    assert!(instances(&rig.store).is_empty());
}

#[test]
fn sync_moves_the_services_of_an_agent_whose_node_has_a_new_name() {
    let mut rig = Rig::new();
    rig.state.add(web(""), &Origin::API).unwrap();
    let sync = start(&rig);
    flush(&rig, &sync);
    drop(sync);
    rig.state = restarted(&rig.store, "n2");
    let sync = start(&rig);
    flush(&rig, &sync);
    assert!(instances(&rig.store).is_empty());
    let snapshot = rig.store.snapshot();
    assert_eq!(snapshot.reader().node_services("n2").len(), 2);
    let key = InstanceKey::new("n2", "web-sidecar-proxy");
    assert!(
        snapshot
            .reader()
            .instance(&key.node, "web-sidecar-proxy")
            .is_some()
    );
}
