//! An engine over sources that a test controls: a feed that answers when told to, and a hook in front of the views.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use proxycfg::ca::Authority;
use proxycfg::clock::TestClock;
use proxycfg::engine::{EngineConfig, Manager, Registered, SnapshotRef};
use proxycfg::model::{CaConfig, IssuedCert, PrivateKey, ProxyId, ServiceInstance, SpiffeId};
use proxycfg::snapshot::Part;
use proxycfg::source::{
    Answer, AuthScope, ChainCheck, Feed, FeedSink, Query, QueryError, Route, Sources, StoreViews,
    SubscriptionId, Views,
};
use proxycfg::store::{MemoryBackend, Op, Reader, Store, Transaction};

use crate::world::{PATIENCE, eventually, options};

type Result = std::result::Result<Answer, QueryError>;
type Hook = Arc<dyn Fn(&Query) -> Option<Result> + Send + Sync>;
type Answers = Arc<dyn Fn(&AuthScope, &Query) -> Option<Result> + Send + Sync>;

/// A certificate with a serial number of its own.
pub fn certificate(service: &str) -> Answer {
    static SERIAL: AtomicU64 = AtomicU64::new(1);
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    Answer::Leaf(Part::new(IssuedCert {
        serial_number: serial.to_string().into(),
        cert_pem: "certificate".into(),
        private_key: PrivateKey::from_pem("key"),
        identity: SpiffeId::Service {
            trust_domain: "td.consul".into(),
            partition: "default".into(),
            namespace: "default".into(),
            datacenter: "dc1".into(),
            service: service.into(),
        },
        authority_key_id: "00".into(),
        valid_after: SystemTime::UNIX_EPOCH,
        valid_before: SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000_000),
        create_index: serial,
        modify_index: serial,
    }))
}

pub fn certificate_for(query: &Query) -> Option<Result> {
    match query {
        Query::Leaf { service } => Some(Ok(certificate(service))),
        _ => None,
    }
}

#[derive(Clone)]
pub struct Subscribed {
    pub scope: AuthScope,
    pub query: Query,
    pub sink: FeedSink,
}

/// A feed that answers at once if it has an answer, and again whenever a test says so.
pub struct HostFeed {
    pub live: Mutex<BTreeMap<SubscriptionId, Subscribed>>,
    /// Every subscription ever; not what it consists of, since that holds the engine, which holds this.
    pub all: Mutex<Vec<SubscriptionId>>,
    pub answers: Mutex<Answers>,
    /// The token refreshed subscriptions.
    pub refreshed: AtomicU64,
}

impl HostFeed {
    fn new() -> Self {
        Self {
            live: Mutex::default(),
            all: Mutex::default(),
            answers: Mutex::new(Arc::new(|_, query| certificate_for(query))),
            refreshed: AtomicU64::new(0),
        }
    }

    pub fn answer_with(
        &self,
        answers: impl Fn(&AuthScope, &Query) -> Option<Result> + Send + Sync + 'static,
    ) {
        *self.answers.lock() = Arc::new(answers);
    }

    /// The live subscriptions of a query, under any token.
    pub fn of(&self, wanted: impl Fn(&Query) -> bool) -> Vec<(SubscriptionId, Subscribed)> {
        let live = self.live.lock();
        live.iter()
            .filter(|(_, subscribed)| wanted(&subscribed.query))
            .map(|(id, subscribed)| (*id, subscribed.clone()))
            .collect()
    }

    /// Answers all live subscriptions of a query, once there is one: the feed is told of it on a thread of its own.
    pub fn send(&self, wanted: impl Fn(&Query) -> bool, answer: impl Fn(&Query) -> Result) {
        eventually("a subscription", || !self.of(&wanted).is_empty());
        for (id, subscribed) in self.of(wanted) {
            subscribed.sink.answer(id, answer(&subscribed.query));
        }
    }

    pub fn count(&self) -> usize {
        self.live.lock().len()
    }
}

impl Feed for HostFeed {
    fn subscribe(&self, id: SubscriptionId, scope: &AuthScope, query: &Query, sink: FeedSink) {
        let subscribed = Subscribed {
            scope: scope.clone(),
            query: query.clone(),
            sink: sink.clone(),
        };
        self.live.lock().insert(id, subscribed);
        self.all.lock().push(id);
        let answers = self.answers.lock().clone();
        if let Some(answer) = answers(scope, query) {
            sink.answer(id, answer);
        }
    }

