//! What can go wrong in the authority.

use smol_str::SmolStr;

use crate::model::CaConfigError;

/// An error of the certificate authority or the leaf manager. Comparable, so that a repeated failure is told once.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CaError {
    /// The CA configuration breaks a rule.
    #[error(transparent)]
    Config(#[from] CaConfigError),
    /// The leaf is wanted for another datacenter.
    #[error("no path to datacenter {asked:?}: this authority signs for {own:?} only")]
    OtherDatacenter {
        /// The datacenter asked for.
        asked: SmolStr,
        /// The authority's datacenter.
        own: SmolStr,
    },
    /// Nothing may be signed because the active root has expired.
    #[error(
        "not signed: the active CA root {id} expired at {not_after}; rotate the root (or correct the clock)"
    )]
    RootExpired {
        /// The root's id.
        id: SmolStr,
        /// End of its validity, RFC 3339.
        not_after: String,
    },
    /// A certificate request breaks a signing rule.
    #[error("the certificate request is refused: {reason}")]
    Request {
        /// What is wrong with it.
        reason: String,
    },
    /// The configured `PrivateKey` or `RootCert` can't be used.
    #[error("the configured root can't be used: {reason}")]
    OwnRoot {
        /// What is wrong with it.
        reason: String,
    },
    /// The old root can't sign the new one.
    #[error(
        "the root isn't rotated, because the old root can't sign the new one ({reason}); set \
         ForceWithoutCrossSigning to rotate nevertheless: peers that don't know the new root yet then refuse new leaves"
    )]
    CrossSigning {
        /// Why.
        reason: String,
    },
    /// Saved state can't be used.
    #[error("the saved CA state can't be used: {reason}")]
    State {
        /// Why.
        reason: String,
    },
    /// A planned change was overtaken by another one.
    #[error("the CA changed since this change was prepared: try again")]
    Overtaken,
    /// A validity would end outside the years that a certificate can name.
    #[error(
        "a certificate of {lifetime} s from now would end outside the years 0 to 9999: correct the clock"
    )]
    Validity {
        /// The lifetime in seconds.
        lifetime: u64,
    },
    /// The cryptographic library refused.
    #[error("the cryptographic library failed while {doing}: {reason}")]
    Crypto {
        /// What was being done.
        doing: &'static str,
        /// The library's message.
        reason: String,
    },
    /// The leaf manager's thread can't be started.
    #[error("the thread that renews leaf certificates can't be started: {reason}")]
    Thread {
        /// The system's message.
        reason: String,
    },
    /// The leaf manager was closed.
    #[error("the leaf manager is closed")]
    Closed,
}

impl CaError {
    /// For `map_err` on calls into the cryptographic library.
    pub(super) fn crypto<E: std::fmt::Display>(doing: &'static str) -> impl FnOnce(E) -> Self {
        move |problem| Self::Crypto {
            doing,
            reason: problem.to_string(),
        }
    }
}
