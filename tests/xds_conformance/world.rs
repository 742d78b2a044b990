//! A server on a loopback socket whose resources the test decides.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use proxycfg::clock::TestClock;
use proxycfg::server::ads::{
    AdsConfig, AdsService, AuthError, Caller, ClientNode, OpenError, Protocol, ResourceProvider,
    ResourceWatch, ServeError, StreamUpdate, serve,
};
use proxycfg::server::propagation::Propagation;
use proxycfg::xds::{Resource, ResourceSet, ResourceType};
use smol_str::SmolStr;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use crate::client::Client;

/// How long anything may take before a test fails.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// The proxy that tests are about, unless they say otherwise.
pub const PROXY: &str = "web-sidecar-proxy";

/// A secret that every set holds; clients ask for it to learn that the server has nothing else to say.
pub const FENCE: &str = "fence";

/// Resources come from here.
#[derive(Debug, Default)]
pub struct Provider {
    proxies: Mutex<BTreeMap<String, watch::Sender<StreamUpdate>>>,
    /// The answer to every look at a token, by token; others are fine.
    pub tokens: Mutex<BTreeMap<String, AuthError>>,
    /// What opening a watch fails with.
    pub refuse: Mutex<Option<OpenError>>,
    pub live_watches: Arc<AtomicUsize>,
    pub opened: Mutex<Vec<ClientNode>>,
    pub authorized: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct Watch {
    provider: &'static Provider,
    updates: watch::Receiver<StreamUpdate>,
    token: String,
}

impl Provider {
    fn with<T>(&self, proxy: &str, act: impl FnOnce(&watch::Sender<StreamUpdate>) -> T) -> T {
        let mut proxies = self.proxies.lock();
        act(proxies.entry(proxy.into()).or_default())
    }

    fn look_at(&self, token: &str) -> Result<(), AuthError> {
        self.tokens.lock().get(token).cloned().map_or(Ok(()), Err)
    }

    pub fn send(&self, proxy: &str, update: StreamUpdate) {
        self.with(proxy, |sender| sender.send_replace(update));
    }

