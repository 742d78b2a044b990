//! Random histories against a naive model, which keeps plain maps and computes every answer from all rows.
//!
//! After each transaction:
//! - every query answers what the model says, row indexes included;
//! - the store index rises by one if the model changed, else not at all;
//! - **soundness**: a query whose answer changed has a changed key among those that it had read;
//! - **precision**: for a single write, each changed key is one whose query's answer changed;
//! - the index of a query is that of the commit if a key of it changed, and never goes back.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::model::{Intention, ServiceSplit, ServiceSplitter, Weights};
use crate::store::{InstanceRow, Key, NameSet, PeeredName, Row};

const PEERS: [&str; 2] = ["", "p"];
const NODES: [&str; 3] = ["n1", "N2", "n3"];
const NAMES: [&str; 3] = ["a", "b", "C"];
const IDS: [&str; 4] = ["a", "b", "C", "x"];
const STATES: [CheckStatus; 3] = [
    CheckStatus::Passing,
    CheckStatus::Warning,
    CheckStatus::Critical,
];
const KINDS: [EntryKind; 3] = [
    EntryKind::ServiceDefaults,
    EntryKind::ServiceSplitter,
    EntryKind::ServiceIntentions,
];

// --- The model.

type Id = (String, String);
type CheckId = (String, String, String);

#[derive(Clone, Default)]
struct Model {
    index: u64,
    nodes: BTreeMap<Id, Row<Node>>,
    /// By peer, node and id.
    instances: BTreeMap<CheckId, Row<ServiceInstance>>,
    /// By peer, node and check id.
    checks: BTreeMap<CheckId, Row<HealthCheck>>,
    config: BTreeMap<(EntryKind, String), Row<ConfigEntry>>,
}

fn low(text: &str) -> String {
    text.to_lowercase()
}

/// Writes a value unless an equal one is there; whether it did.
fn put<K: Ord, T: PartialEq>(map: &mut BTreeMap<K, Row<T>>, key: K, value: T, index: u64) -> bool {
    let before = map.get(&key);
    if before.is_some_and(|row| *row.value == value) {
        return false;
    }
    let create_index = before.map_or(index, |row| row.create_index);
    let value = triomphe::Arc::new(value);
    map.insert(
        key,
        Row {
            value,
            create_index,
            modify_index: index,
        },
    );
    true
}

enum Outcome {
    Refused,
    Stale,
    Applied { changed: bool },
}

impl Model {
    fn apply(&mut self, ops: &[Op]) -> Outcome {
        let mut next = self.clone();
        next.index += 1;
        let (mut changed, mut stale) = (false, false);
        for op in ops {
            match next.op(op) {
                Err(()) => return Outcome::Refused,
                Ok(None) => stale = true,
                Ok(Some(did)) => changed |= did,
            }
        }
        if stale {
            return Outcome::Stale;
        }
        if changed {
            *self = next;
        }
        Outcome::Applied { changed }
    }

