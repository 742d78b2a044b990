//! The snapshot: everything one proxy needs, at one store index, immutable.
//!
//! A [`ConfigSnapshot`] is a shallow tree of [`PartRef`]s. An update copies the path to what changed and shares the rest,
//! so two snapshots are compared part by part by their ids ([`ConfigSnapshot::diff`]), and whatever is derived from a
//! part can be cached under its id. Parts that many proxies share (trust roots, a chain, the endpoints of a service, an
//! upstream with equal settings) are one allocation for all of them.

mod diff;
mod json;
mod part;
mod settings;
mod upstream_list;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use smallvec::SmallVec;
use smol_str::SmolStr;
use triomphe::Arc;

use crate::model::chain::CompiledChain;
use crate::model::{
    CaRoots, Endpoint, ExposedChecks, Intention, IssuedCert, JwtProvider, Locality, MeshConfig,
    ProxyConfig, ProxyId, ServiceKind, TaggedAddress, Upstream, UpstreamId,
};

pub use diff::{SnapshotChange, SnapshotDiff};
pub use part::{Part, PartId, PartRef};
pub use settings::UpstreamSettings;
pub use upstream_list::UpstreamList;

/// Everything that one proxy needs, at one store index.
#[derive(Debug, Clone)]
pub struct ConfigSnapshot {
    /// The store index that every part was read at.
    pub store_index: u64,
    /// Who the proxy is, with the central configuration merged in.
    pub header: PartRef<Header>,
    /// What its kind needs beside.
    pub kind: KindSnapshot,
}

/// The part of a snapshot that depends on the kind of proxy.
#[derive(Debug, Clone)]
pub enum KindSnapshot {
    /// A sidecar.
    ConnectProxy(ConnectProxySnapshot),
}

/// Who a proxy is (kinds.md 2).
#[derive(Debug, Clone, PartialEq)]
pub struct Header {
    /// Identity that it is registered under.
    pub proxy_id: ProxyId,
    /// Kind.
    pub kind: ServiceKind,
    /// Its own service name.
    pub service: SmolStr,
    /// Address; empty means the node's.
    pub address: SmolStr,
    /// Port.
    pub port: u16,
    /// Labels.
    pub service_meta: BTreeMap<String, String>,
    /// Addresses by tag.
    pub tagged_addresses: BTreeMap<String, TaggedAddress>,
    /// Region and zone.
    pub locality: Option<Locality>,
    /// The proxy block with central configuration merged in; its upstreams stand in the kind's part.
    pub proxy: ProxyConfig,
    /// Datacenter of the control plane.
    pub datacenter: SmolStr,
    /// What holds for callers that no intention speaks of.
    pub intention_default_allow: bool,
}

/// What a sidecar needs (kinds.md 6, 7): what it shares with its replicas, and what is its own.
#[derive(Debug, Clone)]
pub struct ConnectProxySnapshot {
    /// What all sidecars of one service with the same upstreams have in common.
    pub shared: Arc<SharedSidecar>,
    /// What of the application's own checks is to be opened; none unless `Expose.Checks` is set.
    pub exposed_checks: Option<PartRef<ExposedChecks>>,
}

/// One part for all sidecars that open no checks.
static NO_CHECKS: LazyLock<PartRef<ExposedChecks>> =
    LazyLock::new(|| Part::new(ExposedChecks::default()));

impl ConnectProxySnapshot {
    /// The checks to be opened: an empty part if there are none.
    #[must_use]
    pub fn exposed_checks(&self) -> &PartRef<ExposedChecks> {
        self.exposed_checks.as_ref().unwrap_or(&NO_CHECKS)
    }
}

/// What sidecars of one service with the same upstreams have in common: one allocation for all of them.
#[derive(Debug, Clone)]
pub struct SharedSidecar {
    /// Trust roots.
    pub roots: PartRef<CaRoots>,
    /// The certificate that it presents.
    pub leaf: PartRef<IssuedCert>,
    /// Who may call its service, highest precedence first.
    pub intentions: PartRef<Vec<Intention>>,
    /// Settings of the mesh, if there is an entry.
    pub mesh: PartRef<Option<MeshConfig>>,
    /// Token providers by name, sorted.
    pub jwt_providers: PartRef<Vec<Arc<JwtProvider>>>,
    /// What the application dials, sorted by id.
    pub upstreams: UpstreamList,
}

impl SharedSidecar {
    /// Whether the two are made of the same parts.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Part::is_same(&self.roots, &other.roots)
            && Part::is_same(&self.leaf, &other.leaf)
            && Part::is_same(&self.intentions, &other.intentions)
            && Part::is_same(&self.mesh, &other.mesh)
            && Part::is_same(&self.jwt_providers, &other.jwt_providers)
            && self.upstreams.has_same_parts(&other.upstreams)
    }
}

impl std::ops::Deref for ConnectProxySnapshot {
    type Target = SharedSidecar;

    fn deref(&self) -> &SharedSidecar {
        &self.shared
    }
}

