//! The rules of config entries, and the vectors of discovery-chain.md 16.

use serde_json::{Value as Json, json};

use crate::hcl::Value;
use crate::model::config_entry::{ConfigEntry, EntryKind, is_http_like};
use crate::model::decode::{Decode, Place, Problems};
use crate::model::validate::Validate;

/// What the message of each rule in the vectors says.
const RULES: [(&str, &str); 40] = [
    ("name-required", "Name: the service name must not be empty"),
    ("name-wildcard", "is not a service"),
    ("path-not-absolute", "must begin with '/'"),
    (
        "multiple-path-matchers",
        "at most one of PathExact, PathPrefix and PathRegex",
    ),
    ("header-name-required", "a header match needs a Name"),
    ("header-matcher-count", "a header match needs exactly one"),
    (
        "query-name-required",
        "a query parameter match needs a Name",
    ),
    (
        "query-matcher-count",
        "a query parameter match needs exactly one",
    ),
    ("method-invalid", "is not an HTTP method"),
    ("method-duplicate", "is given twice"),
    (
        "prefix-rewrite-needs-path",
        "PrefixRewrite: needs PathExact or PathPrefix",
    ),
    (
        "retry-condition-invalid",
        "RetryOn[1]: \"whenever\" is not one of",
    ),
    ("no-splits", "needs at least one split"),
    ("split-duplicate", "leads to the same place as split 0"),
    ("weights-not-100", "not to 100"),
    (
        "subset-name-empty",
        "the name of a subset must not be empty",
    ),
    ("subset-name-invalid", "must be a DNS label"),
    ("subset-filter-invalid", "is not a filter"),
    ("default-subset-unknown", "is not one of the Subsets"),
    ("redirect-empty", "the redirect is empty"),
    (
        "redirect-and-failover",
        "Redirect and Failover exclude each other",
    ),
    ("redirect-exclusive", "Redirect: "),
    ("redirect-field-needs-service", "needs a Service"),
    ("redirect-subset-unknown", "has no subset"),
    (
        "cross-partition-and-datacenter",
        "can't cross both datacenter and partition",
    ),
    (
        "cross-datacenter-needs-default-partition",
        "only entries of the default partition may cross datacenters",
    ),
    ("failover-key-unknown", "is neither \"*\" nor a subset of"),
    ("failover-empty", "the failover is empty"),
    ("failover-policy-invalid", "Policy.Mode: "),
    ("failover-subset-unknown", "has no subset"),
    ("failover-exclusive", "exclude each other"),
    ("failover-target-exclusive", "exclude each other"),
    (
        "failover-datacenter-empty",
        "the datacenter name must not be empty",
    ),
    ("timeout-negative", "must not be negative"),
    ("duration-parse", "is not a duration"),
    ("lb-policy-invalid", "LoadBalancer.Policy: "),
    ("lb-config-mismatch", "only goes with the policy"),
    ("lb-hash-policies-mismatch", "only go with the policies"),
    ("lb-hash-policy-invalid", "HashPolicies[0]"),
    ("proxy-defaults-name", "has the one name \"global\""),
];

/// Names that may differ in tenancy only by rules of the enterprise edition, which decisions R4 refuse.
const OTHER_TENANCY: [&str; 1] = ["splitter-same-service-other-namespace"];

fn entry(json: &Json) -> Result<ConfigEntry, Problems> {
    let mut problems = Problems::default();
    let entry = ConfigEntry::decode(&Value::from_json(json), &Place::ROOT, &mut problems);
    entry.filter(|_| problems.is_ok()).ok_or(problems)
}

fn read(json: &Json) -> Result<ConfigEntry, String> {
    ConfigEntry::read(&Value::from_json(json))
        .map(|(entry, _)| entry)
        .map_err(|problems| problems.text())
}

/// Reads an entry that must be good.
#[track_caller]
fn good(json: Json) -> ConfigEntry {
    read(&json).unwrap_or_else(|problems| panic!("{json}: {problems}"))
}

/// Reads an entry that must be refused, with these texts among the problems.
#[track_caller]
fn bad(json: Json, texts: &[&str]) {
    match read(&json) {
        Ok(_) => panic!("{json} is accepted"),
        Err(problems) => {
            for text in texts {
                assert!(problems.contains(text), "{json}: no {text:?} in {problems}");
            }
        }
    }
}

