//! Randomness for spreading work in time: seedable, fast, not for secrets.

use std::time::Duration;

/// A SplitMix64 generator.
#[derive(Debug)]
pub(super) struct Random {
    state: u64,
}

impl Random {
    /// A generator that repeats the same values for the same seed.
    pub(super) fn seeded(seed: u64) -> Self {
        Self { state: seed }
    }

    /// A generator with a seed from the system.
    pub(super) fn from_system() -> Self {
        // The upper half of a version 4 UUID is random but for four bits.
        let (seed, _) = uuid::Uuid::new_v4().as_u64_pair();
        Self::seeded(seed)
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Uniform in `[0, limit)`, in nanoseconds; zero if `limit` is zero.
    pub(super) fn below(&mut self, limit: Duration) -> Duration {
        // A multiply and shift instead of a remainder: no bias worth speaking of, and limits of centuries fit.
        let scaled = limit
            .as_nanos()
            .saturating_mul(u128::from(self.next() >> 1))
            >> 63;
        Duration::new(
            u64::try_from(scaled / 1_000_000_000).unwrap_or(u64::MAX),
            u32::try_from(scaled % 1_000_000_000).unwrap_or_default(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stay_below_the_limit_and_spread() {
        let mut random = Random::seeded(7);
        assert_eq!(random.below(Duration::ZERO), Duration::ZERO);
        let limit = Duration::from_secs(30);
        let values: Vec<Duration> = (0..1000).map(|_| random.below(limit)).collect();
        assert!(values.iter().all(|value| *value < limit));
        for third in 0..3_u32 {
            let part = |value: &&Duration| value.as_secs() / 10 == u64::from(third);
            assert!(values.iter().filter(part).count() > 250);
        }
        let century = Duration::from_secs(100 * 365 * 86400);
        assert!(random.below(century) < century);
    }
}
