//! The naive model: plain maps, written anew row by row.

use std::collections::BTreeMap;

use super::super::*;
use crate::model::Weights;
use crate::store::Row;

type Id = (String, String);
pub(super) type CheckId = (String, String, String);

#[derive(Clone, Default)]
pub(super) struct Model {
    index: u64,
    pub(super) nodes: BTreeMap<Id, Row<Node>>,
    /// By peer, node and id.
    pub(super) instances: BTreeMap<CheckId, Row<ServiceInstance>>,
    /// By peer, node and check id.
    pub(super) checks: BTreeMap<CheckId, Row<HealthCheck>>,
    pub(super) config: BTreeMap<(EntryKind, String), Row<ConfigEntry>>,
}

pub(super) fn low(text: &str) -> String {
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

pub(super) enum Outcome {
    Refused,
    Stale,
    Applied { changed: bool },
}

impl Model {
    pub(super) fn apply(&mut self, ops: &[Op]) -> Outcome {
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

    pub(super) fn op(&mut self, op: &Op) -> Result<Option<bool>, ()> {
        let index = self.index;
        let mut changed = false;
        match op {
            Op::Register(register) => {
                let Register {
                    node,
                    service,
                    check: _,
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

    pub(super) fn matches(&self, key: &(EntryKind, String), cas: Option<u64>) -> bool {
        cas.is_none_or(|cas| self.config.get(key).map_or(0, |row| row.modify_index) == cas)
    }

    pub(super) fn put_node(&mut self, node: &Node) -> Result<bool, ()> {
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

    pub(super) fn remove_node(&mut self, id: &Id) -> bool {
        self.instances
            .retain(|of, _| (&of.0, &of.1) != (&id.0, &id.1));
        self.checks.retain(|of, _| (&of.0, &of.1) != (&id.0, &id.1));
        self.nodes.remove(id).is_some()
    }

    pub(super) fn put_check(&mut self, mut check: HealthCheck) -> Result<bool, ()> {
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

    pub(super) fn fill(&self, check: &mut HealthCheck) {
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
