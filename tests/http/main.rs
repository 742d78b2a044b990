//! The HTTP API over a real socket, asked by a plain client: each endpoint's answers and errors, what bad bodies are
//! told, and reads that wait.
#![cfg(feature = "server")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod access;
mod agent;
mod bad_bodies;
mod bad_requests;
mod blocking;
mod catalog;
mod chain;
mod config;
mod connect;
mod connections;
mod health;
mod intentions;
mod limits;
mod proxycfg;
mod serving;
mod world;
