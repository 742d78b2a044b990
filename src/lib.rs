//! proxycfg keeps, for every registered mesh proxy, one immutable **snapshot** of everything that proxy needs: its
//! identity and certificate, the trust roots, who may call it, and what it dials with discovery chains and endpoints. It
//! keeps the snapshot current and hands it to every watcher whenever anything changes.
//!
//! ```text
//!  files, HTTP API, host          host / other servers
//!        │                            │ feeds: answers arrive later
//!        ▼                            ▼
//!   ┌─────────┐  commit   ┌────────────────────┐  changed   ┌────────────────┐
//!   │  store  │──────────▶│ views: each query  │  answers   │  worker pool   │  one state a proxy:
//!   │ tables, │  changed  │ answered once from │───────────▶│  parts: wants, │  run queue of wake tokens
//!   │ index,  │  keys     │ a store snapshot   │            │  assemble      │  (two lanes)
//!   │ readers │           └────────────────────┘◀───────────┴───────┬────────┘
//!   └─────────┘                             wanted queries          │ publish (a pointer) into a latest-value cell
//!        ▲                                                          ▼
//!        │                                                  ┌───────────────┐    xDS streams, Rust watchers,
//!   config sources: local state, catalog ──── register ────▶│    manager    │──▶ HTTP blocking reads
//!                                                           └───────────────┘    (newest snapshot only)
//! ```
//!
//! Data runs one way; nothing downstream calls upstream except by declaring what it wants. The rooms, from the ground up:
//!
//! | floor | room | what lives there |
//! |---|---|---|
//! | 1 | [`sync`], [`clock`], [`filter`], [`hcl`] | the latest-value cell, time, the filter language, HCL and JSON |
//! | 2 | [`model`] | records: services, checks, config entries, certificates, compiled chains |
//! | 3 | [`chain`], [`ca`], [`store`], [`snapshot`] | the chain compiler, the authority, the catalog, the snapshot |
//! | 4 | [`source`], `xds` | queries and who answers them; Envoy resources from snapshots |
//! | 5 | [`proxy`] | the pure core: from a registration and answers to a snapshot |
//! | 6 | [`engine`] | threads, steps, and the [`Manager`] |
//! | 7 | [`config_source`], [`embedded`] | who registers proxies; everything wired together |
//! | 8 | `server` | xDS, HTTP, health checks, files: the program |
//!
//! # Example
//!
//! An engine with everything in it, one instance of `db`, and the sidecar of `web` that dials it:
//!
//! ```
//! use std::time::{Duration, Instant};
//! use proxycfg::{Embedded, EmbeddedConfig, Op, ProxyId, ProxySource, RegisterOptions, Registration, Transaction};
//! use proxycfg::model::{Node, ProxyConfig, ServiceInstance, ServiceKind, Upstream};
//! use proxycfg::store::Register;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let engine = Embedded::start(EmbeddedConfig::default())?;
//!
//! let sidecar = |service: &str, upstreams: Vec<Upstream>| ServiceInstance {
//!     kind: ServiceKind::ConnectProxy,
//!     id: format!("{service}-sidecar-proxy"),
//!     service: format!("{service}-sidecar-proxy"),
//!     port: 21000,
//!     proxy: ProxyConfig {
//!         destination_service_name: service.into(),
//!         destination_service_id: service.into(),
//!         upstreams,
//!         ..ProxyConfig::default()
//!     },
//!     ..ServiceInstance::default()
//! };
//! let node = Node { node: "node-1".into(), address: "10.0.0.1".into(), ..Node::default() };
//! let db = Register { node, service: Some(sidecar("db", vec![])), ..Register::default() };
//! engine.store.apply(Transaction::of(Op::Register(Box::new(db))))?;
//!
//! let id = ProxyId::new("web-sidecar-proxy", "this-node");
//! let dials_db = Upstream { destination_name: "db".into(), local_bind_port: 9001, ..Upstream::default() };
//! engine.manager.register(&id, RegisterOptions {
//!     kind: ServiceKind::ConnectProxy,
//!     registration: Registration::Definition(triomphe::Arc::new(sidecar("web", vec![dials_db]))),
//!     source: ProxySource::new("example"),
//!     token: Default::default(),
//!     overwrite: true,
//! })?;
//!
//! let mut watch = engine.manager.watch(&id);
//! let snapshot = watch.next(Some(Instant::now() + Duration::from_secs(10)))?.ok_or("not ready in time")?;
//! let json = snapshot.to_json();
//! assert_eq!(json["ConnectProxy"]["Upstreams"]["db"]["DiscoveryChain"]["ServiceName"], "db");
//! # engine.close_soon();
//! # Ok(())
//! # }
//! ```
//!
//! # Features
//!
//! - `server` (default): the program's xDS and HTTP servers. Without it no async runtime is compiled in.
//! - `xds`: Envoy resources from snapshots; links the generated protobuf types and starts no runtime.
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

pub use embedded::{Embedded, EmbeddedConfig, EmbeddedError};
pub use engine::{
    CallbackWatch, CloseReport, EngineConfig, EngineCounts, Manager, ProxyStatus, RegisterError,
    RegisterOptions, Registered, SnapshotRef, WaitError, Watch, WatchEnd, WatchEvent,
};
pub use model::{ProxyId, ProxySource};
pub use proxy::Registration;
pub use snapshot::{ConfigSnapshot, SnapshotDiff};
pub use source::{Answer, Feed, Query, QueryError, Sources, Views};
pub use store::{Op, Store, Transaction};
