//! The local state of an agent: what is registered with it, and who is told when that changes (engine.md 4.1, 4.2).
//!
//! Every change is made on a copy of the tables under one lock and then takes effect as a whole. So a set of records is
//! replaced entirely or not at all, no reader sees a service without its sidecar, and two sidecars never get the same
//! port. Subscribers get a token that says "something changed", and look for themselves.

use std::collections::{BTreeMap, BTreeSet};

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use parking_lot::Mutex;
use smol_str::SmolStr;

use crate::model::{
    AgentCheck, CheckStatus, NameKey, Place, Problems, ServiceDefinition, SidecarPortRange,
};

use super::local_tables::{LocalCheck, LocalEntry, LocalTables, Origin, Put, sidecar_key};

/// What is registered with this agent. All methods may be called from any thread, and none waits for anybody.
pub struct LocalState {
    node: SmolStr,
    sidecar_ports: SidecarPortRange,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    tables: LocalTables,
    version: Version,
    subscribers: Vec<Sender<()>>,
}

/// Counts the changes of the local state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Version {
    /// All changes.
    pub all: u64,
    /// Those other than of the state of checks.
    pub records: u64,
}

/// A registration that was taken in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Added {
    /// Id of the service.
    pub id: SmolStr,
    /// Id of the sidecar that was registered with it.
    pub sidecar_id: Option<SmolStr>,
    /// What looks like a mistake.
    pub warnings: Vec<String>,
}

/// All records of one owner.
#[derive(Debug, Clone)]
pub struct OriginRecords {
    /// The owner.
    pub origin: Origin,
    /// Services, with their checks and sidecars.
    pub services: Vec<ServiceDefinition>,
    /// Checks that are registered by themselves: of the node, or of services by their ids.
    pub checks: Vec<AgentCheck>,
}

/// A record that can't be taken in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{origin}: {} {:?}: {}", if *.is_check { "check" } else { "service" }, .id, .problems.text())]
pub struct RecordError {
    /// Whose record.
    pub origin: Origin,
    /// Whether it is a check that is registered by itself, rather than a service.
    pub is_check: bool,
    /// Its position among the owner's services or checks.
    pub position: usize,
    /// Its id.
    pub id: String,
    /// What is wrong, with places within the record.
    pub problems: Problems,
}

/// There is no such record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnknownId {
    /// No such service.
    #[error(
        "Unknown service ID {0:?}. Ensure that the service ID is passed, not the service name."
    )]
    Service(String),
    /// No such check.
    #[error("Unknown check ID {0:?}. Ensure that the check ID is passed, not the check name.")]
    Check(String),
}

impl LocalState {
    /// An empty local state of an agent on a node. Sidecars that name no port get one of the range.
    pub fn new(node: impl Into<SmolStr>, sidecar_ports: SidecarPortRange) -> Self {
        Self {
            node: node.into(),
            sidecar_ports,
            inner: Mutex::default(),
        }
    }

    /// The agent's node.
    #[must_use]
    pub fn node(&self) -> &SmolStr {
        &self.node
    }

    /// A channel that holds one token while something has changed since it was last taken. Dropping it unsubscribes.
    /// Changes of a check's output alone don't signal.
    #[must_use]
    pub fn subscribe(&self) -> Receiver<()> {
        let (wake, woken) = bounded(1);
        self.inner.lock().subscribers.push(wake);
        woken
    }

    /// Registers a service, with its checks and its sidecar, in place of the one of the same id, whoever owns that.
    /// Checks keep their state. Signals even if nothing changed.
    ///
    /// # Errors
    /// All problems of the definition; nothing is changed then.
    pub fn add(&self, definition: ServiceDefinition, origin: &Origin) -> Result<Added, Problems> {
        let mut inner = self.inner.lock();
        let mut tables = inner.tables.clone();
        let none = BTreeSet::new();
        let put = tables.put(&self.node, self.sidecar_ports, &none, definition, origin)?;
        inner.replace(tables);
        drop(inner);
        Ok(added(put))
    }

