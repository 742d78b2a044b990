//! A small world for engine tests: an embedded engine, and short ways to write records.

use std::sync::Arc;
use std::time::{Duration, Instant};

use proxycfg::clock::TestClock;
use proxycfg::embedded::{Embedded, EmbeddedConfig};
use proxycfg::engine::{Manager, RegisterOptions, Registered, SnapshotRef, Watch};
use proxycfg::hcl::Value;
use proxycfg::model::{
    CheckStatus, ConfigEntry, HealthCheck, Node, ProxyConfig, ProxyId, ProxySource,
    ServiceInstance, ServiceKind, Upstream, decode_document,
};
use proxycfg::proxy::Registration;
use proxycfg::snapshot::{ConfigSnapshot, KindSnapshot, UpstreamEntry};
use proxycfg::store::{Op, Register, Store, Transaction};

/// How long a condition may take before a test fails.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub struct World {
    pub embedded: Embedded,
    pub clock: Arc<TestClock>,
}

impl World {
    pub fn new() -> Self {
        Self::with(|_| {})
    }

    pub fn with(change: impl FnOnce(&mut EmbeddedConfig)) -> Self {
        let mut config = EmbeddedConfig::default();
        config.engine.workers = 2;
        change(&mut config);
        let clock = Arc::new(TestClock::new());
        let embedded = Embedded::start_with(config, clock.clone()).unwrap();
        Self { embedded, clock }
    }

    pub fn manager(&self) -> &Manager {
        &self.embedded.manager
    }

    pub fn store(&self) -> &Arc<Store> {
        &self.embedded.store
    }

    pub fn apply(&self, ops: Vec<Op>) -> u64 {
        self.store().apply(Transaction::from(ops)).unwrap().index
    }

    /// An instance and its sidecar, on a node of their own.
    pub fn instance(&self, service: &str, n: u32) -> u64 {
        self.apply(instance_ops(service, n))
    }

    pub fn remove_instance(&self, service: &str, n: u32) -> u64 {
        self.apply(vec![Op::DeregisterNode {
            node: node_name(service, n).as_str().into(),
        }])
    }

    pub fn check(&self, service: &str, n: u32, status: CheckStatus) -> u64 {
        self.apply(vec![check_op(service, n, status)])
    }

    pub fn entry(&self, json: serde_json::Value) -> u64 {
        self.apply(vec![entry_op(json)])
    }

    /// Registers a sidecar by definition, as the local source does.
    pub fn register(&self, id: &ProxyId, instance: ServiceInstance) -> Registered {
        self.manager().register(id, options(instance)).unwrap()
    }

    /// Waits until all that follows from the store's present state is in the cells.
    pub fn settle(&self) {
        let index = self.store().snapshot().index();
        self.manager()
            .wait_index(index, Instant::now() + PATIENCE)
            .unwrap();
    }

    /// Waits until the proxy has a snapshot and everything has settled.
    pub fn ready(&self, id: &ProxyId) -> SnapshotRef {
        let mut watch = self.manager().watch(id);
        let first = watch.next(Some(Instant::now() + PATIENCE)).unwrap();
        let Some(first) = first else {
            panic!("{id} isn't ready: {:?}", self.manager().status(id));
        };
        self.settle();
        watch.current().unwrap_or(first)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.embedded.close_soon();
    }
}

/// Whether two handles are the same snapshot.
pub fn is_same(a: &SnapshotRef, b: &SnapshotRef) -> bool {
    triomphe::Arc::ptr_eq(a, b)
}

pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(
            Instant::now() < deadline,
            "{what} didn't come true in {PATIENCE:?}"
        );
        std::thread::yield_now();
    }
}

pub fn options(instance: ServiceInstance) -> RegisterOptions {
    RegisterOptions {
        kind: instance.kind,
        registration: Registration::Definition(triomphe::Arc::new(instance)),
        source: ProxySource::LOCAL,
        token: Default::default(),
        overwrite: true,
    }
}

pub fn proxy_id(service: &str) -> ProxyId {
    ProxyId::new(format!("{service}-sidecar-proxy"), "agent-node")
}

