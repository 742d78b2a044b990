//! The engine with everything around it (store, authority, local sync, catalog source, a moody feed) under faults at every
//! hop, and over many rounds. Needs the feature `failpoints`.
//!
//! `PROXYCFG_SEED=n` plays one history again; `PROXYCFG_SEEDS`, `PROXYCFG_ACTS` and `PROXYCFG_SOAK` are sizes. A seed fixes
//! the history and what happens at the n-th passage of each fault point; the threads' interleaving stays free.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

mod faults;
mod histories;
mod mesh;
mod moody;
#[path = "../engine/oracle.rs"]
#[allow(dead_code, reason = "shared with the tests of the engine")]
mod oracle;
mod points;
mod soak;
#[path = "../engine/world.rs"]
#[allow(dead_code, reason = "shared with the tests of the engine")]
mod world;

use parking_lot::{Mutex, MutexGuard};

/// Fault points, threads and file handles are the process's: one test at a time.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock()
}

/// A size from the environment.
pub fn size(variable: &str, normal: usize) -> usize {
    let given = std::env::var(variable).ok();
    given.and_then(|text| text.parse().ok()).unwrap_or(normal)
}
