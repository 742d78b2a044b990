//! What is written into the catalog directly, and transactions.

use serde_json::{Value as Json, json};

use crate::hcl::Value;
use crate::model::{
    CatalogDeregistration, CatalogRegistration, CheckStatus, Op, Transaction, Weights,
};

fn registration(json: Json) -> Result<CatalogRegistration, String> {
    CatalogRegistration::read(&Value::from_json(&json))
        .map(|(registration, _)| registration)
        .map_err(|problems| problems.text())
}

#[test]
fn catalog_registration_is_checked_and_normalized() {
    let read = registration(json!({
        "ID": "40E4A748-2192-161A-0510-9BF59FE950B5", "Node": "n1", "Address": "10.0.0.1", "Datacenter": "dc1", "TaggedAddresses": null, "NodeMeta": {"a_b": "c"},
        "Service": {"Service": "web", "Port": 80, "Weights": {"Passing": 0, "Warning": 5}, "Connect": {"Native": false}, "Partition": "default"},
        "Check": {"Name": "serfHealth", "Status": "passing"},
        "Checks": [{"Node": "N1", "CheckID": "c1", "ServiceID": "web", "Status": ""}],
        "SkipNodeUpdate": false
    })).unwrap();
    let service = read.service.as_ref().unwrap();
    assert_eq!(service.id, "web");
    assert_eq!(service.weights, Weights::DEFAULT, "store test 33");
    let checks: Vec<_> = read
        .all_checks()
        .map(|c| (c.node.as_str(), c.check_id.as_str(), c.status))
        .collect();
    assert_eq!(
        checks,
        [
            ("n1", "serfHealth", CheckStatus::Passing),
            ("n1", "c1", CheckStatus::Critical)
        ]
    );
    let node = read.to_node();
    assert_eq!(node.id, "40e4a748-2192-161a-0510-9bf59fe950b5");
    assert_eq!(node.meta["a_b"], "c");
}

#[test]
fn catalog_registration_names_every_problem() {
    let problems = registration(json!({"ID": "x", "Service": {"Service": "a.b", "ID": "\u{7}"}, "Check": {"CheckID": "c", "Node": "other"}, "Checks": [{}, {"Name": "c"}], "Partition": "p"})).unwrap_err();
    for wanted in [
        "Node: the node name must not be empty",
        "Address: the node's address must not be empty",
        "ID: \"x\" is not a UUID",
        "Service.Service: ",
        "Service.ID: ",
        "Check.Node: ",
        "Checks[0].CheckID: ",
        "Checks[1].CheckID: the check \"c\" is given twice",
        "Partition: ",
    ] {
        assert!(problems.contains(wanted), "no {wanted:?} in {problems}");
    }
    registration(json!({"Node": "n1", "SkipNodeUpdate": true, "Service": {"Service": "web"}}))
        .unwrap();
}

#[test]
fn catalog_deregistration() {
    let read =
        |json: Json| CatalogDeregistration::read(&Value::from_json(&json)).map_err(|p| p.text());
    let (all, _) = read(
        json!({"Node": "n1", "Datacenter": "dc1", "ServiceID": "web", "Namespace": "default"}),
    )
    .unwrap();
    assert_eq!(
        (
            all.node.as_str(),
            all.service_id.as_str(),
            all.namespace.as_str()
        ),
        ("n1", "web", "")
    );
    assert!(read(json!({})).unwrap_err().contains("Node: "));
    assert!(
        read(json!({"Node": "n1", "Namespace": "x"}))
            .unwrap_err()
            .contains("enterprise only")
    );
}

#[test]
fn r3_transactions() {
    let read = |json: Json| {
        Transaction::read(&Value::from_json(&json))
            .map(|(t, _)| t)
            .map_err(|p| p.text())
    };
    let all = json!({"Ops": [
        {"Register": {"Node": "n1", "Address": "10.0.0.1", "Service": {"Service": "web", "Port": 80}}},
        {"Deregister": {"Node": "n1", "ServiceID": "web"}},
        {"Config": {"Kind": "service-defaults", "Name": "web", "Protocol": "HTTP"}},
        {"DeleteConfig": {"Kind": "Proxy-Defaults"}},
        {"Check": {"Node": "n1", "CheckID": "web", "ServiceID": "web", "Status": "passing"}}
    ]});
    let transaction = read(all).unwrap();
    let [
        Op::Register(_),
        Op::Deregister(_),
        Op::Config(entry),
        Op::DeleteConfig(deletion),
        Op::Check(_),
    ] = transaction.ops.as_slice()
    else {
        panic!("{transaction:?}");
    };
    assert_eq!(serde_json::to_value(entry).unwrap()["Protocol"], "http");
    assert_eq!(deletion.key().unwrap().to_string(), "proxy-defaults/global");
    let again = read(serde_json::to_value(&transaction).unwrap()).unwrap();
    assert_eq!(again, transaction);

    let problems = read(json!({"Ops": [
        {},
        {"Register": {"Node": "n1", "Address": "a"}, "Config": {"Kind": "mesh"}},
        {"Regster": {}},
        {"Register": {"Address": "a"}},
        {"Config": {"Kind": "service-splitter", "Name": "web"}},
        {"DeleteConfig": {"Kind": "bogus"}},
        {"DeleteConfig": {"Kind": "service-router"}},
        {"DeleteConfig": {"Kind": "mesh", "Name": "other"}},
        {"Check": {"CheckID": "x"}}
    ]}))
    .unwrap_err();
    for wanted in [
        "Ops[0]: a write needs exactly one key",
        "Ops[1]: a write needs exactly one key",
        "Ops[2].Regster: unknown key; did you mean Register?",
    ] {
        assert!(problems.contains(wanted), "no {wanted:?} in {problems}");
    }
    let problems = read(json!({"Ops": [
        {"Register": {"Address": "a"}},
        {"Config": {"Kind": "service-splitter", "Name": "web"}},
        {"DeleteConfig": {"Kind": "bogus"}},
        {"DeleteConfig": {"Kind": "service-router"}},
        {"DeleteConfig": {"Kind": "mesh", "Name": "other"}},
        {"Check": {"CheckID": "x"}}
    ]}))
    .unwrap_err();
    for wanted in [
        "Ops[0].Register.Node: ",
        "Ops[1].Config.Splits: ",
        "Ops[2].DeleteConfig.Kind: \"bogus\" is not one of",
        "Ops[3].DeleteConfig.Name: ",
        "Ops[4].DeleteConfig.Name: ",
        "Ops[5].Check.Node: ",
    ] {
        assert!(problems.contains(wanted), "no {wanted:?} in {problems}");
    }
}
