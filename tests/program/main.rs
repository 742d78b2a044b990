//! The program as its users meet it: the real binary, real files, real sockets.
#![cfg(feature = "server")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod broken_files;
mod broken_more;
mod client_commands;
mod durable;
mod half_open;
mod huge_bodies;
mod huge_files;
mod kills;
mod limits;
mod reload;
mod serve;
mod world;
