//! The records of the local state as one immutable value: cheap to copy, so that a change is prepared on a copy and
//! takes effect as a whole, and so that whoever reads sees one moment.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use rpds::RedBlackTreeMapSync;
use smol_str::SmolStr;
use triomphe::Arc;

use crate::model::{
    AgentCheck, CheckStatus, HealthCheck, LocalService, NameKey, Place, Problems, SIDECAR_SUFFIX,
    ServiceDefinition, ServiceInstance, SidecarPortRange, SidecarPorts, accept,
};

/// Who owns a record of the local state: whoever it is can replace all its records at once.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Origin(SmolStr);

impl Origin {
    /// The agent's API.
    pub const API: Self = Self(SmolStr::new_static("api"));

    /// A file.
    #[must_use]
    pub fn file(path: &str) -> Self {
        Self(SmolStr::from(format!("file:{path}")))
    }

    /// The path, if it is a file.
    #[must_use]
    pub fn path(&self) -> Option<&str> {
        self.0.strip_prefix("file:")
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    pub(super) fn from_text(text: &str) -> Self {
        Self(SmolStr::from(text))
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path() {
            Some(path) => f.write_str(path),
            None => f.write_str("the agent's API"),
        }
    }
}

/// A service of the local agent (engine.md 4.1).
#[derive(Clone, PartialEq)]
pub struct LocalEntry {
    /// The instance.
    pub service: Arc<ServiceInstance>,
    /// Token that its data is fetched with; empty means the agent's default.
    pub token: SmolStr,
    /// Who owns it.
    pub origin: Origin,
    /// The id of the service that it was registered with as a sidecar, and goes with (engine.md 4.2). Never in the
    /// catalog.
    pub sidecar_of: Option<NameKey>,
    /// Its checks by id.
    pub checks: BTreeMap<NameKey, LocalCheck>,
}

impl fmt::Debug for LocalEntry {
    /// Without the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalEntry")
            .field("service", &self.service)
            .field("origin", &self.origin)
            .field("sidecar_of", &self.sidecar_of)
            .field("checks", &self.checks)
            .finish_non_exhaustive()
    }
}

/// A check of the local agent, with its present state.
#[derive(Debug, Clone, PartialEq)]
pub struct LocalCheck {
    /// The check.
    pub check: Arc<HealthCheck>,
    /// Who registered it by itself; `None` if it is part of its service's definition and goes with that.
    pub alone: Option<Origin>,
}

/// What a registration came to, besides the change of the tables.
#[derive(Debug, Default)]
pub(super) struct Put {
    pub id: SmolStr,
    pub sidecar_id: Option<SmolStr>,
    pub warnings: Vec<String>,
}

/// All records of the local state.
#[derive(Clone, Default, PartialEq)]
pub(super) struct LocalTables {
    services: RedBlackTreeMapSync<NameKey, LocalEntry>,
    node_checks: RedBlackTreeMapSync<NameKey, LocalCheck>,
    /// The service of each check; `None` for checks of the node. An id is unique on its node (store.md 1.5).
    check_owners: RedBlackTreeMapSync<NameKey, Option<NameKey>>,
    /// Which services use a port.
    ports: RedBlackTreeMapSync<(u16, NameKey), ()>,
}

impl LocalTables {
    pub fn services(&self) -> impl Iterator<Item = (&NameKey, &LocalEntry)> {
        self.services.iter()
    }

    pub fn service(&self, key: &NameKey) -> Option<&LocalEntry> {
        self.services.get(key)
    }

    pub fn node_checks(&self) -> impl Iterator<Item = (&NameKey, &LocalCheck)> {
        self.node_checks.iter()
    }

    /// All checks: the node's own, then those of services.
    pub fn checks(&self) -> impl Iterator<Item = &LocalCheck> {
        let own = self.node_checks.values();
        own.chain(self.services.values().flat_map(|s| s.checks.values()))
    }

    pub fn check(&self, key: &NameKey) -> Option<&LocalCheck> {
        match self.check_owners.get(key)? {
            None => self.node_checks.get(key),
            Some(owner) => self.services.get(owner)?.checks.get(key),
        }
    }

    /// The owners of all records.
    pub fn origins(&self) -> BTreeSet<Origin> {
        let services = self.services.values().map(|s| &s.origin);
        let checks = self.checks().filter_map(|c| c.alone.as_ref());
        services.chain(checks).cloned().collect()
    }

