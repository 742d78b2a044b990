//! Collecting entries, checking writes, and the field cases of chains.

use std::collections::{BTreeMap, BTreeSet};

use smol_str::SmolStr;
use triomphe::Arc;

use crate::chain::related;
use crate::chain::*;
use crate::hcl::Value;
use crate::model::chain::CompiledChain;
use crate::model::{
    ConfigEntry, EntryKind, Locality, NameKey, ProxyDefaults, ServiceDefaults, ServiceIntentions,
    ServiceResolver, ServiceRouter, ServiceSplitter, decode_document,
};

/// A store of entries that remembers what it was asked for.
#[derive(Default)]
pub(super) struct Table {
    entries: EntrySet,
    intentions: BTreeMap<ServiceKey, Arc<ServiceIntentions>>,
    pub(super) asked: Vec<String>,
}

impl Table {
    pub(super) fn of(entries: &EntrySet) -> Self {
        Self {
            entries: entries.clone(),
            ..Self::default()
        }
    }

    fn with(entries: &[serde_json::Value]) -> Self {
        let mut table = Self::default();
        for entry in entries {
            table.write(entry);
        }
        table
    }

    /// Writes an entry, unchecked.
    fn write(&mut self, json: &serde_json::Value) -> Change {
        let (entry, _) = decode_document::<ConfigEntry>(&Value::from_json(json)).unwrap();
        let change = Change {
            kind: entry.kind(),
            service: ServiceKey::named(entry.name()),
        };
        match entry {
            ConfigEntry::ServiceRouter(e) => self.entries.add_router(Arc::new(e)),
            ConfigEntry::ServiceSplitter(e) => self.entries.add_splitter(Arc::new(e)),
            ConfigEntry::ServiceResolver(e) => self.entries.add_resolver(Arc::new(e)),
            ConfigEntry::ServiceDefaults(e) => self.entries.add_service_defaults(Arc::new(e)),
            ConfigEntry::ProxyDefaults(e) => self.entries.add_proxy_defaults(Arc::new(e)),
            ConfigEntry::ServiceIntentions(e) => {
                self.intentions.insert(change.service.clone(), Arc::new(e));
            }
            other => panic!("{:?}", other.kind()),
        }
        change
    }

    /// Deletes an entry, unchecked.
    fn delete(&mut self, kind: EntryKind, name: &str) -> Change {
        let service = ServiceKey::named(name);
        let found = match kind {
            EntryKind::ServiceDefaults => self.entries.services.remove(&service).is_some(),
            EntryKind::ServiceRouter => self.entries.routers.remove(&service).is_some(),
            other => panic!("{other:?}"),
        };
        assert!(found);
        Change { kind, service }
    }

    fn compile(&mut self, service: &str) -> CompiledChain {
        let request = ChainRequest::new(service, "dc1", "t.consul");
        let entries = gather(&request, self);
        compile(&request, &entries).unwrap()
    }

    fn ask(&mut self, kind: &str, name: &SmolStr) {
        self.asked.push(format!("{kind}/{}", NameKey::new(name)));
    }
}

impl EntryLookup for Table {
    fn router(&mut self, service: &ServiceKey) -> Option<Arc<ServiceRouter>> {
        self.ask("router", service.name());
        self.entries.routers.get(service).cloned()
    }

    fn splitter(&mut self, service: &ServiceKey) -> Option<Arc<ServiceSplitter>> {
        self.ask("splitter", service.name());
        self.entries.splitters.get(service).cloned()
    }

    fn resolver(&mut self, service: &ServiceKey) -> Option<Arc<ServiceResolver>> {
        self.ask("resolver", service.name());
        self.entries.resolvers.get(service).cloned()
    }

    fn service_defaults(&mut self, service: &ServiceKey) -> Option<Arc<ServiceDefaults>> {
        self.ask("defaults", service.name());
        self.entries.services.get(service).cloned()
    }

    fn proxy_defaults(&mut self, partition: &str) -> Option<Arc<ProxyDefaults>> {
        self.ask("proxy", &partition.into());
        self.entries.proxy_defaults.get(partition).cloned()
    }

    fn peer_locality(&mut self, _partition: &str, peer: &str) -> Option<Locality> {
        self.ask("peer", &peer.into());
        self.entries.peers.get(peer).cloned()
    }

    fn sameness_group(&mut self, _partition: &str, name: &str) -> Option<Arc<SamenessGroup>> {
        self.ask("group", &name.into());
        self.entries.sameness_groups.get(name).cloned()
    }

    fn default_sameness_group(&mut self, _partition: &str) -> Option<Arc<SamenessGroup>> {
        self.entries.default_sameness_group.clone()
    }
}

