//! `/v1/discovery-chain`: the compiled chain of a service (store.md 4.3), which `proxycfg chain` shows.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::get;
use serde_json::json;

use super::HttpState;
use super::blocking::read;
use super::error::HttpError;
use super::params::Params;
use crate::source::{Answer, ChainQuery, Query, StoreViews};

pub(super) fn routes() -> Router<Arc<HttpState>> {
    Router::new().route("/v1/discovery-chain/{service}", get(chain))
}

async fn chain(
    State(state): State<Arc<HttpState>>,
    Path(service): Path<String>,
    params: Params,
) -> Result<Response, HttpError> {
    let datacenter = state.datacenter().clone();
    let evaluate_in = params.text("compile-dc").unwrap_or(&datacenter);
    let query = Query::Chain(ChainQuery {
        service: service.into(),
        datacenter: evaluate_in.into(),
        ..ChainQuery::default()
    });
    let views = StoreViews { datacenter };
    read(&state, &params, move |reader, writer| {
        match views.answer(&query, reader) {
            Ok(Answer::Chain(chain)) => writer.json(&json!({"Chain": **chain})),
            Ok(_) => Err(HttpError::internal("the answer is no chain")),
            Err(error) => Err(HttpError::internal(error.message)),
        }
    })
    .await
}
