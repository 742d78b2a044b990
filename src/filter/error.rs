//! What is wrong with a filter, and where.

use super::ast::Selector;

/// Why a filter can't be used. Columns count the characters of the filter's text, from 1.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// The text doesn't follow the grammar, a pattern is bad, or a limit is passed.
    #[error("filter, column {column}: {message}")]
    Syntax {
        /// Where.
        column: usize,
        /// What is wrong and what to write instead.
        message: String,
    },
    /// A selector names a field that the records don't have.
    #[error("filter, column {column}: unknown field `{name}` in `{selector}`{known}")]
    UnknownField {
        /// Where the selector starts.
        column: usize,
        /// The selector as written.
        selector: String,
        /// The part of it that names no field.
        name: String,
        /// What there is instead, as the rest of the sentence; may be empty.
        known: String,
    },
    /// An operator or a literal doesn't suit the field.
    #[error("filter, column {column}: `{selector}` {message}")]
    Type {
        /// Where the selector starts.
        column: usize,
        /// The selector as written.
        selector: String,
        /// What is wrong and what to write instead.
        message: String,
    },
}

impl FilterError {
    pub(super) fn syntax(column: usize, message: &str) -> Self {
        Self::Syntax {
            column,
            message: printable(message),
        }
    }

    pub(super) fn unknown_field(selector: &Selector, name: &str, known: String) -> Self {
        Self::UnknownField {
            column: selector.column,
            selector: printable(&selector.text),
            name: printable(name),
            known,
        }
    }

    pub(super) fn mismatch(selector: &Selector, message: String) -> Self {
        Self::Type {
            column: selector.column,
            selector: printable(&selector.text),
            message: printable(&message),
        }
    }
}

/// With control characters written as escapes, so that nothing in a filter moves the cursor of whoever reads about it.
fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}
