//! An immutable state of the store, and the reader that records what is read of it.

use std::cell::RefCell;
use std::collections::HashSet;

use smol_str::SmolStr;
use triomphe::Arc;

use crate::model::{
    CaConfig, CaRoots, CheckStatus, ConfigEntry, EntryKey, EntryKind, HealthCheck, Intention,
    NameKey, Node, ServiceInstance, ServiceKind,
};
use crate::store::backend::OpaqueState;
use crate::store::intentions;
use crate::store::key::{CheckKey, InstanceKey, Key, NameSet, PeeredName};
use crate::store::row::Row;
use crate::store::tables::{Tables, instances_under, scan};

/// The store's contents at one store index. Never changes; cloning costs one reference count.
#[derive(Clone)]
pub struct StoreSnapshot {
    pub(super) tables: Arc<Tables>,
}

impl std::fmt::Debug for StoreSnapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StoreSnapshot({})", self.index())
    }
}

impl StoreSnapshot {
    /// The store index: how many commits led here. 0 is an empty store.
    #[must_use]
    pub fn index(&self) -> u64 {
        self.tables.index
    }

    /// The store index of a key's last change (store.md 2.3). While nothing is stored under the key, that is when a key
    /// of its class last became empty, so that it never goes back.
    #[must_use]
    pub fn key_index(&self, key: &Key) -> u64 {
        self.tables.key_index(key)
    }

    /// The index to report for a query that read these keys: the highest of theirs, at least 1 (store.md 2.3).
    #[must_use]
    pub fn index_of(&self, reads: &Reads) -> u64 {
        reads
            .keys
            .iter()
            .map(|key| self.key_index(key))
            .max()
            .unwrap_or(0)
            .max(1)
    }

    /// The store index of the restore that this snapshot descends from, 0 if there was none.
    #[must_use]
    pub fn restored_at(&self) -> u64 {
        self.tables.floor
    }

    /// A reader over this snapshot.
    #[must_use]
    pub fn reader(&self) -> Reader<'_> {
        Reader::new(self)
    }
}

/// The keys that a query read; few, since a key covers whatever one read method returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reads {
    /// Shared: the index of readers has them too.
    keys: Arc<[Key]>,
}

impl Default for Reads {
    fn default() -> Self {
        Self::from_iter([])
    }
}

impl Reads {
    /// The keys, sorted, each once.
    #[must_use]
    pub fn keys(&self) -> &[Key] {
        &self.keys
    }
}

impl FromIterator<Key> for Reads {
    fn from_iter<I: IntoIterator<Item = Key>>(keys: I) -> Self {
        let mut keys: Vec<Key> = keys.into_iter().collect();
        keys.sort_unstable();
        keys.dedup();
        Self {
            keys: Arc::from(keys),
        }
    }
}

/// An instance with all that a health query returns (store.md 4.10).
#[derive(Debug, Clone, PartialEq)]
pub struct InstanceRow<'a> {
    /// Its node.
    pub node: &'a Row<Node>,
    /// The instance.
    pub service: &'a Row<ServiceInstance>,
    /// The node's checks, then its own, each by id.
    pub checks: Vec<&'a Row<HealthCheck>>,
}

/// Reads a snapshot, and records the key of everything read: also of what wasn't there, so that its coming is noticed.
///
/// Names are looked up without regard to case; a plain `&str` means the local catalog, a [`PeeredName`] can mean an
/// imported one. Rows are borrowed from the snapshot.
#[derive(Debug)]
pub struct Reader<'a> {
    snapshot: &'a StoreSnapshot,
    reads: RefCell<HashSet<Key, foldhash::quality::RandomState>>,
}

impl<'a> Reader<'a> {
    /// A reader that has read nothing.
    #[must_use]
    pub fn new(snapshot: &'a StoreSnapshot) -> Self {
        Self {
            snapshot,
            reads: RefCell::default(),
        }
    }

    /// What was read.
    #[must_use]
    pub fn finish(self) -> Reads {
        self.reads.into_inner().into_iter().collect()
    }

