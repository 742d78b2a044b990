//! A clock that tests move by hand.

use std::time::{Duration, Instant, SystemTime};

use crossbeam_channel::{Receiver, Sender, bounded};
use parking_lot::Mutex;

use super::Clock;

/// A clock whose time moves only by [`TestClock::advance`] (both times) and [`TestClock::set_wall`] (wall time alone).
///
/// It starts at 2030-01-01T00:00:00Z.
#[derive(Debug)]
pub struct TestClock {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    wall: SystemTime,
    monotonic: Duration,
    alarms: Vec<(Duration, Sender<Instant>)>,
}

impl TestClock {
    /// A clock at 2030-01-01T00:00:00Z.
    #[must_use]
    pub fn new() -> Self {
        let wall = SystemTime::UNIX_EPOCH + Duration::from_secs(1_893_456_000);
        Self {
            inner: Mutex::new(Inner {
                wall,
                monotonic: Duration::ZERO,
                alarms: Vec::new(),
            }),
        }
    }

    /// Moves wall and monotonic time forward and fires every alarm that is due by then.
    pub fn advance(&self, by: Duration) {
        let due = {
            let mut inner = self.inner.lock();
            inner.wall += by;
            inner.monotonic += by;
            let now = inner.monotonic;
            let (mut due, later): (Vec<_>, Vec<_>) =
                inner.alarms.drain(..).partition(|(at, _)| *at <= now);
            inner.alarms = later;
            due.sort_by_key(|(at, _)| *at);
            due
        };
        for (_, alarm) in due {
            // The receiver may be gone: then nobody waits any more.
            let _ = alarm.try_send(Instant::now());
        }
    }

    /// Sets wall time alone, as an operator or a time server may.
    pub fn set_wall(&self, to: SystemTime) {
        self.inner.lock().wall = to;
    }

    /// How many alarms are pending: lets a test wait until a thread has armed its timer before it moves time.
    #[must_use]
    pub fn pending_alarms(&self) -> usize {
        self.inner.lock().alarms.len()
    }
}

impl Default for TestClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for TestClock {
    fn now(&self) -> SystemTime {
        self.inner.lock().wall
    }

    fn monotonic(&self) -> Duration {
        self.inner.lock().monotonic
    }

    fn alarm(&self, delay: Duration) -> Receiver<Instant> {
        let (send, receive) = bounded(1);
        let mut inner = self.inner.lock();
        if delay.is_zero() {
            let _ = send.try_send(Instant::now());
        } else {
            let at = inner.monotonic + delay;
            inner.alarms.push((at, send));
        }
        receive
    }
}
