//! The filter parser: recursive descent, directly over the characters.

use regex::{Regex, RegexBuilder};
use smol_str::SmolStr;

use super::FilterError;
use super::ast::{Condition, Expr, Literal, Selector, Test};

/// The longest filter, in bytes.
pub const MAX_LENGTH: usize = 16 * 1024;

/// How many parentheses may stand inside each other.
pub const MAX_DEPTH: usize = 64;

/// How many `matches` a filter may hold; each may need up to 1 MiB of memory.
pub const MAX_PATTERNS: usize = 32;

/// The largest compiled pattern, in bytes.
const PATTERN_SIZE: usize = 1024 * 1024;

const OPERATORS: &str = "`==`, `!=`, `in`, `not in`, `contains`, `not contains`, `matches`, `not matches`, `is empty` or \
                         `is not empty`";

pub(super) fn parse(text: &str) -> Result<Option<Expr>, FilterError> {
    if text.len() > MAX_LENGTH {
        let message = format!(
            "the filter has {} bytes, more than the {MAX_LENGTH} that are read: shorten it",
            text.len()
        );
        return Err(FilterError::syntax(1, &message));
    }
    let mut parser = Parser {
        text,
        rest: text,
        patterns: 0,
    };
    parser.skip_space();
    if parser.rest.is_empty() {
        return Ok(None);
    }
    let expr = parser.or_expr(0)?;
    parser.skip_space();
    match parser.peek() {
        None => Ok(Some(expr)),
        Some(')') => Err(parser.error("there is no `(` for this `)`: remove it")),
        Some(_) => {
            Err(parser
                .unexpected("after a complete expression: join expressions with `and` or `or`"))
        }
    }
}

struct Parser<'s> {
    text: &'s str,
    /// The unread end of `text`.
    rest: &'s str,
    /// The number of patterns so far.
    patterns: usize,
}

/// A selector or a value; which of them shows the operator.
struct Operand<'s> {
    kind: OperandKind<'s>,
    /// As written.
    text: &'s str,
    column: usize,
}

