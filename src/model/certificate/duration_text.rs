//! Durations of the CA configuration: Go's text (`72h`, `1h30m`, `500ms`), or a number of nanoseconds.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serializer, de};

const UNITS: [(&str, u64); 7] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Reads `72h`, `1h30m`, `1.5h`, `0`. None for anything else, for negative and for too large values.
pub(super) fn parse(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = text;
    let mut total: u128 = 0;
    while !rest.is_empty() {
        let end_of_number = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(end_of_number);
        let end_of_unit = after
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(after.len());
        let (unit, after) = after.split_at(end_of_unit);
        let (_, scale) = UNITS.iter().find(|(name, _)| *name == unit)?;
        total = total.checked_add(scaled(number, u128::from(*scale))?)?;
        rest = after;
    }
    (!text.is_empty()).then_some(())?;
    u64::try_from(total).ok().map(Duration::from_nanos)
}

/// `number` (digits with at most one dot) times `scale`, cut to whole nanoseconds.
fn scaled(number: &str, scale: u128) -> Option<u128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let mut sum = match whole {
        "" => 0,
        digits => digits.parse::<u64>().ok()?.into(),
    };
    sum *= scale;
    let mut digit_scale = scale;
    for digit in fraction.chars() {
        digit_scale /= 10;
        sum += u128::from(digit.to_digit(10)?) * digit_scale;
    }
    Some(sum)
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
        fn written_durations_read_back(nanos in any::<u64>()) {
            let duration = Duration::from_nanos(nanos);
            prop_assert_eq!(parse(&format(duration)), Some(duration));
        }
    }
}