    /// Removes a service, and the sidecar that was registered with it. The ids that went.
    ///
    /// # Errors
    /// There is no service of that id.
    pub fn remove(&self, id: &str) -> Result<Vec<SmolStr>, UnknownId> {
        let mut inner = self.inner.lock();
        let mut tables = inner.tables.clone();
        let removed = tables.remove(&NameKey::new(id));
        if removed.is_empty() {
            return Err(UnknownId::Service(id.to_owned()));
        }
        inner.replace(tables);
        Ok(removed)
    }

    /// Replaces all records of an owner; see [`LocalState::replace_origins`].
    ///
    /// # Errors
    /// Every record that can't be taken in; nothing is changed then.
    pub fn replace_origin(
        &self,
        origin: &Origin,
        services: Vec<ServiceDefinition>,
    ) -> Result<Vec<Added>, Vec<RecordError>> {
        self.replace_origins(vec![OriginRecords {
            origin: origin.clone(),
            services,
            checks: Vec::new(),
        }])
    }

    /// Replaces all records of several owners at once: what they had before and isn't named here goes. A record takes the
    /// place of one of the same id that the API wrote, but two files can't define the same.
    ///
    /// # Errors
    /// Every record that can't be taken in; nothing is changed then.
    pub fn replace_origins(
        &self,
        records: Vec<OriginRecords>,
    ) -> Result<Vec<Added>, Vec<RecordError>> {
        let mut inner = self.inner.lock();
        let mut draft = Draft::new(inner.tables.clone(), &records);
        let mut added_all = Vec::new();
        let mut checks = Vec::new();
        for OriginRecords {
            origin,
            services,
            checks: own_checks,
        } in records
        {
            for (position, definition) in services.into_iter().enumerate() {
                let put = draft.put(
                    &self.node,
                    self.sidecar_ports,
                    definition,
                    &origin,
                    position,
                );
                added_all.extend(put.map(added));
            }
            checks.push((origin, own_checks));
        }
        // Checks may be of services of other owners, so they come last.
        for (origin, checks) in checks {
            for (position, check) in checks.into_iter().enumerate() {
                draft.put_check(&self.node, check, &origin, position);
            }
        }
        if !draft.errors.is_empty() {
            return Err(draft.errors);
        }
        inner.replace(draft.tables);
        Ok(added_all)
    }

    /// The owners of all records.
    #[must_use]
    pub fn origins(&self) -> BTreeSet<Origin> {
        self.tables().origins()
    }

    /// Registers a check by itself: of the service that it names, or of the node. It keeps the state of one with the same id.
    /// Returns its id.
    ///
    /// # Errors
    /// All problems of the check, or there is no such service.
    pub fn add_check(&self, check: AgentCheck, origin: &Origin) -> Result<SmolStr, Problems> {
        let mut inner = self.inner.lock();
        let mut tables = inner.tables.clone();
        let id = tables.put_check(&self.node, check, origin)?;
        inner.replace(tables);
        Ok(id)
    }

    /// Removes a check.
    ///
    /// # Errors
    /// There is no check of that id.
    pub fn remove_check(&self, check_id: &str) -> Result<(), UnknownId> {
        let mut inner = self.inner.lock();
        let mut tables = inner.tables.clone();
        if !tables.drop_check(&NameKey::new(check_id)) {
            return Err(UnknownId::Check(check_id.to_owned()));
        }
        inner.replace(tables);
        Ok(())
    }

