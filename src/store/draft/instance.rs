//! Service instances in a draft (store.md 1.2), and what they are indexed by.

use std::collections::BTreeSet;

use smol_str::SmolStr;

use super::{Draft, KeySet};
use crate::model::{NameKey, ServiceInstance};
use crate::store::backend::RowKey;
use crate::store::key::{CheckKey, InstanceKey, Key, NameSet, PeeredName};
use crate::store::row::Row;
use crate::store::tables::{count_down, count_up};

impl Draft {
    /// Writes an instance on an existing node (store.md 1.2).
    pub(in crate::store) fn put_instance(
        &mut self,
        node: &PeeredName,
        mut service: ServiceInstance,
    ) -> Result<(), String> {
        if service.service.is_empty() {
            return Err("a service needs a name; give it in Service".to_owned());
        }
        if service.id.is_empty() {
            service.id.clone_from(&service.service);
        }
        take_peer(&mut service.peer_name, node)?;
        service.weights = service.weights.or_default();
        let key = InstanceKey::new(node, &service.id);
        let before = self.tables.instances.get(&key);
        if before.is_some_and(|row| *row.value == service) {
            return Ok(());
        }
        let row = Row::next(service, before, self.tables.index);
        self.store_instance(key, row);
        Ok(())
    }

    pub(super) fn store_instance(&mut self, key: InstanceKey, row: Row<ServiceInstance>) {
        let before = self.tables.instances.get(&key).cloned();
        // Added before the old is taken away, so that what both have doesn't look changed.
        self.index_instance(&key, &row);
        if let Some(before) = &before {
            self.unindex_instance(&key, before, Some(&row));
        }
        let labels_changed = before.as_ref().is_some_and(|old| {
            old.id != row.id || old.service != row.service || old.tags != row.tags
        });
        self.tables.instances.insert_mut(key.clone(), row);
        self.instance_changed(&key);
        if labels_changed {
            self.refresh_checks(&key.node, Some(&key.id));
        }
    }

    /// Removes an instance with its checks.
    pub(in crate::store) fn remove_instance(&mut self, key: &InstanceKey) {
        let Some(row) = self.tables.instances.get(key).cloned() else {
            return;
        };
        let checks: Vec<CheckKey> = self
            .tables
            .checks_of(&key.node, &key.id)
            .map(|(k, _)| k.clone())
            .collect();
        for check in &checks {
            self.drop_check(check);
        }
        self.unindex_instance(key, &row, None);
        self.tables.instances.remove_mut(key);
        self.instance_changed(key);
    }

    pub(super) fn instance_changed(&mut self, key: &InstanceKey) {
        self.change(Key::Instance(key.clone()));
        self.change(Key::NodeServices(key.node.clone()));
        self.touch(RowKey::Service(key.clone()));
    }

    pub(super) fn index_instance(&mut self, key: &InstanceKey, row: &Row<ServiceInstance>) {
        roll_up(&mut self.changed, key, row);
        let peer = key.node.peer.clone();
        let tables = &mut self.tables;
        tables
            .by_service
            .insert_mut((service_of(key, row), key.clone()), ());
        if let Some(target) = target_of(key, row) {
            tables.by_target.insert_mut((target, key.clone()), ());
        }
        tables.by_kind.insert_mut((peer, row.kind, key.clone()), ());
        for (set, name) in memberships(key, row) {
            self.join(set, name);
        }
        for tag in labels(key, row) {
            if count_up(&mut self.tables.tags, tag) {
                self.change(Key::ServiceTags);
            }
        }
    }

