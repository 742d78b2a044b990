//! Reading records from a value tree.
//!
//! Every record is read the same way, whether it came from an HCL file, a JSON file or an HTTP body: keys match without
//! regard to case and underscores (`MeshGateway`, `mesh_gateway`), unknown keys are problems, and reading goes on after
//! a problem so that all of them are reported together, each with its place. The [`record!`](crate::model::record)
//! macro derives a record's reader and its JSON form (Consul's public names) from one list of fields.

use std::collections::BTreeMap;

use smol_str::SmolStr;

use crate::hcl::{Data, Member, Value};

pub use crate::model::problems::{Place, Problem, Problems, Step, same_key};

/// A type that can be read from a value tree.
pub trait Decode: Sized {
    /// Reads a value. On a problem it is noted and `None` returned, or the readable rest.
    fn decode(value: &Value, at: &Place<'_>, problems: &mut Problems) -> Option<Self>;

    /// The keys of a record, in Consul's public spelling; none for anything else.
    #[must_use]
    fn keys() -> &'static [&'static str] {
        &[]
    }
}

/// Reads a whole document as one record and locates its problems in it.
///
/// # Errors
/// All problems, if there is an error among them.
pub fn decode_document<T: Decode>(document: &Value) -> Result<(T, Problems), Problems> {
    let mut problems = Problems::default();
    let record = T::decode(document, &Place::ROOT, &mut problems);
    problems.locate(document);
    match record {
        Some(record) if problems.is_ok() => Ok((record, problems)),
        _ => Err(problems),
    }
}

fn wrong_kind(wanted: &str, value: &Value, at: &Place<'_>, problems: &mut Problems) {
    problems.error(at, format!("must be {wanted}, not {}", value.kind()));
}

impl Decode for String {
    fn decode(value: &Value, at: &Place<'_>, problems: &mut Problems) -> Option<Self> {
        match &value.data {
            Data::String(s) => Some(s.clone()),
            _ => {
                wrong_kind("a string", value, at, problems);
                None
            }
        }
    }
}

impl Decode for SmolStr {
    fn decode(value: &Value, at: &Place<'_>, problems: &mut Problems) -> Option<Self> {
        String::decode(value, at, problems).map(Self::from)
    }
}

impl Decode for bool {
    fn decode(value: &Value, at: &Place<'_>, problems: &mut Problems) -> Option<Self> {
        match &value.data {
            Data::Bool(b) => Some(*b),
            _ => {
                wrong_kind("true or false", value, at, problems);
                None
            }
        }
    }
}

macro_rules! decode_integer {
    ($($t:ty),*) => {$(
        impl Decode for $t {
            fn decode(value: &Value, at: &Place<'_>, problems: &mut Problems) -> Option<Self> {
                #[allow(clippy::cast_possible_truncation, reason = "the fraction is checked to be zero")]
                let whole = match value.data {
                    Data::Int(i) => Some(i),
                    Data::Float(f) if f.fract() == 0.0 && f.abs() < 9e15 => Some(f as i64),
                    _ => None,
                };
                let Some(whole) = whole else {
                    wrong_kind("a whole number", value, at, problems);
                    return None;
                };
                let number = <$t>::try_from(whole).ok();
                if number.is_none() {
                    problems.error(at, format!("{whole} is out of range ({} to {})", <$t>::MIN, <$t>::MAX));
                }
                number
            }
        }
    )*};
}
decode_integer!(i32, i64, u16, u32, u64);

impl Decode for f32 {
    fn decode(value: &Value, at: &Place<'_>, problems: &mut Problems) -> Option<Self> {
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_precision_loss,
            reason = "weights are given in hundredths"
        )]
        match value.data {
            Data::Int(i) => Some(i as Self),
            Data::Float(f) => Some(f as Self),
            _ => {
                wrong_kind("a number", value, at, problems);
                None
            }
        }
    }
}

impl<T: Decode> Decode for Option<T> {
    fn decode(value: &Value, at: &Place<'_>, problems: &mut Problems) -> Option<Self> {
        match value.data {
            Data::Null => Some(None),
            _ => T::decode(value, at, problems).map(Some),
        }
    }
}

impl<T: Decode> Decode for Box<T> {
    fn decode(value: &Value, at: &Place<'_>, problems: &mut Problems) -> Option<Self> {
        T::decode(value, at, problems).map(Self::new)
    }
}

