//! A cursor over a text that counts lines and columns.

use super::{MAX_DEPTH, MAX_SIZE, Pos, SyntaxError, SyntaxErrors};

/// White space of both syntaxes: nothing but these four characters.
pub(super) const fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r' | '\n')
}

/// Checks the limits that hold for a text as a whole.
pub(super) fn decode(source: &[u8]) -> Result<&str, SyntaxErrors> {
    if source.len() > MAX_SIZE {
        return Err(SyntaxError::new(
            Pos::START,
            format!(
                "the text has {} bytes, more than the {MAX_SIZE} that are read: split it",
                source.len()
            ),
        )
        .into());
    }
    let text = std::str::from_utf8(source).map_err(|error| {
        let (valid, _) = source.split_at(error.valid_up_to());
        let mut cursor = Cursor::new(std::str::from_utf8(valid).unwrap_or_default());
        while cursor.bump().is_some() {}
        SyntaxError::new(
            cursor.pos(),
            format!(
                "byte {} (counted from 0) is not UTF-8: save the text as UTF-8",
                error.valid_up_to()
            ),
        )
    })?;
    if text.starts_with('\u{feff}') {
        return Err(SyntaxError::new(
            Pos::START,
            "the text starts with a byte order mark: save it as UTF-8 without one",
        )
        .into());
    }
    Ok(text)
}

/// The level below `depth`, unless that is too deep.
pub(super) fn deeper(depth: usize, pos: Pos) -> Result<usize, SyntaxError> {
    if depth >= MAX_DEPTH {
        return Err(SyntaxError::new(
            pos,
            format!("nested more than {MAX_DEPTH} levels deep: flatten it"),
        ));
    }
    Ok(depth + 1)
}

/// How a character is shown in a message.
pub(super) fn shown(c: Option<char>) -> String {
    match c {
        None => "the end of the text".to_owned(),
        Some(c) if c.is_control() || c.is_whitespace() => {
            format!("character U+{:04X}", u32::from(c))
        }
        Some(c) => format!("`{c}`"),
    }
}

/// The unread rest of a text, and where it starts.
#[derive(Clone)]
pub(super) struct Cursor<'s> {
    rest: &'s str,
    pos: Pos,
}

impl<'s> Cursor<'s> {
    pub(super) const fn new(text: &'s str) -> Self {
        Self {
            rest: text,
            pos: Pos::START,
        }
    }

    /// The place of the next character.
    pub(super) const fn pos(&self) -> Pos {
        self.pos
    }

    /// The next character.
    pub(super) fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    /// The character after the next one.
    pub(super) fn peek_second(&self) -> Option<char> {
        self.rest.chars().nth(1)
    }

    /// Whether the unread text starts so.
    pub(super) fn starts_with(&self, prefix: &str) -> bool {
        self.rest.starts_with(prefix)
    }

    /// Reads one character.
    pub(super) fn bump(&mut self) -> Option<char> {
        let mut chars = self.rest.chars();
        let c = chars.next()?;
        self.rest = chars.as_str();
        if c == '\n' {
            self.pos.line += 1;
            self.pos.column = 1;
        } else {
            self.pos.column += 1;
        }
        Some(c)
    }

    /// Reads the next character if it is this one.
    pub(super) fn eat(&mut self, c: char) -> bool {
        let found = self.peek() == Some(c);
        if found {
            self.bump();
        }
        found
    }

    /// Reads characters as long as they fit.
    pub(super) fn take_while(&mut self, mut fits: impl FnMut(char) -> bool) -> &'s str {
        let start = self.rest;
        while self.peek().is_some_and(&mut fits) {
            self.bump();
        }
        start.split_at(start.len() - self.rest.len()).0
    }

    /// Reads up to the line's end and over it. The line comes without its end; none at the end of the text.
    pub(super) fn take_line(&mut self) -> Option<&'s str> {
        if self.rest.is_empty() {
            return None;
        }
        let line = self.take_while(|c| c != '\n');
        self.bump();
        Some(line.strip_suffix('\r').unwrap_or(line))
    }
}
