//! The HCL 1 parser.
//!
//! A file is a sequence of items. An item is one or more keys followed by `=` and a value or by a block in braces, and
//! an optional comma. Line breaks are plain white space. Templates (`${...}`) in strings are kept as written.

use super::error::Problems;
use super::object::ObjectBuilder;
use super::text::{Cursor, deeper, is_space, shown};
use super::{Data, Member, Pos, SyntaxError, SyntaxErrors, Value, literal};

pub(super) fn parse(text: &str) -> Result<Value, SyntaxErrors> {
    let mut parser = Parser {
        cursor: Cursor::new(text),
        problems: Problems::default(),
    };
    let outcome = parser.items(0, None);
    parser
        .problems
        .finish(outcome.map(|data| Value::new(data, Pos::START)))
}

struct Parser<'s> {
    cursor: Cursor<'s>,
    problems: Problems,
}

impl Parser<'_> {
    /// Reads items up to the end of the text, or, given the place of an opening brace, over its closing one.
    fn items(&mut self, depth: usize, open: Option<Pos>) -> Result<Data, SyntaxError> {
        let mut object = ObjectBuilder::default();
        loop {
            self.skip_space()?;
            match (self.cursor.peek(), open) {
                (None, None) => return Ok(object.finish()),
                (None, Some(open)) => {
                    return Err(SyntaxError::new(open, "this `{` is never closed: add `}`"));
                }
                (Some('}'), Some(_)) => {
                    self.cursor.bump();
                    return Ok(object.finish());
                }
                _ => {}
            }
            let member = self.item(depth)?;
            let (key, pos) = (member.key.clone(), member.pos);
            if let Err(first) = object.insert_or_join(member) {
                self.problems.report(
                    pos,
                    format!(
                        "`{key}` is already set at {first}: only blocks can be repeated, remove one of the two"
                    ),
                )?;
            }
            self.skip_space()?;
            self.cursor.eat(',');
        }
    }

    /// Reads one item. Of several keys, all but the first become nested objects.
    fn item(&mut self, depth: usize) -> Result<Member, SyntaxError> {
        let pos = self.cursor.pos();
        let key = self.key()?;
        let mut labels = Vec::new();
        let mut depth = depth;
        let mut value = loop {
            self.skip_space()?;
            let here = self.cursor.pos();
            match self.cursor.peek() {
                Some('=') if labels.is_empty() => {
                    self.cursor.bump();
                    self.skip_space()?;
                    break self.value(depth)?;
                }
                Some('=') => {
                    return Err(SyntaxError::new(
                        here,
                        "found `=` after more than one key: a key with labels takes a block, remove the `=` and write \
                         `{ ... }`",
                    ));
                }
                Some('{') => {
                    let data = self.braces(deeper(depth, here)?)?;
                    break Value::new(data, here);
                }
                Some(c) if c == '"' || starts_identifier(c) => {
                    depth = deeper(depth, here)?;
                    labels.push((self.key()?, here));
                }
                Some(':') => {
                    return Err(SyntaxError::new(
                        here,
                        format!("found `:` after the key `{key}`: write `=`"),
                    ));
                }
                found => {
                    return Err(SyntaxError::new(
                        here,
                        format!(
                            "found {} after the key `{key}`: write `= value` or `{{ ... }}`",
                            shown(found)
                        ),
                    ));
                }
            }
        };
        for (key, pos) in labels.into_iter().rev() {
            value = Value::new(Data::Object(vec![Member { key, pos, value }]), pos);
        }
        Ok(Member { key, pos, value })
    }

    fn key(&mut self) -> Result<String, SyntaxError> {
        match self.cursor.peek() {
            Some('"') => self.string(),
            Some(c) if starts_identifier(c) => {
                Ok(self.cursor.take_while(continues_identifier).to_owned())
            }
            found => Err(SyntaxError::new(
                self.cursor.pos(),
                format!(
                    "found {} where a key is wanted: a key starts with a letter or `_`, or stands in double quotes",
                    shown(found)
                ),
            )),
        }
    }

    fn value(&mut self, depth: usize) -> Result<Value, SyntaxError> {
        let pos = self.cursor.pos();
        let data = match self.cursor.peek() {
            Some('"') => Data::String(self.string()?),
            Some('<') => Data::String(self.heredoc()?),
            Some('[') => self.list(deeper(depth, pos)?)?,
            Some('{') => self.braces(deeper(depth, pos)?)?,
            Some('-' | '.' | '0'..='9') => self.number()?,
            Some(c) if starts_identifier(c) => match self.cursor.take_while(continues_identifier) {
                "true" => Data::Bool(true),
                "false" => Data::Bool(false),
                "null" => {
                    return Err(SyntaxError::new(
                        pos,
                        "HCL has no `null`: leave the key out instead",
                    ));
                }
                word => {
                    return Err(SyntaxError::new(
                        pos,
                        format!("`{word}` is not a value: put double quotes around text"),
                    ));
                }
            },
            Some('\'') => {
                return Err(SyntaxError::new(
                    pos,
                    "found `'` where a value is wanted: put double quotes around text",
                ));
            }
            found => {
                return Err(SyntaxError::new(
                    pos,
                    format!("found {} where a value is wanted", shown(found)),
                ));
            }
        };
        Ok(Value::new(data, pos))
    }

    /// Reads a block's or object's braces and what is between them.
    fn braces(&mut self, depth: usize) -> Result<Data, SyntaxError> {
        let open = self.cursor.pos();
        self.cursor.bump();
        self.items(depth, Some(open))
    }

    /// Reads a list. Commas without an item between them are allowed, items without a comma between them aren't.
    fn list(&mut self, depth: usize) -> Result<Data, SyntaxError> {
        let open = self.cursor.pos();
        self.cursor.bump();
        let mut items = Vec::new();
        let mut separated = true;
        loop {
            self.skip_space()?;
            match self.cursor.peek() {
                Some(']') => {
                    self.cursor.bump();
                    return Ok(Data::List(items));
                }
                Some(',') => {
                    self.cursor.bump();
                    separated = true;
                }
                None => {
                    return Err(SyntaxError::new(open, "this `[` is never closed: add `]`"));
                }
                found if !separated => {
                    return Err(SyntaxError::new(
                        self.cursor.pos(),
                        format!(
                            "found {} after a list item: write `,` between items",
                            shown(found)
                        ),
                    ));
                }
                Some(_) => {
                    items.push(self.value(depth)?);
                    separated = false;
                }
            }
        }
    }

    fn number(&mut self) -> Result<Data, SyntaxError> {
        let pos = self.cursor.pos();
        // A sign belongs to the number at its start and directly after the `e` of a decimal exponent.
        let mut before = None;
        let mut hexadecimal = false;
        let text = self.cursor.take_while(|c| {
            let fits = match c {
                '+' | '-' => match before {
                    None => c == '-',
                    Some('e' | 'E') => !hexadecimal,
                    _ => false,
                },
                '.' => true,
                _ => continues_identifier(c) && c != '-',
            };
            hexadecimal |= matches!(c, 'x' | 'X');
            before = Some(c);
            fits
        });
        let number = if text.starts_with("-.") || text == "." || text == "-" {
            Err(format!("`{text}` is not a number: write a digit first"))
        } else {
            literal::hcl_number(text)
        };
        match number {
            Ok(data) => Ok(data),
            Err(message) => {
                self.problems.report(pos, message)?;
                Ok(Data::Null)
            }
        }
    }

    /// Reads a string in double quotes. Inside `${...}` everything is kept as written, quotes and line breaks too.
    fn string(&mut self) -> Result<String, SyntaxError> {
        let open = self.cursor.pos();
        self.cursor.bump();
        let mut string = String::new();
        let mut braces = 0_usize;
        loop {
            let pos = self.cursor.pos();
            let Some(c) = self.cursor.bump() else {
                return Err(SyntaxError::new(
                    open,
                    if braces == 0 {
                        "this string is never closed: add `\"`"
                    } else {
                        "a `${` in this string is never closed: add `}`"
                    },
                ));
            };
            match c {
                '\0' => {
                    self.problems
                        .report(pos, "a null character inside a string: remove it")?;
                }
                '"' if braces == 0 => return Ok(string),
                '\n' if braces == 0 => {
                    return Err(SyntaxError::new(
                        pos,
                        "a line break inside a string: close the string before it, write \\n, or use a heredoc \
                         (<<EOF)",
                    ));
                }
                '\\' if braces == 0 => match self.escape() {
                    Ok(c) => string.push(c),
                    Err(message) => self.problems.report(pos, message)?,
                },
                '\\' => {
                    string.push(c);
                    string.extend(self.cursor.bump());
                }
                '$' if braces == 0 && self.cursor.eat('{') => {
                    string.push_str("${");
                    braces = 1;
                }
                // Lines end alike whichever way the file marks its line ends.
                '\r' if self.cursor.peek() == Some('\n') && braces > 0 => {}
                '{' if braces > 0 => {
                    string.push(c);
                    braces += 1;
                }
                '}' if braces > 0 => {
                    string.push(c);
                    braces -= 1;
                }
                _ => string.push(c),
            }
        }
    }

    /// Reads what follows a backslash; if it isn't an escape, says so and reads no closing quote.
    fn escape(&mut self) -> Result<char, &'static str> {
        const UNKNOWN: &str = "not an escape of HCL: there are \\\" \\\\ \\a \\b \\f \\n \\r \\t \\v, \\x with two, \\u \
                               with four and \\U with eight hexadecimal digits, and three octal digits; write \\\\ for \
                               a backslash";
        let c = match self.cursor.peek() {
            Some(c @ ('"' | '\\')) => c,
            Some('a') => '\u{7}',
            Some('b') => '\u{8}',
            Some('f') => '\u{c}',
            Some('n') => '\n',
            Some('r') => '\r',
            Some('t') => '\t',
            Some('v') => '\u{b}',
            Some('0'..='7') => return self.numeric_escape(3, 8).ok_or(UNKNOWN).and_then(ascii),
            Some('x') => {
                self.cursor.bump();
                return self.numeric_escape(2, 16).ok_or(UNKNOWN).and_then(ascii);
            }
            Some(c @ ('u' | 'U')) => {
                self.cursor.bump();
                let digits = if c == 'u' { 4 } else { 8 };
                return self
                    .numeric_escape(digits, 16)
                    .ok_or(UNKNOWN)
                    .and_then(|code| {
                        char::from_u32(code)
                            .ok_or("this escape is not a character: surrogates and numbers over 10FFFF aren't")
                    });
            }
            _ => return Err(UNKNOWN),
        };
        self.cursor.bump();
        Ok(c)
    }

    fn numeric_escape(&mut self, count: usize, radix: u32) -> Option<u32> {
        literal::fixed_digits(&mut self.cursor, count, radix)
    }

    /// Reads a heredoc: the lines between `<<ANCHOR` and a line that holds only the anchor.
    ///
    /// `<<-` strips the anchor line's indentation from every line, if every line has it.
    fn heredoc(&mut self) -> Result<String, SyntaxError> {
        let open = self.cursor.pos();
        self.cursor.bump();
        if !self.cursor.eat('<') {
            return Err(SyntaxError::new(
                open,
                "found `<` where a value is wanted: a heredoc starts with `<<`",
            ));
        }
        let indented = self.cursor.eat('-');
        let anchor = self.cursor.take_while(char::is_alphanumeric);
        if anchor.is_empty() || !self.cursor.take_line().is_some_and(str::is_empty) {
            return Err(SyntaxError::new(
                open,
                "a heredoc starts with `<<` or `<<-`, a word of letters and digits, and the end of the line",
            ));
        }
        let mut lines = Vec::new();
        let indentation = loop {
            // The line end after the anchor is left, so that places in messages stay on the line.
            let mut ahead = self.cursor.clone();
            let indentation = ahead.take_while(|c| matches!(c, ' ' | '\t'));
            let word = ahead.take_while(char::is_alphanumeric);
            let end = ahead.clone();
            if word == anchor && ahead.take_line().is_none_or(str::is_empty) {
                self.cursor = end;
                break indentation;
            }
            match self.cursor.take_line() {
                Some(line) => lines.push(line),
                None => {
                    return Err(SyntaxError::new(
                        open,
                        format!(
                            "this heredoc is never closed: add a line that holds only `{anchor}`"
                        ),
                    ));
                }
            }
        };
        let strip = indented && lines.iter().all(|line| line.starts_with(indentation));
        let mut text = String::new();
        for line in lines {
            let line = if strip {
                line.strip_prefix(indentation).unwrap_or(line)
            } else {
                line
            };
            text.push_str(line);
            text.push('\n');
        }
        if !indented {
            // The text reaches up to the anchor, so that the white space before it belongs to the text.
            text.push_str(indentation);
        }
        Ok(text)
    }

    /// Skips white space and comments.
    fn skip_space(&mut self) -> Result<(), SyntaxError> {
        loop {
            self.cursor.take_while(is_space);
            let pos = self.cursor.pos();
            match (self.cursor.peek(), self.cursor.peek_second()) {
                (Some('#'), _) | (Some('/'), Some('/')) => {
                    self.cursor.take_while(|c| c != '\n');
                }
                (Some('/'), Some('*')) => {
                    self.cursor.bump();
                    self.cursor.bump();
                    while !self.cursor.starts_with("*/") {
                        if self.cursor.bump().is_none() {
                            return Err(SyntaxError::new(
                                pos,
                                "this comment is never closed: add `*/`",
                            ));
                        }
                    }
                    self.cursor.bump();
                    self.cursor.bump();
                }
                (Some('/'), _) => {
                    return Err(SyntaxError::new(
                        pos,
                        "a single `/`: comments start with `#`, `//` or `/*`",
                    ));
                }
                _ => return Ok(()),
            }
        }
    }
}

/// An escape of one byte; beyond ASCII that would be half a character.
fn ascii(code: u32) -> Result<char, &'static str> {
    u8::try_from(code)
        .ok()
        .filter(u8::is_ascii)
        .map(char::from)
        .ok_or(
            "a byte over 7F is not a character on its own: write \\u and four hexadecimal digits",
        )
}

fn starts_identifier(c: char) -> bool {
    c == '_' || c.is_alphabetic()
}

fn continues_identifier(c: char) -> bool {
    matches!(c, '_' | '-' | '.') || c.is_alphanumeric()
}
