//! `/v1/connect/intentions`: who may call whom, one pair of source and destination at a time (store.md 4.12).
//!
//! Intentions are the sources of service-intentions entries, seen singly. Writing or deleting one reads the entry of its
//! destination and writes it back with all other sources as they were, if nobody has changed it meanwhile.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::get;
use serde::Serialize;
use serde_json::json;
use smol_str::SmolStr;

use super::HttpState;
use super::answer::{Content, Written};
use super::blocking::{off_thread, read};
use super::body::Body;
use super::error::HttpError;
use super::params::Params;
use crate::model::{
    ConfigEntry, EntryKey, EntryKind, Intention, IntentionAction, IntentionJwt,
    IntentionPermission, MAX_NAME, Problems, ServiceIntentions, SourceIntention, Step, accept,
    decode_document,
};
use crate::server::access::Access;
use crate::store::{Applied, Op, Reader, Row, Transaction};

/// How often a write begins anew because somebody else has written the same entry meanwhile.
const ATTEMPTS: usize = 100;

pub(super) fn routes() -> Router<Arc<HttpState>> {
    Router::new()
        .route("/v1/connect/intentions", get(list))
        .route("/v1/connect/intentions/match", get(matching))
        .route("/v1/connect/intentions/check", get(check))
        .route(
            "/v1/connect/intentions/exact",
            get(exact).put(write_exact).delete(delete_exact),
        )
}

type Shared = State<Arc<HttpState>>;

/// An intention in Consul's public form.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct IntentionJson<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    description: &'a str,
    #[serde(rename = "SourceNS")]
    source_ns: &'a str,
    source_name: &'a str,
    source_partition: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    source_peer: &'a str,
    #[serde(rename = "DestinationNS")]
    destination_ns: &'a str,
    destination_name: &'a str,
    destination_partition: &'a str,
    source_type: &'a str,
    #[serde(skip_serializing_if = "is_unset")]
    action: IntentionAction,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    permissions: &'a [IntentionPermission],
    #[serde(rename = "JWT", skip_serializing_if = "Option::is_none")]
    jwt: Option<&'a IntentionJwt>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    meta: &'a BTreeMap<String, String>,
    precedence: u32,
    create_index: u64,
    modify_index: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde asks")]
fn is_unset(action: &IntentionAction) -> bool {
    *action == IntentionAction::Unset
}

impl<'a> IntentionJson<'a> {
    /// `entry` is where the intention is from.
    fn new(of: &'a Intention, entry: &Row<ConfigEntry>) -> Self {
        let or_default = |text: &'a str| if text.is_empty() { "default" } else { text };
        Self {
            description: &of.description,
            source_ns: or_default(&of.source_ns),
            source_name: &of.source_name,
            source_partition: match of.source_peer.as_str() {
                "" => or_default(&of.source_partition),
                _ => &of.source_partition,
            },
            source_peer: &of.source_peer,
            destination_ns: or_default(&of.destination_ns),
            destination_name: &of.destination_name,
            destination_partition: or_default(&of.destination_partition),
            source_type: &of.source_type,
            action: of.action,
            permissions: &of.permissions,
            jwt: of.jwt.as_ref(),
            meta: &of.meta,
            precedence: of.precedence,
            create_index: entry.create_index,
            modify_index: entry.modify_index,
        }
    }
}

/// Intentions with the indexes of the entries that they are from.
fn shown<'a>(intentions: &'a [Intention], reader: &Reader<'_>) -> Vec<IntentionJson<'a>> {
    let entry = |of: &Intention| reader.config(EntryKind::ServiceIntentions, &of.destination_name);
    let rows = intentions.iter().filter_map(|of| Some((of, entry(of)?)));
    rows.map(|(of, row)| IntentionJson::new(of, row)).collect()
}

async fn list(State(state): Shared, params: Params) -> Result<Response, HttpError> {
    params.without(&["filter"])?;
    let rights = params.grants().clone();
    read(&state, &params, move |reader, writer| {
        let mut intentions = reader.intentions();
        intentions.retain(|of| rights.allows(Access::Read(&of.destination_name)));
        writer.json(&shown(&intentions, reader))
    })
    .await
}

/// The intentions that decide about calls to, or from, each of some services.
async fn matching(State(state): Shared, params: Params) -> Result<Response, HttpError> {
    params.without(&["filter"])?;
    let by_source = match required(&params, "by")? {
        "source" => true,
        "destination" => false,
        other => {
            return Err(HttpError::bad_request(format!(
                "invalid query parameter \"by\": {other:?} is neither \"source\" nor \"destination\""
            )));
        }
    };
    required(&params, "name")?;
    let names = params.all("name");
    let names = names.map(|given| Ok((given.to_owned(), service("name", given)?)));
    let names: Vec<(String, SmolStr)> = names.collect::<Result<_, HttpError>>()?;
    for (_, name) in &names {
        params.require(Access::Read(name))?;
    }
    read(&state, &params, move |reader, writer| {
        let found = names.iter().map(|(given, name)| {
            let intentions = match by_source {
                true => reader.intentions_from(name),
                false => reader.intentions_to(name),
            };
            (given, intentions)
        });
        let found: BTreeMap<&String, Vec<Intention>> = found.collect();
        let shown: BTreeMap<_, _> = found
            .iter()
            .map(|(given, intentions)| (given, shown(intentions, reader)))
            .collect();
        writer.json(&shown)
    })
    .await
}

