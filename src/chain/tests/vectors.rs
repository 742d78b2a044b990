//! The cases of `tests/discovery-chain-cases.json` (discovery-chain.md 16).

use std::collections::BTreeMap;

use serde_json::Value as Json;
use triomphe::Arc;

use crate::chain::hash::full_hash;
use crate::chain::headers::nested_definition;
use crate::chain::*;
use crate::hcl::Value;
use crate::model::chain::{ChainNode, ChainTarget, CompiledChain};
use crate::model::{
    ConfigEntry, Decode, EnvoyExtension, GoDuration, HeaderModifiers, Locality, MeshGatewayMode,
    RouteDestination, ServiceSplit, decode_document,
};

fn cases() -> Json {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/discovery-chain-cases.json"
    );
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn list<'j>(json: &'j Json, key: &str) -> &'j [Json] {
    json[key].as_array().map_or(&[], Vec::as_slice)
}

fn text<'j>(json: &'j Json, key: &str) -> &'j str {
    json[key].as_str().unwrap_or_default()
}

fn read<T: Decode>(json: &Json) -> T {
    match decode_document(&Value::from_json(json)) {
        Ok((record, _)) => record,
        Err(problems) => panic!("{json}: {}", problems.text()),
    }
}

/// Puts an entry into a set, normalized as far as the cases need it.
fn add(entries: &mut EntrySet, json: &Json) {
    if json["Kind"] == "sameness-group" {
        let group: Arc<SamenessGroup> = Arc::new(read(json));
        if group.default_for_failover {
            entries.default_sameness_group = Some(group.clone());
        }
        entries
            .sameness_groups
            .insert(group.name.as_str().into(), group);
        return;
    }
    match read(json) {
        ConfigEntry::ServiceRouter(entry) => entries.add_router(Arc::new(entry)),
        ConfigEntry::ServiceSplitter(mut entry) => {
            for split in &mut entry.splits {
                split.weight = normalize_weight(split.weight);
            }
            entries.add_splitter(Arc::new(entry));
        }
        ConfigEntry::ServiceResolver(entry) => entries.add_resolver(Arc::new(entry)),
        ConfigEntry::ServiceDefaults(entry) => entries.add_service_defaults(Arc::new(entry)),
        ConfigEntry::ProxyDefaults(entry) => entries.add_proxy_defaults(Arc::new(entry)),
        other => panic!("{:?} is not used by the compiler", other.kind()),
    }
}

fn entries_of(case: &Json) -> EntrySet {
    let mut entries = EntrySet::default();
    for entry in list(case, "entries") {
        add(&mut entries, entry);
    }
    for peer in list(case, "peers") {
        let locality: Locality = read(&peer["Remote"]["Locality"]);
        entries.peers.insert(text(peer, "Name").into(), locality);
    }
    entries
}

fn request_of(case: &Json, defaults: &Json) -> ChainRequest {
    let given = &case["request"];
    let place = |key: &str| match &given[key] {
        Json::String(value) => value.as_str().into(),
        _ => text(defaults, key).into(),
    };
    let addresses = |key: &str| {
        let addresses = list(given, key).iter();
        addresses.map(|a| a.as_str().unwrap().to_owned()).collect()
    };
    ChainRequest {
        service_name: text(case, "service").into(),
        evaluate_in_namespace: place("evaluateInNamespace"),
        evaluate_in_partition: place("evaluateInPartition"),
        evaluate_in_datacenter: place("evaluateInDatacenter"),
        evaluate_in_trust_domain: place("evaluateInTrustDomain"),
        override_mesh_gateway: MeshGatewayMode::from_text(text(
            &given["overrideMeshGateway"],
            "Mode",
        ))
        .unwrap(),
        override_protocol: text(given, "overrideProtocol").into(),
        override_connect_timeout: match text(given, "overrideConnectTimeout") {
            "" => GoDuration::default(),
            timeout => GoDuration::parse(timeout).unwrap(),
        },
        auto_virtual_ips: addresses("autoVirtualIPs"),
        manual_virtual_ips: addresses("manualVirtualIPs"),
    }
}

