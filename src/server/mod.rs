//! The program's servers.

pub mod ads;
mod provider;

pub use provider::MeshProvider;
