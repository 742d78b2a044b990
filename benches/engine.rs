//! What the engine costs: handing out a snapshot, one endpoint change to many proxies, a change that concerns all of
//! them, registering, and memory. Each row asserts that its work was done.
//!
//! `cargo bench --bench engine` runs the full size; `-- --quick` a small one, as the tests do.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use proxycfg::hcl::Value;
use proxycfg::model::{
    CheckStatus, ConfigEntry, HealthCheck, Node, ProxyConfig, ServiceInstance, ServiceKind,
    Upstream, decode_document,
};
use proxycfg::snapshot::KindSnapshot;
use proxycfg::store::Register;
use proxycfg::{
    Embedded, EmbeddedConfig, Op, ProxyId, ProxySource, RegisterOptions, Registration, SnapshotRef,
    Transaction, Watch,
};

const PATIENCE: Duration = Duration::from_secs(120);

fn main() {
    let quick = std::env::args().any(|a| a == "--quick" || a == "--test");
    let (proxies, services) = if quick { (200, 50) } else { (10_000, 1_000) };
    println!(
        "{proxies} proxies x 10 upstreams over {services} services, {} instances each",
        INSTANCES
    );
    handle_clone();
    one_endpoint_change(if quick { 100 } else { 1_000 });
    herd(proxies, services);
}

const INSTANCES: usize = 3;

fn engine() -> Embedded {
    Embedded::start(EmbeddedConfig::default()).expect("an engine")
}

fn sidecar(service: &str, id: &str, upstreams: Vec<Upstream>) -> ServiceInstance {
    ServiceInstance {
        kind: ServiceKind::ConnectProxy,
        id: id.into(),
        service: format!("{service}-sidecar-proxy"),
        port: 21000,
        proxy: ProxyConfig {
            destination_service_name: service.into(),
            destination_service_id: service.into(),
            local_service_port: 8080,
            upstreams,
            ..ProxyConfig::default()
        },
        ..ServiceInstance::default()
    }
}

fn upstreams(names: impl Iterator<Item = String>) -> Vec<Upstream> {
    names
        .zip(9001..)
        .map(|(name, port)| Upstream {
            destination_name: name,
            local_bind_port: port,
            ..Upstream::default()
        })
        .collect()
}

fn add_instance(engine: &Embedded, service: &str, n: usize, status: CheckStatus) -> u64 {
    let node = Node {
        node: format!("{service}-{n}"),
        address: format!("10.{}.{}.{}", n / 250, n % 250, service.len()),
        datacenter: "dc1".into(),
        ..Node::default()
    };
    let instance = sidecar(service, &format!("{service}-{n}-proxy"), Vec::new());
    let check = HealthCheck {
        node: node.node.clone(),
        check_id: "alive".into(),
        service_id: instance.id.clone(),
        status,
        ..HealthCheck::default()
    };
    let register = Register {
        node,
        service: Some(instance),
        checks: vec![check],
        ..Register::default()
    };
    engine
        .store
        .apply(Transaction::of(Op::Register(Box::new(register))))
        .expect("a write")
        .index
}

/// The definition stays its owner's: the engine shares it.
fn register(engine: &Embedded, id: &ProxyId, instance: triomphe::Arc<ServiceInstance>) {
    let options = RegisterOptions {
        kind: instance.kind,
        registration: Registration::Definition(instance),
        source: ProxySource::LOCAL,
        token: Default::default(),
        overwrite: true,
    };
    engine
        .manager
        .register(id, options)
        .expect("a registration");
}

fn settle(engine: &Embedded, index: u64) {
    engine
        .manager
        .wait_index(index, Instant::now() + PATIENCE)
        .expect("settled in time");
}

fn ready(engine: &Embedded, id: &ProxyId) -> SnapshotRef {
    engine
        .manager
        .wait_ready(id, Instant::now() + PATIENCE)
        .expect("ready in time")
}

fn row(name: &str, figure: String) {
    println!("{name:<58} {figure:>16}");
}

fn handle_clone() {
    let engine = engine();
    for n in 0..100 {
        add_instance(&engine, "db", n, CheckStatus::Passing);
    }
    let id = ProxyId::new("web", "bench");
    register(
        &engine,
        &id,
        triomphe::Arc::new(sidecar(
            "web",
            "web",
            upstreams(std::iter::once("db".to_owned())),
        )),
    );
    let snapshot = ready(&engine, &id);
    let rounds = 5_000_000_u32;
    let begin = Instant::now();
    for _ in 0..rounds {
        drop(black_box(snapshot.clone()));
    }
    let each = begin.elapsed() / rounds;
    row("snapshot handle: clone and drop", format!("{each:?}"));
}