    fn unsubscribe(&self, id: SubscriptionId) {
        assert!(self.live.lock().remove(&id).is_some(), "{id:?} isn't live");
    }

    fn refresh(&self, id: SubscriptionId) {
        self.refreshed.fetch_add(1, Ordering::SeqCst);
        let subscribed = self.live.lock().get(&id).cloned();
        if let Some(subscribed) = subscribed
            && let Some(answer) = certificate_for(&subscribed.query)
        {
            subscribed.sink.answer(id, answer);
        }
    }
}

/// Sources of a host: leaves, and what `fed` names, come from the feed.
pub struct HostSources {
    views: StoreViews,
    pub feed: Arc<HostFeed>,
    /// Answers in place of the views, or panics.
    pub hook: Mutex<Option<Hook>>,
    /// Makes the states of proxies panic.
    pub panic_at_route: AtomicBool,
    fed: fn(&Query) -> bool,
}

impl Views for HostSources {
    fn eval(&self, query: &Query, reader: &Reader<'_>) -> Result {
        let hook = self.hook.lock().clone();
        let result = self.views.answer(query, reader);
        hook.and_then(|hook| hook(query)).unwrap_or(result)
    }
}

impl Sources for HostSources {
    fn route(&self, query: &Query) -> Route {
        assert!(!self.panic_at_route.load(Ordering::SeqCst), "by intent");
        if matches!(query, Query::Leaf { .. }) || (self.fed)(query) {
            Route::Feed(self.feed.clone())
        } else {
            Route::View
        }
    }
}

pub struct Host {
    pub manager: Manager,
    pub store: Arc<Store>,
    pub clock: Arc<TestClock>,
    pub sources: Arc<HostSources>,
}

impl Host {
    pub fn new() -> Self {
        Self::with(|_| {}, |_| false)
    }

    pub fn with(change: impl FnOnce(&mut EngineConfig), fed: fn(&Query) -> bool) -> Self {
        let mut config = EngineConfig {
            workers: 2,
            ..EngineConfig::default()
        };
        change(&mut config);
        let clock = Arc::new(TestClock::new());
        let store = Arc::new(Store::new(Box::new(MemoryBackend), Arc::new(ChainCheck)).unwrap());
        let authority = Authority::bootstrap(clock.clone(), "dc1", CaConfig::default()).unwrap();
        let sources = Arc::new(HostSources {
            views: StoreViews {
                datacenter: "dc1".into(),
            },
            feed: Arc::new(HostFeed::new()),
            hook: Mutex::default(),
            panic_at_route: AtomicBool::new(false),
            fed,
        });
        let manager =
            Manager::start(config, clock.clone(), store.clone(), sources.clone()).unwrap();
        let host = Self {
            manager,
            store,
            clock,
            sources,
        };
        host.apply(vec![Op::SetCaRoots {
            roots: Box::new(authority.roots()),
            cas: None,
        }]);
        host
    }

    pub fn feed(&self) -> &HostFeed {
        &self.sources.feed
    }

    pub fn hook(&self, hook: impl Fn(&Query) -> Option<Result> + Send + Sync + 'static) {
        *self.sources.hook.lock() = Some(Arc::new(hook));
    }

    pub fn unhook(&self) {
        *self.sources.hook.lock() = None;
    }

    pub fn apply(&self, ops: Vec<Op>) -> u64 {
        self.store.apply(Transaction::from(ops)).unwrap().index
    }

    pub fn register(&self, id: &ProxyId, instance: ServiceInstance) -> Registered {
        self.manager.register(id, options(instance)).unwrap()
    }

    pub fn register_as(&self, id: &ProxyId, instance: ServiceInstance, token: &str) -> Registered {
        let mut options = options(instance);
        options.token = token.into();
        self.manager.register(id, options).unwrap()
    }

    pub fn settle(&self) {
        let index = self.store.snapshot().index();
        self.manager
            .wait_index(index, Instant::now() + PATIENCE)
            .unwrap();
    }

    pub fn ready(&self, id: &ProxyId) -> SnapshotRef {
        match self.manager.wait_ready(id, Instant::now() + PATIENCE) {
            Ok(snapshot) => snapshot,
            Err(error) => panic!("{id} isn't ready: {error}: {:?}", self.manager.status(id)),
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.manager.close(Instant::now() + PATIENCE);
    }
}

pub fn is_leaf(query: &Query) -> bool {
    matches!(query, Query::Leaf { .. })
}

pub fn token(name: &str) -> AuthScope {
    AuthScope(name.into())
}
