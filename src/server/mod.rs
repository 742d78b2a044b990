//! The program's servers.

pub mod ads;
