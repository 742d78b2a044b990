//! `/v1/health`: instances with their checks, and checks alone (store.md 4.10).

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::get;

use super::HttpState;
use super::blocking::read;
use super::error::HttpError;
use super::json::{CheckJson, HealthJson};
use super::params::Params;
use super::select::{self, CheckChoice, Form, InstanceChoice, InstancesOf};
use crate::model::{CheckStatus, HealthCheck};
use crate::store::{PeeredName, Reader, Row};

pub(super) fn routes() -> Router<Arc<HttpState>> {
    let of_service = |state, name, params| instances(state, name, params, select::own);
    let of_connect = |state, name, params| instances(state, name, params, select::connect);
    Router::new()
        .route("/v1/health/service/{name}", get(of_service))
        .route("/v1/health/connect/{name}", get(of_connect))
        .route("/v1/health/node/{name}", get(node))
        .route("/v1/health/checks/{name}", get(checks))
        .route("/v1/health/state/{state}", get(state))
}

type Shared = State<Arc<HttpState>>;

/// `near` is taken but changes nothing: distances aren't known, and rows of unknown distance keep their order.
async fn instances(
    State(state): Shared,
    Path(name): Path<String>,
    params: Params,
    rows: InstancesOf,
) -> Result<Response, HttpError> {
    params.without(&["merge-central-config"])?;
    let choice = InstanceChoice::of(&params, Form::Health)?;
    let only_passing = params.flag("passing")?;
    let name = params.peered(&name);
    read(&state, &params, move |reader, writer| {
        let mut rows = rows(reader, name.clone());
        if only_passing {
            rows.retain(|row| {
                let mut checks = row.checks.iter();
                checks.all(|check| check.status == CheckStatus::Passing)
            });
        }
        let wanted = choice.among(&rows)?;
        writer.json(&wanted.map(HealthJson::from).collect::<Vec<_>>())
    })
    .await
}

async fn node(
    State(state): Shared,
    Path(name): Path<String>,
    params: Params,
) -> Result<Response, HttpError> {
    let name = params.peered(&name);
    rows(&state, &params, move |reader| reader.node_checks(&name)).await
}

async fn checks(
    State(state): Shared,
    Path(name): Path<String>,
    params: Params,
) -> Result<Response, HttpError> {
    let name = params.peered(&name);
    rows(&state, &params, move |reader| reader.service_checks(&name)).await
}

async fn state(
    State(http): Shared,
    Path(name): Path<String>,
    params: Params,
) -> Result<Response, HttpError> {
    params.without(&["peer"])?;
    let wanted = match name.as_str() {
        "any" => None,
        "passing" => Some(CheckStatus::Passing),
        "warning" => Some(CheckStatus::Warning),
        "critical" => Some(CheckStatus::Critical),
        _ => {
            return Err(HttpError::bad_request(format!(
                "{name:?} is not a state of checks; ask for any, passing, warning or critical"
            )));
        }
    };
    rows(&http, &params, move |reader| reader.checks_in_state(wanted)).await
}

/// Answers with the checks that are read, as far as they are wanted.
async fn rows<Q>(state: &HttpState, params: &Params, query: Q) -> Result<Response, HttpError>
where
    Q: for<'a> Fn(&Reader<'a>) -> Vec<&'a Row<HealthCheck>> + Send + Sync + 'static,
{
    let choice = CheckChoice::of(params)?;
    read(state, params, move |reader, writer| {
        let mut wanted = Vec::new();
        for row in query(reader) {
            let node_fits = !choice.needs_nodes() || {
                let name = PeeredName::new(&row.peer_name, &row.node);
                reader
                    .node(name)
                    .is_some_and(|node| choice.wants_node(node))
            };
            if node_fits && choice.wants(row)? {
                wanted.push(CheckJson::from(row));
            }
        }
        writer.json(&wanted)
    })
    .await
}
