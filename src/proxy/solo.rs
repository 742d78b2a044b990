//! A proxy and its cohort in one: for whoever runs a single proxy.

use std::time::Duration;

use triomphe::Arc;

use crate::model::{ProxyId, ServiceKind};
use crate::proxy::cohort::CohortState;
use crate::proxy::registration::Registration;
use crate::proxy::shared::SharedParts;
use crate::proxy::slot::{Changed, Inputs, Issue};
use crate::proxy::{ProxySettings, ProxyState};
use crate::snapshot::{ConfigSnapshot, PartRef};
use crate::source::{QueryError, QueryId};

/// The state of a proxy that shares its cohort with nobody.
#[derive(Debug)]
pub struct SoloProxy {
    proxy: ProxyState,
    cohort: Option<CohortState>,
}

/// What a run came to.
#[derive(Debug, Default)]
pub struct SoloOutcome {
    /// A snapshot that differs from the last one, if the proxy is ready.
    pub snapshot: Option<Arc<ConfigSnapshot>>,
    /// When to run again even if no answer changes, in monotonic time.
    pub deadline: Option<Duration>,
    /// The proxy's token is no longer valid: it ends.
    pub terminal: Option<QueryError>,
    /// Parts built: a measure of the work done.
    pub built: u64,
}

impl SoloProxy {
    /// The state of a proxy that has seen no answer yet.
    ///
    /// # Errors
    /// The kind, if it isn't one that can be served.
    pub fn new(
        id: ProxyId,
        kind: ServiceKind,
        registration: PartRef<Registration>,
    ) -> Result<Self, ServiceKind> {
        let proxy = ProxyState::new(id, kind, registration)?;
        Ok(Self {
            proxy,
            cohort: None,
        })
    }

    /// Replaces the registration; takes effect in the next run, which must look at everything.
    pub fn set_registration(&mut self, registration: PartRef<Registration>) {
        self.proxy.set_registration(registration);
    }

    /// Looks at the parts whose answers changed.
    ///
    /// `store_index` is the index that all of `inputs` were answered at; `now` is monotonic time.
    pub fn run(
        &mut self,
        settings: &ProxySettings,
        shared: &SharedParts,
        inputs: &mut dyn Inputs,
        changed: Changed<'_>,
        store_index: u64,
        now: Duration,
    ) -> SoloOutcome {
        let own = self.proxy.run(settings, shared, inputs, changed, now);
        let mut outcome = SoloOutcome {
            snapshot: None,
            deadline: own.deadline,
            terminal: own.terminal,
            built: own.built,
        };
        let Some(spec) = self.proxy.cohort() else {
            return outcome;
        };
        let moved = self.cohort.as_ref().is_none_or(|c| c.spec() != spec);
        let cohort = match &mut self.cohort {
            Some(cohort) if !moved => cohort,
            old => {
                let mut new = CohortState::new(spec.clone());
                if let Some(old) = old {
                    new.adopt(old);
                }
                old.insert(new)
            }
        };
        let changed = if moved { Changed::All } else { changed };
        outcome.built += cohort.run(settings, shared, inputs, changed, now).built;
        let common = cohort.output();
        outcome.snapshot = self.proxy.snapshot(common, store_index);
        outcome.deadline = outcome.deadline.into_iter().chain(common.deadline()).min();
        if outcome.terminal.is_none() {
            outcome.terminal = common.terminal().cloned();
        }
        outcome
    }

    /// The queries that must stay subscribed, sorted, each once.
    #[must_use]
    pub fn wants(&self) -> Vec<QueryId> {
        let mut wants = self.proxy.wants();
        wants.extend(self.cohort.iter().flat_map(CohortState::wants));
        wants.sort_unstable();
        wants.dedup();
        wants
    }

    /// What the proxy waits for, and what is wrong.
    #[must_use]
    pub fn issues(&self) -> Vec<Issue> {
        let mut issues = self.proxy.issues();
        let common = self.cohort.iter().flat_map(|c| c.output().issues());
        issues.extend(common.cloned());
        issues
    }

    /// Whether the parts that a snapshot needs are there.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        let common = self.cohort.as_ref();
        common.is_some_and(|cohort| self.proxy.is_ready(cohort.output()))
    }
}
