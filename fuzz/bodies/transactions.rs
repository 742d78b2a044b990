//! Transactions on a store: JSON texts, one a line, or (if the input doesn't begin with `{`) choices of writes that touch
//! the same few records again and again.
//!
//! - A refused transaction changes nothing, and says why.
//! - An accepted one is read back: entries, instances and checks are as they were last written, what was removed is gone.
//! - The index goes up by one if something changed, and stays if nothing did. A write repeated changes nothing.
//! - After every accepted transaction every chain compiles.
//! - What is stored can be restored elsewhere.

use std::sync::{Arc, OnceLock};

use proxycfg::ca::Authority;
use proxycfg::clock::TestClock;
use proxycfg::hcl;
use proxycfg::model::{self, CaConfig, CaRoots, EntryKey};
use proxycfg::source::{ChainCheck, ChainQuery, Query, StoreViews};
use proxycfg::store::{Applied, MemoryBackend, Op, PeeredName, Store, StoreSnapshot, Transaction};
use serde_json::{Value as Json, json};

use super::choices::Choices;

/// Transactions of one input, so that long inputs don't take long.
const MOST: usize = 40;

/// Runs one input.
pub fn run(bytes: &[u8]) {
    let store = store();
    if bytes.first() == Some(&b'{') {
        for line in bytes.split(|byte| *byte == b'\n').take(MOST) {
            apply_text(&store, line);
        }
    } else {
        let mut choices = Choices::new(bytes);
        for _ in 0..MOST {
            if choices.done() {
                break;
            }
            let ops: Vec<Json> = (0..=choices.below(3)).map(|_| op(&mut choices)).collect();
            let text = serde_json::to_vec(&json!({ "Ops": ops })).unwrap();
            apply_text(&store, &text);
        }
    }
    check_restored(&store);
}

/// A store with trust roots, without which no chain has a trust domain.
fn store() -> Store {
    static ROOTS: OnceLock<CaRoots> = OnceLock::new();
    let roots = ROOTS.get_or_init(|| {
        let authority =
            Authority::bootstrap(Arc::new(TestClock::new()), "dc1", CaConfig::default());
        authority.unwrap().roots()
    });
    let store = Store::new(Box::new(MemoryBackend), Arc::new(ChainCheck)).unwrap();
    let roots = Box::new(roots.clone());
    let written = store.apply(Transaction::of(Op::SetCaRoots { roots, cas: None }));
    written.unwrap();
    store
}

fn apply_text(store: &Store, text: &[u8]) {
    let Ok(document) = hcl::parse_json(text) else {
        return;
    };
    match model::Transaction::read(&document) {
        Err(problems) => super::check_message(&problems.text(), text.len()),
        Ok((transaction, _)) => apply(store, &transaction.try_into().unwrap(), text.len()),
    }
}

fn apply(store: &Store, transaction: &Transaction, len: usize) {
    let before = store.image();
    match store.apply(transaction.clone()) {
        Err(problem) => {
            assert_eq!(store.image(), before, "a refused transaction");
            super::check_message(&problem.to_string(), len);
        }
        Ok(applied) => {
            assert!(applied.applied());
            let after = store.snapshot();
            assert_eq!(applied.index, after.index());
            assert_eq!(applied.index, before.index + u64::from(applied.changed));
            if !applied.changed {
                assert_eq!(store.image(), before, "nothing changed");
            }
            for (i, op) in transaction.ops.iter().enumerate() {
                check_read_back(&after, op, &transaction.ops[i + 1..]);
            }
            check_chains(&after);
            if let [_] = transaction.ops.as_slice() {
                let again = store.apply(transaction.clone());
                let again = again.unwrap_or_else(|e| panic!("refused when repeated: {e}"));
                let index = applied.index;
                let expected = Applied {
                    index,
                    changed: false,
                    stale: Vec::new(),
                };
                assert_eq!(again, expected, "repeated");
            }
        }
    }
}

