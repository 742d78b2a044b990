//! The limits of a server, in one place for the program's options.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::config_source::{SessionControl, SessionLimiter};
use crate::server::Rate;
use crate::server::ads::AdsConfig;
use crate::server::files::FileLimits;
use crate::server::http::HttpConfig;

/// What a server takes on. `None` is the default of [`AdsConfig`], [`HttpConfig`] and [`FileLimits`]; 0 for a rate is any.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Limits {
    /// How many servers share the Envoys: this one then serves its share of catalog proxies and a tenth more, and makes those
    /// beyond go elsewhere (engine.md 5.7). No limit if there is none.
    pub servers: Option<usize>,
    /// [`FileLimits::file`].
    pub config_file: Option<usize>,
    /// [`FileLimits::all`].
    pub config_total: Option<usize>,
    /// [`HttpConfig::max_body`].
    pub http_body: Option<usize>,
    /// [`HttpConfig::max_bodies`].
    pub http_bodies: Option<usize>,
    /// [`HttpConfig::max_requests`].
    pub http_requests: Option<usize>,
    /// [`HttpConfig::max_request_rate`].
    pub http_request_rate: Option<u32>,
    /// [`HttpConfig::max_write_rate`].
    pub http_write_rate: Option<u32>,
    /// [`HttpConfig::max_connections`].
    pub http_connections: Option<usize>,
    /// [`HttpConfig::max_header`].
    pub http_header: Option<usize>,
    /// [`HttpConfig::header_timeout`].
    pub http_header_timeout: Option<Duration>,
    /// [`HttpConfig::body_timeout`].
    pub http_body_timeout: Option<Duration>,
    /// [`HttpConfig::idle_timeout`].
    pub http_idle_timeout: Option<Duration>,
    /// [`AdsLimits::max_request_len`](crate::server::ads::AdsLimits::max_request_len).
    pub xds_request: Option<usize>,
    /// [`AdsLimits::max_request_rate`](crate::server::ads::AdsLimits::max_request_rate).
    pub xds_request_rate: Option<u32>,
    /// [`AdsLimits::max_names`](crate::server::ads::AdsLimits::max_names).
    pub xds_names: Option<usize>,
    /// [`AdsConfig::max_streams`].
    pub xds_streams: Option<usize>,
    /// [`AdsConfig::max_streams_per_connection`].
    pub xds_streams_per_connection: Option<u32>,
    /// [`AdsConfig::max_stream_rate`].
    pub xds_stream_rate: Option<u32>,
    /// [`AdsConfig::max_connections`].
    pub xds_connections: Option<usize>,
    /// [`AdsConfig::idle_timeout`].
    pub xds_idle_timeout: Option<Duration>,
    /// [`AdsConfig::keepalive_interval`].
    pub xds_keepalive: Option<Duration>,
    /// [`AdsConfig::keepalive_timeout`].
    pub xds_keepalive_timeout: Option<Duration>,
}

/// File handles that are left for everything but connections of clients: files, the data folder, health checks.
const OTHER_FILES: usize = 256;

/// So many connections are enough for those who didn't say how many there should be.
const ENOUGH: usize = 2_000;

/// The fewest connections to a server, however few file handles there are.
const FEWEST: usize = 16;

/// Takes as many file handles as the system gives, and makes the limits of connections fit them: otherwise whoever opens
/// connections could use up all handles, and nothing else could be opened. What it had to cut is told if it matters.
pub(super) fn fit_connections(limits: &mut Limits) -> Option<String> {
    match rlimit::increase_nofile_limit(u64::MAX) {
        Ok(files) => cut_connections(limits, usize::try_from(files).unwrap_or(usize::MAX)),
        Err(error) => Some(format!(
            "it can't be found out how many files may be open: {error}"
        )),
    }
}

fn cut_connections(limits: &mut Limits, files: usize) -> Option<String> {
    let (http, xds) = (limits.http().max_connections, limits.ads().max_connections);
    let wanted = http.saturating_add(xds);
    let there = files.saturating_sub(OTHER_FILES);
    if wanted <= there {
        return None;
    }
    let share = |of: usize| {
        let part = of as u128 * there as u128 / wanted as u128;
        usize::try_from(part)
            .unwrap_or(usize::MAX)
            .clamp(FEWEST.min(of), of)
    };
    let given = limits.http_connections.is_some() || limits.xds_connections.is_some();
    let (http, xds) = (share(http), share(xds));
    limits.http_connections = Some(http);
    limits.xds_connections = Some(xds);
    if !given && there >= ENOUGH {
        return None;
    }
    Some(format!(
        "only {files} files may be open at a time, too few for {wanted} connections: at most {http} HTTP and {xds} xDS connections \
         are taken; raise the limit (ulimit -n), or give fewer with --max-http-connections and --max-xds-connections"
    ))
}

