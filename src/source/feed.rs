//! Sources that answer later.

use std::fmt;
use std::sync::Arc;

use super::{Answer, AuthScope, Query, QueryError};
use crate::sync::fault::{self, Point};

/// One subscription of the engine to a feed; never used again, so that a late answer of a dropped one is recognised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SubscriptionId(pub u64);

/// Takes a feed's answers. Cheap to clone; callable from any thread; never blocks.
#[derive(Clone)]
pub struct FeedSink(Arc<dyn Fn(FeedAnswers) + Send + Sync>);

/// Answers that take effect together, each with its subscription.
pub type FeedAnswers = Vec<(SubscriptionId, Result<Answer, QueryError>)>;

impl FeedSink {
    /// A sink over a function.
    pub fn new(take: impl Fn(FeedAnswers) + Send + Sync + 'static) -> Self {
        Self(Arc::new(take))
    }

    /// Gives one answer.
    pub fn answer(&self, subscription: SubscriptionId, answer: Result<Answer, QueryError>) {
        self.answer_all(vec![(subscription, answer)]);
    }

    /// Gives several answers that take effect together, in one step.
    pub fn answer_all(&self, answers: FeedAnswers) {
        if fault::hit(Point::Answer) {
            (self.0)(answers.clone());
        }
        (self.0)(answers);
    }
}

impl fmt::Debug for FeedSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FeedSink")
    }
}

/// A source outside the store: the certificate authority, a host program, a remote server.
///
/// The engine calls it on threads for feeds alone, never under a lock. Calls for one subscription come one after another,
/// those for different ones at the same time; a call that blocks holds up its own subscription, and holds one thread. If
/// `subscribe` panics, that is the query's error.
pub trait Feed: Send + Sync + 'static {
    /// Begins to answer a query, now or later and again on every change, until told to stop. An empty result is an
    /// answer too.
    fn subscribe(
        &self,
        subscription: SubscriptionId,
        scope: &AuthScope,
        query: &Query,
        sink: FeedSink,
    );

    /// Ends a subscription. Answers that are under way are ignored by the engine.
    fn unsubscribe(&self, subscription: SubscriptionId);

    /// Asks for a fresh answer now, where that makes sense: a new certificate before the old one is due. Does nothing
    /// unless implemented.
    fn refresh(&self, subscription: SubscriptionId) {
        let _ = subscription;
    }
}
