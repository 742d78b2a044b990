//! The filter language: expressions such as `Service.Meta.version == v2 and "canary" in Service.Tags` that pick records
//! (store.md 4.10).
//!
//! ```text
//! expr     = and-expr { "or" and-expr }
//! and-expr = unary { "and" unary }
//! unary    = "not" unary | "(" expr ")" | match
//! match    = selector ("==" | "!=") value
//!          | value ["not"] "in" selector
//!          | selector ["not"] ("contains" | "matches") value
//!          | selector "is" ["not"] "empty"
//! selector = name { "." name | "[" string "]" } | JSON pointer in quotes
//! value    = string | word | number
//! string   = "double quoted, with escapes" | `back quoted, as written`
//! ```
//!
//! A text is parsed once into a [`Filter`]: selectors become paths, each literal is converted to every type it can
//! stand for, patterns are compiled. [`Filter::check`] then compares selectors and literals with the fields that the
//! records have ([`FieldType`]), so that a mistake shows when somebody subscribes and not when the first record comes
//! by. [`Filter::matches`] walks a [`Record`] along each path.
//!
//! Where the path ends decides the meaning: `in` is a substring test on a string, membership on a list, and a key
//! lookup on a map. A path that runs through a list of records holds if it holds for *any* of them. A map key that
//! isn't there makes `==`, `in`, `contains`, `matches` and `is not empty` false and their opposites true.
//!
//! Filters come from outside, so they are limited: [`MAX_LENGTH`] bytes, [`MAX_DEPTH`] parentheses inside each other,
//! [`MAX_PATTERNS`] patterns. `matches` searches with the syntax of the `regex` crate, in linear time, anywhere in the
//! text.

mod ast;
mod check;
mod error;
mod eval;
mod field;
mod parse;

use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;

use triomphe::Arc;

pub use error::FilterError;
pub use field::{AsField, Field, FieldType, MapField, Record};
pub use parse::{MAX_DEPTH, MAX_LENGTH, MAX_PATTERNS};

/// A parsed filter expression (store.md 4.10). Cloning costs one reference count; threads may share it.
///
/// Filters are equal, ordered and hashed by their text.
#[derive(Clone)]
pub struct Filter {
    parsed: Arc<Parsed>,
}

struct Parsed {
    text: String,
    /// None for the empty filter, which everything passes.
    expr: Option<ast::Expr>,
}

impl Filter {
    /// Parses an expression. An empty one, or nothing but white space, is passed by everything.
    ///
    /// # Errors
    /// The first mistake in the text, with its column: syntax, a bad pattern, or a limit.
    pub fn parse(text: &str) -> Result<Self, FilterError> {
        Ok(Self {
            parsed: Arc::new(Parsed {
                text: text.to_owned(),
                expr: parse::parse(text)?,
            }),
        })
    }

    /// Parses an expression and checks it against the fields of the records it is for.
    ///
    /// # Errors
    /// As [`Filter::parse`] and [`Filter::check`].
    pub fn parse_for(text: &str, fields: &FieldType) -> Result<Self, FilterError> {
        let filter = Self::parse(text)?;
        filter.check(fields)?;
        Ok(filter)
    }

    /// Checks that every selector names a field, that each operator suits its field, and that each literal converts
    /// to the field's type. `fields` describes a whole record, normally a [`FieldType::Record`].
    ///
    /// # Errors
    /// The first mistake in the order of the text.
    pub fn check(&self, fields: &FieldType) -> Result<(), FilterError> {
        match &self.parsed.expr {
            Some(expr) => check::check(expr, fields),
            None => Ok(()),
        }
    }

    /// Whether a record passes.
    ///
    /// `and` and `or` stop as soon as the result is known, so that a mistake in the part that isn't reached stays
    /// hidden; [`Filter::check`] finds it.
    ///
    /// # Errors
    /// A selector names a field that the record doesn't have, or an operator or literal doesn't suit the field. A
    /// checked filter fails only if the record isn't as its description said.
    pub fn matches(&self, record: &dyn Record) -> Result<bool, FilterError> {
        match &self.parsed.expr {
            Some(expr) => eval::matches(expr, record),
            None => Ok(true),
        }
    }

    /// The text it was parsed from.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.parsed.text
    }

    /// Whether this is the empty filter, which everything passes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.parsed.expr.is_none()
    }
}

impl Default for Filter {
    /// The empty filter, which everything passes.
    fn default() -> Self {
        Self {
            parsed: Arc::new(Parsed {
                text: String::new(),
                expr: None,
            }),
        }
    }
}

impl fmt::Debug for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Filter").field(&self.text()).finish()
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl FromStr for Filter {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Self, FilterError> {
        Self::parse(text)
    }
}

impl PartialEq for Filter {
    fn eq(&self, other: &Self) -> bool {
        self.text() == other.text()
    }
}

impl Eq for Filter {}

impl PartialOrd for Filter {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Filter {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.text().cmp(other.text())
    }
}

impl Hash for Filter {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text().hash(state);
    }
}

#[cfg(test)]
mod tests;
