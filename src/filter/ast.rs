//! The parsed form of a filter.

use regex::Regex;
use smol_str::SmolStr;

/// An expression. Chains of one operator are flat, so that the depth is that of the parentheses only.
pub(super) enum Expr {
    /// `or`: true if one of them is.
    Any(Vec<Expr>),
    /// `and`: true if all of them are.
    All(Vec<Expr>),
    /// `not`.
    Not(Box<Expr>),
    /// A comparison.
    Match(Condition),
}

/// A field and what is asked about it.
pub(super) struct Condition {
    pub(super) selector: Selector,
    pub(super) test: Test,
    /// Whether the test is turned round (`!=`, `not in`, ...). On a list of records the turned test is asked of each
    /// record, so that this differs from a `not` in front.
    pub(super) negated: bool,
}

/// The way to a field.
pub(super) struct Selector {
    pub(super) path: Vec<SmolStr>,
    /// As written, for messages.
    pub(super) text: String,
    /// Where it starts, in characters from 1.
    pub(super) column: usize,
}

/// What is asked about a field.
pub(super) enum Test {
    /// `==`
    Equal(Literal),
    /// `in`, `contains`
    In(Literal),
    /// `is empty`
    Empty,
    /// `matches`
    Matches(Regex),
}

impl Condition {
    /// The operator in the language's words.
    pub(super) const fn operator(&self) -> &'static str {
        match (&self.test, self.negated) {
            (Test::Equal(_), false) => "==",
            (Test::Equal(_), true) => "!=",
            (Test::In(_), false) => "in",
            (Test::In(_), true) => "not in",
            (Test::Empty, false) => "is empty",
            (Test::Empty, true) => "is not empty",
            (Test::Matches(_), false) => "matches",
            (Test::Matches(_), true) => "not matches",
        }
    }
}

/// A value as written, and what it is as a value of each type; none where it doesn't convert.
pub(super) struct Literal {
    pub(super) text: String,
    pub(super) int: Option<i64>,
    pub(super) float: Option<f64>,
    pub(super) bool: Option<bool>,
}

impl Literal {
    pub(super) fn new(text: String) -> Self {
        Self {
            int: integer(&text),
            float: text.parse().ok().filter(|f: &f64| f.is_finite()),
            bool: match text.as_str() {
                "1" | "t" | "T" | "true" | "True" | "TRUE" => Some(true),
                "0" | "f" | "F" | "false" | "False" | "FALSE" => Some(false),
                _ => None,
            },
            text,
        }
    }
}

/// A whole number; like Consul's, it may be hexadecimal (`0x`), octal (`0o` or a leading 0) or binary (`0b`).
fn integer(text: &str) -> Option<i64> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", text.strip_prefix('+').unwrap_or(text)),
    };
    let prefixes = [
        ("0x", 16),
        ("0X", 16),
        ("0o", 8),
        ("0O", 8),
        ("0b", 2),
        ("0B", 2),
        ("0", 8),
    ];
    let (digits, radix) = prefixes
        .iter()
        .find_map(|(prefix, radix)| Some((digits.strip_prefix(prefix)?, *radix)))
        .filter(|(rest, _)| !rest.is_empty())
        .unwrap_or((digits, 10));
    if digits.starts_with(['+', '-']) {
        return None;
    }
    i64::from_str_radix(&format!("{sign}{digits}"), radix).ok()
}
