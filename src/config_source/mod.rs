//! Where the proxies that an engine serves come from.
//!
//! ```text
//!  files, agent API ──▶ LocalState ──▶ LocalSync ──┬─▶ store (the catalog, under this agent's node)
//!                                                  └─▶ Manager: every local proxy, ahead of time
//!
//!  stream ──▶ CatalogConfigSource ──┬─ the service is local ──▶ LocalConfigSource ──▶ Manager: watch
//!                                   └─ anywhere else ──▶ session, Manager: watch, register while it is watched
//! ```
//!
//! - [`LocalState`] holds what is registered with this agent: services with their checks, tokens and sidecars. Whoever
//!   owns a set of records (a file, the API) can replace the set as a whole.
//! - [`LocalSync`] brings the local state into the catalog and its proxies into the engine, whenever it changes.
//! - A [`ConfigSource`] is what a server asks for the snapshots of a proxy: [`LocalConfigSource`] and
//!   [`CatalogConfigSource`].
//! - [`SessionLimiter`] spreads streams over several servers.
//!
//! Central configuration is merged by the engine (decision E3): nothing here registers anew because a config entry was
//! written.

mod anti_entropy;
mod catalog;
mod local;
mod local_records;
mod local_state;
mod local_sync;
mod local_tables;
mod session_control;
mod sessions;
mod watch;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use catalog::{CatalogConfigSource, CatalogOptions};
pub use local::LocalConfigSource;
pub use local_records::RestoreError;
pub use local_state::{Added, LocalState, OriginRecords, RecordError, UnknownId};
pub use local_sync::{LocalSync, LocalSyncOptions, SyncError, Synced};
pub use local_tables::{LocalCheck, LocalEntry, Origin};
pub use session_control::SessionControl;
pub use sessions::{CapacityReached, Session, SessionLimiter, drain_rate, max_sessions};
pub use watch::{ConfigSource, Signal, SourceWatch, StreamEnd, WatchError};

/// When a piece of work that panicked is tried again: what it was woken for is taken, so nothing else would.
const RETRY: std::time::Duration = std::time::Duration::from_secs(1);

/// Runs a piece of work on a thread that must go on: a panic is logged and concerns only this piece of work. Returns whether
/// it came to its end; the caller tries again after [`RETRY`] if not.
#[must_use]
fn contain(what: &str, work: impl FnOnce()) -> bool {
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_ok();
    if !ended {
        tracing::error!("a panic in {what}; it is tried again soon, and the rest goes on");
    }
    ended
}
