//! What must hold for every input (discovery-chain.md 15.3), on random entry graphs.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use triomphe::Arc;

use crate::chain::*;
use crate::model::chain::{ChainNode, ChainNodeType, CompiledChain};
use crate::model::{
    ConfigEntry, Failover, FailoverTarget, GoDuration, HeaderModifiers, LoadBalancer, Locality,
    MeshGatewayMode, ProxyDefaults, Redirect, RouteDestination, ServiceDefaults, ServiceResolver,
    ServiceRoute, ServiceRouter, ServiceSplit, ServiceSplitter, Subset, is_http_like,
};

fn next_nodes(node: &ChainNode) -> Vec<&str> {
    let routes = node.routes.iter().map(|r| r.next_node.as_str());
    let splits = node.splits.iter().map(|s| s.next_node.as_str());
    routes.chain(splits).collect()
}

/// Checks the rules of discovery-chain.md 15.3 that can be seen on one chain.
pub(super) fn check_shape(chain: &CompiledChain, request: &ChainRequest, entries: &EntrySet) {
    // 1: the nodes are those that can be reached.
    let mut reached = BTreeSet::from([chain.start_node.as_str()]);
    let mut open = vec![chain.start_node.as_str()];
    while let Some(key) = open.pop() {
        let node = chain.nodes.get(key);
        let node = node.unwrap_or_else(|| panic!("{key} is not among the nodes"));
        for next in next_nodes(node) {
            if reached.insert(next) {
                open.push(next);
            }
        }
    }
    let all: BTreeSet<&str> = chain.nodes.keys().map(String::as_str).collect();
    assert_eq!(all, reached);

    let mut used = BTreeSet::new();
    for (key, node) in &chain.nodes {
        // 4: keys.
        assert_eq!(*key, format!("{}:{}", node.kind, node.name));
        // 2: splitters don't feed splitters, and there is one router, first.
        for next in next_nodes(node) {
            let next = chain.nodes[next].kind;
            assert_ne!(next, ChainNodeType::Router);
            assert!(node.kind != ChainNodeType::Splitter || next != ChainNodeType::Splitter);
        }
        match node.kind {
            ChainNodeType::Router => {
                assert_eq!(*key, chain.start_node);
                // 5: the catch-all.
                let configured = entries.routers[&request.service_key()].routes.len();
                assert_eq!(node.routes.len(), configured + 1);
                let last = &node.routes.last().unwrap().definition;
                let http = last.matches.as_ref().unwrap().http.as_ref().unwrap();
                assert_eq!(http.path_prefix, "/");
                let to = last.destination.as_ref().unwrap();
                assert!(to.service.eq_ignore_ascii_case(&request.service_name));
            }
            ChainNodeType::Splitter => {
                for split in &node.splits {
                    // 12: at most two decimals.
                    assert!((split.weight - normalize_weight(split.weight)).abs() < f32::EPSILON);
                }
            }
            ChainNodeType::Resolver => {
                let resolver = node.resolver.as_ref().unwrap();
                assert_eq!(node.name, resolver.target);
                used.insert(resolver.target.as_str());
                if let Some(failover) = &resolver.failover {
                    // 7
                    assert!(!failover.targets.is_empty());
                    used.extend(failover.targets.iter().map(|id| id.as_str()));
                }
            }
        }
        // 6: with a router or splitter the protocol was one that can be routed.
        if node.kind != ChainNodeType::Resolver {
            assert!(
                request.override_protocol.is_empty() || is_http_like(&request.override_protocol)
            );
        }
    }
    assert!(!chain.protocol.is_empty());

    // 3: the targets are those in use.
    let all: BTreeSet<&str> = chain.targets.keys().map(String::as_str).collect();
    assert_eq!(all, used);
    for (id, target) in &chain.targets {
        assert_eq!(*id, target.id);
        // 8
        let local = target.peer.is_empty();
        for name in [&target.datacenter, &target.sni, &target.name] {
            assert_eq!(name.is_empty(), !local, "{id}");
        }
        // 9
        if target.external {
            assert_eq!(target.mesh_gateway.mode, MeshGatewayMode::Default);
        }
    }
}

/// Draws decisions from random bytes; when they are used up, every decision is the first choice.
struct Draw<'b> {
    bytes: std::slice::Iter<'b, u8>,
}