#[test]
fn discovery_chain_16_validate_vectors() {
    let cases: Json =
        serde_json::from_str(include_str!("../../../tests/discovery-chain-cases.json")).unwrap();
    let cases = cases["validate"].as_array().unwrap();
    assert_eq!(cases.len(), 181);
    for case in cases {
        let name = case["name"].as_str().unwrap();
        let other_tenancy = case["feature"].is_string() || OTHER_TENANCY.contains(&name);
        let outcome = entry(&case["entry"]).and_then(|mut entry| {
            let mut problems = Problems::default();
            entry.validate(&Place::ROOT, &mut problems);
            if !other_tenancy {
                entry.enterprise_only(&Place::ROOT, &mut problems);
            }
            entry.normalize();
            // The rules hold for the normalized form alike.
            let mut again = Problems::default();
            entry.validate(&Place::ROOT, &mut again);
            assert_eq!(
                problems.errors.is_empty(),
                again.errors.is_empty(),
                "{name}"
            );
            if problems.is_ok() {
                Ok(entry)
            } else {
                Err(problems)
            }
        });
        match (outcome, &case["expectError"]) {
            (Ok(read), Json::Null) => {
                let normalized = &case["normalized"];
                if !normalized.is_null() {
                    assert_eq!(read, entry(normalized).unwrap(), "{name}");
                }
            }
            (Err(problems), Json::Object(wanted)) => {
                let text = problems.text();
                let code = wanted["code"].as_str().unwrap();
                let (_, rule) = RULES.iter().find(|(c, _)| *c == code).unwrap();
                assert!(text.contains(rule), "{name}: no {rule:?} in {text:?}");
                for piece in wanted
                    .get("mentions")
                    .iter()
                    .flat_map(|m| m.as_array().unwrap())
                {
                    let piece = piece.as_str().unwrap();
                    assert!(text.contains(piece), "{name}: no {piece:?} in {text:?}");
                }
            }
            (Ok(_), wanted) => panic!("{name} is accepted instead of {wanted}"),
            (Err(problems), _) => panic!("{name} is refused: {}", problems.text()),
        }
    }
}

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
fn fc_059_invalid_regular_expressions() {
    for pattern in ["*.foo.bar", "a(b", "(?=x)", "\\"] {
        bad(
            json!({"Kind": "service-router", "Name": "web", "Routes": [{"Match": {"HTTP": {"PathRegex": pattern}}, "Destination": {"Service": "a"}}]}),
            &[
                "Routes[0].Match.HTTP.PathRegex: ",
                "is not a valid regular expression",
            ],
        );
        bad(
            json!({"Kind": "service-router", "Name": "web", "Routes": [{"Match": {"HTTP": {"Header": [{"Name": "x", "Regex": pattern}]}}}]}),
            &["Header[0].Regex: "],
        );
        bad(
            json!({"Kind": "service-router", "Name": "web", "Routes": [{"Match": {"HTTP": {"QueryParam": [{"Name": "x", "Regex": pattern}]}}}]}),
            &["QueryParam[0].Regex: "],
        );
        bad(
            json!({"Kind": "service-intentions", "Name": "web", "Sources": [{"Name": "a", "Permissions": [{"Action": "allow", "HTTP": {"PathRegex": pattern}}]}]}),
            &["Sources[0].Permissions[0].HTTP.PathRegex: "],
        );
        bad(
            json!({"Kind": "service-intentions", "Name": "web", "Sources": [{"Name": "a", "Permissions": [{"Action": "allow", "HTTP": {"Header": [{"Name": "x", "Regex": pattern}]}}]}]}),
            &["HTTP.Header[0].Regex: "],
        );
        bad(
            json!({"Kind": "service-defaults", "Name": "web", "RateLimits": {"InstanceLevel": {"Routes": [{"PathRegex": pattern}]}}}),
            &["RateLimits.InstanceLevel.Routes[0].PathRegex: "],
        );
    }
}

#[test]
fn fc_061_splitter_sum() {
    let splits = |weights: &[f64]| {
        let splits: Vec<_> = weights
            .iter()
            .enumerate()
            .map(|(i, w)| json!({"Weight": w, "Service": format!("s{i}")}))
            .collect();
        json!({"Kind": "service-splitter", "Name": "web", "Splits": splits})
    };
    for weights in [
        &[50.0, 50.0][..],
        &[33.33, 33.33, 33.34],
        &[99.99, 0.01],
        &[99.999, 0.001],
        &[100.0],
        &[100.0, 0.0],
    ] {
        good(splits(weights));
    }
    for weights in [
        &[50.0][..],
        &[33.33, 33.33, 33.33],
        &[100.01],
        &[-10.0, 110.0],
        &[],
        &[1e300, -1e300],
    ] {
        bad(splits(weights), &["Splits"]);
    }
    bad(
        splits(&[-10.0, 110.0]),
        &["Splits[0].Weight: a weight must not be negative"],
    );
    bad(
        splits(&[33.33, 33.33, 33.33]),
        &["add up to 99.99, not to 100"],
    );
    bad(
        json!({"Kind": "service-splitter", "Name": "web", "Splits": [{"Weight": 50}, {"Weight": 50, "Service": "WEB"}]}),
        &["leads to the same place as split 0"],
    );
}

