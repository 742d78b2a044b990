//! Compiling a chain (discovery-chain.md 5 and 6).
//!
//! The graph is built in two arenas, nodes and targets, that refer to each other by position, and that borrow from the
//! entries. A target exists once per id; the first spelling of a name wins. What differs by stage is in the files beside
//! this one: `assemble` walks from the service through router and splitters, `resolve` from a target to its resolver
//! node, `targets` names and rewrites targets, `passes` checks and shortens the finished graph and copies it out.

mod assemble;
mod passes;
mod resolve;
mod targets;

use std::borrow::Cow;
use std::collections::BTreeMap;

use smol_str::SmolStr;

use crate::chain::entries::{EntrySet, ServiceKey};
use crate::chain::error::ChainError;
use crate::chain::hash::customization_hash;
use crate::chain::protocol::service_protocol;
use crate::chain::request::ChainRequest;
use crate::model::chain::CompiledChain;
use crate::model::{
    EnvoyExtension, FailoverPolicy, GoDuration, LoadBalancer, MeshGatewayMode, ServiceRoute,
    ServiceSplit, is_http_like,
};

use targets::Targets;

pub use passes::MAX_FLATTENED_SPLITS;

/// Compiles a chain. Equal inputs give equal chains; the entries are not changed.
///
/// # Errors
/// When the request lacks something, or when the entries contradict each other (discovery-chain.md 9).
pub fn compile(request: &ChainRequest, entries: &EntrySet) -> Result<CompiledChain, ChainError> {
    request.check()?;
    let mut compiler = Compiler::new(request, entries);
    let start = compiler.assemble()?;
    compiler.refuse_cycles(start)?;
    compiler.flatten_splitters()?;
    compiler.finish(start)
}

/// Position of a node.
type NodeIx = usize;

/// Position of a target.
type TargetIx = usize;

/// A node of the graph under construction.
struct Node<'a> {
    /// Name, for a resolver the id of its target.
    name: SmolStr,
    load_balancer: Option<&'a LoadBalancer>,
    stage: Stage<'a>,
}

/// What a node does.
enum Stage<'a> {
    Router(Vec<Route<'a>>),
    Splitter(Vec<Leg<'a>>),
    Resolver(Resolver<'a>),
}

/// A route of the router.
struct Route<'a> {
    definition: Cow<'a, ServiceRoute>,
    next: NodeIx,
}

/// A split of a splitter.
#[derive(Clone)]
struct Leg<'a> {
    definition: Cow<'a, ServiceSplit>,
    weight: f32,
    next: NodeIx,
}

/// What a resolver decided.
struct Resolver<'a> {
    target: TargetIx,
    default: bool,
    request_timeout: GoDuration,
    failover: Vec<TargetIx>,
    policy: Option<&'a FailoverPolicy>,
}

/// Which overrides had an effect.
#[derive(Default)]
struct Customized {
    mesh_gateway: bool,
    protocol: bool,
    connect_timeout: bool,
}

/// A protocol and the service that it was found at.
struct FoundProtocol {
    protocol: SmolStr,
    service: SmolStr,
}

/// The compilation of one chain.
struct Compiler<'a> {
    request: &'a ChainRequest,
    entries: &'a EntrySet,
    own: ServiceKey,
    nodes: Vec<Node<'a>>,
    targets: Targets,
    /// Splitter nodes by service.
    splitters: BTreeMap<ServiceKey, NodeIx>,
    /// Whether a service without a resolver got a failover to the default sameness group when it was first met.
    generated: BTreeMap<ServiceKey, bool>,
    protocol: Option<FoundProtocol>,
    /// A router or splitter is in use.
    uses_advanced: bool,
    /// The caller asked for a protocol that can't be routed or split.
    disable_advanced: bool,
    customized: Customized,
}

impl<'a> Compiler<'a> {
    fn new(request: &'a ChainRequest, entries: &'a EntrySet) -> Self {
        let asked = &request.override_protocol;
        Self {
            request,
            entries,
            own: request.service_key(),
            nodes: Vec::new(),
            targets: Targets::default(),
            splitters: BTreeMap::new(),
            generated: BTreeMap::new(),
            protocol: None,
            uses_advanced: false,
            disable_advanced: !asked.is_empty() && !is_http_like(asked),
            customized: Customized::default(),
        }
    }