    /// The snapshot.
    #[must_use]
    pub fn snapshot(&self) -> &'a StoreSnapshot {
        self.snapshot
    }

    /// Counts what another query read as read here: for an answer that is built on that query's answer.
    pub fn include(&self, reads: &Reads) {
        self.reads.borrow_mut().extend(reads.keys.iter().cloned());
    }

    /// The local nodes, by name.
    pub fn nodes(&self) -> Vec<&'a Row<Node>> {
        self.saw(Key::NodeList);
        let first = PeeredName::local("");
        scan(&self.tables().nodes, first.., PeeredName::is_local)
            .map(|(_, row)| row)
            .collect()
    }

    /// A node.
    pub fn node(&self, name: impl Into<PeeredName>) -> Option<&'a Row<Node>> {
        let name = name.into();
        let row = self.tables().nodes.get(&name);
        self.saw(Key::Node(name));
        row
    }

    /// The instances on a node, by id.
    pub fn node_services(&self, node: impl Into<PeeredName>) -> Vec<&'a Row<ServiceInstance>> {
        let node = node.into();
        let rows = self
            .tables()
            .instances_on(&node)
            .map(|(_, row)| row)
            .collect();
        self.saw(Key::NodeServices(node));
        rows
    }

    /// All checks on a node: its own, then those of its instances.
    pub fn node_checks(&self, node: impl Into<PeeredName>) -> Vec<&'a Row<HealthCheck>> {
        let node = node.into();
        let rows = self.tables().checks_on(&node).map(|(_, row)| row).collect();
        self.saw(Key::NodeChecks(node));
        rows
    }

    /// One instance, without node and checks.
    pub fn instance(
        &self,
        node: impl Into<PeeredName>,
        id: &str,
    ) -> Option<&'a Row<ServiceInstance>> {
        let key = InstanceKey::new(node, id);
        let row = self.tables().instances.get(&key);
        self.saw(Key::Instance(key));
        row
    }

    /// The instances of a service, by node and id (store.md 4.10, plain).
    pub fn instances(&self, service: impl Into<PeeredName>) -> Vec<InstanceRow<'a>> {
        let service = service.into();
        let rows = instances_under(&self.tables().by_service, &service)
            .filter_map(|key| self.instance_row(key))
            .collect();
        self.saw(Key::Service(service));
        rows
    }

    /// The instances by which a service is reached over the mesh, by node and id: its connect-native instances, and the
    /// proxies that stand for it (store.md 4.10, connect, part 1).
    pub fn connect_instances(&self, service: impl Into<PeeredName>) -> Vec<InstanceRow<'a>> {
        let service = service.into();
        let rows = instances_under(&self.tables().by_target, &service)
            .filter_map(|key| self.instance_row(key))
            .collect();
        self.saw(Key::ConnectTarget(service));
        rows
    }

    /// The instances of a kind, by node and id; an empty peer means local ones (store.md 4.15).
    pub fn instances_of_kind(&self, peer: &str, kind: ServiceKind) -> Vec<InstanceRow<'a>> {
        let peer = NameKey::new(peer);
        let rows = self
            .tables()
            .of_kind(&peer, kind)
            .filter_map(|key| self.instance_row(key))
            .collect();
        self.saw(Key::Kind { peer, kind });
        rows
    }

    /// The names of all local services, sorted (store.md 4.15).
    pub fn service_names(&self) -> Vec<SmolStr> {
        self.names(NameSet::All)
    }

    /// A set of local service names, sorted without regard to case. Where instances spell a name differently, the least
    /// spelling is given.
    pub fn names(&self, set: NameSet) -> Vec<SmolStr> {
        self.saw(Key::Names(set));
        let first = (set, NameKey::new(""), SmolStr::default());
        let mut last: Option<&NameKey> = None;
        scan(&self.tables().names, first.., |(of, _, _)| *of == set)
            .filter(|((_, key, _), _)| last.replace(key) != Some(key))
            .map(|((_, _, spelling), _)| spelling.clone())
            .collect()
    }

    /// The names of all local services, each with the tags that its instances have, sorted.
    pub fn service_names_with_tags(&self) -> Vec<(SmolStr, Vec<SmolStr>)> {
        self.saw(Key::ServiceTags);
        self.service_names()
            .into_iter()
            .map(|name| {
                let key = NameKey::new(&name);
                let first = (key.clone(), SmolStr::default());
                let tags = scan(&self.tables().tags, first.., |(of, _)| *of == key)
                    .map(|((_, tag), _)| tag.clone())
                    .collect();
                (name, tags)
            })
            .collect()
    }

    /// The checks of a service's instances (not of their nodes), by node, instance and id.
    pub fn service_checks(&self, service: impl Into<PeeredName>) -> Vec<&'a Row<HealthCheck>> {
        let service = service.into();
        let tables = self.tables();
        let rows = instances_under(&tables.by_service, &service)
            .flat_map(|key| tables.checks_of(&key.node, &key.id).collect::<Vec<_>>())
            .map(|(_, row)| row)
            .collect();
        self.saw(Key::Service(service));
        rows
    }

    /// The local checks in a state, or all, by node, instance and id.
    pub fn checks_in_state(&self, state: Option<CheckStatus>) -> Vec<&'a Row<HealthCheck>> {
        let tables = self.tables();
        let first = CheckKey::first_of(PeeredName::local(""), NameKey::new(""));
        match state {
            Some(state) => {
                self.saw(Key::ChecksInState(state));
                scan(
                    &tables.checks_by_state,
                    (state, first)..,
                    |(status, key)| *status == state && key.node.is_local(),
                )
                .filter_map(|((_, key), ())| tables.checks.get(key))
                .collect()
            }
            None => {
                self.saw(Key::AllChecks);
                scan(&tables.checks, first.., |key| key.node.is_local())
                    .map(|(_, row)| row)
                    .collect()
            }
        }
    }

    /// A config entry (store.md 4.4).
    pub fn config(&self, kind: EntryKind, name: &str) -> Option<&'a Row<ConfigEntry>> {
        let key = EntryKey::new(kind, name);
        let row = self.tables().config.get(&key);
        self.saw(Key::Config(key));
        row
    }

    /// The config entries of a kind, by name (store.md 4.4).
    pub fn config_list(&self, kind: EntryKind) -> Vec<&'a Row<ConfigEntry>> {
        self.saw(Key::ConfigKind(kind));
        scan(&self.tables().config, EntryKey::new(kind, "").., |key| {
            key.kind == kind
        })
        .map(|(_, row)| row)
        .collect()
    }

    /// The routers, splitters and resolvers of other services that name a service (store.md 1.6, link).
    pub fn linked_from(&self, service: &str) -> Vec<EntryKey> {
        let name = NameKey::new(service);
        let entries = self.tables().links_to(&name).cloned().collect();
        self.saw(Key::Links(name));
        entries
    }

    /// The intentions that decide about calls to a service: its own and those of `*`, in order (store.md 4.12).
    pub fn intentions_to(&self, destination: &str) -> Vec<Intention> {
        let own = self.config(EntryKind::ServiceIntentions, destination);
        let general = if destination == "*" {
            None
        } else {
            self.config(EntryKind::ServiceIntentions, "*")
        };
        intentions::in_order([own, general].into_iter().flatten())
    }

    /// The intentions that decide about calls from a service of this cluster: its own and those of the source `*`, in
    /// order (store.md 4.12).
    pub fn intentions_from(&self, source: &str) -> Vec<Intention> {
        let mut destinations = self.intention_destinations(source);
        if source != "*" {
            destinations.extend(self.intention_destinations("*"));
        }
        destinations.sort_unstable();
        destinations.dedup();
        let entries = destinations.iter().filter_map(|destination| {
            self.config(EntryKind::ServiceIntentions, destination.as_str())
        });
        let mut found = intentions::in_order(entries);
        found.retain(|of| {
            of.source_peer.is_empty()
                && (of.source_name == "*" || of.source_name.eq_ignore_ascii_case(source))
        });
        found
    }

    /// All intentions, in the order in which they decide.
    pub fn intentions(&self) -> Vec<Intention> {
        intentions::in_order(self.config_list(EntryKind::ServiceIntentions).into_iter())
    }

    /// The names of the service-intentions entries that have an intention for exactly this source, which can be `*`
    /// (store.md 1.6, source).
    pub fn intention_destinations(&self, source: impl Into<PeeredName>) -> Vec<NameKey> {
        let source = source.into();
        let destinations = self.tables().destinations_of(&source).cloned().collect();
        self.saw(Key::IntentionSource(source));
        destinations
    }

    /// The trust roots; none before the authority's first start (store.md 4.1).
    pub fn ca_roots(&self) -> Option<&'a Row<CaRoots>> {
        self.saw(Key::CaRoots);
        self.tables().ca_roots.as_ref()
    }

    /// The CA configuration.
    pub fn ca_config(&self) -> Option<&'a Row<CaConfig>> {
        self.saw(Key::CaConfig);
        self.tables().ca_config.as_ref()
    }

    /// An opaque state.
    pub fn state(&self, name: &str) -> Option<&'a Row<OpaqueState>> {
        let name = SmolStr::from(name);
        let row = self.tables().states.get(&name);
        self.saw(Key::State(name));
        row
    }

    fn tables(&self) -> &'a Tables {
        &self.snapshot.tables
    }

    fn saw(&self, key: Key) {
        self.reads.borrow_mut().insert(key);
    }

    fn instance_row(&self, key: &InstanceKey) -> Option<InstanceRow<'a>> {
        let tables = self.tables();
        let of_node = tables
            .checks_of(&key.node, &NameKey::new(""))
            .map(|c| c.1)
            .collect::<Vec<_>>();
        let own = tables.checks_of(&key.node, &key.id).map(|c| c.1);
        let mut checks = of_node;
        checks.extend(own);
        Some(InstanceRow {
            node: tables.nodes.get(&key.node)?,
            service: tables.instances.get(key)?,
            checks,
        })
    }
}
