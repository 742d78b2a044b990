//! Settings and limits of the xDS service.

use std::time::Duration;

use super::node::EnvoyVersion;
use crate::server::Rate;

/// What one stream may cost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdsLimits {
    /// Names that a stream may subscribe to or say it holds, for each type. Default 100,000.
    pub max_names: usize,
    /// Bytes of one resource name or version in a request. Default 2,048.
    pub max_name_len: usize,
    /// Bytes of one request. Default 16 MiB: an Envoy with ten thousand clusters lists them all when it reconnects.
    pub max_request_len: usize,
    /// Requests of one stream. Default 1,000 a second: an Envoy sends one for each response, and a few more when clusters or
    /// listeners come.
    pub max_request_rate: Option<Rate>,
}

impl Default for AdsLimits {
    fn default() -> Self {
        Self {
            max_names: 100_000,
            max_name_len: 2_048,
            max_request_len: 16 * 1024 * 1024,
            max_request_rate: Rate::new(1_000),
        }
    }
}

/// Settings of the xDS service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdsConfig {
    /// What one stream may cost.
    pub limits: AdsLimits,
    /// How long an idle stream goes on before its token is looked at again (xds.md 1.4). Default 5 minutes.
    pub auth_check_interval: Duration,
    /// The oldest Envoy that is served (xds.md 1.3). Default 1.20.0.
    pub min_envoy_version: EnvoyVersion,
    /// Single Envoy releases that are refused, each with the reason and what to use instead. Default none.
    pub refused_envoy_versions: Vec<(EnvoyVersion, String)>,
    /// How often a silent connection is probed (HTTP/2 ping). Default 30 seconds.
    pub keepalive_interval: Duration,
    /// How long a probe may stay unanswered before the connection is closed. Default 20 seconds.
    pub keepalive_timeout: Duration,
    /// Connections at a time. A new one takes the place of the one that has been without a stream for longest; if all have
    /// streams it is refused. Default 10,000.
    pub max_connections: usize,
    /// How long a connection may be without a stream. Default 1 minute.
    pub idle_timeout: Duration,
    /// Streams of all connections together. Default 10,000.
    pub max_streams: usize,
    /// New streams, of all connections together. Default any: after an interruption all clients come at once.
    pub max_stream_rate: Option<Rate>,
    /// Streams on one connection. Default 100.
    pub max_streams_per_connection: u32,
    /// How long a stopping server waits for its connections to close. Default 5 seconds.
    pub stop_grace: Duration,
}

impl Default for AdsConfig {
    fn default() -> Self {
        Self {
            limits: AdsLimits::default(),
            auth_check_interval: Duration::from_secs(300),
            min_envoy_version: EnvoyVersion::new(1, 20, 0),
            refused_envoy_versions: Vec::new(),
            keepalive_interval: Duration::from_secs(30),
            keepalive_timeout: Duration::from_secs(20),
            max_connections: 10_000,
            idle_timeout: Duration::from_secs(60),
            max_streams: 10_000,
            max_stream_rate: None,
            max_streams_per_connection: 100,
            stop_grace: Duration::from_secs(5),
        }
    }
}
