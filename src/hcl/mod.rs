//! HCL 1 and JSON, read into one tree of values in which every node knows its line and column.
//!
//! Configuration files are HCL 1 (not HCL 2), or JSON if their first character that is not white space is `{`.
//! [`parse`] reads either; [`parse_json`] reads JSON only, as request bodies need. Both are recursive-descent parsers
//! over a cursor that counts lines and columns, and both come out as the same [`Value`] tree, so that readers don't
//! care which syntax was used.
//!
//! How HCL becomes a tree:
//! - a block (`s { a = 1 }`) and an object attribute (`s = { a = 1 }`) are the same thing: one object member;
//! - labels nest: `service "web" { port = 1 }` is `service = { web = { port = 1 } }`;
//! - a block written more than once becomes a list of its objects, in the order of the text;
//! - an attribute that is not an object can be set only once; a second time is an error.
//!
//! Both parsers are strict where silence would lose data: what can't be read is an error with its place, never a
//! key that quietly goes missing. Problems inside a value (a bad escape, a number out of range, a repeated key) are
//! collected so that one run shows several; a broken structure ends the reading.
//!
//! Texts come from outside, so they are limited: [`MAX_SIZE`] bytes and [`MAX_DEPTH`] levels. Parsing is linear in the
//! size of the text, memory use is proportional to it, and no input overflows the stack.

mod error;
mod hcl1;
mod json;
mod literal;
mod object;
mod text;
mod tree;

pub use error::{SyntaxError, SyntaxErrors, printable};
pub use tree::{Data, Member, Pos, Value};

/// The longest text that is read, in bytes.
pub const MAX_SIZE: usize = 16 * 1024 * 1024;

/// The deepest nesting of objects and lists that is read; each label of an HCL block counts as one level.
pub const MAX_DEPTH: usize = 128;

/// Reads a configuration file: JSON if its first character that is not white space is `{`, HCL 1 otherwise.
///
/// The result is always an [`Data::Object`]; an empty file is an empty one.
///
/// # Errors
/// Every problem found, at least one, each with its place. A text that is too long or not UTF-8 is refused whole.
pub fn parse(source: &[u8]) -> Result<Value, SyntaxErrors> {
    let text = text::decode(source)?;
    if text.trim_start_matches(text::is_space).starts_with('{') {
        json::parse(text)
    } else {
        hcl1::parse(text)
    }
}

/// Reads a JSON document (RFC 8259, nothing else): one value of any kind with white space around it.
///
/// # Errors
/// Every problem found, at least one, each with its place. Repeated keys, whole numbers beyond 64 bits and numbers
/// beyond the range of a double are errors too. A text that is too long or not UTF-8 is refused whole.
pub fn parse_json(source: &[u8]) -> Result<Value, SyntaxErrors> {
    json::parse(text::decode(source)?)
}

#[cfg(test)]
mod tests;
