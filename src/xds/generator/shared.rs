//! What proxies share: encoded once, under the ids of the parts that it is made from.

use std::sync::atomic::{AtomicU64, Ordering};

use smol_str::SmolStr;
use triomphe::Arc;

use crate::model::chain::CompiledChain;
use crate::model::{CaRoots, Endpoint, MeshConfig};
use crate::snapshot::{PartId, PartRef, UpstreamSettings};
use crate::xds::cache::{Cache, Entry};
use crate::xds::clusters::{self, Assignment, MeshContext};
use crate::xds::endpoints::{self, Terms};
use crate::xds::{BuildError, Problem, Resource, ResourceType, names, routes, secrets};

/// The caches.
#[derive(Debug, Default)]
pub(super) struct Shared {
    roots: Cache<PartId, RootsResult>,
    clusters: Cache<ClustersKey, ClustersResult>,
    assignments: Cache<AssignmentKey, (Arc<Resource>, Vec<Problem>)>,
    routes: Cache<RouteKey, Result<Arc<Resource>, BuildError>>,
    encodings: AtomicU64,
}

/// Keeps an entry in its cache.
#[derive(Debug, Clone)]
#[allow(dead_code, reason = "holding them is what they are for")]
pub(super) enum Hold {
    Roots(Entry<RootsResult>),
    Clusters(Entry<ClustersResult>),
    Assignment(Entry<(Arc<Resource>, Vec<Problem>)>),
    Route(Entry<Result<Arc<Resource>, BuildError>>),
}

type RootsResult = Result<(Arc<Resource>, Vec<Problem>), BuildError>;
type ClustersResult = Result<Arc<[SharedCluster]>, BuildError>;

/// An encoded cluster of a chain.
#[derive(Debug, Clone)]
pub(super) struct SharedCluster {
    pub resource: Arc<Resource>,
    /// Which instances it gets; none for an aggregate.
    pub assignment: Option<Assignment>,
    /// Whether it is of the chain's own service.
    pub own: bool,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct ClustersKey {
    chain: PartId,
    settings: PartId,
    mesh: PartId,
    trust_domain: SmolStr,
    datacenter: SmolStr,
    fetch_timeout_ms: Option<i64>,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct AssignmentKey {
    instances: Option<PartId>,
    cluster: SmolStr,
    only_passing: bool,
    failover: bool,
    datacenter: SmolStr,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct RouteKey {
    chain: PartId,
    name: SmolStr,
    validate_clusters: bool,
}

/// What the mesh decides about everything.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mesh<'a> {
    pub entry: &'a PartRef<Option<MeshConfig>>,
    pub trust_domain: &'a SmolStr,
    pub datacenter: &'a SmolStr,
    pub fetch_timeout_ms: Option<i64>,
}

impl Shared {
    pub(super) fn encodings(&self) -> u64 {
        self.encodings.load(Ordering::Relaxed)
    }

    pub(super) fn len(&self) -> usize {
        self.roots.len() + self.clusters.len() + self.assignments.len() + self.routes.len()
    }

    pub(super) fn counted(&self, resource: Resource) -> Arc<Resource> {
        self.encodings.fetch_add(1, Ordering::Relaxed);
        resource.shared()
    }

    pub(super) fn roots(&self, roots: &PartRef<CaRoots>) -> (RootsResult, Hold) {
        let entry = self.roots.entry(roots.id());
        let result = entry.get(|| {
            let (secret, problems) = secrets::roots(roots)?;
            Ok((
                self.encode(ResourceType::Secret, names::ROOTS_SECRET, &secret),
                problems,
            ))
        });
        (result.clone(), Hold::Roots(entry.clone()))
    }

    pub(super) fn clusters(
        &self,
        chain: &PartRef<CompiledChain>,
        settings: &PartRef<UpstreamSettings>,
        mesh: Mesh<'_>,
    ) -> (ClustersResult, Hold) {
        let entry = self.clusters.entry(ClustersKey {
            chain: chain.id(),
            settings: settings.id(),
            mesh: mesh.entry.id(),
            trust_domain: mesh.trust_domain.clone(),
            datacenter: mesh.datacenter.clone(),
            fetch_timeout_ms: mesh.fetch_timeout_ms,
        });
        let result = entry.get(|| {
            let outgoing = mesh.entry.as_ref().as_ref();
            let outgoing = outgoing
                .as_ref()
                .and_then(|mesh| mesh.tls.as_ref()?.outgoing.as_ref());
            let context = MeshContext {
                trust_domain: mesh.trust_domain,
                datacenter: mesh.datacenter,
                outgoing,
                fetch_timeout_ms: mesh.fetch_timeout_ms,
            };
            let built = clusters::chain_clusters(chain, settings, context)?;
            let encoded = built.into_iter().map(|(name, cluster)| {
                let mut resource = Resource::new(ResourceType::Cluster, name, cluster.bytes);
                if cluster.composed {
                    resource = resource.composed();
                }
                let asks_for = cluster.assignment.as_ref().map(|a| a.cluster.clone());
                if asks_for.as_ref() != Some(resource.name()) {
                    resource = resource.with_children(asks_for);
                }
                SharedCluster {
                    resource: self.counted(resource),
                    assignment: cluster.assignment,
                    own: cluster.own,
                }
            });
            Ok(Arc::from(encoded.collect::<Vec<_>>()))
        });
        (result.clone(), Hold::Clusters(entry.clone()))
    }

    pub(super) fn assignment(
        &self,
        of: &Assignment,
        instances: Option<&PartRef<Vec<Endpoint>>>,
        datacenter: &SmolStr,
    ) -> (Arc<Resource>, Vec<Problem>, Hold) {
        let instances = instances.filter(|_| !of.through_gateway);
        let entry = self.assignments.entry(AssignmentKey {
            instances: instances.map(|instances| instances.id()),
            cluster: of.cluster.clone(),
            only_passing: of.only_passing,
            failover: of.failover,
            datacenter: datacenter.clone(),
        });
        let (resource, problems) = entry.get(|| {
            let terms = Terms { only_passing: of.only_passing, failover: of.failover, datacenter };
            let instances = instances.map_or(&[][..], |instances| instances.as_slice());
            let (message, mut problems) = endpoints::assignment(&of.cluster, instances, terms);
            if of.through_gateway {
                problems.push(Problem::new(
                    of.cluster.clone(),
                    "its instances are in another datacenter and must be reached through mesh gateways, which are not supported yet",
                ));
            }
            (self.encode(ResourceType::Endpoint, &of.cluster, &message), problems)
        });
        (
            resource.clone(),
            problems.clone(),
            Hold::Assignment(entry.clone()),
        )
    }

    pub(super) fn route(
        &self,
        chain: &PartRef<CompiledChain>,
        name: &str,
        validate_clusters: bool,
    ) -> (Result<Arc<Resource>, BuildError>, Hold) {
        let entry = self.routes.entry(RouteKey {
            chain: chain.id(),
            name: name.into(),
            validate_clusters,
        });
        let result = entry.get(|| {
            let table = routes::route_table(chain, name, validate_clusters)?;
            Ok(self.encode(ResourceType::Route, name, &table))
        });
        (result.clone(), Hold::Route(entry.clone()))
    }
}
