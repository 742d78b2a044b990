//! Queries in use: who wants each, its newest cell, and its subscription to a feed.
//!
//! A query is known by its key (scope and question) and by a number. A slot that nobody wants lingers for a moment and is then
//! retired; whoever still holds it looks the query up again. A slot whose token is said to be no longer valid is *spent*: it
//! stays for those who hold it, and those who come later get a new one.

use std::borrow::Borrow;
use std::collections::{HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use foldhash::fast::RandomState;
use parking_lot::Mutex;

use crate::source::{AuthScope, Query, QueryId, QueryKey, Route, Sources, SubscriptionId};

use super::answers::{AnswerCell, Step};
use super::callbacks::{CallbackPool, Serial};
use super::cohorts::Reader;

/// A query in use: who wants it, and how it is answered.
#[derive(Debug)]
pub(super) struct QuerySlot {
    pub id: QueryId,
    pub key: QueryKey,
    pub route: Route,
    /// The spent slot of the same query that this one replaces.
    pub replaces: Option<QueryId>,
    /// The feed says that the token is no longer valid. Who held the slot by then ends; whoever comes later asks anew, so that a
    /// proxy that is registered again isn't ended by an answer from before (engine.md 7, M8).
    spent: AtomicBool,
    /// Calls of the feed, one after another.
    calls: OnceLock<Arc<Serial>>,
    inner: Mutex<SlotInner>,
}

#[derive(Debug, Default)]
struct SlotInner {
    /// The states to wake, by state number.
    interested: HashMap<u64, Reader, RandomState>,
    /// How many states have come so far.
    joined: u64,
    /// The newest cell, also before it is part of a step.
    latest: Option<Arc<AnswerCell>>,
    /// The subscription to a feed.
    subscription: Option<SubscriptionId>,
    /// When the last state lost interest.
    idle_since: Option<Duration>,
    /// No longer in the table; whoever still holds it must look it up again.
    retired: bool,
}

impl QuerySlot {
    fn new(id: QueryId, key: QueryKey, route: Route, replaces: Option<QueryId>) -> Arc<Self> {
        Arc::new(Self {
            id,
            key,
            route,
            replaces,
            spent: AtomicBool::new(false),
            calls: OnceLock::new(),
            inner: Mutex::default(),
        })
    }

    /// Whether its last answer says that the token is no longer valid.
    pub fn is_spent(&self) -> bool {
        self.spent.load(Ordering::SeqCst)
    }

    fn set_spent(&self, spent: bool) {
        self.spent.store(spent, Ordering::SeqCst);
    }

    /// Calls the feed, after all calls given before. A call that blocks holds up this query alone.
    pub fn call_feed(&self, pool: &CallbackPool, call: impl FnOnce() + Send + 'static) {
        self.calls
            .get_or_init(|| Serial::new(pool.clone()))
            .spawn(call);
    }

    /// Adds a state to be woken. Returns false if the slot is retired.
    pub fn add_interest(&self, reader: &Reader) -> bool {
        let mut inner = self.inner.lock();
        if inner.retired {
            return false;
        }
        inner.interested.insert(reader.number(), reader.clone());
        inner.joined += 1;
        inner.idle_since = None;
        true
    }

    /// Removes a state. Returns true if it was the last.
    pub fn remove_interest(&self, number: u64, now: Duration) -> bool {
        let mut inner = self.inner.lock();
        let removed = inner.interested.remove(&number);
        if inner.interested.is_empty() && inner.idle_since.is_none() {
            inner.idle_since = Some(now);
            inner.interested.shrink_to_fit();
        }
        let last = inner.interested.is_empty();
        drop(inner);
        drop(removed);
        last
    }

    /// How many states want it.
    pub fn readers(&self) -> usize {
        self.inner.lock().interested.len()
    }

    /// The states that want it, and how many have come so far.
    pub fn interested(&self) -> (Vec<Reader>, u64) {
        let inner = self.inner.lock();
        (inner.interested.values().cloned().collect(), inner.joined)
    }

    /// The states that want it, if one has come since there were `joined`.
    pub fn interested_since(&self, joined: u64) -> Vec<Reader> {
        let inner = self.inner.lock();
        if inner.joined == joined {
            return Vec::new();
        }
        inner.interested.values().cloned().collect()
    }

    /// The newest cell if it can serve a step, else a new one. The new one is remembered, and `inserted` called, unless
    /// a newer one is known.
    pub fn cell_for(&self, step: &Step, inserted: impl FnOnce()) -> Arc<AnswerCell> {
        let mut inner = self.inner.lock();
        let index = step.store.index();
        if let Some(latest) = inner
            .latest
            .as_ref()
            .filter(|latest| latest.bound() <= index)
        {
            return latest.clone();
        }
        let cell = AnswerCell::lazy(&step.store, None);
        if inner.latest.is_none() && !inner.retired {
            inner.latest = Some(cell.clone());
            drop(inner);
            inserted();
        }
        cell
    }

    /// Remembers the newest cell.
    pub fn set_latest(&self, cell: Option<Arc<AnswerCell>>) {
        self.inner.lock().latest = cell;
    }

    /// The newest cell.
    pub fn latest(&self) -> Option<Arc<AnswerCell>> {
        self.inner.lock().latest.clone()
    }

    /// Gives the slot a subscription if it has none. Returns it if it is new.
    fn subscribe(&self, next: impl FnOnce() -> SubscriptionId) -> Option<SubscriptionId> {
        let mut inner = self.inner.lock();
        if inner.subscription.is_some() || inner.retired {
            return None;
        }
        let id = next();
        inner.subscription = Some(id);
        Some(id)
    }

    /// The subscription, if there is one.
    pub fn subscription(&self) -> Option<SubscriptionId> {
        self.inner.lock().subscription
    }
}

/// All queries in use.
#[derive(Debug, Default)]
pub(super) struct QueryTable {
    inner: Mutex<TableInner>,
    next_subscription: AtomicU64,
    /// Whether a slot has ever been spent.
    ever_spent: AtomicBool,
}

#[derive(Debug, Default)]
struct TableInner {
    /// The slot that a query is looked up to, by scope.
    by_query: HashMap<AuthScope, HashSet<Current, RandomState>, RandomState>,
    by_id: HashMap<QueryId, Arc<QuerySlot>, RandomState>,
    by_subscription: HashMap<SubscriptionId, Arc<QuerySlot>, RandomState>,
    next_id: u64,
    closed: bool,
}

/// A slot, found by its query.
#[derive(Debug)]
struct Current(Arc<QuerySlot>);

impl Borrow<Query> for Current {
    fn borrow(&self) -> &Query {
        &self.0.key.query
    }
}

impl PartialEq for Current {
    fn eq(&self, other: &Self) -> bool {
        self.0.key.query == other.0.key.query
    }
}

impl Eq for Current {}

impl Hash for Current {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.key.query.hash(state);
    }
}

