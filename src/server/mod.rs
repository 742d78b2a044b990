//! The program's servers.

pub mod ads;
pub mod bootstrap;
pub mod checks;
mod provider;

pub use provider::MeshProvider;
