//! The complete loop of a host in Rust: write records, register a proxy, watch it, read snapshots and Envoy resources,
//! change something, shut down.
//!
//! ```text
//! cargo run --example embed
//! ```

use std::error::Error;
use std::time::{Duration, Instant};

use proxycfg::hcl::Value;
use proxycfg::model::{self, ServiceInstance, ServiceKind};
use proxycfg::xds::{Generator, ResourceType};
use proxycfg::{
    Embedded, EmbeddedConfig, ProxyId, ProxySource, RegisterOptions, Registration, Transaction,
};
use serde_json::json;

fn main() -> Result<(), Box<dyn Error>> {
    // An engine with store and certificate authority.
    let engine = Embedded::start(EmbeddedConfig::default())?;

    // Records: all of them or none.
    apply(
        &engine,
        &json!({"Ops": [
            {"Register": {"Node": "node-1", "Address": "10.0.0.1", "Service": {
                "Kind": "connect-proxy", "Service": "db-sidecar-proxy", "Port": 21000,
                "Proxy": {"DestinationServiceName": "db"}}}},
            {"Check": {"Node": "node-1", "CheckID": "listening", "ServiceID": "db-sidecar-proxy", "Status": "passing"}},
        ]}),
    )?;

    // A proxy: the sidecar of web, which dials db.
    let id = ProxyId::new("web-sidecar-proxy", "this-node");
    let sidecar = json!({
        "Kind": "connect-proxy", "Service": "web-sidecar-proxy", "Port": 21000,
        "Proxy": {"DestinationServiceName": "web", "Upstreams": [{"DestinationName": "db", "LocalBindPort": 9191}]},
    });
    let (sidecar, _) = model::read::<ServiceInstance>(&Value::from_json(&sidecar))
        .map_err(|problems| problems.text())?;
    engine.manager.register(
        &id,
        RegisterOptions {
            kind: ServiceKind::ConnectProxy,
            registration: Registration::Definition(triomphe::Arc::new(sidecar)),
            source: ProxySource::new("embed"),
            token: Default::default(),
            overwrite: true,
        },
    )?;

    // A watch: a cell that is read or waited on, and always holds the newest snapshot.
    let mut watch = engine.manager.watch(&id);
    let soon = || Some(Instant::now() + Duration::from_secs(10));
    let first = watch.next(soon())?.ok_or("no snapshot in time")?;
    let pointer = "/ConnectProxy/Upstreams/db/Endpoints";
    println!("{}: {:?}", pointer, first.to_json().pointer(pointer));

    // What Envoy is sent. The second generation builds upon the first.
    let generator = Generator::new();
    let generated = generator.resources(&first, None);
    for cluster in generated.set.of(ResourceType::Cluster) {
        println!(
            "cluster {}: {} bytes",
            cluster.name(),
            cluster.bytes().len()
        );
    }

    // A change, and what it came to.
    apply(
        &engine,
        &json!({"Ops": [
            {"Check": {"Node": "node-1", "CheckID": "listening", "ServiceID": "db-sidecar-proxy", "Status": "critical"}},
        ]}),
    )?;
    let second = watch.next(soon())?.ok_or("no snapshot in time")?;
    println!("changed: {:?}", first.diff(&second).changes);
    let again = generator.resources(&second, Some(&generated));
    for kind in ResourceType::ALL {
        let same = again.set.shares(&generated.set, kind);
        println!("{kind}s: {}", if same { "as before" } else { "changed" });
    }

    // The end.
    engine.manager.deregister(&id, &ProxySource::new("embed"));
    let report = engine.close_soon();
    println!("closed, {} threads stuck", report.stuck_threads);
    Ok(())
}

/// Reads a transaction and writes it into the store; returns the store index.
fn apply(engine: &Embedded, transaction: &serde_json::Value) -> Result<u64, Box<dyn Error>> {
    let (mut transaction, _) = model::Transaction::read(&Value::from_json(transaction))
        .map_err(|problems| problems.text())?;
    transaction
        .place_in("dc1")
        .map_err(|problems| problems.join("\n"))?;
    let applied = engine.store.apply(Transaction::try_from(transaction)?)?;
    Ok(applied.index)
}

#[test]
fn runs() {
    assert_eq!(main().map_err(|error| error.to_string()), Ok(()));
}