#[test]
fn store_135_splits() {
    let split = |weights: [f64; 2]| json!({"Kind": "service-splitter", "Name": "web", "Splits": [{"Weight": weights[0], "Service": "a"}, {"Weight": weights[1], "Service": "b"}]});
    good(split([33.33, 66.67]));
    bad(split([50.0, 49.0]), &["add up to 99.00"]);
}

#[test]
fn store_137_resolver() {
    bad(
        json!({"Kind": "service-resolver", "Name": "web", "Redirect": {"Service": "a"}, "Failover": {"*": {"Service": "b"}}}),
        &["exclude each other"],
    );
    bad(
        json!({"Kind": "service-resolver", "Name": "web", "DefaultSubset": "v1"}),
        &["DefaultSubset: "],
    );
    bad(
        json!({"Kind": "service-resolver", "Name": "web", "Subsets": {"v1": {"Filter": "a =="}}}),
        &["Subsets.v1.Filter: "],
    );
    good(
        json!({"Kind": "service-resolver", "Name": "web", "Subsets": {"v1": {"Filter": "Service.Meta.version == v1"}}, "DefaultSubset": "v1"}),
    );
}

#[test]
fn store_138_proxy_defaults_name() {
    bad(
        json!({"Kind": "proxy-defaults", "Name": "x"}),
        &["the one name \"global\""],
    );
    assert_eq!(
        good(json!({"Kind": "proxy-defaults", "Name": ""})).name(),
        "global"
    );
    assert_eq!(
        good(json!({"Kind": "proxy-defaults"})).key().to_string(),
        "proxy-defaults/global"
    );
}

#[test]
fn store_139_service_defaults() {
    let destination =
        |d: Json| json!({"Kind": "service-defaults", "Name": "ext", "Destination": d});
    bad(
        json!({"Kind": "service-defaults", "Name": "*"}),
        &["Name: \"*\""],
    );
    bad(
        json!({"Kind": "service-defaults", "Name": "web", "Destination": {"Addresses": ["1.2.3.4"], "Port": 443}, "UpstreamConfig": {}}),
        &["exclude each other"],
    );
    bad(
        destination(json!({"Addresses": ["*.a.com"], "Port": 443})),
        &["Addresses[0]: ", "'*'"],
    );
    bad(
        destination(json!({"Addresses": ["a.com"], "Port": 0})),
        &["Port: "],
    );
    bad(
        destination(json!({"Addresses": ["a.com", "A.com"], "Port": 1})),
        &["Addresses[1]: ", "given twice"],
    );
    bad(
        destination(json!({"Addresses": [], "Port": 1})),
        &["at least one address"],
    );
    bad(
        destination(json!({"Addresses": ["a b"], "Port": 1})),
        &["neither an IP address nor a DNS name"],
    );
    good(destination(
        json!({"Addresses": ["a.com", "10.0.0.1", "::1"], "Port": 443}),
    ));
}

