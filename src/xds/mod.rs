//! xds.
