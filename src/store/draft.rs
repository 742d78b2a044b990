//! A transaction in the making: a copy of the tables that its writes are applied to, with the keys and rows that they
//! change.
//!
//! Rows are written by `put_*` and `remove_*`, which compare with what is stored (an equal write changes nothing), keep
//! the indexes in step and note the changed keys with their roll-ups (store.md 2.2):
//!
//! - a node's record or own check changes every instance on it, so its services, targets and kinds;
//! - an instance's record or own check changes its service, target and kind, before and after.

use std::collections::{BTreeSet, HashSet};

use smol_str::SmolStr;

use crate::model::{CheckStatus, HealthCheck, NameKey, Node, ServiceInstance, Weights};
use crate::store::backend::{AnyRow, CommitRecord, RowKey};
use crate::store::key::{CheckKey, InstanceKey, Key, NameSet, PeeredName};
use crate::store::row::Row;
use crate::store::tables::{Tables, count_down, count_up};

/// The check that says whether a node is alive (store.md 1.1, name clash).
const SERF_HEALTH: &str = "serfHealth";

pub(super) struct Draft {
    pub tables: Tables,
    changed: HashSet<Key, foldhash::quality::RandomState>,
    touched: BTreeSet<RowKey>,
}

impl Draft {
    /// A draft of the commit after `tables`.
    pub fn new(tables: &Tables) -> Self {
        let mut tables = tables.clone();
        tables.index += 1;
        Self {
            tables,
            changed: HashSet::default(),
            touched: BTreeSet::new(),
        }
    }

    /// The changed keys, sorted.
    pub fn changed_keys(&self) -> Vec<Key> {
        let mut keys: Vec<Key> = self.changed.iter().cloned().collect();
        keys.sort_unstable();
        keys
    }

    /// Whether nothing was written.
    pub fn is_unchanged(&self) -> bool {
        self.touched.is_empty()
    }

    /// The rows written and removed.
    pub fn record(&self) -> CommitRecord {
        CommitRecord {
            index: self.tables.index,
            rows: self
                .touched
                .iter()
                .map(|key| (key.clone(), self.tables.row(key)))
                .collect(),
        }
    }

    /// The config entries written and removed, sorted.
    pub fn config_entries(&self) -> Vec<crate::model::EntryKey> {
        self.touched
            .iter()
            .filter_map(|key| match key {
                RowKey::Config(key) => Some(key.clone()),
                _ => None,
            })
            .collect()
    }

    /// Notes a changed key.
    pub fn change(&mut self, key: Key) {
        self.changed.insert(key);
    }

    /// Notes a written or removed row.
    pub fn touch(&mut self, key: RowKey) {
        self.touched.insert(key);
    }

    /// Puts a row back as it was stored, with its indexes.
    pub fn load(&mut self, row: &AnyRow) {
        match row {
            AnyRow::Node(row) => self.store_node(row.clone()),
            AnyRow::Service { node, row } => {
                let key = InstanceKey::new(node, &row.id);
                self.store_instance(key, row.clone());
            }
            AnyRow::Check(row) => self.store_check(row.clone()),
            AnyRow::Config(row) => self.store_config(row.clone()),
            AnyRow::CaRoots(row) => self.tables.ca_roots = Some(row.clone()),
            AnyRow::CaConfig(row) => self.tables.ca_config = Some(row.clone()),
            AnyRow::State { name, row } => self.tables.states.insert_mut(name.clone(), row.clone()),
        }
    }
}

// Nodes.
impl Draft {
    /// Writes a node (store.md 1.1).
    pub fn put_node(&mut self, node: Node) -> Result<PeeredName, String> {
        let key = PeeredName::new(&node.peer_name, &node.node);
        if key.name.as_str().is_empty() {
            return Err("a node needs a name; give it in Node".to_owned());
        }
        let before = self.tables.nodes.get(&key).cloned();
        if before.as_ref().is_some_and(|row| *row.value == node) {
            return Ok(key);
        }
        self.refuse_taken_name(&key, before.as_ref(), &node)?;
        if !node.id.is_empty() {
            let id = PeeredName::new(&node.peer_name, &node.id);
            if let Some(other) = self.tables.node_ids.get(&id).cloned()
                && other != key
            {
                // The same machine under a new name: it begins anew.
                self.remove_node(&other);
            }
        }
        let row = Row::next(node, before.as_ref(), self.tables.index);
        self.store_node(row);
        Ok(key)
    }

