//! Index, no-op writes and wake-ups (store.md 2.1 to 2.3, 6.1).

use super::*;
use crate::store::Key;

#[test]
fn store_01_an_equal_registration_changes_nothing() {
    let store = new_store();
    let op = register(
        "n1",
        Some(service("web", 80)),
        vec![
            check("c", "web", CheckStatus::Passing),
            check("serfHealth", "", CheckStatus::Passing),
        ],
    );
    let first = apply(&store, op.clone());
    assert_eq!((first.index, first.changed), (1, true));
    let feed = store.changes();
    let second = apply(&store, op);
    assert_eq!((second.index, second.changed), (1, false));
    assert!(feed.take().is_none());
    assert!(feed.woken().try_recv().is_err());
}

#[test]
fn store_02_output_of_a_check_changes_the_check_alone() {
    let store = new_store();
    apply(
        &store,
        register(
            "n1",
            Some(service("web", 80)),
            vec![check("c", "web", CheckStatus::Passing)],
        ),
    );
    let mut kept = Kept::new(&store, health("web"));
    let mut failed = check("c", "web", CheckStatus::Passing);
    failed.output = "slow".into();
    failed.node = "n1".into();
    assert!(kept.apply(Op::SetCheck(Box::new(failed))).is_some());
    assert_eq!(kept.index, 2);
    let snapshot = store.snapshot();
    let reader = snapshot.reader();
    let row = &reader.instances("web")[0];
    assert_eq!(row.service.modify_index, 1);
    assert_eq!(
        (row.checks[0].create_index, row.checks[0].modify_index),
        (1, 2)
    );
}

#[test]
fn store_03_a_node_check_wakes_every_service_on_the_node() {
    let store = new_store();
    for op in [reg("web", "n1"), reg("api", "n1"), reg("db", "n2")] {
        apply(&store, op);
    }
    let mut web = Kept::new(&store, health("web"));
    let mut api = Kept::new(&store, health("api"));
    let mut db = Kept::new(&store, health("db"));
    db.woken();
    let mut serf = check("serfHealth", "", CheckStatus::Critical);
    serf.node = "n1".into();
    assert!(web.apply(Op::SetCheck(Box::new(serf))).is_some());
    assert!(api.delivered().is_some());
    assert!(db.delivered().is_none());
    assert_eq!((db.woken(), db.index), (0, 3));
}

#[test]
fn store_04_a_node_address_shows_in_every_service_on_the_node() {
    let store = new_store();
    apply(&store, reg("web", "n1"));
    let mut kept = Kept::new(&store, health("web"));
    let mut moved = node("n1");
    moved.address = "10.9.9.9".into();
    let op = Op::Register(Box::new(Register {
        node: moved,
        ..Register::default()
    }));
    assert_eq!(kept.apply(op).unwrap(), ["n1(10.9.9.9):web"]);
    let snapshot = store.snapshot();
    let reader = snapshot.reader();
    assert_eq!(reader.instance("n1", "web").unwrap().modify_index, 1);
    assert_eq!(reader.node("n1").unwrap().modify_index, 2);
}

#[test]
fn store_06_an_absent_service_is_noticed_when_it_comes() {
    let store = new_store();
    let mut ghost = Kept::new(&store, health("ghost"));
    assert_eq!(ghost.index, 1);
    assert!(ghost.apply(reg("web", "n1")).is_none());
    assert_eq!((ghost.woken(), ghost.index), (1, 1));
    assert!(ghost.apply(reg("ghost", "n1")).is_some());
    assert_eq!(ghost.index, 2);
}

#[test]
fn store_07_and_fc_026_scale_to_zero_and_back() {
    let store = new_store();
    apply(&store, reg("web", "n1"));
    let mut kept = Kept::new(&store, health("web"));
    assert_eq!(
        kept.apply(deregister("n1", "web")).unwrap(),
        Vec::<String>::new()
    );
    assert_eq!(kept.index, 2);
    assert!(kept.apply(reg("api", "n1")).is_none());
    assert_eq!(kept.index, 2);
    assert!(kept.apply(reg("web", "n1")).is_some());
    assert_eq!(kept.index, 4);
    let snapshot = store.snapshot();
    // A new row, not the old one.
    assert_eq!(
        snapshot
            .reader()
            .instance("n1", "web")
            .unwrap()
            .create_index,
        4
    );
}