impl ChainGraph for Table {
    fn services_naming(&mut self, service: &ServiceKey) -> Vec<ServiceKey> {
        let set = &self.entries;
        let routers = set.routers.iter().map(|(k, e)| (k, related::of_router(e)));
        let splitters = set
            .splitters
            .iter()
            .map(|(k, e)| (k, related::of_splitter(e)));
        let resolvers = set
            .resolvers
            .iter()
            .map(|(k, e)| (k, related::of_resolver(e)));
        routers
            .chain(splitters)
            .chain(resolvers)
            .filter(|(_, named)| named.contains(service))
            .map(|(key, _)| key.clone())
            .collect()
    }

    fn services_with_chain_entries(&mut self) -> Vec<ServiceKey> {
        let set = &self.entries;
        let keys = set.routers.keys().chain(set.splitters.keys());
        keys.chain(set.resolvers.keys()).cloned().collect()
    }

    fn intentions(&mut self, service: &ServiceKey) -> Option<Arc<ServiceIntentions>> {
        self.intentions.get(service).cloned()
    }

    fn services_with_intentions(&mut self) -> Vec<ServiceKey> {
        self.intentions.keys().cloned().collect()
    }
}

fn protocol(service: &str, protocol: &str) -> serde_json::Value {
    serde_json::json!({"Kind": "service-defaults", "Name": service, "Protocol": protocol})
}

fn router_to(name: &str, services: &[&str]) -> serde_json::Value {
    let route = |service: &&str| {
        serde_json::json!({"Match": {"HTTP": {"PathPrefix": format!("/{service}")}},
            "Destination": {"Service": service}})
    };
    let routes: Vec<_> = services.iter().map(route).collect();
    serde_json::json!({"Kind": "service-router", "Name": name, "Routes": routes})
}

#[test]
fn chain_11_asks_for_exactly_what_matters() {
    let mut table = Table::with(&[
        serde_json::json!({"Kind": "proxy-defaults", "Name": "global", "Config": {"protocol": "http"}}),
        router_to("main", &["a", "b"]),
        serde_json::json!({"Kind": "service-splitter", "Name": "A",
            "Splits": [{"Weight": 50}, {"Weight": 50, "Service": "c"}]}),
        serde_json::json!({"Kind": "service-resolver", "Name": "b", "Redirect": {"Service": "d", "Peer": "east"}}),
        // A splitter behind a redirect is never consulted, nor is the router of a destination.
        serde_json::json!({"Kind": "service-splitter", "Name": "d", "Splits": [{"Weight": 100, "Service": "x"}]}),
        router_to("a", &["x"]),
    ]);
    table.compile("main");
    let asked: BTreeSet<&str> = table.asked.iter().map(String::as_str).collect();
    assert_eq!(asked.len(), table.asked.len(), "{:?}", table.asked);
    let wanted = BTreeSet::from([
        "router/main",
        "splitter/a",
        "splitter/b",
        "splitter/c",
        "splitter/main",
        "resolver/a",
        "resolver/b",
        "resolver/c",
        "resolver/d",
        "resolver/main",
        "defaults/a",
        "defaults/b",
        "defaults/c",
        "defaults/d",
        "defaults/main",
        "proxy/default",
        "peer/east",
    ]);
    assert_eq!(asked, wanted);
}

#[test]
fn fc_052_redirect_is_not_a_default_chain() {
    let mut table = Table::with(&[
        serde_json::json!({"Kind": "service-resolver", "Name": "web", "Redirect": {"Service": "other"}}),
    ]);
    let chain = table.compile("web");
    assert!(!chain.default);
    assert_eq!(chain.start_node, "resolver:other.default.default.dc1");
    let targets: Vec<&String> = chain.targets.keys().collect();
    assert_eq!(targets, ["other.default.default.dc1"]);
    let target = &chain.targets["other.default.default.dc1"];
    assert_eq!(target.sni, "other.default.dc1.internal.t.consul");
}

#[test]
fn fc_053_peer_target_is_not_judged_by_a_local_protocol() {
    let mut table = Table::with(&[protocol("mylocal", "http")]);
    let change = table.write(
        &serde_json::json!({"Kind": "service-resolver", "Name": "mylocal",
        "Failover": {"*": {"Targets": [{"Peer": "east", "Service": "myremote"}]}}}),
    );
    assert_eq!(check_write(&[change], &mut table), Ok(()));
    let chain = table.compile("mylocal");
    assert_eq!(chain.protocol, "http");
    let resolver = chain.start().unwrap().resolver.as_ref().unwrap();
    let failover = &resolver.failover.as_ref().unwrap().targets;
    assert_eq!(failover, &["myremote.default.default.external.east"]);
    assert_eq!(chain.targets[failover[0].as_str()].peer, "east");
}

