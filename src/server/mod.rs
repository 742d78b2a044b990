//! The program's servers.

pub mod ads;
pub mod files;
