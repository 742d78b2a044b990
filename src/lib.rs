//! proxycfg keeps one immutable, current snapshot for every mesh proxy.
#![forbid(unsafe_code)]

pub mod ca;
pub mod chain;
pub mod clock;
pub mod config_source;
pub mod embedded;
pub mod engine;
pub mod filter;
pub mod hcl;
pub mod model;
pub mod proxy;
pub mod snapshot;
pub mod source;
pub mod store;
pub mod sync;

#[cfg(feature = "xds")]
pub mod xds;

#[cfg(feature = "server")]
pub mod server;