    /// Registers a definition, with its sidecar if it asks for one. A sidecar that was registered with the same service
    /// before and isn't asked for any more goes. `reserved` are ports that must not be assigned.
    pub fn put(
        &mut self,
        node: &str,
        range: SidecarPortRange,
        reserved: &BTreeSet<u16>,
        definition: ServiceDefinition,
        origin: &Origin,
    ) -> Result<Put, Problems> {
        let key = NameKey::new(definition.effective_id());
        let sidecar_key = sidecar_key(&key);
        let explicit = definition
            .sidecar()
            .is_some_and(|nested| nested.port != 0 || !nested.socket_path.is_empty());
        let held = self.services.get(&sidecar_key).map(|s| s.service.port);
        let taken = |port: u16| {
            reserved.contains(&port) || self.users_of(port).any(|k| *k != key && *k != sidecar_key)
        };
        let ports = SidecarPorts {
            range,
            held,
            taken: &taken,
        };
        let expanded = definition.expand(node, &ports)?;
        let mut put = Put {
            id: SmolStr::from(&expanded.service.service.id),
            ..Put::default()
        };
        if let Some(sidecar) = &expanded.sidecar {
            put.sidecar_id = Some(SmolStr::from(&sidecar.service.id));
            if explicit {
                put.warnings
                    .extend(self.port_warning(sidecar, &key, &sidecar_key));
            }
        } else if self.is_sidecar_of(&sidecar_key, &key) {
            self.remove(&sidecar_key);
        }
        self.insert(expanded.service, origin, None, &mut put.warnings);
        if let Some(sidecar) = expanded.sidecar {
            self.insert(sidecar, origin, Some(key), &mut put.warnings);
        }
        Ok(put)
    }

    /// Two sidecars with one explicit port may live in separate network namespaces, so that is no error (FC-037).
    fn port_warning(&self, sidecar: &LocalService, key: &NameKey, own: &NameKey) -> Option<String> {
        let port = sidecar.service.port;
        let other = self
            .users_of(port)
            .filter(|k| *k != key && *k != own)
            .filter_map(|k| self.services.get(k))
            .find(|s| s.service.kind.is_proxy() && s.service.address == sidecar.service.address)?;
        Some(format!(
            "{} listens on port {port}, as {} does; only one of them can, unless they live in separate network namespaces",
            sidecar.service.id, other.service.id
        ))
    }

    fn users_of(&self, port: u16) -> impl Iterator<Item = &NameKey> {
        let first = (port, NameKey::new(""));
        self.ports
            .range(first..)
            .take_while(move |((p, _), ())| *p == port)
            .map(|((_, key), ())| key)
    }

    fn is_sidecar_of(&self, sidecar: &NameKey, parent: &NameKey) -> bool {
        let entry = self.services.get(sidecar);
        entry.is_some_and(|s| s.sidecar_of.as_ref() == Some(parent))
    }

    /// Writes a service in place of the one of the same id. Checks that were registered by themselves stay, and checks
    /// that stay keep their state, so that a re-registration is no outage.
    fn insert(
        &mut self,
        service: LocalService,
        origin: &Origin,
        sidecar_of: Option<NameKey>,
        warnings: &mut Vec<String>,
    ) {
        let key = NameKey::new(&service.service.id);
        let before = self.services.get(&key).cloned();
        let mut checks = BTreeMap::new();
        for mut check in service.checks {
            let check_key = NameKey::new(&check.check_id);
            let known = self.check(&check_key);
            if let Some(known) = known {
                check.status = known.check.status;
                check.output.clone_from(&known.check.output);
            }
            match self.check_owners.get(&check_key) {
                Some(Some(other)) if *other != key => warnings.push(format!(
                    "the check {} was registered for {other} and is now of {}; give each check an id of its own",
                    check.check_id, service.service.id
                )),
                _ => {}
            }
            let check = LocalCheck {
                check: Arc::new(check),
                alone: None,
            };
            checks.insert(check_key, check);
        }
        if let Some(before) = before {
            for (check_key, check) in &before.checks {
                if check.alone.is_some() && !checks.contains_key(check_key) {
                    checks.insert(check_key.clone(), with_service(check, &service.service));
                }
            }
            self.take_out(&key, &before);
        }
        for check_key in checks.keys() {
            self.drop_check(check_key);
            self.check_owners
                .insert_mut(check_key.clone(), Some(key.clone()));
        }
        if service.service.port != 0 {
            self.ports
                .insert_mut((service.service.port, key.clone()), ());
        }
        let entry = LocalEntry {
            service: Arc::new(service.service),
            token: SmolStr::from(service.token),
            origin: origin.clone(),
            sidecar_of,
            checks,
        };
        self.services.insert_mut(key, entry);
    }

    /// Puts back an entry that was read from disk.
    pub fn load(&mut self, entry: LocalEntry) {
        let key = NameKey::new(&entry.service.id);
        for check_key in entry.checks.keys() {
            self.check_owners
                .insert_mut(check_key.clone(), Some(key.clone()));
        }
        if entry.service.port != 0 {
            self.ports.insert_mut((entry.service.port, key.clone()), ());
        }
        self.services.insert_mut(key, entry);
    }

    /// Puts back a check of the node that was read from disk.
    pub fn load_node_check(&mut self, check: LocalCheck) {
        let key = NameKey::new(&check.check.check_id);
        self.check_owners.insert_mut(key.clone(), None);
        self.node_checks.insert_mut(key, check);
    }