    fn op(&mut self, op: &Op) -> Result<Option<bool>, ()> {
        let index = self.index;
        let mut changed = false;
        match op {
            Op::Register(register) => {
                let Register {
                    node,
                    service,
                    checks,
                    skip_node_update,
                } = &**register;
                let peer = low(&node.peer_name);
                let id = (peer.clone(), low(&node.node));
                if !(*skip_node_update && self.nodes.contains_key(&id)) {
                    changed |= self.put_node(node)?;
                }
                if let Some(service) = service {
                    let mut service = service.clone();
                    service.peer_name = node.peer_name.to_lowercase();
                    service.weights = Weights {
                        passing: 1,
                        warning: 1,
                    };
                    if service.id.is_empty() {
                        service.id = service.service.clone();
                    }
                    let key = (peer.clone(), id.1.clone(), low(&service.id));
                    changed |= put(&mut self.instances, key, service, index);
                }
                for check in checks {
                    let mut check = check.clone();
                    check.node.clone_from(&node.node);
                    check.peer_name.clone_from(&peer);
                    changed |= self.put_check(check)?;
                }
            }
            Op::SetCheck(check) => changed |= self.put_check((**check).clone())?,
            Op::DeregisterNode { node } => {
                changed |= self.remove_node(&(node.peer.to_string(), node.name.to_string()))
            }
            Op::DeregisterService { node, id } => {
                let key = (node.peer.to_string(), node.name.to_string(), id.to_string());
                changed |= self.instances.remove(&key).is_some();
                self.checks.retain(|of, check| {
                    (&of.0, &of.1, &low(&check.service_id)) != (&key.0, &key.1, &key.2)
                });
            }
            Op::DeregisterCheck { node, check_id } => {
                let key = (
                    node.peer.to_string(),
                    node.name.to_string(),
                    check_id.to_string(),
                );
                changed |= self.checks.remove(&key).is_some();
            }
            Op::SetConfig { entry, cas } => {
                let key = (entry.kind(), low(entry.name()));
                if !self.matches(&key, *cas) {
                    return Ok(None);
                }
                changed |= put(&mut self.config, key, (**entry).clone(), index);
            }
            Op::DeleteConfig { key, cas } => {
                let key = (key.kind, key.name.to_string());
                if !self.matches(&key, *cas) {
                    return Ok(None);
                }
                changed |= self.config.remove(&key).is_some();
            }
            _ => unreachable!("not generated"),
        }
        // Checks show their node's and instance's spelling and labels.
        for check in self.checks.clone().into_values() {
            let mut copy = (*check.value).clone();
            self.fill(&mut copy);
            let key = (low(&copy.peer_name), low(&copy.node), low(&copy.check_id));
            changed |= put(&mut self.checks, key, copy, index);
        }
        Ok(Some(changed))
    }

    fn matches(&self, key: &(EntryKind, String), cas: Option<u64>) -> bool {
        cas.is_none_or(|cas| self.config.get(key).map_or(0, |row| row.modify_index) == cas)
    }

    fn put_node(&mut self, node: &Node) -> Result<bool, ()> {
        let key = (low(&node.peer_name), low(&node.node));
        if let Some(before) = self.nodes.get(&key)
            && **before != *node
            && !before.id.is_empty()
            && !node.id.is_empty()
            && before.id != node.id
        {
            let serf = (key.0.clone(), key.1.clone(), "serfhealth".to_owned());
            let alive = self
                .checks
                .get(&serf)
                .is_some_and(|c| c.service_id.is_empty() && c.status != CheckStatus::Critical);
            if alive {
                return Err(());
            }
        }
        if !put(&mut self.nodes, key.clone(), node.clone(), self.index) {
            return Ok(false);
        }
        let twins: Vec<Id> = self
            .nodes
            .iter()
            .filter(|(id, row)| {
                **id != key && id.0 == key.0 && !node.id.is_empty() && row.id == node.id
            })
            .map(|(id, _)| id.clone())
            .collect();
        for twin in twins {
            self.remove_node(&twin);
        }
        Ok(true)
    }

    fn remove_node(&mut self, id: &Id) -> bool {
        self.instances
            .retain(|of, _| (&of.0, &of.1) != (&id.0, &id.1));
        self.checks.retain(|of, _| (&of.0, &of.1) != (&id.0, &id.1));
        self.nodes.remove(id).is_some()
    }

    fn put_check(&mut self, mut check: HealthCheck) -> Result<bool, ()> {
        let key = (
            low(&check.peer_name),
            low(&check.node),
            low(&check.check_id),
        );
        if !self.nodes.contains_key(&(key.0.clone(), key.1.clone())) {
            return Err(());
        }
        let instance = (key.0.clone(), key.1.clone(), low(&check.service_id));
        if !check.service_id.is_empty() && !self.instances.contains_key(&instance) {
            return Err(());
        }
        self.fill(&mut check);
        Ok(put(&mut self.checks, key, check, self.index))
    }

    fn fill(&self, check: &mut HealthCheck) {
        let (peer, node) = (low(&check.peer_name), low(&check.node));
        check
            .node
            .clone_from(&self.nodes[&(peer.clone(), node.clone())].node);
        match self.instances.get(&(peer, node, low(&check.service_id))) {
            Some(instance) => {
                check.service_id.clone_from(&instance.id);
                check.service_name.clone_from(&instance.service);
                check.service_tags.clone_from(&instance.tags);
            }
            None => {
                check.service_name.clear();
                check.service_tags.clear();
            }
        }
    }
}

// --- The queries.

