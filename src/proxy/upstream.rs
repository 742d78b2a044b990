//! The upstream part: a compiled chain, and the instances of each of its targets.

use smol_str::SmolStr;

use crate::model::chain::{ChainTarget, CompiledChain};
use crate::proxy::registration::UpstreamPlan;
use crate::proxy::shared::{SharedParts, TargetKey};
use crate::proxy::slot::{Asker, Issue, Run, Slot};
use crate::snapshot::{
    Part, PartRef, TargetEndpoints, TargetList, UpstreamEntry, UpstreamSettings, UpstreamTarget,
};
use crate::source::{Answer, EndpointsQuery, Query, QueryId};

/// The state of one upstream: its chain, then what the chain leads to. Two stages, so that while the targets of a new chain
/// are awaited the old chain stays in service with fresh endpoints.
#[derive(Debug, Clone)]
pub(super) struct UpstreamState {
    plan: PartRef<UpstreamPlan>,
    chain: Slot<ChainSpec, PartRef<CompiledChain>>,
    target: Slot<TargetSpec, PartRef<UpstreamTarget>>,
    /// Not looked at yet since it was made, or took over.
    moved: bool,
}

/// Which chain: the plan's.
#[derive(Debug, Clone)]
struct ChainSpec(PartRef<UpstreamPlan>);

impl PartialEq for ChainSpec {
    fn eq(&self, other: &Self) -> bool {
        Part::is_same(&self.0, &other.0) || self.0.chain == other.0.chain
    }
}

#[derive(Debug, Clone)]
struct TargetSpec {
    settings: PartRef<UpstreamSettings>,
    chain: PartRef<CompiledChain>,
}

impl PartialEq for TargetSpec {
    fn eq(&self, other: &Self) -> bool {
        Part::is_same(&self.settings, &other.settings) && Part::is_same(&self.chain, &other.chain)
    }
}

impl UpstreamState {
    pub(super) fn new(plan: PartRef<UpstreamPlan>) -> Self {
        Self {
            plan,
            chain: Slot::default(),
            target: Slot::default(),
            moved: true,
        }
    }

    pub(super) fn plan(&self) -> &UpstreamPlan {
        &self.plan
    }

    /// Takes over what another state of the same upstream serves, if this one has nothing complete to serve yet.
    pub(super) fn adopt(&mut self, from: &Self) {
        if self.target.is_complete() {
            return;
        }
        self.moved = true;
        self.chain.adopt(&from.chain);
        self.target.adopt(&from.target);
    }

    /// Whether something is lacking or wrong.
    pub(super) fn has_issues(&self) -> bool {
        self.chain.has_issues() || self.target.has_issues()
    }

    /// Whether something is awaited, so that time alone may change it.
    pub(super) fn is_waiting(&self) -> bool {
        self.moved || self.chain.is_waiting() || self.target.is_waiting()
    }

    /// Brings the upstream up to date; returns whether anything in it changed.
    pub(super) fn refresh(&mut self, shared: &SharedParts, run: &mut Run<'_>) -> bool {
        if !self.moved && self.chain.is_settled(run) && self.target.is_settled(run) {
            return false;
        }
        self.moved = false;
        let spec = ChainSpec(self.plan.clone());
        let mut changed = self.chain.refresh(spec, false, run, |spec, _, asker| {
            match asker.ask(&Query::Chain(spec.0.chain.clone()))? {
                Answer::Chain(chain) => Some(chain),
                _ => None,
            }
        });
        match self.chain.output() {
            Some(chain) => {
                let spec = TargetSpec {
                    settings: self.plan.settings.clone(),
                    chain: chain.clone(),
                };
                changed |= self
                    .target
                    .refresh(spec, false, run, |spec, previous, asker| {
                        Some(targets(spec, shared, previous, asker))
                    });
            }
            None => {
                changed |= self.target.output().is_some();
                run.rewired = true;
                self.target = Slot::default();
            }
        }
        changed
    }

    pub(super) fn entry(&self) -> UpstreamEntry {
        UpstreamEntry {
            definition: self.plan.definition.clone(),
            target: self.target.output().cloned(),
        }
    }

    pub(super) fn wants(&self, into: &mut Vec<QueryId>) {
        self.chain.wants(into);
        self.target.wants(into);
    }

    pub(super) fn issues(&self, into: &mut Vec<Issue>) {
        self.chain.issues(into);
        self.target.issues(into);
    }
}

/// The instances of every target of a chain, as one shared part.
fn targets(
    spec: &TargetSpec,
    shared: &SharedParts,
    previous: Option<&PartRef<UpstreamTarget>>,
    asker: &mut Asker<'_, '_>,
) -> PartRef<UpstreamTarget> {
    let named = previous.filter(|previous| Part::is_same(&previous.chain, &spec.chain));
    let endpoints: TargetList = spec
        .chain
        .targets
        .iter()
        .enumerate()
        .map(|(at, (id, target))| {
            let endpoints = match query(target) {
                Some(query) => match asker.ask(&query) {
                    Some(Answer::Endpoints(endpoints)) => Some(endpoints),
                    _ => None,
                },
                None => {
                    asker.complain(
                        format!("target {id}"),
                        "peers are not supported yet; no endpoints",
                    );
                    None
                }
            };
            // The ids of a chain that is the same are shared.
            let known = named.and_then(|named| named.endpoints.get(at));
            TargetEndpoints {
                target: known.map_or_else(|| SmolStr::from(id), |known| known.target.clone()),
                endpoints,
            }
        })
        .collect();
    let key = TargetKey {
        settings: spec.settings.id(),
        chain: spec.chain.id(),
        endpoints: endpoints
            .iter()
            .map(|e| e.endpoints.as_ref().map(|p| p.id()))
            .collect(),
    };
    shared.target(key, || UpstreamTarget {
        settings: spec.settings.clone(),
        chain: spec.chain.clone(),
        endpoints,
    })
}

fn query(target: &ChainTarget) -> Option<Query> {
    target.peer.is_empty().then(|| {
        Query::Endpoints(EndpointsQuery {
            service: target.service.clone(),
            filter: SmolStr::from(target.subset.filter.as_str()),
            datacenter: target.datacenter.clone(),
            peer: SmolStr::default(),
        })
    })
}