    /// A living node's name can't be taken by a node with another id.
    fn refuse_taken_name(
        &self,
        key: &PeeredName,
        before: Option<&Row<Node>>,
        node: &Node,
    ) -> Result<(), String> {
        let Some(before) = before else { return Ok(()) };
        if before.id.is_empty() || node.id.is_empty() || before.id.eq_ignore_ascii_case(&node.id) {
            return Ok(());
        }
        let check = CheckKey {
            node: key.clone(),
            service_id: NameKey::new(""),
            check_id: NameKey::new(SERF_HEALTH),
        };
        match self.tables.checks.get(&check) {
            Some(check) if check.status != CheckStatus::Critical => Err(format!(
                "node {:?} exists with ID {} and is alive; use another name, or deregister it first",
                before.node, before.id
            )),
            _ => Ok(()),
        }
    }

    fn store_node(&mut self, row: Row<Node>) {
        let key = PeeredName::new(&row.peer_name, &row.node);
        self.forget_node_id(&key);
        if !row.id.is_empty() {
            let id = PeeredName::new(&row.peer_name, &row.id);
            self.tables.node_ids.insert_mut(id, key.clone());
        }
        let renamed = self
            .tables
            .nodes
            .get(&key)
            .is_some_and(|before| before.node != row.node);
        self.tables.nodes.insert_mut(key.clone(), row);
        self.node_changed(&key);
        if renamed {
            self.refresh_checks(&key, None);
        }
    }

    fn forget_node_id(&mut self, key: &PeeredName) {
        let id = match self.tables.nodes.get(key) {
            Some(row) if !row.id.is_empty() => PeeredName::new(&row.peer_name, &row.id),
            _ => return,
        };
        self.tables.node_ids.remove_mut(&id);
    }

    fn node_changed(&mut self, key: &PeeredName) {
        if key.is_local() {
            self.change(Key::NodeList);
        }
        self.change(Key::Node(key.clone()));
        self.touch(RowKey::Node(key.clone()));
        self.roll_up_node(key);
    }

    /// Removes a node with all its instances and checks.
    pub fn remove_node(&mut self, key: &PeeredName) {
        if !self.tables.nodes.contains_key(key) {
            return;
        }
        let instances: Vec<InstanceKey> = self
            .tables
            .instances_on(key)
            .map(|(k, _)| k.clone())
            .collect();
        for instance in &instances {
            self.remove_instance(instance);
        }
        let checks: Vec<CheckKey> = self.tables.checks_on(key).map(|(k, _)| k.clone()).collect();
        for check in &checks {
            self.drop_check(check);
        }
        self.forget_node_id(key);
        self.tables.nodes.remove_mut(key);
        self.node_changed(key);
    }

    /// Everything that shows a node's record or own checks changed.
    fn roll_up_node(&mut self, node: &PeeredName) {
        let Self {
            tables, changed, ..
        } = self;
        for (key, row) in tables.instances_on(node) {
            roll_up(changed, key, row);
        }
    }
}

// Instances.
impl Draft {
    /// Writes an instance on an existing node (store.md 1.2).
    pub fn put_instance(
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
        if !weights_are_valid(&service.weights) {
            service.weights = Weights {
                passing: 1,
                warning: 1,
            };
        }
        let key = InstanceKey::new(node, &service.id);
        let before = self.tables.instances.get(&key);
        if before.is_some_and(|row| *row.value == service) {
            return Ok(());
        }
        let row = Row::next(service, before, self.tables.index);
        self.store_instance(key, row);
        Ok(())
    }