/// Whether a service may open connections to another. One that may make some requests only may not, as this asks for a
/// connection.
async fn check(State(state): Shared, params: Params) -> Result<Response, HttpError> {
    if let Some(other) = params.text("source-type").filter(|kind| *kind != "consul") {
        return Err(HttpError::bad_request(format!(
            "invalid query parameter \"source-type\": {other:?}; the only type is \"consul\""
        )));
    }
    let (source, destination) = pair(&params)?;
    for (key, name) in [("source", &source), ("destination", &destination)] {
        if name == "*" {
            return Err(HttpError::bad_request(format!(
                "invalid query parameter {key:?}: a check is about two services; name one instead of \"*\""
            )));
        }
    }
    params.require(Access::Read(&destination))?;
    let default = state.config().intention_default_allow;
    read(&state, &params, move |reader, writer| {
        let intentions = reader.intentions_to(&destination);
        let decides = |of: &&Intention| {
            of.source_peer.is_empty()
                && (of.source_name == "*" || of.source_name.eq_ignore_ascii_case(&source))
        };
        let allowed = match intentions.iter().find(decides) {
            Some(of) => of.permissions.is_empty() && of.action == IntentionAction::Allow,
            None => default,
        };
        writer.json(&json!({ "Allowed": allowed }))
    })
    .await
}

async fn exact(State(state): Shared, params: Params) -> Result<Response, HttpError> {
    let (source, destination) = pair(&params)?;
    params.require(Access::Read(&destination))?;
    read(&state, &params, move |reader, writer| {
        let intentions = reader.intentions_to(&destination);
        let wanted = |of: &&Intention| {
            of.source_peer.is_empty()
                && of.source_name.eq_ignore_ascii_case(&source)
                && of.destination_name.eq_ignore_ascii_case(&destination)
        };
        let found = intentions.iter().find(wanted).map(std::slice::from_ref);
        match found
            .map(|one| shown(one, reader))
            .unwrap_or_default()
            .pop()
        {
            Some(one) => writer.json(&one),
            None => Ok(Content::NotFound(format!(
                "Intention not found: from {source:?} to {destination:?}"
            ))),
        }
    })
    .await
}

async fn write_exact(
    State(state): Shared,
    params: Params,
    body: Body,
) -> Result<Response, HttpError> {
    let (source, destination) = pair(&params)?;
    params.require(Access::Write(&destination))?;
    let written = off_thread(move || {
        let document = body.document("an intention")?;
        let (given, mut warnings) = decode_document::<Intention>(&document)
            .map_err(|problems| HttpError::of_record(&problems))?;
        let new = source_of(given, &source, &destination)?;
        // Alone first, so that problems are told at their places in the body.
        let alone = ServiceIntentions {
            name: destination.to_string(),
            sources: vec![new.clone()],
            ..ServiceIntentions::default()
        };
        let (_, found) = accept(alone).map_err(|problems| of_source(&problems))?;
        warnings.warnings.extend(found.warnings);
        let applied = change(&state, &destination, |entry| {
            match entry.sources.iter_mut().find(|of| is_from(of, &source)) {
                Some(old) => *old = new.clone(),
                None => entry.sources.push(new.clone()),
            }
        })?;
        Ok(Written {
            warnings,
            ..Written::done(true, applied.index)
        })
    })
    .await?;
    written.response(params.writer())
}

async fn delete_exact(State(state): Shared, params: Params) -> Result<Response, HttpError> {
    let (source, destination) = pair(&params)?;
    params.require(Access::Write(&destination))?;
    let written = off_thread(move || {
        let applied = change(&state, &destination, |entry| {
            entry.sources.retain(|of| !is_from(of, &source));
        })?;
        Ok(Written::done(true, applied.index))
    })
    .await?;
    written.response(params.writer())
}