    /// Drops the producing end.
    pub fn close(&self, proxy: &str) {
        self.proxies.lock().remove(proxy);
    }
}

#[derive(Debug)]
struct Handle(&'static Provider);

impl ResourceProvider for Handle {
    fn resolve_token(&self, caller: &Caller) -> Result<(), AuthError> {
        assert!(caller.peer.is_some());
        self.0.look_at(&caller.token)
    }

    fn open(
        &self,
        node: &ClientNode,
        caller: &Caller,
    ) -> Result<Box<dyn ResourceWatch>, OpenError> {
        if let Some(error) = self.0.refuse.lock().clone() {
            return Err(error);
        }
        self.0.opened.lock().push(node.clone());
        self.0.live_watches.fetch_add(1, Ordering::SeqCst);
        Ok(Box::new(Watch {
            provider: self.0,
            updates: self.0.with(&node.id, watch::Sender::subscribe),
            token: caller.token.to_string(),
        }))
    }
}

impl ResourceWatch for Watch {
    fn updates(&self) -> watch::Receiver<StreamUpdate> {
        self.updates.clone()
    }

    fn authorize(&self, _: &ResourceSet) -> Result<(), AuthError> {
        self.provider.authorized.fetch_add(1, Ordering::SeqCst);
        self.provider.look_at(&self.token)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.provider.live_watches.fetch_sub(1, Ordering::SeqCst);
    }
}

/// What the proxy has at the moment: content and children by type and name.
type Contents = BTreeMap<(ResourceType, String), (String, Vec<SmolStr>)>;

pub struct World {
    pub service: AdsService,
    pub provider: &'static Provider,
    pub addr: SocketAddr,
    /// The clock of [`World::times`].
    pub clock: Arc<TestClock>,
    /// Each [`World::publish`] is a commit.
    pub times: Arc<Propagation>,
    contents: Mutex<Contents>,
    last: Mutex<Option<ResourceSet>>,
    stop: Option<oneshot::Sender<()>>,
    served: JoinHandle<Result<(), ServeError>>,
}

impl World {
    pub async fn start() -> Self {
        Self::start_with(AdsConfig::default()).await
    }

    pub async fn start_with(config: AdsConfig) -> Self {
        let provider: &'static Provider = Box::leak(Box::default());
        let clock = Arc::new(TestClock::new());
        let times = Arc::new(Propagation::new(clock.clone()));
        let service = AdsService::measured(Arc::new(Handle(provider)), config, Some(times.clone()));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let served = tokio::spawn(serve(listener, None, service.clone(), async move {
            // Dropping the world stops the server too.
            let _ = stopped.await;
        }));
        Self {
            service,
            provider,
            addr,
            clock,
            times,
            contents: Mutex::default(),
            last: Mutex::default(),
            stop: Some(stop),
            served,
        }
    }

    /// Stops the server and waits until it has stopped.
    pub async fn stop(mut self) {
        self.stop.take().unwrap().send(()).unwrap();
        let served = tokio::time::timeout(DEADLINE, self.served).await;
        served.expect("stops in time").unwrap().unwrap();
    }

    pub async fn connect(&self) -> Client {
        self.connect_as(Protocol::Delta).await
    }

    pub async fn connect_as(&self, protocol: Protocol) -> Client {
        Client::connect(self, protocol, PROXY).await
    }

    /// Changes what the proxy will have at the next [`World::publish`].
    pub fn put(&self, kind: ResourceType, name: &str, content: &str) -> &Self {
        let children = match kind {
            ResourceType::Cluster => vec![name.into()],
            _ => Vec::new(),
        };
        let key = (kind, name.to_owned());
        let value = (content.to_owned(), children);
        self.contents.lock().insert(key, value);
        self
    }

    /// A listener that uses a route.
    pub fn put_listener(&self, name: &str, content: &str, route: &str) -> &Self {
        let key = (ResourceType::Listener, name.to_owned());
        let value = (content.to_owned(), vec![route.into()]);
        self.contents.lock().insert(key, value);
        self
    }

    pub fn remove(&self, kind: ResourceType, name: &str) -> &Self {
        self.contents.lock().remove(&(kind, name.to_owned()));
        self
    }

    /// The set as it would be published now.
    pub fn set(&self) -> ResourceSet {
        let mut last = self.last.lock();
        let index = last.as_ref().map_or(1, |last| last.index() + 1);
        let mut builder = ResourceSet::builder(index);
        builder.insert(Resource::new(ResourceType::Secret, FENCE, "f"));
        for ((kind, name), (content, children)) in &*self.contents.lock() {
            let resource = Resource::new(*kind, name, format!("{name}@{content}"));
            builder.insert(resource.with_children(children.iter().cloned()));
        }
        let set = match &*last {
            Some(last) => builder.build_after(last),
            None => builder.build(),
        };
        *last = Some(set.clone());
        set
    }

    /// Publishes, and waits until every open stream of the proxy has taken it.
    pub async fn publish(&self) -> u64 {
        let set = self.set();
        let index = set.index();
        self.times.committed(index);
        self.provider.send(PROXY, StreamUpdate::Resources(set));
        self.until("streams take the update", || {
            let streams = self.service.streams();
            let mut open = streams.iter().filter(|stream| stream.node.is_some());
            open.all(|stream| stream.index.is_some_and(|taken| taken >= index))
        })
        .await;
        index
    }

    /// Waits for something that another task does.
    pub async fn until(&self, what: &str, done: impl Fn() -> bool) {
        let start = tokio::time::Instant::now();
        while !done() {
            assert!(start.elapsed() < DEADLINE, "in vain: {what}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    pub async fn until_closed(&self) {
        self.until("streams are closed and watches released", || {
            self.service.open_streams() == 0
                && self.provider.live_watches.load(Ordering::SeqCst) == 0
        })
        .await;
    }
}

/// Every row of the table applies to each of these.
pub const TYPES: [ResourceType; 4] = [
    ResourceType::Cluster,
    ResourceType::Endpoint,
    ResourceType::Listener,
    ResourceType::Route,
];

/// A world in which the proxy has these resources of one type, each with content 1.
pub async fn world_with(kind: ResourceType, names: &[&str]) -> World {
    let world = World::start().await;
    for name in names {
        world.put(kind, name, "1");
    }
    world.publish().await;
    world
}

/// The same, with a client that has asked for some of them, or all, and got what there is.
pub async fn subscribed(
    protocol: Protocol,
    kind: ResourceType,
    names: &[&str],
    asked: &[&str],
) -> (World, Client) {
    let world = world_with(kind, names).await;
    let mut client = world.connect_as(protocol).await;
    client.subscribe(kind, asked).await;
    let got = names
        .iter()
        .filter(|name| asked.is_empty() || asked.contains(name));
    let got: Vec<String> = got.map(|name| format!("{name}@1")).collect();
    let got: Vec<&str> = got.iter().map(String::as_str).collect();
    client.expect(kind, &got, &[]).await;
    (world, client)
}
