//! `/v1/config`: config entries (store.md 3 and 4.4).

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::{get, put};
use serde_json::json;

use super::HttpState;
use super::answer::{Content, Written};
use super::blocking::{off_thread, read};
use super::body::Body;
use super::error::HttpError;
use super::params::Params;
use crate::model::{ConfigEntry, EntryKey, EntryKind};
use crate::server::access::Access;
use crate::store::{Op, Transaction};

pub(super) fn routes() -> Router<Arc<HttpState>> {
    Router::new()
        .route("/v1/config", put(write))
        .route("/v1/config/{kind}", get(list))
        .route("/v1/config/{kind}/{name}", get(entry).delete(remove))
}

type Shared = State<Arc<HttpState>>;

fn kind_of(text: &str) -> Result<EntryKind, HttpError> {
    EntryKind::from_text(text).ok_or_else(|| {
        let kinds: Vec<_> = EntryKind::ALL.iter().map(|kind| kind.as_str()).collect();
        HttpError::bad_request(format!(
            "{text:?} is not a kind of config entry; there are {}",
            kinds.join(", ")
        ))
    })
}

/// An entry's key from its path; kinds of which there is only one have a fixed name.
fn key_of(kind: &str, name: &str) -> Result<EntryKey, HttpError> {
    let kind = kind_of(kind)?;
    match kind.only_name() {
        Some(only) if !name.eq_ignore_ascii_case(only) => Err(HttpError::bad_request(format!(
            "there is only one {kind}, and its name is {only:?}, not {name:?}"
        ))),
        _ => Ok(EntryKey::new(kind, name)),
    }
}

/// Entries of a service are read and written by who may do so with the service. Entries of the whole mesh are the operator's to
/// write; what they say everybody in the mesh goes by, so that every known caller may read them.
const fn of_mesh(kind: EntryKind) -> bool {
    !matches!(
        kind,
        EntryKind::ServiceDefaults
            | EntryKind::ServiceRouter
            | EntryKind::ServiceSplitter
            | EntryKind::ServiceResolver
            | EntryKind::ServiceIntentions
    )
}

fn reading(key: &EntryKey) -> Access<'_> {
    if of_mesh(key.kind) {
        Access::Any
    } else {
        Access::Read(key.name.as_str())
    }
}

fn writing(key: &EntryKey) -> Access<'_> {
    if of_mesh(key.kind) {
        Access::Operator
    } else {
        Access::Write(key.name.as_str())
    }
}

async fn write(State(state): Shared, params: Params, body: Body) -> Result<Response, HttpError> {
    let cas = params.number("cas")?;
    let rights = params.grants().clone();
    let written = off_thread(move || {
        let (entry, warnings) = body.record("a config entry", ConfigEntry::read)?;
        rights.require(writing(&entry.key()))?;
        let op = Op::SetConfig {
            entry: Box::new(entry),
            cas,
        };
        let applied = state
            .store()
            .apply(Transaction::of(op))
            .map_err(HttpError::of_write)?;
        Ok(Written {
            warnings,
            ..Written::done(applied.applied(), applied.index)
        })
    })
    .await?;
    written.response(params.writer())
}

async fn list(
    State(state): Shared,
    Path(kind): Path<String>,
    params: Params,
) -> Result<Response, HttpError> {
    params.without(&["filter"])?;
    let kind = kind_of(&kind)?;
    let rights = params.grants().clone();
    read(&state, &params, move |reader, writer| {
        let mut entries = reader.config_list(kind);
        entries.retain(|row| rights.allows(reading(&row.key())));
        writer.json(&entries)
    })
    .await
}

async fn entry(
    State(state): Shared,
    Path((kind, name)): Path<(String, String)>,
    params: Params,
) -> Result<Response, HttpError> {
    let key = key_of(&kind, &name)?;
    params.require(reading(&key))?;
    read(&state, &params, move |reader, writer| {
        match reader.config(key.kind, &name) {
            Some(row) => writer.json(row),
            None => Ok(Content::NotFound(format!(
                "config entry not found for {:?} / {name:?}",
                key.kind.as_str()
            ))),
        }
    })
    .await
}

async fn remove(
    State(state): Shared,
    Path((kind, name)): Path<(String, String)>,
    params: Params,
) -> Result<Response, HttpError> {
    let key = key_of(&kind, &name)?;
    params.require(writing(&key))?;
    let cas = params.number("cas")?;
    let written = off_thread(move || {
        let applied = state
            .store()
            .apply(Transaction::of(Op::DeleteConfig { key, cas }))
            .map_err(HttpError::of_write)?;
        // As Consul does: whether it was the expected one, if one was expected.
        let body = match cas {
            Some(_) => json!(applied.applied()),
            None => json!({}),
        };
        Ok(Written::done(body, applied.index))
    })
    .await?;
    written.response(params.writer())
}
