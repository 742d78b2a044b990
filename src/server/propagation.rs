//! How long changes take on their way to Envoys: histograms of the time from a commit until it is in a proxy's snapshot, is
//! made into resources, is sent, and is acknowledged.
//!
//! The store notes the time of each commit in a ring of slots, one word each; whoever handles a snapshot or a response finds
//! it by the snapshot's store index. So no lock is taken and nothing is allocated on the way. A snapshot that holds several
//! commits is measured from the newest of them. What has another cause than a commit, such as a renewed certificate or a
//! client that connects, isn't counted: a stream's first resources never are, and nothing is that comes more than a minute
//! after the commit.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, NoLabelSet};
use prometheus_client::metrics::MetricType;

use crate::clock::Clock;

/// Commits whose times are known: the newest ones. A power of two.
const COMMITS: u64 = 1 << 14;

/// What comes later than this after a commit has another cause.
const LATEST: Duration = Duration::from_secs(60);

/// A slot's low bits are a time in microseconds, which wraps after twelve days; the others tell commits of one slot apart.
const TIME_BITS: u32 = 40;
const TIME_MASK: u64 = (1 << TIME_BITS) - 1;

/// Upper bounds of the histograms, in seconds.
const BOUNDS: [f64; 15] = [
    0.000_1,
    0.000_25,
    0.000_5,
    0.001,
    0.002_5,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    5.0,
    f64::INFINITY,
];

/// How far a change has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// It is in the snapshot of a proxy.
    Snapshot,
    /// The proxy's Envoy resources have been made.
    Resources,
    /// A response with it has been given to the transport.
    Sent,
    /// The client has acknowledged that response.
    Acknowledged,
}

impl Stage {
    const ALL: [Self; 4] = [
        Self::Snapshot,
        Self::Resources,
        Self::Sent,
        Self::Acknowledged,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Snapshot => "snapshot",
            Self::Resources => "resources",
            Self::Sent => "sent",
            Self::Acknowledged => "acknowledged",
        }
    }
}

/// A moment, for [`Propagation`]: microseconds of its clock, without those above [`TIME_BITS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment(pub(super) u64);

/// Times of commits, and how long what they changed took. Shared by all threads.
pub struct Propagation {
    clock: Arc<dyn Clock>,
    commits: Box<[AtomicU64]>,
    stages: [Histogram; Stage::ALL.len()],
}

impl fmt::Debug for Propagation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Propagation").finish_non_exhaustive()
    }
}

impl Propagation {
    /// Knows of no commit yet.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            commits: (0..COMMITS).map(|_| AtomicU64::new(u64::MAX)).collect(),
            stages: Default::default(),
        }
    }

    /// Now.
    #[must_use]
    pub fn now(&self) -> Moment {
        Moment(self.clock.monotonic().as_micros() as u64 & TIME_MASK)
    }

    /// A commit is about to be seen.
    pub fn committed(&self, index: u64) {
        let Moment(now) = self.now();
        self.slot(index)
            .store(tag(index) << TIME_BITS | now, Ordering::Relaxed);
    }

    /// When a commit was, if that is still known.
    #[must_use]
    pub fn commit(&self, index: u64) -> Option<Moment> {
        let slot = self.slot(index).load(Ordering::Relaxed);
        (slot >> TIME_BITS == tag(index)).then_some(Moment(slot & TIME_MASK))
    }

    /// What a commit changed has come so far at this moment.
    pub fn reached(&self, stage: Stage, commit: Moment, at: Moment) {
        // The commit may be noted a little later than it is seen to have an effect: as a time below zero, close to the top.
        let took = at.0.wrapping_sub(commit.0) & TIME_MASK;
        let took = if took > TIME_MASK / 2 { 0 } else { took };
        if took <= LATEST.as_micros() as u64 {
            self.stages[stage as usize].observe(took);
        }
    }

    /// How many times changes have come so far.
    #[must_use]
    pub fn count(&self, stage: Stage) -> u64 {
        self.stages[stage as usize].counts().iter().sum()
    }

    fn slot(&self, index: u64) -> &AtomicU64 {
        &self.commits[(index % COMMITS) as usize]
    }
}

fn tag(index: u64) -> u64 {
    (index / COMMITS) & (u64::MAX >> TIME_BITS)
}

/// A histogram of microseconds, of atomic counters.
#[derive(Debug, Default)]
struct Histogram {
    counts: [AtomicU64; BOUNDS.len()],
    sum: AtomicU64,
}

