//! Refusing writes that would break a chain (discovery-chain.md 12).
//!
//! Before entries are written or deleted, the chains that they can affect are compiled as if it had been done. A chain
//! can be affected if its service changed, or if one of its entries names, at any distance, a service that did: the
//! search goes upward through the index of who names whom until nothing new is found.

use std::collections::BTreeSet;

use smol_str::SmolStr;
use triomphe::Arc;

use crate::chain::compile::compile;
use crate::chain::entries::ServiceKey;
use crate::chain::error::ChainError;
use crate::chain::gather::{EntryLookup, gather};
use crate::chain::request::ChainRequest;
use crate::model::{EntryKind, ServiceIntentions, is_http_like};

/// Entries **as they are after the write**, with the ways to walk them upward.
pub trait ChainGraph: EntryLookup {
    /// The services whose router, splitter or resolver names this one ([`related_services`](super::related_services),
    /// the other way round). A service that names itself may be among them.
    fn services_naming(&mut self, service: &ServiceKey) -> Vec<ServiceKey>;

    /// Every service that has a router, splitter or resolver.
    fn services_with_chain_entries(&mut self) -> Vec<ServiceKey>;

    /// The service-intentions of a service.
    fn intentions(&mut self, service: &ServiceKey) -> Option<Arc<ServiceIntentions>>;

    /// Every service that has service-intentions, `*` excepted.
    fn services_with_intentions(&mut self) -> Vec<ServiceKey>;
}

/// An entry that was written or deleted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Change {
    /// Its kind.
    pub kind: EntryKind,
    /// Its service; of no meaning for kinds that hold for the whole mesh.
    pub service: ServiceKey,
}

/// A chain that a write would break.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("this would break discovery chain {chain:?}: {reason}")]
pub struct GraphProblem {
    /// The chain's own service.
    pub chain: SmolStr,
    /// Why.
    #[source]
    pub reason: Box<GraphReason>,
}

/// Why a write is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GraphReason {
    /// The chain can't be compiled.
    #[error(transparent)]
    Chain(#[from] ChainError),
    /// The service's intentions look at HTTP requests.
    #[error(
        "the service-intentions of the service have Permissions, which need protocol http, http2 or grpc, but its protocol is \
         {protocol:?}; set another protocol in service-defaults or proxy-defaults, or remove the Permissions"
    )]
    PermissionsNeedHttp {
        /// Its protocol.
        protocol: SmolStr,
    },
}

/// Compiles every chain that the changes can affect.
///
/// # Errors
/// The first chain, by name, that can't be compiled or doesn't suit its intentions.
pub fn check_write<G: ChainGraph + ?Sized>(
    changes: &[Change],
    graph: &mut G,
) -> Result<(), GraphProblem> {
    for service in affected_chains(changes, graph) {
        check_chain(&service, graph).map_err(|reason| GraphProblem {
            chain: service.name().clone(),
            reason: Box::new(reason),
        })?;
    }
    Ok(())
}

/// The services whose chains the changes can affect.
pub fn affected_chains<G: ChainGraph + ?Sized>(
    changes: &[Change],
    graph: &mut G,
) -> BTreeSet<ServiceKey> {
    let mut affected = BTreeSet::new();
    let mut upward = Vec::new();
    for change in changes {
        match change.kind {
            EntryKind::ProxyDefaults => {
                affected.extend(graph.services_with_chain_entries());
                affected.extend(graph.services_with_intentions());
            }
            EntryKind::ServiceDefaults
            | EntryKind::ServiceRouter
            | EntryKind::ServiceSplitter
            | EntryKind::ServiceResolver => upward.push(change.service.clone()),
            EntryKind::ServiceIntentions => {
                if change.service.name() != "*" {
                    affected.insert(change.service.clone());
                }
            }
            EntryKind::Mesh | EntryKind::JwtProvider => {}
        }
    }
    let mut walked = BTreeSet::new();
    while let Some(service) = upward.pop() {
        if walked.insert(service.clone()) {
            upward.extend(graph.services_naming(&service));
        }
    }
    affected.extend(walked);
    affected
}

fn check_chain<G: ChainGraph + ?Sized>(
    service: &ServiceKey,
    graph: &mut G,
) -> Result<(), GraphReason> {
    // Names of the place don't decide whether a chain compiles.
    let request = ChainRequest {
        evaluate_in_namespace: service.namespace().clone(),
        evaluate_in_partition: service.partition().clone(),
        ..ChainRequest::new(service.name().clone(), "dc1", "check.consul")
    };
    let entries = gather(&request, graph);
    let chain = compile(&request, &entries)?;
    let needs_http = graph
        .intentions(service)
        .is_some_and(|e| e.sources.iter().any(|s| !s.permissions.is_empty()));
    if needs_http && !is_http_like(&chain.protocol) {
        return Err(GraphReason::PermissionsNeedHttp {
            protocol: chain.protocol,
        });
    }
    Ok(())
}