#[test]
fn store_3_2_upstream_config() {
    let upstreams =
        |u: Json| json!({"Kind": "service-defaults", "Name": "web", "UpstreamConfig": u});
    bad(
        upstreams(json!({"Overrides": [{}, {"Name": "*"}, {"Name": "a", "Namespace": "*"}]})),
        &[
            "Overrides[0].Name: ",
            "Overrides[1].Name: ",
            "Overrides[2].Namespace: ",
        ],
    );
    bad(
        upstreams(json!({"Defaults": {"Name": "a", "Namespace": "b", "Partition": "c"}})),
        &[
            "Defaults.Name: ",
            "Defaults.Namespace: ",
            "Defaults.Partition: ",
        ],
    );
    bad(
        upstreams(
            json!({"Defaults": {"Limits": {"MaxConnections": -1}, "PassiveHealthCheck": {"Interval": "-1s", "BaseEjectionTime": "-1s",
        "MaxEjectionPercent": 101, "EnforcingConsecutive5xx": 101}, "BalanceOutboundConnections": "x"}}),
        ),
        &[
            "Limits.MaxConnections: ",
            "PassiveHealthCheck.Interval: ",
            "BaseEjectionTime: ",
            "MaxEjectionPercent: ",
            "EnforcingConsecutive5xx: ",
            "BalanceOutboundConnections: ",
        ],
    );
    let ConfigEntry::ServiceDefaults(read) = good(upstreams(
        json!({"Defaults": {"Protocol": "HTTP", "ConnectTimeoutMs": -5, "Limits": {"MaxConnections": 0}}}),
    )) else {
        panic!("another kind");
    };
    let defaults = read.upstream_config.unwrap().defaults.unwrap();
    assert_eq!(
        (defaults.protocol.as_str(), defaults.connect_timeout_ms),
        ("http", 0)
    );
    assert_eq!(defaults.limits.unwrap().max_connections, Some(0));
}

#[test]
fn store_12_equal_after_normalization() {
    let upper = good(
        json!({"Kind": "Service-Defaults", "Name": "web", "Protocol": "HTTP", "Expose": {"Paths": [{"Path": "/m", "ListenerPort": 1, "LocalPathPort": 2}]}}),
    );
    let lower = good(
        json!({"Kind": "service-defaults", "Name": "web", "Protocol": "http", "Expose": {"Paths": [{"Path": "/m", "ListenerPort": 1, "LocalPathPort": 2, "Protocol": "HTTP"}]}}),
    );
    assert_eq!(upper, lower);
    let mut again = upper.clone();
    again.normalize();
    assert_eq!(again, upper);
}

#[test]
fn store_46_sources_are_ordered_by_precedence() {
    let ConfigEntry::ServiceIntentions(api) = good(
        json!({"Kind": "service-intentions", "Name": "api", "Sources": [
        {"Name": "*", "Action": "deny"}, {"Name": "zed", "Action": "allow"}, {"Name": "abe", "Action": "allow", "Peer": "p"}]}),
    ) else {
        panic!("another kind");
    };
    let sources: Vec<_> = api
        .sources
        .iter()
        .map(|s| (s.name.as_str(), s.precedence, s.kind.as_str()))
        .collect();
    assert_eq!(
        sources,
        [
            ("zed", 9, "consul"),
            ("abe", 9, "consul"),
            ("*", 8, "consul")
        ]
    );
}

fn api(sources: Json) -> Json {
    json!({"Kind": "service-intentions", "Name": "api", "Sources": sources})
}

#[test]
fn store_53_permissions_on_a_wildcard() {
    bad(
        json!({"Kind": "service-intentions", "Name": "*", "Sources": [{"Name": "web", "Permissions": [{"Action": "allow", "HTTP": {"PathPrefix": "/"}}]}]}),
        &["Sources[0].Permissions: "],
    );
}

#[test]
fn store_55_intention_rules() {
    let permissions = |p: Json| api(json!([{"Name": "web", "Permissions": [p]}]));
    bad(
        api(
            json!([{"Name": "web", "Action": "allow", "Permissions": [{"Action": "allow", "HTTP": {"PathPrefix": "/"}}]}]),
        ),
        &["Sources[0]: Action and Permissions exclude each other"],
    );
    bad(
        api(json!([{"Name": "web"}])),
        &["Sources[0]: needs an Action"],
    );
    bad(
        permissions(json!({"Action": "allow", "HTTP": {}})),
        &["Permissions[0].HTTP: is empty"],
    );
    bad(
        permissions(json!({"Action": "allow"})),
        &["needs an HTTP block"],
    );
    bad(
        permissions(json!({"HTTP": {"PathPrefix": "/"}})),
        &["Permissions[0].Action: "],
    );
    bad(
        permissions(json!({"Action": "allow", "HTTP": {"PathExact": "/a", "PathPrefix": "/"}})),
        &["at most one of PathExact"],
    );
    bad(
        permissions(
            json!({"Action": "allow", "HTTP": {"Header": [{"Name": "x", "Exact": "a", "Prefix": "b"}]}}),
        ),
        &["Header[0]: "],
    );
    bad(
        permissions(json!({"Action": "allow", "HTTP": {"Header": [{"Exact": "a"}]}})),
        &["Header[0].Name: "],
    );
    bad(
        permissions(json!({"Action": "allow", "HTTP": {"Methods": ["get", "GET"]}})),
        &["Methods[1]: the method GET is given twice"],
    );
    bad(
        permissions(json!({"Action": "allow", "HTTP": {"PathExact": "a"}})),
        &["PathExact: "],
    );
    let ConfigEntry::ServiceIntentions(read) = good(permissions(
        json!({"Action": "allow", "HTTP": {"Methods": ["get"]}}),
    )) else {
        panic!("another kind");
    };
    assert_eq!(
        read.sources[0].permissions[0]
            .http
            .as_ref()
            .unwrap()
            .methods,
        ["GET"]
    );
    assert!(read.has_permissions());
}

