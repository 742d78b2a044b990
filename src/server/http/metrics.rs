//! `/metrics`: counters in the Prometheus text format, and the counting of requests.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::HttpState;
use super::blocking::off_thread;
use super::error::HttpError;
use crate::embedded::Embedded;
use crate::server::ads::{AdsService, PerType};
use crate::xds::ResourceType;

/// Upper bounds of the histogram of request times, in seconds.
const TIMES: [f64; 12] = [
    0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0,
];

/// The metrics of the HTTP server, and all others for `/metrics`.
pub(super) struct Metrics {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    in_flight: Gauge,
    times: Histogram,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    method: String,
    route: String,
    status: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TypeLabel {
    r#type: &'static str,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Metrics {
    /// Registers what the HTTP server and the engine count, beside what the registry has already.
    pub fn new(mut registry: Registry, engine: &Arc<Embedded>, ads: Option<AdsService>) -> Self {
        let requests = Family::<RequestLabels, Counter>::default();
        let in_flight = Gauge::default();
        let times = Histogram::new(TIMES);
        registry.register(
            "proxycfg_http_requests",
            "HTTP requests answered",
            requests.clone(),
        );
        registry.register(
            "proxycfg_http_requests_in_flight",
            "HTTP requests that are being answered, those that wait for a change included",
            in_flight.clone(),
        );
        registry.register(
            "proxycfg_http_request_seconds",
            "Time to answer HTTP requests that don't wait for a change",
            times.clone(),
        );
        registry.register_collector(Box::new(Engine(Arc::downgrade(engine))));
        if let Some(ads) = ads {
            registry.register_collector(Box::new(Ads(ads)));
        }
        Self {
            registry,
            requests,
            in_flight,
            times,
        }
    }
}

/// Counts a request.
pub(super) async fn count(
    State(state): State<Arc<HttpState>>,
    request: Request,
    next: Next,
) -> Response {
    /// Counts down also if the client hangs up.
    struct InFlight(Arc<HttpState>);
    impl Drop for InFlight {
        fn drop(&mut self) {
            self.0.metrics().in_flight.dec();
        }
    }

    state.metrics().in_flight.inc();
    let in_flight = InFlight(state);
    // The route, not the path: names that clients choose would make ever more series.
    let route = request
        .extensions()
        .get::<MatchedPath>()
        .map_or("other", MatchedPath::as_str)
        .to_owned();
    let method = match request.method().as_str() {
        known @ ("GET" | "HEAD" | "PUT" | "POST" | "DELETE" | "PATCH" | "OPTIONS") => known,
        _ => "other",
    }
    .to_owned();
    let query = request.uri().query().unwrap_or_default();
    let may_wait = query
        .split('&')
        .any(|pair| pair.starts_with("index=") || pair.starts_with("hash="));
    let start = Instant::now();
    let response = next.run(request).await;
    let metrics = in_flight.0.metrics();
    if !may_wait {
        metrics.times.observe(start.elapsed().as_secs_f64());
    }
    let status = response.status().as_u16();
    tracing::debug!(%method, %route, status, elapsed = ?start.elapsed(), "HTTP request");
    let labels = RequestLabels {
        method,
        route,
        status,
    };
    metrics.requests.get_or_create(&labels).inc();
    response
}

/// Answers `/metrics`.
pub(super) async fn metrics(State(state): State<Arc<HttpState>>) -> Result<Response, HttpError> {
    let text = off_thread(move || {
        let mut out = String::new();
        text::encode(&mut out, &state.metrics().registry)
            .map_err(|_| HttpError::internal("the metrics can't be written"))?;
        Ok(out)
    })
    .await?;
    let kind =
        HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}

/// Writes single values.
struct Out<'a>(DescriptorEncoder<'a>);

impl Out<'_> {
    fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let counter = ConstCounter::new(value);
        let encoder = self
            .0
            .encode_descriptor(name, help, None, MetricType::Counter)?;
        counter.encode(encoder)
    }

    fn gauge(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
        let encoder = self
            .0
            .encode_descriptor(name, help, None, MetricType::Gauge)?;
        gauge.encode(encoder)
    }

    fn per_type(&mut self, name: &str, help: &str, values: &PerType) -> fmt::Result {
        let mut encoder = self
            .0
            .encode_descriptor(name, help, None, MetricType::Counter)?;
        for kind in ResourceType::ALL {
            let label = TypeLabel {
                r#type: kind.name(),
            };
            let counter = ConstCounter::new(values.of(kind).get());
            counter.encode(encoder.encode_family(&label)?)?;
        }
        Ok(())
    }
}