impl<T: Decode> Decode for Vec<T> {
    fn decode(value: &Value, at: &Place<'_>, problems: &mut Problems) -> Option<Self> {
        match &value.data {
            Data::List(items) => Some(
                items
                    .iter()
                    .enumerate()
                    .filter_map(|(i, item)| T::decode(item, &at.index(i), problems))
                    .collect(),
            ),
            // A block that occurs once in HCL stands for a list of one.
            Data::Object(_) => Some(
                T::decode(value, &at.index(0), problems)
                    .into_iter()
                    .collect(),
            ),
            _ => {
                wrong_kind("a list", value, at, problems);
                None
            }
        }
    }
}

impl<T: Decode> Decode for BTreeMap<String, T> {
    fn decode(value: &Value, at: &Place<'_>, problems: &mut Problems) -> Option<Self> {
        let mut map = Self::new();
        for member in members_of(value, at, problems)? {
            let here = at.key(&member.key);
            if member.value.data == Data::Null {
                continue;
            }
            let Some(read) = T::decode(&member.value, &here, problems) else {
                continue;
            };
            if map.insert(member.key.clone(), read).is_some() {
                problems.error(&here, "given twice; remove one");
            }
        }
        Some(map)
    }
}

/// A free-form map: keys and values are kept as written.
pub type Opaque = serde_json::Map<String, serde_json::Value>;

impl Decode for Opaque {
    fn decode(value: &Value, at: &Place<'_>, problems: &mut Problems) -> Option<Self> {
        let members = members_of(value, at, problems)?;
        Some(
            members
                .iter()
                .map(|m| (m.key.clone(), m.value.to_json()))
                .collect(),
        )
    }
}

impl Decode for serde_json::Value {
    fn decode(value: &Value, _at: &Place<'_>, _problems: &mut Problems) -> Option<Self> {
        Some(value.to_json())
    }
}

/// The members of an object, or of a list of one object.
pub fn members_of<'v>(
    value: &'v Value,
    at: &Place<'_>,
    problems: &mut Problems,
) -> Option<&'v [Member]> {
    match &value.data {
        Data::Object(members) => Some(members),
        Data::List(items) => match items.as_slice() {
            [] => Some(&[]),
            [
                Value {
                    data: Data::Object(members),
                    ..
                },
            ] => Some(members),
            _ => {
                problems.error(
                    at,
                    "must be one object, not a list; is the block given twice?",
                );
                None
            }
        },
        _ => {
            wrong_kind("an object", value, at, problems);
            None
        }
    }
}

/// Reads one field of a record; used by the [`record!`](crate::model::record) macro.
pub fn decode_field<T: Decode>(
    into: &mut T,
    value: &Value,
    at: &Place<'_>,
    problems: &mut Problems,
) {
    if value.data == Data::Null {
        return;
    }
    if let Some(read) = T::decode(value, at, problems) {
        *into = read;
    }
}

/// Whether an earlier member counts for the same field of a record as this one; the CamelCase spelling `name` hides all
/// others, so it is repeated by itself only.
pub fn is_repeated(members: &[Member], member: &Member, name: &str) -> bool {
    members
        .iter()
        .take_while(|m| !std::ptr::eq(*m, member))
        .any(|m| same_key(&m.key, name) && (m.key == name) == (member.key == name))
}

/// Whether a value says no more than leaving it out: clients write out fields that aren't set.
#[must_use]
pub fn is_unset(value: &Value) -> bool {
    match &value.data {
        Data::Null | Data::Bool(false) | Data::Int(0) => true,
        Data::String(text) => text.is_empty(),
        Data::List(items) => items.is_empty(),
        Data::Object(members) => members.is_empty(),
        _ => false,
    }
}

/// Notes a key that a record doesn't have, naming the nearest one it has.
pub fn unknown_key(key: &str, known: &[&str], at: &Place<'_>, problems: &mut Problems) {
    if problems.is_full() {
        return;
    }
    let nearest = known.iter().map(|k| (distance(key, k), *k)).min();
    let message = match nearest {
        Some((d, name)) if d <= 3 => format!("unknown key; did you mean {name}?"),
        _ => "unknown key; remove it".to_owned(),
    };
    problems.error(&at.key(key), message);
}

/// Edit distance of two keys without regard to case and underscores.
fn distance(a: &str, b: &str) -> usize {
    let letters = |s: &str| {
        s.chars()
            .filter(|c| *c != '_')
            .flat_map(char::to_lowercase)
            .take(64)
            .collect::<Vec<_>>()
    };
    let (a, b) = (letters(a), letters(b));
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let cost = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = cost.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[b.len()]
}