#[test]
fn fc_057_delete_that_would_break_another_entry() {
    let entries = [
        protocol("app", "http"),
        protocol("new-app", "http"),
        router_to("app", &["new-app"]),
    ];
    let mut table = Table::with(&entries);
    let change = table.delete(EntryKind::ServiceDefaults, "new-app");
    let problem = check_write(&[change], &mut table).unwrap_err();
    assert_eq!(problem.chain, "app");
    let text = problem.to_string();
    assert!(
        text.contains("\"app\"") && text.contains("\"new-app\""),
        "{text}"
    );

    let mut table = Table::with(&entries);
    for (kind, name) in [
        (EntryKind::ServiceRouter, "app"),
        (EntryKind::ServiceDefaults, "new-app"),
        (EntryKind::ServiceDefaults, "app"),
    ] {
        let change = table.delete(kind, name);
        assert_eq!(check_write(&[change], &mut table), Ok(()));
    }
}

#[test]
fn fc_058_router_over_mixed_protocols() {
    for (a, b) in [("http", "grpc"), ("http", "tcp"), ("tcp", "tcp")] {
        let mut table = Table::with(&[protocol("a", a), protocol("b", b), protocol("x", "http")]);
        let change = table.write(&router_to("x", &["a", "b"]));
        let problem = check_write(&[change], &mut table).unwrap_err();
        let GraphReason::Chain(error) = &*problem.reason else {
            panic!("{problem}");
        };
        assert_eq!(error.code(), "inconsistent-protocols");
        let text = problem.to_string();
        for fact in [
            "\"x\"",
            if a == "tcp" { "\"a\"" } else { "\"b\"" },
            b,
            "\"http\"",
        ] {
            assert!(text.contains(fact), "{text}");
        }
    }
    let mut table = Table::with(&[]);
    let change = table.write(&serde_json::json!({"Kind": "service-splitter", "Name": "x",
        "Splits": [{"Weight": 50, "Service": "a"}, {"Weight": 50, "Service": "b"}]}));
    let problem = check_write(&[change], &mut table).unwrap_err();
    assert!(
        problem.to_string().contains("can't be routed or split"),
        "{problem}"
    );
}

#[test]
fn fc_067_routes_keep_their_order_and_their_services() {
    let header = serde_json::json!({"Match": {"HTTP": {"Header": [{"Name": "x", "Exact": "1"}]}},
        "Destination": {"Service": "a"}});
    let exact = serde_json::json!({"Match": {"HTTP": {"PathExact": "/e"}}, "Destination": {"Service": "b"}});
    let prefix = serde_json::json!({"Match": {"HTTP": {"PathPrefix": "/p"}}, "Destination": {"Service": "c"}});
    let all = serde_json::json!({"Match": {"HTTP": {"PathPrefix": "/"}}, "Destination": {"Service": "d"}});
    for order in [
        [(&header, "a"), (&exact, "b"), (&prefix, "c"), (&all, "d")],
        [(&all, "d"), (&exact, "b"), (&header, "a"), (&prefix, "c")],
    ] {
        let routes: Vec<_> = order.iter().map(|(route, _)| *route).collect();
        let mut table = Table::with(&[
            serde_json::json!({"Kind": "proxy-defaults", "Name": "global", "Config": {"protocol": "http"}}),
            serde_json::json!({"Kind": "service-router", "Name": "web", "Routes": routes}),
        ]);
        let chain = table.compile("web");
        let routes = &chain.start().unwrap().routes;
        let leads: Vec<&str> = routes.iter().map(|r| r.next_node.as_str()).collect();
        let mut wanted: Vec<String> = order
            .iter()
            .map(|(_, service)| format!("resolver:{service}.default.default.dc1"))
            .collect();
        wanted.push("resolver:web.default.default.dc1".to_owned());
        assert_eq!(leads, wanted);
    }
}

#[test]
fn chain_12_a_change_is_followed_over_several_entries() {
    // x's router leads to y, y's splitter to z: the splitter's own service says nothing about the protocol, so y's
    // chain stays sound when z changes from http to grpc, but x's doesn't.
    let mut table = Table::with(&[
        protocol("x", "http"),
        protocol("z", "http"),
        router_to("x", &["y"]),
        serde_json::json!({"Kind": "service-splitter", "Name": "y", "Splits": [{"Weight": 100, "Service": "z"}]}),
    ]);
    let change = table.write(&protocol("Z", "grpc"));
    let affected = affected_chains(std::slice::from_ref(&change), &mut table);
    let names: Vec<&str> = affected.iter().map(|s| s.name().as_str()).collect();
    assert_eq!(names, ["x", "y", "Z"]);
    let problem = check_write(&[change], &mut table).unwrap_err();
    assert_eq!(problem.chain, "x");
}