    /// Sets the state of a check. Returns whether its status changed; output alone is brought into the catalog later, with
    /// the next change or resync.
    ///
    /// # Errors
    /// There is no check of that id.
    pub fn set_check(
        &self,
        check_id: &str,
        status: CheckStatus,
        output: &str,
    ) -> Result<bool, UnknownId> {
        let mut inner = self.inner.lock();
        let (status_changed, _) = inner
            .tables
            .set_check(&NameKey::new(check_id), status, output)
            .ok_or_else(|| UnknownId::Check(check_id.to_owned()))?;
        if status_changed {
            inner.version.all += 1;
            inner.signal();
        }
        Ok(status_changed)
    }

    /// All services, by id.
    #[must_use]
    pub fn services(&self) -> Vec<LocalEntry> {
        self.tables().services().map(|(_, s)| s.clone()).collect()
    }

    /// A service. Ids match without regard to case; the entry has it as registered (FC-040).
    #[must_use]
    pub fn service(&self, id: &str) -> Option<LocalEntry> {
        self.tables().service(&NameKey::new(id)).cloned()
    }

    /// The sidecar that was registered with a service.
    #[must_use]
    pub fn sidecar_for(&self, id: &str) -> Option<LocalEntry> {
        let parent = NameKey::new(id);
        let tables = self.tables();
        let sidecar = tables.service(&sidecar_key(&parent))?;
        (sidecar.sidecar_of.as_ref() == Some(&parent)).then(|| sidecar.clone())
    }

    /// Whether there is a service of that id.
    #[must_use]
    pub fn exists(&self, id: &str) -> bool {
        self.tables().service(&NameKey::new(id)).is_some()
    }

    /// The token of a service; empty if it has none, or there is no such service.
    #[must_use]
    pub fn token(&self, id: &str) -> SmolStr {
        self.service(id).map(|s| s.token).unwrap_or_default()
    }

    /// All checks: the node's own, then those of services.
    #[must_use]
    pub fn checks(&self) -> Vec<LocalCheck> {
        self.tables().checks().cloned().collect()
    }

    /// A check.
    #[must_use]
    pub fn check(&self, check_id: &str) -> Option<LocalCheck> {
        self.tables().check(&NameKey::new(check_id)).cloned()
    }

    /// All records at one moment.
    pub(super) fn tables(&self) -> LocalTables {
        self.inner.lock().tables.clone()
    }

    /// All records at one moment, and when that was.
    pub(super) fn at(&self) -> (LocalTables, Version) {
        let inner = self.inner.lock();
        (inner.tables.clone(), inner.version)
    }

    /// Puts back records that were read from disk.
    pub(super) fn load(&self, tables: LocalTables) {
        self.inner.lock().replace(tables);
    }
}

impl std::fmt::Debug for LocalState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalState")
            .field("node", &self.node)
            .field("services", &self.tables().services().count())
            .finish_non_exhaustive()
    }
}

impl Inner {
    fn replace(&mut self, tables: LocalTables) {
        self.tables = tables;
        self.version.all += 1;
        self.version.records += 1;
        self.signal();
    }

    fn signal(&mut self) {
        // A full channel holds a token already.
        self.subscribers
            .retain(|wake| !matches!(wake.try_send(()), Err(TrySendError::Disconnected(()))));
    }
}

fn added(put: Put) -> Added {
    for warning in &put.warnings {
        tracing::warn!(service = %put.id, "{warning}");
    }
    Added {
        id: put.id,
        sidecar_id: put.sidecar_id,
        warnings: put.warnings,
    }
}

/// A replacement of whole sets of records that is being prepared.
struct Draft {
    tables: LocalTables,
    errors: Vec<RecordError>,
    /// Which ids are defined so far, where.
    seen: BTreeMap<NameKey, (Origin, usize)>,
    seen_checks: BTreeSet<NameKey>,
    /// Ports that are given in the records: never assigned to others.
    reserved: BTreeSet<u16>,
    /// Whose records are replaced: what they have in the tables is no conflict.
    origins: BTreeSet<Origin>,
}

