//! Parts that proxies share: one allocation for all proxies whose inputs are the same.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use smallvec::SmallVec;
use triomphe::Arc;

use crate::model::{ProxyMode, ServiceInstance, Upstream};
use crate::proxy::registration::{UpstreamPlan, UpstreamPlans};
use crate::snapshot::{
    Part, PartId, PartRef, UpstreamDefinition, UpstreamSettings, UpstreamTarget,
};

/// With more lists known than this, and than twice those in use, all are forgotten.
const MOST_KNOWN: usize = 1_024;

/// The parts that the proxies of one engine share. It holds strong references and lets go of those that nobody else
/// holds when a table has doubled (decision E9).
#[derive(Debug, Default)]
pub struct SharedParts {
    plans: Interner<DefinitionKey, UpstreamPlan>,
    lists: Interner<Box<[PartId]>, UpstreamPlans>,
    /// Which list follows from which registration: replicas needn't work it out again. It is cleared now and then.
    known_lists: Mutex<HashMap<ListKey, PartRef<UpstreamPlans>, RandomState>>,
    settings: Interner<String, UpstreamSettings>,
    targets: Interner<TargetKey, UpstreamTarget>,
}

/// An upstream's definition, by its content.
#[derive(Debug)]
struct DefinitionKey(PartRef<UpstreamDefinition>);

impl PartialEq for DefinitionKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.upstream == other.0.upstream
    }
}

impl Eq for DefinitionKey {}

impl Hash for DefinitionKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.upstream.hash(state);
    }
}

/// What a list of plans follows from: the upstreams of a registration, and what is merged into them.
#[derive(Debug, PartialEq, Eq, Hash)]
struct ListKey {
    registration: DialsAlike,
    mode: ProxyMode,
    central: PartId,
}

/// A registration, by its upstreams.
#[derive(Debug)]
struct DialsAlike(Arc<ServiceInstance>);

impl PartialEq for DialsAlike {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
            || (self.0.kind == other.0.kind && self.0.proxy.upstreams == other.0.proxy.upstreams)
    }
}

impl Eq for DialsAlike {}

impl Hash for DialsAlike {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.proxy.upstreams.hash(state);
    }
}

/// What an upstream target is made of.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct TargetKey {
    /// Settings.
    pub settings: PartId,
    /// Chain.
    pub chain: PartId,
    /// Instances of each target of the chain, in the order of the targets.
    pub endpoints: SmallVec<[Option<PartId>; 1]>,
}

impl SharedParts {
    /// The shared plan for equal definitions.
    pub(super) fn plan(
        &self,
        definition: Upstream,
        build: impl FnOnce(PartRef<UpstreamDefinition>) -> UpstreamPlan,
    ) -> PartRef<UpstreamPlan> {
        let definition: PartRef<UpstreamDefinition> = Part::new(definition.into());
        let key = DefinitionKey(definition.clone());
        self.plans.get(key, || build(definition))
    }

    /// The shared list for a registration with its central configuration merged in; `work_out` makes the plans.
    pub(super) fn list_of(
        &self,
        instance: &Arc<ServiceInstance>,
        mode: ProxyMode,
        central: PartId,
        work_out: impl FnOnce() -> Vec<PartRef<UpstreamPlan>>,
    ) -> PartRef<UpstreamPlans> {
        let key = ListKey {
            registration: DialsAlike(instance.clone()),
            mode,
            central,
        };
        if let Some(list) = self.known_lists.lock().get(&key) {
            return list.clone();
        }
        let list = self.plans(work_out());
        let mut known = self.known_lists.lock();
        let forgotten = if known.len() >= MOST_KNOWN.max(2 * self.lists.len()) {
            std::mem::take(&mut *known)
        } else {
            HashMap::default()
        };
        known.insert(key, list.clone());
        drop(known);
        drop(forgotten);
        list
    }

    /// The shared list for equal plans.
    fn plans(&self, plans: Vec<PartRef<UpstreamPlan>>) -> PartRef<UpstreamPlans> {
        let key = plans.iter().map(|plan| plan.id()).collect();
        self.lists.get(key, || plans.into())
    }

    /// The shared part for equal settings.
    pub(super) fn settings(&self, settings: UpstreamSettings) -> PartRef<UpstreamSettings> {
        // Settings are small and usually empty; their JSON is their identity.
        let key = serde_json::to_string(&settings).unwrap_or_default();
        self.settings.get(key, || settings)
    }

    /// The shared part for a target made of equal parts.
    pub(super) fn target(
        &self,
        key: TargetKey,
        build: impl FnOnce() -> UpstreamTarget,
    ) -> PartRef<UpstreamTarget> {
        self.targets.get(key, build)
    }

    /// How many upstream targets were built, over the engine's life: proxies with equal upstreams count once.
    #[must_use]
    pub fn targets_built(&self) -> u64 {
        self.targets.table.lock().built
    }

    /// How many parts it holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.settings.len() + self.targets.len() + self.plans.len() + self.lists.len()
    }

    /// Whether it holds none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Lets go of every part that nobody else holds, and counts the rest.
    pub fn sweep(&self) -> usize {
        let known = std::mem::take(&mut *self.known_lists.lock());
        drop(known);
        // In this order: lists hold plans, plans and targets hold settings.
        self.lists.sweep() + self.plans.sweep() + self.targets.sweep() + self.settings.sweep()
    }
}

#[derive(Debug)]
struct Interner<K, T> {
    table: Mutex<Table<K, T>>,
}

#[derive(Debug)]
struct Table<K, T> {
    parts: HashMap<K, PartRef<T>, RandomState>,
    sweep_at: usize,
    built: u64,
}

impl<K, T> Default for Interner<K, T> {
    fn default() -> Self {
        Self {
            table: Mutex::new(Table {
                parts: HashMap::default(),
                sweep_at: 64,
                built: 0,
            }),
        }
    }
}

impl<K: Hash + Eq, T> Interner<K, T> {
    fn get(&self, key: K, build: impl FnOnce() -> T) -> PartRef<T> {
        let mut table = self.table.lock();
        if let Some(part) = table.parts.get(&key) {
            return part.clone();
        }
        let part = Part::new(build());
        table.built += 1;
        if table.parts.len() >= table.sweep_at {
            table.parts.retain(|_, part| Arc::count(part) > 1);
            table.sweep_at = (table.parts.len() * 2).max(64);
        }
        table.parts.insert(key, part.clone());
        part
    }

    fn len(&self) -> usize {
        self.table.lock().parts.len()
    }

    fn sweep(&self) -> usize {
        let mut table = self.table.lock();
        table.parts.retain(|_, part| Arc::count(part) > 1);
        table.sweep_at = (table.parts.len() * 2).max(64);
        table.parts.len()
    }
}
