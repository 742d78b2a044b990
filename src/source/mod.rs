//! What proxies ask for and where the answers come from.
//!
//! A [`Query`] is a typed, normalised value: it is its own correlation key, and all proxies that want it (within one
//! [`AuthScope`]) share one [`Answer`]. Two kinds of source answer:
//!
//! - a **view** ([`Views`]) computes the answer from a store snapshot, through a reader that records what it read; when
//!   one of the keys read changes, the engine asks again;
//! - a **feed** ([`Feed`]) answers later, from outside: certificates being signed, a host program, a remote server.
//!
//! [`Sources`] says which query goes where.

mod answer;
mod embedded;
mod feed;
mod graph;
mod host;
mod instance_filter;
mod query;
mod service_config;
mod views;
mod wire;

use std::fmt;

use crate::store::Reader;

pub use answer::Answer;
pub use embedded::EmbeddedSources;
pub use feed::{Feed, FeedAnswers, FeedSink, SubscriptionId};
pub use graph::ChainCheck;
pub use host::{HostFeed, HostSources};
pub use instance_filter::{FilteredInstance, INSTANCE_FIELDS, parse_instance_filter};
pub use query::{
    AuthScope, ChainQuery, EndpointsQuery, Query, QueryId, QueryKey, ServiceConfigQuery,
};
pub(crate) use service_config::find_setting;
pub use service_config::{ResolveInput, protocol_of, resolve};
pub use views::StoreViews;
pub use wire::QueryKind;

/// Why a query has no answer.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{message}")]
pub struct QueryError {
    /// What is wrong, and what to do.
    pub message: String,
    /// The asker's token is no longer valid: the proxy ends, and its watchers with it (decision E5). Anything else heals by
    /// itself.
    pub terminal: bool,
}

impl QueryError {
    /// An error that may heal.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            terminal: false,
        }
    }

    /// The token is no longer valid.
    pub fn token_invalid(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            terminal: true,
        }
    }
}

/// Answers queries from store snapshots.
///
/// An implementation is pure: equal snapshots give equal answers. It is called on worker threads, several at a time.
pub trait Views: Send + Sync + 'static {
    /// Answers a query; everything read through `reader` is recorded.
    ///
    /// # Errors
    /// The stored records don't allow an answer; asked again when they change.
    fn eval(&self, query: &Query, reader: &Reader<'_>) -> Result<Answer, QueryError>;
}

/// Where a query is answered.
#[derive(Clone)]
pub enum Route {
    /// By a view of the store.
    View,
    /// By this feed.
    Feed(std::sync::Arc<dyn Feed>),
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::View => f.write_str("View"),
            Self::Feed(_) => f.write_str("Feed"),
        }
    }
}

/// All sources of an engine.
pub trait Sources: Views {
    /// Where a query is answered.
    fn route(&self, query: &Query) -> Route;
}

#[cfg(test)]
mod tests;
