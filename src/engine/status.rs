//! What an engine says about itself.

use crate::model::{ProxyId, ProxySource, ServiceKind};
use crate::proxy::Issue;

/// Why a wait ended without what was waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WaitError {
    /// The time is over.
    #[error("timed out")]
    TimedOut,
    /// The watch or the engine has ended.
    #[error("the watch or the engine has ended")]
    Ended,
    /// Called from a thread of the engine (from within a callback), where the wait could never end.
    #[error("waiting is not possible on a thread of the engine: return from the callback first")]
    EngineThread,
}

/// The state of one proxy.
#[derive(Debug, Clone)]
pub struct ProxyStatus {
    /// Which proxy.
    pub id: ProxyId,
    /// Its kind, if it is registered.
    pub kind: Option<ServiceKind>,
    /// Who registered it; `None` if it is only watched.
    pub source: Option<ProxySource>,
    /// Whether it has a snapshot that is current: of its present registration, and with nothing amiss that it can't do without.
    pub ready: bool,
    /// What it waits for, and what is wrong.
    pub issues: Vec<Issue>,
    /// The store index of its last snapshot; 0 before the first.
    pub store_index: u64,
    /// Watches on it.
    pub watchers: usize,
    /// Why it ended by itself: its token is no longer valid. A new registration revives it.
    pub ended: Option<String>,
    /// The text of the last panic in its state, until a run succeeds.
    pub fault: Option<String>,
}

/// What is alive in an engine, and what it has done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EngineCounts {
    /// Queries subscribed, lingering ones included.
    pub queries: usize,
    /// States of registered proxies.
    pub states: u64,
    /// Cohorts: sets of proxies with the same service, upstreams and token, whose common state is kept once.
    pub cohorts: usize,
    /// Proxy ids registered or watched.
    pub proxies: usize,
    /// Watches.
    pub watches: u64,
    /// Worker and step threads.
    pub threads: usize,
    /// Callback threads.
    pub callback_threads: usize,
    /// Parts that proxies share or shared a moment ago.
    pub shared_parts: usize,
    /// Steps made.
    pub steps: u64,
    /// Answers computed by views.
    pub answers_computed: u64,
    /// Discovery chains compiled, which are among the answers.
    pub chains_compiled: u64,
    /// Runs of states.
    pub runs: u64,
    /// Parts built.
    pub parts_built: u64,
    /// Upstream targets built; those that proxies share count once.
    pub targets_built: u64,
    /// Snapshots published.
    pub published: u64,
    /// Panics in states.
    pub panics: u64,
}
