//! The HTTP API: the subset of Consul's that its clients use, in Consul's public forms, and our own below
//! `/v1/proxycfg`.
//!
//! ```text
//!  request --> access (token) --> Params (datacenter, tenancy) --> handler --> read:  query on a store snapshot, again when its keys change
//!                                                      \--> write: body -> record (all problems) -> one transaction
//! ```
//!
//! Handlers run on the server's runtime and never block it: reading, writing and encoding happen on its pool for blocking
//! work (`blocking`). Each file holds the endpoints of one subject; `json` and `select` are the forms of records and the
//! choice among them, `params`, `body`, `answer` and `error` the two ends of every request.
//!
//! Every read carries an `X-Consul-Index` of at least 1 and takes `index` and `wait` (store.md 2.4) where it reads the
//! store, a certificate or a snapshot. A bad record is answered 400 with every problem named at its place, and nothing
//! changes.

mod access;
mod admission;
mod agent;
mod agent_api;
mod answer;
mod blocking;
mod body;
mod catalog;
mod chain;
mod config;
mod connect;
mod connection;
mod dump;
mod error;
mod health;
mod host;
mod intentions;
mod json;
mod local_agent;
mod metrics;
mod params;
mod proxies;
mod proxycfg;
mod select;
mod serve;

use std::fmt;
use std::hash::BuildHasher as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::Response;
use axum::routing::get;
use prometheus_client::registry::Registry;
use smol_str::SmolStr;
use tokio::sync::watch;

pub use agent_api::{Agent, AgentError};
pub use dump::{MeshDump, ResourceDump};
pub use error::HttpError;
pub use local_agent::{Heartbeats, LocalAgent};
pub use serve::serve;

use crate::embedded::Embedded;
use crate::server::Rate;
use crate::server::access::Authorizer;
use crate::server::ads::{AdsService, StreamStatus};
use crate::server::connections::{self, ConnectionLimits, Connections};
use crate::store::Store;
use admission::Admission;
use metrics::Metrics;
use params::Params;

/// Settings of the HTTP API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpConfig {
    /// Most bytes of a request's body. Default 4 MiB.
    pub max_body: usize,
    /// Most bytes of the bodies of all requests that are being received and worked on; a request for which there is no room is
    /// refused with 429. Default 64 MiB.
    pub max_bodies: usize,
    /// Most requests that are answered at a time, those that wait for a change included; more are refused with 429. Default
    /// 10,000.
    pub max_requests: usize,
    /// How many requests are taken; more are refused with 429. Default any.
    pub max_request_rate: Option<Rate>,
    /// How many requests that may write are taken. Default any.
    pub max_write_rate: Option<Rate>,
    /// Most connections at a time. A new one takes the place of the one that has been without a request for longest; if all
    /// have requests it is refused with 503. Default 11,000, so that whoever asks for the metrics still finds a place.
    pub max_connections: usize,
    /// How many bytes of a request's head may be there before it is complete, at least 8,192; else it is refused with 431.
    /// Default 64 KiB.
    pub max_header: usize,
    /// How long a connection may take for its first request, and the head of any request to arrive. Default 30 s.
    pub header_timeout: Duration,
    /// How long a connection may be without a request, and how long a client may read nothing of its answer. Default 5 minutes.
    pub idle_timeout: Duration,
    /// How long the body of a request may take to arrive. Default 30 s.
    pub body_timeout: Duration,
    /// How long a blocking read waits that doesn't say. Default 5 minutes.
    pub default_wait: Duration,
    /// How long a blocking read waits at most, its random extra of a sixteenth aside. Default 10 minutes.
    pub max_wait: Duration,
    /// How long a stopping server waits for requests to end. Default 5 seconds.
    pub stop_grace: Duration,
    /// Whether requests are refused, with 403, whose `Host` is a name with a dot, `*.localhost` aside: for a loopback address where
    /// whoever connects is let in, lest pages in a browser on the same machine reach it under a name of theirs. Default false.
    pub local_hosts_only: bool,
    /// Whether calls are allowed that no intention speaks of, for `/v1/connect/intentions/check`. Default true.
    pub intention_default_allow: bool,
    /// The address that others reach this agent at, for display. Default 127.0.0.1.
    pub advertise_address: SmolStr,
    /// The port of the xDS server without TLS, for `/v1/agent/self`. Default none.
    pub xds_plaintext_port: Option<u16>,
    /// The port of the xDS server with TLS.
    pub xds_tls_port: Option<u16>,
    /// Envoy releases that are known to work, for `/v1/agent/self`. Default none.
    pub envoy_versions: Vec<String>,
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            max_body: 4 * 1024 * 1024,
            max_bodies: 64 * 1024 * 1024,
            max_requests: 10_000,
            max_request_rate: None,
            max_write_rate: None,
            max_connections: 11_000,
            max_header: 64 * 1024,
            header_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(300),
            body_timeout: Duration::from_secs(30),
            default_wait: Duration::from_secs(300),
            max_wait: Duration::from_secs(600),
            stop_grace: Duration::from_secs(5),
            local_hosts_only: false,
            intention_default_allow: true,
            advertise_address: SmolStr::new_static("127.0.0.1"),
            xds_plaintext_port: None,
            xds_tls_port: None,
            envoy_versions: Vec::new(),
        }
    }
}