/// A write's effect, unless a later one of the same transaction may have changed it.
fn check_read_back(after: &StoreSnapshot, op: &Op, later: &[Op]) {
    let reader = after.reader();
    let entry_key = |op: &Op| match op {
        Op::SetConfig { entry, .. } => Some(entry.key()),
        Op::DeleteConfig { key, .. } => Some(key.clone()),
        _ => None,
    };
    let entry = |key: &EntryKey| reader.config(key.kind, key.name.as_str());
    if let Some(key) = entry_key(op) {
        if later.iter().any(|op| entry_key(op).as_ref() == Some(&key)) {
            return;
        }
        match op {
            Op::SetConfig { entry: written, .. } => {
                let row = entry(&key).unwrap_or_else(|| panic!("{key} isn't there"));
                assert_eq!(*row.value, **written);
            }
            _ => assert!(entry(&key).is_none(), "{key} is still there"),
        }
        return;
    }
    if later.iter().any(|op| entry_key(op).is_none()) {
        return;
    }
    match op {
        Op::Register(register) => {
            let node = PeeredName::new(&register.node.peer_name, &register.node.node);
            let row = reader.node(&node).expect("the node is there");
            if !register.skip_node_update {
                assert_eq!(row.value.address, register.node.address);
                assert_eq!(row.value.meta, register.node.meta);
            }
            if let Some(service) = &register.service {
                let rows = reader.node_services(&node);
                let row = rows
                    .iter()
                    .find(|row| row.id.eq_ignore_ascii_case(&service.id));
                let row = row.unwrap_or_else(|| panic!("{} isn't there", service.id));
                assert_eq!(
                    (row.port, &row.tags, &row.meta),
                    (service.port, &service.tags, &service.meta)
                );
                assert_eq!(row.proxy, service.proxy);
            }
            for check in register.check.iter().chain(&register.checks) {
                let rows = reader.node_checks(&node);
                let services = reader.node_services(&node);
                let of_services = services.iter().flat_map(|row| {
                    reader.service_checks(PeeredName::new(&row.peer_name, &row.service))
                });
                let mut all = rows.into_iter().chain(of_services);
                let written = all.find(|row| {
                    row.check_id.eq_ignore_ascii_case(&check.check_id)
                        && row.node.eq_ignore_ascii_case(&register.node.node)
                });
                let written = written.unwrap_or_else(|| panic!("{} isn't there", check.check_id));
                assert_eq!(written.status, check.status);
            }
        }
        Op::DeregisterNode { node } => {
            assert!(reader.node(node).is_none());
            assert!(reader.node_services(node).is_empty());
            assert!(reader.node_checks(node).is_empty());
        }
        Op::DeregisterService { node, id } => {
            let rows = reader.node_services(node);
            assert!(
                !rows
                    .iter()
                    .any(|row| row.id.eq_ignore_ascii_case(id.as_str()))
            );
        }
        Op::DeregisterCheck { node, check_id } => {
            let rows = reader.node_checks(node);
            let left = rows
                .iter()
                .any(|row| row.check_id.eq_ignore_ascii_case(check_id.as_str()));
            assert!(!left);
        }
        _ => {}
    }
}

fn check_chains(after: &StoreSnapshot) {
    let views = StoreViews {
        datacenter: "dc1".into(),
    };
    let reader = after.reader();
    for service in SERVICES {
        let query = Query::Chain(ChainQuery {
            service: service.into(),
            datacenter: "dc1".into(),
            ..ChainQuery::default()
        });
        if let Err(problem) = views.answer(&query, &reader) {
            panic!("{service}: {problem}");
        }
    }
}

fn check_restored(from: &Store) {
    let image = from.image();
    let to = store();
    let index = to.restore(&image).unwrap();
    let restored = to.image();
    assert_eq!(restored.index, index);
    assert_eq!(restored.rows, image.rows);
    let reader = |store: &Store| {
        let snapshot = store.snapshot();
        let reader = snapshot.reader();
        let instances: Vec<String> = SERVICES
            .iter()
            .flat_map(|service| reader.instances(*service))
            .map(|row| format!("{row:?}"))
            .collect();
        (instances, reader.service_names(), reader.intentions())
    };
    assert_eq!(reader(&to), reader(from));
}

const NODES: [&str; 3] = ["n1", "n2", "N1"];
const SERVICES: [&str; 4] = ["a", "b", "c", "d"];
const STATES: [&str; 3] = ["passing", "warning", "critical"];
const PROTOCOLS: [&str; 5] = ["tcp", "http", "http2", "grpc", ""];

