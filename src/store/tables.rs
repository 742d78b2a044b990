//! The tables: persistent maps that share structure between snapshots.
//!
//! Four tables hold rows (nodes, instances, checks, config entries); the others are indexes over them, which only the
//! writer keeps in step. All ordered tables are scanned by prefix, so a query touches what it returns and nothing else.

use std::ops::RangeFrom;

use archery::ArcTK;
use rpds::{HashTrieMap, RedBlackTreeMap};
use smol_str::SmolStr;

use crate::model::{
    CaConfig, CaRoots, CheckStatus, ConfigEntry, EntryKey, HealthCheck, NameKey, Node,
    ServiceInstance, ServiceKind,
};
use crate::store::backend::{AnyRow, Image, OpaqueState, RowKey};
use crate::store::key::{CLASSES, CheckKey, InstanceKey, Key, NameSet, PeeredName};
use crate::store::row::Row;

/// An ordered persistent map.
pub(super) type Tree<K, V> = RedBlackTreeMap<K, V, ArcTK>;
/// An unordered persistent map; never iterated.
pub(super) type Map<K, V> = HashTrieMap<K, V, ArcTK, foldhash::quality::RandomState>;

/// Everything that is stored at one store index.
#[derive(Clone, Default)]
pub(super) struct Tables {
    /// Store index of the last commit; 0 if there was none.
    pub index: u64,
    /// No key's index is lower: the store index of the last restore (store.md 2.3, "never goes backwards").
    pub floor: u64,

    pub nodes: Tree<PeeredName, Row<Node>>,
    /// Nodes by peer and UUID.
    pub node_ids: Map<PeeredName, PeeredName>,

    pub instances: Tree<InstanceKey, Row<ServiceInstance>>,
    pub by_service: Tree<(PeeredName, InstanceKey), ()>,
    pub by_target: Tree<(PeeredName, InstanceKey), ()>,
    pub by_kind: Tree<(NameKey, ServiceKind, InstanceKey), ()>,
    /// How many rows put a name, in this spelling, into a set.
    pub names: Tree<(NameSet, NameKey, SmolStr), u32>,
    /// How many local instances of a service have a tag.
    pub tags: Tree<(NameKey, SmolStr), u32>,

    pub checks: Tree<CheckKey, Row<HealthCheck>>,
    /// Which instance (or empty) a node's check is of.
    pub check_owners: Map<(PeeredName, NameKey), NameKey>,
    pub checks_by_state: Tree<(CheckStatus, CheckKey), ()>,

    pub config: Tree<EntryKey, Row<ConfigEntry>>,
    /// Service -> entries that name it.
    pub links: Tree<(NameKey, EntryKey), ()>,
    /// Source -> destinations whose intentions name it.
    pub sources: Tree<(PeeredName, NameKey), ()>,

    pub ca_roots: Option<Row<CaRoots>>,
    pub ca_config: Option<Row<CaConfig>>,
    /// Opaque states of other parts, by name.
    pub states: Tree<SmolStr, Row<OpaqueState>>,

    /// Store index of the last change of each key that something is stored under.
    pub key_indexes: Map<Key, u64>,
    /// Per class of keys, the store index at which one last became empty.
    pub extinct: [u64; CLASSES],
}

impl Tables {
    /// Store index of a key's last change; see [`crate::store::StoreSnapshot::key_index`].
    pub fn key_index(&self, key: &Key) -> u64 {
        let own = self.key_indexes.get(key).copied();
        let index = match (own, key.class()) {
            (Some(index), _) => index,
            (None, Some(class)) => self.extinct.get(class).copied().unwrap_or(0),
            (None, None) => 0,
        };
        index.max(self.floor)
    }

    /// Notes that a key changed at the current index. A key that nothing is stored under any more is forgotten, and its
    /// class remembers when.
    pub fn stamp(&mut self, key: &Key) {
        match key.class() {
            Some(class) if !self.is_used(key) => {
                self.key_indexes.remove_mut(key);
                if let Some(index) = self.extinct.get_mut(class) {
                    *index = self.index;
                }
            }
            _ => self.key_indexes.insert_mut(key.clone(), self.index),
        }
    }

    /// Whether something is stored under a key.
    pub fn is_used(&self, key: &Key) -> bool {
        match key {
            Key::Node(name) => self.nodes.contains_key(name),
            Key::NodeServices(name) => self.instances_on(name).next().is_some(),
            Key::NodeChecks(name) => self.checks_on(name).next().is_some(),
            Key::Instance(key) => self.instances.contains_key(key),
            Key::Service(name) => instances_under(&self.by_service, name).next().is_some(),
            Key::ConnectTarget(name) => instances_under(&self.by_target, name).next().is_some(),
            Key::Config(key) => self.config.contains_key(key),
            Key::Links(name) => self.links_to(name).next().is_some(),
            Key::IntentionSource(source) => self.destinations_of(source).next().is_some(),
            Key::Kind { peer, kind } => self.of_kind(peer, *kind).next().is_some(),
            Key::NodeList
            | Key::Names(_)
            | Key::ServiceTags
            | Key::AllChecks
            | Key::ChecksInState(_)
            | Key::ConfigKind(_)
            | Key::CaRoots
            | Key::CaConfig
            | Key::State(_) => true,
        }
    }