#[test]
fn store_08_other_extinctions_deliver_nothing() {
    let store = new_store();
    apply(&store, reg("web", "n1"));
    apply(&store, reg("api", "n1"));
    apply(&store, deregister("n1", "web"));
    let mut web = Kept::new(&store, health("web"));
    assert!(web.apply(deregister("n1", "api")).is_none());
    assert_eq!(web.index, 4);
}

#[test]
fn store_09_an_absent_entry_is_answered_and_its_coming_noticed() {
    let store = new_store();
    let mut kept = Kept::new(&store, |reader| {
        reader
            .config(EntryKind::ServiceDefaults, "web")
            .map(|row| row.value.clone())
    });
    assert_eq!((kept.index, kept.answer.is_none()), (1, true));
    assert!(kept.apply(set(defaults("Web", "http"))).unwrap().is_some());
    assert!(
        kept.apply(delete(EntryKind::ServiceDefaults, "WEB"))
            .unwrap()
            .is_none()
    );
}

#[test]
fn store_10_and_12_other_entries_and_equal_writes_wake_nobody() {
    let store = new_store();
    apply(&store, set(defaults("b", "http")));
    let mut b = Kept::new(&store, |reader| {
        reader
            .config(EntryKind::ServiceDefaults, "b")
            .map(|row| row.value.clone())
    });
    b.woken();
    assert!(b.apply(set(defaults("a", "http"))).is_none());
    assert!(!apply(&store, set(defaults("b", "http"))).changed);
    assert!(b.delivered().is_none());
    assert_eq!((b.woken(), b.index), (0, 1));
}

#[test]
fn store_11_compare_and_set() {
    let store = new_store();
    let write = |protocol: &str, cas| Op::SetConfig {
        entry: Box::new(defaults("a", protocol)),
        cas,
    };
    assert!(apply(&store, write("http", Some(0))).applied());
    for (cas, applied) in [(Some(0), false), (Some(7), false), (Some(1), true)] {
        let before = store.snapshot().index();
        let outcome = apply(&store, write("grpc", cas));
        assert_eq!(
            (outcome.applied(), outcome.changed),
            (applied, applied),
            "{cas:?}"
        );
        assert_eq!(store.snapshot().index(), before + u64::from(applied));
    }
    let key = EntryKey::new(EntryKind::ServiceDefaults, "a");
    let stale = Op::DeleteConfig {
        key: key.clone(),
        cas: Some(1),
    };
    // One that doesn't match keeps the whole transaction from being applied.
    let outcome = store.apply(vec![reg("web", "n1"), stale].into()).unwrap();
    assert_eq!((outcome.stale, outcome.index), (vec![1], 2));
    assert!(store.snapshot().reader().node("n1").is_none());
    assert!(apply(&store, Op::DeleteConfig { key, cas: Some(2) }).changed);
}

#[test]
fn store_17_check_for_unknown_node_or_instance_is_refused() {
    let store = new_store();
    let mut lost = check("c", "", CheckStatus::Passing);
    lost.node = "n1".into();
    assert_eq!(
        refused(&store, Op::SetCheck(Box::new(lost))),
        "Ops[0].Check: there is no node \"n1\"; register it first"
    );
    let ops = vec![
        reg("web", "n1"),
        register(
            "n1",
            None,
            vec![
                check("a", "x", CheckStatus::Passing),
                check("b", "web", CheckStatus::Passing),
                check("", "", CheckStatus::Passing),
            ],
        ),
    ];
    let error = store.apply(ops.into()).unwrap_err();
    assert_eq!(
        problems(&error),
        [
            "Ops[1].Register.Checks[0]: node \"n1\" has no service \"x\"; register it first",
            "Ops[1].Register.Checks[2]: a check needs an id; give it in CheckID",
        ]
    );
    // All or nothing.
    assert_eq!(store.snapshot().index(), 0);
    assert!(store.snapshot().reader().node("n1").is_none());
}

#[test]
fn store_18_a_check_without_status_is_critical() {
    let store = new_store();
    let stateless = HealthCheck {
        check_id: "c".into(),
        ..HealthCheck::default()
    };
    apply(
        &store,
        register("n1", Some(service("web", 80)), vec![stateless]),
    );
    let snapshot = store.snapshot();
    assert_eq!(
        snapshot.reader().instances("web")[0].checks[0].status,
        CheckStatus::Critical
    );
}

