//! Times of certificates: whole seconds, written as RFC 3339.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Deserializer, Serializer, de, ser};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

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

/// Writes a time as RFC 3339.
pub(crate) fn serialize<S: Serializer>(at: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    let text =
        to_text(*at).ok_or_else(|| ser::Error::custom("the time lies outside years 0 to 9999"))?;
    serializer.serialize_str(&text)
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
