//! The JSON form of every record: what is read is written back the same, under every spelling of the keys.
//!
//! One document per record gives every key a value that isn't its default. The keys are compared with those that the
//! record has, so that a new field can't be forgotten here. Parts of the documents are then left out at random.

use proptest::prelude::*;
use serde_json::{Map, Value as Json, json};

use super::documents::*;
use crate::hcl::Value;
use crate::model::*;

/// Maps whose keys are the author's own.
const FREE_FORM: [&str; 11] = [
    "Config",
    "Meta",
    "NodeMeta",
    "TaggedAddresses",
    "Arguments",
    "Subsets",
    "Failover",
    "Add",
    "Set",
    "LegacyMeta",
    "Header",
];

fn decode<T: Decode>(json: &Json) -> Result<T, String> {
    decode_document(&Value::from_json(json))
        .map(|(record, _)| record)
        .map_err(|problems: Problems| problems.text())
}

fn snake_case(key: &str) -> String {
    let mut out = String::new();
    let chars: Vec<char> = key.chars().collect();
    for (i, c) in chars.iter().enumerate() {
        let after_lower = i > 0 && chars[i - 1].is_ascii_lowercase();
        if c.is_ascii_uppercase() && after_lower {
            out.push('_');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}

/// The same document with all keys of records re-spelled.
fn respelled(json: &Json, spell: fn(&str) -> String) -> Json {
    match json {
        Json::Object(map) => {
            let members = map.iter().map(|(key, value)| {
                // A `Header` is a list of matches in some records, and a free-form map in others.
                let free = FREE_FORM.contains(&key.as_str()) && value.is_object();
                let value = match value {
                    Json::Object(inner) if free => {
                        let records =
                            matches!(key.as_str(), "Subsets" | "Failover" | "TaggedAddresses");
                        let inner = inner.iter().map(|(k, v)| {
                            let v = if records {
                                respelled(v, spell)
                            } else {
                                v.clone()
                            };
                            (k.clone(), v)
                        });
                        Json::Object(inner.collect())
                    }
                    other => respelled(other, spell),
                };
                (spell(key), value)
            });
            Json::Object(members.collect())
        }
        Json::Array(items) => items.iter().map(|i| respelled(i, spell)).collect(),
        other => other.clone(),
    }
}

/// Leaves out members of objects and items of lists: each for a set bit.
fn pruned(json: &Json, bits: &mut impl FnMut() -> bool) -> Json {
    match json {
        Json::Object(map) => {
            let mut out = Map::new();
            for (key, value) in map {
                if key == "Kind" || !bits() {
                    out.insert(key.clone(), pruned(value, bits));
                }
            }
            Json::Object(out)
        }
        Json::Array(items) => {
            let kept: Vec<&Json> = items.iter().filter(|_| !bits()).collect();
            kept.into_iter().map(|i| pruned(i, bits)).collect()
        }
        other => other.clone(),
    }
}

fn check<T: Decode + PartialEq + std::fmt::Debug + serde::Serialize>(json: &Json) {
    let record: T = decode(json).unwrap_or_else(|e| panic!("{json}: {e}"));
    let written = serde_json::to_value(&record).unwrap();
    let again: T = decode(&written).unwrap_or_else(|e| panic!("{written}: {e}"));
    assert_eq!(again, record, "{written}");
    // Through text as well, where numbers are written out.
    let text = serde_json::to_vec(&record).unwrap();
    let tree = crate::hcl::parse_json(&text).unwrap();
    assert_eq!(decode_document::<T>(&tree).unwrap().0, record);
    for spell in [snake_case, str::to_ascii_lowercase as fn(&str) -> String] {
        let other = respelled(json, spell);
        assert_eq!(decode::<T>(&other).as_ref(), Ok(&record), "{other}");
    }
}

/// The part of a document that a record of type `T` was read from names every key of it.
#[track_caller]
fn covers<T: Decode>(document: &Json, pointer: &str) {
    let part = document
        .pointer(pointer)
        .unwrap_or_else(|| panic!("no {pointer}"));
    for key in T::keys() {
        assert!(part.get(key).is_some(), "{pointer} has no {key}");
    }
    assert_eq!(
        part.as_object().unwrap().len(),
        T::keys().len(),
        "{pointer}"
    );
}

/// A full document of a record: written back it is the very same.
fn full<T: Decode + PartialEq + std::fmt::Debug + serde::Serialize>(document: &Json) {
    covers::<T>(document, "");
    let record: T = decode(document).unwrap();
    assert_eq!(&serde_json::to_value(&record).unwrap(), document);
    check::<T>(document);
}

#[test]
fn every_key_of_every_record_is_read_and_written() {
    full::<ServiceInstance>(&instance());
    full::<HealthCheck>(&health_check());
    full::<AgentCheck>(&agent_check());
    full::<ServiceDefinition>(&definition());
    full::<CatalogRegistration>(&registration());
    full::<CatalogDeregistration>(&deregistration());
    full::<ProxyConfig>(&proxy());
    full::<ProxyDefaults>(&proxy_defaults());
    full::<ServiceDefaults>(&service_defaults());
    full::<ServiceRouter>(&router());
    full::<ServiceSplitter>(&splitter());
    full::<ServiceResolver>(&resolver());
    full::<ServiceIntentions>(&intentions());
    full::<MeshConfig>(&mesh());
    full::<JwtProvider>(&jwt_provider());
    for entry in entries() {
        check::<ConfigEntry>(&entry);
    }
    full::<Node>(
        &json!({"ID": "i", "Node": "n1", "Address": "a", "Datacenter": "dc1", "TaggedAddresses": {"lan_ipv4": "b"}, "Meta": {"k_K": "v"},
        "Locality": {"Region": "r", "Zone": "z"}, "Partition": "p", "PeerName": "c"}),
    );
    full::<EntryDeletion>(&json!({"Kind": "mesh", "Name": "x"}));
    full::<Intention>(
        &json!({"SourceName": "a", "SourceNS": "n", "SourcePartition": "p", "SourcePeer": "c", "DestinationName": "b", "DestinationNS": "n", "DestinationPartition": "p",
        "SourceType": "consul", "Action": "deny", "Permissions": [{"Action": "allow"}], "JWT": jwt(), "Description": "d", "Meta": {"k_K": "v"}, "Precedence": 9}),
    );
}

#[test]
fn the_documents_name_every_key_of_inner_records() {
    let proxy = proxy();
    covers::<Upstream>(&proxy, "/Upstreams/0");
    covers::<TransparentProxy>(&proxy, "/TransparentProxy");
    covers::<Expose>(&proxy, "/Expose");
    covers::<ExposePath>(&proxy, "/Expose/Paths/0");
    covers::<AccessLogs>(&proxy, "/AccessLogs");
    covers::<EnvoyExtension>(&proxy, "/EnvoyExtensions/0");
    covers::<CheckDefinition>(&check_definition(), "");
    let defaults = service_defaults();
    covers::<UpstreamsConfig>(&defaults, "/UpstreamConfig");
    covers::<UpstreamDefaults>(&defaults, "/UpstreamConfig/Defaults");
    covers::<UpstreamLimits>(&defaults, "/UpstreamConfig/Defaults/Limits");
    covers::<PassiveHealthCheck>(&defaults, "/UpstreamConfig/Defaults/PassiveHealthCheck");
    covers::<Destination>(&defaults, "/Destination");
    covers::<RateLimits>(&defaults, "/RateLimits");
    covers::<InstanceLevelRateLimits>(&defaults, "/RateLimits/InstanceLevel");
    covers::<RateLimitRoute>(&defaults, "/RateLimits/InstanceLevel/Routes/0");
    let router = router();
    covers::<ServiceRoute>(&router, "/Routes/0");
    covers::<HttpMatch>(&router, "/Routes/0/Match/HTTP");
    covers::<HeaderMatch>(&router, "/Routes/0/Match/HTTP/Header/0");
    covers::<QueryParamMatch>(&router, "/Routes/0/Match/HTTP/QueryParam/0");
    covers::<RouteDestination>(&router, "/Routes/0/Destination");
    covers::<HeaderModifiers>(&router, "/Routes/0/Destination/RequestHeaders");
    covers::<ServiceSplit>(&splitter(), "/Splits/0");
    let resolver = resolver();
    covers::<Subset>(&resolver, "/Subsets/v_1");
    covers::<Redirect>(&resolver, "/Redirect");
    covers::<Failover>(&resolver, "/Failover/*");
    covers::<FailoverTarget>(&resolver, "/Failover/*/Targets/0");
    covers::<FailoverPolicy>(&resolver, "/Failover/*/Policy");
    covers::<LoadBalancer>(&resolver, "/LoadBalancer");
    covers::<RingHashConfig>(&resolver, "/LoadBalancer/RingHashConfig");
    covers::<HashPolicy>(&resolver, "/LoadBalancer/HashPolicies/0");
    covers::<CookieConfig>(&resolver, "/LoadBalancer/HashPolicies/0/CookieConfig");
    let intentions = intentions();
    covers::<SourceIntention>(&intentions, "/Sources/0");
    covers::<IntentionPermission>(&intentions, "/Sources/0/Permissions/0");
    covers::<IntentionHttpPermission>(&intentions, "/Sources/0/Permissions/0/HTTP");
    covers::<IntentionHttpHeader>(&intentions, "/Sources/0/Permissions/0/HTTP/Header/0");
    covers::<IntentionJwtProvider>(&intentions, "/JWT/Providers/0");
    covers::<IntentionJwtClaim>(&intentions, "/JWT/Providers/0/VerifyClaims/0");
    let mesh = mesh();
    covers::<MeshTls>(&mesh, "/TLS");
    covers::<MeshDirectionalTls>(&mesh, "/TLS/Incoming");
    covers::<MeshHttp>(&mesh, "/HTTP");
    covers::<RequestNormalization>(&mesh, "/HTTP/Incoming/RequestNormalization");
    let provider = jwt_provider();
    covers::<Jwks>(&provider, "/JSONWebKeySet");
    covers::<LocalJwks>(&provider, "/JSONWebKeySet/Local");
    covers::<RemoteJwks>(&provider, "/JSONWebKeySet/Remote");
    covers::<JwksCluster>(&provider, "/JSONWebKeySet/Remote/JWKSCluster");
    covers::<JwksTlsTrustedCa>(
        &provider,
        "/JSONWebKeySet/Remote/JWKSCluster/TLSCertificates/TrustedCA",
    );
    covers::<JwtLocation>(&provider, "/Locations/0");
    covers::<JwtLocationHeader>(&provider, "/Locations/0/Header");
    covers::<JwtForwarding>(&provider, "/Forwarding");
}

#[test]
fn nulls_read_as_left_out() {
    fn nulled(json: &Json) -> Json {
        let all = json.as_object().unwrap().keys();
        let kept = |k: &String| {
            if k == "Kind" {
                json[k].clone()
            } else {
                Json::Null
            }
        };
        Json::Object(all.map(|k| (k.clone(), kept(k))).collect())
    }
    for entry in entries() {
        let only_kind = json!({"Kind": entry["Kind"]});
        assert_eq!(decode::<ConfigEntry>(&nulled(&entry)), decode(&only_kind));
    }
    let kind = json!({"Kind": "mesh-gateway"});
    assert_eq!(
        decode::<ServiceDefinition>(&nulled(&definition())),
        decode(&kind)
    );
    assert_eq!(
        decode::<CatalogRegistration>(&nulled(&registration())),
        decode(&json!({}))
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn parts_of_records_round_trip(choices in proptest::collection::vec(0_u8..8, 512)) {
        let mut at = 0;
        let mut bits = || {
            at = (at + 1) % choices.len();
            choices[at] == 0
        };
        for entry in entries() {
            check::<ConfigEntry>(&pruned(&entry, &mut bits));
        }
        check::<ServiceDefinition>(&pruned(&definition(), &mut bits));
        check::<CatalogRegistration>(&pruned(&registration(), &mut bits));
        check::<CatalogDeregistration>(&pruned(&deregistration(), &mut bits));
    }

    #[test]
    fn accepted_entries_are_accepted_again_unchanged(choices in proptest::collection::vec(0_u8..4, 512)) {
        let mut at = 0;
        let mut bits = || {
            at = (at + 1) % choices.len();
            choices[at] != 0
        };
        for entry in entries() {
            let part = pruned(&entry, &mut bits);
            if let Ok((first, _)) = ConfigEntry::read(&Value::from_json(&part)) {
                let written = serde_json::to_value(&first).unwrap();
                let (second, _) = ConfigEntry::read(&Value::from_json(&written)).unwrap();
                prop_assert_eq!(second, first);
            }
        }
    }

    #[test]
    fn any_document_is_read_without_panic(json in any_json()) {
        let document = Value::from_json(&json);
        let _ = ConfigEntry::read(&document);
        let _ = ServiceDefinition::read(&document);
        let _ = CatalogRegistration::read(&document);
        let _ = Transaction::read(&document);
    }
}

/// Objects with keys of our records and any data.
fn any_json() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::from),
        any::<i64>().prop_map(Json::from),
        any::<f64>().prop_map(Json::from),
        "[a-z*.-]{0,8}".prop_map(Json::from),
        prop::sample::select(EntryKind::ALL.to_vec()).prop_map(|k| Json::from(k.as_str())),
    ];
    let keys = [
        "Kind",
        "Name",
        "Service",
        "Node",
        "Routes",
        "Splits",
        "Weight",
        "Failover",
        "Targets",
        "Sources",
        "Permissions",
        "HTTP",
        "Header",
        "Connect",
        "SidecarService",
        "Proxy",
        "Upstreams",
        "Checks",
        "Check",
        "Ops",
        "Register",
        "Config",
        "Match",
        "Destination",
        "LoadBalancer",
        "PathRegex",
        "*",
    ];
    leaf.prop_recursive(6, 64, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Json::from),
            prop::collection::btree_map(prop::sample::select(keys.to_vec()), inner, 0..6).prop_map(
                |m| m
                    .into_iter()
                    .map(|(k, v)| (k.to_owned(), v))
                    .collect::<Json>()
            ),
        ]
    })
}
