//! Durations in Go's notation.

use std::fmt;
use std::time::Duration;

use crate::hcl::{Data, Value};
use crate::model::decode::{Decode, Place, Problems};

/// A span of time in nanoseconds that may be negative, written as in Go: `"1m30s"`, `"250ms"`; a plain number means
/// nanoseconds (store.md, head: naming).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GoDuration(pub i64);

impl GoDuration {
    /// A whole number of seconds.
    #[must_use]
    pub const fn from_secs(seconds: i64) -> Self {
        Self(seconds.saturating_mul(1_000_000_000))
    }

    /// A whole number of milliseconds.
    #[must_use]
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// Whether it is zero: unset, in most records.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// The same span; a negative one becomes zero.
    #[must_use]
    pub fn to_std(self) -> Duration {
        Duration::from_nanos(u64::try_from(self.0).unwrap_or(0))
    }

    /// Reads Go's notation. `None` if it isn't one, or out of range.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (negative, mut rest) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        if rest == "0" {
            return Some(Self(0));
        }
        if rest.is_empty() {
            return None;
        }
        let mut total: i128 = 0;
        while !rest.is_empty() {
            let digits = rest
                .find(|c: char| !c.is_ascii_digit())
                .unwrap_or(rest.len());
            let whole: i128 = if digits == 0 {
                0
            } else {
                rest[..digits].parse().ok()?
            };
            rest = &rest[digits..];
            let mut fraction = "";
            if let Some(after) = rest.strip_prefix('.') {
                let end = after
                    .find(|c: char| !c.is_ascii_digit())
                    .unwrap_or(after.len());
                fraction = &after[..end];
                rest = &after[end..];
            }
            if digits == 0 && fraction.is_empty() {
                return None;
            }
            let end = rest
                .find(|c: char| c.is_ascii_digit() || c == '.')
                .unwrap_or(rest.len());
            let unit: i128 = match &rest[..end] {
                "ns" => 1,
                "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
                "ms" => 1_000_000,
                "s" => 1_000_000_000,
                "m" => 60_000_000_000,
                "h" => 3_600_000_000_000,
                _ => return None,
            };
            rest = &rest[end..];
            total = total.checked_add(whole.checked_mul(unit)?)?;
            let mut scale = unit;
            for digit in fraction.bytes() {
                scale /= 10;
                total = total.checked_add(i128::from(digit - b'0') * scale)?;
            }
        }
        i64::try_from(if negative { -total } else { total })
            .ok()
            .map(Self)
    }
}

impl fmt::Display for GoDuration {
    /// Go's canonical form: `1h0m0s`, `1m30s`, `2.5s`, `250ms`, `0s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.unsigned_abs();
        if self.0 < 0 {
            f.write_str("-")?;
        }
        if nanos < 1_000_000_000 {
            let (unit, name) = match nanos {
                0 => return f.write_str("0s"),
                1..1_000 => (1, "ns"),
                1_000..1_000_000 => (1_000, "\u{b5}s"),
                _ => (1_000_000, "ms"),
            };
            return write!(f, "{}{name}", decimal(nanos, unit));
        }
        let minutes = nanos / 60_000_000_000;
        let seconds = decimal(nanos % 60_000_000_000, 1_000_000_000);
        match (minutes / 60, minutes % 60) {
            (0, 0) => write!(f, "{seconds}s"),
            (0, m) => write!(f, "{m}m{seconds}s"),
            (h, m) => write!(f, "{h}h{m}m{seconds}s"),
        }
    }
}

fn decimal(value: u64, unit: u64) -> String {
    let width = unit.ilog10() as usize;
    if value.is_multiple_of(unit) {
        return (value / unit).to_string();
    }
    let fraction = format!("{:0width$}", value % unit);
    format!("{}.{}", value / unit, fraction.trim_end_matches('0'))
}

impl serde::Serialize for GoDuration {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Decode for GoDuration {
    fn decode(value: &Value, at: &Place<'_>, problems: &mut Problems) -> Option<Self> {
        match &value.data {
            Data::Int(nanos) => Some(Self(*nanos)),
            Data::String(text) => {
                let read = if text.is_empty() {
                    Some(Self(0))
                } else {
                    Self::parse(text)
                };
                if read.is_none() {
                    problems.error(at, format!("{text:?} is not a duration; write one like \"10s\", \"1m30s\" or \"250ms\""));
                }
                read
            }
            _ => {
                problems.error(
                    at,
                    format!(
                        "must be a duration like \"10s\" or a number of nanoseconds, not {}",
                        value.kind()
                    ),
                );
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_writes_go_notation() {
        for (text, nanos, canonical) in [
            ("10s", 10_000_000_000, "10s"),
            ("1h0m0s", 3_600_000_000_000, "1h0m0s"),
            ("1h", 3_600_000_000_000, "1h0m0s"),
            ("1m30s", 90_000_000_000, "1m30s"),
            ("250ms", 250_000_000, "250ms"),
            ("2.5s", 2_500_000_000, "2.5s"),
            ("1.5h", 5_400_000_000_000, "1h30m0s"),
            ("-3us", -3_000, "-3\u{b5}s"),
            ("0", 0, "0s"),
            (".5s", 500_000_000, "500ms"),
            ("66s", 66_000_000_000, "1m6s"),
        ] {
            assert_eq!(GoDuration::parse(text), Some(GoDuration(nanos)), "{text}");
            assert_eq!(GoDuration(nanos).to_string(), canonical);
        }
        for bad in [
            "",
            "s",
            "10",
            "1x",
            ".s",
            "1.s.",
            "-",
            "99999999999h",
            "5 s",
        ] {
            assert_eq!(GoDuration::parse(bad), None, "{bad}");
        }
    }
}
