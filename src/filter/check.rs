//! Checks a filter against the types of the fields, without a record.

use super::FilterError;
use super::ast::{Condition, Expr, Literal, Test};
use super::field::FieldType;

pub(super) fn check(expr: &Expr, fields: &FieldType) -> Result<(), FilterError> {
    match expr {
        Expr::Any(parts) | Expr::All(parts) => parts.iter().try_for_each(|e| check(e, fields)),
        Expr::Not(inner) => check(inner, fields),
        Expr::Match(condition) => {
            let field = resolve(condition, fields)?;
            suits(condition, field)
                .map_err(|message| FilterError::mismatch(&condition.selector, message))
        }
    }
}

/// Follows a selector's path to the type of the field where it ends.
fn resolve<'t>(condition: &Condition, fields: &'t FieldType) -> Result<&'t FieldType, FilterError> {
    let mut here = fields;
    for name in &condition.selector.path {
        // A list takes no name: the path goes on in each of its items.
        while let FieldType::List(item) = here {
            here = item;
        }
        let known = match here {
            FieldType::Map(value) => {
                here = value;
                continue;
            }
            FieldType::Record(fields) => {
                match fields.iter().find(|(field, _)| *field == name.as_str()) {
                    Some((_, field)) => {
                        here = field;
                        continue;
                    }
                    None => {
                        let names: Vec<_> = fields.iter().map(|(name, _)| *name).collect();
                        format!(": there are {}", names.join(", "))
                    }
                }
            }
            scalar => format!(": {} has no fields", kind(scalar)),
        };
        return Err(FilterError::unknown_field(&condition.selector, name, known));
    }
    Ok(here)
}

/// Whether the condition can be asked of a field of this type; if not, the end of a sentence about the selector.
fn suits(condition: &Condition, field: &FieldType) -> Result<(), String> {
    match (&condition.test, field) {
        (
            Test::Equal(literal),
            FieldType::String | FieldType::Int | FieldType::Float | FieldType::Bool,
        ) => converts(literal, field),
        (Test::In(_), FieldType::String | FieldType::Map(_)) => Ok(()),
        (
            Test::In(literal),
            FieldType::List(
                item @ (FieldType::String | FieldType::Int | FieldType::Float | FieldType::Bool),
            ),
        ) => converts(literal, item),
        (Test::Empty, FieldType::String | FieldType::List(_) | FieldType::Map(_))
        | (Test::Matches(_), FieldType::String) => Ok(()),
        _ => Err(unsuited(condition, kind(field))),
    }
}

fn converts(literal: &Literal, field: &FieldType) -> Result<(), String> {
    let converts = match field {
        FieldType::Int => literal.int.is_some(),
        FieldType::Float => literal.float.is_some(),
        FieldType::Bool => literal.bool.is_some(),
        _ => true,
    };
    if converts {
        Ok(())
    } else {
        Err(unconvertible(literal, kind(field)))
    }
}

/// The message for an operator that a field of this kind doesn't have.
pub(super) fn unsuited(condition: &Condition, kind: &str) -> String {
    let operator = condition.operator();
    let operators = match &condition.test {
        Test::Equal(_) => "strings, numbers and booleans",
        Test::In(_) => "strings, maps and lists of strings, numbers or booleans",
        Test::Empty => "strings, lists and maps",
        Test::Matches(_) => "strings",
    };
    format!("is {kind}: `{operator}` works on {operators}")
}

/// The message for a literal that isn't of the field's type.
pub(super) fn unconvertible(literal: &Literal, kind: &str) -> String {
    format!("is {kind}, and `{}` isn't one", literal.text)
}

fn kind(field: &FieldType) -> &'static str {
    match field {
        FieldType::String => "a string",
        FieldType::Int => "a whole number",
        FieldType::Float => "a number",
        FieldType::Bool => "a boolean",
        FieldType::List(FieldType::Record(_)) => "a list of records",
        FieldType::List(_) => "a list",
        FieldType::Map(_) => "a map",
        FieldType::Record(_) => "a record",
    }
}
