//! The delta xDS protocol, spoken by a scripted gRPC client over a real socket, against arbitrary resources.
//!
//! `rows` holds the rows of the conformance table, `field_cases` the scenarios from the field, `ends` how streams start
//! and end, `churn` a client that behaves like an Envoy through random changes. Every scripted client counts what the
//! server may answer; `Client::finish` checks that it never answered more.
#![cfg(feature = "server")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod client;
mod ends;
mod field_cases;
mod rows;
mod world;
