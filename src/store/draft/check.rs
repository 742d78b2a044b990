//! Health checks in a draft (store.md 1.5).

use super::Draft;
use super::instance::roll_up;
use crate::model::{CheckStatus, HealthCheck, NameKey};
use crate::store::backend::RowKey;
use crate::store::key::{CheckKey, InstanceKey, Key, PeeredName};
use crate::store::row::Row;

impl Draft {
    /// Writes a check of an existing node or instance (store.md 1.5).
    pub(in crate::store) fn put_check(&mut self, mut check: HealthCheck) -> Result<(), String> {
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
    pub(in crate::store) fn remove_check(&mut self, node: &PeeredName, check_id: &NameKey) {
        if let Some(key) = self.check_owner(node, check_id) {
            self.drop_check(&key);
        }
    }

    pub(super) fn check_owner(&self, node: &PeeredName, check_id: &NameKey) -> Option<CheckKey> {
        let id = (node.clone(), check_id.clone());
        let service_id = self.tables.check_owners.get(&id)?.clone();
        Some(CheckKey {
            node: node.clone(),
            service_id,
            check_id: check_id.clone(),
        })
    }

    /// Gives a check what it copies from its node and instance.
    pub(super) fn fill_in(&self, check: &mut HealthCheck) {
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
    pub(super) fn refresh_checks(&mut self, node: &PeeredName, service_id: Option<&NameKey>) {
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

    pub(super) fn store_check(&mut self, row: Row<HealthCheck>) {
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

    pub(super) fn drop_check(&mut self, key: &CheckKey) {
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

    pub(super) fn state_changed(&mut self, key: &CheckKey, status: CheckStatus) {
        if key.node.is_local() {
            self.change(Key::ChecksInState(status));
        }
    }

    pub(super) fn check_changed(&mut self, key: &CheckKey) {
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