/// Adds the metrics of the limit of sessions.
pub(super) fn register_session_metrics(
    registry: &mut Registry,
    limiter: &SessionLimiter,
    control: &Arc<SessionControl>,
) {
    registry.register_collector(Box::new(Sessions {
        limiter: limiter.clone(),
        control: Arc::downgrade(control),
    }));
}

#[derive(Debug)]
struct Sessions {
    limiter: SessionLimiter,
    control: Weak<SessionControl>,
}

impl Collector for Sessions {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let ideal = self
            .control
            .upgrade()
            .map_or(0, |control| control.ideal_max());
        for (name, help, value) in [
            (
                "proxycfg_xds_sessions",
                "xDS streams of proxies of other agents",
                self.limiter.in_flight(),
            ),
            (
                "proxycfg_xds_sessions_max",
                "How many of them there may be, 0 for any",
                self.limiter.max_sessions(),
            ),
            (
                "proxycfg_xds_sessions_ideal_max",
                "This server's share of all proxies and a tenth more, 0 if it is unknown",
                ideal,
            ),
        ] {
            let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            let encoder = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            gauge.encode(encoder)?;
        }
        Ok(())
    }
}

fn set<T>(to: &mut T, given: Option<T>) {
    if let Some(given) = given {
        *to = given;
    }
}

impl Limits {
    /// How much of files is read.
    #[must_use]
    pub fn files(&self) -> FileLimits {
        let mut limits = FileLimits::default();
        set(&mut limits.file, self.config_file);
        set(&mut limits.all, self.config_total);
        limits
    }

    /// The xDS service's settings.
    #[must_use]
    pub fn ads(&self) -> AdsConfig {
        let mut config = AdsConfig::default();
        set(&mut config.limits.max_request_len, self.xds_request);
        set(
            &mut config.limits.max_request_rate,
            self.xds_request_rate.map(Rate::new),
        );
        set(&mut config.limits.max_names, self.xds_names);
        set(&mut config.max_streams, self.xds_streams);
        set(
            &mut config.max_streams_per_connection,
            self.xds_streams_per_connection,
        );
        set(
            &mut config.max_stream_rate,
            self.xds_stream_rate.map(Rate::new),
        );
        set(&mut config.max_connections, self.xds_connections);
        set(&mut config.idle_timeout, self.xds_idle_timeout);
        set(&mut config.keepalive_interval, self.xds_keepalive);
        set(&mut config.keepalive_timeout, self.xds_keepalive_timeout);
        config
    }

    /// The HTTP API's settings.
    #[must_use]
    pub fn http(&self) -> HttpConfig {
        let mut config = HttpConfig::default();
        set(&mut config.max_body, self.http_body);
        set(&mut config.max_bodies, self.http_bodies);
        set(&mut config.max_requests, self.http_requests);
        set(
            &mut config.max_request_rate,
            self.http_request_rate.map(Rate::new),
        );
        set(
            &mut config.max_write_rate,
            self.http_write_rate.map(Rate::new),
        );
        set(&mut config.max_connections, self.http_connections);
        set(&mut config.max_header, self.http_header);
        set(&mut config.header_timeout, self.http_header_timeout);
        set(&mut config.body_timeout, self.http_body_timeout);
        set(&mut config.idle_timeout, self.http_idle_timeout);
        config
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_given_is_the_default() {
        let none = Limits::default();
        assert_eq!(none.ads(), AdsConfig::default());
        assert_eq!(none.http(), HttpConfig::default());
        let some = Limits {
            xds_names: Some(3),
            xds_request_rate: Some(0),
            http_write_rate: Some(5),
            ..Limits::default()
        };
        assert_eq!(some.ads().limits.max_names, 3);
        assert_eq!(some.ads().limits.max_request_rate, None);
        assert_eq!(some.http().max_write_rate, Rate::new(5));
    }

    #[test]
    fn connections_leave_file_handles_for_the_rest() {
        let mut limits = Limits::default();
        assert_eq!(cut_connections(&mut limits, 100_000), None);
        assert_eq!(limits, Limits::default());
        let told = cut_connections(&mut limits, 1_024).unwrap();
        assert!(
            told.contains("1024 files") && told.contains("ulimit -n"),
            "{told}"
        );
        let (http, xds) = (limits.http().max_connections, limits.ads().max_connections);
        assert!(
            http + xds <= 1_024 - OTHER_FILES && http > 380 && xds > 350,
            "{http} {xds}"
        );
        let mut default = Limits::default();
        assert_eq!(cut_connections(&mut default, 10_000), None);
        assert!(default.http().max_connections < 6_000);
        let mut asked = Limits {
            xds_connections: Some(10_000),
            ..Limits::default()
        };
        assert!(cut_connections(&mut asked, 10_000).is_some());
        let mut few = Limits {
            http_connections: Some(5),
            ..Limits::default()
        };
        cut_connections(&mut few, 10).unwrap();
        assert_eq!(
            (few.http_connections, few.xds_connections),
            (Some(5), Some(FEWEST))
        );
    }
}
