//! server.

pub mod bootstrap;
pub mod checks;