/// Brings what counts as equal into one form: absent tenancy, empty objects.
fn same_form(nodes: &mut BTreeMap<String, Box<ChainNode>>) {
    fn tenancy(name: &mut String) {
        if name.is_empty() {
            "default".clone_into(name);
        }
    }
    fn headers(modifiers: &mut Option<HeaderModifiers>) {
        if *modifiers == Some(HeaderModifiers::default()) {
            *modifiers = None;
        }
    }
    for node in nodes.values_mut() {
        for route in &mut node.routes {
            let to = &mut route.definition.destination;
            if let Some(to) = to {
                tenancy(&mut to.namespace);
                tenancy(&mut to.partition);
                headers(&mut to.request_headers);
                headers(&mut to.response_headers);
            }
            let nowhere = RouteDestination {
                namespace: "default".to_owned(),
                partition: "default".to_owned(),
                ..RouteDestination::default()
            };
            if to.as_ref() == Some(&nowhere) {
                *to = None;
            }
        }
        for split in &mut node.splits {
            tenancy(&mut split.definition.namespace);
            tenancy(&mut split.definition.partition);
            headers(&mut split.definition.request_headers);
            headers(&mut split.definition.response_headers);
        }
    }
}

/// Sets weights that differ by no more than the tolerance to the expected ones.
fn tolerate(
    nodes: &mut BTreeMap<String, Box<ChainNode>>,
    wanted: &BTreeMap<String, Box<ChainNode>>,
) {
    let same = |weight: &mut f32, wanted: f32| {
        if (*weight - wanted).abs() <= 0.0001 {
            *weight = wanted;
        }
    };
    for (key, node) in nodes {
        let Some(wanted) = wanted.get(key) else {
            continue;
        };
        for (split, wanted) in node.splits.iter_mut().zip(&wanted.splits) {
            same(&mut split.weight, wanted.weight);
            same(&mut split.definition.weight, wanted.definition.weight);
        }
    }
}

fn compare(name: &str, mut chain: CompiledChain, request: &ChainRequest, expect: &Json) {
    assert_eq!(chain.service_name, request.service_name, "{name}");
    assert_eq!(chain.namespace, request.evaluate_in_namespace, "{name}");
    assert_eq!(chain.partition, request.evaluate_in_partition, "{name}");
    assert_eq!(chain.datacenter, request.evaluate_in_datacenter, "{name}");

    let mut nodes: BTreeMap<String, Box<ChainNode>> = read(&expect["nodes"]);
    let targets: BTreeMap<String, Box<ChainTarget>> = read(&expect["targets"]);
    same_form(&mut nodes);
    same_form(&mut chain.nodes);
    tolerate(&mut chain.nodes, &nodes);
    assert_eq!(chain.nodes, nodes, "{name}");
    assert_eq!(chain.targets, targets, "{name}");

    assert_eq!(chain.protocol, text(expect, "protocol"), "{name}");
    assert_eq!(chain.start_node, text(expect, "startNode"), "{name}");
    assert_eq!(chain.default, expect["default"] == true, "{name}");
    let customized = !chain.customization_hash.is_empty();
    assert_eq!(customized, expect["customized"] == true, "{name}");
    if let Some(hash) = expect["customizationHash"].as_str() {
        assert_eq!(chain.customization_hash, hash, "{name}");
    }
    let or_empty = |key: &str, empty: Json| match &expect[key] {
        Json::Null => empty,
        given => given.clone(),
    };
    let list = |key: &str| or_empty(key, Json::Array(Vec::new()));
    let meta: BTreeMap<String, String> =
        read(&or_empty("serviceMeta", Json::Object(Default::default())));
    assert_eq!(chain.service_meta, meta, "{name}");
    let extensions: Vec<EnvoyExtension> = read(&list("envoyExtensions"));
    assert_eq!(chain.envoy_extensions, extensions, "{name}");
    let addresses: Vec<String> = read(&list("autoVirtualIPs"));
    assert_eq!(chain.auto_virtual_ips, addresses, "{name}");
    let addresses: Vec<String> = read(&list("manualVirtualIPs"));
    assert_eq!(chain.manual_virtual_ips, addresses, "{name}");
}

