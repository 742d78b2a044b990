//! Nodes in a draft (store.md 1.1).

use super::Draft;
use super::instance::roll_up;
use crate::model::{CheckStatus, NameKey, Node};
use crate::store::backend::RowKey;
use crate::store::key::{CheckKey, InstanceKey, Key, PeeredName};
use crate::store::row::Row;

/// The check that says whether a node is alive (store.md 1.1, name clash).
const SERF_HEALTH: &str = "serfHealth";

impl Draft {
    /// Writes a node (store.md 1.1).
    pub(in crate::store) fn put_node(&mut self, node: Node) -> Result<PeeredName, String> {
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
    pub(super) fn refuse_taken_name(
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

    pub(super) fn store_node(&mut self, row: Row<Node>) {
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

    pub(super) fn forget_node_id(&mut self, key: &PeeredName) {
        let id = match self.tables.nodes.get(key) {
            Some(row) if !row.id.is_empty() => PeeredName::new(&row.peer_name, &row.id),
            _ => return,
        };
        self.tables.node_ids.remove_mut(&id);
    }

    pub(super) fn node_changed(&mut self, key: &PeeredName) {
        if key.is_local() {
            self.change(Key::NodeList);
        }
        self.change(Key::Node(key.clone()));
        self.touch(RowKey::Node(key.clone()));
        self.roll_up_node(key);
    }

    /// Removes a node with all its instances and checks.
    pub(in crate::store) fn remove_node(&mut self, key: &PeeredName) {
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
    pub(super) fn roll_up_node(&mut self, node: &PeeredName) {
        let Self {
            tables, changed, ..
        } = self;
        for (key, row) in tables.instances_on(node) {
            roll_up(changed, key, row);
        }
    }
}
