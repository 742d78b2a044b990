//! What rows are stored under, and what readers watch.

use std::fmt;

use smol_str::SmolStr;

use crate::model::{CheckStatus, EntryKey, EntryKind, HealthCheck, NameKey, ServiceKind};

/// A node's or service's name together with the peer that it was imported from; an empty peer is the local catalog.
///
/// A name of one peer never mixes with the same name of another (store.md 4.10).
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeeredName {
    /// The peer, or empty.
    pub peer: NameKey,
    /// The name.
    pub name: NameKey,
}

impl PeeredName {
    /// A name in the local catalog.
    #[must_use]
    pub fn local(name: &str) -> Self {
        Self::new("", name)
    }

    /// A name imported from a peer (an empty one is the local catalog).
    #[must_use]
    pub fn new(peer: &str, name: &str) -> Self {
        Self {
            peer: NameKey::new(peer),
            name: NameKey::new(name),
        }
    }

    /// Whether it is of the local catalog.
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.peer.as_str().is_empty()
    }
}

impl From<&str> for PeeredName {
    fn from(name: &str) -> Self {
        Self::local(name)
    }
}

impl From<&String> for PeeredName {
    fn from(name: &String) -> Self {
        Self::local(name)
    }
}

impl From<&SmolStr> for PeeredName {
    fn from(name: &SmolStr) -> Self {
        Self::local(name)
    }
}

impl From<&NameKey> for PeeredName {
    fn from(name: &NameKey) -> Self {
        Self {
            peer: NameKey::new(""),
            name: name.clone(),
        }
    }
}

impl From<&PeeredName> for PeeredName {
    fn from(name: &PeeredName) -> Self {
        name.clone()
    }
}

impl fmt::Display for PeeredName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name)?;
        if self.is_local() {
            Ok(())
        } else {
            write!(f, "?peer={}", self.peer)
        }
    }
}

impl fmt::Debug for PeeredName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// The key of a service instance: its node and its id there.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InstanceKey {
    /// The node.
    pub node: PeeredName,
    /// The instance's id on the node.
    pub id: NameKey,
}

impl InstanceKey {
    /// The key of an instance.
    pub fn new(node: impl Into<PeeredName>, id: &str) -> Self {
        Self {
            node: node.into(),
            id: NameKey::new(id),
        }
    }

    /// The least key that an instance on a node can have, to begin a scan at.
    pub(super) fn first_of(node: PeeredName) -> Self {
        Self {
            node,
            id: NameKey::new(""),
        }
    }
}

/// The key of a health check: its node, its instance and its id. Sorts a node's own checks before those of instances.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CheckKey {
    /// The node.
    pub node: PeeredName,
    /// The id of the instance that it checks; empty for a check of the node.
    pub service_id: NameKey,
    /// The check's id, unique on the node.
    pub check_id: NameKey,
}

impl CheckKey {
    /// The key of a check.
    #[must_use]
    pub fn of(check: &HealthCheck) -> Self {
        Self {
            node: PeeredName::new(&check.peer_name, &check.node),
            service_id: NameKey::new(&check.service_id),
            check_id: NameKey::new(&check.check_id),
        }
    }

    /// The instance that it checks; none for a check of the node.
    #[must_use]
    pub fn instance(&self) -> Option<InstanceKey> {
        if self.service_id.as_str().is_empty() {
            None
        } else {
            Some(InstanceKey {
                node: self.node.clone(),
                id: self.service_id.clone(),
            })
        }
    }

    /// The least key among the checks of an instance (with an empty id: of the node).
    pub(super) fn first_of(node: PeeredName, service_id: NameKey) -> Self {
        Self {
            node,
            service_id,
            check_id: NameKey::new(""),
        }
    }
}

/// A set of local service names that is kept up to date (store.md 1.6, kind-service-names).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NameSet {
    /// Every service with an instance.
    All,
    /// Services with an instance of this kind.
    Kind(ServiceKind),
    /// Services that can be reached over the mesh: with a connect-native instance, or a proxy that stands for them.
    ConnectEnabled,
    /// Services whose service-defaults name a destination outside the mesh.
    Destination,
}

/// What a reader can have read, and what a commit can have changed: the grain of watching (store.md 2.6 and 5).
///
/// A key covers everything that the read method which records it returns, so that whoever's keys didn't change would
/// read the same again.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// All local nodes.
    NodeList,
    /// A node's record.
    Node(PeeredName),
    /// The instances on a node, without their checks.
    NodeServices(PeeredName),
    /// All checks on a node: its own and those of its instances.
    NodeChecks(PeeredName),
    /// One instance's record, without its checks.
    Instance(InstanceKey),
    /// The instances of a service, with their nodes and checks.
    Service(PeeredName),
    /// The instances that a service is reached by over the mesh, with their nodes and checks.
    ConnectTarget(PeeredName),
    /// The instances of a kind, with their nodes and checks.
    Kind {
        /// The peer that they were imported from; empty for local ones.
        peer: NameKey,
        /// The kind.
        kind: ServiceKind,
    },
    /// A set of local service names.
    Names(NameSet),
    /// Which tags the local services have.
    ServiceTags,
    /// All local checks.
    AllChecks,
    /// The local checks in a state.
    ChecksInState(CheckStatus),
    /// One config entry.
    Config(EntryKey),
    /// All config entries of a kind.
    ConfigKind(EntryKind),
    /// Which routers, splitters and resolvers name a service.
    Links(NameKey),
    /// Which destinations have intentions for a source.
    IntentionSource(PeeredName),
    /// The trust roots.
    CaRoots,
    /// The CA configuration.
    CaConfig,
    /// An opaque state.
    State(SmolStr),
}

/// How many classes of keys [`Key::class`] tells apart.
pub(super) const CLASSES: usize = 10;

impl Key {
    /// The class whose extinction index answers for this key while nothing is stored under it (store.md 2.3); none for
    /// keys of which there are few, whose own index is kept for ever.
    pub(super) const fn class(&self) -> Option<usize> {
        match self {
            Self::Node(_) => Some(0),
            Self::NodeServices(_) => Some(1),
            Self::NodeChecks(_) => Some(2),
            Self::Instance(_) => Some(3),
            Self::Service(_) => Some(4),
            Self::ConnectTarget(_) => Some(5),
            Self::Config(_) => Some(6),
            Self::Links(_) => Some(7),
            Self::IntentionSource(_) => Some(8),
            Self::Kind { .. } => Some(9),
            Self::NodeList
            | Self::Names(_)
            | Self::ServiceTags
            | Self::AllChecks
            | Self::ChecksInState(_)
            | Self::ConfigKind(_)
            | Self::CaRoots
            | Self::CaConfig
            | Self::State(_) => None,
        }
    }
}
