//! Every read method as a query, and the model's answers, computed from all rows.

use std::collections::{BTreeMap, BTreeSet};

use super::super::*;
use super::model::{CheckId, Model, low};
use super::{IDS, KINDS, NAMES, NODES, PEERS, STATES};
use crate::model::Intention;
use crate::store::{InstanceRow, Key, NameSet, PeeredName, Row};

#[derive(Debug, Clone)]
pub(super) enum Query {
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

pub(super) fn all_queries() -> Vec<Query> {
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
    pub(super) fn ask(&self, reader: &Reader<'_>) -> String {
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
    pub(super) fn key(&self) -> Option<Key> {
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
    pub(super) fn ask(&self, query: &Query) -> String {
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
    pub(super) fn checks_where(
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

    pub(super) fn instances_where(&self, fits: impl Fn(&str, &ServiceInstance) -> bool) -> String {
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

    pub(super) fn names(&self, set: NameSet) -> Vec<String> {
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

    pub(super) fn intentions(&self, destination: &str) -> Vec<Intention> {
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