/// An upstream of one proxy.
#[derive(Debug, Clone)]
pub struct UpstreamEntry {
    /// Where to listen for it, and how; shared by all proxies that define it equally.
    pub definition: PartRef<UpstreamDefinition>,
    /// Where its traffic goes; shared by all proxies with equal settings. `None` until its chain is known.
    pub target: Option<PartRef<UpstreamTarget>>,
}

/// An upstream as a proxy defines it.
#[derive(Debug, Clone, PartialEq)]
pub struct UpstreamDefinition {
    /// Which upstream.
    pub id: UpstreamId,
    /// Its definition, with central configuration merged in.
    pub upstream: Upstream,
}

/// Where an upstream's traffic goes.
#[derive(Debug, Clone)]
pub struct UpstreamTarget {
    /// Settings that reach clusters.
    pub settings: PartRef<UpstreamSettings>,
    /// The compiled chain.
    pub chain: PartRef<CompiledChain>,
    /// Instances by target, sorted by target id; one entry for every target of the chain.
    pub endpoints: TargetList,
}

/// Targets with their instances: of most chains, one.
pub type TargetList = SmallVec<[TargetEndpoints; 1]>;

/// The instances of one target of a chain.
#[derive(Debug, Clone)]
pub struct TargetEndpoints {
    /// Id of the target.
    pub target: SmolStr,
    /// Instances, sorted by node and id; `None` while they aren't known (decision X4: still an empty assignment).
    pub endpoints: Option<PartRef<Vec<Endpoint>>>,
}

impl ConfigSnapshot {
    /// Whether the two are made of the same parts: [`ConfigSnapshot::diff`] finds nothing, but sooner.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        let same_kind = match (&self.kind, &other.kind) {
            (KindSnapshot::ConnectProxy(a), KindSnapshot::ConnectProxy(b)) => {
                Part::is_same(a.exposed_checks(), b.exposed_checks())
                    && (Arc::ptr_eq(&a.shared, &b.shared) || a.shared.is_same(&b.shared))
            }
        };
        Part::is_same(&self.header, &other.header) && same_kind
    }

    /// The identity of the proxy.
    #[must_use]
    pub fn proxy_id(&self) -> &ProxyId {
        &self.header.proxy_id
    }

    /// The kind of the proxy.
    #[must_use]
    pub fn proxy_kind(&self) -> ServiceKind {
        self.header.kind
    }

    /// Trust roots.
    #[must_use]
    pub fn roots(&self) -> &PartRef<CaRoots> {
        match &self.kind {
            KindSnapshot::ConnectProxy(sidecar) => &sidecar.roots,
        }
    }

    /// The certificate, where the kind has one.
    #[must_use]
    pub fn leaf(&self) -> Option<&PartRef<IssuedCert>> {
        match &self.kind {
            KindSnapshot::ConnectProxy(sidecar) => Some(&sidecar.leaf),
        }
    }

    /// The mesh entry.
    #[must_use]
    pub fn mesh(&self) -> Option<&MeshConfig> {
        match &self.kind {
            KindSnapshot::ConnectProxy(sidecar) => (**sidecar.mesh).as_ref(),
        }
    }

    /// The service whose write right a watcher needs: a sidecar's destination, a gateway's own (engine.md 5.8).
    #[must_use]
    pub fn authorized_service(&self) -> &str {
        match self.kind {
            KindSnapshot::ConnectProxy(_) => &self.header.proxy.destination_service_name,
        }
    }
}

impl UpstreamEntry {
    /// Which upstream.
    #[must_use]
    pub fn id(&self) -> &UpstreamId {
        &self.definition.id
    }
}

impl UpstreamEntry {
    /// Whether the two are made of the same parts.
    fn is_same(&self, other: &Self) -> bool {
        let same_target = match (&self.target, &other.target) {
            (Some(a), Some(b)) => Part::is_same(a, b) || UpstreamTarget::is_same(a, b),
            (None, None) => true,
            _ => false,
        };
        Part::is_same(&self.definition, &other.definition) && same_target
    }
}

impl From<Upstream> for UpstreamDefinition {
    fn from(upstream: Upstream) -> Self {
        Self {
            id: UpstreamId::of(&upstream),
            upstream,
        }
    }
}

impl UpstreamTarget {
    /// Whether the two are made of the same parts.
    fn is_same(&self, other: &Self) -> bool {
        let of = |target: &TargetEndpoints| target.endpoints.as_ref().map(|part| part.id());
        Part::is_same(&self.chain, &other.chain)
            && Part::is_same(&self.settings, &other.settings)
            && self
                .endpoints
                .iter()
                .map(of)
                .eq(other.endpoints.iter().map(of))
    }

    /// The instances of a target: `None` if the chain has no such target or they aren't known yet.
    #[must_use]
    pub fn endpoints_of(&self, target: &str) -> Option<&PartRef<Vec<Endpoint>>> {
        let at = self
            .endpoints
            .binary_search_by(|e| e.target.as_str().cmp(target))
            .ok()?;
        self.endpoints[at].endpoints.as_ref()
    }
}
