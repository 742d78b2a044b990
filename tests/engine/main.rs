//! The engine as a caller sees it, over the embedded store and certificate authority.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

mod fairness;
mod feeds;
mod field_cases;
mod histories;
mod host;
mod leaks;
mod lifecycle;
mod manager;
mod oracle;
mod pure_core;
mod registration;
mod rules;
mod stress;
mod watches;
mod world;
