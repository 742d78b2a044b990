//! The program's servers.

pub mod ads;
mod backup_socket;
pub mod bootstrap;
pub mod checks;
pub mod cli;
pub mod files;
pub mod http;
mod local_checks;
mod provider;
pub mod serve;

pub use local_checks::LocalChecks;
pub use provider::MeshProvider;