    fn push(&mut self, node: Node<'a>) -> NodeIx {
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    /// Notes the protocol of a service of the chain; all must agree (discovery-chain.md 7).
    fn record_protocol(&mut self, service: &ServiceKey) -> Result<(), ChainError> {
        let protocol = service_protocol(
            self.entries.services.get(service).map(|e| &**e),
            self.entries
                .proxy_defaults
                .get(service.partition())
                .map(|e| &**e),
        );
        match &self.protocol {
            None => {
                self.protocol = Some(FoundProtocol {
                    protocol,
                    service: service.name().clone(),
                });
                Ok(())
            }
            Some(found) if found.protocol == protocol => Ok(()),
            Some(found) => Err(ChainError::InconsistentProtocols {
                chain: self.request.service_name.clone(),
                service: service.name().clone(),
                protocol,
                expected: found.protocol.clone(),
                expected_by: found.service.clone(),
            }),
        }
    }

    /// The last checks, and the chain (discovery-chain.md 6.3 to 7).
    fn finish(mut self, start: NodeIx) -> Result<CompiledChain, ChainError> {
        let found = self.protocol.as_ref().map(|found| found.protocol.clone());
        let mut protocol = found.unwrap_or_else(|| SmolStr::new_static("tcp"));
        if self.uses_advanced && !is_http_like(&protocol) {
            return Err(ChainError::AdvancedRoutingNotPermitted {
                chain: self.request.service_name.clone(),
                protocol,
            });
        }
        let asked = &self.request.override_protocol;
        if !asked.is_empty() && *asked != protocol {
            protocol = asked.clone();
            self.customized.protocol = true;
        }

        let own_defaults = self.entries.services.get(&self.own);
        let proxy_defaults = self.entries.proxy_defaults.get(self.own.partition());
        let extensions: Vec<EnvoyExtension> = proxy_defaults
            .iter()
            .flat_map(|e| &e.envoy_extensions)
            .chain(own_defaults.iter().flat_map(|e| &e.envoy_extensions))
            .cloned()
            .collect();
        let (nodes, targets) = self.copy_out(start);
        Ok(CompiledChain {
            service_name: self.request.service_name.clone(),
            namespace: self.request.evaluate_in_namespace.clone(),
            partition: self.request.evaluate_in_partition.clone(),
            datacenter: self.request.evaluate_in_datacenter.clone(),
            customization_hash: self.customization(),
            default: self.is_default(start),
            protocol,
            service_meta: own_defaults.map(|e| e.meta.clone()).unwrap_or_default(),
            envoy_extensions: extensions,
            start_node: SmolStr::from(self.node_key(start)),
            nodes,
            targets,
            auto_virtual_ips: self.request.auto_virtual_ips.clone(),
            manual_virtual_ips: self.request.manual_virtual_ips.clone(),
        })
    }

    /// The customization hash, empty when no override had an effect (discovery-chain.md 8).
    fn customization(&self) -> SmolStr {
        let Customized {
            mesh_gateway,
            protocol,
            connect_timeout,
        } = self.customized;
        if !(mesh_gateway || protocol || connect_timeout) {
            return SmolStr::default();
        }
        customization_hash(
            if mesh_gateway {
                self.request.override_mesh_gateway
            } else {
                MeshGatewayMode::Default
            },
            if protocol {
                &self.request.override_protocol
            } else {
                ""
            },
            if connect_timeout {
                self.request.override_connect_timeout
            } else {
                GoDuration::default()
            },
        )
    }

    /// Whether the chain is nothing but the service itself (discovery-chain.md 6.5).
    fn is_default(&self, start: NodeIx) -> bool {
        match &self.nodes[start].stage {
            Stage::Resolver(resolver) => {
                resolver.default && self.targets[resolver.target].key == self.own
            }
            Stage::Router(_) | Stage::Splitter(_) => false,
        }
    }
}
