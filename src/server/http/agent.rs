//! `/v1/agent`: what is registered with the local agent, and the agent itself.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::{get, put};
use serde_json::json;
use tokio::time::Instant;

use super::HttpState;
use super::agent_api::AgentError;
use super::answer::{Written, with_hash};
use super::blocking::{changed, off_thread};
use super::body::Body;
use super::error::HttpError;
use super::json::{CheckJson, ServiceJson};
use super::params::Params;
use super::select::{CheckChoice, ServiceChoice};
use crate::model::{
    AgentCheck, CheckStatus, NameKey, Place, Problems, ServiceDefinition, ServiceInstance,
    ServiceKind, decode_document, record,
};
use crate::server::access::{Access, Grants, service_of};
use crate::store::{InstanceKey, Key, Reads};

pub(super) fn routes() -> Router<Arc<HttpState>> {
    let pass = |state, id, params| set_status(state, id, params, CheckStatus::Passing);
    let warn = |state, id, params| set_status(state, id, params, CheckStatus::Warning);
    let fail = |state, id, params| set_status(state, id, params, CheckStatus::Critical);
    Router::new()
        .route("/v1/agent/self", get(own))
        .route("/v1/agent/metrics", get(metrics))
        .route("/v1/agent/services", get(services))
        .route("/v1/agent/service/{id}", get(service))
        .route("/v1/agent/service/register", put(register))
        .route("/v1/agent/service/deregister/{id}", put(deregister))
        .route("/v1/agent/checks", get(checks))
        .route("/v1/agent/check/register", put(register_check))
        .route("/v1/agent/check/deregister/{id}", put(deregister_check))
        .route("/v1/agent/check/pass/{id}", put(pass))
        .route("/v1/agent/check/warn/{id}", put(warn))
        .route("/v1/agent/check/fail/{id}", put(fail))
        .route("/v1/agent/check/update/{id}", put(update))
}

type Shared = State<Arc<HttpState>>;

impl From<AgentError> for HttpError {
    fn from(error: AgentError) -> Self {
        match error {
            AgentError::UnknownService(_) | AgentError::UnknownCheck(_) => {
                Self::not_found(error.to_string())
            }
            AgentError::NotTtl(_) => Self::bad_request(error.to_string()),
            AgentError::Unkept(_) => Self::internal(error.to_string()),
        }
    }
}

/// Who the agent is, in the parts of Consul's form that clients read.
async fn own(State(state): Shared, params: Params) -> Result<Response, HttpError> {
    let config = state.config();
    let version = env!("CARGO_PKG_VERSION");
    let port = |port: Option<u16>| port.map_or(-1, i32::from);
    let own = json!({
        "Config": {
            "Datacenter": state.datacenter(),
            "PrimaryDatacenter": state.datacenter(),
            "NodeName": state.node(),
            "NodeID": "",
            "Server": true,
            "Revision": "",
            "Version": version,
        },
        "Member": {
            "Name": state.node(),
            "Addr": config.advertise_address,
            "Port": 0,
            "Tags": {"dc": state.datacenter(), "role": "consul", "build": version},
            "Status": 1,
        },
        "Stats": {},
        "Meta": {},
        "xDS": {
            "SupportedProxies": {"envoy": config.envoy_versions},
            // Clients of older versions read this one.
            "Port": port(config.xds_plaintext_port.or(config.xds_tls_port)),
            "Ports": {"Plaintext": port(config.xds_plaintext_port), "TLS": port(config.xds_tls_port)},
        },
    });
    Ok(params.writer().json(&own)?.at(index(&state)))
}

/// The metrics in the format that Prometheus reads; there is no other.
async fn metrics(state: Shared, params: Params) -> Result<Response, HttpError> {
    match params.text("format") {
        Some("prometheus") => super::metrics::metrics(state).await,
        _ => Err(HttpError::bad_request(
            "metrics are given in the Prometheus format only: add format=prometheus, or get /metrics",
        )),
    }
}

/// The agent's records have no index of their own: the store's stands in.
fn index(state: &HttpState) -> u64 {
    state.store().snapshot().index()
}

