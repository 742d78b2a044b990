//! Time as the engine sees it: a [`Clock`] gives wall time, monotonic time and alarms. Tests use [`TestClock`], whose
//! time moves only when told to.

mod real;
mod test_clock;

use std::fmt;
use std::time::{Duration, Instant, SystemTime};

use crossbeam_channel::Receiver;

pub use real::RealClock;
pub use test_clock::TestClock;

/// A source of time. Shared by all threads of an engine.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// Wall time: for certificates and records. May jump.
    fn now(&self) -> SystemTime;

    /// Time since some fixed start: for delays. Never goes back.
    fn monotonic(&self) -> Duration;

    /// A channel that receives one message when `delay` has passed, for use in `select!` beside other work.
    fn alarm(&self, delay: Duration) -> Receiver<Instant>;
}
