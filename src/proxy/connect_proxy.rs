//! The sidecar kind (kinds.md 7, the parts for explicit upstreams).

use std::sync::LazyLock;

use smol_str::SmolStr;
use triomphe::Arc;

use crate::model::{
    CaRoots, ExposedChecks, Intention, IssuedCert, JwtProvider, MeshConfig, ProxyId,
};
use crate::proxy::ProxySettings;
use crate::proxy::registration::{self, Base, Registration};
use crate::proxy::shared::SharedParts;
use crate::proxy::slot::{Issue, Run, Slot};
use crate::proxy::upstream::UpstreamState;
use crate::snapshot::{
    ConfigSnapshot, ConnectProxySnapshot, KindSnapshot, Part, PartId, PartRef, UpstreamEntry,
};
use crate::source::{Answer, Query, QueryId};

/// One part for all sidecars that open no checks.
static NO_CHECKS: LazyLock<PartRef<ExposedChecks>> =
    LazyLock::new(|| Part::new(ExposedChecks::default()));

/// The parts of a sidecar.
#[derive(Debug, Default)]
pub(super) struct ConnectProxyState {
    base: Slot<PartId, Base>,
    roots: Slot<(), PartRef<CaRoots>>,
    leaf: Slot<SmolStr, PartRef<IssuedCert>>,
    intentions: Slot<SmolStr, PartRef<Vec<Intention>>>,
    mesh: Slot<(), PartRef<Option<MeshConfig>>>,
    jwt_providers: Slot<(), PartRef<Vec<Arc<JwtProvider>>>>,
    /// Only where checks are opened: most sidecars open none.
    exposed_checks: Option<Box<Slot<(SmolStr, SmolStr), PartRef<ExposedChecks>>>>,
    /// The plans that the upstream states are of.
    planned: Option<PartId>,
    upstreams: Vec<UpstreamState>,
    entries: Option<Arc<[UpstreamEntry]>>,
}

/// A part that is the answer to one query.
macro_rules! answered {
    ($slot:expr, $spec:expr, $run:expr, $kind:ident, $query:expr) => {
        $slot.refresh($spec, true, $run, |spec, _, asker| {
            match asker.ask(&$query(spec))? {
                Answer::$kind(part) => Some(part),
                _ => None,
            }
        })
    };
}