/// Changes the entry of a destination, or one without sources if there is none. One that ends up without sources is
/// deleted.
fn change(
    state: &HttpState,
    destination: &str,
    edit: impl Fn(&mut ServiceIntentions),
) -> Result<Applied, HttpError> {
    let key = EntryKey::new(EntryKind::ServiceIntentions, destination);
    for _ in 0..ATTEMPTS {
        let snapshot = state.store().snapshot();
        let row = snapshot.reader().config(key.kind, destination);
        let (mut entry, index) = match row.map(|row| (&*row.value, row.modify_index)) {
            Some((ConfigEntry::ServiceIntentions(entry), index)) => (entry.clone(), index),
            _ => (empty(destination), 0),
        };
        edit(&mut entry);
        let op = if !entry.sources.is_empty() {
            let (entry, _) = accept(entry).map_err(|problems| HttpError::of_record(&problems))?;
            Op::SetConfig {
                entry: Box::new(ConfigEntry::ServiceIntentions(entry)),
                cas: Some(index),
            }
        } else {
            Op::DeleteConfig {
                key: key.clone(),
                cas: (index != 0).then_some(index),
            }
        };
        let applied = state.store().apply(Transaction::of(op));
        let applied = applied.map_err(HttpError::of_write)?;
        if applied.applied() {
            return Ok(applied);
        }
    }
    Err(HttpError::new(
        StatusCode::CONFLICT,
        format!(
            "the intentions for {destination:?} are being changed by others all the time; try again"
        ),
    ))
}

fn empty(destination: &str) -> ServiceIntentions {
    ServiceIntentions {
        name: destination.to_owned(),
        ..ServiceIntentions::default()
    }
}

/// Sources in peers can't be named here; they are left alone.
fn is_from(of: &SourceIntention, source: &str) -> bool {
    of.peer.is_empty() && of.name.eq_ignore_ascii_case(source)
}

/// The source that a body describes for a pair which the query names.
fn source_of(
    given: Intention,
    source: &str,
    destination: &str,
) -> Result<SourceIntention, HttpError> {
    let mut problems = Vec::new();
    let pairs = [
        ("SourceName", &given.source_name, source),
        ("DestinationName", &given.destination_name, destination),
    ];
    for (key, named, wanted) in pairs {
        if !(named.is_empty() || named.eq_ignore_ascii_case(wanted)) {
            problems.push(format!(
                "{key}: {named:?} is not {wanted:?}, which the query names; leave it out"
            ));
        }
    }
    let tenancies = [
        ("SourceNS", &given.source_ns),
        ("SourcePartition", &given.source_partition),
        ("DestinationNS", &given.destination_ns),
        ("DestinationPartition", &given.destination_partition),
    ];
    for (key, named) in tenancies {
        if !(named.is_empty() || named.eq_ignore_ascii_case("default")) {
            problems.push(format!(
                "{key}: {named:?}: namespaces and partitions other than \"default\" are enterprise only"
            ));
        }
    }
    let of_entry = [
        ("SourcePeer", !given.source_peer.is_empty()),
        ("Meta", !given.meta.is_empty()),
        ("JWT", given.jwt.is_some()),
    ];
    for (key, given) in of_entry {
        if given {
            problems.push(format!(
                "{key}: can't be set for a single intention; write the service-intentions entry of {destination:?}"
            ));
        }
    }
    if !problems.is_empty() {
        return Err(HttpError::bad_request(problems.join("\n")));
    }
    Ok(SourceIntention {
        name: source.to_owned(),
        action: given.action,
        permissions: given.permissions,
        kind: given.source_type,
        description: given.description,
        ..SourceIntention::default()
    })
}

/// Problems of an entry with one source, told as problems of that source.
fn of_source(problems: &Problems) -> HttpError {
    let mut problems = problems.clone();
    for problem in &mut problems.errors {
        if let [Step::Key(list), Step::Index(0), ..] = problem.path.as_slice()
            && list == "Sources"
        {
            problem.path.drain(..2);
        }
    }
    HttpError::of_record(&problems)
}

fn pair(params: &Params) -> Result<(SmolStr, SmolStr), HttpError> {
    let source = service("source", required(params, "source")?)?;
    let destination = service("destination", required(params, "destination")?)?;
    Ok((source, destination))
}

fn required<'a>(params: &'a Params, key: &str) -> Result<&'a str, HttpError> {
    params
        .text(key)
        .ok_or_else(|| HttpError::bad_request(format!("required query parameter {key:?} not set")))
}

/// The service that a parameter names: `NAME`, or with the only namespace and partition, `default/NAME` and
/// `default/default/NAME`.
fn service(key: &str, given: &str) -> Result<SmolStr, HttpError> {
    let mut parts = given.split('/').collect::<Vec<_>>();
    let name = parts.pop().unwrap_or_default();
    let only_default = parts.len() <= 2 && parts.iter().all(|p| p.eq_ignore_ascii_case("default"));
    if !only_default {
        return Err(HttpError::bad_request(format!(
            "invalid query parameter {key:?}: {given:?} names another namespace or partition than \"default\", which is \
             enterprise only"
        )));
    }
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let is_name = !name.is_empty() && name.len() <= MAX_NAME && name.chars().all(fits);
    if is_name || name == "*" {
        return Ok(SmolStr::new(name));
    }
    Err(HttpError::bad_request(format!(
        "invalid query parameter {key:?}: {given:?} can't be the name of a service in the mesh: names consist of \
         letters, digits, '-' and '_', at most {MAX_NAME}; \"*\" stands for all"
    )))
}
