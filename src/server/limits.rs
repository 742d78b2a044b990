//! The limits of a server, in one place for the program's options.

use std::fmt;
use std::sync::{Arc, Weak};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::config_source::{SessionControl, SessionLimiter};
use crate::server::Rate;
use crate::server::ads::AdsConfig;
use crate::server::http::HttpConfig;

/// What a server takes on. `None` is the default of [`AdsConfig`] and [`HttpConfig`]; 0 for a rate is any.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Limits {
    /// How many servers share the Envoys: this one then serves its share of catalog proxies and a tenth more, and makes those
    /// beyond go elsewhere (engine.md 5.7). No limit if there is none.
    pub servers: Option<usize>,
    /// [`HttpConfig::max_body`].
    pub http_body: Option<usize>,
    /// [`HttpConfig::max_requests`].
    pub http_requests: Option<usize>,
    /// [`HttpConfig::max_request_rate`].
    pub http_request_rate: Option<u32>,
    /// [`HttpConfig::max_write_rate`].
    pub http_write_rate: Option<u32>,
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
        config
    }

    /// The HTTP API's settings.
    #[must_use]
    pub fn http(&self) -> HttpConfig {
        let mut config = HttpConfig::default();
        set(&mut config.max_body, self.http_body);
        set(&mut config.max_requests, self.http_requests);
        set(
            &mut config.max_request_rate,
            self.http_request_rate.map(Rate::new),
        );
        set(
            &mut config.max_write_rate,
            self.http_write_rate.map(Rate::new),
        );
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
}
