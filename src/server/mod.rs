//! server.

pub mod checks;
