//! Registration, watching and delivery.

use std::time::Instant;

use proxycfg::engine::Registered;
use proxycfg::model::{CheckStatus, ProxyId, ProxySource};
use serde_json::json;

use crate::world::*;

#[test]
fn a_sidecar_gets_a_snapshot_and_follows_the_store() {
    let world = World::new();
    world.instance("db", 1);
    let id = proxy_id("web");
    let mut watch = world.manager().watch(&id);
    assert!(
        watch.try_next().unwrap().is_none(),
        "engine.md 2.6: a watch before registration is empty"
    );
    assert_eq!(
        world.register(&id, sidecar("web", &["db"])),
        Registered::Created
    );
    let first = world.ready(&id);
    assert_eq!(addresses(&first, "db"), ["10.0.0.2:21000 Passing"]);

    world.instance("db", 2);
    world.settle();
    assert_eq!(
        addresses(&next(&mut watch), "db"),
        ["10.0.0.2:21000 Passing", "10.0.0.3:21000 Passing"]
    );

    world.check("db", 1, CheckStatus::Critical);
    world.settle();
    assert_eq!(
        addresses(&next(&mut watch), "db"),
        ["10.0.0.2:21000 Critical", "10.0.0.3:21000 Passing"]
    );

    world.entry(json!({"Kind": "service-resolver", "Name": "db", "ConnectTimeout": "3s"}));
    world.settle();
    let snapshot = next(&mut watch);
    let chain = &upstream(&snapshot, "db").target.as_ref().unwrap().chain;
    assert_eq!(
        chain
            .start()
            .unwrap()
            .resolver
            .as_ref()
            .unwrap()
            .connect_timeout
            .to_string(),
        "3s"
    );

    assert!(world.manager().deregister(&id, &ProxySource::LOCAL));
    world.instance("db", 3);
    world.settle();
    assert!(
        watch.try_next().unwrap().is_none(),
        "nothing is delivered for a deregistered proxy"
    );
}

#[test]
fn an_unregistered_proxy_times_out() {
    let world = World::new();
    let mut watch = world.manager().watch(&ProxyId::new("nobody", "nowhere"));
    assert_eq!(watch.next(Some(Instant::now())).unwrap().map(|_| ()), None);
}
