//! Why a chain can't be compiled (discovery-chain.md 9).

use std::fmt;

use smol_str::SmolStr;

/// Who can mend an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// The author of config entries: they contradict each other.
    Graph,
    /// The programmer: the request is incomplete.
    Plain,
}

impl fmt::Display for ErrorClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Graph => "graph",
            Self::Plain => "plain",
        })
    }
}

/// Why a chain can't be compiled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChainError {
    /// The request lacks a required field.
    #[error("a discovery chain can't be compiled without {field}: fill it in")]
    MissingInput {
        /// The field.
        field: &'static str,
    },
    /// Services of one chain speak different protocols.
    #[error(
        "discovery chain {chain:?} uses inconsistent protocols: service {service:?} has protocol {protocol:?}, but {expected_by:?} \
         needs {expected:?}; give both the same protocol in their service-defaults or in proxy-defaults"
    )]
    InconsistentProtocols {
        /// The chain's own service.
        chain: SmolStr,
        /// The service that differs.
        service: SmolStr,
        /// Its protocol.
        protocol: SmolStr,
        /// The protocol found first.
        expected: SmolStr,
        /// The service that it was found at.
        expected_by: SmolStr,
    },
    /// A router or splitter stands before services that don't speak an HTTP-like protocol.
    #[error(
        "discovery chain {chain:?} has protocol {protocol:?}, which can't be routed or split; set protocol http, http2 or grpc in \
         service-defaults or proxy-defaults, or remove the router and splitters"
    )]
    AdvancedRoutingNotPermitted {
        /// The chain's own service.
        chain: SmolStr,
        /// Its protocol.
        protocol: SmolStr,
    },
    /// Redirects and default subsets lead in a circle.
    #[error("circular resolver redirect: {}; remove one of the redirects", .path.join(" -> "))]
    CircularRedirect {
        /// Ids of the targets in the order of the visit, the repeated one last.
        path: Vec<SmolStr>,
    },
    /// Splitters lead in a circle.
    #[error("circular reference: {}; remove one of the splits", .path.join(" -> "))]
    CircularReference {
        /// Keys of the nodes in the circle, the first one again at the end.
        path: Vec<String>,
    },
    /// A subset is used that the service's resolver doesn't define.
    #[error(
        "service {service:?} has no subset named {subset:?}; define it in the service-resolver {service:?}"
    )]
    MissingSubset {
        /// The service.
        service: SmolStr,
        /// The subset.
        subset: SmolStr,
    },
    /// A service outside the mesh has a redirect.
    #[error("service {service:?} has an ExternalSNI and can't have a redirect; remove one of them")]
    ExternalSniRedirect {
        /// The service.
        service: SmolStr,
    },
    /// A service outside the mesh has subsets.
    #[error("service {service:?} has an ExternalSNI and can't have subsets; remove one of them")]
    ExternalSniSubsets {
        /// The service.
        service: SmolStr,
    },
    /// A service outside the mesh has failover.
    #[error("service {service:?} has an ExternalSNI and can't have failover; remove one of them")]
    ExternalSniFailover {
        /// The service.
        service: SmolStr,
    },
    /// A sameness group is used that doesn't exist.
    #[error(
        "the service-resolver of {service:?} names sameness group {group:?}, which does not exist; create it or remove the name"
    )]
    MissingSamenessGroup {
        /// The service.
        service: SmolStr,
        /// The group.
        group: SmolStr,
    },
    /// Splitters that feed splitters would multiply into too many splits.
    #[error(
        "the splitters of discovery chain {chain:?} multiply into more than {limit} splits; nest fewer splitters"
    )]
    TooManySplits {
        /// The chain's own service.
        chain: SmolStr,
        /// How many there may be.
        limit: usize,
    },
}

impl ChainError {
    /// Who can mend it.
    #[must_use]
    pub const fn class(&self) -> ErrorClass {
        match self {
            Self::MissingInput { .. } => ErrorClass::Plain,
            _ => ErrorClass::Graph,
        }
    }

    /// A short name that stays the same when texts change.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::MissingInput { .. } => "missing-input",
            Self::InconsistentProtocols { .. } => "inconsistent-protocols",
            Self::AdvancedRoutingNotPermitted { .. } => "advanced-routing-not-permitted",
            Self::CircularRedirect { .. } => "circular-redirect",
            Self::CircularReference { .. } => "circular-reference",
            Self::MissingSubset { .. } => "missing-subset",
            Self::ExternalSniRedirect { .. } => "external-sni-redirect",
            Self::ExternalSniSubsets { .. } => "external-sni-subsets",
            Self::ExternalSniFailover { .. } => "external-sni-failover",
            Self::MissingSamenessGroup { .. } => "missing-sameness-group",
            Self::TooManySplits { .. } => "too-many-splits",
        }
    }
}
