//! Rules that hold for entries of all kinds, and how entries are read.

use serde_json::{Value as Json, json};

use super::{bad, good, read};
use crate::model::config_entry::{ConfigEntry, EntryKind, is_http_like};

#[test]
fn r4_other_tenancies_and_enterprise_features_are_refused() {
    for json in [
        json!({"Kind": "service-splitter", "Name": "web", "Splits": [{"Weight": 100, "Namespace": "x"}]}),
        json!({"Kind": "service-router", "Name": "web", "Routes": [{"Destination": {"Partition": "x"}}]}),
        json!({"Kind": "service-resolver", "Name": "web", "Redirect": {"Service": "a", "Namespace": "x"}}),
        json!({"Kind": "service-resolver", "Name": "web", "Redirect": {"SamenessGroup": "g"}}),
        json!({"Kind": "service-resolver", "Name": "web", "Failover": {"*": {"SamenessGroup": "g"}}}),
        json!({"Kind": "service-resolver", "Name": "web", "Failover": {"*": {"Namespace": "x"}}}),
        json!({"Kind": "service-resolver", "Name": "web", "Failover": {"*": {"Targets": [{"Partition": "x"}]}}}),
        json!({"Kind": "service-resolver", "Name": "web", "Failover": {"*": {"Service": "a", "Policy": {"Mode": "sequential"}}}}),
        json!({"Kind": "service-resolver", "Name": "web", "PrioritizeByLocality": {"Mode": "failover"}}),
        json!({"Kind": "service-defaults", "Name": "web", "Namespace": "x"}),
        json!({"Kind": "service-defaults", "Name": "web", "UpstreamConfig": {"Overrides": [{"Name": "a", "Namespace": "x"}]}}),
        json!({"Kind": "proxy-defaults", "Partition": "x"}),
        json!({"Kind": "mesh", "Partition": "x"}),
        json!({"Kind": "service-intentions", "Name": "web", "Sources": [{"Name": "a", "Action": "allow", "SamenessGroup": "g"}]}),
        json!({"Kind": "service-intentions", "Name": "web", "Sources": [{"Name": "a", "Action": "allow", "Namespace": "x"}]}),
    ] {
        bad(json, &["enterprise only"]);
    }
    let named = good(
        json!({"Kind": "service-defaults", "Name": "web", "Namespace": "default", "Partition": "Default"}),
    );
    assert_eq!(
        named,
        good(json!({"Kind": "service-defaults", "Name": "web"}))
    );
    bad(
        json!({"Kind": "sameness-group", "Name": "g"}),
        &["Kind: \"sameness-group\" is not one of"],
    );
}

#[test]
fn e12_names_in_the_mesh() {
    for name in ["web", "redis_cache", "A-1", &"x".repeat(63)] {
        good(json!({"Kind": "service-defaults", "Name": name}));
    }
    for name in [
        "a.b.c",
        "team/app",
        "my app",
        "caf\u{e9}",
        "\u{670d}\u{52a1}",
        &"x".repeat(64),
        &"x".repeat(255),
    ] {
        bad(
            json!({"Kind": "service-defaults", "Name": name}),
            &["Name: the service name"],
        );
        bad(
            json!({"Kind": "service-resolver", "Name": "web", "Redirect": {"Service": name}}),
            &["Redirect.Service: "],
        );
        bad(
            json!({"Kind": "service-splitter", "Name": "web", "Splits": [{"Weight": 100, "Service": name}]}),
            &["Splits[0].Service: "],
        );
        bad(
            json!({"Kind": "service-router", "Name": "web", "Routes": [{"Destination": {"Service": name}}]}),
            &["Routes[0].Destination.Service: "],
        );
        bad(
            json!({"Kind": "service-intentions", "Name": "web", "Sources": [{"Name": name, "Action": "allow"}]}),
            &["Sources[0].Name: "],
        );
    }
    for name in ["", " "] {
        bad(
            json!({"Kind": "service-defaults", "Name": name}),
            &["must not be empty"],
        );
    }
}

