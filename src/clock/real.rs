//! The machine's clock.

use std::time::{Duration, Instant, SystemTime};

use crossbeam_channel::Receiver;

use super::Clock;

/// The machine's clock.
#[derive(Debug, Clone)]
pub struct RealClock {
    start: Instant,
}

impl RealClock {
    /// A clock whose monotonic time starts now.
    #[must_use]
    pub fn new() -> Self {
        Self {
            start: Instant::now(),
        }
    }
}

impl Default for RealClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for RealClock {
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }

    fn monotonic(&self) -> Duration {
        self.start.elapsed()
    }

    fn alarm(&self, delay: Duration) -> Receiver<Instant> {
        crossbeam_channel::after(delay)
    }
}