/// What the engine and the store say about themselves. Doesn't keep them alive.
#[derive(Debug)]
struct Engine(Weak<Embedded>);

impl Collector for Engine {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(embedded) = self.0.upgrade() else {
            return Ok(());
        };
        let mut out = Out(encoder);
        let counts = embedded.manager.counts();
        let size = |n: usize| n as u64;
        out.gauge(
            "proxycfg_store_index",
            "Store index",
            embedded.store.snapshot().index(),
        )?;
        out.gauge(
            "proxycfg_store_waiting_reads",
            "Blocking reads that wait for a change",
            size(embedded.store.waiting()),
        )?;
        out.gauge(
            "proxycfg_done_index",
            "Store index up to which every snapshot is computed",
            embedded.manager.done_index(),
        )?;
        out.gauge(
            "proxycfg_proxies",
            "Proxies registered or watched",
            size(counts.proxies),
        )?;
        out.gauge("proxycfg_states", "Proxies registered", counts.states)?;
        out.gauge("proxycfg_watches", "Watches on proxies", counts.watches)?;
        out.gauge(
            "proxycfg_queries",
            "Queries that are kept answered",
            size(counts.queries),
        )?;
        out.gauge(
            "proxycfg_threads",
            "Worker and step threads",
            size(counts.threads),
        )?;
        out.gauge(
            "proxycfg_callback_threads",
            "Callback threads",
            size(counts.callback_threads),
        )?;
        out.counter("proxycfg_steps", "Steps made", counts.steps)?;
        out.counter(
            "proxycfg_answers",
            "Answers computed",
            counts.answers_computed,
        )?;
        out.counter("proxycfg_runs", "Runs of proxies' states", counts.runs)?;
        out.counter(
            "proxycfg_parts_built",
            "Parts of snapshots built",
            counts.parts_built,
        )?;
        out.counter(
            "proxycfg_snapshots",
            "Snapshots published",
            counts.published,
        )?;
        out.counter(
            "proxycfg_panics",
            "Panics in proxies' states",
            counts.panics,
        )?;
        let leaves = embedded.leaves.statuses();
        out.gauge(
            "proxycfg_leaf_certificates",
            "Leaf certificates kept",
            size(leaves.len()),
        )?;
        out.gauge(
            "proxycfg_leaf_certificates_failing",
            "Leaf certificates that can't be signed at present",
            size(leaves.iter().filter(|leaf| leaf.error.is_some()).count()),
        )
    }
}

/// What the xDS service says about itself.
#[derive(Debug)]
struct Ads(AdsService);

impl Collector for Ads {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut out = Out(encoder);
        let ads = self.0.metrics();
        out.gauge(
            "proxycfg_xds_streams",
            "xDS streams open",
            self.0.open_streams() as u64,
        )?;
        for (name, help, counter) in [
            ("opened", "xDS streams opened", &ads.streams_opened),
            (
                "refused",
                "xDS streams turned away for a limit",
                &ads.streams_refused,
            ),
            ("closed", "xDS streams ended", &ads.streams_closed),
            (
                "drained",
                "xDS streams ended to move load",
                &ads.streams_drained,
            ),
            (
                "failed",
                "xDS streams ended with an error",
                &ads.streams_failed,
            ),
        ] {
            out.counter(&format!("proxycfg_xds_streams_{name}"), help, counter.get())?;
        }
        out.counter(
            "proxycfg_xds_updates",
            "New sets of resources taken by streams",
            ads.updates.get(),
        )?;
        out.counter(
            "proxycfg_xds_requests_unknown_type",
            "xDS requests of types that are not served",
            ads.requests_unknown_type.get(),
        )?;
        for (name, help, values) in [
            ("requests", "xDS requests", &ads.requests),
            ("responses", "xDS responses sent", &ads.responses),
            ("resources", "Resources sent", &ads.resources),
            ("removals", "Removals sent", &ads.removals),
            ("acks", "xDS responses acknowledged", &ads.acks),
            ("nacks", "xDS responses refused", &ads.nacks),
            (
                "stale_nonces",
                "xDS requests with a nonce of no response",
                &ads.stale_nonces,
            ),
        ] {
            out.per_type(&format!("proxycfg_xds_{name}"), help, values)?;
        }
        Ok(())
    }
}
