//! Random histories against a naive model, which keeps plain maps and computes every answer from all rows.
//!
//! After each transaction:
//! - every query answers what the model says, row indexes included;
//! - the store index rises by one if the model changed, else not at all;
//! - **soundness**: a query whose answer changed has a changed key among those that it had read;
//! - **precision**: for a single write, each changed key is one whose query's answer changed;
//! - the index of a query is that of the commit if a key of it changed, and never goes back.

mod model;
mod query;

use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::model::{ServiceSplit, ServiceSplitter};
use crate::store::PeeredName;
use model::{Model, Outcome};
use query::{Query, all_queries};

const PEERS: [&str; 2] = ["", "p"];
const NODES: [&str; 3] = ["n1", "N2", "n3"];
const NAMES: [&str; 3] = ["a", "b", "C"];
const IDS: [&str; 4] = ["a", "b", "C", "x"];
const STATES: [CheckStatus; 3] = [
    CheckStatus::Passing,
    CheckStatus::Warning,
    CheckStatus::Critical,
];
const KINDS: [EntryKind; 3] = [
    EntryKind::ServiceDefaults,
    EntryKind::ServiceSplitter,
    EntryKind::ServiceIntentions,
];

fn spelled(name: &'static str) -> impl Strategy<Value = String> {
    select(vec![name.to_owned(), name.to_uppercase()])
}

fn a_node() -> impl Strategy<Value = Node> {
    let ids = select(vec!["", "", "", "id-1", "id-2"]);
    (
        select(&PEERS[..]),
        select(&NODES[..]).prop_flat_map(spelled),
        0..2u8,
        ids,
    )
        .prop_map(|(peer, name, address, id)| Node {
            peer_name: peer.into(),
            address: format!("10.0.0.{address}"),
            id: id.into(),
            ..node(&name)
        })
}

fn an_instance() -> impl Strategy<Value = ServiceInstance> {
    let tags = proptest::collection::vec(select(vec!["t", "u"]), 0..3);
    (
        select(&NAMES[..]).prop_flat_map(spelled),
        select(vec!["", "x", "X"]),
        1..3u16,
        tags,
        0..4u8,
        select(&NAMES[..]),
    )
        .prop_map(|(name, id, port, tags, kind, target)| {
            let mut instance = if kind == 0 {
                proxy(&name, target)
            } else {
                service(&name, port)
            };
            instance.id = id.into();
            instance.connect.native = kind == 1;
            instance.tags = tags.into_iter().map(str::to_owned).collect();
            instance
        })
}

fn a_check() -> impl Strategy<Value = HealthCheck> {
    let of = select(vec!["", "a", "b", "x"]);
    (
        select(vec!["c", "D", "serfHealth"]),
        of,
        select(&STATES[..]),
        select(vec!["", "slow"]),
    )
        .prop_map(|(id, of, state, output)| HealthCheck {
            output: output.into(),
            ..check(id, of, state)
        })
}

fn an_entry() -> impl Strategy<Value = ConfigEntry> {
    let names = || select(&NAMES[..]);
    let protocols = (
        names().prop_flat_map(spelled),
        select(vec!["http", "tcp"]),
        any::<bool>(),
    )
        .prop_map(|(name, protocol, external)| {
            let mut entry = defaults(&name, protocol);
            if let ConfigEntry::ServiceDefaults(entry) = &mut entry {
                entry.destination = external.then(crate::model::Destination::default);
            }
            entry
        });
    let splits = (
        names(),
        proptest::collection::vec(names().prop_flat_map(spelled), 1..3),
    )
        .prop_map(|(name, to)| {
            let split = |service: String| ServiceSplit {
                weight: 50.0,
                service,
                ..ServiceSplit::default()
            };
            ConfigEntry::ServiceSplitter(ServiceSplitter {
                name: name.into(),
                splits: to.into_iter().map(split).collect(),
                ..ServiceSplitter::default()
            })
        });
    let actions = select(vec![IntentionAction::Allow, IntentionAction::Deny]);
    // Sources of an entry are distinct, as validation has it.
    let sources = proptest::collection::btree_map(
        (select(&PEERS[..]), select(vec!["a", "b", "C", "*"])),
        actions,
        1..3,
    );
    let access = (select(vec!["a", "b", "C", "*"]), sources).prop_map(|(to, from)| {
        let from: Vec<_> = from
            .into_iter()
            .map(|((peer, name), action)| (peer, name, action))
            .collect();
        intentions(to, &from)
    });
    prop_oneof![protocols, splits, access]
}

