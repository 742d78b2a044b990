//! Our side of `benches/compare/run`, which puts it next to other programs: does the work of one row, checks that it
//! happened, and prints what it cost as JSON lines, e.g. `{"ours":0.8,"metric":"p50","unit":"ms"}`. Needs the engine only.
//!
//! `cargo bench -p proxycfg --no-default-features --bench compare -- --row fan-out --proxies 1000`; without a row, all of them in small.
//!
//! Allocations are counted by an allocator of its own, which costs each a few nanoseconds.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a bench fails by panicking"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use proxycfg::hcl::Value;
use proxycfg::model::{
    CaConfig, CheckStatus, ConfigEntry, HealthCheck, IssuedCert, Node, PrivateKey, ProxyConfig,
    ServiceInstance, ServiceKind, SpiffeId, Upstream, decode_document,
};
use proxycfg::proxy::{Changed, Input, Inputs, ProxySettings, SharedParts, SoloProxy};
use proxycfg::snapshot::{ConfigSnapshot, KindSnapshot, Part};
use proxycfg::source::{Answer, ChainCheck, QueryId, StoreViews};
use proxycfg::store::{MemoryBackend, Register};
use proxycfg::{
    Embedded, EmbeddedConfig, Op, ProxyId, ProxySource, Query, RegisterOptions, Registration,
    SnapshotRef, Store, Transaction, Watch,
};
use serde_json::json;

const PATIENCE: Duration = Duration::from_secs(120);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

struct Counting;

// SAFETY: everything is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// The shape of a row's work.
struct Size {
    proxies: usize,
    upstreams: usize,
    endpoints: usize,
    services: usize,
    rounds: usize,
}

type Row = (&'static str, fn(&Size));

const ROWS: [Row; 6] = [
    ("handle", handle),
    ("next-snapshot", next_snapshot),
    ("fan-out", fan_out),
    ("herd", herd),
    ("register", register_and_memory),
    ("memory", register_and_memory),
];

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let text = |name: &str| {
        let at = args.iter().position(|arg| arg == name)?;
        args.get(at + 1).cloned()
    };
    let number =
        |name: &str, default: usize| text(name).map_or(default, |n| n.parse().expect("a number"));
    let wanted = text("--row");
    let small = wanted.is_none();
    let size = Size {
        proxies: number("--proxies", if small { 50 } else { 1_000 }),
        upstreams: number("--upstreams", if small { 5 } else { 10 }),
        endpoints: number("--endpoints", if small { 3 } else { 10 }),
        services: number("--services", if small { 20 } else { 1_000 }),
        rounds: number("--rounds", if small { 5 } else { 50 }),
    };
    let mut ran = 0;
    for (name, run) in ROWS {
        if wanted.as_deref().is_none_or(|wanted| wanted == name) {
            run(&size);
            ran += 1;
        }
    }
    assert!(ran > 0, "no row {wanted:?}");
}

fn print(metric: &str, ours: f64, unit: &str) {
    println!("{}", json!({"metric": metric, "ours": ours, "unit": unit}));
}

fn engine() -> Embedded {
    Embedded::start(EmbeddedConfig::default()).expect("an engine")
}