#[test]
fn chain_16_compile_cases() {
    let cases = cases();
    let mut ran = 0;
    for case in list(&cases, "compile") {
        let name = text(case, "name");
        let entries = entries_of(case);
        let before = format!("{entries:?}");
        let request = request_of(case, &cases["requestDefaults"]);
        let result = compile(&request, &entries);
        assert_eq!(
            format!("{entries:?}"),
            before,
            "{name}: the entries changed"
        );
        let wanted = &case["expectError"];
        match result {
            Ok(chain) => {
                assert!(wanted.is_null(), "{name}: compiled, but wanted {wanted}");
                super::properties::check_shape(&chain, &request, &entries);
                compare(name, chain, &request, &case["expect"]);
            }
            Err(error) => {
                assert!(!wanted.is_null(), "{name}: {error}");
                assert_eq!(error.code(), text(wanted, "code"), "{name}: {error}");
                assert_eq!(error.class().to_string(), text(wanted, "class"), "{name}");
                let message = error.to_string();
                for mention in list(wanted, "mentions") {
                    let mention = mention.as_str().unwrap();
                    assert!(message.contains(mention), "{name}: {message}");
                }
            }
        }
        ran += 1;
    }
    assert_eq!(ran, 162);
}

/// The same cases with the entries collected by name.
#[test]
fn chain_11_compile_cases_through_gather() {
    // Collecting passes by the local resolver of a failover's peer target, which the compiler would use if it had it.
    let passed_by = ["peer-failover-other-service-default-subset-drops-peer"];
    let cases = cases();
    for case in list(&cases, "compile") {
        let name = text(case, "name");
        let entries = entries_of(case);
        let request = request_of(case, &cases["requestDefaults"]);
        let gathered = gather(&request, &mut super::graph::Table::of(&entries));
        let same = compile(&request, &gathered) == compile(&request, &entries);
        assert_eq!(same, !passed_by.contains(&name), "{name}");
    }
}

#[test]
fn chain_16_target_name_cases() {
    let cases = &cases()["targetNames"];
    assert!(!list(cases, "vectors").is_empty());
    for case in list(cases, "vectors") {
        let name = TargetName {
            service: text(case, "service"),
            subset: text(case, "subset"),
            namespace: text(case, "namespace"),
            partition: text(case, "partition"),
            datacenter: text(case, "datacenter"),
            peer: text(case, "peer"),
        };
        assert_eq!(name.id(), text(case, "id"));
        assert_eq!(name.sni(text(cases, "trustDomain")), text(case, "sni"));
    }
}

#[test]
fn chain_16_customization_hash_cases() {
    let cases = cases();
    assert!(!list(&cases, "customizationHash").is_empty());
    for case in list(&cases, "customizationHash") {
        let mode = MeshGatewayMode::from_text(text(case, "meshGatewayMode")).unwrap();
        let timeout = GoDuration(case["connectTimeoutNanos"].as_i64().unwrap());
        let protocol = text(case, "protocol");
        assert_eq!(
            customization_hash(mode, protocol, timeout),
            text(case, "hash")
        );
        assert_eq!(full_hash(mode, protocol, timeout), text(case, "full64"));
    }
}

#[test]
fn chain_16_related_services_cases() {
    let cases = cases();
    assert!(!list(&cases, "relatedServices").is_empty());
    for case in list(&cases, "relatedServices") {
        let entry: ConfigEntry = read(&case["entry"]);
        let services = related_services(&entry);
        let names: Vec<&str> = services.iter().map(|s| s.name().as_str()).collect();
        assert_eq!(serde_json::json!(names), case["services"], "{case}");
        assert_eq!(
            serde_json::json!(related_peers(&entry)),
            case["peers"],
            "{case}"
        );
    }
}

#[test]
fn chain_16_header_merge_cases() {
    let cases = cases();
    assert!(!list(&cases, "headerMerge").is_empty());
    for case in list(&cases, "headerMerge") {
        let split = |key: &str| read::<ServiceSplit>(&case[key]);
        let (outer, inner) = (split("outer"), std::borrow::Cow::Owned(split("inner")));
        let merged = nested_definition(&outer, &inner);
        assert_eq!(*merged, split("expect"), "{case}");
        assert_eq!(
            (outer, inner.into_owned()),
            (split("outer"), split("inner"))
        );
    }
}