    fn store_instance(&mut self, key: InstanceKey, row: Row<ServiceInstance>) {
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
    pub fn remove_instance(&mut self, key: &InstanceKey) {
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

    fn instance_changed(&mut self, key: &InstanceKey) {
        self.change(Key::Instance(key.clone()));
        self.change(Key::NodeServices(key.node.clone()));
        self.touch(RowKey::Service(key.clone()));
    }

    fn index_instance(&mut self, key: &InstanceKey, row: &Row<ServiceInstance>) {
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
    fn unindex_instance(
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
    pub fn join(&mut self, set: NameSet, name: &str) {
        let member = (set, NameKey::new(name), SmolStr::from(name));
        if count_up(&mut self.tables.names, member.clone())
            && self.tables.spelling(set, &member.1) == Some(&member.2)
        {
            self.change(Key::Names(set));
        }
    }

    /// Takes back a [`Self::join`]. The set changes if this was the spelling to show.
    pub fn leave(&mut self, set: NameSet, name: &str) {
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

// Checks.
impl Draft {
    /// Writes a check of an existing node or instance (store.md 1.5).
    pub fn put_check(&mut self, mut check: HealthCheck) -> Result<(), String> {
        if check.check_id.is_empty() {
            check.check_id.clone_from(&check.name);
        }
        if check.check_id.is_empty() {
            return Err("a check needs an id; give it in CheckID".to_owned());
        }
        let node = PeeredName::new(&check.peer_name, &check.node);
        if !self.tables.nodes.contains_key(&node) {
            return Err(format!(
                "there is no node {:?}; register it first",
                check.node
            ));
        }
        if !check.service_id.is_empty() {
            let instance = InstanceKey::new(&node, &check.service_id);
            if !self.tables.instances.contains_key(&instance) {
                return Err(format!(
                    "node {:?} has no service {:?}; register it first",
                    check.node, check.service_id
                ));
            }
        }
        self.fill_in(&mut check);
        let key = CheckKey::of(&check);
        let owner = self.check_owner(&node, &key.check_id);
        let before = owner.as_ref().and_then(|key| self.tables.checks.get(key));
        if before.is_some_and(|row| *row.value == check) {
            return Ok(());
        }
        let row = Row::next(check, before, self.tables.index);
        if let Some(old) = owner.filter(|old| *old != key) {
            self.drop_check(&old);
        }
        self.store_check(row);
        Ok(())
    }

    /// Removes a check.
    pub fn remove_check(&mut self, node: &PeeredName, check_id: &NameKey) {
        if let Some(key) = self.check_owner(node, check_id) {
            self.drop_check(&key);
        }
    }

    fn check_owner(&self, node: &PeeredName, check_id: &NameKey) -> Option<CheckKey> {
        let id = (node.clone(), check_id.clone());
        let service_id = self.tables.check_owners.get(&id)?.clone();
        Some(CheckKey {
            node: node.clone(),
            service_id,
            check_id: check_id.clone(),
        })
    }

    /// Gives a check what it copies from its node and instance.
    fn fill_in(&self, check: &mut HealthCheck) {
        let node = PeeredName::new(&check.peer_name, &check.node);
        if let Some(node) = self.tables.nodes.get(&node) {
            check.node.clone_from(&node.node);
        }
        let instance = InstanceKey::new(&node, &check.service_id);
        match self.tables.instances.get(&instance) {
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

    /// Writes anew what the checks of an instance, or all checks on a node, copy from there.
    fn refresh_checks(&mut self, node: &PeeredName, service_id: Option<&NameKey>) {
        let checks: Vec<Row<HealthCheck>> = match service_id {
            Some(id) => self
                .tables
                .checks_of(node, id)
                .map(|c| c.1.clone())
                .collect(),
            None => self.tables.checks_on(node).map(|c| c.1.clone()).collect(),
        };
        for before in checks {
            let mut check = (*before.value).clone();
            self.fill_in(&mut check);
            if check != *before.value {
                self.store_check(Row::next(check, Some(&before), self.tables.index));
            }
        }
    }

    fn store_check(&mut self, row: Row<HealthCheck>) {
        let key = CheckKey::of(&row);
        if let Some(before) = self.tables.checks.get(&key)
            && before.status != row.status
        {
            let old = before.status;
            self.tables.checks_by_state.remove_mut(&(old, key.clone()));
            self.state_changed(&key, old);
        }
        self.state_changed(&key, row.status);
        self.tables
            .checks_by_state
            .insert_mut((row.status, key.clone()), ());
        self.tables.check_owners.insert_mut(
            (key.node.clone(), key.check_id.clone()),
            key.service_id.clone(),
        );
        self.tables.checks.insert_mut(key.clone(), row);
        self.check_changed(&key);
    }

    fn drop_check(&mut self, key: &CheckKey) {
        let Some(status) = self.tables.checks.get(key).map(|row| row.status) else {
            return;
        };
        self.tables.checks.remove_mut(key);
        self.tables
            .checks_by_state
            .remove_mut(&(status, key.clone()));
        self.tables
            .check_owners
            .remove_mut(&(key.node.clone(), key.check_id.clone()));
        self.state_changed(key, status);
        self.check_changed(key);
    }

    fn state_changed(&mut self, key: &CheckKey, status: CheckStatus) {
        if key.node.is_local() {
            self.change(Key::ChecksInState(status));
        }
    }

    fn check_changed(&mut self, key: &CheckKey) {
        if key.node.is_local() {
            self.change(Key::AllChecks);
        }
        self.change(Key::NodeChecks(key.node.clone()));
        self.touch(RowKey::Check(key.clone()));
        match key.instance() {
            None => self.roll_up_node(&key.node),
            Some(instance) => {
                if let Some(row) = self.tables.instances.get(&instance) {
                    roll_up(&mut self.changed, &instance, row);
                }
            }
        }
    }
}

/// Sets the peer of a record on a node to the node's.
pub(super) fn take_peer(peer: &mut String, node: &PeeredName) -> Result<(), String> {
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

fn roll_up(
    changed: &mut HashSet<Key, foldhash::quality::RandomState>,
    key: &InstanceKey,
    row: &ServiceInstance,
) {
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

/// store.md 1.2: `Passing` at least 1, `Warning` at least 0, both at most 65535.
fn weights_are_valid(weights: &Weights) -> bool {
    (1..=65_535).contains(&weights.passing) && (0..=65_535).contains(&weights.warning)
}
