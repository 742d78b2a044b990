//! Applies a filter to a record.

use smol_str::SmolStr;

use super::FilterError;
use super::ast::{Condition, Expr, Literal, Test};
use super::check::{unconvertible, unsuited};
use super::field::{Field, Record};

pub(super) fn matches(expr: &Expr, record: &dyn Record) -> Result<bool, FilterError> {
    match expr {
        Expr::Any(parts) => {
            for part in parts {
                if matches(part, record)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        Expr::All(parts) => {
            for part in parts {
                if !matches(part, record)? {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        Expr::Not(inner) => Ok(!matches(inner, record)?),
        Expr::Match(condition) => condition.holds(Field::Record(record), &condition.selector.path),
    }
}

impl Condition {
    /// Follows the path from a field, and asks what is found at its end.
    fn holds(&self, field: Field<'_>, path: &[SmolStr]) -> Result<bool, FilterError> {
        let Some((name, rest)) = path.split_first() else {
            return self.asked_of(field);
        };
        match field {
            Field::Missing => self.asked_of(Field::Missing),
            Field::Record(record) => match record.field(name) {
                Some(field) => self.holds(field, rest),
                None => Err(self.unknown(name)),
            },
            Field::Map(map) => self.holds(map.value(name).unwrap_or(Field::Missing), rest),
            Field::List(items) => {
                for item in items {
                    if self.holds(item, path)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            Field::String(_) | Field::Int(_) | Field::Float(_) | Field::Bool(_) => {
                Err(self.unknown(name))
            }
        }
    }

    fn unknown(&self, name: &str) -> FilterError {
        FilterError::unknown_field(&self.selector, name, String::new())
    }

    fn asked_of(&self, field: Field<'_>) -> Result<bool, FilterError> {
        let positive = match (&self.test, field) {
            (Test::Empty, Field::Missing) => Ok(true),
            (_, Field::Missing) => Ok(false),
            (Test::Equal(literal), field) => {
                equal(literal, &field).unwrap_or_else(|| Err(unsuited(self, kind(&field))))
            }
            (Test::In(literal), Field::String(text)) => Ok(text.contains(&literal.text)),
            (Test::In(literal), Field::Map(map)) => Ok(map.value(&literal.text).is_some()),
            (Test::In(literal), Field::List(items)) => self.is_member(literal, items),
            (Test::Empty, Field::String(text)) => Ok(text.is_empty()),
            (Test::Empty, Field::Map(map)) => Ok(map.is_empty()),
            (Test::Empty, Field::List(mut items)) => Ok(items.next().is_none()),
            (Test::Matches(pattern), Field::String(text)) => Ok(pattern.is_match(text)),
            (_, field) => Err(unsuited(self, kind(&field))),
        };
        match positive {
            Ok(positive) => Ok(positive != self.negated),
            Err(message) => Err(FilterError::mismatch(&self.selector, message)),
        }
    }

    fn is_member<'f>(
        &self,
        literal: &Literal,
        items: impl Iterator<Item = Field<'f>>,
    ) -> Result<bool, String> {
        for item in items {
            match equal(literal, &item) {
                Some(Ok(false)) => {}
                Some(outcome) => return outcome,
                None if matches!(item, Field::Missing) => {}
                None => return Err(unsuited(self, "a list of other things")),
            }
        }
        Ok(false)
    }
}

/// Compares a field with a literal; none if fields of its kind can't be compared.
fn equal(literal: &Literal, field: &Field<'_>) -> Option<Result<bool, String>> {
    let equal = match field {
        Field::String(text) => Some(*text == literal.text),
        Field::Int(number) => literal.int.map(|wanted| *number == wanted),
        // Exactly equal: the literal went through the same conversion as the field.
        Field::Float(number) => literal.float.map(|wanted| *number == wanted),
        Field::Bool(truth) => literal.bool.map(|wanted| *truth == wanted),
        Field::List(_) | Field::Map(_) | Field::Record(_) | Field::Missing => return None,
    };
    Some(equal.ok_or_else(|| unconvertible(literal, kind(field))))
}

fn kind(field: &Field<'_>) -> &'static str {
    match field {
        Field::String(_) => "a string",
        Field::Int(_) => "a whole number",
        Field::Float(_) => "a number",
        Field::Bool(_) => "a boolean",
        Field::List(_) => "a list",
        Field::Map(_) => "a map",
        Field::Record(_) => "a record",
        Field::Missing => "not set",
    }
}