#[test]
fn store_56_names_of_token_providers() {
    let jwt = |name: &str| json!({"Providers": [{"Name": name, "VerifyClaims": [{"Path": ["aud"], "Value": "x"}]}]});
    let ConfigEntry::ServiceIntentions(read) = good(
        json!({"Kind": "service-intentions", "Name": "api", "JWT": jwt("okta"),
        "Sources": [{"Name": "web", "Permissions": [{"Action": "allow", "HTTP": {"PathPrefix": "/"}, "JWT": jwt("auth0")}]}]}),
    ) else {
        panic!("another kind");
    };
    assert_eq!(read.provider_names().collect::<Vec<_>>(), ["okta", "auth0"]);
    bad(
        json!({"Kind": "service-intentions", "Name": "api", "JWT": jwt(""), "Sources": [{"Name": "web", "Action": "allow"}]}),
        &["JWT.Providers[0].Name: "],
    );
}

#[test]
fn store_57_wildcards_stand_alone() {
    bad(
        api(json!([{"Name": "we*", "Action": "allow"}])),
        &["Sources[0].Name: \"we*\""],
    );
    let ConfigEntry::ServiceIntentions(all) = good(
        json!({"Kind": "service-intentions", "Name": "*", "Sources": [{"Name": "*", "Action": "deny"}, {"Name": "web", "Action": "deny"}]}),
    ) else {
        panic!("another kind");
    };
    assert_eq!(
        all.sources.iter().map(|s| s.precedence).collect::<Vec<_>>(),
        [6, 5]
    );
}

#[test]
fn fc_068_rule_without_sources() {
    bad(api(json!([])), &["Sources: needs at least one source"]);
    bad(
        json!({"Kind": "service-intentions", "Name": "api"}),
        &["Sources: "],
    );
    bad(
        api(json!([{"Name": "web", "Permissions": []}])),
        &["Sources[0]: needs an Action"],
    );
}

#[test]
fn store_3_6_sources() {
    bad(
        api(json!([{"Name": "", "Action": "allow"}])),
        &["Sources[0].Name: "],
    );
    bad(
        api(json!([{"Name": "web", "Action": "allow"}, {"Name": "Web", "Action": "deny"}])),
        &["Sources[1]: the source \"Web\" is given twice"],
    );
    good(api(
        json!([{"Name": "web", "Action": "allow"}, {"Name": "web", "Peer": "p", "Action": "deny"}]),
    ));
    bad(
        api(json!([{"Name": "web", "Peer": "*", "Action": "allow"}])),
        &["Sources[0].Peer: "],
    );
    bad(
        api(json!([{"Name": "web", "Peer": "p", "Partition": "default", "Action": "allow"}])),
        &["Peer and Partition exclude each other"],
    );
    bad(
        api(json!([{"Name": "web", "Type": "other", "Action": "allow"}])),
        &["Sources[0].Type: "],
    );
    bad(
        api(json!([{"Name": "web", "Action": "maybe"}])),
        &["Sources[0].Action: \"maybe\" is not one of"],
    );
    bad(
        api(json!([{"Name": "web", "Action": "allow", "Description": "x".repeat(513)}])),
        &["Sources[0].Description: "],
    );
    good(api(
        json!([{"Name": "web", "Action": "allow", "Description": "\u{e9}".repeat(512)}]),
    ));
}

