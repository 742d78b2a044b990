//! Queries and their identity.

use std::fmt;

use smol_str::SmolStr;

use crate::model::{GoDuration, MeshGatewayMode, ProxyMode};

/// Something a proxy wants to know, in normal form: equal questions are equal values.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Query {
    /// Trust roots.
    CaRoots,
    /// The certificate of a service.
    Leaf {
        /// The service, as written in its sidecar's registration: it becomes part of the certificate.
        service: SmolStr,
    },
    /// Who may call a service.
    Intentions {
        /// The service called.
        service: SmolStr,
    },
    /// Settings of the mesh.
    Mesh,
    /// All token providers.
    JwtProviders,
    /// A compiled discovery chain.
    Chain(ChainQuery),
    /// The instances of a service.
    Endpoints(EndpointsQuery),
    /// Central configuration of a service, resolved.
    ServiceConfig(ServiceConfigQuery),
    /// What of an instance's own checks a sidecar opens (store.md 4.11).
    ExposedChecks {
        /// Node.
        node: SmolStr,
        /// Id of the instance.
        service_id: SmolStr,
    },
    /// The registration of an instance in the catalog.
    ServiceRecord {
        /// Node.
        node: SmolStr,
        /// Id of the instance.
        service_id: SmolStr,
    },
}

/// Which chain, compiled how (store.md 4.3).
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChainQuery {
    /// The chain's service.
    pub service: SmolStr,
    /// Datacenter to evaluate it in.
    pub datacenter: SmolStr,
    /// Replaces the mode of all targets, unless default.
    pub override_mesh_gateway: MeshGatewayMode,
    /// Replaces the protocol, unless empty.
    pub override_protocol: SmolStr,
    /// Replaces the connect timeout, unless zero.
    pub override_connect_timeout: GoDuration,
}

/// Which instances (store.md 4.10).
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EndpointsQuery {
    /// The service.
    pub service: SmolStr,
    /// Filter expression of a subset; empty means all.
    pub filter: SmolStr,
    /// Datacenter.
    pub datacenter: SmolStr,
    /// Peer; with one, the datacenter is empty.
    pub peer: SmolStr,
}

/// Whose central configuration, for which upstreams (store.md 4.18).
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServiceConfigQuery {
    /// The service.
    pub service: SmolStr,
    /// Mode of the instance's registration.
    pub mode: ProxyMode,
    /// Mesh gateway mode of the instance's registration.
    pub mesh_gateway: MeshGatewayMode,
    /// Its upstreams of type service: peer and name, sorted, each once.
    pub upstreams: Vec<(SmolStr, SmolStr)>,
}

impl fmt::Display for Query {
    /// In words, for lists of what a proxy waits for.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CaRoots => f.write_str("trust roots"),
            Self::Leaf { service } => write!(f, "certificate of {service}"),
            Self::Intentions { service } => write!(f, "intentions of {service}"),
            Self::Mesh => f.write_str("mesh settings"),
            Self::JwtProviders => f.write_str("token providers"),
            Self::Chain(q) => write!(f, "discovery chain of {}", q.service),
            Self::Endpoints(q) => write!(f, "endpoints of {}", q.service),
            Self::ServiceConfig(q) => write!(f, "central configuration of {}", q.service),
            Self::ExposedChecks { node, service_id } => {
                write!(f, "checks of {node}/{service_id}")
            }
            Self::ServiceRecord { node, service_id } => {
                write!(f, "registration of {node}/{service_id}")
            }
        }
    }
}

/// On whose behalf a query is asked: answers that depend on a token are shared only within one scope (decision E4).
#[derive(Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AuthScope(pub SmolStr);

impl AuthScope {
    /// No token.
    pub const ANONYMOUS: Self = Self(SmolStr::new_inline(""));
}

impl fmt::Debug for AuthScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() {
            "anonymous"
        } else {
            "token"
        })
    }
}

/// A query's number within an engine: small and cheap to compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueryId(pub u64);

/// The identity of a query.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct QueryKey {
    /// On whose behalf; anonymous for views, whose answers don't depend on a token.
    pub scope: AuthScope,
    /// The question.
    pub query: Query,
}
