//! Envoy resources: what a proxy is sent over xDS.

mod resource;
mod resource_set;

pub use resource::{Resource, ResourceType};
pub use resource_set::{ResourceSet, ResourceSetBuilder};