#[derive(Debug, Clone)]
enum Query {
    Nodes,
    Node(PeeredName),
    NodeServices(PeeredName),
    NodeChecks(PeeredName),
    Instance(PeeredName, String),
    Instances(PeeredName),
    Connect(PeeredName),
    Kind(&'static str, ServiceKind),
    Names(NameSet),
    Tags,
    ServiceChecks(PeeredName),
    State(Option<CheckStatus>),
    Config(EntryKind, &'static str),
    ConfigList(EntryKind),
    Links(&'static str),
    Intentions(&'static str),
    Sources(PeeredName),
}

fn all_queries() -> Vec<Query> {
    let mut all = vec![Query::Nodes, Query::Tags, Query::State(None)];
    for peer in PEERS {
        for node in NODES {
            let node = PeeredName::new(peer, node);
            all.extend([
                Query::Node(node.clone()),
                Query::NodeServices(node.clone()),
                Query::NodeChecks(node.clone()),
            ]);
            all.extend(IDS.map(|id| Query::Instance(node.clone(), id.to_owned())));
        }
        for name in NAMES {
            let name = PeeredName::new(peer, name);
            all.extend([
                Query::Instances(name.clone()),
                Query::Connect(name.clone()),
                Query::ServiceChecks(name.clone()),
                Query::Sources(name),
            ]);
        }
        all.extend(
            [ServiceKind::Typical, ServiceKind::ConnectProxy].map(|kind| Query::Kind(peer, kind)),
        );
    }
    all.push(Query::Sources("*".into()));
    all.extend(STATES.map(|state| Query::State(Some(state))));
    let sets = [
        NameSet::All,
        NameSet::ConnectEnabled,
        NameSet::Destination,
        NameSet::Kind(ServiceKind::Typical),
        NameSet::Kind(ServiceKind::ConnectProxy),
    ];
    all.extend(sets.map(Query::Names));
    for name in ["a", "b", "c", "*"] {
        all.extend(KINDS.map(|kind| Query::Config(kind, name)));
        all.extend([Query::Links(name), Query::Intentions(name)]);
    }
    all.extend(KINDS.map(Query::ConfigList));
    all
}

impl Query {
    fn ask(&self, reader: &Reader<'_>) -> String {
        match self {
            Self::Nodes => format!("{:?}", reader.nodes()),
            Self::Node(name) => format!("{:?}", reader.node(name)),
            Self::NodeServices(name) => format!("{:?}", reader.node_services(name)),
            Self::NodeChecks(name) => format!("{:?}", reader.node_checks(name)),
            Self::Instance(node, id) => format!("{:?}", reader.instance(node, id)),
            Self::Instances(name) => format!("{:?}", reader.instances(name)),
            Self::Connect(name) => format!("{:?}", reader.connect_instances(name)),
            Self::Kind(peer, kind) => format!("{:?}", reader.instances_of_kind(peer, *kind)),
            Self::Names(set) => format!("{:?}", reader.names(*set)),
            Self::Tags => format!("{:?}", reader.service_names_with_tags()),
            Self::ServiceChecks(name) => format!("{:?}", reader.service_checks(name)),
            Self::State(state) => format!("{:?}", reader.checks_in_state(*state)),
            Self::Config(kind, name) => format!("{:?}", reader.config(*kind, name)),
            Self::ConfigList(kind) => format!("{:?}", reader.config_list(*kind)),
            Self::Links(name) => format!("{:?}", reader.linked_from(name)),
            Self::Intentions(name) => format!("{:?}", reader.intentions_to(name)),
            Self::Sources(name) => format!("{:?}", reader.intention_destinations(name)),
        }
    }

    /// The one key that the query stands for, if there is one.
    fn key(&self) -> Option<Key> {
        Some(match self.clone() {
            Self::Nodes => Key::NodeList,
            Self::Node(name) => Key::Node(name),
            Self::NodeServices(name) => Key::NodeServices(name),
            Self::NodeChecks(name) => Key::NodeChecks(name),
            Self::Instance(node, id) => Key::Instance(crate::store::InstanceKey::new(node, &id)),
            Self::Instances(name) => Key::Service(name),
            Self::Connect(name) => Key::ConnectTarget(name),
            Self::Kind(peer, kind) => Key::Kind {
                peer: peer.into(),
                kind,
            },
            Self::Names(set) => Key::Names(set),
            Self::Tags => Key::ServiceTags,
            Self::State(None) => Key::AllChecks,
            Self::State(Some(state)) => Key::ChecksInState(state),
            Self::Config(kind, name) => Key::Config(EntryKey::new(kind, name)),
            Self::ConfigList(kind) => Key::ConfigKind(kind),
            Self::Links(name) => Key::Links(name.into()),
            Self::Sources(name) => Key::IntentionSource(name),
            Self::ServiceChecks(_) | Self::Intentions(_) => return None,
        })
    }
}

impl Model {
    fn ask(&self, query: &Query) -> String {
        let id = |name: &PeeredName| (name.peer.to_string(), name.name.to_string());
        let on = |of: &CheckId, node: &PeeredName| {
            (of.0.as_str(), of.1.as_str()) == (node.peer.as_str(), node.name.as_str())
        };
        match query {
            Query::Nodes => {
                let rows: Vec<_> = self
                    .nodes
                    .iter()
                    .filter(|(id, _)| id.0.is_empty())
                    .map(|(_, row)| row)
                    .collect();
                format!("{rows:?}")
            }
            Query::Node(name) => format!("{:?}", self.nodes.get(&id(name))),
            Query::NodeServices(node) => {
                let rows: Vec<_> = self
                    .instances
                    .iter()
                    .filter(|(of, _)| on(of, node))
                    .map(|(_, row)| row)
                    .collect();
                format!("{rows:?}")
            }
            Query::NodeChecks(node) => format!("{:?}", self.checks_where(|of, _| on(of, node))),
            Query::Instance(node, of) => {
                format!(
                    "{:?}",
                    self.instances
                        .get(&(node.peer.to_string(), node.name.to_string(), low(of)))
                )
            }
            Query::Instances(name) => self.instances_where(|peer, row| {
                peer == name.peer.as_str() && low(&row.service) == name.name.as_str()
            }),
            Query::Connect(name) => self.instances_where(|peer, row| {
                peer == name.peer.as_str()
                    && row
                        .connect_target()
                        .is_some_and(|t| low(t) == name.name.as_str())
            }),
            Query::Kind(of, kind) => {
                self.instances_where(|peer, row| peer == *of && row.kind == *kind)
            }
            Query::Names(set) => format!("{:?}", self.names(*set)),
            Query::Tags => {
                let names = self.names(NameSet::All);
                let all: Vec<_> = names
                    .into_iter()
                    .map(|name| {
                        let tags: BTreeSet<_> = self
                            .instances
                            .iter()
                            .filter(|(of, row)| of.0.is_empty() && low(&row.service) == low(&name))
                            .flat_map(|(_, row)| &row.tags)
                            .collect();
                        let tags: Vec<_> = tags.into_iter().collect();
                        (name, tags)
                    })
                    .collect();
                format!("{all:?}")
            }
            Query::ServiceChecks(name) => {
                let wanted = |of: &CheckId, row: &HealthCheck| {
                    let instance = (of.0.clone(), of.1.clone(), low(&row.service_id));
                    of.0 == name.peer.as_str()
                        && self
                            .instances
                            .get(&instance)
                            .is_some_and(|i| low(&i.service) == name.name.as_str())
                };
                format!("{:?}", self.checks_where(wanted))
            }
            Query::State(state) => {
                let wanted = |of: &CheckId, row: &HealthCheck| {
                    of.0.is_empty() && state.is_none_or(|s| s == row.status)
                };
                format!("{:?}", self.checks_where(wanted))
            }
            Query::Config(kind, name) => {
                format!("{:?}", self.config.get(&(*kind, (*name).to_owned())))
            }
            Query::ConfigList(kind) => {
                let rows: Vec<_> = self
                    .config
                    .iter()
                    .filter(|(key, _)| key.0 == *kind)
                    .map(|(_, row)| row)
                    .collect();
                format!("{rows:?}")
            }
            Query::Links(name) => {
                let entries: Vec<_> = self
                    .config
                    .values()
                    .filter(|row| match &*row.value {
                        ConfigEntry::ServiceSplitter(s) => {
                            low(&s.name) != *name
                                && s.splits.iter().any(|split| low(&split.service) == *name)
                        }
                        _ => false,
                    })
                    .map(|row| row.key())
                    .collect();
                format!("{entries:?}")
            }
            Query::Intentions(name) => format!("{:?}", self.intentions(name)),
            Query::Sources(source) => {
                let entries: Vec<_> = self
                    .config
                    .values()
                    .filter(|row| match &*row.value {
                        ConfigEntry::ServiceIntentions(e) => e.sources.iter().any(|s| {
                            s.peer == source.peer.as_str() && low(&s.name) == source.name.as_str()
                        }),
                        _ => false,
                    })
                    .map(|row| row.key().name)
                    .collect();
                format!("{entries:?}")
            }
        }
    }

    /// The checks that fit, by node, instance and id.
    fn checks_where(
        &self,
        fits: impl Fn(&CheckId, &HealthCheck) -> bool,
    ) -> Vec<&Row<HealthCheck>> {
        let mut rows: Vec<_> = self
            .checks
            .iter()
            .filter(|(of, row)| fits(of, row))
            .collect();
        rows.sort_by_key(|(of, row)| {
            (
                of.0.clone(),
                of.1.clone(),
                low(&row.service_id),
                of.2.clone(),
            )
        });
        rows.into_iter().map(|(_, row)| row).collect()
    }

    fn instances_where(&self, fits: impl Fn(&str, &ServiceInstance) -> bool) -> String {
        let rows: Vec<_> = self
            .instances
            .iter()
            .filter(|(of, row)| fits(&of.0, row))
            .map(|(of, service)| InstanceRow {
                node: &self.nodes[&(of.0.clone(), of.1.clone())],
                service,
                checks: self.checks_where(|on, check| {
                    (&on.0, &on.1) == (&of.0, &of.1)
                        && (check.service_id.is_empty() || low(&check.service_id) == of.2)
                }),
            })
            .collect();
        format!("{rows:?}")
    }

    fn names(&self, set: NameSet) -> Vec<String> {
        let mut spellings: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let mut add = |name: &str| {
            spellings
                .entry(low(name))
                .or_default()
                .insert(name.to_owned());
        };
        for (_, row) in self.instances.iter().filter(|(of, _)| of.0.is_empty()) {
            match set {
                NameSet::All => add(&row.service),
                NameSet::Kind(kind) if row.kind == kind => add(&row.service),
                NameSet::ConnectEnabled => row.connect_target().into_iter().for_each(&mut add),
                _ => {}
            }
        }
        for row in self.config.values().filter(|_| set == NameSet::Destination) {
            match &*row.value {
                ConfigEntry::ServiceDefaults(d) if d.destination.is_some() => add(&d.name),
                _ => {}
            }
        }
        spellings
            .into_values()
            .filter_map(|all| all.into_iter().next())
            .collect()
    }

    fn intentions(&self, destination: &str) -> Vec<Intention> {
        let mut all = Vec::new();
        for row in self.config.values() {
            let ConfigEntry::ServiceIntentions(entry) = &*row.value else {
                continue;
            };
            if low(&entry.name) != destination && entry.name != "*" {
                continue;
            }
            for source in &entry.sources {
                all.push(Intention {
                    source_name: source.name.clone(),
                    source_peer: source.peer.clone(),
                    destination_name: entry.name.clone(),
                    source_type: "consul".into(),
                    action: source.action,
                    precedence: match (entry.name.as_str(), source.name.as_str()) {
                        ("*", "*") => 5,
                        ("*", _) => 6,
                        (_, "*") => 8,
                        _ => 9,
                    },
                    ..Intention::default()
                });
            }
        }
        all.sort_by_key(|i| {
            (
                9 - i.precedence,
                i.source_peer.clone(),
                i.source_name.clone(),
            )
        });
        all
    }
}

// --- Histories.

fn spelled(name: &'static str) -> impl Strategy<Value = String> {
    select(vec![name.to_owned(), name.to_uppercase()])
}

fn a_node() -> impl Strategy<Value = Node> {
    let ids = select(vec!["", "", "", "id-1", "id-2"]);
    (
        select(&PEERS[..]),
        select(&NODES[..]).prop_flat_map(spelled),
        0..2u8,
        ids,
    )
        .prop_map(|(peer, name, address, id)| Node {
            peer_name: peer.into(),
            address: format!("10.0.0.{address}"),
            id: id.into(),
            ..node(&name)
        })
}

fn an_instance() -> impl Strategy<Value = ServiceInstance> {
    let tags = proptest::collection::vec(select(vec!["t", "u"]), 0..3);
    (
        select(&NAMES[..]).prop_flat_map(spelled),
        select(vec!["", "x", "X"]),
        1..3u16,
        tags,
        0..4u8,
        select(&NAMES[..]),
    )
        .prop_map(|(name, id, port, tags, kind, target)| {
            let mut instance = if kind == 0 {
                proxy(&name, target)
            } else {
                service(&name, port)
            };
            instance.id = id.into();
            instance.connect.native = kind == 1;
            instance.tags = tags.into_iter().map(str::to_owned).collect();
            instance
        })
}

fn a_check() -> impl Strategy<Value = HealthCheck> {
    let of = select(vec!["", "a", "b", "x"]);
    (
        select(vec!["c", "D", "serfHealth"]),
        of,
        select(&STATES[..]),
        select(vec!["", "slow"]),
    )
        .prop_map(|(id, of, state, output)| HealthCheck {
            output: output.into(),
            ..check(id, of, state)
        })
}

fn an_entry() -> impl Strategy<Value = ConfigEntry> {
    let names = || select(&NAMES[..]);
    let protocols = (
        names().prop_flat_map(spelled),
        select(vec!["http", "tcp"]),
        any::<bool>(),
    )
        .prop_map(|(name, protocol, external)| {
            let mut entry = defaults(&name, protocol);
            if let ConfigEntry::ServiceDefaults(entry) = &mut entry {
                entry.destination = external.then(crate::model::Destination::default);
            }
            entry
        });
    let splits = (
        names(),
        proptest::collection::vec(names().prop_flat_map(spelled), 1..3),
    )
        .prop_map(|(name, to)| {
            let split = |service: String| ServiceSplit {
                weight: 50.0,
                service,
                ..ServiceSplit::default()
            };
            ConfigEntry::ServiceSplitter(ServiceSplitter {
                name: name.into(),
                splits: to.into_iter().map(split).collect(),
                ..ServiceSplitter::default()
            })
        });
    let actions = select(vec![IntentionAction::Allow, IntentionAction::Deny]);
    // Sources of an entry are distinct, as validation has it.
    let sources = proptest::collection::btree_map(
        (select(&PEERS[..]), select(vec!["a", "b", "C", "*"])),
        actions,
        1..3,
    );
    let access = (select(vec!["a", "b", "C", "*"]), sources).prop_map(|(to, from)| {
        let from: Vec<_> = from
            .into_iter()
            .map(|((peer, name), action)| (peer, name, action))
            .collect();
        intentions(to, &from)
    });
    prop_oneof![protocols, splits, access]
}

fn an_op() -> impl Strategy<Value = Op> {
    let place = || {
        (select(&PEERS[..]), select(&NODES[..]))
            .prop_map(|(peer, node)| PeeredName::new(peer, node))
    };
    let cas = || prop_oneof![4 => Just(None), 1 => (0..6u64).prop_map(Some)];
    let entry_key = (select(&KINDS[..]), select(vec!["a", "b", "c", "*"]))
        .prop_map(|(kind, name)| EntryKey::new(kind, name));
    let checks = proptest::collection::vec(a_check(), 0..2);
    prop_oneof![
        8 => (a_node(), proptest::option::of(an_instance()), checks, any::<bool>()).prop_map(|(node, service, checks, skip_node_update)| {
            Op::Register(Box::new(Register { node, service, checks, skip_node_update }))
        }),
        3 => (place(), a_check()).prop_map(|(on, mut check)| {
            check.node = on.name.to_string();
            check.peer_name = on.peer.to_string();
            Op::SetCheck(Box::new(check))
        }),
        1 => place().prop_map(|node| Op::DeregisterNode { node }),
        3 => (place(), select(&IDS[..])).prop_map(|(node, id)| Op::DeregisterService { node, id: id.into() }),
        1 => (place(), select(vec!["c", "d"])).prop_map(|(node, id)| Op::DeregisterCheck { node, check_id: id.into() }),
        5 => (an_entry(), cas()).prop_map(|(entry, cas)| Op::SetConfig { entry: Box::new(entry), cas }),
        2 => (entry_key, cas()).prop_map(|(key, cas)| Op::DeleteConfig { key, cas }),
    ]
}

fn a_history() -> impl Strategy<Value = Vec<Vec<Op>>> {
    let transaction = prop_oneof![
        3 => an_op().prop_map(|op| vec![op]),
        1 => proptest::collection::vec(an_op(), 2..5),
    ];
    proptest::collection::vec(transaction, 1..40)
}

struct Asked {
    query: Query,
    answer: String,
    reads: Reads,
    index: u64,
}

fn ask(snapshot: &StoreSnapshot, query: Query) -> Asked {
    let reader = snapshot.reader();
    let answer = query.ask(&reader);
    let reads = reader.finish();
    let index = snapshot.index_of(&reads);
    Asked {
        query,
        answer,
        reads,
        index,
    }
}

/// Whether a transaction can take something away and bring it back, so that a key changes without its answer.
fn may_undo(ops: &[Op]) -> bool {
    match ops {
        [Op::Register(register)] => !register.node.id.is_empty(),
        [_] => false,
        _ => true,
    }
}

fn run_history(history: Vec<Vec<Op>>) -> Result<(), TestCaseError> {
    let store = new_store();
    let feed = store.changes();
    let mut model = Model::default();
    let mut asked: Vec<Asked> = all_queries()
        .into_iter()
        .map(|query| ask(&store.snapshot(), query))
        .collect();
    for ops in history {
        let may_undo = may_undo(&ops);
        let before = store.snapshot().index();
        let expected = model.apply(&ops);
        let outcome = store.apply(ops.into());
        match (&expected, &outcome) {
            (Outcome::Refused, Err(StoreError::Refused(_))) => {}
            (Outcome::Stale, Ok(applied)) => prop_assert!(!applied.applied() && !applied.changed),
            (Outcome::Applied { changed }, Ok(applied)) => {
                prop_assert!(applied.applied());
                prop_assert_eq!(applied.changed, *changed);
            }
            _ => prop_assert!(false, "{:?}", outcome),
        }
        let snapshot = store.snapshot();
        let changes = feed.take();
        let changed = matches!(expected, Outcome::Applied { changed: true });
        prop_assert_eq!(snapshot.index(), before + u64::from(changed));
        prop_assert_eq!(changes.is_some(), changed);
        let keys = changes.map(|c| c.keys).unwrap_or_default();

        for old in &mut asked {
            let new = ask(&snapshot, old.query.clone());
            prop_assert_eq!(&new.answer, &model.ask(&new.query), "{:?}", new.query);
            let concerned = old
                .reads
                .keys()
                .iter()
                .any(|key| keys.binary_search(key).is_ok());
            prop_assert!(
                concerned || new.answer == old.answer,
                "{:?} changed without its keys",
                new.query
            );
            prop_assert!(new.index >= old.index, "{:?} went back", new.query);
            prop_assert!(
                !concerned || new.index == snapshot.index(),
                "{:?} kept its index",
                new.query
            );
            if let Some(key) = new.query.key()
                && !may_undo
                && keys.binary_search(&key).is_ok()
            {
                prop_assert!(
                    new.answer != old.answer,
                    "{:?} is the same, but its key changed",
                    new.query
                );
            }
            *old = new;
        }
    }
    // A store loaded from the image answers the same, and its indexes hold as much.
    let again = new_store();
    again
        .restore(&store.image())
        .map_err(|e| TestCaseError::fail(e.to_string()))?;
    let (one, two) = (store.snapshot().tables, again.snapshot().tables);
    for old in &asked {
        prop_assert_eq!(
            &ask(&again.snapshot(), old.query.clone()).answer,
            &old.answer
        );
    }
    prop_assert_eq!(&one.names, &two.names);
    prop_assert_eq!(&one.tags, &two.tags);
    prop_assert_eq!(one.node_ids.size(), two.node_ids.size());
    prop_assert_eq!(one.check_owners.size(), two.check_owners.size());
    // No index is kept for a key that nothing is stored under.
    for key in one.key_indexes.keys() {
        prop_assert!(key.class().is_none() || one.is_used(key), "{key:?} is kept");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn histories_agree_with_a_naive_model(history in a_history()) {
        run_history(history)?;
    }
}