fn op(choices: &mut Choices<'_>) -> Json {
    let node = *choices.one_of(&NODES);
    let service = *choices.one_of(&SERVICES);
    match choices.below(12) {
        0..3 => json!({ "Register": registration(choices, node, service) }),
        3 => {
            let mut what = json!({ "Node": node });
            match choices.below(4) {
                0 => {}
                1 => what["CheckID"] = json!(format!("{service}-check")),
                _ => what["ServiceID"] = json!(service),
            }
            json!({ "Deregister": what })
        }
        4 => json!({"Check": {"Node": node, "CheckID": format!("{service}-check"), "Name": "c",
            "Status": choices.one_of(&STATES), "ServiceID": if choices.once_in(2) { service } else { "" }}}),
        5 => {
            let kinds = [
                "service-defaults",
                "service-resolver",
                "service-splitter",
                "service-router",
                "service-intentions",
                "proxy-defaults",
            ];
            let kind = *choices.one_of(&kinds);
            let name = if kind == "proxy-defaults" {
                "global"
            } else {
                service
            };
            json!({"DeleteConfig": {"Kind": kind, "Name": name}})
        }
        _ => json!({ "Config": entry(choices, service) }),
    }
}

fn registration(choices: &mut Choices<'_>, node: &str, service: &str) -> Json {
    let mut document = json!({"Node": node, "Address": format!("10.0.0.{}", choices.below(3))});
    if choices.once_in(8) {
        document["SkipNodeUpdate"] = json!(true);
    }
    if choices.once_in(8) {
        document["NodeMeta"] = json!({"zone": choices.one_of(&SERVICES)});
    }
    match choices.below(5) {
        0 => {}
        1 => {
            document["Service"] = json!({"Kind": "connect-proxy", "ID": service, "Service": format!("{service}-proxy"), "Port": 1 + choices.below(3),
                "Proxy": {"DestinationServiceName": choices.one_of(&SERVICES), "Upstreams": [
                    {"DestinationName": choices.one_of(&SERVICES), "LocalBindPort": 9000 + choices.below(3)}]}});
        }
        _ => {
            document["Service"] = json!({"ID": service, "Service": choices.one_of(&SERVICES), "Port": choices.below(3),
                "Tags": [choices.one_of(&STATES)], "Meta": {"version": choices.one_of(&SERVICES)}});
        }
    }
    if choices.once_in(3) {
        let of = if choices.once_in(2) { service } else { "" };
        document["Check"] = json!({"CheckID": format!("{service}-check"), "Name": "c", "Status": choices.one_of(&STATES), "ServiceID": of});
    }
    document
}

fn entry(choices: &mut Choices<'_>, service: &str) -> Json {
    let other = *choices.one_of(&SERVICES);
    match choices.below(10) {
        0 | 1 => {
            json!({"Kind": "service-defaults", "Name": service, "Protocol": choices.one_of(&PROTOCOLS)})
        }
        2 => json!({"Kind": "service-resolver", "Name": service, "Redirect": {"Service": other}}),
        3 => {
            json!({"Kind": "service-resolver", "Name": service, "DefaultSubset": if choices.once_in(2) { "v1" } else { "" },
            "Subsets": {"v1": {"Filter": "Service.Meta.version == a"}, "v2": {"OnlyPassing": true}}})
        }
        4 => {
            json!({"Kind": "service-resolver", "Name": service, "ConnectTimeout": format!("{}s", 1 + choices.below(9)),
            "Failover": {"*": {"Targets": [{"Service": other}]}}})
        }
        5 => {
            let part = choices.below(101);
            let subset = if choices.once_in(3) { "v1" } else { "" };
            json!({"Kind": "service-splitter", "Name": service, "Splits": [
                {"Weight": part, "Service": other, "ServiceSubset": subset}, {"Weight": 100 - part}]})
        }
        6 => json!({"Kind": "service-router", "Name": service, "Routes": [
            {"Match": {"HTTP": {"PathPrefix": "/a"}}, "Destination": {"Service": other, "ServiceSubset": if choices.once_in(3) { "v2" } else { "" }}}]}),
        7 => {
            let source = if choices.once_in(4) { "*" } else { other };
            let mut sources = json!([{"Name": source, "Action": if choices.once_in(2) { "deny" } else { "allow" }}]);
            if choices.once_in(2) {
                sources = json!([{"Name": source, "Permissions": [{"Action": "allow", "HTTP": {"PathPrefix": "/"}}]}]);
            }
            json!({"Kind": "service-intentions", "Name": if choices.once_in(4) { "*" } else { service }, "Sources": sources})
        }
        8 => {
            json!({"Kind": "proxy-defaults", "Name": "global", "Config": {"protocol": choices.one_of(&PROTOCOLS)}})
        }
        _ => json!({"Kind": "mesh", "AllowEnablingPermissiveMutualTLS": choices.once_in(2)}),
    }
}
