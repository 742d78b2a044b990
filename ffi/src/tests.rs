//! Tests within the crate.
