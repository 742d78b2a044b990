//! Everything that keeps proxies up to date, in one process on a test clock.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use proxycfg::clock::TestClock;
use proxycfg::config_source::{
    CatalogConfigSource, CatalogOptions, LocalConfigSource, LocalState, LocalSync,
    LocalSyncOptions, Origin, SessionLimiter,
};
use proxycfg::embedded::{Embedded, EmbeddedConfig};
use proxycfg::engine::{EngineCounts, RegisterOptions};
use proxycfg::hcl::Value as Tree;
use proxycfg::model::{
    Node, ProxyId, ProxySource, ServiceDefinition, SidecarPortRange, decode_document,
};
use proxycfg::proxy::Registration;
use proxycfg::source::{HostFeed, QueryKind};
use proxycfg::store::Image;
use serde_json::Value;

use crate::moody::Moody;
use crate::oracle::masked;
use crate::world::{PATIENCE, World, eventually, options};

/// The node of the local agent.
pub const NODE: &str = "local-node";

pub struct Mesh {
    pub embedded: Embedded,
    pub clock: Arc<TestClock>,
    pub local: Arc<LocalState>,
    pub sync: LocalSync,
    pub catalog: CatalogConfigSource,
    /// Where certificates come from, if not from the authority.
    pub feed: Option<Arc<Moody>>,
}

/// Whose the proxies are that tests register themselves.
pub const SOURCE: ProxySource = ProxySource(smol_str::SmolStr::new_static("simulation"));

/// What is alive in an engine.
pub type Alive = (usize, u64, usize, u64, usize, usize);

pub fn alive(counts: &EngineCounts) -> Alive {
    (
        counts.queries,
        counts.states,
        counts.proxies,
        counts.watches,
        counts.threads,
        counts.cohorts,
    )
}

impl Mesh {
    pub fn new(feed: Option<Moody>) -> Self {
        let clock = Arc::new(TestClock::new());
        let feed = feed.map(Arc::new);
        let mut config = EmbeddedConfig::default();
        config.engine.workers = 2;
        config.host = feed.clone().map(|feed| HostFeed {
            kinds: BTreeSet::from([QueryKind::Leaf]),
            feed,
        });
        let embedded = Embedded::start_with(config, clock.clone()).unwrap();
        let local = Arc::new(LocalState::new(NODE, SidecarPortRange::default()));
        let node = Node {
            node: NODE.to_owned(),
            address: "10.9.9.9".to_owned(),
            datacenter: "dc1".to_owned(),
            ..Node::default()
        };
        let manager = &embedded.manager;
        let options = LocalSyncOptions::new(node);
        let sync = LocalSync::start(manager.clone(), local.clone(), options).unwrap();
        let catalog = CatalogConfigSource::start(
            manager.clone(),
            LocalConfigSource::new(manager.clone(), local.clone()),
            SessionLimiter::default(),
            &CatalogOptions::default(),
        )
        .unwrap();
        let mesh = Self {
            embedded,
            clock,
            local,
            sync,
            catalog,
            feed,
        };
        mesh.flush();
        mesh
    }

    pub fn define(&self, service: &str, port: u16) {
        let json = serde_json::json!({"Name": service, "Port": port, "Connect": {"SidecarService": {
            "Proxy": {"Upstreams": [{"DestinationName": "db", "LocalBindPort": 9001}]}}}});
        let definition = decode_document::<ServiceDefinition>(&Tree::from_json(&json));
        self.local.add(definition.unwrap().0, &Origin::API).unwrap();
    }

    /// Waits until the local state is taken in and all that follows is in the cells.
    pub fn flush(&self) {
        self.sync.sync_soon();
        self.sync.flush(Instant::now() + PATIENCE).unwrap();
        let index = self.embedded.store.snapshot().index();
        let manager = &self.embedded.manager;
        manager
            .wait_index(index, Instant::now() + PATIENCE)
            .unwrap();
    }

    /// The local sidecars, as the sync registers them.
    pub fn local_proxies(&self) -> BTreeMap<ProxyId, RegisterOptions> {
        let entries = self.local.services().into_iter();
        entries
            .filter(|entry| entry.service.kind.is_proxy())
            .map(|entry| {
                let id = ProxyId::new(&*entry.service.id, NODE);
                let mut options = options((*entry.service).clone());
                options.registration = Registration::Definition(entry.service);
                (id, options)
            })
            .collect()
    }

    /// Moves time on until a proxy has its snapshot and nothing is wrong with it.
    pub fn heal(&self, id: &ProxyId) {
        let manager = &self.embedded.manager;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let status = manager.status(id);
            if status
                .as_ref()
                .is_some_and(|s| s.ready && s.fault.is_none())
            {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "{id} is not well again: {status:?}"
            );
            self.clock.advance(Duration::from_secs(5));
            std::thread::yield_now();
        }
    }

    /// The snapshots of proxies.
    pub fn snapshots(&self, of: impl IntoIterator<Item = ProxyId>) -> BTreeMap<ProxyId, Value> {
        let of = of.into_iter();
        of.map(|id| {
            let newest = self.embedded.manager.watch(&id).current();
            let newest = newest.unwrap_or_else(|| panic!("{id} has no snapshot"));
            (id, masked(newest.to_json()))
        })
        .collect()
    }

    /// Moves time on until no more is alive than at the beginning.
    pub fn ends_at(&self, base: Alive) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.clock.advance(Duration::from_secs(3));
            let counts = self.embedded.manager.counts();
            let fed = self.feed.as_ref().map_or(0, |feed| feed.count());
            let followed = self.catalog.followed();
            if alive(&counts) == base && (fed, followed) == (0, 0) {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "left behind: {counts:?}, {fed} subscriptions, {followed} followed; at first {base:?}"
            );
            std::thread::yield_now();
        }
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        self.catalog.shut_down();
        self.sync.stop();
        self.embedded.close_soon();
    }
}

/// What a fresh engine makes of records and registrations.
pub fn from_scratch(
    image: &Image,
    proxies: &BTreeMap<ProxyId, RegisterOptions>,
) -> BTreeMap<ProxyId, Value> {
    let world = World::new();
    world.store().restore(image).unwrap();
    for (id, options) in proxies {
        let mut options = options.clone();
        options.source = ProxySource::new("oracle");
        world.manager().register(id, options).unwrap();
    }
    for id in proxies.keys() {
        eventually("readiness from scratch", || {
            let status = world.manager().status(id);
            status.is_some_and(|status| status.ready)
        });
    }
    let ids = proxies.keys();
    ids.map(|id| (id.clone(), masked(world.ready(id).to_json())))
        .collect()
}

/// Threads and open files of this process; but not the threads that wait to run other tests, which are named after them.
pub fn handles() -> (usize, usize) {
    let of = |folder| std::fs::read_dir(folder).unwrap().flatten();
    let is_test = |name: &str| name.contains("::");
    let threads = of("/proc/self/task").filter(|thread| {
        // A thread that has just ended has no name any more.
        let name = std::fs::read_to_string(thread.path().join("comm"));
        name.is_ok_and(|name| !is_test(&name))
    });
    (threads.count(), of("/proc/self/fd").count())
}
