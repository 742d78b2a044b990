//! The pure core of a proxy.

mod merge;

pub use merge::{RATE_LIMIT_EXTENSION, central_config_query, merge_central_config};
