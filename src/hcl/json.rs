//! The JSON parser: RFC 8259 to the letter.

use super::error::Problems;
use super::object::ObjectBuilder;
use super::text::{Cursor, deeper, is_space, shown};
use super::{Data, Member, Pos, SyntaxError, SyntaxErrors, Value, literal};

pub(super) fn parse(text: &str) -> Result<Value, SyntaxErrors> {
    let mut parser = Parser {
        cursor: Cursor::new(text),
        problems: Problems::default(),
    };
    let outcome = parser.document();
    parser.problems.finish(outcome)
}

struct Parser<'s> {
    cursor: Cursor<'s>,
    problems: Problems,
}

impl Parser<'_> {
    fn document(&mut self) -> Result<Value, SyntaxError> {
        self.skip_space();
        let value = self.value(0)?;
        self.skip_space();
        match self.cursor.peek() {
            None => Ok(value),
            found => Err(self.unexpected(
                found,
                "after the end of the document: a JSON text is one value, remove what follows it",
            )),
        }
    }

    fn value(&mut self, depth: usize) -> Result<Value, SyntaxError> {
        let pos = self.cursor.pos();
        let data = match self.cursor.peek() {
            Some('{') => self.object(deeper(depth, pos)?)?,
            Some('[') => self.list(deeper(depth, pos)?)?,
            Some('"') => Data::String(self.string()?),
            Some('-' | '0'..='9') => self.number()?,
            Some(c) if c.is_ascii_alphabetic() => {
                match self.cursor.take_while(|c| c.is_ascii_alphanumeric()) {
                    "null" => Data::Null,
                    "true" => Data::Bool(true),
                    "false" => Data::Bool(false),
                    word => {
                        return Err(SyntaxError::new(
                            pos,
                            format!("`{word}` is not a JSON value: put double quotes around text"),
                        ));
                    }
                }
            }
            found => return Err(self.unexpected(found, "where a value is wanted")),
        };
        Ok(Value::new(data, pos))
    }

    fn object(&mut self, depth: usize) -> Result<Data, SyntaxError> {
        let open = self.cursor.pos();
        self.cursor.bump();
        let mut object = ObjectBuilder::default();
        self.skip_space();
        if self.cursor.eat('}') {
            return Ok(object.finish());
        }
        loop {
            let pos = self.cursor.pos();
            let key = match self.cursor.peek() {
                Some('"') => self.string()?,
                Some('}') => return Err(trailing_comma(pos)),
                None => return Err(never_closed(open, '{', '}')),
                found => {
                    return Err(self.unexpected(
                        found,
                        "where a key is wanted: keys are written in double quotes",
                    ));
                }
            };
            self.skip_space();
            if !self.cursor.eat(':') {
                let found = self.cursor.peek();
                return Err(self.unexpected(found, "after a key: write `:` between key and value"));
            }
            self.skip_space();
            let value = self.value(depth)?;
            let repeated = format!("the key `{key}` occurs twice in this object");
            if let Err(first) = object.insert(Member { key, pos, value }) {
                self.problems
                    .report(pos, format!("{repeated}, first at {first}: remove one"))?;
            }
            self.skip_space();
            match self.cursor.peek() {
                Some(',') => self.cursor.bump(),
                Some('}') => {
                    self.cursor.bump();
                    return Ok(object.finish());
                }
                None => return Err(never_closed(open, '{', '}')),
                found => {
                    return Err(self.unexpected(
                        found,
                        "after a member: write `,` before the next one or `}` at the end",
                    ));
                }
            };
            self.skip_space();
        }
    }

    fn list(&mut self, depth: usize) -> Result<Data, SyntaxError> {
        let open = self.cursor.pos();
        self.cursor.bump();
        let mut items = Vec::new();
        self.skip_space();
        if self.cursor.eat(']') {
            return Ok(Data::List(items));
        }
        loop {
            match self.cursor.peek() {
                Some(']') => return Err(trailing_comma(self.cursor.pos())),
                None => return Err(never_closed(open, '[', ']')),
                Some(_) => items.push(self.value(depth)?),
            }
            self.skip_space();
            match self.cursor.peek() {
                Some(',') => self.cursor.bump(),
                Some(']') => {
                    self.cursor.bump();
                    return Ok(Data::List(items));
                }
                None => return Err(never_closed(open, '[', ']')),
                found => {
                    return Err(self.unexpected(
                        found,
                        "after a list item: write `,` before the next one or `]` at the end",
                    ));
                }
            };
            self.skip_space();
        }
    }

    fn number(&mut self) -> Result<Data, SyntaxError> {
        let pos = self.cursor.pos();
        let text = self
            .cursor
            .take_while(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.' | '_'));
        let number = match number_form(text) {
            Some(NumberForm::Integer) => literal::integer(text),
            Some(NumberForm::Float) => literal::float(text),
            None => Err(format!(
                "`{text}` is not a JSON number: these have decimal digits, no leading `+` or 0, and a digit on each \
                 side of the point"
            )),
        };
        match number {
            Ok(data) => Ok(data),
            Err(message) => {
                self.problems.report(pos, message)?;
                Ok(Data::Null)
            }
        }
    }

    fn string(&mut self) -> Result<String, SyntaxError> {
        let open = self.cursor.pos();
        self.cursor.bump();
        let mut string = String::new();
        loop {
            let pos = self.cursor.pos();
            match self.cursor.bump() {
                Some('"') => return Ok(string),
                Some('\\') => match self.escape() {
                    Some(c) => string.push(c),
                    None => self.problems.report(
                        pos,
                        "not an escape of JSON: there are \\\" \\\\ \\/ \\b \\f \\n \\r \\t, and \\u with four \
                         hexadecimal digits (two of them for characters beyond U+FFFF)",
                    )?,
                },
                Some('\n') => {
                    return Err(SyntaxError::new(
                        pos,
                        "a line break inside a string: close the string before it, or write \\n",
                    ));
                }
                Some(c) if c < ' ' => self.problems.report(
                    pos,
                    format!("a control character inside a string: write \\u{:04x}", u32::from(c)),
                )?,
                Some(c) => string.push(c),
                None => {
                    return Err(SyntaxError::new(
                        open,
                        "this string is never closed: add `\"`",
                    ));
                }
            }
        }
    }

    /// Reads what follows a backslash; none if it isn't an escape, and then reads no closing quote.
    fn escape(&mut self) -> Option<char> {
        let c = match self.cursor.peek()? {
            c @ ('"' | '\\' | '/') => c,
            'b' => '\u{8}',
            'f' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'u' => {
                self.cursor.bump();
                return self.unicode_escape();
            }
            _ => return None,
        };
        self.cursor.bump();
        Some(c)
    }

    fn unicode_escape(&mut self) -> Option<char> {
        let unit = literal::fixed_digits(&mut self.cursor, 4, 16)?;
        if !(0xd800..0xdc00).contains(&unit) {
            return char::from_u32(unit);
        }
        if !self.cursor.starts_with("\\u") {
            return None;
        }
        // Both halves are read even if they don't pair, so that one mistake is reported once.
        self.cursor.bump();
        self.cursor.bump();
        let low = literal::fixed_digits(&mut self.cursor, 4, 16)?;
        if !(0xdc00..0xe000).contains(&low) {
            return None;
        }
        char::from_u32(0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00))
    }

    fn skip_space(&mut self) {
        self.cursor.take_while(is_space);
    }

    fn unexpected(&self, found: Option<char>, context: &str) -> SyntaxError {
        let found = match found {
            Some('/' | '#') => "a comment, which JSON doesn't have,".to_owned(),
            found => shown(found),
        };
        SyntaxError::new(self.cursor.pos(), format!("found {found} {context}"))
    }
}

enum NumberForm {
    Integer,
    Float,
}

/// Checks a number against JSON's grammar; none if it isn't one.
fn number_form(text: &str) -> Option<NumberForm> {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let unsigned = text.strip_prefix('-').unwrap_or(text);
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (unsigned, None),
    };
    let (whole, fraction) = match mantissa.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (mantissa, None),
    };
    let valid = digits(whole)
        && (whole == "0" || !whole.starts_with('0'))
        && fraction.is_none_or(digits)
        && exponent.is_none_or(|e| digits(e.strip_prefix(['+', '-']).unwrap_or(e)));
    match (valid, fraction, exponent) {
        (false, ..) => None,
        (true, None, None) => Some(NumberForm::Integer),
        (true, ..) => Some(NumberForm::Float),
    }
}

fn trailing_comma(pos: Pos) -> SyntaxError {
    SyntaxError::new(
        pos,
        "the comma before this has nothing after it: remove the comma",
    )
}

fn never_closed(open: Pos, opening: char, closing: char) -> SyntaxError {
    SyntaxError::new(
        open,
        format!("this `{opening}` is never closed: add `{closing}`"),
    )
}
