//! The bytes of messages that are known by their descriptors only, the same every time (decision X2).
//!
//! Fields go by number, entries of maps by key, and messages inside an `Any` are opened and written anew.

use prost_reflect::{
    DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, ReflectMessage as _, Value,
};
use std::collections::{BTreeMap, HashMap};

use prost::Message as _;
use prost::encoding::{WireType, encode_key, encode_varint};

/// The encoded message.
///
/// # Errors
/// An `Any` inside has a type without a descriptor, or bytes that aren't of its type.
pub(super) fn encode(message: &DynamicMessage) -> Result<Vec<u8>, String> {
    let descriptor = message.descriptor();
    if descriptor.full_name() == "google.protobuf.Any" {
        return any(message, &descriptor);
    }
    let mut bytes = Vec::new();
    for (field, value) in message.fields() {
        match value {
            Value::Message(inner) => delimited(field.number(), &encode(inner)?, &mut bytes),
            Value::Map(entries) => map(&field, entries, &mut bytes)?,
            Value::List(items) if matches!(field.kind(), Kind::Message(_)) => {
                for item in items.iter().filter_map(Value::as_message) {
                    delimited(field.number(), &encode(item)?, &mut bytes);
                }
            }
            plain => {
                let mut alone = DynamicMessage::new(descriptor.clone());
                alone.set_field(&field, plain.clone());
                bytes.extend(alone.encode_to_vec());
            }
        }
    }
    Ok(bytes)
}

fn map(
    field: &FieldDescriptor,
    entries: &HashMap<MapKey, Value>,
    bytes: &mut Vec<u8>,
) -> Result<(), String> {
    let Kind::Message(descriptor) = field.kind() else {
        return Ok(());
    };
    let sorted: BTreeMap<_, _> = entries.iter().collect();
    for (key, value) in sorted {
        let mut entry = DynamicMessage::new(descriptor.clone());
        entry.set_field_by_number(1, key.clone().into());
        let mut encoded = Vec::new();
        if let Value::Message(inner) = value {
            encoded = entry.encode_to_vec();
            delimited(2, &encode(inner)?, &mut encoded);
        } else {
            entry.set_field_by_number(2, value.clone());
            encoded.extend(entry.encode_to_vec());
        }
        delimited(field.number(), &encoded, bytes);
    }
    Ok(())
}

/// What an `Any` holds.
///
/// # Errors
/// Its type has no descriptor, or its bytes aren't of that type.
pub(super) fn opened(any: &DynamicMessage) -> Result<DynamicMessage, String> {
    let (name, value) = parts(any);
    let inner = any
        .descriptor()
        .parent_pool()
        .get_message_by_name(&name)
        .ok_or_else(|| format!("the type {name} isn't known"))?;
    DynamicMessage::decode(inner, &*value).map_err(|e| e.to_string())
}

/// The name of the type in an `Any`, and its bytes.
pub(super) fn parts(any: &DynamicMessage) -> (String, Vec<u8>) {
    let url = any.get_field_by_name("type_url");
    let url = url.as_deref().and_then(Value::as_str).unwrap_or_default();
    let name = url.rsplit('/').next().unwrap_or(url).to_owned();
    let value = any.get_field_by_name("value");
    let value = value.as_deref().and_then(Value::as_bytes);
    (name, value.map(|bytes| bytes.to_vec()).unwrap_or_default())
}

fn any(message: &DynamicMessage, descriptor: &MessageDescriptor) -> Result<Vec<u8>, String> {
    let (name, _) = parts(message);
    if name.is_empty() {
        return Ok(Vec::new());
    }
    let mut sorted = message.clone();
    let value = encode(&opened(message)?)?;
    if let Some(field) = descriptor.get_field_by_name("value") {
        sorted.set_field(&field, Value::Bytes(value.into()));
    }
    Ok(sorted.encode_to_vec())
}

fn delimited(tag: u32, inner: &[u8], bytes: &mut Vec<u8>) {
    encode_key(tag, WireType::LengthDelimited, bytes);
    encode_varint(inner.len() as u64, bytes);
    bytes.extend_from_slice(inner);
}
