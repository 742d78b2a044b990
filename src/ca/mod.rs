//! The embedded certificate authority (store.md 4.1 and 4.2).
//!
//! Two halves. [`Authority`] is the signer: it owns the root's key, signs leaves after the checks of store.md 4.2,
//! rotates the root (the old root signs the new one, so that a peer that knows only the old root still accepts a new
//! leaf), and forgets old roots when no leaf of theirs can be left. It has no threads and never waits; each call reads
//! the clock once.
//!
//! [`LeafManager`] keeps the leaf certificates of a running mesh fresh. It holds one certificate per distinct
//! [`crate::model::LeafRequest`], whoever asks for it, and has one thread that always does the most urgent thing next:
//!
//! 1. keys without a valid certificate are signed at once, in order of arrival, past any rate limit;
//! 2. renewals that an operator asked for;
//! 3. due renewals, as fast as `CSRMaxPerSecond` lets them pass.
//!
//! A renewal falls due at a random instant within 60 % and 90 % of the certificate's life, or within 30 s after the
//! active root's key changed. A failure keeps the certificate and is tried again with back-off.

mod authority;
mod error;
mod leaf;
mod root;
mod signing;
mod state;

pub use authority::{Authority, CaChange, CaPlan};
pub use error::CaError;
pub use leaf::{LeafKeeper, LeafManager, LeafOptions, LeafSink, LeafStatus, LeafSubscription};
pub use signing::SignedLeaf;
pub use state::CaState;

#[cfg(test)]
mod tests;