/// What the HTTP API stands on.
pub struct HttpParts {
    /// Store, authority and engine.
    pub embedded: Arc<Embedded>,
    /// The name of the agent's node.
    pub node: SmolStr,
    /// The local agent.
    pub agent: Arc<dyn Agent>,
    /// Makes the resources of proxies visible.
    pub dump: Arc<dyn ResourceDump>,
    /// The xDS service, whose streams are shown.
    pub ads: Option<AdsService>,
    /// Who may ask for what.
    pub authorizer: Arc<dyn Authorizer>,
    /// Metrics of other parts, to be shown with those of the HTTP API, the engine and the xDS service.
    pub registry: Registry,
}

/// The state that all requests share.
pub struct HttpState {
    config: HttpConfig,
    embedded: Arc<Embedded>,
    node: SmolStr,
    agent: Arc<dyn Agent>,
    dump: Arc<dyn ResourceDump>,
    ads: Option<AdsService>,
    authorizer: Arc<dyn Authorizer>,
    metrics: Metrics,
    admission: Admission,
    connections: Arc<Connections>,
    bodies: body::Room,
    stopping: watch::Sender<bool>,
    random: foldhash::fast::RandomState,
    drawn: AtomicU64,
}

impl fmt::Debug for HttpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpState")
            .field("config", &self.config)
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

impl HttpState {
    /// Puts the parts together.
    #[must_use]
    pub fn new(parts: HttpParts, config: HttpConfig) -> Arc<Self> {
        let HttpParts {
            embedded,
            node,
            agent,
            dump,
            ads,
            authorizer,
            mut registry,
        } = parts;
        let connections = Connections::new(ConnectionLimits {
            max: config.max_connections,
            head: config.header_timeout,
            idle: config.idle_timeout,
            only_heads: true,
        });
        let mut servers = vec![("http", connections.clone())];
        servers.extend(ads.iter().map(|ads| ("xds", ads.connections().clone())));
        connections::register_metrics(&mut registry, servers);
        let metrics = Metrics::new(registry, &embedded, ads.clone());
        let admission = Admission::new(&config, embedded.manager.clock().monotonic());
        Arc::new(Self {
            admission,
            connections,
            bodies: body::Room::new(&config),
            config,
            embedded,
            node,
            agent,
            dump,
            ads,
            authorizer,
            metrics,
            stopping: watch::Sender::new(false),
            random: foldhash::fast::RandomState::default(),
            drawn: AtomicU64::new(0),
        })
    }

    /// The settings.
    #[must_use]
    pub fn config(&self) -> &HttpConfig {
        &self.config
    }

    /// Ends all waiting reads with the answer they have, also those that begin later.
    pub fn stop(&self) {
        self.stopping.send_replace(true);
    }

    /// The connections of clients.
    #[must_use]
    pub fn connections(&self) -> &Arc<Connections> {
        &self.connections
    }

    fn embedded(&self) -> &Arc<Embedded> {
        &self.embedded
    }

    fn store(&self) -> &Arc<Store> {
        &self.embedded.store
    }

    fn agent(&self) -> &dyn Agent {
        &*self.agent
    }

    fn dump(&self) -> &dyn ResourceDump {
        &*self.dump
    }

    fn authorizer(&self) -> &dyn Authorizer {
        &*self.authorizer
    }

    fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    fn streams(&self) -> Vec<StreamStatus> {
        self.ads
            .as_ref()
            .map(AdsService::streams)
            .unwrap_or_default()
    }

    fn node(&self) -> &SmolStr {
        &self.node
    }

    fn datacenter(&self) -> &SmolStr {
        self.embedded.authority().datacenter()
    }

    /// Refuses other datacenters, with Consul's answer.
    fn check_datacenter(&self, asked: &str) -> Result<(), HttpError> {
        let own = self.datacenter();
        if asked.eq_ignore_ascii_case(own) {
            return Ok(());
        }
        Err(HttpError::internal(format!(
            "No path to datacenter: {asked:?} is not this one, {own:?}"
        )))
    }

    /// Fills in the datacenter of a record that names none; refuses another.
    fn take_datacenter(&self, named: &mut String) -> Result<(), HttpError> {
        if !named.is_empty() {
            self.check_datacenter(named)?;
        }
        self.datacenter().as_str().clone_into(named);
        Ok(())
    }

    /// Ends when the server stops.
    async fn stopping(&self) {
        let mut stopping = self.stopping.subscribe();
        // The sender lives as long as this state.
        let _ = stopping.wait_for(|stopping| *stopping).await;
    }

    /// A random time from 0 to below `most`, so that clients that began to wait together don't end together.
    fn jitter(&self, most: Duration) -> Duration {
        let drawn = self.drawn.fetch_add(1, Ordering::Relaxed);
        let random = u128::from(self.random.hash_one(drawn));
        let nanos = (most.as_nanos() * random) >> 64;
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(0))
    }
}

/// All endpoints.
pub fn router(state: &Arc<HttpState>) -> Router {
    Router::new()
        .route("/v1/status/leader", get(leader))
        .route("/v1/status/peers", get(peers))
        .route("/metrics", get(metrics::metrics))
        .merge(catalog::routes())
        .merge(health::routes())
        .merge(config::routes())
        .merge(connect::routes())
        .merge(intentions::routes())
        .merge(chain::routes())
        .merge(agent::routes())
        .merge(proxycfg::routes())
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        // Bodies are bounded where they are received.
        .layer(DefaultBodyLimit::disable())
        .layer(from_fn_with_state(state.clone(), body::receive))
        .layer(from_fn_with_state(state.clone(), access::check))
        .layer(from_fn_with_state(state.clone(), host::check))
        .layer(from_fn_with_state(state.clone(), admission::admit))
        .layer(from_fn_with_state(state.clone(), metrics::count))
        .layer(from_fn(connection::occupy))
        .with_state(state.clone())
}

async fn leader(
    State(state): State<Arc<HttpState>>,
    params: Params,
) -> Result<Response, HttpError> {
    Ok(params.writer().json(&address(&state))?.at(1))
}

async fn peers(State(state): State<Arc<HttpState>>, params: Params) -> Result<Response, HttpError> {
    Ok(params.writer().json(&[address(&state)])?.at(1))
}

/// Who leads: always this server. The port is that of Consul's servers among each other, which nobody listens on.
fn address(state: &HttpState) -> String {
    let host = &state.config.advertise_address;
    if host.contains(':') {
        format!("[{host}]:8300")
    } else {
        format!("{host}:8300")
    }
}

async fn unknown(request: Request) -> HttpError {
    HttpError::not_found(format!(
        "there is no endpoint {}; this control plane has /v1/status, /v1/catalog, /v1/health, /v1/agent, /v1/config, \
         /v1/connect/ca, /v1/connect/intentions, /v1/discovery-chain, /v1/proxycfg and /metrics",
        request.uri().path()
    ))
}

async fn wrong_method(request: Request) -> HttpError {
    let method = request.method();
    HttpError::new(
        StatusCode::METHOD_NOT_ALLOWED,
        format!(
            "method {method} is not allowed for {}; the {} header says which are",
            request.uri().path(),
            header::ALLOW
        ),
    )
}

/// A short text that differs for contents that differ.
fn hash_text(content: &[u8]) -> String {
    use std::fmt::Write as _;
    let digest = ring::digest::digest(&ring::digest::SHA256, content);
    digest.as_ref()[..16]
        .iter()
        .fold(String::with_capacity(32), |mut text, byte| {
            // Writing into a String can't fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
}
