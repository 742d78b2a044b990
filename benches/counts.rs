//! How many instructions the hot paths take: one row's work, a fixed number of times, for `benches/counts/run`, which runs
//! it under callgrind and counts what happens within [`counted`]. Instructions don't depend on how busy the machine is.
//!
//! `cargo bench -p proxycfg --no-default-features --features xds --bench counts -- ROW TIMES`; `rows` lists the rows. By itself
//! it only does the work.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a bench fails by panicking"
)]

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::{Duration, Instant};

use proxycfg::ca::Authority;
use proxycfg::chain::{ChainRequest, EntrySet, compile};
use proxycfg::clock::TestClock;
use proxycfg::hcl::Value;
use proxycfg::model::{
    CaConfig, CheckStatus, ConfigEntry, HealthCheck, LeafRequest, Node, ProxyConfig,
    ServiceInstance, ServiceKind, Upstream, decode_document,
};
use proxycfg::proxy::{Changed, Input, Inputs, ProxySettings, SharedParts, SoloProxy};
use proxycfg::snapshot::Part;
use proxycfg::source::{Answer, ChainCheck, QueryId, StoreViews};
use proxycfg::store::{MemoryBackend, Register};
use proxycfg::{
    Embedded, EmbeddedConfig, Op, ProxyId, ProxySource, Query, RegisterOptions, Registration,
    SnapshotRef, Store, Transaction,
};
use serde_json::json;
use triomphe::Arc;

/// A row does its work so many times.
type Row = (&'static str, fn(u32));

const ROWS: &[Row] = &[
    ("handle", handle),
    ("next-snapshot 10x10", |times| next_snapshot(10, 10, times)),
    ("next-snapshot 50x100", |times| {
        next_snapshot(50, 100, times)
    }),
    ("first-snapshot 10x10", first_snapshot),
    ("register", register),
    ("chain 1", |times| chain(1, times)),
    ("chain 10", |times| chain(10, times)),
    ("chain 100", |times| chain(100, times)),
    ("leaf", leaf),
    #[cfg(feature = "xds")]
    ("resources 10x10, all", all_resources),
    #[cfg(feature = "xds")]
    ("resources 10x10, next", next_resources),
];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let wanted = args.first().map_or("rows", String::as_str);
    if wanted == "rows" || wanted.starts_with("--") {
        for (name, _) in ROWS {
            println!("{name}");
        }
        return;
    }
    let times = args.get(1).map_or(1, |n| n.parse().expect("a number"));
    let row = ROWS.iter().find(|(name, _)| *name == wanted);
    let (_, run) = row.unwrap_or_else(|| panic!("no row {wanted:?}"));
    run(times);
}

/// What is counted. Not inlined, so that callgrind knows where it begins and ends.
#[inline(never)]
fn counted<T>(work: impl FnOnce() -> T) -> T {
    black_box(work())
}

/// Does a row's work, first once without counting: what is made once, such as tables, doesn't count.
fn repeat(times: u32, mut work: impl FnMut(bool)) {
    work(false);
    for _ in 0..times {
        work(true);
    }
}

/// Does the work, counted or not.
fn maybe<T>(count: bool, work: impl FnOnce() -> T) -> T {
    if count {
        counted(work)
    } else {
        black_box(work())
    }
}

