//! Sources of a host program that owns part of its data: some kinds of query go to its feed, the rest is answered from the
//! embedded store.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use crate::store::Reader;

use super::wire::QueryKind;
use super::{Answer, EmbeddedSources, Feed, Query, QueryError, Route, Sources, Views};

/// Which kinds of query a host answers, and its feed.
#[derive(Clone)]
pub struct HostFeed {
    /// The kinds that go to the feed.
    pub kinds: BTreeSet<QueryKind>,
    /// The feed.
    pub feed: Arc<dyn Feed>,
}

impl fmt::Debug for HostFeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostFeed")
            .field("kinds", &self.kinds)
            .finish_non_exhaustive()
    }
}

/// The embedded sources, with some kinds of query taken over by a host.
#[derive(Debug)]
pub struct HostSources {
    host: HostFeed,
    embedded: EmbeddedSources,
}

impl HostSources {
    /// Puts a host's feed in front of the embedded sources.
    #[must_use]
    pub fn new(host: HostFeed, embedded: EmbeddedSources) -> Self {
        Self { host, embedded }
    }
}

impl Views for HostSources {
    fn eval(&self, query: &Query, reader: &Reader<'_>) -> Result<Answer, QueryError> {
        self.embedded.eval(query, reader)
    }
}

impl Sources for HostSources {
    fn route(&self, query: &Query) -> Route {
        if self.host.kinds.contains(&query.kind()) {
            Route::Feed(self.host.feed.clone())
        } else {
            self.embedded.route(query)
        }
    }
}
