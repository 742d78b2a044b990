//! One encoded Envoy resource and the types there are.
//!
//! A resource is encoded once, when it is generated; from then on every stream shares the same bytes. Its version is the
//! hash of those bytes (xds.md 1.7, decision X2), so that equal content has an equal version on every server and after
//! every restart.

use std::fmt;

use prost::bytes::Bytes;
use smol_str::SmolStr;
use triomphe::Arc;

/// The types of resource a proxy can ask for (xds.md 1.1).
///
/// The order of the variants is the order in which additions and changes of several types are sent (xds.md 1.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ResourceType {
    /// Certificates and roots (SDS).
    Secret,
    /// Upstream clusters (CDS).
    Cluster,
    /// Addresses behind a cluster (EDS).
    Endpoint,
    /// What a proxy listens on (LDS).
    Listener,
    /// Route tables that listeners name (RDS).
    Route,
}

impl ResourceType {
    /// How many types there are.
    pub const COUNT: usize = 5;

    /// All types, in the order in which changes are sent.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Secret,
        Self::Cluster,
        Self::Endpoint,
        Self::Listener,
        Self::Route,
    ];

    /// The type URL that xDS messages carry.
    #[must_use]
    pub const fn url(self) -> &'static str {
        match self {
            Self::Secret => "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret",
            Self::Cluster => "type.googleapis.com/envoy.config.cluster.v3.Cluster",
            Self::Endpoint => "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
            Self::Listener => "type.googleapis.com/envoy.config.listener.v3.Listener",
            Self::Route => "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
        }
    }

    /// The type with this type URL, or `None` if it isn't one that is served.
    #[must_use]
    pub fn from_url(url: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.url() == url)
    }

    /// The short lower-case name used in commands, metrics and logs: `cluster`, `endpoint` and so on.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Secret => "secret",
            Self::Cluster => "cluster",
            Self::Endpoint => "endpoint",
            Self::Listener => "listener",
            Self::Route => "route",
        }
    }

    /// The type with this short name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// The type of what hangs on a resource of this type: Envoy forgets the endpoints of a cluster and the routes of a
    /// listener when it gets a new version of it (xds.md 1.8).
    #[must_use]
    pub const fn child(self) -> Option<Self> {
        match self {
            Self::Cluster => Some(Self::Endpoint),
            Self::Listener => Some(Self::Route),
            Self::Secret | Self::Endpoint | Self::Route => None,
        }
    }

    /// Whether a first request that names nothing means "everything" for this type (decision X6).
    #[must_use]
    pub const fn empty_means_all(self) -> bool {
        matches!(self, Self::Cluster | Self::Listener)
    }

    /// A dense number below [`ResourceType::COUNT`], in sending order, for tables with one entry per type.
    #[must_use]
    pub const fn slot(self) -> usize {
        self as usize
    }
}

impl fmt::Display for ResourceType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One encoded resource. Immutable and shared by everybody who sends it.
#[derive(Clone, PartialEq, Eq)]
pub struct Resource {
    kind: ResourceType,
    name: SmolStr,
    version: SmolStr,
    bytes: Bytes,
    composed: bool,
    children: Box<[SmolStr]>,
}

impl Resource {
    /// A resource from its encoded message (the message itself, not an `Any` around it).
    ///
    /// `bytes` must come from a deterministic encoding, because the version is the hash of them (decision X2). A cluster's
    /// child is the endpoint resource of the same name; use [`Resource::with_children`] for anything else.
    #[must_use]
    pub fn new(kind: ResourceType, name: impl Into<SmolStr>, bytes: impl Into<Bytes>) -> Self {
        let name = name.into();
        let bytes = bytes.into();
        let children = match kind {
            ResourceType::Cluster => Box::from([name.clone()]),
            _ => Box::default(),
        };
        Self {
            kind,
            version: version_of(&bytes),
            name,
            bytes,
            composed: false,
            children,
        }
    }

    /// Says that it refers to other resources of its own type, as an aggregate cluster does to its members: where it
    /// replaces something that is in use, those have to be ready first. Not part of the version.
    #[must_use]
    pub fn composed(mut self) -> Self {
        self.composed = true;
        self
    }

