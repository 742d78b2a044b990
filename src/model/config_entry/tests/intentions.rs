//! Rules of service-intentions.

use serde_json::{Value as Json, json};

use super::{bad, good};
use crate::model::config_entry::ConfigEntry;

fn api(sources: Json) -> Json {
    json!({"Kind": "service-intentions", "Name": "api", "Sources": sources})
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
