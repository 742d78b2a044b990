//! Who may ask for what: every request is looked at before its body is received (decision C2).
//!
//! What a request needs follows from its route, in one table; a route that isn't in it is the operator's. Where it depends on
//! the body or on a record, the handler asks ([`Params::require`](super::params::Params::require)); lists are filtered by
//! their handlers.

use std::sync::Arc;

use axum::extract::{FromRequestParts as _, MatchedPath, RawPathParams, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::Response;

use super::HttpState;
use super::error::HttpError;
use crate::server::access::{Access, Denied, Grants, UnknownToken};

/// The header of the token.
const TOKEN: &str = "x-consul-token";

/// What a request of a route needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    /// A known caller; the rest is the handler's to ask, or there is nothing to hide.
    Known,
    /// To stand for the service in the path.
    Watch,
    /// To read the service in the path.
    Read,
    /// To read everything.
    ReadAll,
    /// To write everything.
    WriteAll,
    /// To operate the control plane.
    Operator,
}

/// What each route needs; reading what needs [`Need::Read`] or [`Need::ReadAll`], and doing anything else to it, are two
/// things: see [`need`]. A test holds that every route is here.
const NEEDS: &[(Need, &[&str])] = &[
    (
        Need::Known,
        &[
            // Public in the mesh: everybody in it has the roots.
            "/v1/status/leader",
            "/v1/status/peers",
            "/v1/agent/self",
            "/v1/catalog/datacenters",
            "/v1/connect/ca/roots",
            "/v1/agent/connect/ca/roots",
            // Their handlers filter, or ask by record.
            "/v1/agent/services",
            "/v1/agent/service/{id}",
            "/v1/agent/service/register",
            "/v1/agent/service/deregister/{id}",
            "/v1/agent/checks",
            "/v1/agent/check/register",
            "/v1/agent/check/deregister/{id}",
            "/v1/agent/check/pass/{id}",
            "/v1/agent/check/warn/{id}",
            "/v1/agent/check/fail/{id}",
            "/v1/agent/check/update/{id}",
            "/v1/catalog/services",
            "/v1/catalog/node/{name}",
            "/v1/catalog/node-services/{name}",
            "/v1/config",
            "/v1/config/{kind}",
            "/v1/config/{kind}/{name}",
            "/v1/connect/intentions",
            "/v1/connect/intentions/match",
            "/v1/connect/intentions/check",
            "/v1/connect/intentions/exact",
            "/v1/proxycfg/proxies",
            "/v1/proxycfg/snapshot/{id}",
            "/v1/proxycfg/resources/{id}",
            "/v1/proxycfg/renew/{id}",
        ],
    ),
    (Need::Watch, &["/v1/agent/connect/ca/leaf/{service}"]),
    (
        Need::Read,
        &[
            "/v1/catalog/service/{name}",
            "/v1/catalog/connect/{name}",
            "/v1/health/service/{name}",
            "/v1/health/connect/{name}",
            "/v1/health/checks/{name}",
            "/v1/discovery-chain/{service}",
        ],
    ),
    (
        Need::ReadAll,
        &[
            "/v1/catalog/nodes",
            "/v1/health/node/{name}",
            "/v1/health/state/{state}",
        ],
    ),
    (
        // They write nodes too.
        Need::WriteAll,
        &["/v1/catalog/register", "/v1/catalog/deregister"],
    ),
    (
        Need::Operator,
        &[
            "/metrics",
            "/v1/agent/metrics",
            "/v1/connect/ca/configuration",
            "/v1/proxycfg/ca/rotate",
            "/v1/proxycfg/transaction",
        ],
    ),
];

fn need(method: &Method, route: &str) -> Need {
    let found = NEEDS.iter().find(|(_, routes)| routes.contains(&route));
    let reads = matches!(*method, Method::GET | Method::HEAD);
    match found {
        Some((Need::Read | Need::ReadAll, _)) if !reads => Need::Operator,
        Some((need, _)) => *need,
        None => Need::Operator,
    }
}

impl From<UnknownToken> for HttpError {
    fn from(error: UnknownToken) -> Self {
        Self::new(StatusCode::FORBIDDEN, error.to_string())
    }
}

