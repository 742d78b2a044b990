//! When to renew, when to try again, and how fast.

use std::time::{Duration, SystemTime};

use super::random::Random;

/// The first delay after a failure; each further one is twice as long.
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// The longest delay after a failure.
const LAST_RETRY: Duration = Duration::from_secs(60);

/// When to renew a certificate: at a random instant within 60 % and 90 % of its life; of that range, only what is left
/// at `now`; past it, `now`.
///
/// Lives below ten minutes are treated like all others. (Consul renews such a certificate at once and always, which its
/// lower limit of one hour keeps from happening.)
pub(super) fn renewal_instant(
    valid_after: SystemTime,
    valid_before: SystemTime,
    now: SystemTime,
    random: &mut Random,
) -> SystemTime {
    let Ok(life) = valid_before.duration_since(valid_after) else {
        return now;
    };
    let earliest = valid_after + life * 6 / 10;
    let latest = valid_after + life * 9 / 10;
    let from = earliest.max(now);
    match latest.duration_since(from) {
        Ok(range) => from + random.below(range),
        Err(_) => now,
    }
}

/// How long to wait after the `failures`th failure in a row: doubled each time, up to a minute, and between the whole
/// and half of it by chance, so that many keys don't try again together.
pub(super) fn retry_delay(failures: u32, random: &mut Random) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    let delay = (FIRST_RETRY * (1 << doublings)).min(LAST_RETRY);
    delay / 2 + random.below(delay / 2)
}

/// A token bucket with room for one token, in monotonic time.
#[derive(Debug, Default)]
pub(super) struct RateLimit {
    free_at: Duration,
}

impl RateLimit {
    /// Takes a token, or says from when there is one. `per_second` of 0 or less means no limit.
    pub(super) fn take(&mut self, per_second: f64, now: Duration) -> Result<(), Duration> {
        if per_second <= 0.0 {
            return Ok(());
        }
        if now < self.free_at {
            return Err(self.free_at);
        }
        // An interval too long for a duration (less than one in 500 billion years) is as good as the longest.
        let interval = Duration::try_from_secs_f64(1.0 / per_second).unwrap_or(Duration::MAX);
        self.free_at = now.saturating_add(interval);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use proptest::prelude::*;

    use super::*;

    fn at(minutes: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(60 * minutes)
    }

    #[test]
    fn store_126_renewal_of_a_leaf_of_one_hour() {
        let mut random = Random::seeded(1);
        let mut sample = |now| renewal_instant(at(0), at(60), at(now), &mut random);
        let mut seen_early = false;
        let mut seen_late = false;
        for _ in 0..1000 {
            let fresh = sample(1);
            assert!((at(36)..=at(54)).contains(&fresh));
            seen_early |= fresh < at(39);
            seen_late |= fresh > at(51);
            assert!((at(40)..=at(54)).contains(&sample(40)));
            assert_eq!(sample(55), at(55));
            assert_eq!(sample(61), at(61));
        }
        assert!(seen_early && seen_late, "the whole range is used");
    }

    #[test]
    fn retries_slow_down_to_a_minute() {
        let mut random = Random::seeded(1);
        for (failures, longest) in [
            (1, 1),
            (2, 2),
            (3, 4),
            (6, 32),
            (7, 60),
            (4_000_000_000, 60),
        ] {
            let delay = retry_delay(failures, &mut random);
            let longest = Duration::from_secs(longest);
            assert!(
                (longest / 2..longest).contains(&delay),
                "{failures}: {delay:?}"
            );
        }
    }

    #[test]
    fn the_rate_limit_spaces_tokens_evenly() {
        let mut limit = RateLimit::default();
        let ms = Duration::from_millis;
        assert_eq!(limit.take(50.0, ms(0)), Ok(()));
        assert_eq!(limit.take(50.0, ms(19)), Err(ms(20)));
        assert_eq!(limit.take(50.0, ms(1000)), Ok(()));
        assert_eq!(
            limit.take(50.0, ms(1000)),
            Err(ms(1020)),
            "no burst after a pause"
        );
        assert_eq!(limit.take(0.0, ms(1000)), Ok(()));
        assert_eq!(limit.take(1e-300, ms(1020)), Ok(()));
        assert!(limit.take(1e-300, ms(1021)).is_err());
    }

    proptest! {
        #[test]
        fn a_renewal_lies_in_its_range_or_is_now(
            seed in any::<u64>(),
            start in 0..4_000_000_000_u64,
            life in 1..400_000_000_u64,
            age in 0..500_000_000_u64,
        ) {
            let valid_after = UNIX_EPOCH + Duration::from_secs(start);
            let life = Duration::from_secs(life);
            let now = valid_after + Duration::from_secs(age);
            let instant =
                renewal_instant(valid_after, valid_after + life, now, &mut Random::seeded(seed));
            prop_assert!(instant >= now);
            if now <= valid_after + life * 9 / 10 {
                prop_assert!(instant >= valid_after + life * 6 / 10);
                prop_assert!(instant <= valid_after + life * 9 / 10);
                prop_assert!(instant < valid_after + life);
            } else {
                prop_assert_eq!(instant, now);
            }
        }
    }
}
