//! The pure core: from a registration and answers to a snapshot.
//!
//! A proxy's state is made of *parts* (registration with central configuration, roots, leaf, intentions, one part per
//! upstream, ...). Each part is a function of its spec and of answers, memoised in a slot that records which answers it
//! read; to ask is to want. A run looks only at the parts whose answers changed, and the new snapshot shares everything else
//! with the last one. There is no I/O, no clock and no thread in here: the same answers give the same snapshot, in whatever order
//! they came.
//!
//! The parts are kept in two states. [`ProxyState`] has what is a proxy's own: who it is. Its registration says which *cohort*
//! it belongs to, and [`CohortState`] has all that the members of a cohort have in common, once for all of them. Who runs the two
//! brings the proxy up to date, then its cohort at the same answers, and puts them together by [`ProxyState::snapshot`];
//! [`SoloProxy`] does so for one proxy alone.

mod cohort;
mod connect_proxy;
mod merge;
mod registration;
mod shared;
mod slot;
mod solo;
mod upstream;

use std::time::Duration;

use smol_str::SmolStr;
use triomphe::Arc;

use crate::model::{ProxyId, ServiceKind};
use crate::snapshot::{ConfigSnapshot, PartRef};
use crate::source::{QueryError, QueryId};

use connect_proxy::ConnectProxyState;
use slot::Run;

pub use crate::model::RATE_LIMIT_EXTENSION;
pub use cohort::{CohortOutcome, CohortOutput, CohortSpec, CohortState};
pub use merge::{central_config_query, merge_central_config};
pub use registration::Registration;
pub use shared::SharedParts;
pub use slot::{Changed, Input, Inputs, Issue};
pub use solo::{SoloOutcome, SoloProxy};

/// What holds for all proxies of an engine.
#[derive(Debug, Clone)]
pub struct ProxySettings {
    /// Datacenter of the control plane.
    pub datacenter: SmolStr,
    /// What holds for callers that no intention speaks of.
    pub intention_default_allow: bool,
    /// How long an upstream stays as it was while a replacement's answers are awaited.
    pub make_before_break: Duration,
}

impl Default for ProxySettings {
    fn default() -> Self {
        Self {
            datacenter: SmolStr::new_static("dc1"),
            intention_default_allow: true,
            make_before_break: Duration::from_secs(10),
        }
    }
}

/// The state of one proxy.
#[derive(Debug)]
pub struct ProxyState {
    id: Arc<ProxyId>,
    registration: PartRef<Registration>,
    kind: KindState,
    last: Option<Arc<ConfigSnapshot>>,
}

#[derive(Debug)]
enum KindState {
    ConnectProxy(ConnectProxyState),
}

/// What a run came to.
#[derive(Debug, Default)]
pub struct RunOutcome {
    /// When to run again even if no answer changes, in monotonic time.
    pub deadline: Option<Duration>,
    /// The proxy's token is no longer valid: it ends.
    pub terminal: Option<QueryError>,
    /// Parts built. If there are none, neither issues nor wants differ from those before.
    pub built: u64,
    /// Whether [`ProxyState::wants`] may differ from what it was.
    pub rewired: bool,
}

impl ProxyState {
    /// The state of a proxy that has seen no answer yet.
    ///
    /// # Errors
    /// The kind, if it isn't one that can be served.
    pub fn new(
        id: impl Into<Arc<ProxyId>>,
        kind: ServiceKind,
        registration: PartRef<Registration>,
    ) -> Result<Self, ServiceKind> {
        let kind = match kind {
            ServiceKind::ConnectProxy => KindState::ConnectProxy(ConnectProxyState::default()),
            other => return Err(other),
        };
        Ok(Self {
            id: id.into(),
            registration,
            kind,
            last: None,
        })
    }

    /// Replaces the registration; takes effect in the next run, which must look at everything.
    pub fn set_registration(&mut self, registration: PartRef<Registration>) {
        self.registration = registration;
    }

    /// Looks at the proxy's own parts whose answers changed. `now` is monotonic time.
    pub fn run(
        &mut self,
        settings: &ProxySettings,
        shared: &SharedParts,
        inputs: &mut dyn Inputs,
        changed: Changed<'_>,
        now: Duration,
    ) -> RunOutcome {
        let mut run = Run::new(settings, inputs, changed, now);
        match &mut self.kind {
            KindState::ConnectProxy(state) => {
                state.run(&self.id, &self.registration, settings, shared, &mut run)
            }
        }
        RunOutcome {
            deadline: run.deadline,
            terminal: run.terminal,
            built: run.built,
            rewired: run.rewired,
        }
    }

    /// The cohort that the proxy belongs to, once its registration is known.
    #[must_use]
    pub fn cohort(&self) -> Option<&CohortSpec> {
        match &self.kind {
            KindState::ConnectProxy(state) => state.cohort(),
        }
    }

    /// A snapshot of the proxy's own parts and its cohort's, if nothing is lacking and it differs from the last one.
    /// `store_index` is the index that all of both were answered at.
    pub fn snapshot(
        &mut self,
        cohort: &CohortOutput,
        store_index: u64,
    ) -> Option<Arc<ConfigSnapshot>> {
        let KindState::ConnectProxy(state) = &self.kind;
        let last = self.last.as_ref();
        if last.is_some_and(|last| state.is_of(cohort, last)) {
            return None;
        }
        let new = Arc::new(state.snapshot(cohort, store_index)?);
        let same = last.is_some_and(|last| last.is_same(&new));
        self.last = Some(new.clone());
        (!same).then_some(new)
    }

    /// Whether the parts that a snapshot needs are there.
    #[must_use]
    pub fn is_ready(&self, cohort: &CohortOutput) -> bool {
        match &self.kind {
            KindState::ConnectProxy(state) => state.cohort().is_some() && cohort.sidecar.is_some(),
        }
    }

    /// The queries that must stay subscribed, sorted, each once.
    #[must_use]
    pub fn wants(&self) -> Vec<QueryId> {
        let mut wants = Vec::new();
        match &self.kind {
            KindState::ConnectProxy(state) => state.wants(&mut wants),
        }
        wants.sort_unstable();
        wants.dedup();
        wants
    }

    /// What the proxy waits for, and what is wrong, beside what [`CohortOutput::issues`] says.
    #[must_use]
    pub fn issues(&self) -> Vec<Issue> {
        let mut issues = Vec::new();
        match &self.kind {
            KindState::ConnectProxy(state) => state.issues(&mut issues),
        }
        issues
    }
}
