//! Brings the local state into the catalog (engine.md 4.1).
//!
//! A pass compares what the local state wants with what the store has under the agent's node, and writes the differences
//! in one transaction. Should the store refuse that, each record is written by itself, so that a bad one concerns only
//! itself (FC-013); what was refused is tried again with the next pass. Only what the local state has written is ever
//! removed: services that others registered under the same node are left alone.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::model::{HealthCheck, NameKey, Node, ServiceInstance};
use crate::store::{Op, Reader, Register, Row, Store, StoreError, Transaction};

use super::local_records::{
    RestoreError, encode_node_checks, encode_service, node_state, read, service_state,
};
use super::local_tables::{LocalCheck, LocalEntry, LocalTables};

/// Writes the local state into the store.
pub(super) struct StoreSync {
    store: Arc<Store>,
    node: Node,
    node_key: NameKey,
    /// The services that are in the catalog because of the local state.
    written: BTreeMap<NameKey, Written>,
    written_node_checks: BTreeSet<NameKey>,
    /// Services that were written under another node, whose name the agent had before.
    left_behind: BTreeSet<(NameKey, NameKey)>,
}

#[derive(Default)]
struct Written {
    /// What was written last; unknown after a restart.
    entry: Option<LocalEntry>,
    checks: BTreeSet<NameKey>,
}

/// What a pass came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    /// The store index that holds the local state.
    pub store_index: u64,
    /// What couldn't be written, and why.
    pub problems: Vec<String>,
    /// Why nothing could be kept: the store's back end failed.
    pub unkept: Option<String>,
}

/// Writes that belong together.
struct Job {
    target: Target,
    ops: Vec<Op>,
}

enum Target {
    Node,
    Service(NameKey),
    Gone(NameKey),
    LeftBehind(NameKey, NameKey),
}

type CheckRows<'a> = HashMap<NameKey, &'a Row<HealthCheck>, foldhash::fast::RandomState>;

impl StoreSync {
    /// Prepares to write the local state of an agent under a node. What earlier runs of the agent have written is known
    /// from the store.
    pub fn new(store: Arc<Store>, node: Node) -> Result<Self, RestoreError> {
        let node_key = NameKey::new(&node.node);
        let kept = read(&store.snapshot())?;
        let mut sync = Self {
            store,
            node,
            node_key,
            written: BTreeMap::new(),
            written_node_checks: BTreeSet::new(),
            left_behind: BTreeSet::new(),
        };
        for (node, id, kept) in kept.services {
            if node == sync.node_key {
                let checks = kept.checks.iter().map(|c| NameKey::new(&c.check.check_id));
                let written = Written {
                    entry: None,
                    checks: checks.collect(),
                };
                sync.written.insert(id, written);
            } else {
                sync.left_behind.insert((node, id));
            }
        }
        for (node, checks) in kept.node_checks {
            if node == sync.node_key {
                let ids = checks.iter().map(|c| NameKey::new(&c.check.check_id));
                sync.written_node_checks.extend(ids);
            }
        }
        Ok(sync)
    }

    /// The agent's node.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Makes the catalog hold the local state.
    pub fn sync(&mut self, tables: &LocalTables) -> Outcome {
        let jobs = self.jobs(tables);
        if jobs.is_empty() {
            return Outcome {
                store_index: self.store.snapshot().index(),
                ..Outcome::default()
            };
        }
        let (targets, ops): (Vec<_>, Vec<_>) = jobs.into_iter().map(|j| (j.target, j.ops)).unzip();
        match self.apply(ops.concat()) {
            Ok(store_index) => {
                for target in targets {
                    self.mark(target, tables);
                }
                Outcome {
                    store_index,
                    ..Outcome::default()
                }
            }
            Err(StoreError::Backend(error)) => Outcome {
                store_index: self.store.snapshot().index(),
                problems: vec![format!("the local state can't be written: {error}")],
                unkept: Some(error.to_string()),
            },
            Err(_) => self.sync_singly(tables),
        }
    }

    fn sync_singly(&mut self, tables: &LocalTables) -> Outcome {
        let mut problems = Vec::new();
        let mut unkept = None;
        for Job { target, ops } in self.jobs(tables) {
            match self.apply(ops) {
                Ok(_) => self.mark(target, tables),
                Err(error) => {
                    problems.push(format!("{}: {error}", self.name_of(&target)));
                    if let StoreError::Backend(error) = error {
                        unkept = Some(error.to_string());
                    }
                }
            }
        }
        Outcome {
            store_index: self.store.snapshot().index(),
            problems,
            unkept,
        }
    }

    fn apply(&self, ops: Vec<Op>) -> Result<u64, StoreError> {
        Ok(self.store.apply(Transaction { ops })?.index)
    }

    fn name_of(&self, target: &Target) -> String {
        match target {
            Target::Node => format!("node {}", self.node.node),
            Target::Service(id) | Target::Gone(id) => format!("{}/{id}", self.node.node),
            Target::LeftBehind(node, id) => format!("{node}/{id}"),
        }
    }

