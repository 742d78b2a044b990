//! Queries, answers, and the sources that answer.

mod query;
mod service_config;

pub use query::{AuthScope, ChainQuery, EndpointsQuery, Query, QueryKey, ServiceConfigQuery};
pub(crate) use service_config::find_setting;
pub use service_config::{ResolveInput, protocol_of, resolve};