fn sidecar(service: &str, id: &str, upstreams: impl Iterator<Item = String>) -> ServiceInstance {
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

fn service(number: usize) -> String {
    format!("s{number}")
}

/// Writes an instance of a service; the store index afterwards.
fn write_instance(store: &Store, service: &str, number: usize, status: CheckStatus) -> u64 {
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

fn write_services(store: &Store, services: usize, endpoints: usize) -> u64 {
    let all = (0..services).flat_map(|s| (0..endpoints).map(move |e| (s, e)));
    let written = all.map(|(s, e)| write_instance(store, &service(s), e, CheckStatus::Passing));
    written.last().unwrap_or_default()
}

fn register(engine: &Embedded, id: &ProxyId, instance: triomphe::Arc<ServiceInstance>) {
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

fn settle(engine: &Embedded, index: u64) {
    let settled = engine.manager.wait_index(index, Instant::now() + PATIENCE);
    settled.expect("settled in time");
}

fn ready(engine: &Embedded, id: &ProxyId) -> SnapshotRef {
    let ready = engine.manager.wait_ready(id, Instant::now() + PATIENCE);
    ready.expect("ready in time")
}

fn endpoints_in(snapshot: &ConfigSnapshot) -> usize {
    let KindSnapshot::ConnectProxy(sidecar) = &snapshot.kind;
    let targets = sidecar.upstreams.iter().filter_map(|u| u.target.as_ref());
    let groups = targets.flat_map(|target| target.endpoints.iter());
    groups
        .map(|group| group.endpoints.as_ref().map_or(0, |list| list.len()))
        .sum()
}

/// A handle of a snapshot to a watcher: cloned and dropped.
fn handle(size: &Size) {
    let engine = engine();
    let index = write_services(&engine.store, size.upstreams, size.endpoints);
    settle(&engine, index);
    let id = ProxyId::new("web", "bench");
    let instance = sidecar("web", "web", (0..size.upstreams).map(service));
    register(&engine, &id, triomphe::Arc::new(instance));
    let snapshot = ready(&engine, &id);
    assert_eq!(endpoints_in(&snapshot), size.upstreams * size.endpoints);
    let rounds = 5_000_000_u32;
    let begin = Instant::now();
    for _ in 0..rounds {
        drop(black_box(snapshot.clone()));
    }
    let took = begin.elapsed();
    print("time", took.as_nanos() as f64 / f64::from(rounds), "ns");
    engine.close_soon();
}

/// Answers that the bench hands out.
#[derive(Default)]
struct Answers {
    ids: BTreeMap<Query, QueryId>,
    inputs: BTreeMap<QueryId, Input>,
}

impl Inputs for Answers {
    fn get(&mut self, query: &Query) -> (QueryId, Input) {
        let id = match self.ids.get(query) {
            Some(id) => *id,
            None => {
                let id = QueryId(self.ids.len() as u64 + 1);
                self.ids.insert(query.clone(), id);
                id
            }
        };
        let input = self.inputs.get(&id).cloned();
        (id, input.unwrap_or(Input::Pending))
    }
}

fn leaf(service: &str) -> Answer {
    Answer::Leaf(Part::new(IssuedCert {
        serial_number: "1".into(),
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
        create_index: 1,
        modify_index: 1,
    }))
}

/// The next snapshot after one endpoint's check has changed, in the pure core: from the new answer to the new snapshot.
fn next_snapshot(size: &Size) {
    let check = std::sync::Arc::new(ChainCheck);
    let store = Store::new(Box::new(MemoryBackend), check).expect("a store");
    let clock = std::sync::Arc::new(proxycfg::clock::TestClock::new());
    let authority = proxycfg::ca::Authority::bootstrap(clock, "dc1", CaConfig::default());
    let roots = Box::new(authority.expect("an authority").roots());
    let written = store.apply(Transaction::of(Op::SetCaRoots { roots, cas: None }));
    written.expect("a write");
    write_services(&store, size.upstreams, size.endpoints);
    let views = StoreViews {
        datacenter: "dc1".into(),
    };
    let answer = |query: &Query| match query {
        Query::Leaf { service } => leaf(service),
        query => {
            let snapshot = store.snapshot();
            views.answer(query, &snapshot.reader()).expect("an answer")
        }
    };
    let instance = sidecar("web", "web", (0..size.upstreams).map(service));
    let registration = Part::new(Registration::Definition(triomphe::Arc::new(instance)));
    let id = ProxyId::new("web", "bench");
    let kind = ServiceKind::ConnectProxy;
    let mut state = SoloProxy::new(id, kind, registration).expect("a state");
    let (settings, shared) = (ProxySettings::default(), SharedParts::default());
    let mut answers = Answers::default();
    let mut run = |answers: &mut Answers, changed: Changed<'_>| {
        let now = Duration::ZERO;
        let outcome = state.run(&settings, &shared, answers, changed, 1, now);
        outcome.snapshot
    };
    let mut last = run(&mut answers, Changed::All);
    loop {
        let open = answers.ids.iter();
        let open = open.filter(|(_, id)| !answers.inputs.contains_key(id));
        let open: Vec<(Query, QueryId)> = open.map(|(q, id)| (q.clone(), *id)).collect();
        if open.is_empty() {
            break;
        }
        for (query, id) in &open {
            answers.inputs.insert(*id, Input::Answered(answer(query)));
        }
        last = run(&mut answers, Changed::All).or(last);
    }
    let mut last = last.expect("a snapshot");
    assert_eq!(endpoints_in(&last), size.upstreams * size.endpoints);
    let changing = answers.ids.iter().find_map(|(query, id)| match query {
        Query::Endpoints(endpoints) if endpoints.service == "s0" => Some((query.clone(), *id)),
        _ => None,
    });
    let (query, changing) = changing.expect("endpoints are asked for");
    let (mut took, mut allocations) = (Vec::new(), 0);
    for round in 0..size.rounds.max(5) * 40 {
        let status = match round % 2 {
            0 => CheckStatus::Critical,
            _ => CheckStatus::Passing,
        };
        write_instance(&store, "s0", 0, status);
        answers
            .inputs
            .insert(changing, Input::Answered(answer(&query)));
        let counted = ALLOCATIONS.load(Ordering::Relaxed);
        let begin = Instant::now();
        let next = run(&mut answers, Changed::Queries(&[changing]));
        took.push(begin.elapsed());
        allocations = ALLOCATIONS.load(Ordering::Relaxed) - counted;
        let next = next.expect("a new snapshot");
        let diff = last.diff(&next);
        assert!(!diff.is_empty(), "the endpoints changed");
        last = next;
    }
    let median = percentile(&mut took, 50);
    print("time", median.as_nanos() as f64 / 1e3, "us");
    print("allocations", allocations as f64, "");
}

fn percentile(times: &mut [Duration], p: usize) -> Duration {
    times.sort_unstable();
    times[(times.len() * p / 100).min(times.len() - 1)]
}

fn milliseconds(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e6
}

/// From the commit of one changed endpoint until all watchers of the service hold the new snapshot.
fn fan_out(size: &Size) {
    let engine = engine();
    let write = |number, status| write_instance(&engine.store, "db", number, status);
    for number in 0..size.endpoints {
        write(number, CheckStatus::Passing);
    }
    let mut watches: Vec<Watch> = Vec::new();
    for number in 0..size.proxies {
        let id = ProxyId::new(format!("web-{number}"), "bench");
        let dials = std::iter::once("db".to_owned());
        let instance = sidecar("web", &id.service_id, dials);
        register(&engine, &id, triomphe::Arc::new(instance));
        watches.push(engine.manager.watch(&id));
    }
    let next = |watch: &mut Watch| -> SnapshotRef {
        let next = watch.next(Some(Instant::now() + PATIENCE));
        next.expect("a watch").expect("in time")
    };
    for watch in &mut watches {
        let first = next(watch);
        assert_eq!(endpoints_in(&first), size.endpoints);
    }
    let mut times = Vec::new();
    let before = engine.manager.counts();
    for round in 0..size.rounds {
        let status = match round % 2 {
            0 => CheckStatus::Critical,
            _ => CheckStatus::Passing,
        };
        let begin = Instant::now();
        let index = write(0, status);
        for watch in &mut watches {
            while next(watch).store_index < index {}
        }
        times.push(begin.elapsed());
    }
    let after = engine.manager.counts();
    let built = after.targets_built - before.targets_built;
    assert_eq!(built, size.rounds as u64, "one shared part a change");
    for p in [50, 99] {
        print(
            &format!("p{p}"),
            milliseconds(percentile(&mut times, p)),
            "ms",
        );
    }
    engine.close_soon();
}

/// An engine with services and proxies that dial some of them.
struct Mesh {
    engine: Embedded,
    proxies: Vec<(ProxyId, triomphe::Arc<ServiceInstance>)>,
}

impl Mesh {
    fn new(size: &Size) -> Self {
        let engine = engine();
        let index = write_services(&engine.store, size.services, size.endpoints);
        settle(&engine, index);
        let proxies = (0..size.proxies).map(|number| {
            let id = ProxyId::new(format!("p{number}"), "bench");
            let dials = (0..size.upstreams).map(|u| service((number * 7 + u * 13) % size.services));
            let instance = sidecar(&service(number % size.services), &id.service_id, dials);
            (id, triomphe::Arc::new(instance))
        });
        let proxies = proxies.collect();
        Self { engine, proxies }
    }

    fn register_all(&self) {
        for (id, instance) in &self.proxies {
            register(&self.engine, id, instance.clone());
        }
        for (id, _) in &self.proxies {
            ready(&self.engine, id);
        }
    }
}

/// A default that concerns all proxies changes, until all snapshots have followed.
fn herd(size: &Size) {
    let mesh = Mesh::new(size);
    mesh.register_all();
    let entry = json!({"Kind": "proxy-defaults", "Name": "global", "Config": {"local_connect_timeout_ms": 7_000}});
    let entry = decode_document::<ConfigEntry>(&Value::from_json(&entry));
    let entry = Box::new(entry.expect("an entry").0);
    let write = Transaction::of(Op::SetConfig { entry, cas: None });
    let begin = Instant::now();
    let written = mesh.engine.store.apply(write);
    settle(&mesh.engine, written.expect("a write").index);
    let took = begin.elapsed();
    for (id, _) in &mesh.proxies {
        let snapshot = ready(&mesh.engine, id);
        let timeout = &snapshot.header.proxy.config["local_connect_timeout_ms"];
        assert_eq!(*timeout, 7_000, "{id} follows");
    }
    print("time", milliseconds(took), "ms");
    mesh.engine.close_soon();
}

/// Proxies registered until each has its snapshot: the time, and the memory, of each.
fn register_and_memory(size: &Size) {
    let mesh = Mesh::new(size);
    let memory = resident();
    let begin = Instant::now();
    mesh.register_all();
    let took = begin.elapsed();
    let (last, _) = mesh.proxies.last().expect("a proxy");
    let dialled = ready(&mesh.engine, last);
    assert_eq!(endpoints_in(&dialled), size.upstreams * size.endpoints);
    let grown = resident().saturating_sub(memory);
    let proxies = size.proxies as f64;
    print("registration", took.as_nanos() as f64 / 1e3 / proxies, "us");
    print("a proxy", grown as f64 / proxies, "B");
    mesh.engine.close_soon();
}

/// Resident memory of this process in bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: usize = statm
        .split_whitespace()
        .nth(1)
        .and_then(|n| n.parse().ok())
        .unwrap_or(0);
    pages * 4096
}
