//! Access rules from intentions.

mod envoy;
mod meaning;
mod property;

use prost::Message as _;
use serde_json::json;

use super::*;
use crate::xds::fixtures::{TD, TD_PATTERN, intention};
use crate::xds::proto::matcher;
use envoy::Request;
use matcher::string_matcher::MatchPattern;
use rbac::permission::Rule as PermissionRule;
use rbac::principal::Identifier;

fn rules(
    intentions: &[(&str, serde_json::Value)],
    default_allow: bool,
    layer: Layer,
) -> (AccessRules, Vec<String>) {
    let intentions: Vec<_> = intentions
        .iter()
        .map(|(source, what)| intention(source, what))
        .collect();
    new(&intentions, default_allow, layer)
}

fn new(intentions: &[Intention], default_allow: bool, layer: Layer) -> (AccessRules, Vec<String>) {
    let source = RuleSource {
        intentions,
        default_allow,
        trust_domain: TD,
        jwt_providers: &[],
    };
    AccessRules::new(source, layer)
}

/// A short form of a principal: patterns of names, `!` for exclusions.
fn short(principal: &rbac::Principal) -> String {
    match principal.identifier.as_ref().unwrap() {
        Identifier::Authenticated(one) => {
            let Some(MatchPattern::SafeRegex(regex)) =
                &one.principal_name.as_ref().unwrap().match_pattern
            else {
                panic!()
            };
            let prefix = format!("^spiffe://{TD_PATTERN}/ns/default/dc/[^/]+/svc/");
            let name = regex
                .regex
                .strip_prefix(&prefix)
                .unwrap()
                .strip_suffix('$')
                .unwrap();
            if name == "[^/]+" {
                "*".into()
            } else {
                name.into()
            }
        }
        Identifier::NotId(not) => format!("!{}", short(not)),
        Identifier::AndIds(set) => set.ids.iter().map(short).collect::<Vec<_>>().join(" "),
        other => panic!("{other:?}"),
    }
}

/// Names of policies with their principals.
fn policies(rules: &AccessRules) -> Vec<(String, Vec<String>)> {
    let policies = rules.policies.iter();
    policies
        .map(|(name, policy)| {
            (
                name.to_string(),
                policy.principals.iter().map(short).collect(),
            )
        })
        .collect()
}

fn l4(principals: &[&str]) -> Vec<(String, Vec<String>)> {
    vec![(
        "consul-intentions-layer4".into(),
        principals.iter().map(|&p| p.into()).collect(),
    )]
}

#[test]
fn xds_30_without_intentions_the_default_holds() {
    for default_allow in [false, true] {
        let (rules, problems) = rules(&[], default_allow, Layer::Connection);
        assert_eq!(problems, [""; 0]);
        assert!(rules.policies.is_empty());
        let action = if default_allow {
            rbac::rbac::Action::Deny
        } else {
            rbac::rbac::Action::Allow
        };
        assert_eq!(rules.action, action);
    }
}

#[test]
fn xds_31_deny_web_allow_all() {
    let (rules, _) = rules(
        &[("web", json!("deny")), ("*", json!("allow"))],
        false,
        Layer::Connection,
    );
    assert_eq!(policies(&rules), l4(&["* !web"]));
}

#[test]
fn xds_32_allow_web_deny_all() {
    let (rules, _) = rules(
        &[("*", json!("deny")), ("web", json!("allow"))],
        false,
        Layer::Connection,
    );
    assert_eq!(policies(&rules), l4(&["web"]));
}

#[test]
fn xds_4_4_default_allow_turns_the_filter_around() {
    let (rules, _) = rules(
        &[
            ("web", json!("allow")),
            ("api", json!("deny")),
            ("*", json!("deny")),
        ],
        true,
        Layer::Connection,
    );
    assert_eq!(rules.action, rbac::rbac::Action::Deny);
    // Exclusions: the nearest preceding intention first.
    assert_eq!(policies(&rules), l4(&["api", "* !web !api"]));
}

#[test]
fn xds_33_permissions_on_a_tcp_service_deny() {
    let permissions = json!([{"Action": "allow", "HTTP": {"PathPrefix": "/"}}]);
    let (rules, problems) = rules(
        &[("web", permissions), ("*", json!("allow"))],
        false,
        Layer::Connection,
    );
    assert_eq!(policies(&rules), l4(&["* !web"]));
    assert_eq!(problems.len(), 1);
}

