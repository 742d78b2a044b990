//! The update rate limit: a token bucket with a burst of one, shared by all proxies (engine.md 2.1). Off by default.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

/// The limit that all workers share. Without one they don't meet here.
pub(super) struct PublishLimit {
    limited: AtomicBool,
    limiter: Mutex<RateLimiter>,
}

impl PublishLimit {
    /// A limit of this many updates a second; 0 or less means none.
    pub fn new(per_second: f64) -> Self {
        let limiter = RateLimiter::new(per_second);
        Self {
            limited: AtomicBool::new(limiter.interval.is_some()),
            limiter: Mutex::new(limiter),
        }
    }

    /// Changes the limit for later reservations.
    pub fn set(&self, per_second: f64) {
        let mut limiter = self.limiter.lock();
        limiter.set(per_second);
        self.limited
            .store(limiter.interval.is_some(), Ordering::SeqCst);
    }

    /// The earliest time at which one more snapshot may be published.
    pub fn reserve(&self, now: Duration) -> Duration {
        if !self.limited.load(Ordering::SeqCst) {
            return now;
        }
        self.limiter.lock().reserve(now)
    }
}

/// Hands out the times at which snapshots may be published.
#[derive(Debug)]
struct RateLimiter {
    interval: Option<Duration>,
    next: Duration,
}

impl RateLimiter {
    /// A limit of this many updates a second; 0 or less means none.
    fn new(per_second: f64) -> Self {
        let mut limiter = Self {
            interval: None,
            next: Duration::ZERO,
        };
        limiter.set(per_second);
        limiter
    }

    /// Changes the limit for later reservations.
    fn set(&mut self, per_second: f64) {
        self.interval = (per_second > 0.0 && per_second.is_finite())
            .then(|| Duration::from_secs_f64(1.0 / per_second));
        if self.interval.is_none() {
            self.next = Duration::ZERO;
        }
    }

    /// The earliest time at which one more snapshot may be published.
    fn reserve(&mut self, now: Duration) -> Duration {
        let Some(interval) = self.interval else {
            return now;
        };
        let at = self.next.max(now);
        self.next = at + interval;
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engine_m13_reservations_are_spread() {
        // engine.md 3.4, without the coalescing window that this engine doesn't have.
        let mut limiter = RateLimiter::new(2.0);
        let times: Vec<_> = (0..4)
            .map(|_| limiter.reserve(Duration::ZERO).as_millis())
            .collect();
        assert_eq!(times, [0, 500, 1_000, 1_500]);
        limiter.set(0.0);
        assert_eq!(
            limiter.reserve(Duration::from_secs(1)),
            Duration::from_secs(1)
        );
    }
}
