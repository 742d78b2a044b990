//! The two forms in which the aggregated service speaks.

use std::fmt;

use crate::xds::ResourceType;

/// How a stream talks. Both forms share everything but the shape of their messages and what that shape can't say:
///
/// | | delta | state of the world |
/// |---|---|---|
/// | a request names | what is asked for or given up | all that is asked for |
/// | a nonce | answers one response | says which response was seen last, also later |
/// | a response of clusters or listeners holds | what changed, and names of what is gone | all that the client is to have |
/// | any other response holds | the same | what changed; that something is gone can't be said |
/// | a reconnecting client says | what it holds, with versions | nothing that counts |
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// `DeltaAggregatedResources`; `api_type: DELTA_GRPC` in Envoy's bootstrap.
    Delta,
    /// `StreamAggregatedResources`; `api_type: GRPC` in Envoy's bootstrap.
    StateOfTheWorld,
}

impl Protocol {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Delta, Self::StateOfTheWorld];

    /// The short lower-case name in displays and options: `delta` or `sotw`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Delta => "delta",
            Self::StateOfTheWorld => "sotw",
        }
    }

    /// Whether a response of this type replaces everything that the client has of it: what isn't in it is gone.
    pub(super) const fn replaces_all(self, kind: ResourceType) -> bool {
        match self {
            Self::Delta => false,
            Self::StateOfTheWorld => matches!(kind, ResourceType::Cluster | ResourceType::Listener),
        }
    }

    /// Whether the client can be told that a resource of this type is gone.
    pub(super) const fn announces_removals(self, kind: ResourceType) -> bool {
        match self {
            Self::Delta => true,
            Self::StateOfTheWorld => self.replaces_all(kind),
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