impl Draw<'_> {
    fn below(&mut self, n: usize) -> usize {
        usize::from(self.bytes.next().copied().unwrap_or(0)) % n
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == n - 1
    }

    fn of(&mut self, choices: &[&str]) -> String {
        choices[self.below(choices.len())].to_owned()
    }

    fn service(&mut self) -> String {
        self.of(&["main", "a", "b", "c", "d", "A"])
    }

    fn service_or_none(&mut self) -> String {
        if self.one_in(4) {
            String::new()
        } else {
            self.service()
        }
    }

    fn subset(&mut self) -> String {
        self.of(&["", "", "", "", "", "", "", "v1"])
    }

    fn datacenter(&mut self) -> String {
        self.of(&["", "", "dc1", "dc2"])
    }

    fn headers(&mut self) -> Option<HeaderModifiers> {
        self.one_in(4).then(|| HeaderModifiers {
            set: BTreeMap::from([(self.of(&["x", "y"]), self.of(&["1", "2"]))]),
            remove: vec![self.of(&["x", "y"])],
            ..HeaderModifiers::default()
        })
    }

    fn router(&mut self, name: String) -> ServiceRouter {
        let routes = (0..self.below(4))
            .map(|_| ServiceRoute {
                matches: None,
                destination: (!self.one_in(4)).then(|| RouteDestination {
                    service: self.service_or_none(),
                    service_subset: self.subset(),
                    ..RouteDestination::default()
                }),
            })
            .collect();
        ServiceRouter {
            name,
            routes,
            ..ServiceRouter::default()
        }
    }

    fn splitter(&mut self, name: String) -> ServiceSplitter {
        let splits = (0..self.below(4))
            .map(|_| ServiceSplit {
                weight: normalize_weight([100.0, 50.0, 33.33, 0.01][self.below(4)]),
                service: self.service_or_none(),
                service_subset: self.subset(),
                request_headers: self.headers(),
                response_headers: self.headers(),
                ..ServiceSplit::default()
            })
            .collect();
        ServiceSplitter {
            name,
            splits,
            ..ServiceSplitter::default()
        }
    }

    fn resolver(&mut self, name: String, peers: bool) -> ServiceResolver {
        let peer = |draw: &mut Self| {
            if peers {
                draw.of(&["", "", "east"])
            } else {
                String::new()
            }
        };
        let mut subsets = BTreeMap::new();
        for subset in ["v1", "v2"] {
            if !self.one_in(4) {
                subsets.insert(subset.to_owned(), Subset::default());
            }
        }
        let mut failover = BTreeMap::new();
        if self.one_in(2) {
            let section = if self.one_in(2) {
                Failover {
                    service: self.service_or_none(),
                    service_subset: self.subset(),
                    datacenters: (0..self.below(3)).map(|_| self.datacenter()).collect(),
                    ..Failover::default()
                }
            } else {
                let target = |draw: &mut Self| FailoverTarget {
                    service: draw.service_or_none(),
                    service_subset: draw.subset(),
                    datacenter: draw.datacenter(),
                    peer: peer(draw),
                    ..FailoverTarget::default()
                };
                Failover {
                    targets: (0..=self.below(3)).map(|_| target(self)).collect(),
                    ..Failover::default()
                }
            };
            failover.insert(self.of(&["*", "v1"]), section);
        }
        ServiceResolver {
            name,
            default_subset: self.subset(),
            subsets,
            redirect: self.one_in(3).then(|| Redirect {
                service: self.service_or_none(),
                service_subset: self.subset(),
                datacenter: self.datacenter(),
                peer: peer(self),
                ..Redirect::default()
            }),
            failover,
            connect_timeout: GoDuration::from_secs(i64::try_from(self.below(3)).unwrap()),
            load_balancer: self.one_in(3).then(|| LoadBalancer {
                policy: self.of(&["maglev", "random"]),
                ..LoadBalancer::default()
            }),
            ..ServiceResolver::default()
        }
    }

    fn entries(&mut self, peers: bool) -> Vec<ConfigEntry> {
        let mut entries = Vec::new();
        if !self.one_in(4) {
            let config = serde_json::json!({"protocol": self.of(&["http", "http", "grpc", "tcp"])});
            entries.push(ConfigEntry::ProxyDefaults(ProxyDefaults {
                name: "global".to_owned(),
                config: config.as_object().unwrap().clone(),
                ..ProxyDefaults::default()
            }));
        }
        for name in ["main", "a", "b", "c", "d"] {
            let name = name.to_owned();
            if self.one_in(3) {
                entries.push(ConfigEntry::ServiceRouter(self.router(name.clone())));
            }
            if self.one_in(2) {
                entries.push(ConfigEntry::ServiceSplitter(self.splitter(name.clone())));
            }
            if self.one_in(2) {
                let resolver = self.resolver(name.clone(), peers);
                entries.push(ConfigEntry::ServiceResolver(resolver));
            }
            if self.one_in(6) {
                entries.push(ConfigEntry::ServiceDefaults(ServiceDefaults {
                    name,
                    protocol: self.of(&["http", "HTTP", "tcp"]),
                    external_sni: self.of(&["", "", "out.example"]),
                    ..ServiceDefaults::default()
                }));
            }
        }
        entries
    }

    fn request(&mut self) -> ChainRequest {
        ChainRequest {
            override_protocol: self.of(&["", "", "", "tcp", "http", "grpc"]).into(),
            override_connect_timeout: GoDuration::from_secs([0, 0, 5, 7][self.below(4)]),
            override_mesh_gateway: [
                MeshGatewayMode::Default,
                MeshGatewayMode::Default,
                MeshGatewayMode::Local,
            ][self.below(3)],
            ..ChainRequest::new("main", "dc1", "t.consul")
        }
    }
}