    /// Takes an instance out of the indexes, except where `after`, already indexed, has the same place.
    pub(super) fn unindex_instance(
        &mut self,
        key: &InstanceKey,
        row: &Row<ServiceInstance>,
        after: Option<&Row<ServiceInstance>>,
    ) {
        roll_up(&mut self.changed, key, row);
        let tables = &mut self.tables;
        let service = service_of(key, row);
        if after.is_none_or(|after| service_of(key, after) != service) {
            tables.by_service.remove_mut(&(service, key.clone()));
        }
        if let Some(target) = target_of(key, row)
            && after.is_none_or(|after| target_of(key, after).as_ref() != Some(&target))
        {
            tables.by_target.remove_mut(&(target, key.clone()));
        }
        if after.is_none_or(|after| after.kind != row.kind) {
            let peer = key.node.peer.clone();
            tables.by_kind.remove_mut(&(peer, row.kind, key.clone()));
        }
        for (set, name) in memberships(key, row) {
            self.leave(set, name);
        }
        for tag in labels(key, row) {
            if count_down(&mut self.tables.tags, &tag) {
                self.change(Key::ServiceTags);
            }
        }
    }

    /// Counts a row that puts a name into a set. The set changes if this is now the spelling to show.
    pub(in crate::store) fn join(&mut self, set: NameSet, name: &str) {
        let member = (set, NameKey::new(name), SmolStr::from(name));
        if count_up(&mut self.tables.names, member.clone())
            && self.tables.spelling(set, &member.1) == Some(&member.2)
        {
            self.change(Key::Names(set));
        }
    }

    /// Takes back a [`Self::join`]. The set changes if this was the spelling to show.
    pub(in crate::store) fn leave(&mut self, set: NameSet, name: &str) {
        let member = (set, NameKey::new(name), SmolStr::from(name));
        if count_down(&mut self.tables.names, &member)
            && self
                .tables
                .spelling(set, &member.1)
                .is_none_or(|next| member.2 < *next)
        {
            self.change(Key::Names(set));
        }
    }
}

/// Sets the peer of a record on a node to the node's.
pub(in crate::store) fn take_peer(peer: &mut String, node: &PeeredName) -> Result<(), String> {
    let own = NameKey::new(peer);
    if peer.is_empty() {
        node.peer.as_str().clone_into(peer);
    } else if own != node.peer {
        return Err(format!(
            "PeerName {peer:?} differs from the node's, {:?}; a node's records are all of one peer",
            node.peer.as_str()
        ));
    }
    Ok(())
}

/// Notes the keys that show an instance (store.md 2.2).
pub(super) fn roll_up(changed: &mut KeySet, key: &InstanceKey, row: &ServiceInstance) {
    changed.insert(Key::Service(service_of(key, row)));
    if let Some(target) = target_of(key, row) {
        changed.insert(Key::ConnectTarget(target));
    }
    changed.insert(Key::Kind {
        peer: key.node.peer.clone(),
        kind: row.kind,
    });
}

fn service_of(key: &InstanceKey, row: &ServiceInstance) -> PeeredName {
    PeeredName {
        peer: key.node.peer.clone(),
        name: NameKey::new(&row.service),
    }
}

fn target_of(key: &InstanceKey, row: &ServiceInstance) -> Option<PeeredName> {
    target_name(row).map(|target| PeeredName {
        peer: key.node.peer.clone(),
        name: NameKey::new(target),
    })
}

fn target_name(row: &ServiceInstance) -> Option<&str> {
    row.connect_target().filter(|target| !target.is_empty())
}

/// The sets of local names that an instance puts names into.
fn memberships<'a>(
    key: &InstanceKey,
    row: &'a ServiceInstance,
) -> impl Iterator<Item = (NameSet, &'a str)> {
    let local = key.node.is_local();
    [
        Some((NameSet::All, row.service.as_str())),
        Some((NameSet::Kind(row.kind), row.service.as_str())),
        target_name(row).map(|target| (NameSet::ConnectEnabled, target)),
    ]
    .into_iter()
    .flatten()
    .filter(move |_| local)
}

/// The tags that a local instance has, each once.
fn labels(key: &InstanceKey, row: &ServiceInstance) -> BTreeSet<(NameKey, SmolStr)> {
    if !key.node.is_local() {
        return BTreeSet::new();
    }
    let name = NameKey::new(&row.service);
    row.tags
        .iter()
        .map(|tag| (name.clone(), SmolStr::from(tag)))
        .collect()
}
