//! The xDS server: what Envoys connect to.
//!
//! Generic over where resources come from: a [`ResourceProvider`] says who may connect and gives each stream a
//! [`ResourceWatch`], the newest [`ResourceSet`](crate::xds::ResourceSet) of its proxy. From there:
//!
//! ```text
//!  requests --> stream task --> AdsStream (no I/O: what is asked for, held, on its way, refused)
//!  updates  -->     |    <------ next response, when there is room for one
//!                   v
//!               transport (bytes are copied once, here)
//! ```
//!
//! The rules are those of xds.md Part 1 with decisions X1 to X7, for both forms in which Envoy may
//! ask ([`Protocol`]); only `wire` and `request` know the messages apart. `stream` explains the order in which things are sent,
//! `delivery` what is remembered for each type, `refusal` what happens to resources that the client refuses.

mod delivery;
mod limits;
mod metrics;
mod node;
mod plan;
mod protocol;
mod provider;
mod rarely;
mod refusal;
mod request;
mod service;
mod status;
mod stream;
mod stream_task;
mod subscription;
mod wire;

pub use limits::{AdsConfig, AdsLimits};
pub use metrics::{AdsMetrics, Counter, PerType};
pub use node::{Caller, ClientNode, EnvoyVersion, NodeError};
pub use protocol::Protocol;
pub use provider::{
    AuthError, EndReason, OpenError, ResourceProvider, ResourceWatch, StreamUpdate,
};
pub use request::{AdsRequest, Names};
pub use service::{AdsServer, AdsService, ServeError, serve};
pub use status::{Quarantined, StreamPhase, StreamStatus, TypeStatus};
pub use stream::{AdsResponse, AdsStream, RequestError, RequestKind};