/// Whether a value is its type's default; such fields are left out of JSON.
pub fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Defines a record: a struct whose fields have public JSON names, with its reader and its JSON form.
///
/// `field: Type = "JsonName",` leaves the field out of JSON when it has its default; `field: Type = "JsonName" always,`
/// writes it always. Keys in `ignored [...]` are read and dropped in silence (row indexes and the like); keys in `without_effect [...]` are
/// known to Consul but do nothing here, which a warning says.
#[macro_export]
#[doc(hidden)]
macro_rules! record {
    (
        $(#[$meta:meta])*
        pub struct $name:ident {
            $( $(#[$field_meta:meta])* $field:ident : $ty:ty = $json:literal $($always:ident)? , )*
        }
        $( ignored [ $($ignored:literal),* $(,)? ] )?
        $( without_effect [ $($idle:literal),* $(,)? ] )?
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Default, PartialEq)]
        pub struct $name {
            $( $(#[$field_meta])* pub $field: $ty, )*
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                use serde::ser::SerializeMap as _;
                let mut map = serializer.serialize_map(None)?;
                $(
                    let always = false $( || stringify!($always) == "always" )?;
                    if always || !$crate::model::decode::is_default(&self.$field) {
                        map.serialize_entry($json, &self.$field)?;
                    }
                )*
                map.end()
            }
        }

        impl $crate::model::decode::Decode for $name {
            fn keys() -> &'static [&'static str] {
                &[$($json),*]
            }

            fn decode(
                value: &$crate::hcl::Value,
                at: &$crate::model::decode::Place<'_>,
                problems: &mut $crate::model::decode::Problems,
            ) -> Option<Self> {
                const KEYS: &[&str] = &[$($json),*];
                const IGNORED: &[&str] = &[$($($ignored),*)?];
                const IDLE: &[&str] = &[$($($idle),*)?];
                let members = $crate::model::decode::members_of(value, at, problems)?;
                let mut record = Self::default();
                for member in members {
                    let same = |name: &&&str| $crate::model::decode::same_key(&member.key, name);
                    match KEYS.iter().find(same) {
                        // The CamelCase spelling wins over the other (store.md, head: naming).
                        Some(name) if *name != member.key && members.iter().any(|m| m.key == **name) => {}
                        Some(name) if $crate::model::decode::is_repeated(members, member, name) => {
                            problems.error(&at.key(&member.key), "given twice; remove one");
                        }
                        $( Some(&$json) => $crate::model::decode::decode_field(
                            &mut record.$field, &member.value, &at.key($json), problems,
                        ), )*
                        _ if IGNORED.iter().any(|name| same(&name)) => {}
                        _ if IDLE.iter().any(|name| same(&name)) => {
                            if !$crate::model::decode::is_unset(&member.value) {
                                problems.warning(&at.key(&member.key), "has no effect here");
                            }
                        }
                        _ => $crate::model::decode::unknown_key(&member.key, KEYS, at, problems),
                    }
                }
                Some(record)
            }
        }
    };
}
pub use record;

/// Defines an enum with fixed spellings, read without regard to case, with its JSON form. The first variant is the default.
/// `empty_means Variant` after the enum lets an empty text stand for a variant: clients write out fields that aren't set.
#[macro_export]
#[doc(hidden)]
macro_rules! words {
    (
        $(#[$meta:meta])*
        pub enum $name:ident {
            $(#[$first_meta:meta])* $first:ident = $first_text:literal,
            $( $(#[$variant_meta:meta])* $variant:ident = $text:literal, )*
        }
        $( empty_means $empty:ident )?
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name {
            $(#[$first_meta])* #[default] $first,
            $( $(#[$variant_meta])* $variant, )*
        }

        impl $name {
            /// The spelling in records.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { Self::$first => $first_text, $( Self::$variant => $text, )* }
            }

            /// Reads a spelling, without regard to case.
            #[must_use]
            pub fn from_text(text: &str) -> Option<Self> {
                match text.to_ascii_lowercase().as_str() {
                    $first_text => Some(Self::$first),
                    $( $text => Some(Self::$variant), )*
                    _ => None,
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl $crate::model::decode::Decode for $name {
            fn decode(
                value: &$crate::hcl::Value,
                at: &$crate::model::decode::Place<'_>,
                problems: &mut $crate::model::decode::Problems,
            ) -> Option<Self> {
                let text = <String as $crate::model::decode::Decode>::decode(value, at, problems)?;
                $( if text.is_empty() { return Some(Self::$empty); } )?
                let read = Self::from_text(&text);
                if read.is_none() {
                    let all = [$first_text, $($text),*].iter().map(|t| format!("{t:?}")).collect::<Vec<_>>().join(", ");
                    problems.error(at, format!("{text:?} is not one of {all}"));
                }
                read
            }
        }
    };
}
pub use words;
