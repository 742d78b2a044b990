//! Who is at the other end of a stream: read from the `node` of the first request (xds.md 1.2, 1.3).

use std::fmt;
use std::net::SocketAddr;

use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::envoy::config::core::v3::node::UserAgentVersionType;
use envoy_types::pb::google::protobuf::Struct;
use envoy_types::pb::google::protobuf::value::Kind;
use smol_str::SmolStr;

use super::limits::AdsConfig;

/// A release of Envoy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EnvoyVersion {
    /// First number.
    pub major: u32,
    /// Second number.
    pub minor: u32,
    /// Third number.
    pub patch: u32,
}

impl EnvoyVersion {
    /// The release with these numbers.
    #[must_use]
    pub const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Self {
            major,
            minor,
            patch,
        }
    }
}

impl fmt::Display for EnvoyVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// What the first request says about the proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientNode {
    /// The proxy's service instance id as registered (`node.id`).
    pub id: SmolStr,
    /// The catalog node it lives on (`node.metadata.node_name`). `None`: this server's own node.
    pub node_name: Option<SmolStr>,
    /// Free text, by convention the name of the service behind the proxy (`node.cluster`). Not used to find the proxy.
    pub cluster: SmolStr,
    /// `node.metadata.namespace`; `None` if absent or empty.
    pub namespace: Option<SmolStr>,
    /// `node.metadata.partition`; `None` if absent or empty.
    pub partition: Option<SmolStr>,
    /// The Envoy release, if the client is an Envoy that says so. `None` for custom builds and other clients.
    pub envoy_version: Option<EnvoyVersion>,
}

/// Why a client is refused by what it says about itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NodeError {
    /// The first request has no node.
    #[error("the first request on the stream has no node: set node.id to the proxy's service id")]
    Missing,
    /// The node has no id.
    #[error("node.id is empty: set it to the proxy's service id")]
    NoId,
    /// The Envoy is older than what is served.
    #[error("Envoy {version} is too old: use {minimum} or newer")]
    TooOld {
        /// What the client is.
        version: EnvoyVersion,
        /// [`AdsConfig::min_envoy_version`].
        minimum: EnvoyVersion,
    },
    /// The Envoy release is on the list of those not to be used.
    #[error("Envoy {version} is not supported: {reason}")]
    Refused {
        /// What the client is.
        version: EnvoyVersion,
        /// From [`AdsConfig::refused_envoy_versions`].
        reason: String,
    },
}

impl ClientNode {
    /// Reads the node of a first request.
    ///
    /// # Errors
    /// If there is none or it has no id.
    pub fn read(node: Option<&Node>) -> Result<Self, NodeError> {
        let node = node.ok_or(NodeError::Missing)?;
        if node.id.is_empty() {
            return Err(NodeError::NoId);
        }
        let text = |key| text_in(node.metadata.as_ref(), key);
        Ok(Self {
            id: SmolStr::new(&node.id),
            node_name: text("node_name"),
            cluster: SmolStr::new(&node.cluster),
            namespace: text("namespace"),
            partition: text("partition"),
            envoy_version: envoy_version(node),
        })
    }

    /// Whether this Envoy may be served. An unknown version may.
    ///
    /// # Errors
    /// If it is too old or on the list of refused releases.
    pub fn check_version(&self, config: &AdsConfig) -> Result<(), NodeError> {
        let Some(version) = self.envoy_version else {
            return Ok(());
        };
        if version < config.min_envoy_version {
            return Err(NodeError::TooOld {
                version,
                minimum: config.min_envoy_version,
            });
        }
        let refused = config
            .refused_envoy_versions
            .iter()
            .find(|(refused, _)| *refused == version);
        match refused {
            Some((_, reason)) => Err(NodeError::Refused {
                version,
                reason: reason.clone(),
            }),
            None => Ok(()),
        }
    }
}

fn text_in(metadata: Option<&Struct>, key: &str) -> Option<SmolStr> {
    match metadata?.fields.get(key)?.kind.as_ref()? {
        Kind::StringValue(text) if !text.is_empty() => Some(SmolStr::new(text)),
        _ => None,
    }
}

