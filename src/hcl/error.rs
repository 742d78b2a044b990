//! What is wrong with a text, and where.

use std::borrow::Cow;
use std::fmt;

use super::Pos;

/// After so many problems the rest of the text is not read.
const MAX_PROBLEMS: usize = 20;

/// One problem in a text. Shown as `line:column: message`; the message says what to change.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{pos}: {message}")]
pub struct SyntaxError {
    /// Where the problem is.
    pub pos: Pos,
    /// What is wrong and what to write instead.
    pub message: String,
}

impl SyntaxError {
    pub(super) fn new(pos: Pos, message: impl Into<String>) -> Self {
        Self {
            pos,
            message: printable(&message.into()).into_owned(),
        }
    }
}

/// A text as a message can hold it: control characters, which could move the cursor of whoever reads the message or pass
/// for a line of their own, are written as escapes.
#[must_use]
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(char::is_control) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if c.is_control() {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

/// All problems found in a text, at least one, in the order in which they were found. Shown one a line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct SyntaxErrors {
    first: SyntaxError,
    others: Vec<SyntaxError>,
}

impl SyntaxErrors {
    /// The problem found first.
    #[must_use]
    pub fn first(&self) -> &SyntaxError {
        &self.first
    }

    /// All problems.
    pub fn iter(&self) -> impl Iterator<Item = &SyntaxError> {
        std::iter::once(&self.first).chain(&self.others)
    }
}

impl From<SyntaxError> for SyntaxErrors {
    fn from(first: SyntaxError) -> Self {
        Self {
            first,
            others: Vec::new(),
        }
    }
}

impl fmt::Display for SyntaxErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.first)?;
        for error in &self.others {
            write!(f, "\n{error}")?;
        }
        Ok(())
    }
}

/// Collects the problems that don't end the reading.
#[derive(Default)]
pub(super) struct Problems(Option<SyntaxErrors>);

impl Problems {
    /// Notes a problem; an error, which ends the reading, once there are too many.
    pub(super) fn report(
        &mut self,
        pos: Pos,
        message: impl Into<String>,
    ) -> Result<(), SyntaxError> {
        let problem = SyntaxError::new(pos, message);
        match &mut self.0 {
            None => self.0 = Some(problem.into()),
            // One place is left for the problem that ends the reading.
            Some(errors) if errors.iter().count() + 1 < MAX_PROBLEMS => errors.others.push(problem),
            Some(_) => {
                return Err(SyntaxError::new(
                    pos,
                    format!(
                        "{} (the rest of the text was not read: correct these problems first)",
                        problem.message
                    ),
                ));
            }
        }
        Ok(())
    }

    /// The outcome of a parser: its value only if nothing was reported.
    pub(super) fn finish<T>(self, outcome: Result<T, SyntaxError>) -> Result<T, SyntaxErrors> {
        match (self.0, outcome) {
            (None, Ok(value)) => Ok(value),
            (None, Err(last)) => Err(last.into()),
            (Some(errors), Ok(_)) => Err(errors),
            (Some(mut errors), Err(last)) => {
                errors.others.push(last);
                Err(errors)
            }
        }
    }
}