fn an_op() -> impl Strategy<Value = Op> {
    let place = || {
        (select(&PEERS[..]), select(&NODES[..]))
            .prop_map(|(peer, node)| PeeredName::new(peer, node))
    };
    let cas = || prop_oneof![4 => Just(None), 1 => (0..6u64).prop_map(Some)];
    let entry_key = (select(&KINDS[..]), select(vec!["a", "b", "c", "*"]))
        .prop_map(|(kind, name)| EntryKey::new(kind, name));
    let checks = proptest::collection::vec(a_check(), 0..2);
    prop_oneof![
        8 => (a_node(), proptest::option::of(an_instance()), checks, any::<bool>()).prop_map(|(node, service, checks, skip_node_update)| {
            Op::Register(Box::new(Register { node, service, checks, skip_node_update, ..Register::default() }))
        }),
        3 => (place(), a_check()).prop_map(|(on, mut check)| {
            check.node = on.name.to_string();
            check.peer_name = on.peer.to_string();
            Op::SetCheck(Box::new(check))
        }),
        1 => place().prop_map(|node| Op::DeregisterNode { node }),
        3 => (place(), select(&IDS[..])).prop_map(|(node, id)| Op::DeregisterService { node, id: id.into() }),
        1 => (place(), select(vec!["c", "d"])).prop_map(|(node, id)| Op::DeregisterCheck { node, check_id: id.into() }),
        5 => (an_entry(), cas()).prop_map(|(entry, cas)| Op::SetConfig { entry: Box::new(entry), cas }),
        2 => (entry_key, cas()).prop_map(|(key, cas)| Op::DeleteConfig { key, cas }),
    ]
}

pub(in crate::store) fn a_history() -> impl Strategy<Value = Vec<Vec<Op>>> {
    let transaction = prop_oneof![
        3 => an_op().prop_map(|op| vec![op]),
        1 => proptest::collection::vec(an_op(), 2..5),
    ];
    proptest::collection::vec(transaction, 1..40)
}

struct Asked {
    query: Query,
    answer: String,
    reads: Reads,
    index: u64,
}

fn ask(snapshot: &StoreSnapshot, query: Query) -> Asked {
    let reader = snapshot.reader();
    let answer = query.ask(&reader);
    let reads = reader.finish();
    let index = snapshot.index_of(&reads);
    Asked {
        query,
        answer,
        reads,
        index,
    }
}

/// Whether a transaction can take something away and bring it back, so that a key changes without its answer.
fn may_undo(ops: &[Op]) -> bool {
    match ops {
        [Op::Register(register)] => !register.node.id.is_empty(),
        [_] => false,
        _ => true,
    }
}

fn run_history(history: Vec<Vec<Op>>) -> Result<(), TestCaseError> {
    let store = new_store();
    let feed = store.changes();
    let mut model = Model::default();
    let mut asked: Vec<Asked> = all_queries()
        .into_iter()
        .map(|query| ask(&store.snapshot(), query))
        .collect();
    for ops in history {
        let may_undo = may_undo(&ops);
        let before = store.snapshot().index();
        let expected = model.apply(&ops);
        let outcome = store.apply(ops.into());
        match (&expected, &outcome) {
            (Outcome::Refused, Err(StoreError::Refused(_))) => {}
            (Outcome::Stale, Ok(applied)) => prop_assert!(!applied.applied() && !applied.changed),
            (Outcome::Applied { changed }, Ok(applied)) => {
                prop_assert!(applied.applied());
                prop_assert_eq!(applied.changed, *changed);
            }
            _ => prop_assert!(false, "{:?}", outcome),
        }
        let snapshot = store.snapshot();
        let changes = feed.take();
        let changed = matches!(expected, Outcome::Applied { changed: true });
        prop_assert_eq!(snapshot.index(), before + u64::from(changed));
        prop_assert_eq!(changes.is_some(), changed);
        let keys = changes.map(|c| c.keys).unwrap_or_default();

        for old in &mut asked {
            let new = ask(&snapshot, old.query.clone());
            prop_assert_eq!(&new.answer, &model.ask(&new.query), "{:?}", new.query);
            let concerned = old
                .reads
                .keys()
                .iter()
                .any(|key| keys.binary_search(key).is_ok());
            prop_assert!(
                concerned || new.answer == old.answer,
                "{:?} changed without its keys",
                new.query
            );
            prop_assert!(new.index >= old.index, "{:?} went back", new.query);
            prop_assert!(
                !concerned || new.index == snapshot.index(),
                "{:?} kept its index",
                new.query
            );
            if let Some(key) = new.query.key()
                && !may_undo
                && keys.binary_search(&key).is_ok()
            {
                prop_assert!(
                    new.answer != old.answer,
                    "{:?} is the same, but its key changed",
                    new.query
                );
            }
            *old = new;
        }
    }
    // A store loaded from the image answers the same, and its indexes hold as much.
    let again = new_store();
    again
        .restore(&store.image())
        .map_err(|e| TestCaseError::fail(e.to_string()))?;
    let (one, two) = (store.snapshot().tables, again.snapshot().tables);
    for old in &asked {
        prop_assert_eq!(
            &ask(&again.snapshot(), old.query.clone()).answer,
            &old.answer
        );
    }
    prop_assert_eq!(&one.names, &two.names);
    prop_assert_eq!(&one.tags, &two.tags);
    prop_assert_eq!(one.node_ids.size(), two.node_ids.size());
    prop_assert_eq!(one.check_owners.size(), two.check_owners.size());
    // No index is kept for a key that nothing is stored under.
    for key in one.key_indexes.keys() {
        prop_assert!(key.class().is_none() || one.is_used(key), "{key:?} is kept");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn histories_agree_with_a_naive_model(history in a_history()) {
        run_history(history)?;
    }
}
