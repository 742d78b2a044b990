//! The xDS protocol in both forms, spoken by a scripted gRPC client over a real socket, against arbitrary resources.
//!
//! `rows` holds the delta rows of the conformance table, `sotw_rows` those of the state of the world, `field_cases` the
//! scenarios from the field, `ends` how streams of both forms start and end, `limits` what keeps them from costing too
//! much. Every scripted client counts what the server may answer; `Client::finish` checks that it never answered more.
#![cfg(feature = "server")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod client;
mod ends;
mod field_cases;
mod limits;
mod propagation;
mod rows;
mod sotw_rows;
mod world;