    /// Notes that writes have taken effect.
    fn mark(&mut self, target: Target, tables: &LocalTables) {
        match target {
            Target::Node => {
                self.written_node_checks = tables.node_checks().map(|(k, _)| k.clone()).collect();
            }
            Target::Service(id) => {
                if let Some(entry) = tables.service(&id) {
                    let written = Written {
                        checks: entry.checks.keys().cloned().collect(),
                        entry: Some(entry.clone()),
                    };
                    self.written.insert(id, written);
                }
            }
            Target::Gone(id) => {
                self.written.remove(&id);
            }
            Target::LeftBehind(node, id) => {
                self.left_behind.remove(&(node, id));
            }
        }
    }

    /// The writes that make the catalog hold the local state, the node first.
    fn jobs(&self, tables: &LocalTables) -> Vec<Job> {
        let snapshot = self.store.snapshot();
        let reader = snapshot.reader();
        let rows: CheckRows<'_> = reader
            .node_checks(&self.node.node)
            .into_iter()
            .map(|row| (NameKey::new(&row.check_id), row))
            .collect();
        let mut jobs = Vec::new();
        let mut push = |target, ops: Vec<Op>| {
            if !ops.is_empty() {
                jobs.push(Job { target, ops });
            }
        };
        push(Target::Node, self.node_ops(tables, &reader, &rows));
        for (id, entry) in tables.services() {
            let ops = self.service_ops(id, entry, tables, &reader, &rows);
            push(Target::Service(id.clone()), ops);
        }
        for id in self.written.keys() {
            if tables.service(id).is_none() {
                push(Target::Gone(id.clone()), gone_ops(&self.node_key, id));
            }
        }
        for (node, id) in &self.left_behind {
            let target = Target::LeftBehind(node.clone(), id.clone());
            push(target, gone_ops(node, id));
        }
        jobs
    }

    fn node_ops(&self, tables: &LocalTables, reader: &Reader<'_>, rows: &CheckRows<'_>) -> Vec<Op> {
        let mut ops = Vec::new();
        let same = reader
            .node(&self.node.node)
            .is_some_and(|row| **row == self.node);
        let checks = differing(tables.node_checks().map(|(_, c)| c), rows);
        if !same || !checks.is_empty() {
            ops.push(Op::Register(Box::new(Register {
                node: self.node.clone(),
                service: None,
                checks,
                ..Register::default()
            })));
        }
        self.remove_checks(&self.written_node_checks, tables, &mut ops);
        let name = node_state(&self.node_key);
        let state = encode_node_checks(tables.node_checks().map(|(_, c)| c));
        if reader.state(&name).map(|row| &**row) != state.as_ref() {
            ops.push(Op::SetState { name, state });
        }
        ops
    }

    fn service_ops(
        &self,
        id: &NameKey,
        entry: &LocalEntry,
        tables: &LocalTables,
        reader: &Reader<'_>,
        rows: &CheckRows<'_>,
    ) -> Vec<Op> {
        let mut ops = Vec::new();
        let row = reader.instance(&self.node.node, id.as_str());
        let service = as_written(entry, row);
        let checks = differing(entry.checks.values(), rows);
        if row.is_some_and(|row| **row == *service) {
            ops.extend(checks.into_iter().map(|c| Op::SetCheck(Box::new(c))));
        } else {
            ops.push(Op::Register(Box::new(Register {
                node: Node {
                    node: self.node.node.clone(),
                    ..Node::default()
                },
                service: Some(service.into_owned()),
                checks,
                skip_node_update: true,
                ..Register::default()
            })));
        }
        let written = self.written.get(id);
        if let Some(written) = written {
            self.remove_checks(&written.checks, tables, &mut ops);
        }
        if written.and_then(|w| w.entry.as_ref()) != Some(entry) {
            ops.push(Op::SetState {
                name: service_state(&self.node_key, id),
                state: Some(encode_service(entry)),
            });
        }
        ops
    }

    /// Removes checks that were written and are in the local state no more.
    fn remove_checks(&self, written: &BTreeSet<NameKey>, tables: &LocalTables, ops: &mut Vec<Op>) {
        let gone = written.iter().filter(|id| tables.check(id).is_none());
        ops.extend(gone.map(|id| Op::DeregisterCheck {
            node: (&self.node_key).into(),
            check_id: id.clone(),
        }));
    }
}

fn gone_ops(node: &NameKey, id: &NameKey) -> Vec<Op> {
    vec![
        Op::DeregisterService {
            node: node.into(),
            id: id.clone(),
        },
        Op::SetState {
            name: service_state(node, id),
            state: None,
        },
    ]
}

/// The instance as the catalog is to hold it: with the catalog's own tags where those may be changed there.
fn as_written<'a>(
    entry: &'a LocalEntry,
    row: Option<&Row<ServiceInstance>>,
) -> std::borrow::Cow<'a, ServiceInstance> {
    match row {
        Some(row) if entry.service.enable_tag_override && row.tags != entry.service.tags => {
            std::borrow::Cow::Owned(ServiceInstance {
                tags: row.tags.clone(),
                ..(*entry.service).clone()
            })
        }
        _ => std::borrow::Cow::Borrowed(&entry.service),
    }
}

/// The checks that the catalog doesn't have so.
fn differing<'a>(
    checks: impl Iterator<Item = &'a LocalCheck>,
    rows: &CheckRows<'_>,
) -> Vec<HealthCheck> {
    checks
        .filter(|c| {
            let row = rows.get(&NameKey::new(&c.check.check_id));
            row.is_none_or(|row| ***row != *c.check)
        })
        .map(|c| (*c.check).clone())
        .collect()
}
