//! Does the work of the rows of benches/compare in the way of other Rust programs, and prints what it cost: one JSON line a
//! peer, e.g. `{"peer_name": "xds-cache", "peer": 12.5, "metric": "p50", "unit": "ms"}`.
//!
//! Every row checks that its work happened, and ends the program if it didn't.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use xds_cache::{Cache, ShardedCache, Snapshot};
use xds_core::{BoxResource, NodeHash, Resource, TypeUrl};

struct Size {
    proxies: usize,
    upstreams: usize,
    endpoints: usize,
    services: usize,
    rounds: usize,
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let text = |name: &str| {
        let at = args.iter().position(|arg| arg == name)?;
        args.get(at + 1).cloned()
    };
    let number =
        |name: &str, default: usize| text(name).map_or(default, |n| n.parse().expect("a number"));
    let size = Size {
        proxies: number("-proxies", 1_000),
        upstreams: number("-upstreams", 10),
        endpoints: number("-endpoints", 10),
        services: number("-services", 1_000),
        rounds: number("-rounds", 50),
    };
    match text("-row").as_deref() {
        Some("handle") => handle(&size),
        Some("fan-out") => {
            fan_out_rime(&size);
            fan_out_cache(&size);
        }
        Some("herd") => herd(&size),
        Some("memory") => memory(&size),
        // The others are not what these programs do.
        Some("next-snapshot" | "gateway" | "register") => {}
        other => panic!("no row {other:?}"),
    }
}

fn print(peer: &str, metric: &str, value: f64, unit: &str) {
    println!(
        r#"{{"peer_name": "{peer}", "metric": "{metric}", "peer": {value}, "unit": "{unit}"}}"#
    );
}

fn print_times(peer: &str, times: &mut [Duration]) {
    times.sort_unstable();
    for p in [50, 99] {
        let time = times[(times.len() * p / 100).min(times.len() - 1)];
        print(peer, &format!("p{p}"), time.as_nanos() as f64 / 1e6, "ms");
    }
}

/// An endpoint assignment, about as long as Envoy's.
fn assignment(endpoints: usize, healthy: bool) -> Bytes {
    let first = if healthy { "healthy" } else { "unhealthy" };
    let mut text = format!("db {first}");
    for endpoint in 0..endpoints {
        text.push_str(&format!(
            "10.0.{}.{} port 21000; ",
            endpoint / 250,
            endpoint % 250
        ));
    }
    text.into()
}

/// One changed endpoint to all subscribers of a rime plane, a task each.
fn fan_out_rime(size: &Size) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .expect("a runtime");
    let (mut plane, changes) = rime_xds::Plane::new();
    plane.apply("db", assignment(size.endpoints, true));
    let server = rime_xds::Server::new(plane.snapshot());
    let held = Arc::new(AtomicUsize::new(0));
    let (all, every) = std::sync::mpsc::channel();
    for _ in 0..size.proxies {
        let mut subscriber = server.subscribe(changes.clone());
        let (held, all, wanted) = (held.clone(), all.clone(), size.proxies);
        for (name, bytes) in subscriber.initial().resources {
            subscriber.acknowledge(&name, xxhash_rust::xxh3::xxh3_64(&bytes));
        }
        runtime.spawn(async move {
            while let Some(update) = subscriber.changed().await {
                assert_eq!(update.resources.len(), 1, "the changed one");
                for (name, bytes) in update.resources {
                    subscriber.acknowledge(&name, xxhash_rust::xxh3::xxh3_64(&bytes));
                }
                if held.fetch_add(1, Ordering::SeqCst) + 1 == wanted {
                    all.send(()).expect("somebody waits");
                }
            }
        });
    }
    let mut times = Vec::new();
    for round in 0..size.rounds {
        let changed = assignment(size.endpoints, round % 2 == 1);
        let begin = Instant::now();
        assert!(plane.apply("db", changed), "it differs");
        every
            .recv_timeout(Duration::from_secs(60))
            .expect("all hold it");
        times.push(begin.elapsed());
        assert_eq!(held.swap(0, Ordering::SeqCst), size.proxies);
    }
    print_times("rime-xds", &mut times);
}

#[derive(Debug)]
struct Raw {
    name: String,
    bytes: Bytes,
    kind: &'static str,
}