#[test]
fn xds_34_fc_069_earlier_permissions_are_excluded_from_later_ones() {
    let permissions = json!([
        {"Action": "deny", "HTTP": {"PathExact": "/health"}},
        {"Action": "allow", "HTTP": {"PathPrefix": "/"}},
        {"Action": "allow", "HTTP": {"PathExact": "/health/v1"}},
    ]);
    let (rules, problems) = rules(&[("curl", permissions.clone())], false, Layer::Request);
    assert_eq!(problems, [""; 0]);
    let (name, policy) = &rules.policies[0];
    assert_eq!(
        (rules.policies.len(), name.as_str()),
        (1, "consul-intentions-layer7-0")
    );
    let Some(PermissionRule::AndRules(and)) = &policy.permissions[0].rule else {
        panic!()
    };
    assert!(matches!(
        &and.rules[1].rule,
        Some(PermissionRule::NotRule(_))
    ));
    let allows = |rules: &AccessRules, path: &str| allowed(rules, &uri("curl"), path);
    assert!(allows(&rules, "/"));
    assert!(!allows(&rules, "/health"));
    assert!(allows(&rules, "/health/v1"));
    assert!(!allowed(&rules, &uri("web"), "/"));

    let mut swapped = permissions.as_array().unwrap().clone();
    swapped.swap(0, 1);
    let swapped = intention("curl", &swapped.into());
    let (rules, _) = new(&[swapped], false, Layer::Request);
    assert!(allows(&rules, "/health"));
}

#[test]
fn xds_35_peered_sources_contribute_nothing() {
    let mut peered = intention("web", &json!("allow"));
    peered.source_peer = "east".into();
    let (rules, problems) = new(&[peered], false, Layer::Connection);
    assert_eq!((rules, problems), (AccessRules::deny_all(), vec![]));
}

#[test]
fn fc_068_no_policy_without_principals_or_permissions() {
    let denies = json!([{"Action": "deny", "HTTP": {"PathExact": "/a"}}]);
    let nothing = intention("web", &json!([]));
    assert!(nothing.permissions.is_empty());
    for layer in [Layer::Connection, Layer::Request] {
        let all = [nothing.clone(), intention("api", &denies)];
        let (rules, problems) = new(&all, false, layer);
        assert_eq!(policies(&rules), []);
        assert!(
            problems.iter().any(|p| p.contains("web -> web")),
            "{problems:?}"
        );
    }
}

#[test]
fn x3_what_cannot_be_expressed_denies_its_source() {
    let bad = json!([{"Action": "deny", "HTTP": {"PathRegex": "("}}, {"Action": "allow", "HTTP": {"PathPrefix": "/"}}]);
    let nameless =
        json!([{"Action": "allow", "HTTP": {"Header": [{"Name": "x y", "Present": true}]}}]);
    let unmatched = json!([{"Action": "allow", "HTTP": {"Header": [{"Name": "x"}]}}]);
    for what in [bad, nameless, unmatched] {
        let (denied, problems) = rules(
            &[("web", what.clone()), ("*", json!("allow"))],
            false,
            Layer::Request,
        );
        assert_eq!(policies(&denied), l4(&["* !web"]));
        assert_eq!(problems.len(), 1, "{problems:?}");
        let (denied, _) = rules(&[("web", what)], true, Layer::Request);
        assert_eq!(policies(&denied), l4(&["web"]));
    }
    let source = RuleSource {
        intentions: &[intention("web", &json!("allow"))],
        default_allow: true,
        trust_domain: "",
        jwt_providers: &[],
    };
    let (rules, problems) = AccessRules::new(source, Layer::Request);
    assert_eq!((rules, problems.len()), (AccessRules::deny_all(), 1));
}

#[test]
fn xds_4_4_conditions_of_a_permission() {
    let one = |http: serde_json::Value| {
        let what = json!([{"Action": "allow", "HTTP": http}]);
        let (rules, problems) = rules(&[("web", what)], false, Layer::Request);
        assert_eq!(problems, [""; 0]);
        rules.policies[0].1.permissions[0].clone()
    };
    assert_eq!(one(json!({})), permission::any());
    assert!(matches!(
        one(json!({"PathExact": "/a"})).rule,
        Some(PermissionRule::UrlPath(_))
    ));
    let Some(PermissionRule::AndRules(all)) = one(json!({
        "PathPrefix": "/a", "Header": [{"Name": "x", "Contains": "y", "IgnoreCase": true, "Invert": true}],
        "Methods": ["GET", "PUT"],
    }))
    .rule
    else {
        panic!()
    };
    let Some(PermissionRule::Header(header)) = &all.rules[1].rule else {
        panic!()
    };
    assert!(header.invert_match);
    let Some(PermissionRule::Header(method)) = &all.rules[2].rule else {
        panic!()
    };
    assert_eq!(method.name, ":method");
    assert!(format!("{method:?}").contains("GET|PUT"));
}

