//! What the HTTP API needs of the local agent.

use std::fmt::Debug;

use triomphe::Arc;

use crate::model::{
    AgentCheck, CheckStatus, HealthCheck, Problems, ServiceDefinition, ServiceInstance,
};

/// The local agent: the services and checks that are registered with it. Methods are called on threads that may block.
pub trait Agent: Send + Sync + Debug + 'static {
    /// All services, sidecars included, by id.
    fn services(&self) -> Vec<Arc<ServiceInstance>>;

    /// A service. Ids match without regard to case.
    fn service(&self, id: &str) -> Option<Arc<ServiceInstance>>;

    /// All checks, with their present state.
    fn checks(&self) -> Vec<Arc<HealthCheck>>;

    /// Registers a service, with its checks and its sidecar, in place of the one of the same id. Checks that were
    /// registered by themselves go if `replace_checks`. What comes back are warnings.
    ///
    /// # Errors
    /// All problems of the definition; nothing is changed then.
    fn register(
        &self,
        definition: ServiceDefinition,
        replace_checks: bool,
    ) -> Result<Vec<String>, Problems>;

    /// Removes a service with its checks and its sidecar.
    ///
    /// # Errors
    /// There is no such service.
    fn deregister(&self, id: &str) -> Result<(), AgentError>;

    /// Registers a check by itself: of the service that it names, or of the node.
    ///
    /// # Errors
    /// All problems of the check; nothing is changed then.
    fn register_check(&self, check: AgentCheck) -> Result<(), Problems>;

    /// Removes a check.
    ///
    /// # Errors
    /// There is no such check.
    fn deregister_check(&self, id: &str) -> Result<(), AgentError>;

    /// Tells the state of a TTL check.
    ///
    /// # Errors
    /// There is no such check, or it isn't a TTL check.
    fn update_check(&self, id: &str, status: CheckStatus, output: &str) -> Result<(), AgentError>;

    /// Waits until the changes that were made before are kept, so that they may be answered for. An agent that keeps
    /// nothing doesn't wait.
    ///
    /// # Errors
    /// They aren't kept, and why.
    fn settle(&self) -> Result<(), AgentError> {
        Ok(())
    }
}

/// Why the agent can't do something to a service or check that exists, or not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AgentError {
    /// No such service.
    #[error("unknown service ID {0:?}; give the service's ID, not its name")]
    UnknownService(String),
    /// No such check.
    #[error("unknown check ID {0:?}; give the check's ID, not its name")]
    UnknownCheck(String),
    /// The check finds out by itself.
    #[error("the check {0:?} is not a TTL check: its state can't be told")]
    NotTtl(String),
    /// A change is in effect, but would be lost with a crash.
    #[error("the change is not kept yet, and will be tried again: {0}")]
    Unkept(String),
}
