//! Where a stream's resources come from, and how it ends: the traits that the rest of the server implements.
//!
//! The life of a stream (xds.md 1.4): [`ResourceProvider::resolve_token`] before anything is read;
//! [`ResourceProvider::open`] at the first request; then [`ResourceWatch::authorize`] on every event once there are
//! resources. Dropping the watch releases it, however the stream ended.

use std::fmt;

use tokio::sync::watch;
use tonic::Status;

use super::node::{Caller, ClientNode, NodeError};
use super::stream::RequestError;
use crate::xds::ResourceSet;

/// What clients are told when another server should be tried.
const TRY_ANOTHER: &str = "this server has too many xDS streams open: try another one";

/// What is known about a proxy's resources.
#[derive(Debug, Clone, Default)]
pub enum StreamUpdate {
    /// Nothing yet: the proxy isn't registered, or its first snapshot isn't complete. Nothing is sent. After
    /// [`StreamUpdate::Resources`] it changes nothing: the client keeps what it has.
    #[default]
    Waiting,
    /// The current resources.
    Resources(ResourceSet),
    /// There won't be any more: the stream ends.
    Ended(EndReason),
}

/// Why the source of a proxy's resources ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EndReason {
    /// For good, for instance because the token was deleted. The client should connect again. Aborted.
    Terminated,
    /// To move load to other servers. ResourceExhausted.
    SessionTerminated,
    /// The config source failed. Internal.
    SourceFailed(String),
    /// No resources could be made from the snapshot. Unavailable; the client keeps what it has.
    Generation(String),
    /// The token is no longer valid.
    Auth(AuthError),
}

/// Why a token isn't good enough.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// There is no such token. Unauthenticated.
    #[error("unauthenticated: {0}")]
    Unauthenticated(String),
    /// It lacks the right. PermissionDenied.
    #[error("permission denied: {0}")]
    PermissionDenied(String),
    /// It couldn't be found out. Internal.
    #[error("error resolving acl token: {0}")]
    Internal(String),
}

/// Why a proxy can't be watched.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// There are enough streams on this server. ResourceExhausted.
    #[error("{TRY_ANOTHER}")]
    Capacity,
    /// The token isn't good enough for this proxy.
    #[error(transparent)]
    Auth(#[from] AuthError),
    /// The node can't name a proxy of this server. InvalidArgument.
    #[error("{0}")]
    InvalidNode(String),
    /// Anything else. Internal.
    #[error("failed to watch proxy service: {0}")]
    Failed(String),
}

/// Where the resources of all proxies come from.
pub trait ResourceProvider: Send + Sync + fmt::Debug + 'static {
    /// Looks at a token before anything is read from the stream. Called on a thread of the server's runtime: must not
    /// block.
    ///
    /// # Errors
    /// If the stream shall end at once.
    fn resolve_token(&self, caller: &Caller) -> Result<(), AuthError>;

    /// Starts to watch a proxy. Called once for each stream, with what its first request says about the proxy, on a
    /// thread that may block.
    ///
    /// # Errors
    /// If the proxy can't be watched. One that isn't registered yet is no error: its watch is waiting.
    fn open(&self, node: &ClientNode, caller: &Caller)
    -> Result<Box<dyn ResourceWatch>, OpenError>;
}

/// The resources of one proxy, for one stream. Dropping it releases the watch, and must not block.
pub trait ResourceWatch: Send + Sync + fmt::Debug + 'static {
    /// The newest update and a notice of newer ones. If its sender is dropped without [`StreamUpdate::Ended`], the
    /// stream ends as with [`EndReason::Terminated`]. Called once.
    fn updates(&self) -> watch::Receiver<StreamUpdate>;

    /// Whether the caller may still have these resources (xds.md 1.9). Called when there are resources, on every event
    /// and every [`AdsConfig::auth_check_interval`](super::AdsConfig::auth_check_interval), on a thread of the server's
    /// runtime: must not block.
    ///
    /// # Errors
    /// If not: the stream ends.
    fn authorize(&self, resources: &ResourceSet) -> Result<(), AuthError>;
}

impl From<AuthError> for Status {
    fn from(error: AuthError) -> Self {
        let message = error.to_string();
        match error {
            AuthError::Unauthenticated(_) => Self::unauthenticated(message),
            AuthError::PermissionDenied(_) => Self::permission_denied(message),
            AuthError::Internal(_) => Self::internal(message),
        }
    }
}

impl From<OpenError> for Status {
    fn from(error: OpenError) -> Self {
        let message = error.to_string();
        match error {
            OpenError::Capacity => Self::resource_exhausted(message),
            OpenError::Auth(error) => error.into(),
            OpenError::InvalidNode(_) => Self::invalid_argument(message),
            OpenError::Failed(_) => Self::internal(message),
        }
    }
}

impl From<EndReason> for Status {
    fn from(reason: EndReason) -> Self {
        match reason {
            EndReason::Terminated => {
                Self::aborted("xDS stream terminated due to an irrecoverable error: connect again")
            }
            EndReason::SessionTerminated => Self::resource_exhausted(TRY_ANOTHER),
            EndReason::SourceFailed(message) => {
                Self::internal(format!("the source of the configuration ended: {message}"))
            }
            EndReason::Generation(message) => {
                Self::unavailable(format!("can't make resources from the snapshot: {message}"))
            }
            EndReason::Auth(error) => error.into(),
        }
    }
}

impl From<NodeError> for Status {
    fn from(error: NodeError) -> Self {
        Self::invalid_argument(error.to_string())
    }
}

impl From<RequestError> for Status {
    fn from(error: RequestError) -> Self {
        match &error {
            RequestError::TooManyNames { .. } => Self::resource_exhausted(error.to_string()),
            RequestError::NoTypeUrl | RequestError::NameTooLong { .. } => {
                Self::invalid_argument(error.to_string())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    #[test]
    fn row_24_ends_have_the_codes_of_xds_1_9() {
        let denied = AuthError::PermissionDenied("service:write on web".into());
        let ends: [(Status, Code); 10] = [
            (
                AuthError::Unauthenticated("ACL not found".into()).into(),
                Code::Unauthenticated,
            ),
            (denied.clone().into(), Code::PermissionDenied),
            (
                AuthError::Internal("no leader".into()).into(),
                Code::Internal,
            ),
            (OpenError::Capacity.into(), Code::ResourceExhausted),
            (OpenError::Failed("x".into()).into(), Code::Internal),
            (
                OpenError::Auth(denied.clone()).into(),
                Code::PermissionDenied,
            ),
            (EndReason::Terminated.into(), Code::Aborted),
            (EndReason::SessionTerminated.into(), Code::ResourceExhausted),
            (EndReason::SourceFailed("x".into()).into(), Code::Internal),
            (EndReason::Generation("x".into()).into(), Code::Unavailable),
        ];
        for (status, code) in ends {
            assert_eq!(status.code(), code, "{status:?}");
        }
    }
}
