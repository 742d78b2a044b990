//! Rows as bytes, the same in the file and in backups.
//!
//! A key is the letter of its table and a JSON list of its parts. A value is the record as JSON in Consul's public form, as
//! everywhere else, so that whoever has the file can read it, and a later version with more fields can too. What the public
//! form leaves out (private keys, when a root stopped signing) stands beside it.

use std::time::{Duration, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use smol_str::SmolStr;
use triomphe::Arc;

use crate::hcl::Value;
use crate::model::{
    CaConfig, CaRoots, ConfigEntry, Decode, EntryKind, HealthCheck, Node, Place, PrivateKey,
    Problems, ServiceInstance,
};
use crate::store::backend::{AnyRow, OpaqueState, RowKey};
use crate::store::key::PeeredName;
use crate::store::row::Row;

/// A row in its parts, as backups hold it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub(super) struct Parts {
    /// The table's word.
    pub table: String,
    /// The parts of the key.
    pub key: Vec<String>,
    /// Store index of the row's making.
    pub create_index: u64,
    /// Store index of its last change.
    pub modify_index: u64,
    /// The record.
    pub value: Json,
}

/// The tables: letter in the file, word in backups.
const TABLES: [(u8, &str); 7] = [
    (b'n', "node"),
    (b's', "service"),
    (b'c', "check"),
    (b'e', "config-entry"),
    (b'r', "ca-roots"),
    (b'a', "ca-config"),
    (b'o', "state"),
];

/// The bytes of a key.
pub(super) fn key_bytes(key: &RowKey) -> Vec<u8> {
    let (table, parts) = key_parts(key);
    let letter = TABLES.iter().find(|(_, word)| *word == table);
    let mut bytes = vec![letter.map_or(0, |(letter, _)| *letter)];
    bytes.extend(Json::from(parts).to_string().into_bytes());
    bytes
}

/// The bytes of a row: its two indexes, eight bytes each, most significant first; then the record.
pub(super) fn value_bytes(row: &AnyRow) -> Result<Vec<u8>, String> {
    let Parts {
        create_index,
        modify_index,
        value,
        ..
    } = to_parts(row)?;
    let mut bytes = create_index.to_be_bytes().to_vec();
    bytes.extend(modify_index.to_be_bytes());
    serde_json::to_writer(&mut bytes, &value).map_err(|error| error.to_string())?;
    Ok(bytes)
}

/// Reads a row from the bytes of its key and of itself.
pub(super) fn from_bytes(key: &[u8], value: &[u8]) -> Result<AnyRow, String> {
    let (letter, parts) = key.split_first().ok_or("a key is empty")?;
    let table = TABLES.iter().find(|(of, _)| of == letter);
    let (_, table) = table.ok_or_else(|| format!("there is no table {letter}"))?;
    let (indexes, record) = value
        .split_at_checked(16)
        .ok_or("a row is too short to hold its indexes")?;
    let (create, modify) = indexes.split_at(8);
    let number = |bytes: &[u8]| bytes.iter().fold(0, |n, b| (n << 8) | u64::from(*b));
    from_parts(&Parts {
        table: (*table).to_owned(),
        key: serde_json::from_slice(parts).map_err(|error| format!("a key: {error}"))?,
        create_index: number(create),
        modify_index: number(modify),
        value: serde_json::from_slice(record).map_err(|error| format!("a record: {error}"))?,
    })
}

fn key_parts(key: &RowKey) -> (&'static str, Vec<String>) {
    let peered = |name: &PeeredName| [name.peer.to_string(), name.name.to_string()];
    match key {
        RowKey::Node(node) => ("node", peered(node).into()),
        RowKey::Service(key) => {
            let id = key.id.to_string();
            (
                "service",
                peered(&key.node).into_iter().chain([id]).collect(),
            )
        }
        RowKey::Check(key) => {
            let ids = [key.service_id.to_string(), key.check_id.to_string()];
            ("check", peered(&key.node).into_iter().chain(ids).collect())
        }
        RowKey::Config(key) => (
            "config-entry",
            vec![key.kind.to_string(), key.name.to_string()],
        ),
        RowKey::CaRoots => ("ca-roots", Vec::new()),
        RowKey::CaConfig => ("ca-config", Vec::new()),
        RowKey::State(name) => ("state", vec![name.to_string()]),
    }
}

