//! `/v1/proxycfg`: the proxies of this control plane, what each is given, and whole transactions.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::{get, put};
use serde_json::json;
use smol_str::SmolStr;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::answer::{Content, Written, with_hash};
use super::blocking::off_thread;
use super::body::Body;
use super::error::HttpError;
use super::params::Params;
use super::{HttpState, proxies};
use crate::engine::ProxyStatus;
use crate::model::{self, NameKey, ProxyId};
use crate::server::access::{Access, service_of};
use crate::snapshot::ConfigSnapshot;
use crate::source::Query;
use crate::store::Transaction;
use crate::xds::ResourceType;

pub(super) fn routes() -> Router<Arc<HttpState>> {
    Router::new()
        .route("/v1/proxycfg/proxies", get(proxies))
        .route("/v1/proxycfg/snapshot/{id}", get(snapshot))
        .route("/v1/proxycfg/resources/{id}", get(resources))
        .route("/v1/proxycfg/renew/{id}", put(renew))
        .route("/v1/proxycfg/transaction", put(transaction))
}

type Shared = State<Arc<HttpState>>;

async fn proxies(State(state): Shared, params: Params) -> Result<Response, HttpError> {
    off_thread(move || {
        let index = state.store().snapshot().index();
        let statuses = state.embedded().manager.proxies();
        let problems = |status: &ProxyStatus| state.dump().problems(&status.id);
        let mut list = proxies::list(&statuses, state.streams(), state.node(), problems);
        if !params.may(Access::ReadAll) {
            let readable: Vec<_> = statuses
                .iter()
                .filter(|status| {
                    params.may(watching(service_of_proxy(&state, &status.id).as_deref()))
                })
                .map(|status| (status.id.service_id.as_str(), status.id.node.as_str()))
                .collect();
            list.retain(|proxy| {
                let named = (proxy["ID"].as_str(), proxy["Node"].as_str());
                readable
                    .iter()
                    .any(|(id, node)| named == (Some(*id), Some(*node)))
            });
        }
        Ok(params.writer().json(&list)?.at(index))
    })
    .await
}

/// The proxy that an id means: on the named node or this one; ids and nodes match without regard to case. Where the
/// same id was registered with several tokens, the one without or the first.
fn find(state: &HttpState, params: &Params, id: &str) -> Result<ProxyId, HttpError> {
    let node = params.text("node").unwrap_or(state.node());
    let (id_key, node_key) = (NameKey::new(id), NameKey::new(node));
    let proxies = state.embedded().manager.proxies();
    let found = proxies.into_iter().find(|proxy| {
        NameKey::new(&proxy.id.service_id) == id_key && NameKey::new(&proxy.id.node) == node_key
    });
    found.map(|proxy| proxy.id).ok_or_else(|| {
        HttpError::not_found(format!(
            "no proxy {id:?} on node {node:?} is registered or asked for; /v1/proxycfg/proxies lists them all"
        ))
    })
}

/// The service that a proxy stands for: by its snapshot, else by its record.
fn service_of_proxy(state: &HttpState, id: &ProxyId) -> Option<SmolStr> {
    if let Some(snapshot) = state.embedded().manager.watch(id).current() {
        return Some(SmolStr::new(snapshot.authorized_service()));
    }
    if let Some(own) = state.agent().service(&id.service_id)
        && NameKey::new(&id.node) == NameKey::new(state.node())
    {
        return Some(SmolStr::new(service_of(&own)));
    }
    let snapshot = state.store().snapshot();
    let reader = snapshot.reader();
    let row = reader.instance(id.node.as_str(), &id.service_id)?;
    Some(SmolStr::new(service_of(row)))
}

/// What it takes to see what a proxy has; one whose service isn't known is the operator's.
fn watching(service: Option<&str>) -> Access<'_> {
    service.map_or(Access::Operator, Access::Watch)
}

/// The proxy that an id means, if the caller may see what it has.
fn find_watched(state: &HttpState, params: &Params, id: &str) -> Result<ProxyId, HttpError> {
    let id = find(state, params, id)?;
    params.require(watching(service_of_proxy(state, &id).as_deref()))?;
    Ok(id)
}

fn not_ready(state: &HttpState, id: &ProxyId) -> HttpError {
    let waiting: Vec<String> = state
        .embedded()
        .manager
        .status(id)
        .map(|status| status.issues.iter().map(|i| i.subject.clone()).collect())
        .unwrap_or_default();
    let what = if waiting.is_empty() {
        "its registration".to_owned()
    } else {
        waiting.join(", ")
    };
    HttpError::not_found(format!(
        "the proxy {id} has no snapshot yet; it waits for {what}"
    ))
}

