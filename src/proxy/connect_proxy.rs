//! The sidecar kind (kinds.md 7, the parts for explicit upstreams): what is a sidecar's own. What it shares with its replicas
//! is in [`super::cohort`].

use smol_str::SmolStr;

use crate::model::{ExposedChecks, ProxyId};
use crate::proxy::ProxySettings;
use crate::proxy::cohort::{CohortOutput, CohortSpec};
use crate::proxy::registration::{self, Base, Registration};
use crate::proxy::shared::SharedParts;
use crate::proxy::slot::{Issue, Run, Slot};
use crate::snapshot::{ConfigSnapshot, ConnectProxySnapshot, KindSnapshot, Part, PartId, PartRef};
use crate::source::{Answer, Query, QueryId};

/// The checks of an instance, by its node and id.
type ChecksSlot = Slot<(SmolStr, SmolStr), PartRef<ExposedChecks>>;

/// The parts of a sidecar.
#[derive(Debug, Default)]
pub(super) struct ConnectProxyState {
    base: Slot<PartId, Base>,
    /// Only where checks are opened: most sidecars open none.
    exposed_checks: Option<Box<ChecksSlot>>,
}

impl ConnectProxyState {
    /// Brings every part up to date.
    pub(super) fn run(
        &mut self,
        id: &ProxyId,
        registration: &PartRef<Registration>,
        settings: &ProxySettings,
        shared: &SharedParts,
        run: &mut Run<'_>,
    ) {
        self.base
            .refresh(registration.id(), true, run, |_, previous, asker| {
                registration::build(id, registration, settings, shared, previous, asker)
            });
        self.refresh_exposed_checks(id, run);
    }

    /// The cohort that it belongs to, once its registration is known.
    pub(super) fn cohort(&self) -> Option<&CohortSpec> {
        self.base.output().map(|base| &base.cohort)
    }

    /// The application's own checks, if they are to be opened. No proxy waits for them: not every source knows them.
    fn refresh_exposed_checks(&mut self, id: &ProxyId, run: &mut Run<'_>) {
        let proxy = self.base.output().map(|base| &base.header.proxy);
        let exposing = proxy
            .filter(|proxy| proxy.expose.checks && !proxy.destination_service_id.is_empty())
            .map(|proxy| {
                let service = SmolStr::from(&proxy.destination_service_id);
                (id.node.clone(), service)
            });
        let Some(exposing) = exposing else {
            run.rewired |= self.exposed_checks.take().is_some();
            return;
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
        });
    }

    /// The snapshot, if nothing is lacking.
    pub(super) fn snapshot(
        &self,
        cohort: &CohortOutput,
        store_index: u64,
    ) -> Option<ConfigSnapshot> {
        Some(ConfigSnapshot {
            store_index,
            header: self.base.output()?.header.clone(),
            kind: KindSnapshot::ConnectProxy(ConnectProxySnapshot {
                shared: cohort.sidecar.clone()?,
                exposed_checks: self.checks().cloned(),
            }),
        })
    }

    /// Whether `last` is what [`ConnectProxyState::snapshot`] would give.
    pub(super) fn is_of(&self, cohort: &CohortOutput, last: &ConfigSnapshot) -> bool {
        let KindSnapshot::ConnectProxy(sidecar) = &last.kind;
        let same_header = self
            .base
            .output()
            .is_some_and(|base| Part::is_same(&base.header, &last.header));
        let same_shared = cohort
            .sidecar
            .as_ref()
            .is_some_and(|shared| triomphe::Arc::ptr_eq(shared, &sidecar.shared));
        let checks = self.checks().map(|part| part.id());
        let same_checks = checks == sidecar.exposed_checks.as_ref().map(|part| part.id());
        same_header && same_shared && same_checks
    }

    /// The checks to be opened, if any are, and are known.
    fn checks(&self) -> Option<&PartRef<ExposedChecks>> {
        self.exposed_checks.as_ref()?.output()
    }

    pub(super) fn wants(&self, into: &mut Vec<QueryId>) {
        self.base.wants(into);
        if let Some(slot) = &self.exposed_checks {
            slot.wants(into);
        }
    }

    pub(super) fn issues(&self, into: &mut Vec<Issue>) {
        self.base.issues(into);
        if let Some(slot) = &self.exposed_checks {
            slot.issues(into);
        }
    }
}