fn set_of(entries: impl IntoIterator<Item = ConfigEntry>) -> EntrySet {
    let mut set = EntrySet::default();
    for entry in entries {
        match entry {
            ConfigEntry::ServiceRouter(e) => set.add_router(Arc::new(e)),
            ConfigEntry::ServiceSplitter(e) => set.add_splitter(Arc::new(e)),
            ConfigEntry::ServiceResolver(e) => set.add_resolver(Arc::new(e)),
            ConfigEntry::ServiceDefaults(e) => set.add_service_defaults(Arc::new(e)),
            ConfigEntry::ProxyDefaults(e) => set.add_proxy_defaults(Arc::new(e)),
            other => panic!("{:?}", other.kind()),
        }
    }
    let locality = Locality {
        region: "r1".to_owned(),
        ..Locality::default()
    };
    set.peers.insert("east".into(), locality);
    set
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// 1 to 9, 11, 12 and 15: what compiles has the right shape, and everything terminates.
    #[test]
    fn chain_15_3_shape(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let mut draw = Draw { bytes: bytes.iter() };
        let request = draw.request();
        let entries = set_of(draw.entries(true));
        let before = format!("{entries:?}");
        if let Ok(chain) = compile(&request, &entries) {
            check_shape(&chain, &request, &entries);
        }
        prop_assert_eq!(format!("{:?}", entries), before);
    }

    /// 10: the hash tells whether an override had an effect.
    #[test]
    fn chain_15_3_10_customized_iff_different(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let mut draw = Draw { bytes: bytes.iter() };
        let request = draw.request();
        let entries = set_of(draw.entries(true));
        if let Ok(chain) = compile(&request, &entries) {
            let plain = ChainRequest::new("main", "dc1", "t.consul");
            let same = compile(&plain, &entries).as_ref() == Ok(&chain);
            prop_assert_eq!(chain.customization_hash.is_empty(), same);
        }
    }

    /// 13: the order in which entries arrive doesn't matter.
    #[test]
    fn chain_15_3_13_order_of_entries(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let mut draw = Draw { bytes: bytes.iter() };
        let request = draw.request();
        let entries = draw.entries(true);
        let backward = set_of(entries.iter().rev().cloned());
        prop_assert_eq!(compile(&request, &set_of(entries)), compile(&request, &backward));
    }

    /// What was collected for a chain is enough for it, and every collected name matters or was seen.
    #[test]
    fn chain_11_gathered_entries_suffice(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let mut draw = Draw { bytes: bytes.iter() };
        let request = draw.request();
        let all = set_of(draw.entries(false));
        let mut store = super::graph::Table::of(&all);
        let gathered = gather(&request, &mut store);
        prop_assert_eq!(compile(&request, &gathered), compile(&request, &all));
        let asked = &store.asked;
        prop_assert_eq!(asked.len(), asked.iter().collect::<BTreeSet<_>>().len());
    }
}

#[test]
fn chain_15_3_14_nothing_configured() {
    let request = ChainRequest::new("main", "dc1", "t.consul");
    let chain = compile(&request, &EntrySet::default()).unwrap();
    assert!(chain.default);
    assert_eq!(chain.protocol, "tcp");
    assert_eq!((chain.nodes.len(), chain.targets.len()), (1, 1));
    assert_eq!(chain.id(), "main.default.default.dc1");
    assert!(chain.targets.contains_key(&chain.id()));
    check_shape(&chain, &request, &EntrySet::default());
}
