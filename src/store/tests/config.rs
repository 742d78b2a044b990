//! Config entries, their indexes, and intentions (store.md 1.6, 4.12, 6.4).

use super::*;
use crate::model::{
    CaConfig, CaRoot, CaRoots, Failover, FailoverTarget, Intention, Redirect, RouteDestination,
    ServiceResolver, ServiceRoute, ServiceRouter, ServiceSplit, ServiceSplitter,
};
use crate::store::{Key, NameSet, OpaqueState};
use IntentionAction::{Allow, Deny};

fn shown(intentions: &[Intention]) -> Vec<String> {
    intentions
        .iter()
        .map(|i| {
            let peer = if i.source_peer.is_empty() {
                String::new()
            } else {
                format!("{}/", i.source_peer)
            };
            format!(
                "{peer}{}>{} {} {}",
                i.source_name, i.destination_name, i.precedence, i.action
            )
        })
        .collect()
}

fn to(destination: &'static str) -> impl Fn(&Reader<'_>) -> Vec<String> {
    move |reader| shown(&reader.intentions_to(destination))
}

#[test]
fn store_46_exact_sources_decide_before_the_wildcard() {
    let store = new_store();
    apply(
        &store,
        set(intentions("api", &[("", "*", Deny), ("", "web", Allow)])),
    );
    let snapshot = store.snapshot();
    assert_eq!(
        to("api")(&snapshot.reader()),
        ["web>api 9 allow", "*>api 8 deny"]
    );
}

#[test]
fn store_47_and_48_wildcard_destinations_come_after_exact_ones() {
    let store = new_store();
    apply(&store, set(intentions("api", &[("", "web", Allow)])));
    apply(
        &store,
        set(intentions("*", &[("", "web", Deny), ("", "*", Deny)])),
    );
    let snapshot = store.snapshot();
    let reader = snapshot.reader();
    let general = ["web>* 6 deny", "*>* 5 deny"];
    assert_eq!(
        to("api")(&reader),
        ["web>api 9 allow", general[0], general[1]]
    );
    assert_eq!(to("db")(&reader), general);
    assert_eq!(to("*")(&reader), general);
}

#[test]
fn store_49_and_50_ties_break_by_peer_then_name() {
    let store = new_store();
    apply(
        &store,
        set(intentions(
            "api",
            &[
                ("", "zed", Allow),
                ("p", "web", Allow),
                ("", "web", Deny),
                ("", "abe", Allow),
            ],
        )),
    );
    let snapshot = store.snapshot();
    assert_eq!(
        to("api")(&snapshot.reader()),
        [
            "abe>api 9 allow",
            "web>api 9 deny",
            "zed>api 9 allow",
            "p/web>api 9 allow"
        ]
    );
}

#[test]
fn store_51_and_52_intentions_wake_those_that_they_concern() {
    let store = new_store();
    apply(&store, set(intentions("*", &[("", "*", Deny)])));
    let mut db = Kept::new(&store, to("db"));
    db.woken();
    assert!(
        db.apply(set(intentions("api", &[("", "web", Allow)])))
            .is_none()
    );
    assert_eq!(db.woken(), 0);
    let mut api = Kept::new(&store, to("api"));
    assert!(
        db.apply(delete(EntryKind::ServiceIntentions, "*"))
            .is_some()
    );
    assert_eq!(api.delivered().unwrap(), ["web>api 9 allow"]);
}

#[test]
fn store_58_no_entries_is_an_empty_answer() {
    let snapshot = new_store().snapshot();
    let reader = snapshot.reader();
    assert!(reader.intentions_to("api").is_empty());
    assert_eq!(reader.finish().keys().len(), 2);
}

#[test]
fn sources_of_intentions_are_indexed() {
    let store = new_store();
    let destinations = |reader: &Reader<'_>| {
        reader
            .intention_destinations("web")
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
    };
    let mut kept = Kept::new(&store, destinations);
    assert_eq!(
        kept.apply(set(intentions("api", &[("", "web", Allow)])))
            .unwrap(),
        ["api"]
    );
    assert_eq!(
        kept.apply(set(intentions("*", &[("", "Web", Allow)])))
            .unwrap(),
        ["*", "api"]
    );
    kept.woken();
    assert!(
        kept.apply(set(intentions(
            "db",
            &[("p", "web", Allow), ("", "x", Deny)]
        )))
        .is_none()
    );
    assert!(
        kept.apply(set(intentions("api", &[("", "web", Deny)])))
            .is_none()
    );
    assert_eq!(kept.woken(), 0);
    assert_eq!(
        kept.apply(delete(EntryKind::ServiceIntentions, "api"))
            .unwrap(),
        ["*"]
    );
}

