//! For random rules and requests: what the generated filter decides is what the intentions say.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::envoy::{self, Request};
use super::meaning::{PROVIDERS, may_pass};
use super::*;
use crate::xds::fixtures::{jwt_provider, local_provider};

fn action() -> impl Strategy<Value = &'static str> {
    prop_oneof![Just("allow"), Just("deny")]
}

fn any_header() -> impl Strategy<Value = Value> {
    let condition = prop_oneof![
        Just(json!({"Present": true})),
        Just(json!({"Exact": "Ab"})),
        Just(json!({"Prefix": "a"})),
        Just(json!({"Suffix": "B"})),
        Just(json!({"Contains": ","})),
        Just(json!({"Regex": "[a-z]+"})),
        Just(json!({"Regex": "a*"})),
    ];
    let name = prop_oneof![Just("x"), Just("Y")];
    (name, condition, any::<bool>(), any::<bool>()).prop_map(
        |(name, mut header, invert, ignore_case)| {
            header["Name"] = name.into();
            header["Invert"] = invert.into();
            header["IgnoreCase"] = ignore_case.into();
            header
        },
    )
}

fn any_http() -> impl Strategy<Value = Value> {
    let path = prop_oneof![
        Just(json!({"PathExact": "/a"})),
        Just(json!({"PathExact": "/a/b"})),
        Just(json!({"PathPrefix": "/a"})),
        Just(json!({"PathPrefix": "/"})),
        Just(json!({"PathRegex": "/[ab](/.*)?"})),
        Just(json!({})),
    ];
    let methods = prop::sample::subsequence(vec!["GET", "PUT"], 0..=2);
    (path, prop::collection::vec(any_header(), 0..2), methods).prop_map(
        |(mut http, headers, methods)| {
            http["Header"] = headers.into();
            http["Methods"] = methods.into();
            http
        },
    )
}

/// A demand for a token; one of nobody and one without providers can't be met.
fn any_jwt() -> impl Strategy<Value = Option<Value>> {
    let name = prop_oneof![3 => Just("okta"), 3 => Just("Auth0"), 1 => Just("nobody")];
    let claim = prop_oneof![
        Just(json!({"Path": ["role"], "Value": "admin"})),
        Just(json!({"Path": ["org", "name"], "Value": "x"})),
    ];
    let claims = prop::collection::vec(claim, 0..2);
    let provider =
        (name, claims).prop_map(|(name, claims)| json!({"Name": name, "VerifyClaims": claims}));
    let jwt = prop::collection::vec(provider, 0..3)
        .prop_map(|providers| json!({ "Providers": providers }));
    prop::option::weighted(0.3, jwt)
}

fn any_decision() -> impl Strategy<Value = Value> {
    let permission = (action(), any_http(), any_jwt()).prop_map(|(action, http, jwt)| {
        let mut permission = json!({"Action": action, "HTTP": http});
        if let Some(jwt) = jwt {
            permission["JWT"] = jwt;
        }
        permission
    });
    prop_oneof![
        1 => action().prop_map(|action| json!(action)),
        1 => prop::collection::vec(permission, 1..4).prop_map(|permissions| json!(permissions)),
    ]
}

fn any_intention() -> impl Strategy<Value = Intention> {
    let source = prop_oneof![Just("*"), Just("web"), Just("api"), Just("web2")];
    let destination = prop_oneof![Just("web"), Just("*")];
    (source, destination, any_decision(), any_jwt()).prop_map(|(source, destination, what, jwt)| {
        let mut intention = intention(&format!("{source}->{destination}"), &what);
        intention.jwt = jwt.map(|jwt| crate::xds::fixtures::read(&jwt));
        intention
    })
}

/// At most one intention for each source and destination, as the store has them.
fn any_intentions() -> impl Strategy<Value = Vec<Intention>> {
    prop::collection::vec(any_intention(), 0..8).prop_map(|all| {
        let mut unique: Vec<Intention> = Vec::new();
        for one in all {
            let same = |other: &Intention| {
                (&other.source_name, &other.destination_name)
                    == (&one.source_name, &one.destination_name)
            };
            if !unique.iter().any(same) {
                unique.push(one);
            }
        }
        unique
    })
}

fn any_request() -> impl Strategy<Value = Request> {
    let pick = |of: &'static [&'static str]| prop::sample::select(of);
    let header = (
        pick(&["x", "y"]),
        pick(&["", "a", "Ab", "ab", "aB", "b,a", "12"]),
    );
    let role = prop::option::of(pick(&["admin", "user"]));
    let payload = (role, any::<bool>()).prop_map(|(role, org)| {
        let org = if org {
            json!({"name": "x"})
        } else {
            json!(["x"])
        };
        json!({"role": role, "org": org})
    });
    let tokens = prop::collection::btree_map(pick(&PROVIDERS), payload, 0..=2);
    (
        pick(&["web", "api", "web2", "other"]),
        pick(&["GET", "PUT", "POST"]),
        pick(&["/", "/a", "/a/b", "/a?b=/c", "/b/x", "/c"]),
        prop::collection::vec(header, 0..3),
        tokens,
    )
        .prop_map(|(caller, method, path, headers, tokens)| {
            let tokens: BTreeMap<_, _> = tokens
                .into_iter()
                .map(|(name, mut payload)| {
                    // What the token filter has checked.
                    payload["iss"] = format!("{name}-issuer").into();
                    (name.to_owned(), payload)
                })
                .collect();
            let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
            Request {
                caller: uri(caller),
                method: method.into(),
                path: path.into(),
                headers: headers.into_iter().map(owned).collect(),
                tokens,
            }
        })
}

proptest! {
    #[test]
    fn xds_4_4_the_filter_means_what_the_intentions_mean(
        intentions in any_intentions(),
        requests in prop::collection::vec(any_request(), 24),
        default_allow: bool,
    ) {
        let providers: Vec<_> = PROVIDERS.iter().map(|name| jwt_provider(&local_provider(name))).collect();
        let source = |intentions| RuleSource {
            intentions, default_allow, trust_domain: TD, jwt_providers: &providers,
        };
        let (rules, _) = AccessRules::new(source(&intentions), Layer::Request);
        for request in &requests {
            prop_assert_eq!(
                envoy::allows(&rules, request),
                may_pass(&intentions, default_allow, request),
                "{:?} {:?}", request, rules
            );
        }
        for (_, policy) in &rules.policies {
            prop_assert!(!policy.principals.is_empty() && !policy.permissions.is_empty());
        }
        // The order of arrival doesn't matter.
        let mut reversed = intentions.clone();
        reversed.reverse();
        prop_assert_eq!(AccessRules::new(source(&reversed), Layer::Request).0, rules);
    }

    #[test]
    fn xds_4_4_connections_are_let_in_as_the_intentions_mean(
        intentions in any_intentions(),
        default_allow: bool,
    ) {
        let (rules, _) = new(&intentions, default_allow, Layer::Connection);
        // Rules about requests deny here, and nobody is asked for a token.
        let mut plain = intentions.clone();
        for intention in &mut plain {
            intention.jwt = None;
            if !std::mem::take(&mut intention.permissions).is_empty() {
                intention.action = IntentionAction::Deny;
            }
        }
        for caller in ["web", "api", "web2", "other", "w"] {
            let request = Request { caller: uri(caller), ..Request::default() };
            let meant = may_pass(&plain, default_allow, &request);
            prop_assert_eq!(envoy::allows(&rules, &request), meant, "{} {:?}", caller, rules);
            prop_assert_eq!(let_in(&rules, &request.caller), meant, "{} {:?}", caller, rules);
        }
    }
}
