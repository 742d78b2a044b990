//! Durations of the CA configuration: Go's text (`72h`, `1h30m`, `500ms`), or a number of nanoseconds.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serializer, de};

use crate::model::duration::GoDuration;

/// Reads Go's notation. None for anything else, and for negative and too large values.
pub(super) fn parse(text: &str) -> Option<Duration> {
    let nanos = GoDuration::parse(text)?.0;
    u64::try_from(nanos).ok().map(Duration::from_nanos)
}

/// Writes hours, minutes and seconds, leaving out what is zero; below a second, the largest unit that is exact.
pub(super) fn format(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let nanos = u64::from(duration.subsec_nanos());
    let mut text = String::new();
    for (value, unit) in [
        (seconds / 3600, "h"),
        (seconds / 60 % 60, "m"),
        (seconds % 60, "s"),
    ] {
        if value > 0 {
            text.push_str(&format!("{value}{unit}"));
        }
    }
    if nanos > 0 {
        let exact = [(1_000_000, "ms"), (1_000, "us"), (1, "ns")];
        if let Some((scale, unit)) = exact.iter().find(|(scale, _)| nanos % scale == 0) {
            text.push_str(&format!("{}{unit}", nanos / scale));
        }
    }
    if text.is_empty() { "0s".into() } else { text }
}

/// Writes the text form.
pub(super) fn serialize<S: Serializer>(
    duration: &Duration,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&format(*duration))
}

/// Reads the text form, or a number of nanoseconds.
pub(super) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Duration, D::Error> {
    #[derive(Deserialize)]
    #[serde(
        untagged,
        expecting = "a duration: text such as \"72h\", or nanoseconds"
    )]
    enum Wire {
        Nanos(u64),
        Text(String),
    }
    match Wire::deserialize(deserializer)? {
        Wire::Nanos(nanos) => Ok(Duration::from_nanos(nanos)),
        Wire::Text(text) => parse(&text).ok_or_else(|| {
            de::Error::custom(format!(
                "{text:?} is no duration: write it like 72h, 1h30m or 30s"
            ))
        }),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn go_forms_are_read() {
        for (text, millis) in [
            ("0", 0),
            ("0s", 0),
            ("72h", 259_200_000),
            ("1h30m", 5_400_000),
            ("1.5h", 5_400_000),
            (".5s", 500),
            ("250ms", 250),
        ] {
            assert_eq!(parse(text), Some(Duration::from_millis(millis)), "{text}");
        }
        for text in [
            "",
            "5",
            "h",
            ".h",
            "-1h",
            "1d",
            "1h ",
            "1..5h",
            "99999999999h",
        ] {
            assert_eq!(parse(text), None, "{text:?}");
        }
        assert_eq!(format(Duration::from_secs(259_200)), "72h");
    }

    proptest! {
        #[test]
        fn written_durations_read_back(nanos in 0..=i64::MAX.unsigned_abs()) {
            let duration = Duration::from_nanos(nanos);
            prop_assert_eq!(parse(&format(duration)), Some(duration));
        }
    }
}
