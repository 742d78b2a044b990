//! Records: what the catalog and the configuration consist of, in Consul's public JSON, with defaults and validation.

mod certificate;
pub mod chain;
mod check;
mod config_entry;
pub mod decode;
mod definition;
mod duration;
mod endpoint;
mod ids;
mod intention;
mod node;
mod proxy;
mod service;
mod service_config;

pub(crate) use certificate::timestamp;
pub use certificate::{
    CaConfig, CaConfigError, CaRoot, CaRoots, CaRootsError, IssuedCert, LeafRequest,
    LeafRequestError, LeafRequestFields, LeafSubject, PrivateKey, SpiffeId, SpiffeIdError,
};
pub use check::{CheckDefinition, CheckStatus, HealthCheck};
pub use config_entry::*;
pub use decode::{Decode, Opaque, Place, Problem, Problems, Step, decode_document, record, words};
pub use definition::{AgentCheck, ConnectDefinition, ServiceDefinition};
pub use duration::GoDuration;
pub use endpoint::{Endpoint, EndpointHealth};
pub use ids::{NameKey, ProxyId, ProxySource, ServiceKind, UpstreamId};
pub use intention::Intention;
pub use node::{Locality, Node, TaggedAddress};
pub use proxy::{
    AccessLogs, EnvoyExtension, Expose, ExposePath, MeshGateway, MeshGatewayMode, MutualTlsMode,
    ProxyConfig, ProxyMode, TransparentProxy, Upstream,
};
pub use service::{Connect, ServiceInstance, Weights};
pub use service_config::{ResolvedServiceConfig, ResolvedUpstreamConfig};