impl Draft {
    /// Takes out of the tables whatever the owners had and don't name any more.
    fn new(mut tables: LocalTables, records: &[OriginRecords]) -> Self {
        let origins: BTreeSet<Origin> = records.iter().map(|r| r.origin.clone()).collect();
        let definitions = || records.iter().flat_map(|r| &r.services);
        let named: BTreeSet<NameKey> = definitions()
            .flat_map(|d| std::iter::once(d.effective_id().to_owned()).chain(d.sidecar_id()))
            .map(|id| NameKey::new(&id))
            .collect();
        let gone: Vec<NameKey> = tables
            .services()
            .filter(|(key, s)| origins.contains(&s.origin) && !named.contains(key))
            .map(|(key, _)| key.clone())
            .collect();
        for key in &gone {
            tables.remove(key);
        }
        let alone: Vec<NameKey> = tables
            .checks()
            .filter(|c| c.alone.as_ref().is_some_and(|o| origins.contains(o)))
            .map(|c| NameKey::new(&c.check.check_id))
            .collect();
        let kept: BTreeSet<NameKey> = records
            .iter()
            .flat_map(|r| &r.checks)
            .map(|c| NameKey::new(check_id(c)))
            .collect();
        for key in alone.iter().filter(|key| !kept.contains(key)) {
            tables.drop_check(key);
        }
        let reserved = definitions()
            .flat_map(|d| [Some(d.port), d.sidecar().map(|s| s.port)])
            .flatten()
            .filter(|port| *port != 0)
            .collect();
        Self {
            tables,
            errors: Vec::new(),
            seen: BTreeMap::new(),
            seen_checks: BTreeSet::new(),
            reserved,
            origins,
        }
    }

    fn put(
        &mut self,
        node: &str,
        range: SidecarPortRange,
        definition: ServiceDefinition,
        origin: &Origin,
        position: usize,
    ) -> Option<Put> {
        let id = definition.effective_id().to_owned();
        let mut refuse = |problems| {
            self.errors.push(RecordError {
                origin: origin.clone(),
                is_check: false,
                position,
                id: id.clone(),
                problems,
            });
        };
        let ids = std::iter::once(id.clone()).chain(definition.sidecar_id());
        for id in ids {
            let key = NameKey::new(&id);
            let there = match self.seen.get(&key) {
                Some((other, n)) if other == origin => Some(format!("service {n} (from 0) here")),
                Some((other, _)) => Some(other.to_string()),
                None => self
                    .tables
                    .service(&key)
                    .map(|s| &s.origin)
                    .filter(|other| **other != Origin::API && !self.origins.contains(other))
                    .map(ToString::to_string),
            };
            if let Some(there) = there {
                let mut problems = Problems::default();
                let place = Place::ROOT;
                problems.error(
                    &place.key("ID"),
                    format!("{id:?} is defined in {there} too; give each service an id of its own"),
                );
                refuse(problems);
                return None;
            }
            self.seen.insert(key, (origin.clone(), position));
        }
        match self
            .tables
            .put(node, range, &self.reserved, definition, origin)
        {
            Ok(put) => Some(put),
            Err(problems) => {
                refuse(problems);
                None
            }
        }
    }

    fn put_check(&mut self, node: &str, check: AgentCheck, origin: &Origin, position: usize) {
        let id = check_id(&check).to_owned();
        let result = if self.seen_checks.insert(NameKey::new(&id)) {
            self.tables.put_check(node, check, origin)
        } else {
            let mut problems = Problems::default();
            problems.error(
                &Place::ROOT.key("CheckID"),
                format!("{id:?} is defined twice; give each check an id of its own"),
            );
            Err(problems)
        };
        if let Err(problems) = result {
            self.errors.push(RecordError {
                origin: origin.clone(),
                is_check: true,
                position,
                id,
                problems,
            });
        }
    }
}

/// The id that a check registered by itself gets.
fn check_id(check: &AgentCheck) -> &str {
    match check.given_id() {
        "" => &check.name,
        given => given,
    }
}
