//! Envoy resources: what a proxy is sent over xDS.
//!
//! A [`Generator`] turns a snapshot into a [`ResourceSet`]: the snapshot's parts become Envoy's messages (pure functions,
//! one file per kind of message), the messages become bytes in a fixed order (`encode.rs`), and what several proxies
//! share is encoded once for all of them (`cache.rs`).

mod access_log;
mod cache;
mod clusters;
mod custom;
mod encode;
mod endpoints;
#[cfg(test)]
mod envoy_check;
#[cfg(test)]
mod fixtures;
mod generator;
mod http;
mod json;
mod jwt;
mod matchers;
mod names;
mod problem;
mod proto;
mod rate_limit;
mod rbac;
mod re2;
mod resource;
mod resource_set;
mod routes;
mod secrets;
mod settings;
mod sidecar;
mod tls_context;

pub use generator::{Generated, Generator};
pub use json::{JsonError, resource_to_json};
pub use problem::Problem;
pub use resource::{Resource, ResourceType, version_of_all};
pub use resource_set::{ResourceSet, ResourceSetBuilder};

use problem::BuildError;
