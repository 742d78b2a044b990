//! Configuration in a [`Draft`]: config entries with their indexes of links and sources, CA records, opaque states.

use std::collections::BTreeSet;

use smol_str::SmolStr;

use super::Draft;
use crate::model::{CaConfig, CaRoots, ConfigEntry, EntryKey, NameKey};
use crate::store::backend::{OpaqueState, RowKey};
use crate::store::key::{Key, NameSet, PeeredName};
use crate::store::row::Row;

impl Draft {
    /// Writes a config entry. False if the stored row's index isn't the expected one (store.md 2.1).
    pub(in crate::store) fn put_config(
        &mut self,
        entry: ConfigEntry,
        cas: Option<u64>,
    ) -> Result<bool, String> {
        let key = entry.key();
        if key.name.as_str().is_empty() {
            return Err(format!("a {} entry needs a Name", key.kind));
        }
        let before = self.tables.config.get(&key);
        if !expected(before, cas) {
            return Ok(false);
        }
        if before.is_none_or(|row| *row.value != entry) {
            let row = Row::next(entry, before, self.tables.index);
            self.store_config(row);
        }
        Ok(true)
    }

    /// Deletes a config entry. False if the stored row's index isn't the expected one.
    pub(in crate::store) fn remove_config(&mut self, key: &EntryKey, cas: Option<u64>) -> bool {
        let before = self.tables.config.get(key).cloned();
        if !expected(before.as_ref(), cas) {
            return false;
        }
        if let Some(before) = before {
            self.reindex_config(key, Some(&before), None);
            self.tables.config.remove_mut(key);
            self.config_changed(key);
        }
        true
    }

    pub(super) fn store_config(&mut self, row: Row<ConfigEntry>) {
        let key = row.key();
        let before = self.tables.config.get(&key).cloned();
        self.reindex_config(&key, before.as_ref(), Some(&row));
        self.tables.config.insert_mut(key.clone(), row);
        self.config_changed(&key);
    }

    pub(super) fn config_changed(&mut self, key: &EntryKey) {
        self.change(Key::Config(key.clone()));
        self.change(Key::ConfigKind(key.kind));
        self.touch(RowKey::Config(key.clone()));
    }

    pub(super) fn reindex_config(
        &mut self,
        key: &EntryKey,
        before: Option<&Row<ConfigEntry>>,
        after: Option<&Row<ConfigEntry>>,
    ) {
        let (old, new) = (before.map(links), after.map(links));
        let (old, new) = (old.unwrap_or_default(), new.unwrap_or_default());
        for name in old.difference(&new) {
            self.tables.links.remove_mut(&(name.clone(), key.clone()));
            self.change(Key::Links(name.clone()));
        }
        for name in new.difference(&old) {
            self.tables
                .links
                .insert_mut((name.clone(), key.clone()), ());
            self.change(Key::Links(name.clone()));
        }

        let (old, new) = (before.map(sources), after.map(sources));
        let (old, new) = (old.unwrap_or_default(), new.unwrap_or_default());
        for source in old.difference(&new) {
            let row = (source.clone(), key.name.clone());
            self.tables.sources.remove_mut(&row);
            self.change(Key::IntentionSource(source.clone()));
        }
        for source in new.difference(&old) {
            let row = (source.clone(), key.name.clone());
            self.tables.sources.insert_mut(row, ());
            self.change(Key::IntentionSource(source.clone()));
        }

        // Joined before the old is taken away, so that an unchanged name doesn't look changed.
        if let Some(name) = after.and_then(destination_name) {
            self.join(NameSet::Destination, name);
        }
        if let Some(name) = before.and_then(destination_name) {
            self.leave(NameSet::Destination, name);
        }
    }
}

