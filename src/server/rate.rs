//! How often something may happen: a bucket of tokens that fills at a steady rate.

use std::time::Duration;

/// A rate: so many each second on average, and at once as many as come together in [`Rate::BURST`].
///
/// Clients do much at once when they start, and little afterwards; the rate is about those that never stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate(u32);

impl Rate {
    /// How long nothing has to happen for the most that may happen at once.
    pub const BURST: Duration = Duration::from_secs(10);

    /// A rate; 0 is none.
    #[must_use]
    pub const fn new(per_second: u32) -> Option<Self> {
        match per_second {
            0 => None,
            rate => Some(Self(rate)),
        }
    }

    /// How many each second, at least 1.
    #[must_use]
    pub const fn per_second(self) -> u32 {
        self.0
    }

    fn most(self) -> f64 {
        f64::from(self.0) * Self::BURST.as_secs_f64()
    }
}

/// Counts what happens against a rate. Time is any that doesn't go back.
#[derive(Debug, Clone)]
pub(super) struct TokenBucket {
    rate: Rate,
    tokens: f64,
    at: Duration,
}

impl TokenBucket {
    /// A full bucket.
    pub fn new(rate: Rate, now: Duration) -> Self {
        Self {
            rate,
            tokens: rate.most(),
            at: now,
        }
    }

    /// Takes a token.
    ///
    /// # Errors
    /// There is none; one will be there after this time.
    pub fn take(&mut self, now: Duration) -> Result<(), Duration> {
        let per_second = f64::from(self.rate.per_second());
        let passed = now.saturating_sub(self.at).as_secs_f64();
        self.at = self.at.max(now);
        self.tokens = (self.tokens + passed * per_second).min(self.rate.most());
        if self.tokens >= 1.0 {
            self.tokens -= 1.0;
            return Ok(());
        }
        Err(Duration::from_secs_f64((1.0 - self.tokens) / per_second))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_and_then_the_rate() {
        let start = Duration::from_secs(100);
        let mut bucket = TokenBucket::new(Rate::new(2).unwrap(), start);
        for _ in 0..20 {
            bucket.take(start).unwrap();
        }
        assert_eq!(bucket.take(start), Err(Duration::from_millis(500)));
        let later = start + Duration::from_millis(1500);
        for _ in 0..3 {
            bucket.take(later).unwrap();
        }
        assert!(bucket.take(later).is_err());
        // It never holds more than a burst, and time that goes back adds nothing.
        let later = start + Duration::from_secs(1000);
        for _ in 0..20 {
            bucket.take(later).unwrap();
        }
        assert!(bucket.take(later).is_err());
        assert!(bucket.take(start).is_err());
    }

    #[test]
    fn none_is_no_rate() {
        assert_eq!(Rate::new(0), None);
        assert_eq!(Rate::new(7).unwrap().per_second(), 7);
    }
}