#[test]
fn store_3_9_mesh() {
    let tls = |t: Json| json!({"Kind": "mesh", "TLS": {"Incoming": t}});
    bad(
        tls(json!({"TLSMinVersion": "TLSv1_3", "TLSMaxVersion": "TLSv1_2"})),
        &["TLS.Incoming.TLSMaxVersion: "],
    );
    bad(
        tls(json!({"TLSMinVersion": "1.2"})),
        &["TLS.Incoming.TLSMinVersion: "],
    );
    bad(
        tls(
            json!({"TLSMinVersion": "TLSv1_3", "CipherSuites": ["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"]}),
        ),
        &["CipherSuites: "],
    );
    bad(
        tls(json!({"CipherSuites": ["ROT13"]})),
        &["CipherSuites[0]: "],
    );
    good(tls(
        json!({"TLSMinVersion": "TLS_AUTO", "TLSMaxVersion": "TLSv1_2", "CipherSuites": ["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"]}),
    ));
    bad(
        json!({"Kind": "mesh", "HTTP": {"Incoming": {"RequestNormalization": {"PathWithEscapedSlashesAction": "x", "HeadersWithUnderscoresAction": "y"}}}}),
        &[
            "PathWithEscapedSlashesAction: ",
            "HeadersWithUnderscoresAction: ",
        ],
    );
    assert_eq!(good(json!({"Kind": "mesh"})).key().to_string(), "mesh/mesh");
}

#[test]
fn store_3_16_jwt_provider() {
    let provider =
        |set: Json| json!({"Kind": "jwt-provider", "Name": "okta", "JSONWebKeySet": set});
    bad(
        json!({"Kind": "jwt-provider", "Name": "okta"}),
        &["JSONWebKeySet: needs exactly one of Local, Remote"],
    );
    bad(
        provider(json!({"Local": {"JWKS": "e30=", "Filename": "x"}})),
        &["Local: needs exactly one"],
    );
    bad(
        provider(json!({"Local": {"JWKS": "{}"}})),
        &["Local.JWKS: is not base64"],
    );
    bad(
        provider(json!({"Remote": {"URI": "no uri"}})),
        &["Remote.URI: "],
    );
    bad(
        provider(
            json!({"Remote": {"URI": "https://a.b/c", "RetryPolicy": {"RetryPolicyBackOff": {"BaseInterval": "2s", "MaxInterval": "1s"}},
        "JWKSCluster": {"DiscoveryType": "x", "TLSCertificates": {}}}}),
        ),
        &[
            "MaxInterval: ",
            "DiscoveryType: ",
            "TLSCertificates: needs exactly one",
        ],
    );
    bad(
        provider(
            json!({"Remote": {"URI": "https://a.b/c", "JWKSCluster": {"TLSCertificates": {"TrustedCA": {"Filename": "x", "InlineString": "y"}}}}}),
        ),
        &["TrustedCA: needs exactly one"],
    );
    bad(
        json!({"Kind": "jwt-provider", "Name": "", "JSONWebKeySet": {"Local": {"JWKS": "e30="}}, "Locations": [{}, {"Header": {}}], "Forwarding": {}}),
        &[
            "Name: ",
            "Locations[0]: ",
            "Locations[1].Header.Name: ",
            "Forwarding.HeaderName: ",
        ],
    );
    let ConfigEntry::JwtProvider(read) =
        good(provider(json!({"Remote": {"URI": "https://a.b:8443/c"}})))
    else {
        panic!("another kind");
    };
    assert_eq!(read.clock_skew_seconds, 30);
}

#[test]
fn access_logs_and_extensions() {
    let logs = |l: Json| json!({"Kind": "proxy-defaults", "AccessLogs": l});
    bad(logs(json!({"Type": "syslog"})), &["AccessLogs.Type: "]);
    bad(logs(json!({"Type": "file"})), &["AccessLogs.Path: "]);
    bad(logs(json!({"Path": "/x"})), &["AccessLogs.Path: "]);
    bad(
        logs(json!({"JSONFormat": "{}", "TextFormat": "x"})),
        &["exclude each other"],
    );
    bad(
        logs(json!({"JSONFormat": "{"})),
        &["AccessLogs.JSONFormat: "],
    );
    good(logs(
        json!({"Enabled": true, "Type": "file", "Path": "/x", "JSONFormat": "{\"a\": \"%B%\"}"}),
    ));
    bad(
        json!({"Kind": "proxy-defaults", "EnvoyExtensions": [{"Arguments": {}}]}),
        &["EnvoyExtensions[0].Name: "],
    );
    bad(
        json!({"Kind": "proxy-defaults", "MutualTLSMode": "lax"}),
        &["MutualTLSMode: "],
    );
    bad(
        json!({"Kind": "proxy-defaults", "Config": {"protocol": {}}}),
        &["Config.protocol: "],
    );
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

#[test]
fn kinds_and_protocols() {
    for kind in EntryKind::ALL {
        assert_eq!(EntryKind::from_text(kind.as_str()), Some(kind));
    }
    assert!(is_http_like("grpc") && !is_http_like("tcp"));
}
