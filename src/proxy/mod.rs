//! The pure core: from a registration and answers to a snapshot.
//!
//! A proxy's state is made of *parts* (registration with central configuration, roots, leaf, intentions, one part per
//! upstream, ...). Each part is a function of its spec and of answers, memoised in a slot that records which answers it
//! read; to ask is to want. [`ProxyState::run`] looks only at the parts whose answers changed, and builds a new
//! snapshot that shares everything else with the last one. There is no I/O, no clock and no thread in here: the same
//! answers give the same snapshot, in whatever order they came.

mod connect_proxy;
mod merge;
mod registration;
mod shared;
mod slot;
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
pub use merge::{central_config_query, merge_central_config};
pub use registration::Registration;
pub use shared::SharedParts;
pub use slot::{Changed, Input, Inputs, Issue};

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
    id: ProxyId,
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
    /// A snapshot that differs from the last one, if the proxy is ready.
    pub snapshot: Option<Arc<ConfigSnapshot>>,
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
        id: ProxyId,
        kind: ServiceKind,
        registration: PartRef<Registration>,
    ) -> Result<Self, ServiceKind> {
        let kind = match kind {
            ServiceKind::ConnectProxy => KindState::ConnectProxy(ConnectProxyState::default()),
            other => return Err(other),
        };
        Ok(Self {
            id,
            registration,
            kind,
            last: None,
        })
    }

    /// Replaces the registration; takes effect in the next run, which must look at everything.
    pub fn set_registration(&mut self, registration: PartRef<Registration>) {
        self.registration = registration;
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
    ) -> RunOutcome {
        let mut run = Run {
            inputs,
            changed,
            now,
            patience: settings.make_before_break,
            deadline: None,
            terminal: None,
            built: 0,
            rewired: false,
        };
        let snapshot = match &mut self.kind {
            KindState::ConnectProxy(state) => state.run(
                &self.id,
                &self.registration,
                settings,
                shared,
                &mut run,
                store_index,
                self.last.as_deref(),
            ),
        };
        let snapshot = snapshot.map(Arc::new);
        if let Some(snapshot) = &snapshot {
            self.last = Some(snapshot.clone());
        }
        RunOutcome {
            snapshot,
            deadline: run.deadline,
            terminal: run.terminal,
            built: run.built,
            rewired: run.rewired,
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

    /// What the proxy waits for, and what is wrong.
    #[must_use]
    pub fn issues(&self) -> Vec<Issue> {
        let mut issues = Vec::new();
        match &self.kind {
            KindState::ConnectProxy(state) => state.issues(&mut issues),
        }
        issues
    }

    /// Whether the parts that a snapshot needs are there.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        match &self.kind {
            KindState::ConnectProxy(state) => state.is_ready(),
        }
    }
}
