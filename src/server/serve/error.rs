//! Why the control plane doesn't run.

use std::fmt;

use crate::server::files::FileProblems;

/// Why the control plane doesn't run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The files are bad.
    #[error("{0}")]
    Files(#[from] FileProblems),
    /// An option is bad.
    #[error("{0}")]
    BadInput(String),
    /// Something that it needs can't be had.
    #[error("{0}")]
    Failed(String),
}

pub(super) fn failed(what: &str) -> impl FnOnce(&dyn fmt::Display) -> ServeError {
    move |error| ServeError::Failed(format!("{what}: {error}"))
}