#[test]
fn store_45_a_node_renamed_begins_anew() {
    let store = new_store();
    let named = |name: &str, id: &str, service: Option<ServiceInstance>| {
        let mut node = node(name);
        node.id = id.into();
        Op::Register(Box::new(Register {
            node,
            service,
            ..Register::default()
        }))
    };
    apply(&store, named("old", "11", Some(service("web", 80))));
    let mut web = Kept::new(&store, health("web"));
    assert_eq!(
        web.apply(named("new", "11", None)).unwrap(),
        Vec::<String>::new()
    );
    assert!(store.snapshot().reader().node("old").is_none());
    assert!(
        web.apply(named("new", "11", Some(service("web", 80))))
            .is_some()
    );
}

#[test]
fn a_living_nodes_name_cannot_be_taken() {
    let store = new_store();
    let named = |id: &str, status| {
        let mut node = node("n1");
        node.id = id.into();
        let checks = vec![check("serfHealth", "", status)];
        Op::Register(Box::new(Register {
            node,
            checks,
            ..Register::default()
        }))
    };
    apply(&store, named("", CheckStatus::Passing));
    // A node without id may be given one.
    apply(&store, named("11", CheckStatus::Passing));
    let text = refused(&store, named("22", CheckStatus::Passing));
    assert!(
        text.starts_with("Ops[0].Register.Node: node \"n1\" exists with ID 11 and is alive"),
        "{text}"
    );
    apply(&store, named("11", CheckStatus::Critical));
    apply(&store, named("22", CheckStatus::Passing));
}

#[test]
fn skip_node_update_leaves_an_existing_node() {
    let store = new_store();
    let skipping = |address: &str| {
        let mut node = node("n1");
        node.address = address.into();
        Op::Register(Box::new(Register {
            node,
            skip_node_update: true,
            ..Register::default()
        }))
    };
    let text = refused(&store, skipping(""));
    assert!(
        text.starts_with("Ops[0].Register.Node: there is no node \"n1\""),
        "{text}"
    );
    apply(&store, skipping("1.1.1.1"));
    assert!(!apply(&store, skipping("2.2.2.2")).changed);
    assert!(!apply(&store, skipping("")).changed);
    assert_eq!(
        store.snapshot().reader().node("N1").unwrap().address,
        "1.1.1.1"
    );
}

#[test]
fn a_check_follows_its_instances_labels_and_can_move() {
    let store = new_store();
    apply(
        &store,
        register(
            "n1",
            Some(service("web", 80)),
            vec![check("c", "web", CheckStatus::Passing)],
        ),
    );
    apply(&store, reg("api", "n1"));
    let mut tagged = service("web", 80);
    tagged.tags = vec!["v2".into()];
    apply(&store, register("n1", Some(tagged), vec![]));
    let checks = |service: &str| -> Vec<(String, Vec<String>, u64)> {
        let snapshot = store.snapshot();
        let reader = snapshot.reader();
        let checks = reader.service_checks(service);
        checks
            .iter()
            .map(|c| {
                (
                    c.service_name.clone(),
                    c.service_tags.clone(),
                    c.modify_index,
                )
            })
            .collect()
    };
    assert_eq!(checks("web"), [("web".into(), vec!["v2".to_owned()], 3)]);
    let mut web = Kept::new(&store, health("web"));
    let mut moved = check("c", "api", CheckStatus::Passing);
    moved.node = "n1".into();
    assert!(web.apply(Op::SetCheck(Box::new(moved))).is_some());
    assert_eq!((checks("web").len(), checks("api").len()), (0, 1));
}

#[test]
fn names_are_looked_up_without_regard_to_case_and_kept_as_written() {
    let store = new_store();
    apply(&store, reg("Web", "Node1"));
    let snapshot = store.snapshot();
    let reader = snapshot.reader();
    assert_eq!(reader.instances("wEB")[0].service.service, "Web");
    assert_eq!(reader.instance("node1", "WEB").unwrap().id, "Web");
    assert_eq!(reader.service_names(), ["Web"]);
    // Where spellings differ the answer doesn't depend on who came first.
    apply(&store, reg("WEB", "n2"));
    let snapshot = store.snapshot();
    assert_eq!(snapshot.reader().service_names(), ["WEB"]);
}