fn service(number: usize) -> String {
    format!("s{number}")
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

fn authority() -> Authority {
    let clock = std::sync::Arc::new(TestClock::new());
    Authority::bootstrap(clock, "dc1", CaConfig::default()).expect("an authority")
}

/// Answers as the engine would have them.
#[derive(Default)]
struct Answers {
    ids: BTreeMap<Query, QueryId>,
    inputs: BTreeMap<QueryId, Input>,
}

impl Inputs for Answers {
    fn get(&mut self, query: &Query) -> (QueryId, Input) {
        let next = QueryId(self.ids.len() as u64 + 1);
        let id = *self.ids.entry(query.clone()).or_insert(next);
        let input = self.inputs.get(&id).cloned();
        (id, input.unwrap_or(Input::Pending))
    }
}

/// A store with services, and what a proxy asks of it: the pure core without threads.
struct World {
    authority: Authority,
    store: Store,
    views: StoreViews,
    answers: Answers,
    settings: ProxySettings,
    shared: SharedParts,
    instance: Arc<ServiceInstance>,
    upstreams: usize,
}

impl World {
    fn new(upstreams: usize, endpoints: usize) -> Self {
        let check = std::sync::Arc::new(ChainCheck);
        let store = Store::new(Box::new(MemoryBackend), check).expect("a store");
        let authority = authority();
        let roots = Box::new(authority.roots());
        let written = store.apply(Transaction::of(Op::SetCaRoots { roots, cas: None }));
        written.expect("a write");
        for number in 0..upstreams {
            for endpoint in 0..endpoints {
                write_instance(&store, &service(number), endpoint, CheckStatus::Passing);
            }
        }
        Self {
            authority,
            store,
            views: StoreViews {
                datacenter: "dc1".into(),
            },
            answers: Answers::default(),
            settings: ProxySettings::default(),
            shared: SharedParts::default(),
            instance: Arc::new(sidecar("web", "web", (0..upstreams).map(service))),
            upstreams,
        }
    }

    fn answer(&self, query: &Query) -> Answer {
        if let Query::Leaf { service } = query {
            let issued = self
                .authority
                .issue(&LeafRequest::for_service(service.as_str()));
            return Answer::Leaf(Part::new(issued.expect("a certificate")));
        }
        let snapshot = self.store.snapshot();
        let answer = self.views.answer(query, &snapshot.reader());
        answer.expect("an answer")
    }

    fn proxy(&self) -> SoloProxy {
        let registration = Part::new(Registration::Definition(self.instance.clone()));
        let id = ProxyId::new("web", "bench");
        SoloProxy::new(id, ServiceKind::ConnectProxy, registration).expect("a state")
    }

    fn run(&mut self, proxy: &mut SoloProxy, changed: Changed<'_>) -> Option<SnapshotRef> {
        let now = Duration::ZERO;
        let answers = &mut self.answers;
        let outcome = proxy.run(&self.settings, &self.shared, answers, changed, 1, now);
        outcome.snapshot
    }

    /// Runs a proxy, answering what it asks, until it asks nothing more.
    fn settle(&mut self, proxy: &mut SoloProxy) -> SnapshotRef {
        let mut last = None;
        loop {
            last = self.run(proxy, Changed::All).or(last);
            let open = self.answers.ids.iter();
            let open = open.filter(|(_, id)| !self.answers.inputs.contains_key(id));
            let open: Vec<(Query, QueryId)> = open.map(|(q, id)| (q.clone(), *id)).collect();
            if open.is_empty() {
                break;
            }
            for (query, id) in open {
                let answer = self.answer(&query);
                self.answers.inputs.insert(id, Input::Answered(answer));
            }
        }
        let last = last.expect("a snapshot");
        let text = serde_json::to_value(&*last).expect("JSON");
        let upstreams = text["ConnectProxy"]["Upstreams"].as_object();
        assert_eq!(upstreams.expect("upstreams").len(), self.upstreams);
        last
    }

    /// Changes the health of an endpoint of the first upstream; the query whose answer is another.
    fn change(&mut self, passing: bool) -> QueryId {
        let status = match passing {
            true => CheckStatus::Passing,
            false => CheckStatus::Critical,
        };
        write_instance(&self.store, "s0", 0, status);
        let changed = self.answers.ids.iter().find_map(|(query, id)| match query {
            Query::Endpoints(of) if of.service == "s0" => Some((query.clone(), *id)),
            _ => None,
        });
        let (query, id) = changed.expect("endpoints are asked for");
        let answer = self.answer(&query);
        self.answers.inputs.insert(id, Input::Answered(answer));
        id
    }
}

/// A snapshot handed to a watcher: cloned and dropped.
fn handle(times: u32) {
    let mut world = World::new(10, 10);
    let mut proxy = world.proxy();
    let snapshot = world.settle(&mut proxy);
    repeat(times, |count| {
        maybe(count, || drop(black_box(snapshot.clone())));
    });
}

/// From the new answer to the new snapshot.
fn next_snapshot(upstreams: usize, endpoints: usize, times: u32) {
    let mut world = World::new(upstreams, endpoints);
    let mut proxy = world.proxy();
    let mut last = world.settle(&mut proxy);
    let mut passing = true;
    repeat(times, |count| {
        passing = !passing;
        let changed = [world.change(passing)];
        let next = maybe(count, || world.run(&mut proxy, Changed::Queries(&changed)));
        let next = next.expect("a new snapshot");
        assert!(!last.diff(&next).is_empty(), "the endpoints changed");
        last = next;
    });
}

/// A new proxy whose upstreams others have too: from its registration to its first snapshot, in the pure core.
fn first_snapshot(times: u32) {
    let mut world = World::new(10, 10);
    let mut first = world.proxy();
    world.settle(&mut first);
    let mut proxies = Vec::new();
    repeat(times, |count| {
        let made = maybe(count, || {
            let mut proxy = world.proxy();
            let snapshot = world.run(&mut proxy, Changed::All);
            (proxy, snapshot)
        });
        assert!(made.1.is_some(), "complete at once");
        proxies.push(made.0);
    });
}

/// What the caller of `register` waits for; the snapshot is made on other threads, which aren't counted.
fn register(times: u32) {
    let engine = Embedded::start(EmbeddedConfig::default()).expect("an engine");
    let until = || Instant::now() + Duration::from_secs(600);
    let mut number = 0;
    repeat(times, |count| {
        number += 1;
        let id = ProxyId::new(format!("p{number}"), "bench");
        let instance = Arc::new(sidecar("web", &id.service_id, (0..10).map(service)));
        let options = RegisterOptions {
            kind: instance.kind,
            registration: Registration::Definition(instance),
            source: ProxySource::LOCAL,
            token: Default::default(),
            overwrite: true,
        };
        let registered = maybe(count, || engine.manager.register(&id, options));
        registered.expect("a registration");
        // So that no other thread is in the way of the next one.
        engine.manager.wait_ready(&id, until()).expect("a snapshot");
    });
    engine.close(until());
}

fn entry(json: serde_json::Value) -> ConfigEntry {
    let read = decode_document::<ConfigEntry>(&Value::from_json(&json));
    read.unwrap_or_else(|problems| panic!("{}", problems.text()))
        .0
}

/// Compiles the chain of a splitter with so many legs, each to a subset of a service of its own.
fn chain(splits: usize, times: u32) {
    let (share, rest) = (10_000 / splits, 10_000 % splits);
    let legs = (0..splits).map(|n| {
        let hundredths = share + usize::from(n < rest);
        json!({
            "Weight": hundredths as f64 / 100.0, "Service": service(n), "ServiceSubset": "v1",
            "RequestHeaders": {"Set": {"x-leg": service(n)}},
        })
    });
    let splitter =
        json!({"Kind": "service-splitter", "Name": "api", "Splits": legs.collect::<Vec<_>>()});
    let defaults =
        |name: &str| json!({"Kind": "service-defaults", "Name": name, "Protocol": "http"});
    let mut all = vec![splitter, defaults("api")];
    for name in (0..splits).map(service) {
        all.push(defaults(&name));
        all.push(json!({
            "Kind": "service-resolver", "Name": name, "ConnectTimeout": "3s",
            "Subsets": {"v1": {"Filter": "Service.Meta.version == v1"}},
        }));
    }
    let mut entries = EntrySet::default();
    for json in all {
        match entry(json) {
            ConfigEntry::ServiceSplitter(splitter) => entries.add_splitter(Arc::new(splitter)),
            ConfigEntry::ServiceResolver(resolver) => entries.add_resolver(Arc::new(resolver)),
            ConfigEntry::ServiceDefaults(defaults) => {
                entries.add_service_defaults(Arc::new(defaults));
            }
            other => panic!("{other:?}"),
        }
    }
    let request = ChainRequest::new("api", "dc1", "trust.consul");
    repeat(times, |count| {
        let chain = maybe(count, || compile(&request, &entries));
        assert_eq!(chain.expect("it compiles").targets.len(), splits);
    });
}

/// Issues a certificate: a new key, signed.
fn leaf(times: u32) {
    let authority = authority();
    let request = LeafRequest::for_service("web");
    repeat(times, |count| {
        let issued = maybe(count, || authority.issue(&request));
        assert!(!issued.expect("a certificate").cert_pem.is_empty());
    });
}

/// All Envoy resources of a snapshot, none of which has been encoded before.
#[cfg(feature = "xds")]
fn all_resources(times: u32) {
    let mut world = World::new(10, 10);
    let mut proxy = world.proxy();
    let snapshot = world.settle(&mut proxy);
    repeat(times, |count| {
        let generator = proxycfg::xds::Generator::new();
        let generated = maybe(count, || generator.resources(&snapshot, None));
        assert!(generator.encodings() > 0 && generated.problems.is_empty());
    });
}

/// The Envoy resources after an endpoint has changed: one is encoded.
#[cfg(feature = "xds")]
fn next_resources(times: u32) {
    let mut world = World::new(10, 10);
    let mut proxy = world.proxy();
    let snapshot = world.settle(&mut proxy);
    let generator = proxycfg::xds::Generator::new();
    let mut last = generator.resources(&snapshot, None);
    let mut passing = true;
    repeat(times, |count| {
        passing = !passing;
        let changed = [world.change(passing)];
        let next = world.run(&mut proxy, Changed::Queries(&changed));
        let next = next.expect("a new snapshot");
        let before = generator.encodings();
        last = maybe(count, || generator.resources(&next, Some(&last)));
        assert_eq!(generator.encodings() - before, 1, "one is encoded");
    });
}
