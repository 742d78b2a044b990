//! The agent's local state, as the HTTP API needs it.

use std::fmt;
use std::time::{Duration, Instant};

use triomphe::Arc;

use super::agent_api::{Agent, AgentError};
use crate::config_source::{LocalState, LocalSync, Origin, UnknownId};
use crate::model::{
    AgentCheck, CheckStatus, HealthCheck, Problems, ServiceDefinition, ServiceInstance,
};

/// Whoever runs the checks: told when the owner of a TTL check reports, so that the check's time begins anew.
pub trait Heartbeats: Send + Sync + fmt::Debug + 'static {
    /// Takes the reported state over, and passes it on to the local state. False if the check isn't run.
    fn report(&self, check: &HealthCheck, status: CheckStatus, output: &str) -> bool;
}

/// [`Agent`] over a [`LocalState`].
#[derive(Debug)]
pub struct LocalAgent {
    state: std::sync::Arc<LocalState>,
    checks: Option<std::sync::Arc<dyn Heartbeats>>,
    keeper: Option<std::sync::Arc<LocalSync>>,
}

/// How long a change may take to be kept.
const KEEPING: Duration = Duration::from_secs(30);

impl LocalAgent {
    /// An agent whose checks are run by `checks`. Without, what is reported of a TTL check stays.
    #[must_use]
    pub fn new(
        state: std::sync::Arc<LocalState>,
        checks: Option<std::sync::Arc<dyn Heartbeats>>,
    ) -> Self {
        Self {
            state,
            checks,
            keeper: None,
        }
    }

    /// Changes are answered for when `keeper` has brought them into a store that keeps them.
    #[must_use]
    pub fn kept_by(mut self, keeper: std::sync::Arc<LocalSync>) -> Self {
        self.keeper = Some(keeper);
        self
    }
}

impl Agent for LocalAgent {
    fn services(&self) -> Vec<Arc<ServiceInstance>> {
        let services = self.state.services().into_iter();
        services.map(|entry| entry.service).collect()
    }

    fn service(&self, id: &str) -> Option<Arc<ServiceInstance>> {
        self.state.service(id).map(|entry| entry.service)
    }

    fn checks(&self) -> Vec<Arc<HealthCheck>> {
        let checks = self.state.checks().into_iter();
        checks.map(|entry| entry.check).collect()
    }

    fn register(
        &self,
        definition: ServiceDefinition,
        replace_checks: bool,
    ) -> Result<Vec<String>, Problems> {
        let added = self.state.add(definition, &Origin::API)?;
        if replace_checks && let Some(entry) = self.state.service(&added.id) {
            for check in entry.checks.values().filter(|check| check.alone.is_some()) {
                // An error says that somebody else has just removed it.
                let _ = self.state.remove_check(&check.check.check_id);
            }
        }
        Ok(added.warnings)
    }

    fn deregister(&self, id: &str) -> Result<(), AgentError> {
        self.state.remove(id)?;
        Ok(())
    }

    fn register_check(&self, check: AgentCheck) -> Result<(), Problems> {
        self.state.add_check(check, &Origin::API).map(drop)
    }

    fn deregister_check(&self, id: &str) -> Result<(), AgentError> {
        Ok(self.state.remove_check(id)?)
    }

    fn update_check(&self, id: &str, status: CheckStatus, output: &str) -> Result<(), AgentError> {
        let check = self.state.check(id).map(|entry| entry.check);
        let check = check.ok_or_else(|| AgentError::UnknownCheck(id.to_owned()))?;
        if check.definition.ttl.is_zero() {
            return Err(AgentError::NotTtl(id.to_owned()));
        }
        let reported = self
            .checks
            .as_ref()
            .is_some_and(|checks| checks.report(&check, status, output));
        if !reported {
            self.state.set_check(&check.check_id, status, output)?;
        }
        Ok(())
    }

    fn settle(&self) -> Result<(), AgentError> {
        let Some(keeper) = &self.keeper else {
            return Ok(());
        };
        let unkept = |why: String| AgentError::Unkept(why);
        let synced = keeper
            .flush(Instant::now() + KEEPING)
            .map_err(|error| unkept(error.to_string()))?;
        synced.unkept.map_or(Ok(()), |why| Err(unkept(why)))
    }
}

impl From<UnknownId> for AgentError {
    fn from(unknown: UnknownId) -> Self {
        match unknown {
            UnknownId::Service(id) => Self::UnknownService(id),
            UnknownId::Check(id) => Self::UnknownCheck(id),
        }
    }
}
