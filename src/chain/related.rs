//! What a single entry names (discovery-chain.md 10.8): for collecting entries, for access checks, and for the index
//! from a service to the entries that name it.

use std::collections::BTreeSet;

use smol_str::SmolStr;

use crate::chain::entries::ServiceKey;
use crate::model::{ConfigEntry, ServiceResolver, ServiceRouter, ServiceSplitter};

/// The services that an entry names: sorted, each once. A router always names its own service, splitters and resolvers
/// only others. Entries of other kinds name none.
#[must_use]
pub fn related_services(entry: &ConfigEntry) -> Vec<ServiceKey> {
    match entry {
        ConfigEntry::ServiceRouter(entry) => of_router(entry),
        ConfigEntry::ServiceSplitter(entry) => of_splitter(entry),
        ConfigEntry::ServiceResolver(entry) => of_resolver(entry),
        ConfigEntry::ProxyDefaults(_)
        | ConfigEntry::ServiceDefaults(_)
        | ConfigEntry::ServiceIntentions(_)
        | ConfigEntry::Mesh(_)
        | ConfigEntry::JwtProvider(_) => Vec::new(),
    }
}

/// The peers that an entry names: sorted, each once.
#[must_use]
pub fn related_peers(entry: &ConfigEntry) -> Vec<SmolStr> {
    match entry {
        ConfigEntry::ServiceResolver(entry) => peers_of_resolver(entry),
        _ => Vec::new(),
    }
}

pub(crate) fn of_router(entry: &ServiceRouter) -> Vec<ServiceKey> {
    let own = ServiceKey::new(&entry.name, &entry.namespace, &entry.partition);
    let destinations = entry.routes.iter().filter_map(|r| r.destination.as_ref());
    let mut named: BTreeSet<ServiceKey> = destinations
        .map(|to| own.naming(&to.service, &to.namespace, &to.partition))
        .collect();
    named.insert(own);
    named.into_iter().collect()
}

pub(crate) fn of_splitter(entry: &ServiceSplitter) -> Vec<ServiceKey> {
    let own = ServiceKey::new(&entry.name, &entry.namespace, &entry.partition);
    let named: BTreeSet<ServiceKey> = entry
        .splits
        .iter()
        .map(|to| own.naming(&to.service, &to.namespace, &to.partition))
        .filter(|service| *service != own)
        .collect();
    named.into_iter().collect()
}

pub(crate) fn of_resolver(entry: &ServiceResolver) -> Vec<ServiceKey> {
    let own = ServiceKey::new(&entry.name, &entry.namespace, &entry.partition);
    let mut named = BTreeSet::new();
    if let Some(to) = &entry.redirect {
        named.insert(own.naming(&to.service, &to.namespace, &to.partition));
    }
    for section in entry.failover.values() {
        if section.targets.is_empty() {
            named.insert(own.naming(&section.service, &section.namespace, ""));
        }
        for to in section.targets.iter().filter(|to| to.peer.is_empty()) {
            named.insert(own.naming(&to.service, &to.namespace, &to.partition));
        }
    }
    named.remove(&own);
    named.into_iter().collect()
}

pub(crate) fn peers_of_resolver(entry: &ServiceResolver) -> Vec<SmolStr> {
    let redirect = entry.redirect.iter().map(|to| &to.peer);
    let failover = entry.failover.values().flat_map(|section| &section.targets);
    let named: BTreeSet<&String> = redirect.chain(failover.map(|to| &to.peer)).collect();
    let named = named.into_iter().filter(|peer| !peer.is_empty());
    named.map(SmolStr::from).collect()
}
