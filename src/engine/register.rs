//! What a registration is made of, and what is wrong with one.

use smol_str::SmolStr;

use crate::model::{ProxyId, ProxySource, ServiceKind};
use crate::proxy::Registration;

/// How a proxy is registered.
#[derive(Debug, Clone)]
pub struct RegisterOptions {
    /// Kind of the proxy.
    pub kind: ServiceKind,
    /// The definition, or the catalog's record to follow.
    pub registration: Registration,
    /// Who registers it.
    pub source: ProxySource,
    /// The token that its data is fetched with.
    pub token: SmolStr,
    /// Take the proxy over if another source has registered it.
    pub overwrite: bool,
}

/// What a registration came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Registered {
    /// The proxy is new, or begins anew (its kind or token changed, or it had ended).
    Created,
    /// The change takes effect in place.
    Changed,
    /// There was nothing to change.
    Unchanged,
    /// Another source has registered the proxy; nothing happened.
    OtherSource,
}

/// Why a proxy can't be registered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// Not a kind of proxy.
    #[error(
        "{id}: kind \"{kind}\" is not a connect-proxy, terminating-gateway, mesh-gateway, or ingress-gateway"
    )]
    NotAProxy {
        /// Which proxy.
        id: ProxyId,
        /// Its kind.
        kind: ServiceKind,
    },
    /// A kind that isn't served yet.
    #[error("{id}: kind \"{kind}\" is not supported yet; register a connect-proxy")]
    Unsupported {
        /// Which proxy.
        id: ProxyId,
        /// Its kind.
        kind: ServiceKind,
    },
    /// An upstream of an unknown type.
    #[error("{id}: unknown upstream type: {kind:?}; use \"service\" or \"prepared_query\"")]
    UnknownUpstreamType {
        /// Which proxy.
        id: ProxyId,
        /// The type.
        kind: String,
    },
    /// The engine has been closed.
    #[error("the engine is closed")]
    Closed,
}

/// Refuses a registration that can't be served.
pub(super) fn validate(
    id: &ProxyId,
    kind: ServiceKind,
    registration: &Registration,
) -> Result<(), RegisterError> {
    if !kind.is_proxy() {
        return Err(RegisterError::NotAProxy {
            id: id.clone(),
            kind,
        });
    }
    if kind != ServiceKind::ConnectProxy {
        return Err(RegisterError::Unsupported {
            id: id.clone(),
            kind,
        });
    }
    let Registration::Definition(instance) = registration else {
        return Ok(());
    };
    for upstream in &instance.proxy.upstreams {
        if !matches!(
            upstream.destination_type.as_str(),
            "" | "service" | "prepared_query"
        ) {
            let kind = upstream.destination_type.clone();
            return Err(RegisterError::UnknownUpstreamType {
                id: id.clone(),
                kind,
            });
        }
    }
    Ok(())
}