/// The sidecar of a service, with upstreams on ports from 9001.
pub fn sidecar(service: &str, upstreams: &[&str]) -> ServiceInstance {
    ServiceInstance {
        kind: ServiceKind::ConnectProxy,
        id: format!("{service}-sidecar-proxy"),
        service: format!("{service}-sidecar-proxy"),
        port: 21000,
        proxy: ProxyConfig {
            destination_service_name: service.into(),
            destination_service_id: service.into(),
            local_service_address: "127.0.0.1".into(),
            local_service_port: 8080,
            upstreams: upstreams
                .iter()
                .zip(9001..)
                .map(|(name, port)| Upstream {
                    destination_name: (*name).into(),
                    local_bind_port: port,
                    ..Upstream::default()
                })
                .collect(),
            ..ProxyConfig::default()
        },
        ..ServiceInstance::default()
    }
}

pub fn node_name(service: &str, n: u32) -> String {
    format!("{service}-node-{n}")
}

pub fn instance_ops(service: &str, n: u32) -> Vec<Op> {
    let node = Node {
        node: node_name(service, n),
        address: format!("10.0.{}.{}", n / 250, n % 250 + 1),
        datacenter: "dc1".into(),
        ..Node::default()
    };
    let id = format!("{service}-{n}");
    let app = ServiceInstance {
        id: id.clone(),
        service: service.into(),
        port: 8080,
        meta: [("version".to_owned(), format!("v{}", n % 2 + 1))].into(),
        ..ServiceInstance::default()
    };
    let mut proxy = sidecar(service, &[]);
    proxy.id = format!("{id}-sidecar-proxy");
    proxy.proxy.destination_service_id = id.clone();
    proxy.meta = app.meta.clone();
    let check = check(service, n, CheckStatus::Passing);
    [(app, Vec::new()), (proxy, vec![check])]
        .into_iter()
        .map(|(service, checks)| {
            let service = Some(service);
            Op::Register(Box::new(Register {
                node: node.clone(),
                service,
                checks,
                ..Register::default()
            }))
        })
        .collect()
}

fn check(service: &str, n: u32, status: CheckStatus) -> HealthCheck {
    HealthCheck {
        node: node_name(service, n),
        check_id: "listening".into(),
        name: "Connect Sidecar Listening".into(),
        service_id: format!("{service}-{n}-sidecar-proxy"),
        status,
        ..HealthCheck::default()
    }
}

pub fn check_op(service: &str, n: u32, status: CheckStatus) -> Op {
    Op::SetCheck(Box::new(check(service, n, status)))
}

pub fn entry(json: serde_json::Value) -> ConfigEntry {
    decode_document::<ConfigEntry>(&Value::from_json(&json))
        .unwrap_or_else(|p| panic!("{}", p.text()))
        .0
}

pub fn entry_op(json: serde_json::Value) -> Op {
    Op::SetConfig {
        entry: Box::new(entry(json)),
        cas: None,
    }
}

/// The upstream of a snapshot by name.
pub fn upstream<'s>(snapshot: &'s ConfigSnapshot, name: &str) -> &'s UpstreamEntry {
    let KindSnapshot::ConnectProxy(sidecar) = &snapshot.kind;
    let found = sidecar.upstreams.iter().find(|u| u.id().name == name);
    found.unwrap_or_else(|| panic!("no upstream {name} in {:?}", sidecar.upstreams))
}

/// The addresses of all instances that an upstream leads to, with their health.
pub fn addresses(snapshot: &ConfigSnapshot, name: &str) -> Vec<String> {
    let Some(target) = &upstream(snapshot, name).target else {
        return vec!["no chain".into()];
    };
    target
        .endpoints
        .iter()
        .flat_map(|t| t.endpoints.iter().flat_map(|part| part.iter()))
        .map(|e| format!("{}:{} {:?}", e.address, e.port, e.health))
        .collect()
}

pub fn next(watch: &mut Watch) -> SnapshotRef {
    watch
        .next(Some(Instant::now() + PATIENCE))
        .unwrap()
        .expect("a snapshot in time")
}
