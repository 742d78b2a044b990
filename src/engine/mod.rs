//! The shell around the pure core: threads, steps, and the [`Manager`].
//!
//! ```text
//!  commits ──▶ step loop ──▶ step (store snapshot + answers) ──▶ run queue ──▶ workers ──▶ cells ──▶ watchers
//!  feeds  ──▶ (1 thread)      immutable, newest wins           fast │ bulk     run states    latest value
//! ```
//!
//! - The **step loop** folds commits and outside answers into steps and wakes the states that want a changed answer.
//! - **Workers** run states against the newest step; a state sees one moment of the store, publishes alone, and is never run
//!   by two workers at a time. What replicas have in common is the state of their *cohort*, brought up to the step by whichever of
//!   them runs first.
//! - The **callback pool** calls watch callbacks, and one like it calls feeds; nothing else ever waits for foreign code.
//!
//! Nobody waits for a step to finish, and channels carry wake tokens, never values: a slow watcher or a herd delays nobody.

mod answers;
mod callbacks;
mod cohorts;
mod core;
mod inputs;
mod lanes;
mod limit;
mod manager;
mod progress;
mod queries;
mod register;
mod registry;
mod status;
mod stepper;
mod watch;
mod worker;

use std::time::Duration;

use crate::proxy::ProxySettings;

pub use manager::{CloseReport, Manager};
pub use register::{RegisterError, RegisterOptions, Registered};
pub use registry::SnapshotRef;
pub use status::{EngineCounts, ProxyStatus, WaitError};
pub use watch::{CallbackWatch, Watch, WatchEnd, WatchEvent};

/// How an engine is set up.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Worker threads; at least one.
    pub workers: usize,
    /// Most callback threads. Callbacks that block hold one each; past the cap, others wait for them. Feeds are called on as
    /// many threads of their own.
    pub callback_threads: usize,
    /// How long a callback thread stays idle before it ends.
    pub callback_idle_time: Duration,
    /// How long a query outlives the last proxy that wants it, so that a reconnect costs nothing (decision E8).
    pub linger: Duration,
    /// What holds for all proxies.
    pub proxies: ProxySettings,
    /// Most snapshots a second over all proxies; 0 means no limit (engine.md 2.1).
    pub updates_per_second: f64,
    /// Least time between two snapshots of one proxy; zero means none.
    pub min_publish_interval: Duration,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            workers: std::thread::available_parallelism().map_or(2, std::num::NonZero::get),
            callback_threads: 64,
            callback_idle_time: Duration::from_secs(10),
            linger: Duration::from_secs(10),
            proxies: ProxySettings::default(),
            updates_per_second: 0.0,
            min_publish_interval: Duration::ZERO,
        }
    }
}

/// The text of a panic.
fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a panic without a text")
}
