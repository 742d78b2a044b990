//! Rules that hold across files: what may be defined only once, and what looks like a mistake.

use std::collections::{BTreeMap, BTreeSet};

use super::agent_keys::IDLE;
use super::problem::FileProblem;
use super::set::{FileSet, Source};
use crate::model::decode::same_key;
use crate::model::{EntryKey, NameKey, ServiceDefinition, Step};

/// Notes everything in which records contradict each other.
pub(super) fn check(set: &FileSet, problems: &mut Vec<FileProblem>) {
    let complete = problems.is_empty();
    services_once(set, problems);
    entries_once(set, problems);
    checks_once(set, problems);
    if complete {
        // Otherwise the service may be one that couldn't be read.
        checks_have_services(set, problems);
    }
    sidecar_range(set, problems);
}

fn services_once(set: &FileSet, problems: &mut Vec<FileProblem>) {
    let mut seen: BTreeMap<NameKey, &Source> = BTreeMap::new();
    for service in set.services() {
        let own = service.record.effective_id().to_owned();
        for id in std::iter::once(own).chain(service.record.sidecar_id()) {
            match seen.get(&NameKey::new(&id)) {
                Some(other) => problems.push(service.source.problem(
                    Some("ID"),
                    format!(
                        "the service id {id:?} is defined in {other} too; give each service an id of its own"
                    ),
                )),
                None => {
                    seen.insert(NameKey::new(&id), &service.source);
                }
            }
        }
    }
}

fn entries_once(set: &FileSet, problems: &mut Vec<FileProblem>) {
    let mut seen: BTreeMap<EntryKey, &Source> = BTreeMap::new();
    for entry in set.entries() {
        let key = entry.record.key();
        match seen.get(&key) {
            None => {
                seen.insert(key, &entry.source);
            }
            Some(other) => problems.push(entry.source.problem(
                None,
                format!("the config entry {key} is defined in {other} too; remove one"),
            )),
        }
    }
}

fn checks_once(set: &FileSet, problems: &mut Vec<FileProblem>) {
    let mut seen: BTreeMap<NameKey, &Source> = BTreeMap::new();
    for check in set.checks() {
        let id = match check.record.given_id() {
            "" => &check.record.name,
            given => given,
        };
        if id.is_empty() {
            let message = "a check that is not part of a service needs a name or an id";
            problems.push(check.source.problem(Some("Name"), message));
        } else if let Some(other) = seen.insert(NameKey::new(id), &check.source) {
            problems.push(check.source.problem(
                Some("CheckID"),
                format!(
                    "the check id {id:?} is defined in {other} too; give each check an id of its own"
                ),
            ));
        }
    }
}

fn checks_have_services(set: &FileSet, problems: &mut Vec<FileProblem>) {
    let ids: BTreeSet<NameKey> = set.services().flat_map(|s| ids(&s.record)).collect();
    for check in set.checks() {
        let service = &check.record.service_id;
        if !service.is_empty() && !ids.contains(&NameKey::new(service)) {
            problems.push(check.source.problem(
                Some("ServiceID"),
                format!(
                    "no service of these files has the id {service:?}; correct the id or define the service"
                ),
            ));
        }
    }
}

/// The ids of a service and of its sidecar.
pub(super) fn ids(definition: &ServiceDefinition) -> impl Iterator<Item = NameKey> + use<> {
    let own = NameKey::new(definition.effective_id());
    let sidecar = definition.sidecar_id().map(|id| NameKey::new(&id));
    std::iter::once(own).chain(sidecar)
}

fn sidecar_range(set: &FileSet, problems: &mut Vec<FileProblem>) {
    let settings = &set.settings;
    let range = settings.sidecar_ports();
    let given = settings.sidecar_max_port.as_ref();
    let Some(given) = given.or(settings.sidecar_min_port.as_ref()) else {
        return;
    };
    // A port of 0 switches the assignment off.
    if range.min > range.max && range.max != 0 {
        problems.push(given.source.problem(
            None,
            format!(
                "the range of sidecar ports is empty: sidecar_min_port is {} and sidecar_max_port is {}; make the second the larger",
                range.min, range.max
            ),
        ));
    }
}

/// Ports that several services of this node give (FC-037): fine only in separate network namespaces.
pub(super) fn shared_ports(set: &FileSet) -> Vec<FileProblem> {
    let mut seen: BTreeMap<(u16, &str), (&Source, String)> = BTreeMap::new();
    let mut warnings = Vec::new();
    for service in set.services() {
        let own = &service.record;
        let mut listeners: Vec<(&ServiceDefinition, &[&str], String)> =
            vec![(own, &["Port"], own.effective_id().to_owned())];
        if let (Some(nested), Some(id)) = (own.sidecar(), own.sidecar_id()) {
            listeners.push((nested, &["Connect", "SidecarService", "Port"], id));
        }
        for (definition, key, id) in listeners {
            if definition.port == 0 {
                continue;
            }
            let address = match definition.address.as_str() {
                "" => own.address.as_str(),
                given => given,
            };
            match seen.get(&(definition.port, address)) {
                None => {
                    seen.insert((definition.port, address), (&service.source, id));
                }
                Some((other, other_id)) => {
                    let steps: Vec<Step> = key.iter().map(|k| Step::Key((*k).to_owned())).collect();
                    let warning = service.source.problem_at(
                        &steps,
                        format!(
                            "{id:?} has port {} as {other_id:?} in {other} has; both can listen only in separate network namespaces",
                            definition.port
                        ),
                    );
                    warnings.push(warning);
                }
            }
        }
    }
    warnings
}

/// Leaves one warning for each agent key without effect, however many files have it.
pub(super) fn idle_keys_once(warnings: &mut Vec<FileProblem>) {
    let mut seen: Vec<&'static str> = Vec::new();
    warnings.retain(|warning| {
        let [Step::Key(key)] = warning.key.as_slice() else {
            return true;
        };
        let Some(key) = IDLE.iter().copied().find(|name| same_key(key, name)) else {
            return true;
        };
        let first = !seen.contains(&key);
        if first {
            seen.push(key);
        }
        first
    });
}
