//! The targets of a chain, each once (discovery-chain.md 5.3).

use std::collections::HashMap;
use std::ops::{Index, IndexMut};

use smol_str::SmolStr;

use crate::chain::compile::{Compiler, NodeIx, TargetIx};
use crate::chain::entries::ServiceKey;
use crate::chain::names::{DEFAULT, TargetName};
use crate::model::chain::ChainTarget;

/// A target and what the compiler knows of it.
pub(super) struct Target {
    pub(super) chain_target: ChainTarget,
    /// The service that it is of, as entries are looked up.
    pub(super) key: ServiceKey,
    /// Where redirects and default subsets lead from here, once known.
    pub(super) settled: Option<TargetIx>,
    /// The search that came by last.
    pub(super) visit: usize,
    /// Its settings are filled in; only such a target is part of the chain.
    pub(super) retained: bool,
    /// Its resolver node, if it has one.
    pub(super) node: Option<NodeIx>,
}

/// All targets met so far.
#[derive(Default)]
pub(super) struct Targets {
    all: Vec<Target>,
    /// By id in lower case.
    by_id: HashMap<SmolStr, TargetIx, foldhash::fast::RandomState>,
}

impl Index<TargetIx> for Targets {
    type Output = Target;

    fn index(&self, at: TargetIx) -> &Target {
        &self.all[at]
    }
}

impl IndexMut<TargetIx> for Targets {
    fn index_mut(&mut self, at: TargetIx) -> &mut Target {
        &mut self.all[at]
    }
}

impl Targets {
    /// All targets in the order they were met.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Target> {
        self.all.iter()
    }
}

impl Compiler<'_> {
    /// The target of a place; what it leaves empty is where the chain is evaluated.
    pub(super) fn target(&mut self, place: TargetName<'_>) -> TargetIx {
        let request = self.request;
        let or = |given: &'_ str, other: &'_ SmolStr| -> SmolStr {
            if given.is_empty() {
                other.clone()
            } else {
                SmolStr::from(given)
            }
        };
        let (namespace, partition, datacenter) = if place.peer.is_empty() {
            (
                or(place.namespace, &request.evaluate_in_namespace),
                or(place.partition, &request.evaluate_in_partition),
                or(place.datacenter, &request.evaluate_in_datacenter),
            )
        } else {
            // A peer's namespaces are not ours, and its partition and datacenter are its own affair.
            (
                or(place.namespace, &SmolStr::new_static(DEFAULT)),
                request.evaluate_in_partition.clone(),
                SmolStr::default(),
            )
        };
        let name = TargetName {
            namespace: &namespace,
            partition: &partition,
            datacenter: &datacenter,
            ..place
        };
        let id = SmolStr::from(name.id());
        let spelling = if id.bytes().any(|c| c.is_ascii_uppercase()) {
            SmolStr::from(id.to_ascii_lowercase())
        } else {
            id.clone()
        };
        let next = self.targets.all.len();
        let at = *self.targets.by_id.entry(spelling).or_insert(next);
        if at == next {
            let sni = SmolStr::from(name.sni(&request.evaluate_in_trust_domain));
            let key = ServiceKey::new(place.service, &namespace, &partition);
            self.targets.all.push(Target {
                chain_target: ChainTarget {
                    id,
                    service: key.name().clone(),
                    service_subset: SmolStr::from(place.subset),
                    namespace,
                    partition,
                    datacenter,
                    peer: SmolStr::from(place.peer),
                    locality: self.entries.peers.get(place.peer).cloned(),
                    name: sni.clone(),
                    sni,
                    ..ChainTarget::default()
                },
                key,
                settled: None,
                visit: 0,
                retained: false,
                node: None,
            });
        }
        at
    }

    /// The target that an entry of `from`'s service names: what it leaves empty stays as it is, but another service
    /// has no subset unless one is named, and the peer is dropped unless one is named.
    pub(super) fn rewrite(&mut self, from: TargetIx, to: TargetName<'_>) -> TargetIx {
        let old = &self.targets[from].chain_target;
        let mut service = old.service.clone();
        let mut subset = old.service_subset.clone();
        let mut namespace = old.namespace.clone();
        let mut partition = old.partition.clone();
        let mut datacenter = old.datacenter.clone();
        if !to.service.is_empty() && !to.service.eq_ignore_ascii_case(&service) {
            service = SmolStr::from(to.service);
            subset = SmolStr::default();
        }
        if !to.subset.is_empty() {
            subset = SmolStr::from(to.subset);
        }
        if !to.partition.is_empty() {
            partition = SmolStr::from(to.partition);
        }
        if !to.namespace.is_empty() || !to.peer.is_empty() {
            namespace = SmolStr::from(to.namespace);
        }
        if !to.datacenter.is_empty() {
            datacenter = SmolStr::from(to.datacenter);
        }
        self.target(TargetName {
            service: &service,
            subset: &subset,
            namespace: &namespace,
            partition: &partition,
            datacenter: &datacenter,
            peer: to.peer,
        })
    }
}