impl ConnectProxyState {
    /// Brings every part up to date. Returns a snapshot if the proxy is ready and something differs from the last one.
    #[allow(
        clippy::too_many_arguments,
        reason = "the arguments of ProxyState::run, taken apart"
    )]
    pub(super) fn run(
        &mut self,
        id: &ProxyId,
        registration: &PartRef<Registration>,
        settings: &ProxySettings,
        shared: &SharedParts,
        run: &mut Run<'_>,
        store_index: u64,
        last: Option<&ConfigSnapshot>,
    ) -> Option<ConfigSnapshot> {
        let mut changed = self
            .base
            .refresh(registration.id(), true, run, |_, previous, asker| {
                registration::build(id, registration, settings, shared, previous, asker)
            });
        changed |= answered!(self.roots, (), run, CaRoots, |(): &()| Query::CaRoots);
        changed |= answered!(self.mesh, (), run, Mesh, |(): &()| Query::Mesh);
        changed |= answered!(self.jwt_providers, (), run, JwtProviders, |(): &()| {
            Query::JwtProviders
        });
        let destination = self
            .base
            .output()
            .map(|b| SmolStr::from(&b.header.proxy.destination_service_name));
        if let Some(service) = destination {
            changed |= answered!(self.leaf, service.clone(), run, Leaf, |s: &SmolStr| {
                Query::Leaf { service: s.clone() }
            });
            changed |= answered!(self.intentions, service, run, Intentions, |s: &SmolStr| {
                Query::Intentions { service: s.clone() }
            });
        }
        changed |= self.refresh_exposed_checks(id, run);
        let upstreams_changed = self.refresh_upstreams(shared, run);
        if upstreams_changed || self.entries.is_none() {
            self.entries = Some(
                self.upstreams
                    .iter()
                    .map(UpstreamState::entry)
                    .collect::<Vec<_>>()
                    .into(),
            );
        }
        if !(changed || upstreams_changed) && last.is_some() {
            return None;
        }
        let snapshot = self.snapshot(store_index)?;
        let same = last.is_some_and(|last| last.diff(&snapshot).is_empty());
        (!same).then_some(snapshot)
    }

    /// The application's own checks, if they are to be opened. No proxy waits for them: not every source knows them.
    fn refresh_exposed_checks(&mut self, id: &ProxyId, run: &mut Run<'_>) -> bool {
        let proxy = self.base.output().map(|base| &base.header.proxy);
        let exposing = proxy
            .filter(|proxy| proxy.expose.checks && !proxy.destination_service_id.is_empty())
            .map(|proxy| {
                let service = SmolStr::from(&proxy.destination_service_id);
                (id.node.clone(), service)
            });
        let Some(exposing) = exposing else {
            let had = self.exposed_checks.take().is_some();
            run.rewired |= had;
            return had;
        };
        let slot = self.exposed_checks.get_or_insert_default();
        slot.refresh(exposing, false, run, |(node, service_id), _, asker| {
            let query = Query::ExposedChecks {
                node: node.clone(),
                service_id: service_id.clone(),
            };
            match asker.ask(&query)? {
                Answer::ExposedChecks(part) => Some(part),
                _ => None,
            }
        })
    }

    /// Matches the upstream states to the plans of the registration (both sorted by id), then brings each up to date.
    fn refresh_upstreams(&mut self, shared: &SharedParts, run: &mut Run<'_>) -> bool {
        let Some(base) = self.base.output() else {
            // Without a registration there is nothing to dial; what was known is let go.
            self.planned = None;
            run.rewired = true;
            return !std::mem::take(&mut self.upstreams).is_empty();
        };
        let mut changed = false;
        if self.planned != Some(base.upstreams.id()) {
            self.planned = Some(base.upstreams.id());
            changed = true;
            run.rewired = true;
            let mut old = std::mem::take(&mut self.upstreams).into_iter().peekable();
            self.upstreams.reserve_exact(base.upstreams.len());
            for plan in base.upstreams.iter() {
                while old
                    .next_if(|state| state.plan().upstream_id() < plan.upstream_id())
                    .is_some()
                {}
                let state =
                    match old.next_if(|state| state.plan().upstream_id() == plan.upstream_id()) {
                        Some(mut state) => {
                            state.set_plan(plan.clone());
                            state
                        }
                        None => UpstreamState::new(plan.clone()),
                    };
                self.upstreams.push(state);
            }
        }
        for upstream in &mut self.upstreams {
            changed |= upstream.refresh(shared, run);
        }
        changed
    }

    fn snapshot(&self, store_index: u64) -> Option<ConfigSnapshot> {
        Some(ConfigSnapshot {
            store_index,
            header: self.base.output()?.header.clone(),
            roots: self.roots.output()?.clone(),
            kind: KindSnapshot::ConnectProxy(ConnectProxySnapshot {
                leaf: self.leaf.output()?.clone(),
                intentions: self.intentions.output()?.clone(),
                mesh: self.mesh.output()?.clone(),
                jwt_providers: self.jwt_providers.output()?.clone(),
                exposed_checks: self
                    .exposed_checks
                    .as_ref()
                    .and_then(|slot| slot.output())
                    .unwrap_or(&NO_CHECKS)
                    .clone(),
                upstreams: self.entries.clone()?,
            }),
        })
    }

    pub(super) fn is_ready(&self) -> bool {
        self.snapshot(0).is_some()
    }

    pub(super) fn wants(&self, into: &mut Vec<QueryId>) {
        self.base.wants(into);
        self.roots.wants(into);
        self.leaf.wants(into);
        self.intentions.wants(into);
        self.mesh.wants(into);
        self.jwt_providers.wants(into);
        if let Some(slot) = &self.exposed_checks {
            slot.wants(into);
        }
        for upstream in &self.upstreams {
            upstream.wants(into);
        }
    }

    pub(super) fn issues(&self, into: &mut Vec<Issue>) {
        self.base.issues(into);
        self.roots.issues(into);
        self.leaf.issues(into);
        self.intentions.issues(into);
        self.mesh.issues(into);
        self.jwt_providers.issues(into);
        if let Some(slot) = &self.exposed_checks {
            slot.issues(into);
        }
        for upstream in &self.upstreams {
            upstream.issues(into);
        }
    }
}
