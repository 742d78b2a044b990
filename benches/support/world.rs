//! What the rows work on: services in a store, proxies that dial them, and how a figure is printed.

use std::time::{Duration, Instant};

use proxycfg::model::{
    CheckStatus, HealthCheck, Node, ProxyConfig, ServiceInstance, ServiceKind, Upstream,
};
use proxycfg::snapshot::{ConfigSnapshot, KindSnapshot};
use proxycfg::store::Register;
use proxycfg::{
    Embedded, EmbeddedConfig, Op, ProxyId, ProxySource, RegisterOptions, Registration, SnapshotRef,
    Store, Transaction,
};
use serde_json::json;

/// How long anything may take.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The shape of a row's work.
pub struct Size {
    /// Proxies.
    pub proxies: usize,
    /// Upstreams of each.
    pub upstreams: usize,
    /// Endpoints of each service.
    pub endpoints: usize,
    /// Services.
    pub services: usize,
    /// Splits of a chain.
    pub splits: usize,
    /// How often.
    pub rounds: usize,
}

/// Prints a figure.
pub fn print(metric: &str, ours: f64, unit: &str) {
    println!("{}", json!({"metric": metric, "ours": ours, "unit": unit}));
}

/// Prints what something else comes to that is measured here too.
pub fn print_peer(metric: &str, peer_name: &str, peer: f64, unit: &str) {
    let line = json!({"metric": metric, "peer": peer, "peer_name": peer_name, "unit": unit});
    println!("{line}");
}

/// An engine.
pub fn engine() -> Embedded {
    Embedded::start(EmbeddedConfig::default()).expect("an engine")
}

/// A sidecar of a service.
pub fn sidecar(
    service: &str,
    id: &str,
    upstreams: impl Iterator<Item = String>,
) -> ServiceInstance {
    let dials = |(name, port)| Upstream {
        destination_name: name,
        local_bind_port: port,
        ..Upstream::default()
    };
    ServiceInstance {
        kind: ServiceKind::ConnectProxy,
        id: id.into(),
        service: format!("{service}-sidecar-proxy"),
        port: 21000,
        proxy: ProxyConfig {
            destination_service_name: service.into(),
            destination_service_id: service.into(),
            local_service_port: 8080,
            upstreams: upstreams.zip(9001..).map(dials).collect(),
            ..ProxyConfig::default()
        },
        ..ServiceInstance::default()
    }
}

/// A service's name.
pub fn service(number: usize) -> String {
    format!("s{number}")
}

/// Writes an instance of a service; the store index afterwards.
pub fn write_instance(store: &Store, service: &str, number: usize, status: CheckStatus) -> u64 {
    let node = Node {
        node: format!("node-{number}"),
        address: format!("10.0.{}.{}", number / 250, number % 250),
        datacenter: "dc1".into(),
        ..Node::default()
    };
    let id = format!("{service}-{number}");
    let check = HealthCheck {
        node: node.node.clone(),
        check_id: format!("{id}-alive").as_str().into(),
        service_id: id.clone(),
        status,
        ..HealthCheck::default()
    };
    let register = Register {
        node,
        service: Some(sidecar(service, &id, std::iter::empty())),
        checks: vec![check],
        ..Register::default()
    };
    let written = store.apply(Transaction::of(Op::Register(Box::new(register))));
    written.expect("a write").index
}

/// Writes instances of all services; the store index afterwards.
pub fn write_services(store: &Store, services: usize, endpoints: usize) -> u64 {
    let all = (0..services).flat_map(|s| (0..endpoints).map(move |e| (s, e)));
    let written = all.map(|(s, e)| write_instance(store, &service(s), e, CheckStatus::Passing));
    written.last().unwrap_or_default()
}

/// Registers a proxy.
pub fn register(engine: &Embedded, id: &ProxyId, instance: triomphe::Arc<ServiceInstance>) {
    let options = RegisterOptions {
        kind: instance.kind,
        registration: Registration::Definition(instance),
        source: ProxySource::LOCAL,
        token: Default::default(),
        overwrite: true,
    };
    let registered = engine.manager.register(id, options);
    registered.expect("a registration");
}

/// Waits until all is as of a store index.
pub fn settle(engine: &Embedded, index: u64) {
    let settled = engine.manager.wait_index(index, Instant::now() + PATIENCE);
    settled.expect("settled in time");
}

/// Waits for a proxy's first snapshot.
pub fn ready(engine: &Embedded, id: &ProxyId) -> SnapshotRef {
    let ready = engine.manager.wait_ready(id, Instant::now() + PATIENCE);
    ready.expect("ready in time")
}

/// How many endpoints a snapshot has.
pub fn endpoints_in(snapshot: &ConfigSnapshot) -> usize {
    let KindSnapshot::ConnectProxy(sidecar) = &snapshot.kind;
    let targets = sidecar.upstreams.iter().filter_map(|u| u.target.as_ref());
    let groups = targets.flat_map(|target| target.endpoints.iter());
    groups
        .map(|group| group.endpoints.as_ref().map_or(0, |list| list.len()))
        .sum()
}

/// A percentile of some times.
pub fn percentile(times: &mut [Duration], p: usize) -> Duration {
    times.sort_unstable();
    times[(times.len() * p / 100).min(times.len() - 1)]
}

/// A time in milliseconds.
pub fn milliseconds(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e6
}
