//! Real Envoys on a whole control plane in one process: what must hold of a mesh as its users see it.
//!
//! Each test has a [`world::Mesh`] of its own, with its own ports, applications and Envoys, and ends with
//! [`world::Mesh::assert_calm`]: no Envoy has refused anything.
#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that can't go on panics"
)]

#[path = "../support/mod.rs"]
mod support;

mod balancing;
mod catalog;
mod chains;
mod endpoints;
mod identity;
mod inbound;
mod intentions;
mod member;
mod operators;
mod protocols;
mod renewal;
mod restarts;
mod routes;
mod splits;
mod state_of_the_world;
mod tls;
mod tokens;
mod traffic;
mod upstreams;
mod world;
