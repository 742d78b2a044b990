//! Write-time checks: an entry that would break a discovery chain is refused (store.md 3.18).

use std::collections::BTreeSet;

use triomphe::Arc;

use crate::chain::{ChainGraph, Change, EntryLookup, ServiceKey, check_write};
use crate::model::{
    ConfigEntry, EntryKey, EntryKind, IntentionJwt, Locality, MutualTlsMode, ProxyDefaults,
    ServiceDefaults, ServiceIntentions, ServiceResolver, ServiceRouter, ServiceSplitter,
};
use crate::store::{Reader, StoreSnapshot, WriteCheck};

use super::views::Lookup;

/// Refuses writes after which a chain wouldn't compile, an intention would ask for what isn't there, or plain connections
/// would be accepted although the mesh doesn't allow that.
#[derive(Debug, Clone, Copy, Default)]
pub struct ChainCheck;

impl WriteCheck for ChainCheck {
    fn check(
        &self,
        before: &StoreSnapshot,
        after: &StoreSnapshot,
        entries: &[EntryKey],
    ) -> Result<(), Vec<String>> {
        let reader = after.reader();
        let changes: Vec<Change> = entries
            .iter()
            .map(|key| Change {
                kind: key.kind,
                service: ServiceKey::named(key.name.as_str()),
            })
            .collect();
        let mut problems = Vec::new();
        if let Err(problem) = check_write(&changes, &mut Graph(&reader)) {
            problems.push(problem.to_string());
        }
        problems.extend(unknown_providers(&reader, entries));
        problems.extend(newly_permissive(&before.reader(), &reader, entries));
        if problems.is_empty() {
            Ok(())
        } else {
            Err(problems)
        }
    }
}

/// Token providers that intentions name but nobody has defined (store.md 3.6, tests 56).
fn unknown_providers(reader: &Reader<'_>, entries: &[EntryKey]) -> Vec<String> {
    let mut problems = Vec::new();
    for key in entries
        .iter()
        .filter(|key| key.kind == EntryKind::ServiceIntentions)
    {
        let Some(row) = reader.config(key.kind, key.name.as_str()) else {
            continue;
        };
        let ConfigEntry::ServiceIntentions(entry) = &*row.value else {
            continue;
        };
        let permissions = entry.sources.iter().flat_map(|s| &s.permissions);
        let named: BTreeSet<&str> = entry
            .jwt
            .iter()
            .chain(permissions.filter_map(|p| p.jwt.as_ref()))
            .flat_map(|jwt: &IntentionJwt| &jwt.providers)
            .map(|provider| provider.name.as_str())
            .collect();
        for name in named {
            if reader.config(EntryKind::JwtProvider, name).is_none() {
                problems.push(format!(
                    "service-intentions/{}: there is no jwt-provider {name:?}; write it first",
                    entry.name
                ));
            }
        }
    }
    problems
}

/// Entries that become permissive although the mesh entry doesn't allow it. What was permissive already may stay
/// (store.md 3.1, tests 140).
fn newly_permissive(before: &Reader<'_>, after: &Reader<'_>, entries: &[EntryKey]) -> Vec<String> {
    let is_permissive = |reader: &Reader<'_>, key: &EntryKey| {
        let mode = reader
            .config(key.kind, key.name.as_str())
            .and_then(|row| match &*row.value {
                ConfigEntry::ProxyDefaults(entry) => Some(entry.mutual_tls_mode),
                ConfigEntry::ServiceDefaults(entry) => Some(entry.mutual_tls_mode),
                _ => None,
            });
        mode == Some(MutualTlsMode::Permissive)
    };
    let mesh = after.config(EntryKind::Mesh, "mesh");
    let allowed = mesh.is_some_and(|row| match &*row.value {
        ConfigEntry::Mesh(mesh) => mesh.allow_enabling_permissive_mutual_tls,
        _ => false,
    });
    entries
        .iter()
        .filter(|key| !allowed && is_permissive(after, key) && !is_permissive(before, key))
        .map(|key| {
            format!(
                "{key}: MutualTLSMode \"permissive\" needs AllowEnablingPermissiveMutualTLS in the mesh entry"
            )
        })
        .collect()
}

/// A store as the chain checks see it.
struct Graph<'r, 'a>(&'r Reader<'a>);

impl Graph<'_, '_> {
    fn names(&self, kind: EntryKind) -> impl Iterator<Item = ServiceKey> {
        self.0
            .config_list(kind)
            .into_iter()
            .map(|row| ServiceKey::named(row.value.name()))
    }
}

impl EntryLookup for Graph<'_, '_> {
    fn router(&mut self, service: &ServiceKey) -> Option<Arc<ServiceRouter>> {
        Lookup(self.0).router(service)
    }

    fn splitter(&mut self, service: &ServiceKey) -> Option<Arc<ServiceSplitter>> {
        Lookup(self.0).splitter(service)
    }

    fn resolver(&mut self, service: &ServiceKey) -> Option<Arc<ServiceResolver>> {
        Lookup(self.0).resolver(service)
    }

    fn service_defaults(&mut self, service: &ServiceKey) -> Option<Arc<ServiceDefaults>> {
        Lookup(self.0).service_defaults(service)
    }

    fn proxy_defaults(&mut self, partition: &str) -> Option<Arc<ProxyDefaults>> {
        Lookup(self.0).proxy_defaults(partition)
    }

    fn peer_locality(&mut self, _partition: &str, _peer: &str) -> Option<Locality> {
        None
    }
}

impl ChainGraph for Graph<'_, '_> {
    fn services_naming(&mut self, service: &ServiceKey) -> Vec<ServiceKey> {
        self.0
            .linked_from(service.name())
            .iter()
            .map(|key| ServiceKey::named(key.name.as_str()))
            .collect()
    }

    fn services_with_chain_entries(&mut self) -> Vec<ServiceKey> {
        [
            EntryKind::ServiceRouter,
            EntryKind::ServiceSplitter,
            EntryKind::ServiceResolver,
        ]
        .into_iter()
        .flat_map(|kind| self.names(kind))
        .collect()
    }

    fn intentions(&mut self, service: &ServiceKey) -> Option<Arc<ServiceIntentions>> {
        match &*self
            .0
            .config(EntryKind::ServiceIntentions, service.name())?
            .value
        {
            ConfigEntry::ServiceIntentions(entry) => Some(Arc::new(entry.clone())),
            _ => None,
        }
    }

    fn services_with_intentions(&mut self) -> Vec<ServiceKey> {
        self.names(EntryKind::ServiceIntentions)
            .filter(|service| service.name() != "*")
            .collect()
    }
}
