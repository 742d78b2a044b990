//! The program's servers.

pub mod ads;
pub mod bootstrap;
pub mod checks;
pub mod files;
