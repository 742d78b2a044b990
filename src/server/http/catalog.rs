//! `/v1/catalog`: nodes and services, and writing them.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::{get, put};
use serde::Serialize;

use super::HttpState;
use super::answer::Written;
use super::blocking::{off_thread, read};
use super::body::Body;
use super::error::HttpError;
use super::json::{CatalogServiceJson, NodeJson, ServiceJson};
use super::params::Params;
use super::select::{self, Form, InstanceChoice, InstancesOf, NodeChoice, ServiceChoice};
use crate::model::{CatalogDeregistration, CatalogRegistration};
use crate::server::access::{Access, service_of};
use crate::store::{PeeredName, Transaction};

pub(super) fn routes() -> Router<Arc<HttpState>> {
    let of_service = |state, name, params| instances(state, name, params, select::own);
    let of_connect = |state, name, params| instances(state, name, params, select::connect);
    Router::new()
        .route("/v1/catalog/register", put(register))
        .route("/v1/catalog/deregister", put(deregister))
        .route("/v1/catalog/datacenters", get(datacenters))
        .route("/v1/catalog/nodes", get(nodes))
        .route("/v1/catalog/services", get(services))
        .route("/v1/catalog/service/{name}", get(of_service))
        .route("/v1/catalog/connect/{name}", get(of_connect))
        .route("/v1/catalog/node/{name}", get(node))
        .route("/v1/catalog/node-services/{name}", get(node_services))
}

type Shared = State<Arc<HttpState>>;

async fn register(State(state): Shared, params: Params, body: Body) -> Result<Response, HttpError> {
    let written = off_thread(move || {
        let (mut registration, warnings) =
            body.record("a registration", CatalogRegistration::read)?;
        state.take_datacenter(&mut registration.datacenter)?;
        check_address(&state, &registration)?;
        let applied = state
            .store()
            .apply(Transaction::of(registration.into()))
            .map_err(HttpError::of_write)?;
        Ok(Written {
            warnings,
            ..Written::done(true, applied.index)
        })
    })
    .await?;
    written.response(params.writer())
}

/// A registration that leaves the node as it is needs no address, unless there is no such node.
fn check_address(state: &HttpState, registration: &CatalogRegistration) -> Result<(), HttpError> {
    if !registration.skip_node_update || !registration.address.is_empty() {
        return Ok(());
    }
    let name = PeeredName::new(&registration.peer_name, &registration.node);
    if state.store().snapshot().reader().node(name).is_some() {
        return Ok(());
    }
    Err(HttpError::bad_request(format!(
        "Address: must be given, since the node {:?} isn't registered yet",
        registration.node
    )))
}

async fn deregister(
    State(state): Shared,
    params: Params,
    body: Body,
) -> Result<Response, HttpError> {
    let written = off_thread(move || {
        let (mut what, warnings) = body.record("what to remove", CatalogDeregistration::read)?;
        state.take_datacenter(&mut what.datacenter)?;
        let applied = state
            .store()
            .apply(Transaction::of(what.into()))
            .map_err(HttpError::of_write)?;
        Ok(Written {
            warnings,
            ..Written::done(true, applied.index)
        })
    })
    .await?;
    written.response(params.writer())
}

async fn datacenters(State(state): Shared, params: Params) -> Result<Response, HttpError> {
    let content = params.writer().json(&[state.datacenter()])?;
    Ok(content.at(1))
}

async fn nodes(State(state): Shared, params: Params) -> Result<Response, HttpError> {
    let choice = NodeChoice::of(&params)?;
    read(&state, &params, move |reader, writer| {
        let mut rows = Vec::new();
        for node in reader.nodes() {
            if choice.wants(node)? {
                rows.push(NodeJson::from(node));
            }
        }
        writer.json(&rows)
    })
    .await
}

async fn services(State(state): Shared, params: Params) -> Result<Response, HttpError> {
    params.without(&["filter", "peer"])?;
    let meta = params.node_meta()?;
    let rights = params.grants().clone();
    read(&state, &params, move |reader, writer| {
        if meta.is_empty() && rights.allows(Access::ReadAll) {
            let services: BTreeMap<_, _> = reader.service_names_with_tags().into_iter().collect();
            return writer.json(&services);
        }
        let mut services: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for node in reader.nodes() {
            if meta
                .iter()
                .all(|(key, value)| node.meta.get(key) == Some(value))
            {
                let readable = reader.node_services(&node.node).into_iter();
                for service in readable.filter(|s| rights.allows(Access::Read(service_of(s)))) {
                    let tags = services.entry(&service.service).or_default();
                    tags.extend(service.tags.iter().map(String::as_str));
                }
            }
        }
        for tags in services.values_mut() {
            tags.sort_unstable();
            tags.dedup();
        }
        writer.json(&services)
    })
    .await
}

async fn instances(
    State(state): Shared,
    Path(name): Path<String>,
    params: Params,
    rows: InstancesOf,
) -> Result<Response, HttpError> {
    params.without(&["merge-central-config"])?;
    let choice = InstanceChoice::of(&params, Form::Catalog)?;
    let name = params.peered(&name);
    read(&state, &params, move |reader, writer| {
        let rows = rows(reader, name.clone());
        let wanted = choice.among(&rows)?;
        writer.json(&wanted.map(CatalogServiceJson::from).collect::<Vec<_>>())
    })
    .await
}

async fn node(
    State(state): Shared,
    Path(name): Path<String>,
    params: Params,
) -> Result<Response, HttpError> {
    #[derive(Serialize)]
    #[serde(rename_all = "PascalCase")]
    struct NodeServices<'a> {
        node: NodeJson<'a>,
        services: BTreeMap<&'a str, ServiceJson<'a>>,
    }
    let choice = ServiceChoice::of(&params)?;
    let rights = params.grants().clone();
    let name = params.peered(&name);
    read(&state, &params, move |reader, writer| {
        let Some(node) = reader.node(&name) else {
            return writer.json(&());
        };
        let mut services = BTreeMap::new();
        for row in reader.node_services(&name) {
            if rights.allows(Access::Read(service_of(row))) && choice.wants(row)? {
                services.insert(row.id.as_str(), row.into());
            }
        }
        let node = node.into();
        writer.json(&NodeServices { node, services })
    })
    .await
}

async fn node_services(
    State(state): Shared,
    Path(name): Path<String>,
    params: Params,
) -> Result<Response, HttpError> {
    #[derive(Serialize)]
    #[serde(rename_all = "PascalCase")]
    struct NodeServices<'a> {
        node: Option<NodeJson<'a>>,
        services: Vec<ServiceJson<'a>>,
    }
    params.without(&["merge-central-config"])?;
    let choice = ServiceChoice::of(&params)?;
    let rights = params.grants().clone();
    let name = params.peered(&name);
    read(&state, &params, move |reader, writer| {
        let mut services = Vec::new();
        for row in reader.node_services(&name) {
            if rights.allows(Access::Read(service_of(row))) && choice.wants(row)? {
                services.push(row.into());
            }
        }
        let node = reader.node(&name).map(Into::into);
        writer.json(&NodeServices { node, services })
    })
    .await
}