/// A row taken apart.
pub(super) fn to_parts(row: &AnyRow) -> Result<Parts, String> {
    fn parts<T>(row: &Row<T>, value: Json) -> Parts {
        Parts {
            table: String::new(),
            key: Vec::new(),
            create_index: row.create_index,
            modify_index: row.modify_index,
            value,
        }
    }
    fn plain<T: Serialize>(row: &Row<T>) -> Result<Parts, String> {
        let value = serde_json::to_value(&*row.value).map_err(|error| error.to_string())?;
        Ok(parts(row, value))
    }
    let (table, key) = key_parts(&row.key());
    let taken = match row {
        AnyRow::Node(row) => plain(row)?,
        AnyRow::Service { row, .. } => plain(row)?,
        AnyRow::Check(row) => plain(row)?,
        AnyRow::Config(row) => plain(row)?,
        AnyRow::CaRoots(row) => parts(row, roots_to_json(row)?),
        AnyRow::CaConfig(row) => parts(row, ca_config_to_json(row)?),
        AnyRow::State { row, .. } => parts(row, state_to_json(row)),
    };
    Ok(Parts {
        table: table.to_owned(),
        key,
        ..taken
    })
}

/// Puts a row together.
pub(super) fn from_parts(parts: &Parts) -> Result<AnyRow, String> {
    let what = || format!("{} {}", parts.table, parts.key.join("/"));
    let row = assemble(parts).map_err(|problem| format!("{}: {problem}", what()))?;
    if key_parts(&row.key()) != (parts.table.as_str(), parts.key.clone()) {
        return Err(format!("{}: the record has another key", what()));
    }
    Ok(row)
}

fn assemble(parts: &Parts) -> Result<AnyRow, String> {
    fn row<T>(parts: &Parts, value: T) -> Row<T> {
        Row {
            value: Arc::new(value),
            create_index: parts.create_index,
            modify_index: parts.modify_index,
        }
    }
    let value = &parts.value;
    let key: Vec<&str> = parts.key.iter().map(String::as_str).collect();
    Ok(match (parts.table.as_str(), key.as_slice()) {
        ("node", _) => AnyRow::Node(row(parts, decode::<Node>(value)?)),
        ("service", [peer, node, _]) => AnyRow::Service {
            node: PeeredName::new(peer, node),
            row: row(parts, decode::<ServiceInstance>(value)?),
        },
        ("check", _) => AnyRow::Check(row(parts, decode::<HealthCheck>(value)?)),
        ("config-entry", [kind, _]) => {
            let kind = EntryKind::from_text(kind).ok_or("there is no such kind of entry")?;
            AnyRow::Config(row(parts, entry(kind, value)?))
        }
        ("ca-roots", _) => AnyRow::CaRoots(row(parts, roots_from_json(value)?)),
        ("ca-config", _) => AnyRow::CaConfig(row(parts, ca_config_from_json(value)?)),
        ("state", [name]) => AnyRow::State {
            name: SmolStr::from(*name),
            row: row(parts, state_from_json(value)?),
        },
        _ => return Err("there is no such table, or its keys have other parts".into()),
    })
}

fn decode<T: Decode>(json: &Json) -> Result<T, String> {
    let mut problems = Problems::default();
    let record = T::decode(&Value::from_json(json), &Place::ROOT, &mut problems);
    match record {
        Some(record) if problems.is_ok() => Ok(record),
        _ => Err(problems.text()),
    }
}