// Certificate authority and opaque states.
impl Draft {
    /// Writes the set of trust roots (store.md 4.1), and the row indexes of those that are new or changed. False if the
    /// stored set's row index isn't the expected one.
    pub(in crate::store) fn put_ca_roots(
        &mut self,
        mut roots: CaRoots,
        cas: Option<u64>,
    ) -> Result<bool, String> {
        roots.validate().map_err(|problem| problem.to_string())?;
        let before = self.tables.ca_roots.as_ref();
        if !expected(before, cas) {
            return Ok(false);
        }
        for root in &mut roots.roots {
            let old = before.and_then(|set| set.roots.iter().find(|old| old.id == root.id));
            root.create_index = old.map_or(self.tables.index, |old| old.create_index);
            root.modify_index = old.map_or(self.tables.index, |old| old.modify_index);
            if old.is_some_and(|old| *old != *root) {
                root.modify_index = self.tables.index;
            }
        }
        if before.is_none_or(|row| *row.value != roots) {
            self.tables.ca_roots = Some(Row::next(roots, before, self.tables.index));
            self.change(Key::CaRoots);
            self.touch(RowKey::CaRoots);
        }
        Ok(true)
    }

    /// Writes the CA configuration. False if the stored row's index isn't the expected one.
    pub(in crate::store) fn put_ca_config(&mut self, config: CaConfig, cas: Option<u64>) -> bool {
        let before = self.tables.ca_config.as_ref();
        if !expected(before, cas) {
            return false;
        }
        if before.is_none_or(|row| *row.value != config) {
            self.tables.ca_config = Some(Row::next(config, before, self.tables.index));
            self.change(Key::CaConfig);
            self.touch(RowKey::CaConfig);
        }
        true
    }

    /// Writes or removes an opaque state.
    pub(in crate::store) fn put_state(&mut self, name: SmolStr, state: Option<OpaqueState>) {
        let before = self.tables.states.get(&name);
        if before.map(|row| &*row.value) == state.as_ref() {
            return;
        }
        match state {
            Some(state) => {
                let row = Row::next(state, before, self.tables.index);
                self.tables.states.insert_mut(name.clone(), row);
            }
            None => {
                self.tables.states.remove_mut(&name);
            }
        }
        self.change(Key::State(name.clone()));
        self.touch(RowKey::State(name));
    }
}

fn expected<T>(before: Option<&Row<T>>, cas: Option<u64>) -> bool {
    cas.is_none_or(|index| before.map_or(0, |row| row.modify_index) == index)
}

/// The other services that a router, splitter or resolver names (store.md 1.6, 3.3 to 3.5).
fn links(entry: &Row<ConfigEntry>) -> BTreeSet<NameKey> {
    let mut names: Vec<&str> = Vec::new();
    match &*entry.value {
        ConfigEntry::ServiceRouter(router) => {
            let destinations = router.routes.iter().filter_map(|r| r.destination.as_ref());
            names.extend(destinations.map(|d| d.service.as_str()));
        }
        ConfigEntry::ServiceSplitter(splitter) => {
            names.extend(splitter.splits.iter().map(|s| s.service.as_str()));
        }
        ConfigEntry::ServiceResolver(resolver) => {
            names.extend(resolver.redirect.iter().map(|r| r.service.as_str()));
            for failover in resolver.failover.values() {
                names.push(&failover.service);
                let own = failover.targets.iter().filter(|t| t.peer.is_empty());
                names.extend(own.map(|t| t.service.as_str()));
            }
        }
        _ => {}
    }
    let own = NameKey::new(entry.name());
    names
        .into_iter()
        .filter(|name| !name.is_empty())
        .map(NameKey::new)
        .filter(|name| *name != own)
        .collect()
}

/// The sources that a service-intentions entry names (store.md 1.6).
fn sources(entry: &Row<ConfigEntry>) -> BTreeSet<PeeredName> {
    match &*entry.value {
        ConfigEntry::ServiceIntentions(entry) => entry
            .sources
            .iter()
            .filter(|source| source.sameness_group.is_empty())
            .map(|source| PeeredName::new(&source.peer, &source.name))
            .collect(),
        _ => BTreeSet::new(),
    }
}

/// The name of a service-defaults entry with a destination outside the mesh (store.md 1.6).
fn destination_name(entry: &Row<ConfigEntry>) -> Option<&str> {
    match &*entry.value {
        ConfigEntry::ServiceDefaults(defaults) if defaults.destination.is_some() => {
            Some(&defaults.name)
        }
        _ => None,
    }
}
