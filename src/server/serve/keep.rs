//! The engine over what is kept on the disk, and what is measured of writes to it.

use std::sync::Arc;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tracing::info;

use super::error::{ServeError, failed};
use super::options::Plan;
use crate::clock::Clock;
use crate::embedded::{Embedded, EmbeddedConfig, EmbeddedError};
use crate::store::durable::{DurableBackend, Observer};

/// Upper bounds of the histogram of times to write to the disk, in seconds.
const PERSIST_TIMES: [f64; 11] = [
    0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.0,
];

/// Starts the engine over what is kept, or over nothing.
pub(super) fn start_engine(
    plan: &Plan,
    config: EmbeddedConfig,
    clock: Arc<dyn Clock>,
    registry: &mut Registry,
) -> Result<Embedded, ServeError> {
    let engine = |e: EmbeddedError| failed("can't start the engine")(&e);
    let Some(folder) = &plan.data_dir else {
        info!(
            "records and the certificate authority are kept in memory only: a restart makes a new trust domain"
        );
        return Embedded::start_with(config, clock).map_err(engine);
    };
    let backend = DurableBackend::open(folder).map_err(|e| ServeError::Failed(e.to_string()))?;
    let backend = backend.observed(PersistMetrics::register(registry).observer());
    Embedded::start_durable(config, clock, Box::new(backend)).map_err(|error| match error {
        // It names the file and the mend.
        EmbeddedError::Store(error) => ServeError::Failed(error.to_string()),
        other => engine(other),
    })
}

/// What is counted of writes to the data folder.
struct PersistMetrics {
    times: Histogram,
    commits: Counter,
    failures: Counter,
}

impl PersistMetrics {
    fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            times: Histogram::new(PERSIST_TIMES),
            commits: Counter::default(),
            failures: Counter::default(),
        };
        registry.register(
            "proxycfg_persist_seconds",
            "Time until a group of commits is on the disk",
            metrics.times.clone(),
        );
        registry.register(
            "proxycfg_persist_commits",
            "Commits that were written to the disk, in groups",
            metrics.commits.clone(),
        );
        registry.register(
            "proxycfg_persist_failures",
            "Groups of commits that could not be written to the disk, and were refused",
            metrics.failures.clone(),
        );
        metrics
    }

    fn observer(self) -> Observer {
        Box::new(move |group| {
            self.times.observe(group.elapsed.as_secs_f64());
            if group.kept {
                self.commits.inc_by(group.commits as u64);
            } else {
                self.failures.inc();
            }
        })
    }
}
