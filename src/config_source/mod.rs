//! config_source.
