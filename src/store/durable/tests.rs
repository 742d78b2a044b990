//! Rows through the file and back, and the file under bad disks, kills and strange hands.

mod backups;
mod faults;
mod files;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use proptest::prelude::*;

use super::*;
use crate::model::{
    CaConfig, CaRoot, CaRoots, CheckStatus, ConfigEntry, HealthCheck, Node, PrivateKey,
    ServiceDefaults, ServiceInstance,
};
use crate::store::tests::histories::a_history;
use crate::store::{
    AllowAll, MemoryBackend, Op, OpaqueState, Register, Store, StoreError, Transaction,
};

fn open(folder: &Path) -> Store {
    try_open(folder).unwrap()
}

fn try_open(folder: &Path) -> Result<Store, DurableError> {
    let backend = DurableBackend::open(folder)?;
    Ok(Store::new(Box::new(backend), Arc::new(AllowAll)).unwrap())
}

fn roots() -> CaRoots {
    let root = |id: &str, active: bool| CaRoot {
        id: id.into(),
        name: "root".into(),
        serial_number: u64::MAX,
        signing_key_id: "aa:bb".into(),
        external_trust_domain: "c1".into(),
        not_before: UNIX_EPOCH,
        not_after: UNIX_EPOCH + Duration::from_secs(100),
        root_cert: "PEM".into(),
        intermediate_certs: vec!["BRIDGE".into()],
        active,
        rotated_out_at: (!active).then(|| UNIX_EPOCH + Duration::new(7, 5)),
        private_key_type: "ec".into(),
        private_key_bits: 256,
        create_index: 0,
        modify_index: 0,
    };
    CaRoots {
        active_root_id: "b".into(),
        trust_domain: "c1.consul".into(),
        roots: vec![root("a", false), root("b", true)],
    }
}

/// One row in each table, with what their public forms leave out.
fn one_of_each() -> Vec<Op> {
    let node = Node {
        node: "n\u{0}1".into(),
        address: "10.0.0.1".into(),
        peer_name: "p/q".into(),
        meta: BTreeMap::from([("k".to_owned(), "\u{1F600}".to_owned())]),
        ..Node::default()
    };
    let mut service = ServiceInstance {
        service: "web".into(),
        port: 80,
        ..ServiceInstance::default()
    };
    // A number that careless reading would bring back as its neighbour.
    let odd = serde_json::json!({"odd": 0.1_f64 + 0.2, "tiny": 5e-324, "big": -9_007_199_254_740_993_i64});
    service.proxy.config = odd.as_object().unwrap().clone();
    let check = HealthCheck {
        check_id: "c".into(),
        service_id: "web".into(),
        status: CheckStatus::Warning,
        ..HealthCheck::default()
    };
    // Not normalized: its own field doesn't say its kind.
    let entry = ConfigEntry::ServiceDefaults(ServiceDefaults {
        name: "Web".into(),
        protocol: "http".into(),
        ..ServiceDefaults::default()
    });
    let config = CaConfig {
        private_key: Some(PrivateKey::from_pem("OWN KEY")),
        root_cert: Some("PEM".into()),
        csr_max_per_second: 0.1,
        ..CaConfig::default()
    };
    vec![
        Op::Register(Box::new(Register {
            node,
            service: Some(service),
            check: Some(check),
            ..Register::default()
        })),
        Op::SetConfig {
            entry: Box::new(entry),
            cas: None,
        },
        Op::SetCaRoots {
            roots: Box::new(roots()),
            cas: None,
        },
        Op::SetCaConfig {
            config: Box::new(config),
            cas: None,
        },
        Op::SetState {
            name: "files".into(),
            state: Some(OpaqueState(vec![0, 255, b'{'])),
        },
    ]
}

fn register(name: &str) -> Op {
    Op::Register(Box::new(Register {
        node: Node {
            node: "n1".into(),
            address: "10.0.0.1".into(),
            ..Node::default()
        },
        service: Some(ServiceInstance {
            service: name.into(),
            port: 80,
            ..ServiceInstance::default()
        }),
        ..Register::default()
    }))
}