/// The snapshot of a proxy, or the part that `pointer` names.
///
/// Waits with `index` (until there is a snapshot of a higher store index, or any new one), or with `hash` (until the
/// content that is asked for differs from the one that was answered with that hash; also a renewed certificate, which
/// has no store index of its own).
async fn snapshot(
    State(state): Shared,
    Path(id): Path<String>,
    params: Params,
) -> Result<Response, HttpError> {
    let blocking = params.blocking(&state)?;
    let deadline = Instant::now() + blocking.wait;
    let asked_hash = params.text("hash").map(SmolStr::new);
    let pointer = params.text("pointer").unwrap_or_default().to_owned();
    if !(pointer.is_empty() || pointer.starts_with('/')) {
        return Err(HttpError::bad_request(format!(
            "invalid query parameter \"pointer\": {pointer:?} must begin with '/', such as \"/Roots/TrustDomain\""
        )));
    }
    let id = find_watched(&state, &params, &id)?;
    let mut watch = state.embedded().manager.watch(&id);
    let news = Arc::new(Notify::new());
    let bell = news.clone();
    // A permit is kept if it rings while nobody waits.
    watch.set_waker(move || bell.notify_one());
    let waits = blocking.index > 0 || asked_hash.is_some();
    let mut woken = false;
    loop {
        let shown = match watch.current() {
            None => None,
            Some(snapshot) => {
                let (writer, pointer) = (params.writer(), pointer.clone());
                Some(off_thread(move || show(&snapshot, &pointer, writer)).await?)
            }
        };
        // An index that the store hasn't reached is from a life that is over.
        let over = blocking.index > state.store().snapshot().index();
        let new = match (&shown, &asked_hash) {
            (None, _) => false,
            (Some(shown), Some(hash)) => shown.hash != *hash,
            (Some(shown), None) => woken || over || shown.store_index > blocking.index,
        };
        if !waits || new || !rang(&state, &news, deadline).await {
            return match shown {
                Some(shown) => Ok(shown.response()),
                None => Err(not_ready(&state, &id)),
            };
        }
        woken = true;
    }
}

/// A snapshot, or a part of it, as an answer.
struct Shown {
    content: Content,
    store_index: u64,
    hash: String,
}

impl Shown {
    fn response(self) -> Response {
        with_hash(self.content.at(self.store_index), &self.hash)
    }
}

fn show(
    snapshot: &ConfigSnapshot,
    pointer: &str,
    writer: super::answer::Writer,
) -> Result<Shown, HttpError> {
    let json = snapshot.to_json();
    let content = match json.pointer(pointer) {
        Some(part) => writer.json(part)?,
        None => Content::NotFound(format!("the snapshot has nothing at {pointer:?}")),
    };
    let hash = match &content {
        Content::Json(text) => super::hash_text(text),
        Content::Pem(text) | Content::NotFound(text) => super::hash_text(text.as_bytes()),
    };
    Ok(Shown {
        content,
        store_index: snapshot.store_index,
        hash,
    })
}

async fn rang(state: &HttpState, news: &Notify, deadline: Instant) -> bool {
    tokio::select! {
        () = news.notified() => true,
        () = tokio::time::sleep_until(deadline) => false,
        () = state.stopping() => false,
    }
}

async fn resources(
    State(state): Shared,
    Path(id): Path<String>,
    params: Params,
) -> Result<Response, HttpError> {
    let kind = match params.text("type") {
        None => None,
        Some(name) => Some(ResourceType::from_name(name).ok_or_else(|| {
            let names = ResourceType::ALL.map(ResourceType::name);
            HttpError::bad_request(format!(
                "invalid query parameter \"type\": {name:?} is not one of {}",
                names.join(", ")
            ))
        })?),
    };
    let id = find_watched(&state, &params, &id)?;
    off_thread(move || {
        let Some(snapshot) = state.embedded().manager.watch(&id).current() else {
            return Err(not_ready(&state, &id));
        };
        let resources = state.dump().resources(&id, &snapshot, kind);
        Ok(params.writer().json(&resources)?.at(snapshot.store_index))
    })
    .await
}

/// Has the certificate of a proxy renewed now.
async fn renew(
    State(state): Shared,
    Path(id): Path<String>,
    params: Params,
) -> Result<Response, HttpError> {
    let id = find_watched(&state, &params, &id)?;
    let written = off_thread(move || {
        let manager = &state.embedded().manager;
        let Some(snapshot) = manager.watch(&id).current() else {
            return Err(not_ready(&state, &id));
        };
        let service = SmolStr::new(snapshot.authorized_service());
        if !manager.refresh(&id, &Query::Leaf { service }) {
            return Err(HttpError::not_found(format!(
                "the proxy {id} has no certificate that could be renewed"
            )));
        }
        Ok(Written::done(true, snapshot.store_index))
    })
    .await?;
    written.response(params.writer())
}

/// Several writes at once, all or nothing (decision R3).
async fn transaction(
    State(state): Shared,
    params: Params,
    body: Body,
) -> Result<Response, HttpError> {
    let written = off_thread(move || {
        let (mut transaction, warnings) = body.record("a transaction", model::Transaction::read)?;
        for op in &mut transaction.ops {
            match op {
                model::Op::Register(registration) => {
                    state.take_datacenter(&mut registration.datacenter)?;
                }
                model::Op::Deregister(what) => state.take_datacenter(&mut what.datacenter)?,
                _ => {}
            }
        }
        let transaction = Transaction::try_from(transaction).map_err(HttpError::of_transaction)?;
        let applied = state
            .store()
            .apply(transaction)
            .map_err(HttpError::of_transaction)?;
        let body = json!({"Index": applied.index, "Changed": applied.changed});
        Ok(Written {
            warnings,
            ..Written::done(body, applied.index)
        })
    })
    .await?;
    written.response(params.writer())
}