    /// Says which resources of the child type hang on this one: for a listener the route tables that it names, for a
    /// cluster the endpoint resource if it isn't called like the cluster. Not part of the version.
    #[must_use]
    pub fn with_children(mut self, names: impl IntoIterator<Item = SmolStr>) -> Self {
        let mut children: Vec<SmolStr> = names.into_iter().collect();
        children.sort_unstable();
        children.dedup();
        self.children = children.into_boxed_slice();
        self
    }

    /// Its type.
    #[must_use]
    pub fn kind(&self) -> ResourceType {
        self.kind
    }

    /// Its name, unique within its type.
    #[must_use]
    pub fn name(&self) -> &SmolStr {
        &self.name
    }

    /// The SHA-256 of the encoded message in lower-case hexadecimal: 64 characters.
    #[must_use]
    pub fn version(&self) -> &SmolStr {
        &self.version
    }

    /// The encoded message.
    #[must_use]
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Whether it refers to other resources of its own type.
    #[must_use]
    pub fn is_composed(&self) -> bool {
        self.composed
    }

    /// Names of the resources of [`ResourceType::child`] that hang on this one, sorted.
    #[must_use]
    pub fn children(&self) -> &[SmolStr] {
        &self.children
    }

    /// Wraps it for a [`ResourceSet`](super::ResourceSet).
    #[must_use]
    pub fn shared(self) -> Arc<Self> {
        Arc::new(self)
    }
}

/// Leaves the bytes out: those of a secret hold a private key (decision C1).
impl fmt::Debug for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resource")
            .field("kind", &self.kind)
            .field("name", &self.name)
            .field("version", &self.version)
            .field("len", &self.bytes.len())
            .field("children", &self.children)
            .finish()
    }
}

/// One version for several resources: equal names with equal contents have an equal one. 64 characters, as that of one.
#[must_use]
pub fn version_of_all<'a>(resources: impl IntoIterator<Item = &'a Resource>) -> SmolStr {
    let mut context = ring::digest::Context::new(&ring::digest::SHA256);
    for resource in resources {
        // A name of any bytes can't be taken for the version before it, which has a fixed length.
        context.update(&(resource.name.len() as u64).to_be_bytes());
        context.update(resource.name.as_bytes());
        context.update(resource.version.as_bytes());
    }
    hexadecimal(context.finish())
}

/// Lower-case hexadecimal SHA-256.
fn version_of(bytes: &[u8]) -> SmolStr {
    hexadecimal(ring::digest::digest(&ring::digest::SHA256, bytes))
}

fn hexadecimal(digest: ring::digest::Digest) -> SmolStr {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    digest
        .as_ref()
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 0xf])
        .map(|nibble| char::from(DIGITS[usize::from(nibble)]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xds_24_version_is_the_sha_256_of_the_bytes_in_hex() {
        let resource = Resource::new(ResourceType::Cluster, "a", b"abc".to_vec());
        assert_eq!(
            resource.version(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        let again = Resource::new(ResourceType::Endpoint, "b", b"abc".to_vec());
        assert_eq!(resource.version(), again.version());
    }

    #[test]
    fn type_urls_and_names_are_unique_and_found_again() {
        for (place, kind) in ResourceType::ALL.into_iter().enumerate() {
            assert_eq!(kind.slot(), place);
            assert_eq!(ResourceType::from_url(kind.url()), Some(kind));
            assert_eq!(ResourceType::from_name(kind.name()), Some(kind));
        }
        assert_eq!(
            ResourceType::from_url("type.googleapis.com/envoy.service.runtime.v3.Runtime"),
            None
        );
        assert_eq!(ResourceType::from_name("clusters"), None);
    }

    #[test]
    fn debug_output_has_no_bytes() {
        let secret = Resource::new(ResourceType::Secret, "leaf", b"PRIVATE".to_vec());
        assert!(!format!("{secret:?}").contains("PRIVATE"));
        assert!(!format!("{secret:?}").contains("80, 82, 73"));
    }

    #[test]
    fn children_are_sorted_and_unique() {
        let listener = Resource::new(ResourceType::Listener, "l", Vec::new()).with_children([
            "r2".into(),
            "r1".into(),
            "r2".into(),
        ]);
        assert_eq!(listener.children(), ["r1", "r2"]);
        let cluster = Resource::new(ResourceType::Cluster, "c", Vec::new());
        assert_eq!(cluster.children(), ["c"]);
    }
}