async fn services(State(state): Shared, params: Params) -> Result<Response, HttpError> {
    let choice = ServiceChoice::of(&params)?;
    off_thread(move || {
        let services = state.agent().services();
        let mut wanted = BTreeMap::new();
        for service in &services {
            if params.may(Access::Read(service_of(service))) && choice.wants(service)? {
                let json = ServiceJson::of(service, 0, 0).in_datacenter(state.datacenter());
                wanted.insert(service.id.as_str(), json);
            }
        }
        Ok(params.writer().json(&wanted)?.at(index(&state)))
    })
    .await
}

/// One service. With `hash`, waits until its content differs from the one that was answered with that hash.
async fn service(
    State(state): Shared,
    Path(id): Path<String>,
    params: Params,
) -> Result<Response, HttpError> {
    let blocking = params.blocking(&state)?;
    let deadline = Instant::now() + blocking.wait;
    let asked = params.text("hash");
    loop {
        // Every change of the agent's services comes into the store; the change is looked for here after that.
        let store_index = state.store().snapshot().index();
        let (of, id_) = (state.clone(), id.clone());
        let found = off_thread(move || Ok(of.agent().service(&id_))).await?;
        let Some(service) = found else {
            return Err(AgentError::UnknownService(id).into());
        };
        params.require(Access::Read(service_of(&service)))?;
        let hash = content_hash(&service)?;
        if asked == Some(hash.as_str()) {
            let key = Key::Instance(InstanceKey::new(state.node(), &service.id));
            let reads: Reads = [key].into_iter().collect();
            if changed(&state, reads, store_index, deadline).await {
                continue;
            }
        }
        let json = ServiceJson::of(&service, 0, 0)
            .in_datacenter(state.datacenter())
            .with_hash(&hash);
        let response = params.writer().json(&json)?.at(index(&state));
        return Ok(with_hash(response, &hash));
    }
}

/// A text that differs for services that differ.
fn content_hash(service: &ServiceInstance) -> Result<String, HttpError> {
    let text = serde_json::to_vec(service)
        .map_err(|error| HttpError::internal(format!("the service has no JSON form: {error}")))?;
    Ok(super::hash_text(&text))
}

async fn register(State(state): Shared, params: Params, body: Body) -> Result<Response, HttpError> {
    let replace = params.flag("replace-existing-checks")?;
    let rights = params.grants().clone();
    let written = off_thread(move || {
        let (definition, mut warnings) =
            body.record("a service definition", ServiceDefinition::read)?;
        may_register(&state, &rights, &definition)?;
        let more = state
            .agent()
            .register(definition, replace)
            .map_err(|problems| HttpError::of_record(&problems))?;
        for warning in more {
            warnings.warning(&Place::ROOT, warning);
        }
        Ok(Written {
            warnings,
            ..confirmed(&state)?
        })
    })
    .await?;
    written.response(params.writer())
}

/// Whoever registers a service must have the right to write it, and what stands there under its id.
fn may_register(
    state: &HttpState,
    rights: &Grants,
    definition: &ServiceDefinition,
) -> Result<(), HttpError> {
    let name = match &definition.proxy {
        Some(proxy) if definition.kind == ServiceKind::ConnectProxy => {
            &proxy.destination_service_name
        }
        _ => &definition.name,
    };
    rights.require(Access::Write(name))?;
    if let Some(present) = state.agent().service(definition.effective_id()) {
        rights.require(Access::Write(service_of(&present)))?;
    }
    Ok(())
}

/// The answer to a change of the agent's records, given when it is kept.
fn confirmed(state: &HttpState) -> Result<Written, HttpError> {
    state.agent().settle()?;
    Ok(Written::done(serde_json::Value::Null, index(state)))
}

async fn deregister(
    State(state): Shared,
    Path(id): Path<String>,
    params: Params,
) -> Result<Response, HttpError> {
    let rights = params.grants().clone();
    let written = off_thread(move || {
        if let Some(present) = state.agent().service(&id) {
            rights.require(Access::Write(service_of(&present)))?;
        }
        state.agent().deregister(&id)?;
        confirmed(&state)
    })
    .await?;
    written.response(params.writer())
}

