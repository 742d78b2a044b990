//! Answers: shared parts with an identity.

use triomphe::Arc;

use crate::model::chain::CompiledChain;
use crate::model::{
    CaRoots, Endpoint, ExposedChecks, Intention, IssuedCert, JwtProvider, MeshConfig,
    ResolvedServiceConfig, ServiceInstance,
};
use crate::snapshot::{PartId, PartRef};

/// The answer to a query. The part's id is the answer's revision: as long as the content is equal, the id stays.
#[derive(Debug, Clone)]
pub enum Answer {
    /// To [`Query::CaRoots`](super::Query::CaRoots).
    CaRoots(PartRef<CaRoots>),
    /// To [`Query::Leaf`](super::Query::Leaf).
    Leaf(PartRef<IssuedCert>),
    /// To [`Query::Intentions`](super::Query::Intentions), highest precedence first.
    Intentions(PartRef<Vec<Intention>>),
    /// To [`Query::Mesh`](super::Query::Mesh): `None` if there is no entry, which is an answer too.
    Mesh(PartRef<Option<MeshConfig>>),
    /// To [`Query::JwtProviders`](super::Query::JwtProviders), sorted by name.
    JwtProviders(PartRef<Vec<Arc<JwtProvider>>>),
    /// To [`Query::Chain`](super::Query::Chain).
    Chain(PartRef<CompiledChain>),
    /// To [`Query::Endpoints`](super::Query::Endpoints), sorted by node and id.
    Endpoints(PartRef<Vec<Endpoint>>),
    /// To [`Query::ServiceConfig`](super::Query::ServiceConfig).
    ServiceConfig(PartRef<ResolvedServiceConfig>),
    /// To [`Query::ExposedChecks`](super::Query::ExposedChecks): empty if there are none.
    ExposedChecks(PartRef<ExposedChecks>),
    /// To [`Query::ServiceRecord`](super::Query::ServiceRecord): `None` if it isn't registered.
    ServiceRecord(PartRef<Option<Arc<ServiceInstance>>>),
}

macro_rules! each {
    ($answer:expr, $p:ident => $body:expr) => {
        match $answer {
            Answer::CaRoots($p) => $body,
            Answer::Leaf($p) => $body,
            Answer::Intentions($p) => $body,
            Answer::Mesh($p) => $body,
            Answer::JwtProviders($p) => $body,
            Answer::Chain($p) => $body,
            Answer::Endpoints($p) => $body,
            Answer::ServiceConfig($p) => $body,
            Answer::ExposedChecks($p) => $body,
            Answer::ServiceRecord($p) => $body,
        }
    };
}

impl Answer {
    /// The revision.
    #[must_use]
    pub fn id(&self) -> PartId {
        each!(self, part => part.id())
    }

    /// Whether two answers say the same.
    #[must_use]
    pub fn same_content(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::CaRoots(a), Self::CaRoots(b)) => ***a == ***b,
            (Self::Leaf(a), Self::Leaf(b)) => ***a == ***b,
            (Self::Intentions(a), Self::Intentions(b)) => ***a == ***b,
            (Self::Mesh(a), Self::Mesh(b)) => ***a == ***b,
            (Self::JwtProviders(a), Self::JwtProviders(b)) => ***a == ***b,
            (Self::Chain(a), Self::Chain(b)) => ***a == ***b,
            (Self::Endpoints(a), Self::Endpoints(b)) => ***a == ***b,
            (Self::ServiceConfig(a), Self::ServiceConfig(b)) => ***a == ***b,
            (Self::ExposedChecks(a), Self::ExposedChecks(b)) => ***a == ***b,
            (Self::ServiceRecord(a), Self::ServiceRecord(b)) => ***a == ***b,
            _ => false,
        }
    }
}