#[test]
fn chain_12_proxy_defaults_affect_every_chain() {
    let mut table = Table::with(&[router_to("x", &["y"])]);
    let change = table.write(
        &serde_json::json!({"Kind": "proxy-defaults", "Name": "global",
        "Config": {"protocol": "http"}}),
    );
    assert_eq!(check_write(&[change], &mut table), Ok(()));
    let change = table.write(&serde_json::json!({"Kind": "proxy-defaults", "Name": "global"}));
    let problem = check_write(&[change], &mut table).unwrap_err();
    assert_eq!(problem.chain, "x");
}

#[test]
fn chain_12_permissions_need_an_http_chain() {
    let intentions = serde_json::json!({"Kind": "service-intentions", "Name": "api", "Sources": [
        {"Name": "web", "Permissions": [{"Action": "allow", "HTTP": {"PathPrefix": "/"}}]}]});
    let mut table = Table::with(&[]);
    let change = table.write(&intentions);
    let problem = check_write(&[change], &mut table).unwrap_err();
    assert_eq!(
        *problem.reason,
        GraphReason::PermissionsNeedHttp {
            protocol: "tcp".into()
        }
    );

    let change = table.write(&protocol("api", "grpc"));
    assert_eq!(check_write(&[change], &mut table), Ok(()));
    let change = table.write(&protocol("api", "tcp"));
    assert!(check_write(&[change], &mut table).is_err());
}

#[test]
fn names_match_without_regard_to_case() {
    let mut table = Table::with(&[
        protocol("Web", "http"),
        protocol("apI", "http"),
        serde_json::json!({"Kind": "service-splitter", "Name": "web", "Splits": [
            {"Weight": 50, "Service": "WEB"}, {"Weight": 50, "Service": "Api"}]}),
        serde_json::json!({"Kind": "service-resolver", "Name": "API", "Redirect": {"Service": "web"}}),
    ]);
    let chain = table.compile("wEb");
    let targets: Vec<&String> = chain.targets.keys().collect();
    assert_eq!(targets, ["wEb.default.default.dc1"]);
    assert_eq!(chain.protocol, "http");
}

#[test]
fn peer_target_is_not_made_external_by_a_local_entry() {
    let mut table = Table::with(&[
        serde_json::json!({"Kind": "service-defaults", "Name": "remote", "ExternalSNI": "out.example"}),
        serde_json::json!({"Kind": "service-resolver", "Name": "web", "Redirect": {"Service": "remote", "Peer": "east"}}),
    ]);
    let chain = table.compile("web");
    let target = &chain.targets["remote.default.default.external.east"];
    assert!(!target.external && target.sni.is_empty());
}

#[test]
fn splitters_that_multiply_without_end_are_refused() {
    // Two splitters on each level, each sharing between both of the next level: the first has 2^level splits.
    let mut entries = vec![
        serde_json::json!({"Kind": "proxy-defaults", "Name": "global",
        "Config": {"protocol": "http"}}),
    ];
    for level in 0..40 {
        for side in ["a", "b"] {
            let next = level + 1;
            entries.push(serde_json::json!({"Kind": "service-splitter", "Name": format!("{side}{level}"), "Splits": [
                {"Weight": 50, "Service": format!("a{next}")}, {"Weight": 50, "Service": format!("b{next}")}]}));
        }
    }
    let mut table = Table::with(&entries);
    let request = ChainRequest::new("a0", "dc1", "t.consul");
    let entries = gather(&request, &mut table);
    let error = compile(&request, &entries).unwrap_err();
    assert_eq!(error.code(), "too-many-splits");
}

#[test]
fn long_chains_of_entries_need_no_stack() {
    let many = 20_000;
    let mut entries = EntrySet::default();
    let config = serde_json::json!({"protocol": "http"});
    entries.add_proxy_defaults(Arc::new(ProxyDefaults {
        config: config.as_object().unwrap().clone(),
        ..ProxyDefaults::default()
    }));
    for i in 0..many {
        let split = crate::model::ServiceSplit {
            weight: 100.0,
            service: format!("s{}", i + 1),
            ..Default::default()
        };
        entries.add_splitter(Arc::new(ServiceSplitter {
            name: format!("s{i}"),
            splits: vec![split],
            ..ServiceSplitter::default()
        }));
        entries.add_resolver(Arc::new(ServiceResolver {
            name: format!("r{i}"),
            redirect: Some(crate::model::Redirect {
                service: format!("r{}", i + 1),
                ..Default::default()
            }),
            ..ServiceResolver::default()
        }));
    }
    for (service, last) in [("s0", format!("s{many}")), ("r0", format!("r{many}"))] {
        let request = ChainRequest::new(service, "dc1", "t.consul");
        let chain = compile(&request, &entries).unwrap();
        let targets: Vec<&String> = chain.targets.keys().collect();
        assert_eq!(targets, [&format!("{last}.default.default.dc1")]);
    }
}
