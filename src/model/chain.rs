//! The compiled discovery chain (discovery-chain.md 3): where traffic for a service can go, and how.

use std::collections::BTreeMap;

use smol_str::SmolStr;

use crate::model::config_entry::{
    FailoverPolicy, LoadBalancer, PrioritizeByLocality, ServiceRoute, ServiceSplit, Subset,
};
use crate::model::decode::{record, words};
use crate::model::duration::GoDuration;
use crate::model::node::Locality;
use crate::model::proxy::{EnvoyExtension, MeshGateway, TransparentProxy};

record! {
    /// A compiled chain.
    pub struct CompiledChain {
        /// The chain's own service.
        service_name: SmolStr = "ServiceName" always,
        /// Its namespace.
        namespace: SmolStr = "Namespace" always,
        /// Its partition.
        partition: SmolStr = "Partition" always,
        /// Datacenter it was evaluated in.
        datacenter: SmolStr = "Datacenter" always,
        /// Set when an override of the caller had an effect.
        customization_hash: SmolStr = "CustomizationHash",
        /// Whether nothing but the service itself is behind it.
        default: bool = "Default",
        /// Protocol.
        protocol: SmolStr = "Protocol",
        /// Labels of the service.
        service_meta: BTreeMap<String, String> = "ServiceMeta",
        /// Extensions.
        envoy_extensions: Vec<EnvoyExtension> = "EnvoyExtensions",
        /// Key of the first node.
        start_node: SmolStr = "StartNode",
        /// Reachable nodes by key; boxed, since a tree's leaf has room for eleven, and most chains have one.
        nodes: BTreeMap<String, Box<ChainNode>> = "Nodes",
        /// Targets in use by id.
        targets: BTreeMap<String, Box<ChainTarget>> = "Targets",
        /// Addresses given by the store.
        auto_virtual_ips: Vec<String> = "AutoVirtualIPs",
        /// Addresses given by an operator.
        manual_virtual_ips: Vec<String> = "ManualVirtualIPs",
    }
}

words! {
    /// What a node does.
    pub enum ChainNodeType {
        /// Chooses a target.
        Resolver = "resolver",
        /// Matches requests.
        Router = "router",
        /// Shares traffic.
        Splitter = "splitter",
    }
}

record! {
    /// A vertex of the graph.
    pub struct ChainNode {
        /// What it does.
        kind: ChainNodeType = "Type" always,
        /// Name.
        name: SmolStr = "Name" always,
        /// Of a router, in order.
        routes: Vec<ChainRoute> = "Routes",
        /// Of a splitter, in order.
        splits: Vec<ChainSplit> = "Splits",
        /// Of a resolver.
        resolver: Option<ChainResolver> = "Resolver",
        /// Of a resolver or splitter.
        load_balancer: Option<LoadBalancer> = "LoadBalancer",
    }
}

record! {
    /// A route and where it leads.
    pub struct ChainRoute {
        /// As configured.
        definition: ServiceRoute = "Definition" always,
        /// Key of the next node.
        next_node: SmolStr = "NextNode" always,
    }
}

record! {
    /// A share and where it leads.
    pub struct ChainSplit {
        /// As configured.
        definition: ServiceSplit = "Definition" always,
        /// Percent of the traffic.
        weight: f32 = "Weight" always,
        /// Key of the next node.
        next_node: SmolStr = "NextNode" always,
    }
}

record! {
    /// What a resolver decided.
    pub struct ChainResolver {
        /// Nothing is configured.
        default: bool = "Default",
        /// Time to connect.
        connect_timeout: GoDuration = "ConnectTimeout" always,
        /// Time for a request.
        request_timeout: GoDuration = "RequestTimeout",
        /// Id of the target.
        target: SmolStr = "Target" always,
        /// Where to go when it has no healthy instance.
        failover: Option<ChainFailover> = "Failover",
    }
}

record! {
    /// Failover of a target.
    pub struct ChainFailover {
        /// Ids of targets in order.
        targets: Vec<SmolStr> = "Targets",
        /// Order.
        policy: Option<FailoverPolicy> = "Policy",
        /// Regions in order.
        regions: Vec<String> = "Regions",
    }
}

record! {
    /// A set of instances to look up.
    pub struct ChainTarget {
        /// Id.
        id: SmolStr = "ID",
        /// Service.
        service: SmolStr = "Service",
        /// Subset.
        service_subset: SmolStr = "ServiceSubset",
        /// Namespace.
        namespace: SmolStr = "Namespace",
        /// Partition.
        partition: SmolStr = "Partition",
        /// Datacenter; empty with a peer.
        datacenter: SmolStr = "Datacenter",
        /// Peer.
        peer: SmolStr = "Peer",
        /// Locality of the peer.
        locality: Option<Locality> = "Locality",
        /// How traffic to it goes.
        mesh_gateway: MeshGateway = "MeshGateway",
        /// The subset's definition.
        subset: Subset = "Subset",
        /// Direct dialling.
        transparent_proxy: TransparentProxy = "TransparentProxy",
        /// Time to connect.
        connect_timeout: GoDuration = "ConnectTimeout",
        /// Outside the mesh.
        external: bool = "External",
        /// Server name.
        sni: SmolStr = "SNI",
        /// Name of its cluster.
        name: SmolStr = "Name",
        /// Preference for near instances.
        prioritize_by_locality: Option<PrioritizeByLocality> = "PrioritizeByLocality",
    }
}

impl CompiledChain {
    /// The id that the chain's own default target would have (discovery-chain.md 3).
    #[must_use]
    pub fn id(&self) -> String {
        format!(
            "{}.{}.{}.{}",
            self.service_name, self.namespace, self.partition, self.datacenter
        )
    }

    /// The start node, if the chain is well formed.
    #[must_use]
    pub fn start(&self) -> Option<&ChainNode> {
        self.nodes.get(self.start_node.as_str()).map(|node| &**node)
    }
}
