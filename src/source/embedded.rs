//! The sources of an embedded control plane: views over the store, certificates from the embedded authority.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use smol_str::SmolStr;

use crate::ca::{LeafManager, LeafSubscription};
use crate::model::LeafRequest;
use crate::snapshot::Part;
use crate::store::Reader;

use super::views::StoreViews;
use super::{
    Answer, AuthScope, Feed, FeedSink, Query, QueryError, Route, Sources, SubscriptionId, Views,
};

/// Views over the embedded store, and a feed of certificates from the embedded authority.
pub struct EmbeddedSources {
    views: StoreViews,
    leaves: Arc<LeafFeed>,
}

impl EmbeddedSources {
    /// Sources for a datacenter, with certificates from `leaves`.
    #[must_use]
    pub fn new(datacenter: SmolStr, leaves: Arc<LeafManager>) -> Self {
        Self {
            views: StoreViews { datacenter },
            leaves: Arc::new(LeafFeed {
                leaves,
                subscriptions: Mutex::default(),
            }),
        }
    }
}

impl fmt::Debug for EmbeddedSources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmbeddedSources")
            .field("views", &self.views)
            .finish_non_exhaustive()
    }
}

impl Views for EmbeddedSources {
    fn eval(&self, query: &Query, reader: &Reader<'_>) -> Result<Answer, QueryError> {
        self.views.answer(query, reader)
    }
}

impl Sources for EmbeddedSources {
    fn route(&self, query: &Query) -> Route {
        match query {
            Query::Leaf { .. } => Route::Feed(self.leaves.clone()),
            _ => Route::View,
        }
    }
}

/// Certificates from the embedded authority.
struct LeafFeed {
    leaves: Arc<LeafManager>,
    subscriptions: Mutex<HashMap<SubscriptionId, (LeafSubscription, LeafRequest)>>,
}

impl Feed for LeafFeed {
    fn subscribe(
        &self,
        subscription: SubscriptionId,
        _scope: &AuthScope,
        query: &Query,
        sink: FeedSink,
    ) {
        let Query::Leaf { service } = query else {
            sink.answer(
                subscription,
                Err(QueryError::new(format!("the {query} is no certificate"))),
            );
            return;
        };
        let request = LeafRequest::for_service(service.clone());
        let held = self.leaves.subscribe(
            &request,
            Box::new(move |result| {
                let answer = result
                    .map(|certificate| Answer::Leaf(Part::new((*certificate).clone())))
                    .map_err(|error| QueryError::new(error.to_string()));
                sink.answer(subscription, answer);
            }),
        );
        self.subscriptions
            .lock()
            .insert(subscription, (held, request));
    }

    fn unsubscribe(&self, subscription: SubscriptionId) {
        let held = self.subscriptions.lock().remove(&subscription);
        if let Some((held, _)) = held {
            self.leaves.unsubscribe(held);
        }
    }

    fn refresh(&self, subscription: SubscriptionId) {
        let request = self
            .subscriptions
            .lock()
            .get(&subscription)
            .map(|(_, request)| request.clone());
        if let Some(request) = request {
            self.leaves.renew(&request);
        }
    }
}
