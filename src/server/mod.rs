//! The program's servers.

pub mod ads;
pub mod bootstrap;
pub mod checks;
pub mod http;
mod provider;

pub use provider::MeshProvider;
