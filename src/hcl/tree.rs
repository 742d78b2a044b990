//! The value tree that both syntaxes (HCL 1 and JSON) are read into.

use std::fmt;

/// A place in a source text. Lines and columns count from 1; a column counts characters, not bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pos {
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
}

impl Pos {
    /// The first character of a text.
    pub const START: Self = Self { line: 1, column: 1 };
}

impl fmt::Display for Pos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// A value and where it starts.
#[derive(Debug, Clone, PartialEq)]
pub struct Value {
    /// What was written.
    pub data: Data,
    /// Where it starts.
    pub pos: Pos,
}

/// The data of a [`Value`].
///
/// An HCL block that occurs once is an [`Data::Object`]; a repeated one is a [`Data::List`] of objects. Readers
/// accept a single object where a list is wanted, and a list of one object where an object is wanted.
#[derive(Debug, Clone, PartialEq)]
pub enum Data {
    /// JSON `null`; means absent.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number within `i64`.
    Int(i64),
    /// Any other number.
    Float(f64),
    /// Text.
    String(String),
    /// A list.
    List(Vec<Value>),
    /// An object; members keep the order of the source, keys are unique.
    Object(Vec<Member>),
}

/// One key and value of an object.
#[derive(Debug, Clone, PartialEq)]
pub struct Member {
    /// The key as written.
    pub key: String,
    /// Where the key starts.
    pub pos: Pos,
    /// Its value.
    pub value: Value,
}

impl Value {
    /// A value at a place.
    #[must_use]
    pub const fn new(data: Data, pos: Pos) -> Self {
        Self { data, pos }
    }

    /// The kind of the data in words, for messages: `a string`, `an object`, ...
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self.data {
            Data::Null => "null",
            Data::Bool(_) => "a boolean",
            Data::Int(_) | Data::Float(_) => "a number",
            Data::String(_) => "a string",
            Data::List(_) => "a list",
            Data::Object(_) => "an object",
        }
    }

    /// Converts a parsed JSON document; every place is [`Pos::START`].
    #[must_use]
    pub fn from_json(json: &serde_json::Value) -> Self {
        let data = match json {
            serde_json::Value::Null => Data::Null,
            serde_json::Value::Bool(b) => Data::Bool(*b),
            serde_json::Value::Number(n) => match n.as_i64() {
                Some(i) => Data::Int(i),
                None => Data::Float(n.as_f64().unwrap_or(f64::NAN)),
            },
            serde_json::Value::String(s) => Data::String(s.clone()),
            serde_json::Value::Array(items) => {
                Data::List(items.iter().map(Self::from_json).collect())
            }
            serde_json::Value::Object(map) => Data::Object(
                map.iter()
                    .map(|(key, value)| Member {
                        key: key.clone(),
                        pos: Pos::START,
                        value: Self::from_json(value),
                    })
                    .collect(),
            ),
        };
        Self::new(data, Pos::START)
    }

    /// The same data as a JSON value; the places are lost. A number that JSON can't hold becomes `null`.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        match &self.data {
            Data::Null => serde_json::Value::Null,
            Data::Bool(b) => (*b).into(),
            Data::Int(i) => (*i).into(),
            Data::Float(f) => {
                serde_json::Number::from_f64(*f).map_or(serde_json::Value::Null, Into::into)
            }
            Data::String(s) => s.clone().into(),
            Data::List(items) => items.iter().map(Self::to_json).collect(),
            Data::Object(members) => serde_json::Value::Object(
                members
                    .iter()
                    .map(|m| (m.key.clone(), m.value.to_json()))
                    .collect(),
            ),
        }
    }
}
