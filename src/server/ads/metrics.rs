//! Counters of the xDS service.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::xds::ResourceType;

/// A counter that only goes up.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Its value.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn add_one(&self) {
        self.add(1);
    }

    pub(super) fn add(&self, count: usize) {
        self.0.fetch_add(count as u64, Ordering::Relaxed);
    }
}

/// One counter for each type of resource.
#[derive(Debug, Default)]
pub struct PerType([Counter; ResourceType::COUNT]);

impl PerType {
    /// The counter of one type.
    #[must_use]
    pub fn of(&self, kind: ResourceType) -> &Counter {
        &self.0[kind.slot()]
    }

    /// All types together.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().map(Counter::get).sum()
    }
}

/// What the xDS service has done since it started. Readable from any thread; the counters are not read at one moment.
#[derive(Debug, Default)]
pub struct AdsMetrics {
    /// Streams that were opened, also those that were turned away later.
    pub streams_opened: Counter,
    /// Streams that were turned away at once, because there are too many or they come too fast. They don't count as opened.
    pub streams_refused: Counter,
    /// Streams that have ended.
    pub streams_closed: Counter,
    /// Streams that ended to move load to other servers.
    pub streams_drained: Counter,
    /// Streams that the server ended with an error.
    pub streams_failed: Counter,
    /// New sets of resources that were taken by streams.
    pub updates: Counter,
    /// Requests with names or nonces of types that are served.
    pub requests: PerType,
    /// Requests of types that are not served.
    pub requests_unknown_type: Counter,
    /// Responses sent.
    pub responses: PerType,
    /// Resources in the responses sent.
    pub resources: PerType,
    /// Removals in the responses sent.
    pub removals: PerType,
    /// Responses acknowledged.
    pub acks: PerType,
    /// Responses refused.
    pub nacks: PerType,
    /// Requests whose nonce belonged to no response on its way.
    pub stale_nonces: PerType,
}
