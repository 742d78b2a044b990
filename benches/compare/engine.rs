//! The rows of the whole engine: from a write to the watchers.

use std::time::{Duration, Instant};

use proxycfg::hcl::Value;
use proxycfg::model::{CheckStatus, ConfigEntry, ServiceInstance, decode_document};
use proxycfg::{Embedded, Op, ProxyId, ProxySource, SnapshotRef, Transaction, Watch};
use serde_json::json;
use triomphe::Arc;

use crate::world::{
    PATIENCE, Size, endpoints_in, engine, milliseconds, percentile, print, ready, service, settle,
    sidecar, write_instance, write_services,
};

fn next(watch: &mut Watch) -> SnapshotRef {
    let next = watch.next(Some(Instant::now() + PATIENCE));
    next.expect("a watch").expect("in time")
}

/// From the commit of one changed endpoint until all watchers of the service hold the new snapshot. The proxies are of several
/// services.
pub fn fan_out(size: &Size) {
    let engine = engine();
    let write = |number, status| write_instance(&engine.store, "db", number, status);
    for number in 0..size.endpoints {
        write(number, CheckStatus::Passing);
    }
    let mut watches: Vec<Watch> = Vec::new();
    for number in 0..size.proxies {
        let id = ProxyId::new(format!("web-{number}"), "bench");
        let of = service(number % size.services);
        let dials = std::iter::once("db".to_owned());
        crate::world::register(&engine, &id, Arc::new(sidecar(&of, &id.service_id, dials)));
        watches.push(engine.manager.watch(&id));
    }
    for watch in &mut watches {
        while endpoints_in(&next(watch)) < size.endpoints {}
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
        // One wait for all, as a server's threads would: to sleep and wake for each watch in turn would measure just that.
        settle(&engine, index);
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
    proxies: Vec<(ProxyId, Arc<ServiceInstance>)>,
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
            (id, Arc::new(instance))
        });
        let proxies = proxies.collect();
        Self { engine, proxies }
    }

    fn register_all(&self) {
        for (id, instance) in &self.proxies {
            crate::world::register(&self.engine, id, instance.clone());
        }
        for (id, _) in &self.proxies {
            ready(&self.engine, id);
        }
    }

    fn deregister_all(&self) {
        for (id, _) in &self.proxies {
            assert!(self.engine.manager.deregister(id, &ProxySource::LOCAL));
        }
    }

    /// The median time until all proxies follow an entry that is made of one value after another.
    fn herds<V: Copy>(
        &self,
        metric: &str,
        values: [V; 5],
        entry: impl Fn(V) -> serde_json::Value,
        follows: impl Fn(&SnapshotRef, V) -> bool,
    ) {
        let mut times = Vec::new();
        for value in values {
            let entry = entry(value);
            let begin = Instant::now();
            let index = self.write_entry(&entry);
            settle(&self.engine, index);
            times.push(begin.elapsed());
            for (id, _) in &self.proxies {
                assert!(follows(&ready(&self.engine, id), value), "{id} follows");
            }
        }
        print(metric, milliseconds(percentile(&mut times, 50)), "ms");
    }

    fn write_entry(&self, entry: &serde_json::Value) -> u64 {
        let entry = decode_document::<ConfigEntry>(&Value::from_json(entry));
        let entry = Box::new(entry.expect("an entry").0);
        let write = Transaction::of(Op::SetConfig { entry, cas: None });
        let written = self.engine.store.apply(write);
        written.expect("a write").index
    }
}

/// A default that concerns all proxies changes, until all snapshots have followed; a change that concerns one proxy alone, in the
/// middle of that; and an intention that concerns all.
pub fn herd(size: &Size) {
    let mesh = Mesh::new(size);
    mesh.register_all();
    let engine = &mesh.engine;
    let lonely = ProxyId::new("lonely", "bench");
    write_instance(&engine.store, "quiet", 0, CheckStatus::Passing);
    let dials = std::iter::once("quiet".to_owned());
    crate::world::register(
        engine,
        &lonely,
        Arc::new(sidecar("lonely", "lonely", dials)),
    );
    let mut watch = engine.manager.watch(&lonely);
    while endpoints_in(&next(&mut watch)) != 1 {}

    mesh.herds("time", [7_000, 7_001, 7_002, 7_003, 7_004], |timeout| {
        json!({"Kind": "proxy-defaults", "Name": "global", "Config": {"local_connect_timeout_ms": timeout}})
    }, |snapshot, timeout| {
        snapshot.header.proxy.config["local_connect_timeout_ms"] == timeout
    });
    mesh.herds("intention", ["deny", "allow", "deny", "allow", "deny"], |action| {
        json!({"Kind": "service-intentions", "Name": "*", "Sources": [{"Name": "*", "Action": action}]})
    }, |snapshot, action| {
        let proxycfg::snapshot::KindSnapshot::ConnectProxy(sidecar) = &snapshot.kind;
        sidecar.intentions.iter().map(|i| i.action.as_str()).eq([action])
    });
    let mut times = Vec::new();
    for round in 0..5 {
        let entry = json!({"Kind": "proxy-defaults", "Name": "global", "Config": {"local_connect_timeout_ms": 8_000 + round}});
        let herd = mesh.write_entry(&entry);
        let begin = Instant::now();
        let index = write_instance(&engine.store, "quiet", round + 1, CheckStatus::Passing);
        while next(&mut watch).store_index < index {}
        times.push(begin.elapsed());
        settle(engine, herd);
    }
    print("unrelated", milliseconds(percentile(&mut times, 50)), "ms");
    mesh.engine.close_soon();
}

/// Proxies registered until each has its snapshot, and deregistered until nothing of them is left.
pub fn register(size: &Size) {
    let mesh = Mesh::new(size);
    let each = |took: Duration| took.as_nanos() as f64 / 1e3 / size.proxies as f64;
    let begin = Instant::now();
    mesh.register_all();
    print("registration", each(begin.elapsed()), "us");
    let (last, _) = mesh.proxies.last().expect("a proxy");
    let dialled = ready(&mesh.engine, last);
    assert_eq!(endpoints_in(&dialled), size.upstreams * size.endpoints);
    let begin = Instant::now();
    mesh.deregister_all();
    settle(&mesh.engine, 0);
    print("deregistration", each(begin.elapsed()), "us");
    let left = mesh.engine.manager.counts();
    assert_eq!((left.proxies, left.states, left.cohorts), (0, 0, 0));
    mesh.engine.close_soon();
}

/// The memory of each proxy: once all are ready, and after a thousand changes.
pub fn memory(size: &Size) {
    let mesh = Mesh::new(size);
    let before = resident();
    mesh.register_all();
    let grown = |metric| {
        let grown = resident().saturating_sub(before);
        print(metric, grown as f64 / size.proxies as f64, "B");
    };
    grown("a proxy");
    let (last, _) = mesh.proxies.last().expect("a proxy");
    assert_eq!(
        endpoints_in(&ready(&mesh.engine, last)),
        size.upstreams * size.endpoints
    );
    let mut index = 0;
    for change in 0..1_000 {
        let status = match change % 2 {
            0 => CheckStatus::Critical,
            _ => CheckStatus::Passing,
        };
        let of = service(change / 2 * 3 % size.services);
        index = write_instance(&mesh.engine.store, &of, 0, status);
    }
    settle(&mesh.engine, index);
    grown("after changes");
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