#[allow(
    clippy::mutable_key_type,
    reason = "slots are hashed and compared by their query, which doesn't change"
)]
impl TableInner {
    fn insert(&mut self, key: QueryKey, route: Route, replaces: Option<QueryId>) -> Arc<QuerySlot> {
        self.next_id += 1;
        let slot = QuerySlot::new(QueryId(self.next_id), key, route, replaces);
        let of_scope = self.by_query.entry(slot.key.scope.clone()).or_default();
        of_scope.replace(Current(slot.clone()));
        self.by_id.insert(slot.id, slot.clone());
        slot
    }

    fn find(&self, scope: &AuthScope, query: &Query) -> Option<&Arc<QuerySlot>> {
        Some(&self.by_query.get(scope)?.get(query)?.0)
    }

    fn remove(&mut self, slot: &QuerySlot) {
        if self.is_current(slot)
            && let Some(of_scope) = self.by_query.get_mut(&slot.key.scope)
        {
            of_scope.remove(&slot.key.query);
            if of_scope.is_empty() {
                self.by_query.remove(&slot.key.scope);
            }
        }
        self.by_id.remove(&slot.id);
    }

    /// Whether a slot is the one that its query is looked up to.
    fn is_current(&self, slot: &QuerySlot) -> bool {
        self.find(&slot.key.scope, &slot.key.query)
            .is_some_and(|current| current.id == slot.id)
    }
}