#[test]
fn a_refused_write_has_no_index_and_wakes_nobody() {
    // store_141
    struct Refuse;
    impl WriteCheck for Refuse {
        fn check(
            &self,
            before: &StoreSnapshot,
            after: &StoreSnapshot,
            entries: &[EntryKey],
        ) -> Result<(), Vec<String>> {
            let key = EntryKey::new(EntryKind::ServiceDefaults, "bad");
            assert_eq!(before.index() + 1, after.index());
            if entries.contains(&key) && after.reader().config(key.kind, "bad").is_some() {
                return Err(vec!["bad is bad".into()]);
            }
            Ok(())
        }
    }
    let store = store_with(MemoryBackend, Refuse);
    let feed = store.changes();
    assert_eq!(refused(&store, set(defaults("bad", "http"))), "bad is bad");
    assert_eq!(store.snapshot().index(), 0);
    assert!(feed.take().is_none());
    assert!(apply(&store, set(defaults("good", "http"))).changed);
}

#[test]
fn a_feed_folds_commits_and_carries_the_state_that_they_led_to() {
    let store = new_store();
    let feed = store.changes();
    apply(&store, reg("web", "n1"));
    apply(&store, reg("api", "n1"));
    assert_eq!(feed.woken().len(), 1);
    let changes = take(&feed);
    assert_eq!((changes.snapshot.index(), changes.commits), (2, 2));
    for service in ["web", "api"] {
        assert!(changes.keys.contains(&Key::Service(service.into())));
    }
    assert!(changes.keys.is_sorted());
    assert!(feed.take().is_none());
    drop(feed);
    apply(&store, reg("db", "n1"));
}

#[test]
fn keys_of_deleted_things_are_forgotten() {
    let store = new_store();
    apply(&store, reg("stay", "n0"));
    let keys = || store.snapshot().tables.key_indexes.size();
    let before = keys();
    for i in 0..50 {
        let (web, api) = (format!("web{i}"), format!("node{i}"));
        apply(
            &store,
            register(
                &api,
                Some(proxy(&web, "stay")),
                vec![check("c", &web, CheckStatus::Passing)],
            ),
        );
        apply(
            &store,
            set(intentions(&web, &[("", &api, IntentionAction::Allow)])),
        );
        apply(&store, delete(EntryKind::ServiceIntentions, &web));
        apply(
            &store,
            Op::DeregisterNode {
                node: (&api).into(),
            },
        );
    }
    // Only keys of which there are few stay: lists, kinds and sets.
    assert!(keys() <= before + 8, "{before} -> {}", keys());
    let tables = store.snapshot().tables;
    assert_eq!(tables.names.size(), 2);
    assert_eq!(
        (
            tables.checks.size(),
            tables.check_owners.size(),
            tables.checks_by_state.size()
        ),
        (0, 0, 0)
    );
    assert_eq!(
        (
            tables.by_target.size(),
            tables.links.size(),
            tables.sources.size()
        ),
        (0, 0, 0)
    );
}

#[test]
fn transactions_come_in_the_models_form() {
    let text = r#"{"Ops": [
        {"Register": {"Node": "n1", "Address": "10.0.0.1", "Service": {"Service": "web", "Port": 80},
                      "Check": {"Name": "c", "ServiceID": "web"}}},
        {"Config": {"Kind": "service-defaults", "Name": "web", "Protocol": "HTTP"}}
    ]}"#;
    let read = |text: &str| -> Transaction {
        let document = crate::hcl::parse_json(text.as_bytes()).unwrap();
        let (read, _) = crate::model::Transaction::read(&document).unwrap();
        read.try_into().unwrap()
    };
    let store = new_store();
    assert!(store.apply(read(text)).unwrap().changed);
    // store_12: equal once normalised.
    assert!(
        !store
            .apply(read(&text.replace("HTTP", "http")))
            .unwrap()
            .changed
    );
    let lost = text.replace("\"ServiceID\": \"web\"", "\"ServiceID\": \"x\"");
    let error = store.apply(read(&lost)).unwrap_err();
    assert_eq!(
        problems(&error),
        ["Ops[0].Register.Check: node \"n1\" has no service \"x\"; register it first"]
    );
    let gone = r#"{"Ops": [
        {"Deregister": {"Node": "n1", "CheckID": "c"}},
        {"Deregister": {"Node": "n1", "ServiceID": "web"}},
        {"Deregister": {"Node": "n1"}},
        {"DeleteConfig": {"Kind": "service-defaults", "Name": "web"}}
    ]}"#;
    assert!(store.apply(read(gone)).unwrap().changed);
    assert_eq!(store.image().rows, []);
}