fn apply(store: &Store, op: Op) -> Result<u64, StoreError> {
    store
        .apply(Transaction::of(op))
        .map(|applied| applied.index)
}

fn names(store: &Store) -> Vec<String> {
    let snapshot = store.snapshot();
    let names = snapshot.reader().service_names_with_tags();
    names
        .into_iter()
        .map(|(name, _)| name.to_string())
        .collect()
}

#[test]
fn r2_every_table_comes_back_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.apply(Transaction::from(one_of_each())).unwrap();
    apply(&store, register("gone")).unwrap();
    let before = store.image();
    assert_eq!(before.rows.len(), 9);
    drop(store);

    let store = open(folder.path());
    assert_eq!(store.image(), before);
    let gone = Op::DeregisterNode { node: "n1".into() };
    apply(&store, gone).unwrap();
    let state = Op::SetState {
        name: "files".into(),
        state: None,
    };
    let index = apply(&store, state).unwrap();
    let before = store.image();
    assert_eq!((before.rows.len(), before.index), (6, index));
    drop(store);
    assert_eq!(open(folder.path()).image(), before);
}

#[test]
fn an_image_takes_the_place_of_everything() {
    let folder = tempfile::tempdir().unwrap();
    let other = Store::new(Box::new(MemoryBackend), Arc::new(AllowAll)).unwrap();
    other.apply(Transaction::from(one_of_each())).unwrap();
    let store = open(folder.path());
    apply(&store, register("web")).unwrap();
    apply(&store, register("api")).unwrap();
    store.restore(&other.image()).unwrap();
    let before = store.image();
    assert_eq!((before.index, before.rows.len()), (3, 7));
    drop(store);
    assert_eq!(open(folder.path()).image(), before);
}

#[test]
fn a_record_that_would_not_read_back_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let config = CaConfig {
        csr_max_per_second: f64::NAN,
        ..CaConfig::default()
    };
    let broken = Op::SetCaConfig {
        config: Box::new(config),
        cas: None,
    };
    let error = apply(&store, broken).unwrap_err().to_string();
    assert!(
        error.contains("a record can't be kept: ca-config"),
        "{error}"
    );
    assert_eq!(apply(&store, register("web")).unwrap(), 1);
}

#[test]
fn an_observer_is_told_of_each_group() {
    let folder = tempfile::tempdir().unwrap();
    let told = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let tell = told.clone();
    let backend = DurableBackend::open(folder.path())
        .unwrap()
        .observed(Box::new(move |group| tell.lock().push(group.clone())));
    let store = Store::new(Box::new(backend), Arc::new(AllowAll)).unwrap();
    apply(&store, register("web")).unwrap();
    let told = told.lock();
    assert_eq!(told.len(), 1);
    assert!(told[0].kept && told[0].commits == 1 && !told[0].elapsed.is_zero());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// Reopened at any point of any history, a store holds what one in memory does.
    #[test]
    fn histories_come_back(history in a_history(), reopen in proptest::collection::vec(any::<bool>(), 40)) {
        let folder = tempfile::tempdir().unwrap();
        let memory = Store::new(Box::new(MemoryBackend), Arc::new(AllowAll)).unwrap();
        let mut durable = open(folder.path());
        for (ops, reopen) in history.into_iter().zip(reopen) {
            let one = memory.apply(Transaction::from(ops.clone()));
            let two = durable.apply(Transaction::from(ops));
            prop_assert_eq!(one.is_ok(), two.is_ok());
            if reopen {
                drop(durable);
                durable = open(folder.path());
            }
            prop_assert_eq!(durable.image(), memory.image());
        }
        drop(durable);
        prop_assert_eq!(open(folder.path()).image(), memory.image());
        let backup = folder.path().join("backup");
        write_backup(&memory.image(), &backup).unwrap();
        prop_assert_eq!(read_backup(&backup).unwrap(), memory.image());
    }
}