impl QueryTable {
    /// The slot of a query, made if need be. Views don't depend on who asks, so their scope is dropped (decision E4).
    pub fn intern(
        &self,
        scope: &AuthScope,
        query: &Query,
        sources: &dyn Sources,
    ) -> Arc<QuerySlot> {
        let route = sources.route(query);
        let scope = match route {
            Route::View => &AuthScope::ANONYMOUS,
            Route::Feed(_) => scope,
        };
        let mut inner = self.inner.lock();
        if let Some(slot) = inner.find(scope, query) {
            return slot.clone();
        }
        let key = QueryKey {
            scope: scope.clone(),
            query: query.clone(),
        };
        inner.insert(key, route, None)
    }

    /// Notes whether the last answer to a query says that the token is no longer valid.
    pub fn set_spent(&self, slot: &QuerySlot, spent: bool) {
        if spent {
            self.ever_spent.store(true, Ordering::SeqCst);
        }
        slot.set_spent(spent);
    }

    /// Whether a slot has ever been spent: if not, there is no need to look at each.
    pub fn ever_spent(&self) -> bool {
        self.ever_spent.load(Ordering::SeqCst)
    }

    /// Puts a new slot in the place of a spent one, which stays for those who hold it.
    pub fn renew(&self, spent: &QuerySlot) {
        let mut inner = self.inner.lock();
        if inner.is_current(spent) {
            inner.insert(spent.key.clone(), spent.route.clone(), Some(spent.id));
        }
    }

    /// The slot with a number.
    pub fn get(&self, id: QueryId) -> Option<Arc<QuerySlot>> {
        self.inner.lock().by_id.get(&id).cloned()
    }

    /// The slot of a query as it stands, without making one.
    pub fn find(&self, scope: &AuthScope, query: &Query) -> Option<Arc<QuerySlot>> {
        self.inner.lock().find(scope, query).cloned()
    }

    /// The slot of a subscription; none if it has ended.
    pub fn by_subscription(&self, id: SubscriptionId) -> Option<Arc<QuerySlot>> {
        self.inner.lock().by_subscription.get(&id).cloned()
    }

    /// Gives a slot a subscription if it has none, and calls `begin` with it before anybody can end it.
    pub fn subscribe(&self, slot: &Arc<QuerySlot>, begin: impl FnOnce(SubscriptionId)) {
        let mut inner = self.inner.lock();
        if inner.closed {
            return;
        }
        let next = || SubscriptionId(self.next_subscription.fetch_add(1, Ordering::Relaxed) + 1);
        if let Some(id) = slot.subscribe(next) {
            inner.by_subscription.insert(id, slot.clone());
            begin(id);
        }
    }

    /// Ends all subscriptions and begins no more; returns their slots.
    pub fn close(&self) -> Vec<Arc<QuerySlot>> {
        let mut inner = self.inner.lock();
        inner.closed = true;
        let mut slots: Vec<_> = inner
            .by_subscription
            .drain()
            .map(|(_, slot)| slot)
            .collect();
        slots.sort_by_key(|slot| slot.id);
        slots
    }

    /// Takes a slot that nobody has wanted since `before` out of the table. Returns false if somebody wants it, or did more
    /// recently.
    pub fn retire(&self, slot: &QuerySlot, before: Duration) -> bool {
        let mut inner = self.inner.lock();
        let mut state = slot.inner.lock();
        let idle =
            state.interested.is_empty() && state.idle_since.is_some_and(|since| since <= before);
        if !idle || state.retired {
            return false;
        }
        state.retired = true;
        state.latest = None;
        let subscription = state.subscription;
        drop(state);
        inner.remove(slot);
        if let Some(id) = subscription {
            inner.by_subscription.remove(&id);
        }
        true
    }

    /// How many queries are in use.
    pub fn len(&self) -> usize {
        self.inner.lock().by_id.len()
    }
}
