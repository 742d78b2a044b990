//! Config entries: configuration that holds for a service or for the whole mesh (store.md 3).

mod intentions;
mod jwt_provider;
mod mesh;
mod proxy_defaults;
mod resolver;
mod resolver_rules;
mod router;
mod service_defaults;
mod splitter;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

use smol_str::SmolStr;

use crate::hcl::Value;
use crate::model::decode::{Decode, Place, Problems, same_key, words};
use crate::model::ids::NameKey;
use crate::model::validate::{self, Validate};

pub use intentions::{
    IntentionAction, IntentionHttpHeader, IntentionHttpPermission, IntentionJwt, IntentionJwtClaim,
    IntentionJwtProvider, IntentionPermission, ServiceIntentions, SourceIntention, precedence,
};
pub use jwt_provider::{
    Jwks, JwksCluster, JwksTlsCertificates, JwksTlsProviderInstance, JwksTlsTrustedCa,
    JwtCacheConfig, JwtForwarding, JwtLocation, JwtLocationCookie, JwtLocationHeader,
    JwtLocationQueryParam, JwtProvider, LocalJwks, RemoteJwks, RetryPolicy, RetryPolicyBackOff,
    has_secret_web_keys,
};
pub use mesh::{
    MeshConfig, MeshDirectionalHttp, MeshDirectionalTls, MeshHttp, MeshPeering, MeshTls,
    MeshTransparentProxy, RequestNormalization,
};
pub use proxy_defaults::{FailoverPolicy, PrioritizeByLocality, ProxyDefaults};
pub use resolver::{
    CookieConfig, Failover, FailoverTarget, HashPolicy, LeastRequestConfig, LoadBalancer, Redirect,
    RingHashConfig, ServiceResolver, Subset,
};
pub use router::{
    HeaderMatch, HeaderModifiers, HttpMatch, QueryParamMatch, RouteDestination, RouteMatch,
    ServiceRoute, ServiceRouter,
};
pub use service_defaults::{
    Destination, InstanceLevelRateLimits, PassiveHealthCheck, RATE_LIMIT_EXTENSION, RateLimitRoute,
    RateLimits, ServiceDefaults, UpstreamDefaults, UpstreamLimits, UpstreamsConfig,
};
pub use splitter::{ServiceSplit, ServiceSplitter, weight_units};

words! {
    /// The kinds of config entry that are supported.
    pub enum EntryKind {
        /// Defaults of all proxies.
        ProxyDefaults = "proxy-defaults",
        /// Defaults of a service.
        ServiceDefaults = "service-defaults",
        /// Routes by path, header, query and method.
        ServiceRouter = "service-router",
        /// Shares of traffic.
        ServiceSplitter = "service-splitter",
        /// Subsets, redirects and failover.
        ServiceResolver = "service-resolver",
        /// Who may call a service.
        ServiceIntentions = "service-intentions",
        /// Settings of the whole mesh.
        Mesh = "mesh",
        /// A source of JSON web tokens.
        JwtProvider = "jwt-provider",
    }
}

impl EntryKind {
    /// All kinds.
    pub const ALL: [Self; 8] = [
        Self::ProxyDefaults,
        Self::ServiceDefaults,
        Self::ServiceRouter,
        Self::ServiceSplitter,
        Self::ServiceResolver,
        Self::ServiceIntentions,
        Self::Mesh,
        Self::JwtProvider,
    ];
}

/// A config entry of any kind.
#[derive(Debug, Clone, PartialEq)]
pub enum ConfigEntry {
    /// Defaults of all proxies.
    ProxyDefaults(ProxyDefaults),
    /// Defaults of a service.
    ServiceDefaults(ServiceDefaults),
    /// Routes.
    ServiceRouter(ServiceRouter),
    /// Shares of traffic.
    ServiceSplitter(ServiceSplitter),
    /// Subsets, redirects and failover.
    ServiceResolver(ServiceResolver),
    /// Who may call a service.
    ServiceIntentions(ServiceIntentions),
    /// Settings of the whole mesh.
    Mesh(MeshConfig),
    /// A source of JSON web tokens.
    JwtProvider(JwtProvider),
}

macro_rules! each_kind {
    ($entry:expr, $e:ident => $body:expr) => {
        match $entry {
            ConfigEntry::ProxyDefaults($e) => $body,
            ConfigEntry::ServiceDefaults($e) => $body,
            ConfigEntry::ServiceRouter($e) => $body,
            ConfigEntry::ServiceSplitter($e) => $body,
            ConfigEntry::ServiceResolver($e) => $body,
            ConfigEntry::ServiceIntentions($e) => $body,
            ConfigEntry::Mesh($e) => $body,
            ConfigEntry::JwtProvider($e) => $body,
        }
    };
}

