//! The entries that a chain is compiled from (discovery-chain.md 2.2).

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash, Hasher};

use smol_str::SmolStr;
use triomphe::Arc;

use crate::chain::names::or_default;
use crate::model::{
    Locality, ProxyDefaults, ServiceDefaults, ServiceResolver, ServiceRouter, ServiceSplitter,
    record,
};

/// Which service: its name as written, with namespace and partition. Keys compare without regard to the case of the
/// name (decisions E12).
#[derive(Debug, Clone)]
pub struct ServiceKey {
    name: SmolStr,
    namespace: SmolStr,
    partition: SmolStr,
}

impl ServiceKey {
    /// A key; an empty namespace or partition stands for `default`.
    #[must_use]
    pub fn new(name: &str, namespace: &str, partition: &str) -> Self {
        Self {
            name: SmolStr::from(name),
            namespace: SmolStr::from(or_default(namespace)),
            partition: SmolStr::from(or_default(partition)),
        }
    }

    /// A service of the default namespace and partition.
    #[must_use]
    pub fn named(name: &str) -> Self {
        Self::new(name, "", "")
    }

    /// The name as written.
    #[must_use]
    pub const fn name(&self) -> &SmolStr {
        &self.name
    }

    /// The namespace, never empty.
    #[must_use]
    pub const fn namespace(&self) -> &SmolStr {
        &self.namespace
    }

    /// The partition, never empty.
    #[must_use]
    pub const fn partition(&self) -> &SmolStr {
        &self.partition
    }

    /// The key of what an entry of this service names: what it leaves empty is this service's.
    pub(crate) fn naming(&self, name: &str, namespace: &str, partition: &str) -> Self {
        let or_own = |given: &str, own: &SmolStr| {
            if given.is_empty() {
                own.clone()
            } else {
                SmolStr::from(given)
            }
        };
        Self {
            name: or_own(name, &self.name),
            namespace: or_own(namespace, &self.namespace),
            partition: or_own(partition, &self.partition),
        }
    }
}

impl Ord for ServiceKey {
    /// By partition, namespace, then name.
    fn cmp(&self, other: &Self) -> Ordering {
        let lower = |byte: u8| byte.to_ascii_lowercase();
        let by_name = || {
            let (own, others) = (self.name.bytes(), other.name.bytes());
            own.map(lower).cmp(others.map(lower))
        };
        self.partition
            .cmp(&other.partition)
            .then_with(|| self.namespace.cmp(&other.namespace))
            .then_with(by_name)
    }
}

impl PartialOrd for ServiceKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for ServiceKey {
    fn eq(&self, other: &Self) -> bool {
        self.name.eq_ignore_ascii_case(&other.name)
            && self.namespace == other.namespace
            && self.partition == other.partition
    }
}

impl Eq for ServiceKey {}

impl Hash for ServiceKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for byte in self.name.bytes() {
            state.write_u8(byte.to_ascii_lowercase());
        }
        state.write_u8(0xff);
        self.namespace.hash(state);
        self.partition.hash(state);
    }
}

impl fmt::Display for ServiceKey {
    /// The name; namespace and partition only where they aren't `default`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.partition != or_default("") {
            write!(f, "{}/", self.partition)?;
        }
        if self.namespace != or_default("") || self.partition != or_default("") {
            write!(f, "{}/", self.namespace)?;
        }
        f.write_str(&self.name)
    }
}

record! {
    /// `sameness-group`, enterprise only (discovery-chain.md 10.6): partitions and peers that run the same services.
    pub struct SamenessGroup {
        /// Always `sameness-group`.
        kind: String = "Kind" always,
        /// Name.
        name: String = "Name" always,
        /// Services without a resolver fail over to its members.
        default_for_failover: bool = "DefaultForFailover",
        /// The local partition comes first.
        include_local: bool = "IncludeLocal",
        /// Members in order.
        members: Vec<SamenessGroupMember> = "Members",
        /// Free labels.
        meta: BTreeMap<String, String> = "Meta",
        /// Partition.
        partition: String = "Partition",
    }
    ignored ["CreateIndex", "ModifyIndex", "Hash"]
}

record! {
    /// A member of a sameness group: a partition or a peer.
    pub struct SamenessGroupMember {
        /// Partition.
        partition: String = "Partition",
        /// Peer.
        peer: String = "Peer",
    }
}

/// All entries that a chain may use. Those of services that the chain doesn't reach have no effect.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EntrySet {
    /// Routers.
    pub routers: BTreeMap<ServiceKey, Arc<ServiceRouter>>,
    /// Splitters.
    pub splitters: BTreeMap<ServiceKey, Arc<ServiceSplitter>>,
    /// Resolvers.
    pub resolvers: BTreeMap<ServiceKey, Arc<ServiceResolver>>,
    /// Service-defaults.
    pub services: BTreeMap<ServiceKey, Arc<ServiceDefaults>>,
    /// Proxy-defaults by partition.
    pub proxy_defaults: BTreeMap<SmolStr, Arc<ProxyDefaults>>,
    /// Where peers are, by name; a peer of unknown place is absent.
    pub peers: BTreeMap<SmolStr, Locality>,
    /// Sameness groups by name. Enterprise only.
    pub sameness_groups: BTreeMap<SmolStr, Arc<SamenessGroup>>,
    /// The group that services without a resolver fail over to. Enterprise only.
    pub default_sameness_group: Option<Arc<SamenessGroup>>,
}

impl EntrySet {
    /// Adds a router under its own name.
    pub fn add_router(&mut self, entry: Arc<ServiceRouter>) {
        let key = ServiceKey::new(&entry.name, &entry.namespace, &entry.partition);
        self.routers.insert(key, entry);
    }

    /// Adds a splitter under its own name.
    pub fn add_splitter(&mut self, entry: Arc<ServiceSplitter>) {
        let key = ServiceKey::new(&entry.name, &entry.namespace, &entry.partition);
        self.splitters.insert(key, entry);
    }

    /// Adds a resolver under its own name.
    pub fn add_resolver(&mut self, entry: Arc<ServiceResolver>) {
        let key = ServiceKey::new(&entry.name, &entry.namespace, &entry.partition);
        self.resolvers.insert(key, entry);
    }

    /// Adds service-defaults under their own name.
    pub fn add_service_defaults(&mut self, entry: Arc<ServiceDefaults>) {
        let key = ServiceKey::new(&entry.name, &entry.namespace, &entry.partition);
        self.services.insert(key, entry);
    }

    /// Adds proxy-defaults under their own partition.
    pub fn add_proxy_defaults(&mut self, entry: Arc<ProxyDefaults>) {
        let partition = SmolStr::from(or_default(&entry.partition));
        self.proxy_defaults.insert(partition, entry);
    }

    /// Whether there is neither a router, a splitter nor a resolver.
    #[must_use]
    pub fn is_chain_empty(&self) -> bool {
        self.routers.is_empty() && self.splitters.is_empty() && self.resolvers.is_empty()
    }

    /// Whether there is no entry at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.is_chain_empty() && self.services.is_empty() && self.proxy_defaults.is_empty()
    }
}
