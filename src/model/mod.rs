//! Records: what the catalog and the configuration consist of, in Consul's public JSON, with defaults and validation.

mod agent_check;
mod certificate;
pub mod chain;
mod check;
mod config_entry;
pub mod decode;
mod definition;
mod duration;
mod endpoint;
mod exposed_checks;
mod http_address;
mod ids;
mod intention;
mod node;
mod pattern;
mod problems;
mod proxy;
mod registration;
mod rules;
mod service;
mod service_config;
mod sidecar;
#[cfg(test)]
mod tests;
mod transaction;
mod validate;

pub use agent_check::{AgentCheck, CheckKind};
pub(crate) use certificate::timestamp;
pub use certificate::{
    CaConfig, CaConfigError, CaRoot, CaRoots, CaRootsError, IssuedCert, LeafRequest,
    LeafRequestError, LeafRequestFields, LeafSubject, PrivateKey, SpiffeId, SpiffeIdError,
};
pub use check::{
    AggregatedStatus, CheckDefinition, CheckStatus, HealthCheck, NODE_MAINTENANCE,
    SERVICE_MAINTENANCE_PREFIX,
};
pub use config_entry::*;
pub use decode::{Decode, Opaque, Place, Problem, Problems, Step, decode_document, record, words};
pub use definition::{ConnectDefinition, ServiceDefinition};
pub use duration::GoDuration;
pub use endpoint::{Endpoint, EndpointHealth};
pub use exposed_checks::ExposedChecks;
pub use http_address::HttpAddress;
pub use ids::{NameKey, ProxyId, ProxySource, ServiceKind, UpstreamId};
pub use intention::Intention;
pub use node::{Locality, Node, TaggedAddress};
pub use proxy::{
    AccessLogs, EnvoyExtension, Expose, ExposePath, MeshGateway, MeshGatewayMode, MutualTlsMode,
    ProxyConfig, ProxyMode, TransparentProxy, Upstream,
};
pub use registration::{CatalogDeregistration, CatalogRegistration};
pub use rules::{MAX_NAME, SIDECAR_SUFFIX};
pub use service::{Connect, ServiceInstance, Weights};
pub use service_config::{ResolvedServiceConfig, ResolvedUpstreamConfig};
pub use sidecar::{Expanded, LocalService, PortError, SidecarPortRange, SidecarPorts};
pub use transaction::{EntryDeletion, Op, Transaction};
pub use validate::{Validate, accept, read, read_at};
