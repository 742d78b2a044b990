//! What can go wrong while resources are built.

use smol_str::SmolStr;

/// Why a resource can't be built. The text names the setting at fault and what would mend it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct BuildError(String);

impl BuildError {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }

    /// The same, with the place in front.
    pub(super) fn at(self, place: &str) -> Self {
        Self(format!("{place}: {}", self.0))
    }
}

/// Something about a resource that an operator should know: it can't be built and its last good content stands, or it was
/// built without a setting that can't be honoured (decision X3).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// The resource, or the upstream that it belongs to.
    pub resource: SmolStr,
    /// What is wrong, and what would mend it.
    pub message: String,
}

impl Problem {
    pub(super) fn new(resource: impl Into<SmolStr>, message: impl Into<String>) -> Self {
        Self {
            resource: resource.into(),
            message: message.into(),
        }
    }
}
