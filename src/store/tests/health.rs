//! Which instances a health query returns (store.md 4.10, 4.15, 6.2).

use super::*;
use crate::store::{NameSet, PeeredName};

#[test]
fn store_20_connect_shows_only_the_proxy() {
    let store = new_store();
    apply(&store, reg("web", "n1"));
    apply(
        &store,
        register("n1", Some(proxy("web-sidecar-proxy", "web")), vec![]),
    );
    let snapshot = store.snapshot();
    let reader = snapshot.reader();
    assert_eq!(connect("web")(&reader), ["n1(10.0.0.1):web-sidecar-proxy"]);
    assert_eq!(health("web")(&reader), ["n1(10.0.0.1):web"]);
}

#[test]
fn store_21_connect_shows_native_instances_too() {
    let store = new_store();
    let mut native = service("web", 80);
    native.connect.native = true;
    apply(&store, register("n1", Some(native), vec![]));
    apply(
        &store,
        register("n1", Some(proxy("web-proxy", "web")), vec![]),
    );
    let snapshot = store.snapshot();
    assert_eq!(
        connect("web")(&snapshot.reader()),
        ["n1(10.0.0.1):web", "n1(10.0.0.1):web-proxy"]
    );
}

#[test]
fn store_22_a_proxy_under_a_new_name_is_noticed() {
    let store = new_store();
    apply(&store, register("n1", Some(proxy("a", "web")), vec![]));
    let mut kept = Kept::new(&store, connect("web"));
    assert_eq!(
        kept.apply(register("n2", Some(proxy("b", "web")), vec![]))
            .unwrap()
            .len(),
        2
    );
    // And one that goes over to another service.
    let answer = kept
        .apply(register("n2", Some(proxy("b", "api")), vec![]))
        .unwrap();
    assert_eq!(answer, ["n1(10.0.0.1):a"]);
    // A check of the proxy shows too.
    let mut failing = check("c", "a", CheckStatus::Critical);
    failing.node = "n1".into();
    assert!(kept.apply(Op::SetCheck(Box::new(failing))).is_some());
}

#[test]
fn store_26_critical_instances_stay() {
    let store = new_store();
    let checks = vec![
        check("z", "", CheckStatus::Passing),
        check("a", "web", CheckStatus::Critical),
    ];
    apply(&store, register("n1", Some(service("web", 80)), checks));
    let snapshot = store.snapshot();
    // The node's checks come first.
    assert_eq!(
        health("web")(&snapshot.reader()),
        ["n1(10.0.0.1):web z=passing a=critical"]
    );
}

#[test]
fn store_33_weights_unset_or_invalid_are_one() {
    let store = new_store();
    for (given, wanted) in [
        ((0, 0), (1, 1)),
        ((0, 5), (1, 1)),
        ((3, 0), (3, 0)),
        ((70_000, 1), (1, 1)),
    ] {
        let mut weighted = service("web", 80);
        (weighted.weights.passing, weighted.weights.warning) = given;
        apply(&store, register("n1", Some(weighted), vec![]));
        let snapshot = store.snapshot();
        let stored = snapshot
            .reader()
            .instance("n1", "web")
            .unwrap()
            .weights
            .clone();
        assert_eq!((stored.passing, stored.warning), wanted);
    }
}