enum OperandKind<'s> {
    Quoted(String),
    Word(&'s str),
    Number(&'s str),
    /// A selector with at least one index.
    Indexed(Vec<SmolStr>),
}

/// An operator, without its negation.
#[derive(Clone, Copy)]
enum Operator {
    Equal,
    In,
    Contains,
    Matches,
    Empty,
}

impl<'s> Parser<'s> {
    fn or_expr(&mut self, depth: usize) -> Result<Expr, FilterError> {
        let first = self.and_expr(depth)?;
        let mut parts = vec![first];
        while self.keyword("or") {
            parts.push(self.and_expr(depth)?);
        }
        Ok(single(parts).unwrap_or_else(Expr::Any))
    }

    fn and_expr(&mut self, depth: usize) -> Result<Expr, FilterError> {
        let first = self.unary(depth)?;
        let mut parts = vec![first];
        while self.keyword("and") {
            parts.push(self.unary(depth)?);
        }
        Ok(single(parts).unwrap_or_else(Expr::All))
    }

    fn unary(&mut self, depth: usize) -> Result<Expr, FilterError> {
        let mut negated = false;
        while self.keyword("not") {
            negated = !negated;
        }
        self.skip_space();
        let inner = if self.peek() == Some('(') {
            if depth >= MAX_DEPTH {
                return Err(self.error(format!(
                    "more than {MAX_DEPTH} parentheses inside each other: flatten the expression"
                )));
            }
            let open = self.column();
            self.bump();
            let inner = self.or_expr(depth + 1)?;
            self.skip_space();
            match self.peek() {
                Some(')') => self.bump(),
                None => return Err(at(open, "this `(` is never closed: add `)`")),
                Some(_) => {
                    return Err(self.unexpected(
                        "in parentheses: write `and`, `or` or `)` after an expression",
                    ));
                }
            };
            inner
        } else {
            Expr::Match(self.condition()?)
        };
        Ok(if negated {
            Expr::Not(Box::new(inner))
        } else {
            inner
        })
    }

    fn condition(&mut self) -> Result<Condition, FilterError> {
        let left = self.operand("a selector or a value")?;
        let (operator, negated) = self.operator()?;
        let (selector, test) = match operator {
            Operator::Empty => (selector(left)?, Test::Empty),
            Operator::In => {
                let literal = Literal::new(literal(left)?);
                let right = self.operand("a selector")?;
                (selector(right)?, Test::In(literal))
            }
            Operator::Equal | Operator::Contains | Operator::Matches => {
                let selector = selector(left)?;
                let right = self.operand("a value")?;
                let column = right.column;
                let text = literal(right)?;
                let test = match operator {
                    Operator::Matches => Test::Matches(self.pattern(&text, column)?),
                    Operator::Equal => Test::Equal(Literal::new(text)),
                    _ => Test::In(Literal::new(text)),
                };
                (selector, test)
            }
        };
        Ok(Condition {
            selector,
            test,
            negated,
        })
    }

    /// Reads an operator and whether it is negated.
    fn operator(&mut self) -> Result<(Operator, bool), FilterError> {
        self.skip_space();
        if self.eat("==") {
            return Ok((Operator::Equal, false));
        }
        if self.eat("!=") {
            return Ok((Operator::Equal, true));
        }
        if self.peek() == Some('=') {
            return Err(self.error("found a single `=`: write `==`"));
        }
        if self.keyword("is") {
            let negated = self.keyword("not");
            return if self.keyword("empty") {
                Ok((Operator::Empty, negated))
            } else {
                Err(self.unexpected("after `is`: write `is empty` or `is not empty`"))
            };
        }
        let negated = self.keyword("not");
        let words = [
            ("in", Operator::In),
            ("contains", Operator::Contains),
            ("matches", Operator::Matches),
        ];
        for (word, operator) in words {
            if self.keyword(word) {
                return Ok((operator, negated));
            }
        }
        Err(if negated {
            self.unexpected("after `not`: write `not in`, `not contains` or `not matches`")
        } else {
            self.unexpected(format!("where an operator is wanted: write {OPERATORS}"))
        })
    }

    fn operand(&mut self, wanted: &str) -> Result<Operand<'s>, FilterError> {
        self.skip_space();
        let column = self.column();
        let start = self.rest;
        let kind = match self.peek() {
            Some('"' | '`') => OperandKind::Quoted(self.quoted()?),
            Some(c) if starts_word(c) => {
                let word = self.take_while(continues_word);
                if self.peek() == Some('[') {
                    OperandKind::Indexed(self.indexed(word, column)?)
                } else {
                    OperandKind::Word(word)
                }
            }
            Some('-' | '0'..='9') => OperandKind::Number(self.take_while(continues_word)),
            _ => return Err(self.unexpected(format!("where {wanted} is wanted"))),
        };
        Ok(Operand {
            kind,
            text: taken(start, self.rest),
            column,
        })
    }

    /// Reads what follows the first dotted names of a selector with indexes.
    fn indexed(&mut self, word: &str, column: usize) -> Result<Vec<SmolStr>, FilterError> {
        let mut path = dotted(word, column)?;
        loop {
            match self.peek() {
                Some('[') => {
                    self.bump();
                    if !matches!(self.peek(), Some('"' | '`')) {
                        return Err(self.unexpected(
                            "in an index: write a string in quotes between `[` and `]`",
                        ));
                    }
                    path.push(self.quoted()?.into());
                    if !self.eat("]") {
                        return Err(self.unexpected("in an index: write `]` after the string"));
                    }
                }
                Some('.') => {
                    self.bump();
                    let column = self.column();
                    path.extend(dotted(self.take_while(continues_word), column)?);
                }
                _ => return Ok(path),
            }
        }
    }

    fn quoted(&mut self) -> Result<String, FilterError> {
        let open = self.column();
        let quote = self.bump();
        if quote == Some('`') {
            let text = self.take_while(|c| c != '`');
            return if self.eat("`") {
                Ok(text.to_owned())
            } else {
                Err(at(open, "this back quote is never closed: add another"))
            };
        }
        let mut text = String::new();
        loop {
            let column = self.column();
            match self.bump() {
                Some('"') => return Ok(text),
                Some('\\') => match self.escape() {
                    Some(c) => text.push(c),
                    None => {
                        return Err(at(
                            column,
                            "not an escape: there are \\\" \\\\ \\n \\r \\t, and \\x with two, \\u with four and \\U \
                             with eight hexadecimal digits; write \\\\ for a backslash, or put the text in back quotes",
                        ));
                    }
                },
                Some(c) => text.push(c),
                None => return Err(at(open, "this string is never closed: add `\"`")),
            }
        }
    }

    fn escape(&mut self) -> Option<char> {
        let count = match self.bump()? {
            c @ ('"' | '\\') => return Some(c),
            'n' => return Some('\n'),
            'r' => return Some('\r'),
            't' => return Some('\t'),
            'x' => 2,
            'u' => 4,
            'U' => 8,
            _ => return None,
        };
        let digits = self.rest.get(..count)?;
        if !digits.chars().all(|c| c.is_ascii_hexdigit()) {
            return None;
        }
        self.rest = self.rest.get(count..)?;
        let code = u32::from_str_radix(digits, 16).ok()?;
        // Two digits stand for one byte; beyond ASCII that would be half a character.
        char::from_u32(code).filter(|c| count > 2 || c.is_ascii())
    }

    fn pattern(&mut self, text: &str, column: usize) -> Result<Regex, FilterError> {
        self.patterns += 1;
        if self.patterns > MAX_PATTERNS {
            return Err(at(
                column,
                format!("more than {MAX_PATTERNS} patterns: join them with `|` inside one"),
            ));
        }
        RegexBuilder::new(text)
            .size_limit(PATTERN_SIZE)
            .build()
            .map_err(|error| {
                // The last line of the crate's message says what is wrong, the others draw the pattern.
                let message = error.to_string();
                let reason = message.lines().last().unwrap_or_default();
                let reason = reason.strip_prefix("error: ").unwrap_or(reason);
                at(
                    column,
                    format!("the pattern `{text}` is not a regular expression: {reason}"),
                )
            })
    }

    /// Reads a word if it comes next and ends here.
    fn keyword(&mut self, word: &str) -> bool {
        self.skip_space();
        match self.rest.strip_prefix(word) {
            Some(rest) if !rest.starts_with(continues_word) => {
                self.rest = rest;
                true
            }
            _ => false,
        }
    }

    fn eat(&mut self, prefix: &str) -> bool {
        match self.rest.strip_prefix(prefix) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn bump(&mut self) -> Option<char> {
        let mut chars = self.rest.chars();
        let c = chars.next();
        self.rest = chars.as_str();
        c
    }

    fn take_while(&mut self, fits: impl Fn(char) -> bool) -> &'s str {
        let start = self.rest;
        self.rest = start.trim_start_matches(fits);
        taken(start, self.rest)
    }

    fn skip_space(&mut self) {
        self.take_while(|c| matches!(c, ' ' | '\t' | '\r' | '\n'));
    }

    /// The place of the next character.
    fn column(&self) -> usize {
        taken(self.text, self.rest).chars().count() + 1
    }

    fn error(&self, message: impl Into<String>) -> FilterError {
        at(self.column(), message)
    }

    /// An error about the next character or word.
    fn unexpected(&self, context: impl Into<String>) -> FilterError {
        let word = taken(self.rest, self.rest.trim_start_matches(continues_word));
        let found = match self.peek() {
            None => "the end of the filter".to_owned(),
            Some(_) if !word.is_empty() => format!("`{word}`"),
            Some(c) => format!("`{}`", c.escape_debug()),
        };
        self.error(format!("found {found} {}", context.into()))
    }
}