impl ConfigEntry {
    /// The kind.
    #[must_use]
    pub const fn kind(&self) -> EntryKind {
        match self {
            Self::ProxyDefaults(_) => EntryKind::ProxyDefaults,
            Self::ServiceDefaults(_) => EntryKind::ServiceDefaults,
            Self::ServiceRouter(_) => EntryKind::ServiceRouter,
            Self::ServiceSplitter(_) => EntryKind::ServiceSplitter,
            Self::ServiceResolver(_) => EntryKind::ServiceResolver,
            Self::ServiceIntentions(_) => EntryKind::ServiceIntentions,
            Self::Mesh(_) => EntryKind::Mesh,
            Self::JwtProvider(_) => EntryKind::JwtProvider,
        }
    }

    /// The name as written: a service's, `global` for proxy-defaults, `mesh` for mesh.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Mesh(_) => "mesh",
            Self::ProxyDefaults(e) => &e.name,
            Self::ServiceDefaults(e) => &e.name,
            Self::ServiceRouter(e) => &e.name,
            Self::ServiceSplitter(e) => &e.name,
            Self::ServiceResolver(e) => &e.name,
            Self::ServiceIntentions(e) => &e.name,
            Self::JwtProvider(e) => &e.name,
        }
    }

    /// The look-up key.
    #[must_use]
    pub fn key(&self) -> EntryKey {
        EntryKey {
            kind: self.kind(),
            name: NameKey::new(self.name()),
        }
    }

    /// Free labels of the author.
    #[must_use]
    pub fn meta(&self) -> &BTreeMap<String, String> {
        each_kind!(self, e => &e.meta)
    }
}

impl ConfigEntry {
    /// Reads, checks and normalizes an entry from a document; the problems that come with it are warnings.
    ///
    /// What depends on other entries (protocols, chains, token providers) is checked by the store (store.md 3.18).
    ///
    /// # Errors
    /// All problems with their places, if there is an error among them.
    pub fn read(document: &Value) -> Result<(Self, Problems), Problems> {
        validate::read(document)
    }
}

impl Validate for ConfigEntry {
    fn validate(&self, at: &Place<'_>, problems: &mut Problems) {
        each_kind!(self, e => e.validate(at, problems));
    }

    fn enterprise_only(&self, at: &Place<'_>, problems: &mut Problems) {
        each_kind!(self, e => e.enterprise_only(at, problems));
    }

    fn normalize(&mut self) {
        each_kind!(self, e => e.normalize());
    }
}

impl serde::Serialize for ConfigEntry {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        each_kind!(self, e => e.serialize(serializer))
    }
}

impl Decode for ConfigEntry {
    fn decode(value: &Value, at: &Place<'_>, problems: &mut Problems) -> Option<Self> {
        let members = crate::model::decode::members_of(value, at, problems)?;
        let Some(kind) = members.iter().find(|m| same_key(&m.key, "Kind")) else {
            problems.error(at, "a config entry needs a Kind");
            return None;
        };
        let kind = EntryKind::decode(&kind.value, &at.key("Kind"), problems)?;
        Some(match kind {
            EntryKind::ProxyDefaults => Self::ProxyDefaults(Decode::decode(value, at, problems)?),
            EntryKind::ServiceDefaults => {
                Self::ServiceDefaults(Decode::decode(value, at, problems)?)
            }
            EntryKind::ServiceRouter => Self::ServiceRouter(Decode::decode(value, at, problems)?),
            EntryKind::ServiceSplitter => {
                Self::ServiceSplitter(Decode::decode(value, at, problems)?)
            }
            EntryKind::ServiceResolver => {
                Self::ServiceResolver(Decode::decode(value, at, problems)?)
            }
            EntryKind::ServiceIntentions => {
                Self::ServiceIntentions(Decode::decode(value, at, problems)?)
            }
            EntryKind::Mesh => Self::Mesh(Decode::decode(value, at, problems)?),
            EntryKind::JwtProvider => Self::JwtProvider(Decode::decode(value, at, problems)?),
        })
    }
}

/// The key that an entry is stored under.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EntryKey {
    /// Kind.
    pub kind: EntryKind,
    /// Name.
    pub name: NameKey,
}

impl EntryKey {
    /// The key of an entry.
    #[must_use]
    pub fn new(kind: EntryKind, name: &str) -> Self {
        Self {
            kind,
            name: NameKey::new(name),
        }
    }
}

impl fmt::Display for EntryKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind, self.name)
    }
}

/// Protocols that HTTP routing applies to (store.md 3).
#[must_use]
pub fn is_http_like(protocol: &str) -> bool {
    matches!(protocol, "http" | "http2" | "grpc")
}

/// A service named in an entry, by its name as written.
pub type ServiceRef = SmolStr;