async fn checks(State(state): Shared, params: Params) -> Result<Response, HttpError> {
    let choice = CheckChoice::of(&params)?;
    off_thread(move || {
        let checks = state.agent().checks();
        let mut wanted = BTreeMap::new();
        for check in &checks {
            let readable = match check.service_name.as_str() {
                "" => Access::ReadAll,
                service => Access::Read(service),
            };
            if params.may(readable) && choice.wants(check)? {
                wanted.insert(check.check_id.as_str(), CheckJson::of(check, 0, 0));
            }
        }
        Ok(params.writer().json(&wanted)?.at(index(&state)))
    })
    .await
}

async fn register_check(
    State(state): Shared,
    params: Params,
    body: Body,
) -> Result<Response, HttpError> {
    let rights = params.grants().clone();
    let written = off_thread(move || {
        let (check, warnings) = body.record("a check", AgentCheck::read)?;
        may_write_checks_of(&state, &rights, &check.service_id)?;
        may_write_check(&state, &rights, check.given_id())?;
        state
            .agent()
            .register_check(check)
            .map_err(|problems| HttpError::of_record(&problems))?;
        Ok(Written {
            warnings,
            ..confirmed(&state)?
        })
    })
    .await?;
    written.response(params.writer())
}

/// Checks are written by who may write their service; those of the node are the operator's.
fn may_write_checks_of(
    state: &HttpState,
    rights: &Grants,
    service_id: &str,
) -> Result<(), HttpError> {
    let service = match service_id {
        "" => None,
        id => state.agent().service(id),
    };
    match service {
        Some(service) => rights.require(Access::Write(service_of(&service)))?,
        None => rights.require(Access::Operator)?,
    }
    Ok(())
}

/// The same for a check that is there already; one that isn't is told by whoever looks for it.
fn may_write_check(state: &HttpState, rights: &Grants, id: &str) -> Result<(), HttpError> {
    let checks = state.agent().checks();
    let id = NameKey::new(id);
    match checks
        .iter()
        .find(|check| NameKey::new(&check.check_id) == id)
    {
        Some(check) => may_write_checks_of(state, rights, &check.service_id),
        None => Ok(()),
    }
}

async fn deregister_check(
    State(state): Shared,
    Path(id): Path<String>,
    params: Params,
) -> Result<Response, HttpError> {
    let rights = params.grants().clone();
    let written = off_thread(move || {
        may_write_check(&state, &rights, &id)?;
        state.agent().deregister_check(&id)?;
        confirmed(&state)
    })
    .await?;
    written.response(params.writer())
}

async fn set_status(
    State(state): Shared,
    Path(id): Path<String>,
    params: Params,
    status: CheckStatus,
) -> Result<Response, HttpError> {
    let note = params.text("note").unwrap_or_default().to_owned();
    let rights = params.grants().clone();
    let written = off_thread(move || {
        may_write_check(&state, &rights, &id)?;
        state.agent().update_check(&id, status, &note)?;
        confirmed(&state)
    })
    .await?;
    written.response(params.writer())
}

record! {
    /// What an owner tells of a check.
    pub struct CheckUpdate {
        /// Its state.
        status: Option<CheckStatus> = "Status",
        /// What it found.
        output: String = "Output",
    }
}

/// The most that is kept of a check's output, in bytes; more is cut off.
const MAX_OUTPUT: usize = 4096;

async fn update(
    State(state): Shared,
    Path(id): Path<String>,
    params: Params,
    body: Body,
) -> Result<Response, HttpError> {
    let rights = params.grants().clone();
    let written = off_thread(move || {
        let (update, warnings) = body.record("a status", read_update)?;
        may_write_check(&state, &rights, &id)?;
        let status = update.status.unwrap_or_default();
        let output = &update.output[..update.output.floor_char_boundary(MAX_OUTPUT)];
        state.agent().update_check(&id, status, output)?;
        Ok(Written {
            warnings,
            ..confirmed(&state)?
        })
    })
    .await?;
    written.response(params.writer())
}

fn read_update(document: &crate::hcl::Value) -> Result<(CheckUpdate, Problems), Problems> {
    let (update, mut problems) = decode_document::<CheckUpdate>(document)?;
    if update.status.is_none() {
        let at = Place::ROOT;
        problems.error(
            &at.key("Status"),
            "must be given: \"passing\", \"warning\" or \"critical\"",
        );
        problems.locate(document);
        return Err(problems);
    }
    Ok((update, problems))
}