impl Resource for Raw {
    fn type_url(&self) -> &str {
        self.kind
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn encode(&self) -> Result<prost_types::Any, Box<dyn std::error::Error + Send + Sync>> {
        Ok(prost_types::Any {
            type_url: self.kind.to_owned(),
            value: self.bytes.to_vec(),
        })
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

fn resource(name: &str, kind: &'static str, bytes: Bytes) -> BoxResource {
    Arc::new(Raw {
        name: name.to_owned(),
        bytes,
        kind,
    })
}

fn node(proxy: usize) -> NodeHash {
    NodeHash::from_id(&format!("web-{proxy}"))
}

fn snapshot(version: usize, kinds: Vec<(&'static str, Vec<BoxResource>)>) -> Snapshot {
    let builder = Snapshot::builder().version(version.to_string());
    let of = |builder: xds_cache::SnapshotBuilder,
              (kind, resources): (&'static str, Vec<BoxResource>)| {
        builder.resources(TypeUrl::new(kind), resources)
    };
    kinds.into_iter().fold(builder, of).build()
}

/// One changed endpoint to the watches of all nodes of an xds-cache: a snapshot is set for each node, and taken by each watch.
fn fan_out_cache(size: &Size) {
    let cache = ShardedCache::new();
    let mut watches: Vec<_> = (0..size.proxies)
        .map(|p| cache.create_watch(node(p)))
        .collect();
    let mut times = Vec::new();
    for round in 0..size.rounds {
        let changed = assignment(size.endpoints, round % 2 == 1);
        let begin = Instant::now();
        let changed = resource("db", TypeUrl::ENDPOINT, changed);
        for proxy in 0..size.proxies {
            cache.set_snapshot(
                node(proxy),
                snapshot(round, vec![(TypeUrl::ENDPOINT, vec![changed.clone()])]),
            );
        }
        for watch in &mut watches {
            let held = watch.try_recv().expect("the new snapshot");
            assert_eq!(held.version(), round.to_string());
        }
        times.push(begin.elapsed());
    }
    print_times("xds-cache", &mut times);
}

/// A cache with the snapshots of all proxies; clusters and endpoints of a service are shared between them.
struct Mesh<'s> {
    size: &'s Size,
    cache: ShardedCache,
    clusters: Vec<BoxResource>,
    assignments: Vec<BoxResource>,
}

impl<'s> Mesh<'s> {
    fn new(size: &'s Size) -> Self {
        let name = |s: usize| format!("s{s}");
        let services = 0..size.services;
        Self {
            size,
            cache: ShardedCache::new(),
            clusters: Vec::new(),
            assignments: services
                .map(|s| {
                    resource(
                        &name(s),
                        TypeUrl::ENDPOINT,
                        assignment(size.endpoints, true),
                    )
                })
                .collect(),
        }
    }

    fn set(&self, proxy: usize, version: usize) {
        let (mut clusters, mut assignments, mut listeners) = (Vec::new(), Vec::new(), Vec::new());
        for upstream in 0..self.size.upstreams {
            let service = (proxy * 7 + upstream * 13) % self.size.services;
            clusters.push(self.clusters[service].clone());
            assignments.push(self.assignments[service].clone());
            let bytes = format!("127.0.0.1:{}", 9001 + upstream);
            listeners.push(resource(
                &format!("s{service}"),
                TypeUrl::LISTENER,
                bytes.into(),
            ));
        }
        let kinds = vec![
            (TypeUrl::CLUSTER, clusters),
            (TypeUrl::ENDPOINT, assignments),
            (TypeUrl::LISTENER, listeners),
        ];
        self.cache
            .set_snapshot(node(proxy), snapshot(version, kinds));
    }

    fn set_all(&mut self, version: usize) {
        let cluster = |s: usize| {
            resource(
                &format!("s{s}"),
                TypeUrl::CLUSTER,
                format!("s{s} EDS timeout {version}s").into(),
            )
        };
        self.clusters = (0..self.size.services).map(cluster).collect();
        let next = AtomicUsize::new(0);
        let this = &*self;
        std::thread::scope(|threads| {
            for _ in 0..2 {
                threads.spawn(|| {
                    loop {
                        let proxy = next.fetch_add(1, Ordering::Relaxed);
                        if proxy >= this.size.proxies {
                            return;
                        }
                        this.set(proxy, version);
                    }
                });
            }
        });
        for proxy in 0..self.size.proxies {
            let held = self.cache.get_snapshot(node(proxy)).expect("a snapshot");
            assert_eq!(held.version(), version.to_string());
        }
    }
}

/// A snapshot handed to a reader.
fn handle(size: &Size) {
    let size = Size {
        proxies: 1,
        ..*size
    };
    let mut mesh = Mesh::new(&size);
    mesh.set_all(1);
    let node = node(0);
    let rounds = 2_000_000_u32;
    let begin = Instant::now();
    for _ in 0..rounds {
        drop(black_box(mesh.cache.get_snapshot(node)));
    }
    print(
        "xds-cache",
        "time",
        begin.elapsed().as_nanos() as f64 / f64::from(rounds),
        "ns",
    );
}

/// All snapshots made anew, as a change of a default makes necessary, on two cores.
fn herd(size: &Size) {
    let mut mesh = Mesh::new(size);
    mesh.set_all(1);
    for (version, metric) in [(2, "time"), (3, "intention")] {
        let begin = Instant::now();
        mesh.set_all(version);
        print(
            "xds-cache",
            metric,
            begin.elapsed().as_nanos() as f64 / 1e6,
            "ms",
        );
    }
}

/// What a proxy costs in an xds-cache: at first, and after a thousand changes of an endpoint.
fn memory(size: &Size) {
    let before = resident();
    let mut mesh = Mesh::new(size);
    mesh.set_all(1);
    let grown = |metric| {
        let grown = resident().saturating_sub(before);
        print("xds-cache", metric, grown as f64 / size.proxies as f64, "B");
    };
    grown("a proxy");
    let mut dial = vec![Vec::new(); size.services];
    for proxy in 0..size.proxies {
        for upstream in 0..size.upstreams {
            dial[(proxy * 7 + upstream * 13) % size.services].push(proxy);
        }
    }
    for change in 0..1_000 {
        let service = change / 2 * 3 % size.services;
        let changed = assignment(size.endpoints, change % 2 == 1);
        mesh.assignments[service] = resource(&format!("s{service}"), TypeUrl::ENDPOINT, changed);
        for proxy in &dial[service] {
            mesh.set(*proxy, change + 2);
        }
    }
    grown("after changes");
}

/// Resident memory of this process in bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split_whitespace().nth(1).and_then(|n| n.parse().ok());
    pages.unwrap_or(0_usize) * 4096
}
