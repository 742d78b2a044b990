//! The program's servers.

pub mod access;
pub mod ads;
mod backup_socket;
pub mod bootstrap;
pub mod checks;
pub mod cli;
pub mod connections;
pub mod files;
pub mod http;
mod limits;
mod local_checks;
pub mod propagation;
mod provider;
mod rate;
pub mod serve;
pub mod tls;

pub use limits::Limits;
pub use local_checks::LocalChecks;
pub use provider::MeshProvider;
pub use rate::Rate;
