//! The program on a network: TLS with certificates of both sides, tokens, and keys that appear nowhere (decisions C1, C2).
#![cfg(feature = "server")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../program/world.rs"]
#[allow(dead_code, reason = "shared with the tests of the program")]
mod program;
#[path = "../support/mod.rs"]
mod support;

mod encrypted;
mod envoys;
mod keys;
mod pki;
