//! The discovery-chain compiler: where a proxy's traffic for a service can go, and how (discovery-chain.md).
//!
//! A chain has three stages, all optional but the last: the service's own *router* matches requests, *splitters* share
//! traffic by weight, *resolvers* choose a *target* (a set of instances to look up) and the targets to fail over to.
//! [`compile`] is a pure function of a [`ChainRequest`] and an [`EntrySet`]: it walks from the service through the
//! entries, depth first and in written order, into a small graph of borrowed entries; then it refuses cycles, flattens
//! splitters that feed splitters, drops what can't be reached, and copies the rest into a
//! [`CompiledChain`](crate::model::chain::CompiledChain). Nothing recurses, so deep configuration can't exhaust the stack.
//!
//! Around it: [`gather`] collects the entries that a chain can depend on from any store, asking for exactly the names that
//! matter; [`related_services`] and [`related_peers`] say what a single entry names; [`check_write`] refuses a write
//! that would break a chain; [`TargetName`] and the functions beside it make the ids and server names that the rest of
//! the program uses.

mod compile;
mod entries;
mod error;
mod gather;
mod graph_check;
mod hash;
mod headers;
mod names;
mod protocol;
mod related;
mod request;
mod weight;

#[cfg(test)]
mod tests;

pub use compile::{MAX_FLATTENED_SPLITS, compile};
pub use entries::{EntrySet, SamenessGroup, SamenessGroupMember, ServiceKey};
pub use error::{ChainError, ErrorClass};
pub use gather::{EntryLookup, gather};
pub use graph_check::{
    ChainGraph, Change, GraphProblem, GraphReason, affected_chains, check_write,
};
pub use hash::customization_hash;
pub use headers::merge_headers;
pub use names::{TargetName, datacenter_sni, query_sni, upstream_sni};
pub use protocol::{default_protocol, service_protocol};
pub use related::{related_peers, related_services};
pub use request::ChainRequest;
pub use weight::normalize_weight;
