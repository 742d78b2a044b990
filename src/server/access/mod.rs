//! Who may do what (decision C2): an [`Authorizer`] turns the token that a caller presents into [`Grants`].
//!
//! There are two: [`AllowAll`], for servers that only this machine reaches, and [`TokenFile`], which reads tokens and their
//! rights from a file and reads it again when it changes. Callers ask for [`Grants`] at every request, and streams at every
//! event and again and again while they are idle, so that a token that is taken away ends them.

mod grants;
mod reloaded;
mod tokens;

use std::fmt;
use std::sync::Arc;

pub use grants::{Access, Denied, Grants, service_of};
pub use reloaded::Reloaded;
pub use tokens::{TokenFile, TokenFileError};

/// The token that a caller presents is none that is known here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "ACL not found: the token is not known here; check it, or have it added to the file of tokens"
)]
pub struct UnknownToken;

/// Says what the holder of a token may do.
pub trait Authorizer: Send + Sync + fmt::Debug {
    /// The rights of the holder of a token at this moment; an empty token stands for a caller that presents none. Must not
    /// block.
    ///
    /// # Errors
    /// There is no such token.
    fn grants(&self, token: &str) -> Result<Arc<Grants>, UnknownToken>;
}

/// Everybody may do everything.
#[derive(Debug, Clone)]
pub struct AllowAll(Arc<Grants>);

impl Default for AllowAll {
    fn default() -> Self {
        Self(Arc::new(Grants::all("anybody")))
    }
}

impl Authorizer for AllowAll {
    fn grants(&self, _token: &str) -> Result<Arc<Grants>, UnknownToken> {
        Ok(self.0.clone())
    }
}