fn percentile(times: &mut [Duration], p: usize) -> Duration {
    times.sort_unstable();
    times[(times.len() * p / 100).min(times.len() - 1)]
}

/// From the commit until all watchers of a service hold the new snapshot.
fn one_endpoint_change(proxies: usize) {
    let engine = engine();
    for n in 0..10 {
        add_instance(&engine, "db", n, CheckStatus::Passing);
    }
    let ids: Vec<_> = (0..proxies)
        .map(|n| ProxyId::new(format!("web-{n}"), "bench"))
        .collect();
    for id in &ids {
        register(
            &engine,
            id,
            triomphe::Arc::new(sidecar(
                "web",
                &id.service_id,
                upstreams(std::iter::once("db".to_owned())),
            )),
        );
    }
    let mut watches: Vec<Watch> = ids.iter().map(|id| engine.manager.watch(id)).collect();
    for watch in &mut watches {
        watch
            .next(Some(Instant::now() + PATIENCE))
            .expect("a watch")
            .expect("ready in time");
    }
    let mut times = Vec::new();
    let before = engine.manager.counts();
    let rounds = 50;
    for round in 0..rounds {
        let status = if round % 2 == 0 {
            CheckStatus::Critical
        } else {
            CheckStatus::Passing
        };
        let begin = Instant::now();
        let index = add_instance(&engine, "db", 0, status);
        for watch in &mut watches {
            loop {
                let snapshot = watch
                    .next(Some(Instant::now() + PATIENCE))
                    .expect("a watch")
                    .expect("in time");
                if snapshot.store_index >= index {
                    break;
                }
            }
        }
        times.push(begin.elapsed());
    }
    let after = engine.manager.counts();
    assert_eq!(
        after.answers_computed - before.answers_computed,
        rounds,
        "one answer a change"
    );
    assert_eq!(
        after.targets_built - before.targets_built,
        rounds,
        "one shared part a change"
    );
    row(
        &format!("one endpoint change to {proxies} watching proxies, p50"),
        format!("{:?}", percentile(&mut times, 50)),
    );
    row(
        &format!("one endpoint change to {proxies} watching proxies, p99"),
        format!("{:?}", percentile(&mut times, 99)),
    );
    engine.close_soon();
}

/// Registering many proxies, their memory, and a change that concerns all of them.
fn herd(proxies: usize, services: usize) {
    let engine = engine();
    let mut index = 0;
    for service in 0..services {
        for n in 0..INSTANCES {
            index = add_instance(&engine, &format!("s{service}"), n, CheckStatus::Passing);
        }
    }
    settle(&engine, index);
    let instances: Vec<_> = (0..proxies)
        .map(|n| {
            let id = ProxyId::new(format!("p{n}"), "bench");
            let dials = upstreams((0..10).map(|u| format!("s{}", (n * 7 + u * 13) % services)));
            (
                id,
                triomphe::Arc::new(sidecar(
                    &format!("s{}", n % services),
                    &format!("p{n}"),
                    dials,
                )),
            )
        })
        .collect();
    let memory = resident();
    let begin = Instant::now();
    for (id, instance) in &instances {
        register(&engine, id, instance.clone());
    }
    for (id, _) in &instances {
        ready(&engine, id);
    }
    let took = begin.elapsed();
    settle(&engine, index);
    let grown = resident().saturating_sub(memory);
    row(
        &format!("register {proxies} proxies until each has a snapshot"),
        format!("{:.0}/s", proxies as f64 / took.as_secs_f64()),
    );
    row(
        "resident memory a proxy (10 upstreams, shared)",
        format!("{} B", grown / proxies),
    );

    let begin = Instant::now();
    let index = write_defaults(&engine, 7_000);
    settle(&engine, index);
    let took = begin.elapsed();
    for (id, _) in &instances {
        let snapshot = ready(&engine, id);
        assert_eq!(
            snapshot.header.proxy.config["local_connect_timeout_ms"], 7_000,
            "{id} follows"
        );
        let KindSnapshot::ConnectProxy(sidecar) = &snapshot.kind;
        assert_eq!(sidecar.upstreams.len(), 10);
    }
    row(
        &format!("one proxy-defaults change, {proxies} proxies, all ready"),
        format!("{took:?}"),
    );
    engine.close_soon();
}

fn write_defaults(engine: &Embedded, timeout: u32) -> u64 {
    let json = serde_json::json!({
        "Kind": "proxy-defaults", "Name": "global", "Config": {"local_connect_timeout_ms": timeout}
    });
    let entry = decode_document::<ConfigEntry>(&Value::from_json(&json))
        .expect("an entry")
        .0;
    engine
        .store
        .apply(Transaction::of(Op::SetConfig {
            entry: Box::new(entry),
            cas: None,
        }))
        .expect("a write")
        .index
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