#[test]
fn fc_047_key_spelling() {
    let snake = good(
        json!({"kind": "service-defaults", "name": "web", "protocol": "http", "mesh_gateway": {"mode": "local"}}),
    );
    let camel = good(
        json!({"Kind": "service-defaults", "Name": "web", "Protocol": "http", "MeshGateway": {"Mode": "local"}}),
    );
    assert_eq!(snake, camel);
    bad(
        json!({"Kind": "bogus", "Name": "x"}),
        &["Kind: \"bogus\" is not one of"],
    );
    bad(json!({"Name": "x"}), &["needs a Kind"]);
    bad(
        json!({"Kind": "", "Name": "x"}),
        &["Kind: \"\" is not one of"],
    );
    // The CamelCase spelling wins, and keys of free-form maps are kept as written.
    let both = good(
        json!({"Kind": "proxy-defaults", "mesh_gateway": {"mode": "none"}, "MeshGateway": {"Mode": "local"},
        "Config": {"local_connect_timeout_ms": 5, "LocalConnectTimeoutMs": 6, "nested": {"a_b": null}}, "Meta": {"my_key": "1", "MyKey": "2"}}),
    );
    assert_eq!(
        serde_json::to_value(&both).unwrap(),
        json!({"Kind": "proxy-defaults", "Name": "global", "MeshGateway": {"Mode": "local"},
            "Config": {"local_connect_timeout_ms": 5, "LocalConnectTimeoutMs": 6, "nested": {"a_b": null}}, "Meta": {"my_key": "1", "MyKey": "2"}})
    );
    // Two spellings of which neither is the CamelCase one.
    bad(
        json!({"Kind": "service-defaults", "Name": "web", "protocol": "http", "PROTOCOL": "grpc"}),
        &["given twice"],
    );
}

#[test]
fn fc_048_unknown_keys() {
    bad(
        json!({"Kind": "service-defaults", "Name": "web", "Protocl": "http"}),
        &["Protocl: unknown key; did you mean Protocol?"],
    );
    bad(
        json!({"Kind": "service-defaults", "Name": "web", "MeshGateway": {"mdoe": "local"}}),
        &["MeshGateway.mdoe: unknown key"],
    );
}

#[test]
fn fc_049_all_problems_are_reported_at_once_with_their_places() {
    let text = "{\n \"Kind\": \"service-router\",\n \"Name\": \"a.b\",\n \"Routes\": [\n  {\"Match\": {\"HTTP\": {\"PathExact\": \"x\", \"Methods\": [\"GET\", \"get\"]}},\n   \"Destination\": {\"NumRetries\": \"many\", \"Sevice\": \"a\"}},\n  {\"Destination\": {\"PrefixRewrite\": \"/\"}}\n ]\n}";
    let document = crate::hcl::parse_json(text.as_bytes()).unwrap();
    let problems = ConfigEntry::read(&document).unwrap_err();
    let found: Vec<_> = problems
        .errors
        .iter()
        .map(|p| {
            format!(
                "{}:{}",
                p.pos.unwrap(),
                p.to_string().split(':').next().unwrap()
            )
        })
        .collect();
    assert_eq!(
        found,
        [
            "3:2:Name",
            "5:23:Routes[0].Match.HTTP.PathExact",
            "5:60:Routes[0].Match.HTTP.Methods[1]",
            "6:20:Routes[0].Destination.NumRetries",
            "6:42:Routes[0].Destination.Sevice",
            "7:20:Routes[1].Destination.PrefixRewrite",
        ]
    );
}

#[test]
fn what_may_follow_from_an_unreadable_value_is_not_reported() {
    let split = json!({"Kind": "service-splitter", "Name": "web", "Splits": [{"Weight": "half"}, {"Weight": 50, "Service": "a"}]});
    assert_eq!(
        read(&split).unwrap_err(),
        "Splits[0].Weight: must be a number, not a string"
    );
    let shifted = json!({"Kind": "service-resolver", "Name": "", "LoadBalancer": {"Policy": "maglev", "HashPolicies": [5, {"Field": "x"}]}});
    assert_eq!(
        read(&shifted).unwrap_err(),
        "LoadBalancer.HashPolicies[0]: must be an object, not a number\nName: the service name must not be empty"
    );
}

#[test]
fn kinds_and_protocols() {
    for kind in EntryKind::ALL {
        assert_eq!(EntryKind::from_text(kind.as_str()), Some(kind));
    }
    assert!(is_http_like("grpc") && !is_http_like("tcp"));
}

#[test]
fn meta_limits() {
    let meta = |m: Json| json!({"Kind": "mesh", "Meta": m});
    let many: serde_json::Map<_, _> = (0..65).map(|i| (format!("k{i}"), json!(""))).collect();
    bad(meta(Json::Object(many)), &["Meta: has 65 pairs"]);
    let mut long = serde_json::Map::new();
    long.insert("k".repeat(129), json!("v".repeat(513)));
    bad(
        meta(Json::Object(long)),
        &["the key has 129", "the value has 513"],
    );
    let mut most = serde_json::Map::new();
    most.insert("\u{e9}".repeat(128), json!("v".repeat(512)));
    good(meta(Json::Object(most)));
}
