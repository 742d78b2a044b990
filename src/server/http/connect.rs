//! `/v1/connect/ca` and `/v1/agent/connect/ca`: trust roots, the authority's configuration, leaf certificates.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::{get, put};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::HttpState;
use super::answer::{Content, Written};
use super::blocking::{off_thread, read};
use super::body::Body;
use super::error::HttpError;
use super::params::{Blocking, Params};
use crate::ca::{CaError, LeafManager, LeafSubscription};
use crate::model::{CaConfig, IssuedCert, LeafRequest, MAX_NAME};

pub(super) fn routes() -> Router<Arc<HttpState>> {
    Router::new()
        .route("/v1/connect/ca/roots", get(roots))
        .route("/v1/agent/connect/ca/roots", get(roots))
        .route(
            "/v1/connect/ca/configuration",
            get(configuration).put(set_configuration),
        )
        .route("/v1/proxycfg/ca/rotate", put(rotate))
        .route("/v1/agent/connect/ca/leaf/{service}", get(leaf))
}

type Shared = State<Arc<HttpState>>;

async fn roots(State(state): Shared, params: Params) -> Result<Response, HttpError> {
    let pem = params.flag("pem")?;
    read(&state, &params, move |reader, writer| {
        let Some(roots) = reader.ca_roots() else {
            return Ok(Content::NotFound("no CA bootstrapped yet".to_owned()));
        };
        if !pem {
            return writer.json(&*roots.value);
        }
        let mut text = String::new();
        for root in &roots.roots {
            text.push_str(root.root_cert.trim_end());
            text.push('\n');
        }
        Ok(Content::Pem(text))
    })
    .await
}

async fn configuration(State(state): Shared, params: Params) -> Result<Response, HttpError> {
    read(&state, &params, |reader, writer| match reader.ca_config() {
        Some(config) => writer.json(config),
        None => Ok(Content::NotFound("no CA bootstrapped yet".to_owned())),
    })
    .await
}

async fn set_configuration(
    State(state): Shared,
    params: Params,
    body: Body,
) -> Result<Response, HttpError> {
    let written = off_thread(move || {
        // Read twice: once for all mistakes of syntax with their places, once for the record.
        body.document("the CA configuration")?;
        let config: CaConfig = serde_json::from_slice(&body.0)
            .map_err(|error| HttpError::bad_request(format!("CA configuration: {error}")))?;
        state.embedded().set_ca_config(config)?;
        Ok(Written::done(
            serde_json::Value::Null,
            state.store().snapshot().index(),
        ))
    })
    .await?;
    written.response(params.writer())
}

async fn rotate(State(state): Shared, params: Params) -> Result<Response, HttpError> {
    let written = off_thread(move || {
        let roots = state.embedded().rotate_root()?;
        let body = serde_json::json!({"ActiveRootID": roots.active_root_id});
        Ok(Written::done(body, state.store().snapshot().index()))
    })
    .await?;
    written.response(params.writer())
}

/// The certificate of a service with its private key: the one place where a key is shown (decision C1).
async fn leaf(
    State(state): Shared,
    Path(service): Path<String>,
    params: Params,
) -> Result<Response, HttpError> {
    check_name(&service)?;
    let request = LeafRequest::for_service(service);
    let blocking = params.blocking(&state)?;
    let leaves = state.embedded().leaves.clone();
    let now = {
        let request = request.clone();
        off_thread(move || Ok(leaves.get(&request)?)).await?
    };
    // An index that isn't the one of the certificate that is there is an older one, or from a life that is over.
    let wait = blocking.index == now.modify_index;
    let leaf = if wait {
        newer_leaf(&state, &request, blocking, now).await?
    } else {
        now
    };
    let json = leaf
        .to_json_with_private_key()
        .map_err(|error| HttpError::internal(format!("the certificate can't be shown: {error}")))?;
    Ok(params.writer().json(&json)?.at(leaf.modify_index))
}

fn check_name(service: &str) -> Result<(), HttpError> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if service.len() <= MAX_NAME && service.chars().all(fits) {
        return Ok(());
    }
    Err(HttpError::bad_request(format!(
        "{service:?} can't be the name of a service in the mesh: names consist of letters, digits, '-' and '_', at most \
         {MAX_NAME}"
    )))
}

/// Ends a subscription when the request ends, however it does.
struct Subscribed {
    leaves: Arc<LeafManager>,
    id: LeafSubscription,
}

impl Drop for Subscribed {
    fn drop(&mut self) {
        self.leaves.unsubscribe(self.id);
    }
}

/// The first certificate of another index than the asked one, or the newest one when the time is over.
async fn newer_leaf(
    state: &HttpState,
    request: &LeafRequest,
    blocking: Blocking,
    now: triomphe::Arc<IssuedCert>,
) -> Result<triomphe::Arc<IssuedCert>, HttpError> {
    let deadline = Instant::now() + blocking.wait;
    // An unbounded channel holds little: certificates come hours apart.
    let (sender, mut receiver) = mpsc::unbounded_channel::<Result<_, CaError>>();
    let leaves = state.embedded().leaves.clone();
    let id = leaves.subscribe(
        request,
        Box::new(move |result| {
            // Nobody listens when the request has just ended.
            let _ = sender.send(result);
        }),
    );
    let _subscribed = Subscribed { leaves, id };
    let mut newest = now;
    loop {
        tokio::select! {
            result = receiver.recv() => match result {
                Some(Ok(leaf)) if leaf.modify_index != blocking.index => return Ok(leaf),
                Some(Ok(leaf)) => newest = leaf,
                // The certificate at hand is good; what keeps it from being renewed is tried again.
                Some(Err(error)) => tracing::debug!(%error, "a certificate that is waited for can't be signed"),
                None => return Ok(newest),
            },
            () = tokio::time::sleep_until(deadline) => return Ok(newest),
            () = state.stopping() => return Ok(newest),
        }
    }
}
