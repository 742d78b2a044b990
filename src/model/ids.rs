//! Identities.

use std::fmt;

use smol_str::SmolStr;

use crate::model::decode::words;
use crate::model::proxy::Upstream;

/// A name as a look-up key: lower case, since names match without regard to case (decisions E12).
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NameKey(SmolStr);

impl NameKey {
    /// The key of a name as written.
    #[must_use]
    pub fn new(name: &str) -> Self {
        if name.bytes().any(|c| c.is_ascii_uppercase()) {
            Self(SmolStr::from(name.to_ascii_lowercase()))
        } else {
            Self(SmolStr::from(name))
        }
    }

    /// The lower-case text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for NameKey {
    fn from(name: &str) -> Self {
        Self::new(name)
    }
}

impl From<&String> for NameKey {
    fn from(name: &String) -> Self {
        Self::new(name)
    }
}

impl From<&SmolStr> for NameKey {
    fn from(name: &SmolStr) -> Self {
        Self::new(name)
    }
}

impl fmt::Debug for NameKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.0.as_str(), f)
    }
}

impl fmt::Display for NameKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Which proxy: the service instance, its node, and the token that its watchers presented (engine.md 1.1).
///
/// Proxies registered under different tokens never share a snapshot. Local registrations have an empty token here.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProxyId {
    /// Id of the proxy's service instance, as registered.
    pub service_id: SmolStr,
    /// Node that the instance is registered on.
    pub node: SmolStr,
    /// Token that separates watches made with different rights; empty for local registrations.
    pub token: SmolStr,
}

impl ProxyId {
    /// The id of an instance on a node, with no token.
    pub fn new(service_id: impl Into<SmolStr>, node: impl Into<SmolStr>) -> Self {
        Self {
            service_id: service_id.into(),
            node: node.into(),
            token: SmolStr::default(),
        }
    }

    /// The same id with a token.
    #[must_use]
    pub fn with_token(mut self, token: impl Into<SmolStr>) -> Self {
        self.token = token.into();
        self
    }
}

impl fmt::Display for ProxyId {
    /// `node/service id`; the token is never shown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.node, self.service_id)
    }
}

impl fmt::Debug for ProxyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let token = if self.token.is_empty() {
            ""
        } else {
            " (with a token)"
        };
        write!(f, "{self}{token}")
    }
}

/// Who registered a proxy: an open set of names (engine.md 1.2).
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProxySource(pub SmolStr);

impl ProxySource {
    /// The local config source.
    pub const LOCAL: Self = Self(SmolStr::new_static("local"));
    /// The catalog config source.
    pub const CATALOG: Self = Self(SmolStr::new_static("catalog"));

    /// A source of the caller's own.
    pub fn new(name: impl Into<SmolStr>) -> Self {
        Self(name.into())
    }
}

impl fmt::Display for ProxySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

words! {
    /// The kind of a service instance (store.md 1.2).
    pub enum ServiceKind {
        /// An application.
        Typical = "",
        /// A sidecar.
        ConnectProxy = "connect-proxy",
        /// A mesh gateway.
        MeshGateway = "mesh-gateway",
        /// A terminating gateway.
        TerminatingGateway = "terminating-gateway",
        /// An ingress gateway.
        IngressGateway = "ingress-gateway",
        /// An API gateway.
        ApiGateway = "api-gateway",
    }
}

impl ServiceKind {
    /// Whether instances of this kind are proxies that the engine serves (engine.md 1.3).
    #[must_use]
    pub const fn is_proxy(self) -> bool {
        !matches!(self, Self::Typical)
    }

    /// Whether instances of this kind are gateways.
    #[must_use]
    pub const fn is_gateway(self) -> bool {
        !matches!(self, Self::Typical | Self::ConnectProxy)
    }
}

/// Which upstream of a proxy (kinds.md 1.2). Its text form is `[prepared_query:]NAME[?peer=PEER | ?dc=DC]`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UpstreamId {
    /// Whether it names a prepared query rather than a service.
    pub prepared_query: bool,
    /// The service or query.
    pub name: SmolStr,
    /// A datacenter other than the proxy's, if named.
    pub datacenter: SmolStr,
    /// A peer, if named.
    pub peer: SmolStr,
}

impl UpstreamId {
    /// The upstream id of a service in the proxy's own datacenter.
    pub fn service(name: impl Into<SmolStr>) -> Self {
        Self {
            prepared_query: false,
            name: name.into(),
            datacenter: SmolStr::default(),
            peer: SmolStr::default(),
        }
    }

    /// The id of an upstream definition.
    #[must_use]
    pub fn of(upstream: &Upstream) -> Self {
        Self {
            prepared_query: upstream.is_prepared_query(),
            name: SmolStr::from(&upstream.destination_name),
            datacenter: SmolStr::from(&upstream.datacenter),
            peer: SmolStr::from(&upstream.destination_peer),
        }
    }

    /// Whether it stands for the defaults of all upstreams.
    #[must_use]
    pub fn is_wildcard(&self) -> bool {
        self.name == "*"
    }
}

impl fmt::Display for UpstreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.prepared_query {
            f.write_str("prepared_query:")?;
        }
        f.write_str(&self.name)?;
        if !self.peer.is_empty() {
            write!(f, "?peer={}", self.peer)
        } else if !self.datacenter.is_empty() {
            write!(f, "?dc={}", self.datacenter)
        } else {
            Ok(())
        }
    }
}

impl std::str::FromStr for UpstreamId {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (prepared_query, rest) = match text.strip_prefix("prepared_query:") {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (name, query) = rest.split_once('?').unwrap_or((rest, ""));
        let peer = query.strip_prefix("peer=").unwrap_or_default();
        let datacenter = query.strip_prefix("dc=").unwrap_or_default();
        Ok(Self {
            prepared_query,
            name: name.into(),
            datacenter: datacenter.into(),
            peer: peer.into(),
        })
    }
}

impl serde::Serialize for UpstreamId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upstream_ids_round_trip_through_text() {
        // kinds.md 1.2
        for (text, name, datacenter, peer, prepared_query) in [
            ("foo", "foo", "", "", false),
            ("foo?dc=dc2", "foo", "dc2", "", false),
            ("foo?peer=payments", "foo", "", "payments", false),
            ("prepared_query:foo", "foo", "", "", true),
            ("prepared_query:foo?dc=dc2", "foo", "dc2", "", true),
        ] {
            let id: UpstreamId = text.parse().unwrap();
            let wanted = UpstreamId {
                prepared_query,
                name: name.into(),
                datacenter: datacenter.into(),
                peer: peer.into(),
            };
            assert_eq!(id, wanted);
            assert_eq!(id.to_string(), text);
        }
    }
}