#[test]
fn store_34_peers_do_not_mix() {
    let store = new_store();
    let imported = |peer: &str, check_peer: &str| {
        let mut node = node("n1");
        node.peer_name = peer.into();
        let mut check = check("c", "db", CheckStatus::Passing);
        check.peer_name = check_peer.into();
        Op::Register(Box::new(Register {
            node,
            service: Some(service("db", 1)),
            checks: vec![check],
            ..Register::default()
        }))
    };
    apply(&store, imported("p", ""));
    let mut local = Kept::new(&store, health("db"));
    assert!(local.answer.is_empty());
    assert!(local.apply(imported("", "")).is_some());
    apply(&store, imported("P", "p"));
    let snapshot = store.snapshot();
    let reader = snapshot.reader();
    assert_eq!(reader.instances("db").len(), 1);
    let of_peer = reader.instances(PeeredName::new("p", "db"));
    assert_eq!(
        (of_peer.len(), of_peer[0].service.peer_name.as_str()),
        (1, "p")
    );
    assert_eq!(of_peer[0].checks.len(), 1);
    assert_eq!(reader.instances_of_kind("p", ServiceKind::Typical).len(), 1);
    // Lists are of the local catalog.
    assert_eq!(
        (reader.nodes().len(), reader.checks_in_state(None).len()),
        (1, 1)
    );
    let text = refused(&store, imported("p", "q"));
    assert!(
        text.contains("Register.Checks[0]: PeerName \"q\" differs from the node's"),
        "{text}"
    );
}

#[test]
fn instances_are_sorted_by_node_and_id() {
    let store = new_store();
    for (node, id) in [("n2", "a"), ("n10", "b"), ("n1", "z"), ("N1", "C")] {
        let mut instance = service("web", 80);
        instance.id = id.into();
        apply(&store, register(node, Some(instance), vec![]));
    }
    let snapshot = store.snapshot();
    let ids: Vec<String> = snapshot
        .reader()
        .instances("web")
        .iter()
        .map(|r| r.service.id.clone())
        .collect();
    assert_eq!(ids, ["C", "z", "b", "a"]);
}

#[test]
fn a_service_list_wakes_on_names_only() {
    // store.md 4.15
    let store = new_store();
    apply(&store, reg("web", "n1"));
    let mut list = Kept::new(&store, |reader| reader.service_names());
    list.woken();
    assert!(list.apply(reg("web", "n2")).is_none());
    assert!(
        list.apply(register(
            "n1",
            None,
            vec![check("c", "web", CheckStatus::Critical)]
        ))
        .is_none()
    );
    assert!(list.apply(deregister("n1", "web")).is_none());
    assert_eq!(list.woken(), 0);
    assert!(
        list.apply(register("n1", Some(proxy("p", "web")), vec![]))
            .is_some()
    );
    assert!(list.apply(deregister("n2", "web")).is_some());
}

#[test]
fn sets_of_names_by_kind() {
    let store = new_store();
    apply(&store, reg("web", "n1"));
    apply(
        &store,
        register("n1", Some(proxy("web-proxy", "Web")), vec![]),
    );
    let mut tagged = service("api", 1);
    tagged.tags = vec!["b".into(), "a".into(), "b".into()];
    apply(&store, register("n1", Some(tagged.clone()), vec![]));
    tagged.tags = vec!["c".into()];
    apply(&store, register("n2", Some(tagged), vec![]));
    let snapshot = store.snapshot();
    let reader = snapshot.reader();
    assert_eq!(
        reader.names(NameSet::Kind(ServiceKind::Typical)),
        ["api", "web"]
    );
    assert_eq!(
        reader.names(NameSet::Kind(ServiceKind::ConnectProxy)),
        ["web-proxy"]
    );
    assert_eq!(reader.names(NameSet::ConnectEnabled), ["Web"]);
    let tags: Vec<String> = reader
        .service_names_with_tags()
        .into_iter()
        .map(|(name, tags)| format!("{name}:{}", tags.join(",")))
        .collect();
    assert_eq!(tags, ["api:a,b,c", "web:", "web-proxy:"]);
}

#[test]
fn a_row_is_its_record_with_row_indexes() {
    let store = new_store();
    apply(&store, reg("web", "n1"));
    let snapshot = store.snapshot();
    let json = serde_json::to_value(snapshot.reader().node("n1").unwrap()).unwrap();
    assert_eq!(
        (&json["Node"], &json["CreateIndex"], &json["ModifyIndex"]),
        (&"n1".into(), &1.into(), &1.into())
    );
}
