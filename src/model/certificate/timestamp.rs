//! Times of certificates: whole seconds, written as RFC 3339.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Deserializer, Serializer, de};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// The first and the last second of RFC 3339.
const FIRST: &str = "0000-01-01T00:00:00Z";
const LAST: &str = "9999-12-31T23:59:59Z";

/// The calendar form of `at`, cut to whole seconds as certificates have them; none if the year isn't within 0..=9999.
pub(crate) fn to_calendar(at: SystemTime) -> Option<OffsetDateTime> {
    let seconds = match at.duration_since(UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_secs()).ok()?,
        Err(before) => {
            let before = before.duration();
            let whole = i64::try_from(before.as_secs()).ok()?;
            let rest = i64::from(before.subsec_nanos() > 0);
            whole.checked_add(rest)?.checked_neg()?
        }
    };
    let calendar = OffsetDateTime::from_unix_timestamp(seconds).ok()?;
    (0..=9999).contains(&calendar.year()).then_some(calendar)
}

/// The system time of a calendar time; none if the system can't represent it.
pub(crate) fn from_calendar(at: OffsetDateTime) -> Option<SystemTime> {
    from_unix_seconds(at.unix_timestamp())
}

/// The system time of seconds since 1970; none if the system can't represent it.
pub(crate) fn from_unix_seconds(seconds: i64) -> Option<SystemTime> {
    let distance = Duration::from_secs(seconds.unsigned_abs());
    if seconds >= 0 {
        UNIX_EPOCH.checked_add(distance)
    } else {
        UNIX_EPOCH.checked_sub(distance)
    }
}

/// `at` as certificates and JSON hold it: cut to whole seconds.
pub(crate) fn whole_seconds(at: SystemTime) -> SystemTime {
    to_calendar(at).and_then(from_calendar).unwrap_or(at)
}

/// `at` as RFC 3339 in UTC, for messages and JSON; none outside the years 0..=9999.
pub(crate) fn to_text(at: SystemTime) -> Option<String> {
    to_calendar(at)?.format(&Rfc3339).ok()
}

/// Writes a time as RFC 3339. One beyond the years that this notation has becomes the nearest that it has; for the end of a
/// certificate that means "never" (RFC 5280 4.1.2.5).
pub(crate) fn serialize<S: Serializer>(at: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    let nearest = || if *at > UNIX_EPOCH { LAST } else { FIRST }.to_owned();
    serializer.serialize_str(&to_text(*at).unwrap_or_else(nearest))
}

/// Reads a time from RFC 3339.
pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<SystemTime, D::Error> {
    let text = String::deserialize(deserializer)?;
    let calendar = OffsetDateTime::parse(&text, &Rfc3339).map_err(|problem| {
        de::Error::custom(format!("{text:?} is not an RFC 3339 time: {problem}"))
    })?;
    from_calendar(calendar)
        .ok_or_else(|| de::Error::custom(format!("{text:?} lies outside the system's times")))
}

/// The same for a time that may be absent (`null`).
pub(crate) mod optional {
    use super::{Deserializer, Serializer, SystemTime};
    use serde::{Deserialize, Serialize};

    #[derive(Serialize, Deserialize)]
    struct Wrapped(#[serde(with = "super")] SystemTime);

    /// Writes a time as RFC 3339, or `null`.
    pub(crate) fn serialize<S: Serializer>(
        at: &Option<SystemTime>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        at.map(Wrapped).serialize(serializer)
    }

    /// Reads a time from RFC 3339, or `null`.
    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<SystemTime>, D::Error> {
        Ok(Option::<Wrapped>::deserialize(deserializer)?.map(|wrapped| wrapped.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Serialize)]
    struct Time(#[serde(serialize_with = "serialize")] SystemTime);

    #[test]
    fn times_that_have_no_text_become_the_nearest_that_has() {
        let written = |seconds| {
            let at = from_unix_seconds(seconds).unwrap();
            serde_json::to_value(Time(at)).unwrap()
        };
        let last = 253_402_300_799;
        assert_eq!(written(last), LAST);
        assert_eq!(written(last + 1), LAST);
        assert_eq!(written(i64::MAX), LAST);
        let first = -62_167_219_200;
        assert_eq!(written(first), FIRST);
        assert_eq!(written(first - 1), FIRST);
        assert_eq!(written(0), "1970-01-01T00:00:00Z");
    }
}
