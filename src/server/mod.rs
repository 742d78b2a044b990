//! The program's servers.

pub mod ads;
pub mod bootstrap;
pub mod checks;
pub mod cli;
pub mod files;
pub mod http;