fn envoy_version(node: &Node) -> Option<EnvoyVersion> {
    if node.user_agent_name != "envoy" {
        return None;
    }
    let UserAgentVersionType::UserAgentBuildVersion(build) =
        node.user_agent_version_type.as_ref()?
    else {
        return None;
    };
    let version = build.version.as_ref()?;
    Some(EnvoyVersion::new(
        version.major_number,
        version.minor_number,
        version.patch,
    ))
}

/// Who calls, before it is known for which proxy.
#[derive(Clone, PartialEq, Eq)]
pub struct Caller {
    /// The token in the metadata key `x-consul-token`; empty: anonymous.
    pub token: SmolStr,
    /// The address that it calls from, where the transport knows it.
    pub peer: Option<SocketAddr>,
}

/// Leaves the token out.
impl fmt::Debug for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Caller")
            .field("anonymous", &self.token.is_empty())
            .field("peer", &self.peer)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::config::core::v3::BuildVersion;
    use envoy_types::pb::envoy::r#type::v3::SemanticVersion;
    use envoy_types::pb::google::protobuf::Value;

    use super::*;

    fn node(agent: &str, version: Option<(u32, u32, u32)>) -> Node {
        Node {
            id: "web-sidecar-proxy".into(),
            user_agent_name: agent.into(),
            user_agent_version_type: version.map(|(major_number, minor_number, patch)| {
                UserAgentVersionType::UserAgentBuildVersion(BuildVersion {
                    version: Some(SemanticVersion {
                        major_number,
                        minor_number,
                        patch,
                    }),
                    metadata: None,
                })
            }),
            ..Node::default()
        }
    }

    fn checked(agent: &str, version: Option<(u32, u32, u32)>) -> Result<(), NodeError> {
        let config = AdsConfig {
            refused_envoy_versions: vec![(EnvoyVersion::new(1, 30, 3), "use 1.30.4".into())],
            ..AdsConfig::default()
        };
        ClientNode::read(Some(&node(agent, version)))?.check_version(&config)
    }

    #[test]
    fn xds_3_old_and_refused_releases_are_turned_away_and_unknown_ones_are_not() {
        assert!(matches!(
            checked("envoy", Some((1, 19, 9))),
            Err(NodeError::TooOld { .. })
        ));
        assert!(matches!(
            checked("envoy", Some((1, 30, 3))),
            Err(NodeError::Refused { .. })
        ));
        assert_eq!(checked("envoy", Some((1, 20, 0))), Ok(()));
        assert_eq!(checked("envoy", Some((2, 0, 0))), Ok(()));
        assert_eq!(checked("envoy", None), Ok(()));
        assert_eq!(checked("my-envoy", Some((1, 0, 0))), Ok(()));
    }

    #[test]
    fn a_node_needs_an_id() {
        assert_eq!(ClientNode::read(None), Err(NodeError::Missing));
        assert_eq!(
            ClientNode::read(Some(&Node::default())),
            Err(NodeError::NoId)
        );
    }

    #[test]
    fn metadata_names_the_catalog_node() {
        let mut node = node("envoy", None);
        assert_eq!(ClientNode::read(Some(&node)).unwrap().node_name, None);
        let mut metadata = Struct::default();
        let mut put = |key: &str, kind| {
            let value = Value { kind: Some(kind) };
            metadata.fields.insert(key.into(), value);
        };
        put("node_name", Kind::StringValue("node-2".into()));
        put("namespace", Kind::StringValue(String::new()));
        put("partition", Kind::NumberValue(1.0));
        node.metadata = Some(metadata);
        let read = ClientNode::read(Some(&node)).unwrap();
        assert_eq!(read.node_name.as_deref(), Some("node-2"));
        assert_eq!((read.namespace, read.partition), (None, None));
    }

    #[test]
    fn debug_output_has_no_token() {
        let caller = Caller {
            token: "secret".into(),
            peer: None,
        };
        assert!(!format!("{caller:?}").contains("secret"));
    }
}