    fn take_out(&mut self, key: &NameKey, entry: &LocalEntry) {
        for check_key in entry.checks.keys() {
            self.check_owners.remove_mut(check_key);
        }
        self.ports.remove_mut(&(entry.service.port, key.clone()));
        self.services.remove_mut(key);
    }

    /// Removes a service, and the sidecar that was registered with it (engine.md 4.2). The ids that went.
    pub fn remove(&mut self, key: &NameKey) -> Vec<SmolStr> {
        let Some(entry) = self.services.get(key).cloned() else {
            return Vec::new();
        };
        self.take_out(key, &entry);
        let mut removed = vec![SmolStr::from(&entry.service.id)];
        let sidecar_key = sidecar_key(key);
        if self.is_sidecar_of(&sidecar_key, key) {
            removed.extend(self.remove(&sidecar_key));
        }
        removed
    }

    /// Registers a check by itself: of a service named in it, or of the node.
    pub fn put_check(
        &mut self,
        node: &str,
        check: AgentCheck,
        origin: &Origin,
    ) -> Result<SmolStr, Problems> {
        let (check, _) = accept(check)?;
        let refuse = |key: &str, message: String| {
            let mut problems = Problems::default();
            problems.error(&Place::ROOT.key(key), message);
            Err(problems)
        };
        let id = match check.given_id() {
            "" => check.name.clone(),
            given => given.to_owned(),
        };
        if id.trim().is_empty() {
            return refuse("CheckID", "a check needs a CheckID or a Name".to_owned());
        }
        let owner = NameKey::new(&check.service_id);
        let service = self.services.get(&owner).map(|s| s.service.clone());
        if service.is_none() && !check.service_id.is_empty() {
            let message = format!(
                "there is no service {:?} here; register it first, and give its id, not its name",
                check.service_id
            );
            return refuse("ServiceID", message);
        }
        let mut health = check.to_health_check(node, &id, service.as_deref());
        let key = NameKey::new(&id);
        if let Some(known) = self.check(&key) {
            health.status = known.check.status;
            health.output.clone_from(&known.check.output);
        }
        self.drop_check(&key);
        let check = LocalCheck {
            check: Arc::new(health),
            alone: Some(origin.clone()),
        };
        match service.and_then(|_| self.services.get(&owner).cloned()) {
            Some(mut entry) => {
                entry.checks.insert(key.clone(), check);
                self.services.insert_mut(owner.clone(), entry);
                self.check_owners.insert_mut(key, Some(owner));
            }
            None => self.load_node_check(check),
        }
        Ok(SmolStr::from(id))
    }

    /// Removes a check. False if there is none of that id.
    pub fn drop_check(&mut self, key: &NameKey) -> bool {
        let Some(owner) = self.check_owners.get(key).cloned() else {
            return false;
        };
        self.check_owners.remove_mut(key);
        match owner {
            None => {
                self.node_checks.remove_mut(key);
            }
            Some(owner) => {
                if let Some(mut entry) = self.services.get(&owner).cloned() {
                    entry.checks.remove(key);
                    self.services.insert_mut(owner, entry);
                }
            }
        }
        true
    }

    /// Sets the state of a check: whether its status changed, and whether anything did. `None` if there is no such check.
    pub fn set_check(
        &mut self,
        key: &NameKey,
        status: CheckStatus,
        output: &str,
    ) -> Option<(bool, bool)> {
        let known = self.check(key)?;
        let status_changed = known.check.status != status;
        let changed = status_changed || known.check.output != output;
        if changed {
            let mut check = (*known.check).clone();
            check.status = status;
            output.clone_into(&mut check.output);
            self.replace_check(
                key,
                LocalCheck {
                    check: Arc::new(check),
                    alone: known.alone.clone(),
                },
            );
        }
        Some((status_changed, changed))
    }

    fn replace_check(&mut self, key: &NameKey, check: LocalCheck) {
        match self.check_owners.get(key).cloned().flatten() {
            None => self.node_checks.insert_mut(key.clone(), check),
            Some(owner) => {
                if let Some(mut entry) = self.services.get(&owner).cloned() {
                    entry.checks.insert(key.clone(), check);
                    self.services.insert_mut(owner, entry);
                }
            }
        }
    }
}

/// The id of the sidecar that is registered with a service.
pub(super) fn sidecar_key(parent: &NameKey) -> NameKey {
    NameKey::new(&format!("{parent}{SIDECAR_SUFFIX}"))
}

/// A check of a service whose name or tags may have changed.
fn with_service(check: &LocalCheck, service: &ServiceInstance) -> LocalCheck {
    let mut health = (*check.check).clone();
    health.service_id.clone_from(&service.id);
    health.service_name.clone_from(&service.service);
    health.service_tags.clone_from(&service.tags);
    LocalCheck {
        check: Arc::new(health),
        alone: check.alone.clone(),
    }
}