impl Histogram {
    fn observe(&self, micros: u64) {
        let seconds = micros as f64 / 1e6;
        let place = BOUNDS.iter().position(|bound| seconds <= *bound);
        let place = place.unwrap_or(BOUNDS.len() - 1);
        self.counts[place].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(micros, Ordering::Relaxed);
    }

    fn counts(&self) -> [u64; BOUNDS.len()] {
        self.counts
            .each_ref()
            .map(|count| count.load(Ordering::Relaxed))
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StageLabel {
    stage: &'static str,
}

/// The histograms as metrics.
#[derive(Debug)]
pub struct PropagationMetrics(pub Arc<Propagation>);

impl Collector for PropagationMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut encoder = encoder.encode_descriptor(
            "proxycfg_propagation_seconds",
            "Time from a commit until what it changed is in a proxy's snapshot, made into resources, sent, and acknowledged",
            None,
            MetricType::Histogram,
        )?;
        for stage in Stage::ALL {
            let histogram = &self.0.stages[stage as usize];
            let counts = histogram.counts();
            let buckets: Vec<(f64, u64)> = BOUNDS.into_iter().zip(counts).collect();
            let sum = histogram.sum.load(Ordering::Relaxed) as f64 / 1e6;
            let label = StageLabel {
                stage: stage.name(),
            };
            let mut encoder = encoder.encode_family(&label)?;
            encoder.encode_histogram::<NoLabelSet>(sum, counts.iter().sum(), &buckets, None)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text;
    use prometheus_client::registry::Registry;

    use super::*;
    use crate::clock::TestClock;

    #[test]
    fn the_time_of_a_commit_is_known_until_others_take_its_place() {
        let clock = Arc::new(TestClock::new());
        let times = Propagation::new(clock.clone());
        assert_eq!(times.commit(0), None);
        clock.advance(Duration::from_secs(3));
        times.committed(7);
        assert_eq!(times.commit(7), Some(times.now()));
        assert_eq!(times.commit(8), None);
        clock.advance(Duration::from_secs(1));
        times.committed(7 + COMMITS);
        assert_eq!(times.commit(7), None);
        assert_eq!(times.commit(7 + COMMITS), Some(times.now()));
    }

    #[test]
    fn times_are_counted_by_stage_unless_the_commit_can_not_be_their_cause() {
        let clock = Arc::new(TestClock::new());
        let times = Arc::new(Propagation::new(clock.clone()));
        times.committed(1);
        let commit = times.commit(1).unwrap();
        clock.advance(Duration::from_millis(2));
        times.reached(Stage::Snapshot, commit, times.now());
        clock.advance(Duration::from_millis(5));
        times.reached(Stage::Acknowledged, commit, times.now());
        clock.advance(LATEST);
        times.reached(Stage::Acknowledged, commit, times.now());
        // Seen before it was noted.
        times.committed(2);
        times.reached(Stage::Snapshot, times.commit(2).unwrap(), commit);
        let counted = Stage::ALL.map(|stage| times.count(stage));
        assert_eq!(counted, [2, 0, 0, 1]);

        let mut registry = Registry::default();
        registry.register_collector(Box::new(PropagationMetrics(times)));
        let mut out = String::new();
        text::encode(&mut out, &registry).unwrap();
        for line in [
            "proxycfg_propagation_seconds_count{stage=\"snapshot\"} 2",
            "proxycfg_propagation_seconds_sum{stage=\"snapshot\"} 0.002",
            "proxycfg_propagation_seconds_bucket{le=\"0.001\",stage=\"snapshot\"} 1",
            "proxycfg_propagation_seconds_bucket{le=\"0.0025\",stage=\"snapshot\"} 2",
            "proxycfg_propagation_seconds_bucket{le=\"+Inf\",stage=\"acknowledged\"} 1",
            "proxycfg_propagation_seconds_count{stage=\"sent\"} 0",
        ] {
            assert!(out.contains(line), "{line} in {out}");
        }
    }

    #[test]
    fn the_clock_of_slots_may_wrap() {
        let clock = Arc::new(TestClock::new());
        let times = Propagation::new(clock.clone());
        clock.advance(Duration::from_micros(TIME_MASK));
        times.committed(1);
        clock.advance(Duration::from_micros(500));
        times.reached(Stage::Sent, times.commit(1).unwrap(), times.now());
        assert_eq!(times.count(Stage::Sent), 1);
        assert_eq!(
            times.stages[Stage::Sent as usize]
                .sum
                .load(Ordering::Relaxed),
            500
        );
    }
}
