//! A transaction in the making: a copy of the tables that its writes are applied to, with the keys and rows that they
//! change.
//!
//! Rows are written by `put_*` and `remove_*`, which compare with what is stored (an equal write changes nothing), keep
//! the indexes in step and note the changed keys with their roll-ups (store.md 2.2):
//!
//! - a node's record or own check changes every instance on it, so its services, targets and kinds;
//! - an instance's record or own check changes its service, target and kind, before and after.

mod check;
mod config;
mod instance;
mod node;

pub(super) use instance::take_peer;

use std::collections::{BTreeSet, HashSet};

use crate::model::EntryKey;
use crate::store::backend::{AnyRow, CommitRecord, RowKey};
use crate::store::key::{InstanceKey, Key};
use crate::store::tables::Tables;

/// A set of keys in no order.
type KeySet = HashSet<Key, foldhash::quality::RandomState>;

pub(super) struct Draft {
    pub tables: Tables,
    changed: KeySet,
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
    pub fn config_entries(&self) -> Vec<EntryKey> {
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
