//! Deterministic encoding (decision X2).
//!
//! The generated types keep map fields in hash maps, whose order is random, and the version of a resource is the hash of
//! its bytes. So a message with a map field that can have two or more entries isn't built as that type but written here
//! field by field, with the entries sorted by key. A map field only occurs inside messages that travel as an `Any`, i.e.
//! as bytes, so what contains them is encoded in the ordinary way. Everything else in the generated types is ordered.

use envoy_types::pb::google::protobuf::Any;
use prost::encoding::{WireType, encode_key, encode_varint};
use prost::{Message, Name};

/// Writes the fields of one message in the order of the calls.
#[derive(Debug, Default)]
pub(super) struct Fields(Vec<u8>);

impl Fields {
    /// A field with an encoded message.
    pub(super) fn bytes(mut self, tag: u32, bytes: &[u8]) -> Self {
        encode_key(tag, WireType::LengthDelimited, &mut self.0);
        encode_varint(bytes.len() as u64, &mut self.0);
        self.0.extend_from_slice(bytes);
        self
    }

    /// A text field; an empty text is left out, as everywhere in proto3.
    pub(super) fn text(self, tag: u32, text: &str) -> Self {
        if text.is_empty() {
            self
        } else {
            self.bytes(tag, text.as_bytes())
        }
    }

    /// An enumeration or a whole number; zero is left out.
    pub(super) fn number(mut self, tag: u32, number: u64) -> Self {
        if number != 0 {
            encode_key(tag, WireType::Varint, &mut self.0);
            encode_varint(number, &mut self.0);
        }
        self
    }

    /// A map field from text to encoded messages. The order of `entries` is kept: it must be sorted by key.
    pub(super) fn map<'a>(
        self,
        tag: u32,
        entries: impl IntoIterator<Item = (&'a str, Vec<u8>)>,
    ) -> Self {
        entries.into_iter().fold(self, |fields, (key, value)| {
            // An entry's key and value are written even where they are empty: an entry without a value is not the same
            // to every reader.
            let entry = Self::default().bytes(1, key.as_bytes()).bytes(2, &value);
            fields.bytes(tag, &entry.0)
        })
    }

    /// The encoded message.
    pub(super) fn done(self) -> Vec<u8> {
        self.0
    }

    /// The encoded message as an `Any` of type `M`.
    pub(super) fn any<M: Name>(self) -> Any {
        Any {
            type_url: url::<M>(),
            value: self.0,
        }
    }
}

/// Wraps a message. It must not have a map with two or more entries anywhere but inside an `Any`.
pub(super) fn any<M: Message + Name>(message: &M) -> Any {
    Any {
        type_url: url::<M>(),
        value: message.encode_to_vec(),
    }
}

fn url<M: Name>() -> String {
    format!("type.googleapis.com/{}", M::full_name())
}

/// JSON as an encoded `google.protobuf.Struct`, members sorted by name (JSON objects are sorted here).
pub(super) fn structure(members: &serde_json::Map<String, serde_json::Value>) -> Vec<u8> {
    Fields::default()
        .map(
            1,
            members
                .iter()
                .map(|(key, value)| (key.as_str(), value_of(value))),
        )
        .done()
}

/// JSON as an encoded `google.protobuf.Value`. Its field is a `oneof`, so that zero values are written too.
fn value_of(value: &serde_json::Value) -> Vec<u8> {
    use serde_json::Value;
    let varint = |tag, number| {
        let mut bytes = Vec::new();
        encode_key(tag, WireType::Varint, &mut bytes);
        encode_varint(number, &mut bytes);
        bytes
    };
    match value {
        Value::Null => varint(1, 0),
        Value::Bool(is) => varint(4, u64::from(*is)),
        Value::Number(number) => {
            let mut bytes = Vec::new();
            encode_key(2, WireType::SixtyFourBit, &mut bytes);
            bytes.extend_from_slice(&number.as_f64().unwrap_or_default().to_le_bytes());
            bytes
        }
        Value::String(text) => Fields::default().bytes(3, text.as_bytes()).done(),
        Value::Object(members) => Fields::default().bytes(5, &structure(members)).done(),
        Value::Array(items) => {
            let list = items.iter().fold(Fields::default(), |fields, item| {
                fields.bytes(1, &value_of(item))
            });
            Fields::default().bytes(6, &list.done()).done()
        }
    }
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::google::protobuf::{Struct, value::Kind};

    use super::*;

    #[test]
    fn x2_a_structure_reads_back_and_is_the_same_every_time() {
        let json = serde_json::json!({
            "b": "text", "a": {"z": 1.5, "y": true, "x": null, "empty": {}}, "c": [1, "two", {"k": ""}], "d": "", "e": 0,
        });
        let members = json.as_object().unwrap();
        let bytes = structure(members);
        for _ in 0..100 {
            assert_eq!(structure(&members.clone()), bytes);
        }
        let read = Struct::decode(&*bytes).unwrap();
        assert_eq!(read.fields.len(), 5);
        assert_eq!(
            read.fields["b"].kind,
            Some(Kind::StringValue("text".into()))
        );
        assert_eq!(
            read.fields["d"].kind,
            Some(Kind::StringValue(String::new()))
        );
        assert_eq!(read.fields["e"].kind, Some(Kind::NumberValue(0.0)));
        let Some(Kind::StructValue(inner)) = &read.fields["a"].kind else {
            panic!("{read:?}")
        };
        assert_eq!(inner.fields["x"].kind, Some(Kind::NullValue(0)));
        assert_eq!(inner.fields["y"].kind, Some(Kind::BoolValue(true)));
    }
}