#[test]
fn e12_names_cannot_break_out_of_their_pattern() {
    let (rules, _) = rules(&[(".*", json!("allow"))], false, Layer::Connection);
    assert!(!allowed(&rules, &uri("web"), "/"));
    assert!(allowed(&rules, &uri(".*"), "/"));
    let other = format!("spiffe://{}/ns/default/dc/dc1/svc/.*", TD.replace('.', "x"));
    assert!(!allowed(&rules, &other, "/"));
}

#[test]
fn x2_filters_read_back_as_they_were() {
    let what = json!([{"Action": "allow", "HTTP": {"PathPrefix": "/"}}]);
    let (rules, _) = rules(
        &[("web", what), ("api", json!("allow"))],
        false,
        Layer::Request,
    );
    let hcm::http_filter::ConfigType::TypedConfig(any) = rules.http_filter().config_type.unwrap()
    else {
        panic!()
    };
    let read = http::Rbac::decode(&*any.value).unwrap().rules.unwrap();
    assert_eq!(read.action, rules.action as i32);
    assert_eq!(read.policies.len(), 2);
    for (name, policy) in &rules.policies {
        assert_eq!(&read.policies[name.as_str()], policy);
    }
    let listener::filter::ConfigType::TypedConfig(any) =
        rules.network_filter().config_type.unwrap()
    else {
        panic!()
    };
    assert_eq!(
        network::Rbac::decode(&*any.value).unwrap().stat_prefix,
        "connect_authz"
    );
}

fn uri(name: &str) -> String {
    format!("spiffe://{TD}/ns/default/dc/dc7/svc/{name}")
}

/// Whether the filter lets a plain request of this caller through.
fn allowed(rules: &AccessRules, caller: &str, path: &str) -> bool {
    envoy::allows(
        rules,
        &Request {
            caller: caller.into(),
            path: path.into(),
            ..Request::default()
        },
    )
}

/// Whether the handshake lets a caller in.
fn let_in(rules: &AccessRules, caller: &str) -> bool {
    rules.callers().is_empty()
        || rules
            .callers()
            .iter()
            .any(|one| envoy::fits_text(one, caller))
}

#[test]
fn the_handshake_lets_in_whom_the_filter_allows() {
    let seen = |intentions: &[(&str, &str)], default_allow| {
        let intentions: Vec<_> = intentions
            .iter()
            .map(|(source, what)| (*source, json!(what)))
            .collect();
        let (rules, problems) = rules(&intentions, default_allow, Layer::Connection);
        assert_eq!(problems, [""; 0]);
        let callers = ["web", "web2", "we", "api", "other"];
        for caller in callers {
            assert_eq!(
                let_in(&rules, &uri(caller)),
                allowed(&rules, &uri(caller), ""),
                "{caller}"
            );
        }
        let gateway = format!("spiffe://{TD}/gateway/mesh/dc/dc1");
        assert_eq!(let_in(&rules, &gateway), allowed(&rules, &gateway, ""));
        rules.callers().len()
    };
    assert_eq!(seen(&[], true), 0);
    assert_eq!(seen(&[("web", "allow")], true), 0);
    assert_eq!(seen(&[("*", "allow"), ("web", "allow")], false), 1);
    assert_eq!(seen(&[], false), 1);
    assert_eq!(seen(&[("web", "deny")], false), 1);
    assert_eq!(seen(&[("*", "deny")], true), 1);
    assert_eq!(seen(&[("*", "deny"), ("web", "allow")], true), 2);
    assert_eq!(seen(&[("*", "allow"), ("web", "deny")], false), 1);
    assert_eq!(seen(&[("web", "allow"), ("api", "allow")], false), 2);
    assert_eq!(seen(&[("web", "deny")], true), 2);
    assert_eq!(seen(&[("web", "deny"), ("api", "deny")], true), 3);
    // What requests may do is seen later.
    let (rules, _) = rules(&[("web", json!("deny"))], true, Layer::Request);
    assert!(rules.callers().is_empty());
}

#[test]
fn too_many_denied_names_are_left_to_the_filter() {
    let intentions: Vec<_> = (0..700)
        .map(|n| intention(&format!("service-name-{n:06}"), &json!("deny")))
        .collect();
    let (rules, problems) = new(&intentions, true, Layer::Connection);
    assert!(rules.callers().is_empty());
    assert_eq!((rules.policies.len(), problems.len()), (1, 1));
}
