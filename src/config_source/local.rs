//! The local config source (engine.md 4.4).

use std::sync::Arc;

use smol_str::SmolStr;

use crate::engine::Manager;
use crate::model::ProxyId;

use super::local_state::LocalState;
use super::watch::{ConfigSource, SourceWatch, WatchError};

/// Hands out the snapshots of the proxies that are registered with this agent, which [`LocalSync`](super::LocalSync)
/// keeps registered with the engine.
///
/// The stream's token plays no part: the server has checked it, and local proxies fetch with tokens of their own. There
/// is no session and no error; of an unknown proxy nothing arrives until it is registered.
#[derive(Debug, Clone)]
pub struct LocalConfigSource {
    manager: Manager,
    state: Arc<LocalState>,
}

impl LocalConfigSource {
    /// The source for an agent's local state.
    #[must_use]
    pub fn new(manager: Manager, state: Arc<LocalState>) -> Self {
        Self { manager, state }
    }

    /// Whether the service is one of this agent's.
    #[must_use]
    pub fn serves(&self, id: &ProxyId) -> bool {
        self.is_own_node(id) && self.state.exists(&id.service_id)
    }

    fn is_own_node(&self, id: &ProxyId) -> bool {
        id.node.eq_ignore_ascii_case(self.state.node())
    }

    /// Watches a proxy.
    #[must_use]
    pub fn watch_local(&self, id: &ProxyId) -> SourceWatch {
        let mut id = ProxyId::new(id.service_id.clone(), id.node.clone());
        if self.is_own_node(&id) {
            // Names match without regard to case; the engine knows them as registered (FC-040).
            id.node = self.state.node().clone();
            if let Some(entry) = self.state.service(&id.service_id) {
                id.service_id = SmolStr::from(&entry.service.id);
            }
        }
        SourceWatch::new(self.manager.watch(&id), None, None)
    }
}

impl ConfigSource for LocalConfigSource {
    fn watch(&self, id: &ProxyId) -> Result<SourceWatch, WatchError> {
        Ok(self.watch_local(id))
    }
}
