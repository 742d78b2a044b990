//! How a filter sees records: their fields' types and values.

use std::borrow::Borrow;
use std::collections::BTreeMap;

use smol_str::SmolStr;

/// The type of a field, known without a record at hand. A whole record is described by a [`FieldType::Record`].
///
/// ```
/// use proxycfg::filter::FieldType;
///
/// static CHECK: FieldType = FieldType::Record(&[("CheckID", FieldType::String), ("Status", FieldType::String)]);
/// static INSTANCE: FieldType = FieldType::Record(&[
///     ("Port", FieldType::Int),
///     ("Tags", FieldType::List(&FieldType::String)),
///     ("Meta", FieldType::Map(&FieldType::String)),
///     ("Checks", FieldType::List(&CHECK)),
/// ]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum FieldType {
    /// Text, also that of an enumeration.
    String,
    /// A whole number.
    Int,
    /// A number.
    Float,
    /// True or false.
    Bool,
    /// A list; selectors run through a list of records into each of them.
    List(&'static FieldType),
    /// A map with text keys; a selector's next name is the key.
    Map(&'static FieldType),
    /// Named fields; a selector's next name is one of them, spelled exactly so.
    Record(&'static [(&'static str, FieldType)]),
}

/// The value of a field, borrowed from its record.
pub enum Field<'a> {
    /// Text, also that of an enumeration.
    String(&'a str),
    /// A whole number.
    Int(i64),
    /// A number.
    Float(f64),
    /// True or false.
    Bool(bool),
    /// The items of a list.
    List(Box<dyn Iterator<Item = Field<'a>> + 'a>),
    /// A map.
    Map(&'a dyn MapField),
    /// A record inside the record.
    Record(&'a dyn Record),
    /// The field exists but has no value here; treated like a map key that isn't there.
    Missing,
}

/// What a filter is applied to: something with named fields.
pub trait Record {
    /// The value of a field, or none if records of this type have no field of this name. A field without a value is
    /// [`Field::Missing`].
    fn field(&self, name: &str) -> Option<Field<'_>>;
}

/// A map that a filter can look into.
pub trait MapField {
    /// The value under a key, or none if the key isn't there.
    fn value(&self, key: &str) -> Option<Field<'_>>;

    /// Whether it has no keys.
    fn is_empty(&self) -> bool;
}

/// A value that can stand in a field.
///
/// A record type implements this as `Field::Record(self)`; lists and maps of it then follow.
pub trait AsField {
    /// The value as a filter sees it.
    fn as_field(&self) -> Field<'_>;
}

impl AsField for str {
    fn as_field(&self) -> Field<'_> {
        Field::String(self)
    }
}

impl AsField for String {
    fn as_field(&self) -> Field<'_> {
        Field::String(self)
    }
}

impl AsField for SmolStr {
    fn as_field(&self) -> Field<'_> {
        Field::String(self)
    }
}

impl AsField for bool {
    fn as_field(&self) -> Field<'_> {
        Field::Bool(*self)
    }
}

macro_rules! int_fields {
    ($($int:ty),*) => {
        $(impl AsField for $int {
            fn as_field(&self) -> Field<'_> {
                Field::Int(i64::from(*self))
            }
        })*
    };
}

int_fields!(i8, i16, i32, i64, u8, u16, u32);

impl AsField for f64 {
    fn as_field(&self) -> Field<'_> {
        Field::Float(*self)
    }
}

impl<T: AsField> AsField for Option<T> {
    fn as_field(&self) -> Field<'_> {
        self.as_ref().map_or(Field::Missing, AsField::as_field)
    }
}

impl<T: AsField> AsField for [T] {
    fn as_field(&self) -> Field<'_> {
        Field::List(Box::new(self.iter().map(AsField::as_field)))
    }
}

impl<T: AsField> AsField for Vec<T> {
    fn as_field(&self) -> Field<'_> {
        self.as_slice().as_field()
    }
}

impl<T: AsField + ?Sized> AsField for triomphe::Arc<T> {
    fn as_field(&self) -> Field<'_> {
        (**self).as_field()
    }
}

impl<K: Borrow<str> + Ord, V: AsField> AsField for BTreeMap<K, V> {
    fn as_field(&self) -> Field<'_> {
        Field::Map(self)
    }
}

impl<K: Borrow<str> + Ord, V: AsField> MapField for BTreeMap<K, V> {
    fn value(&self, key: &str) -> Option<Field<'_>> {
        self.get(key).map(AsField::as_field)
    }

    fn is_empty(&self) -> bool {
        self.is_empty()
    }
}
