//! The `validate` vectors of discovery-chain.md 16.

use serde_json::Value as Json;

use super::entry;
use crate::model::decode::{Place, Problems};
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

#[test]
fn discovery_chain_16_validate_vectors() {
    let cases: Json =
        serde_json::from_str(include_str!("../../../../tests/discovery-chain-cases.json")).unwrap();
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