    /// A row of any table.
    pub fn row(&self, key: &RowKey) -> Option<AnyRow> {
        Some(match key {
            RowKey::Node(key) => AnyRow::Node(self.nodes.get(key)?.clone()),
            RowKey::Service(key) => AnyRow::Service {
                node: key.node.clone(),
                row: self.instances.get(key)?.clone(),
            },
            RowKey::Check(key) => AnyRow::Check(self.checks.get(key)?.clone()),
            RowKey::Config(key) => AnyRow::Config(self.config.get(key)?.clone()),
            RowKey::CaRoots => AnyRow::CaRoots(self.ca_roots.clone()?),
            RowKey::CaConfig => AnyRow::CaConfig(self.ca_config.clone()?),
            RowKey::State(name) => AnyRow::State {
                name: name.clone(),
                row: self.states.get(name)?.clone(),
            },
        })
    }

    /// All rows.
    pub fn image(&self) -> Image {
        let nodes = self.nodes.values().cloned().map(AnyRow::Node);
        let instances = self.instances.iter().map(|(key, row)| AnyRow::Service {
            node: key.node.clone(),
            row: row.clone(),
        });
        let checks = self.checks.values().cloned().map(AnyRow::Check);
        let config = self.config.values().cloned().map(AnyRow::Config);
        let roots = self.ca_roots.clone().map(AnyRow::CaRoots);
        let ca_config = self.ca_config.clone().map(AnyRow::CaConfig);
        let states = self.states.iter().map(|(name, row)| AnyRow::State {
            name: name.clone(),
            row: row.clone(),
        });
        let records = nodes.chain(instances).chain(checks).chain(config);
        let settings = roots.into_iter().chain(ca_config).chain(states);
        Image {
            index: self.index,
            rows: records.chain(settings).collect(),
        }
    }

    /// The instances on a node, by id.
    pub fn instances_on(
        &self,
        node: &PeeredName,
    ) -> impl Iterator<Item = (&InstanceKey, &Row<ServiceInstance>)> {
        scan(
            &self.instances,
            InstanceKey::first_of(node.clone())..,
            move |key| key.node == *node,
        )
    }

    /// All checks on a node: its own, then those of its instances.
    pub fn checks_on(
        &self,
        node: &PeeredName,
    ) -> impl Iterator<Item = (&CheckKey, &Row<HealthCheck>)> {
        let first = CheckKey::first_of(node.clone(), NameKey::new(""));
        scan(&self.checks, first.., move |key| key.node == *node)
    }

    /// The checks of an instance, or of a node itself (empty id).
    pub fn checks_of(
        &self,
        node: &PeeredName,
        service_id: &NameKey,
    ) -> impl Iterator<Item = (&CheckKey, &Row<HealthCheck>)> {
        let first = CheckKey::first_of(node.clone(), service_id.clone());
        scan(&self.checks, first.., move |key| {
            key.node == *node && key.service_id == *service_id
        })
    }

    /// The instances of a kind, by node and id.
    pub fn of_kind(&self, peer: &NameKey, kind: ServiceKind) -> impl Iterator<Item = &InstanceKey> {
        let first = InstanceKey::first_of(PeeredName::local(""));
        scan(
            &self.by_kind,
            (peer.clone(), kind, first)..,
            move |(under, of, _)| under == peer && *of == kind,
        )
        .map(|((_, _, key), ())| key)
    }

    /// How a name in a set is shown: in the least of its spellings, so that it doesn't depend on who came first.
    pub fn spelling(&self, set: NameSet, name: &NameKey) -> Option<&SmolStr> {
        let first = (set, name.clone(), SmolStr::default());
        scan(&self.names, first.., |(of, key, _)| {
            *of == set && key == name
        })
        .map(|((_, _, spelling), _)| spelling)
        .next()
    }

    /// The entries that name a service.
    pub fn links_to(&self, name: &NameKey) -> impl Iterator<Item = &EntryKey> {
        let first = EntryKey {
            kind: crate::model::EntryKind::ALL
                .into_iter()
                .min()
                .unwrap_or_default(),
            name: NameKey::new(""),
        };
        scan(&self.links, (name.clone(), first).., move |(to, _)| {
            to == name
        })
        .map(|((_, entry), ())| entry)
    }

    /// The destinations whose intentions name a source.
    pub fn destinations_of(&self, source: &PeeredName) -> impl Iterator<Item = &NameKey> {
        scan(
            &self.sources,
            (source.clone(), NameKey::new(""))..,
            move |(from, _)| from == source,
        )
        .map(|((_, destination), ())| destination)
    }
}

/// The instances that an index by service name or target has under a name, by node and id.
pub(super) fn instances_under<'a>(
    index: &'a Tree<(PeeredName, InstanceKey), ()>,
    name: &PeeredName,
) -> impl Iterator<Item = &'a InstanceKey> {
    let first = InstanceKey::first_of(PeeredName::new("", ""));
    let wanted = name.clone();
    scan(index, (name.clone(), first).., move |(under, _)| {
        *under == wanted
    })
    .map(|((_, instance), ())| instance)
}

/// The rows from a key on, as long as their keys belong.
pub(super) fn scan<K: Ord, V>(
    tree: &Tree<K, V>,
    from: RangeFrom<K>,
    belongs: impl Fn(&K) -> bool,
) -> impl Iterator<Item = (&K, &V)> {
    tree.range(from).take_while(move |(key, _)| belongs(key))
}

/// Adds one to a counted set; whether the member is new.
pub(super) fn count_up<K: Ord + Clone>(set: &mut Tree<K, u32>, member: K) -> bool {
    if let Some(count) = set.get_mut(&member) {
        *count += 1;
        return false;
    }
    set.insert_mut(member, 1);
    true
}

/// Takes one from a counted set; whether the member is gone.
pub(super) fn count_down<K: Ord + Clone>(set: &mut Tree<K, u32>, member: &K) -> bool {
    match set.get_mut(member) {
        Some(count) if *count > 1 => {
            *count -= 1;
            false
        }
        Some(_) => set.remove_mut(member),
        None => false,
    }
}
