//! source.