impl From<Denied> for HttpError {
    fn from(denied: Denied) -> Self {
        Self::new(StatusCode::FORBIDDEN, denied.to_string())
    }
}

/// Lets a request go on with the rights of its caller, or refuses it.
pub(super) async fn check(
    State(state): State<Arc<HttpState>>,
    request: Request,
    next: Next,
) -> Response {
    let (mut parts, body) = request.into_parts();
    match grants(&state, &mut parts).await {
        Ok(grants) => {
            parts.extensions.insert(grants);
            next.run(Request::from_parts(parts, body)).await
        }
        Err(error) => error.unread(),
    }
}

async fn grants(state: &HttpState, parts: &mut Parts) -> Result<Arc<Grants>, HttpError> {
    let token = token(&parts.headers, &parts.uri)?;
    let grants = state.authorizer().grants(&token)?;
    let route = parts.extensions.get::<MatchedPath>().cloned();
    let Some(route) = route else {
        return Ok(grants);
    };
    let need = need(&parts.method, route.as_str());
    let named = match need {
        Need::Watch | Need::Read => first_of_path(parts).await?,
        _ => String::new(),
    };
    grants.require(match need {
        Need::Known => Access::Any,
        Need::Watch => Access::Watch(&named),
        Need::Read => Access::Read(&named),
        Need::ReadAll => Access::ReadAll,
        Need::WriteAll => Access::WriteAll,
        Need::Operator => Access::Operator,
    })?;
    Ok(grants)
}

async fn first_of_path(parts: &mut Parts) -> Result<String, HttpError> {
    let params = RawPathParams::from_request_parts(parts, &())
        .await
        .map_err(|error| HttpError::bad_request(error.to_string()))?;
    let first = params.iter().next().map(|(_, value)| value.to_owned());
    Ok(first.unwrap_or_default())
}

/// The token as Consul's clients send it: a header of its own, a bearer token, or a parameter of the query.
fn token(headers: &HeaderMap, uri: &Uri) -> Result<String, HttpError> {
    let unreadable = || HttpError::bad_request("the token isn't printable ASCII");
    if let Some(token) = headers.get(TOKEN) {
        return Ok(token.to_str().map_err(|_| unreadable())?.to_owned());
    }
    if let Some(authorization) = headers.get(header::AUTHORIZATION) {
        let text = authorization.to_str().map_err(|_| unreadable())?;
        if let Some((scheme, token)) = text.split_once(' ')
            && scheme.eq_ignore_ascii_case("bearer")
        {
            return Ok(token.trim().to_owned());
        }
    }
    let query = axum::extract::Query::<Vec<(String, String)>>::try_from_uri(uri);
    let pairs = query.map_err(|error| HttpError::bad_request(format!("bad query: {error}")))?;
    let given = pairs.0.into_iter().find(|(key, _)| key == "token");
    Ok(given.map(|(_, token)| token).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The routes in the sources of this folder.
    fn routes() -> BTreeSet<String> {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/server/http");
        let mut routes = BTreeSet::new();
        for file in std::fs::read_dir(folder).unwrap() {
            let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
            let code = text.split("#[cfg(test)]").next().unwrap();
            for call in code.split(".route(").skip(1) {
                let literal = call.trim_start().strip_prefix('"').unwrap();
                routes.insert(literal.split('"').next().unwrap().to_owned());
            }
        }
        routes
    }

    #[test]
    fn c2_what_each_route_needs_is_said() {
        let listed: Vec<&str> = NEEDS
            .iter()
            .flat_map(|(_, routes)| routes.iter().copied())
            .collect();
        let once: BTreeSet<String> = listed.iter().map(ToString::to_string).collect();
        assert_eq!(once.len(), listed.len(), "one is listed twice");
        let routes = routes();
        assert!(routes.len() > 40, "{routes:?}");
        assert_eq!(routes, once);
    }

    #[test]
    fn c2_to_change_what_may_only_be_read_is_the_operators() {
        assert_eq!(need(&Method::HEAD, "/v1/catalog/nodes"), Need::ReadAll);
        assert_eq!(need(&Method::PUT, "/v1/catalog/nodes"), Need::Operator);
        assert_eq!(need(&Method::GET, "/v1/new"), Need::Operator);
    }
}
