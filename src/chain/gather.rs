//! Collecting the entries that a chain can depend on (discovery-chain.md 11).
//!
//! Three work lists: services whose splitter matters, services whose resolver matters, services whose defaults matter. A
//! router or splitter feeds the first, a redirect or failover only the second, and every service seen the third. What
//! isn't there was asked for all the same, so that a lookup that records its reads notices when it appears.

use std::collections::BTreeSet;

use smol_str::SmolStr;
use triomphe::Arc;

use crate::chain::entries::{EntrySet, SamenessGroup, ServiceKey};
use crate::chain::related;
use crate::chain::request::ChainRequest;
use crate::model::{
    Locality, ProxyDefaults, ServiceDefaults, ServiceResolver, ServiceRouter, ServiceSplitter,
};

/// Where entries are looked up by name. Each call may be recorded as a dependency, also when it finds nothing.
pub trait EntryLookup {
    /// The router of a service.
    fn router(&mut self, service: &ServiceKey) -> Option<Arc<ServiceRouter>>;

    /// The splitter of a service.
    fn splitter(&mut self, service: &ServiceKey) -> Option<Arc<ServiceSplitter>>;

    /// The resolver of a service.
    fn resolver(&mut self, service: &ServiceKey) -> Option<Arc<ServiceResolver>>;

    /// The service-defaults of a service.
    fn service_defaults(&mut self, service: &ServiceKey) -> Option<Arc<ServiceDefaults>>;

    /// The proxy-defaults of a partition.
    fn proxy_defaults(&mut self, partition: &str) -> Option<Arc<ProxyDefaults>>;

    /// Where a peer of a partition is, if that is known.
    fn peer_locality(&mut self, partition: &str, peer: &str) -> Option<Locality>;

    /// A sameness group of a partition. Enterprise only: finds nothing unless overridden.
    fn sameness_group(&mut self, partition: &str, name: &str) -> Option<Arc<SamenessGroup>> {
        let _ = (partition, name);
        None
    }

    /// The group that a partition's services without a resolver fail over to. Enterprise only: finds nothing unless
    /// overridden.
    fn default_sameness_group(&mut self, partition: &str) -> Option<Arc<SamenessGroup>> {
        let _ = partition;
        None
    }
}

/// Collects the entries for a chain. Each entry of a service is asked for once.
pub fn gather<L: EntryLookup + ?Sized>(request: &ChainRequest, lookup: &mut L) -> EntrySet {
    let own = request.service_key();
    let mut gathering = Gathering {
        own: own.clone(),
        lookup,
        entries: EntrySet::default(),
        resolvers: WorkList::default(),
        services: WorkList::default(),
        peers: BTreeSet::new(),
    };
    gathering.run(&own);
    gathering.entries
}

/// Services to look at, each once, in the order they came.
#[derive(Default)]
struct WorkList {
    seen: BTreeSet<ServiceKey>,
    open: Vec<ServiceKey>,
}

impl WorkList {
    fn add(&mut self, service: &ServiceKey) {
        if self.seen.insert(service.clone()) {
            self.open.push(service.clone());
        }
    }

    fn add_all(&mut self, services: &[ServiceKey]) {
        for service in services {
            self.add(service);
        }
    }
}

struct Gathering<'l, L: ?Sized> {
    own: ServiceKey,
    lookup: &'l mut L,
    entries: EntrySet,
    resolvers: WorkList,
    services: WorkList,
    peers: BTreeSet<SmolStr>,
}

impl<L: EntryLookup + ?Sized> Gathering<'_, L> {
    fn run(&mut self, own: &ServiceKey) {
        self.services.add(own);
        let mut splitters = WorkList::default();
        match self.lookup.router(own) {
            Some(router) => {
                splitters.add_all(&related::of_router(&router));
                self.entries.routers.insert(own.clone(), router);
            }
            None => splitters.add(own),
        }
        while let Some(service) = splitters.open.pop() {
            self.resolvers.add(&service);
            if let Some(splitter) = self.lookup.splitter(&service) {
                splitters.add_all(&related::of_splitter(&splitter));
                self.entries.splitters.insert(service, splitter);
            }
        }
        while let Some(service) = self.resolvers.open.pop() {
            self.services.add(&service);
            self.resolver(service);
        }
        let mut partitions = BTreeSet::new();
        while let Some(service) = self.services.open.pop() {
            if partitions.insert(service.partition().clone())
                && let Some(defaults) = self.lookup.proxy_defaults(service.partition())
            {
                let partition = service.partition().clone();
                self.entries.proxy_defaults.insert(partition, defaults);
            }
            if let Some(defaults) = self.lookup.service_defaults(&service) {
                self.entries.services.insert(service, defaults);
            }
        }
        for peer in std::mem::take(&mut self.peers) {
            if let Some(locality) = self.lookup.peer_locality(own.partition(), &peer) {
                self.entries.peers.insert(peer, locality);
            }
        }
    }

    fn resolver(&mut self, service: ServiceKey) {
        let Some(resolver) = self.lookup.resolver(&service) else {
            if let Some(group) = self.lookup.default_sameness_group(service.partition()) {
                self.members(&group, &service);
                if service == self.own {
                    self.entries.default_sameness_group = Some(group);
                }
            }
            return;
        };
        self.resolvers.add_all(&related::of_resolver(&resolver));
        self.peers.extend(related::peers_of_resolver(&resolver));
        let redirect = resolver.redirect.iter();
        let groups = redirect
            .map(|to| {
                (
                    &to.sameness_group,
                    service.naming(&to.service, &to.namespace, ""),
                )
            })
            .chain(resolver.failover.values().map(|section| {
                let named = service.naming(&section.service, &section.namespace, "");
                (&section.sameness_group, named)
            }));
        for (name, named) in groups.filter(|(name, _)| !name.is_empty()) {
            if let Some(group) = self.lookup.sameness_group(service.partition(), name) {
                self.members(&group, &service);
                self.members(&group, &named);
                self.entries
                    .sameness_groups
                    .insert(SmolStr::from(name.as_str()), group);
            }
        }
        self.entries.resolvers.insert(service, resolver);
    }

    /// The same service in every partition of a group.
    fn members(&mut self, group: &SamenessGroup, service: &ServiceKey) {
        for member in &group.members {
            if member.peer.is_empty() {
                self.resolvers
                    .add(&service.naming("", "", &member.partition));
            } else {
                self.peers.insert(SmolStr::from(member.peer.as_str()));
            }
        }
    }
}