fn at(column: usize, message: impl Into<String>) -> FilterError {
    FilterError::syntax(column, &message.into())
}

/// The part of `start` before its end `rest`.
fn taken<'s>(start: &'s str, rest: &str) -> &'s str {
    start.get(..start.len() - rest.len()).unwrap_or_default()
}

/// The only item of a list, or the list.
fn single(mut parts: Vec<Expr>) -> Result<Expr, Vec<Expr>> {
    match parts.pop() {
        Some(only) if parts.is_empty() => Ok(only),
        Some(last) => {
            parts.push(last);
            Err(parts)
        }
        None => Err(parts),
    }
}

fn starts_word(c: char) -> bool {
    c == '_' || c.is_alphabetic()
}

fn continues_word(c: char) -> bool {
    matches!(c, '_' | '-' | '/' | '.') || c.is_alphanumeric()
}

/// Reads an operand as a field's name.
fn selector(operand: Operand<'_>) -> Result<Selector, FilterError> {
    let path = match operand.kind {
        OperandKind::Word(word) => dotted(word, operand.column)?,
        OperandKind::Indexed(path) => path,
        OperandKind::Quoted(text) => pointer(&text).ok_or_else(|| {
            at(
                operand.column,
                "a string where a field is wanted: left of `in` stands the value, left of other operators the field, \
                 and a field in quotes is a JSON pointer such as \"/Service/Port\"",
            )
        })?,
        OperandKind::Number(_) => {
            return Err(at(
                operand.column,
                "a number where a field is wanted: left of `in` stands the value, left of other operators the field",
            ));
        }
    };
    Ok(Selector {
        path,
        text: operand.text.to_owned(),
        column: operand.column,
    })
}

/// Reads an operand as a value.
fn literal(operand: Operand<'_>) -> Result<String, FilterError> {
    match operand.kind {
        OperandKind::Quoted(text) => Ok(text),
        OperandKind::Word(word) => Ok(word.to_owned()),
        OperandKind::Number(number) if is_number(number) => Ok(number.to_owned()),
        OperandKind::Number(number) => Err(at(
            operand.column,
            format!(
                "`{number}` is not a decimal number: put quotes around a value that starts with a digit or `-`"
            ),
        )),
        OperandKind::Indexed(_) => Err(at(
            operand.column,
            "an indexed field where a value is wanted: put quotes around the value",
        )),
    }
}

/// A decimal number without needless zeros in front.
fn is_number(text: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let unsigned = text.strip_prefix('-').unwrap_or(text);
    let (whole, fraction) = match unsigned.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (unsigned, None),
    };
    digits(whole) && (whole == "0" || !whole.starts_with('0')) && fraction.is_none_or(digits)
}

/// Splits a dotted selector.
fn dotted(word: &str, column: usize) -> Result<Vec<SmolStr>, FilterError> {
    let names: Vec<_> = word.split('.').map(SmolStr::new).collect();
    if names.iter().any(SmolStr::is_empty) {
        return Err(at(
            column,
            format!("a name is missing next to a `.` in `{word}`"),
        ));
    }
    Ok(names)
}

/// Splits a JSON pointer (RFC 6901); none if it isn't one.
fn pointer(text: &str) -> Option<Vec<SmolStr>> {
    let names = text.strip_prefix('/')?;
    Some(
        names
            .split('/')
            .map(|name| name.replace("~1", "/").replace("~0", "~").into())
            .collect(),
    )
}