#[test]
fn links_lead_from_a_service_to_the_entries_that_name_it() {
    let store = new_store();
    let to_b = || RouteDestination {
        service: "B".into(),
        ..RouteDestination::default()
    };
    let router = ServiceRouter {
        name: "a".into(),
        routes: vec![
            ServiceRoute {
                destination: Some(to_b()),
                ..ServiceRoute::default()
            },
            ServiceRoute::default(),
        ],
        ..ServiceRouter::default()
    };
    let split = |service: &str| ServiceSplit {
        weight: 50.0,
        service: service.into(),
        ..ServiceSplit::default()
    };
    let splitter = ServiceSplitter {
        name: "a".into(),
        splits: vec![split(""), split("b")],
        ..ServiceSplitter::default()
    };
    let target = |service: &str, peer: &str| FailoverTarget {
        service: service.into(),
        peer: peer.into(),
        ..FailoverTarget::default()
    };
    let failover = Failover {
        service: "c".into(),
        targets: vec![target("b", "p"), target("d", "")],
        ..Failover::default()
    };
    let resolver = ServiceResolver {
        name: "r".into(),
        redirect: Some(Redirect {
            service: "b".into(),
            ..Redirect::default()
        }),
        failover: [("*".to_owned(), failover)].into(),
        ..ServiceResolver::default()
    };
    apply(&store, set(ConfigEntry::ServiceRouter(router)));
    apply(&store, set(ConfigEntry::ServiceSplitter(splitter)));
    apply(&store, set(ConfigEntry::ServiceResolver(resolver)));
    let linked = |service: &str| -> Vec<String> {
        store
            .snapshot()
            .reader()
            .linked_from(service)
            .iter()
            .map(ToString::to_string)
            .collect()
    };
    assert_eq!(
        linked("b"),
        [
            "service-router/a",
            "service-splitter/a",
            "service-resolver/r"
        ]
    );
    assert_eq!(linked("a"), [""; 0]);
    assert_eq!(
        (linked("c"), linked("d")),
        (
            vec!["service-resolver/r".to_owned()],
            vec!["service-resolver/r".to_owned()]
        )
    );
    let feed = store.changes();
    apply(&store, delete(EntryKind::ServiceRouter, "a"));
    assert!(take(&feed).keys.contains(&Key::Links(NameKey::new("b"))));
    assert_eq!(linked("b").len(), 2);
}

#[test]
fn lists_of_a_kind_and_destinations() {
    let store = new_store();
    apply(&store, set(defaults("b", "http")));
    apply(&store, set(intentions("a", &[("", "web", Allow)])));
    let mut list = Kept::new(&store, |reader| {
        reader
            .config_list(EntryKind::ServiceDefaults)
            .iter()
            .map(|r| r.name().to_owned())
            .collect::<Vec<_>>()
    });
    assert_eq!(list.answer, ["b"]);
    list.woken();
    assert!(
        list.apply(delete(EntryKind::ServiceIntentions, "a"))
            .is_none()
    );
    assert_eq!(list.woken(), 0);
    let mut external = defaults("ext", "tcp");
    if let ConfigEntry::ServiceDefaults(entry) = &mut external {
        entry.destination = Some(crate::model::Destination::default());
    }
    assert_eq!(list.apply(set(external)).unwrap(), ["b", "ext"]);
    let snapshot = store.snapshot();
    assert_eq!(snapshot.reader().names(NameSet::Destination), ["ext"]);
}

fn root(id: &str, active: bool) -> CaRoot {
    CaRoot {
        id: id.into(),
        name: id.into(),
        serial_number: 1,
        signing_key_id: id.into(),
        external_trust_domain: "x".into(),
        not_before: std::time::SystemTime::UNIX_EPOCH,
        not_after: std::time::SystemTime::UNIX_EPOCH,
        root_cert: String::new(),
        intermediate_certs: vec![],
        active,
        rotated_out_at: None,
        private_key_type: "ec".into(),
        private_key_bits: 256,
        create_index: 0,
        modify_index: 0,
    }
}

#[test]
fn store_129_roots_need_exactly_one_active_and_get_row_indexes() {
    let store = new_store();
    let write = |roots: Vec<CaRoot>, cas| {
        let active = roots
            .iter()
            .find(|r| r.active)
            .map(|r| r.id.clone())
            .unwrap_or_default();
        Op::SetCaRoots {
            roots: Box::new(CaRoots {
                active_root_id: active,
                trust_domain: "x.consul".into(),
                roots,
            }),
            cas,
        }
    };
    for active in [false, true] {
        let text = refused(
            &store,
            write(vec![root("1", active), root("2", active)], None),
        );
        assert!(
            text.starts_with("Ops[0].CaRoots: a set of CA roots needs exactly one"),
            "{text}"
        );
    }
    let mut kept = Kept::new(&store, |reader| {
        reader.ca_roots().map(|row| (*row.value).clone())
    });
    assert!(kept.apply(write(vec![root("1", true)], Some(0))).is_some());
    assert!(!apply(&store, write(vec![root("1", true)], None)).changed);
    assert_eq!(
        apply(&store, write(vec![root("1", true)], Some(0))).stale,
        [0]
    );
    let two = kept
        .apply(write(vec![root("1", false), root("2", true)], Some(1)))
        .unwrap()
        .unwrap();
    let indexes: Vec<(u64, u64)> = two
        .roots
        .iter()
        .map(|r| (r.create_index, r.modify_index))
        .collect();
    assert_eq!(indexes, [(1, 2), (2, 2)]);
}

#[test]
fn ca_configuration_and_opaque_states_are_rows_too() {
    let store = new_store();
    let config = CaConfig {
        csr_max_per_second: 1.0,
        ..CaConfig::default()
    };
    let ops = vec![
        Op::SetCaConfig {
            config: Box::new(config.clone()),
            cas: Some(0),
        },
        Op::SetState {
            name: "ca".into(),
            state: Some(OpaqueState(b"secret".to_vec())),
        },
    ];
    assert!(store.apply(ops.clone().into()).unwrap().changed);
    assert_eq!(store.apply(ops.into()).unwrap().stale, [0]);
    let snapshot = store.snapshot();
    let reader = snapshot.reader();
    assert_eq!(*reader.ca_config().unwrap().value, config);
    let state = reader.state("ca").unwrap();
    assert_eq!(state.0, b"secret");
    assert_eq!(format!("{:?}", state.value), "OpaqueState(6 bytes)");
    assert!(
        apply(
            &store,
            Op::SetState {
                name: "ca".into(),
                state: None
            }
        )
        .changed
    );
    assert!(store.snapshot().reader().state("ca").is_none());
}