/// An entry of a kind, whatever its own field says.
fn entry(kind: EntryKind, json: &Json) -> Result<ConfigEntry, String> {
    Ok(match kind {
        EntryKind::ProxyDefaults => ConfigEntry::ProxyDefaults(decode(json)?),
        EntryKind::ServiceDefaults => ConfigEntry::ServiceDefaults(decode(json)?),
        EntryKind::ServiceRouter => ConfigEntry::ServiceRouter(decode(json)?),
        EntryKind::ServiceSplitter => ConfigEntry::ServiceSplitter(decode(json)?),
        EntryKind::ServiceResolver => ConfigEntry::ServiceResolver(decode(json)?),
        EntryKind::ServiceIntentions => ConfigEntry::ServiceIntentions(decode(json)?),
        EntryKind::Mesh => ConfigEntry::Mesh(decode(json)?),
        EntryKind::JwtProvider => ConfigEntry::JwtProvider(decode(json)?),
    })
}

/// Name of the member that holds what a record's own form leaves out.
const BESIDE: &str = "_Kept";

fn beside(mut record: Json, more: Map<String, Json>) -> Json {
    if let Json::Object(members) = &mut record
        && !more.is_empty()
    {
        members.insert(BESIDE.to_owned(), more.into());
    }
    record
}

fn take_beside(record: &Json) -> (Json, Map<String, Json>) {
    let mut record = record.clone();
    let more = record.as_object_mut().and_then(|m| m.remove(BESIDE));
    match more {
        Some(Json::Object(more)) => (record, more),
        _ => (record, Map::new()),
    }
}

fn roots_to_json(roots: &CaRoots) -> Result<Json, String> {
    let mut times = Map::new();
    for root in &roots.roots {
        if let Some(at) = root.rotated_out_at {
            let since = at
                .duration_since(UNIX_EPOCH)
                .map_err(|_| "a root was rotated out before 1970: correct the clock")?;
            let time = Json::from(vec![since.as_secs(), u64::from(since.subsec_nanos())]);
            times.insert(root.id.to_string(), time);
        }
    }
    let record = serde_json::to_value(roots).map_err(|error| error.to_string())?;
    Ok(beside(record, times))
}

fn roots_from_json(json: &Json) -> Result<CaRoots, String> {
    let (record, times) = take_beside(json);
    let mut roots: CaRoots = serde_json::from_value(record).map_err(|error| error.to_string())?;
    for root in &mut roots.roots {
        if let Some(time) = times.get(root.id.as_str()) {
            let (seconds, nanos) =
                serde_json::from_value(time.clone()).map_err(|error| error.to_string())?;
            root.rotated_out_at = UNIX_EPOCH.checked_add(Duration::new(seconds, nanos));
        }
    }
    Ok(roots)
}

fn ca_config_to_json(config: &CaConfig) -> Result<Json, String> {
    let mut public = config.clone();
    let mut secret = Map::new();
    if let Some(key) = public.private_key.take() {
        // A durable store is one of the places that a key may go to (decision C1).
        secret.insert("PrivateKey".to_owned(), key.expose_pem().into());
    }
    let record = serde_json::to_value(public).map_err(|error| error.to_string())?;
    Ok(beside(record, secret))
}

fn ca_config_from_json(json: &Json) -> Result<CaConfig, String> {
    let (record, secret) = take_beside(json);
    // Messages of the library may quote what they stumbled over.
    let mut config: CaConfig =
        serde_json::from_value(record).map_err(|_| "it isn't a CA configuration")?;
    config.private_key = match secret.get("PrivateKey") {
        Some(Json::String(pem)) => Some(PrivateKey::from_pem(pem.clone())),
        _ => None,
    };
    Ok(config)
}

/// States are bytes of any kind.
fn state_to_json(state: &OpaqueState) -> Json {
    use base64::Engine as _;
    let text = base64::engine::general_purpose::STANDARD.encode(&state.0);
    Json::String(text)
}

fn state_from_json(json: &Json) -> Result<OpaqueState, String> {
    use base64::Engine as _;
    let text = json.as_str().ok_or("the state isn't text")?;
    let bytes = base64::engine::general_purpose::STANDARD.decode(text);
    bytes
        .map(OpaqueState)
        .map_err(|_| "the state isn't Base64".to_owned())
}

/// What a key is called in messages.
pub(super) fn name_of(key: &RowKey) -> String {
    let (table, parts) = key_parts(key);
    format!("{table} {}", parts.join("/"))
}
