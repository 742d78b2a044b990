//! What is told of the connections.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use super::Connections;

/// Adds the metrics of the connections to each server, by its name.
pub(in crate::server) fn register_metrics(
    registry: &mut Registry,
    servers: Vec<(&'static str, Arc<Connections>)>,
) {
    registry.register_collector(Box::new(Metrics(servers)));
}

#[derive(Debug)]
struct Metrics(Vec<(&'static str, Arc<Connections>)>);

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    server: &'static str,
}

type Read = fn(&Connections) -> u64;

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut open = encoder.encode_descriptor(
            "proxycfg_connections",
            "Connections of clients",
            None,
            MetricType::Gauge,
        )?;
        for (server, connections) in &self.0 {
            let gauge = ConstGauge::new(i64::try_from(connections.open()).unwrap_or(i64::MAX));
            gauge.encode(open.encode_family(&Labels { server })?)?;
        }
        let counters: [(&str, &str, Read); 3] = [
            (
                "proxycfg_connections_refused",
                "Connections that were turned away because all others had requests",
                Connections::refused,
            ),
            (
                "proxycfg_connections_displaced",
                "Connections without a request that were closed because others came",
                Connections::displaced,
            ),
            (
                "proxycfg_connections_overdue",
                "Connections that were closed because no request came, or nothing was read, for too long",
                Connections::overdue,
            ),
        ];
        for (name, help, read) in counters {
            let mut counter = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (server, connections) in &self.0 {
                let count = ConstCounter::new(read(connections));
                count.encode(counter.encode_family(&Labels { server })?)?;
            }
        }
        Ok(())
    }
}
