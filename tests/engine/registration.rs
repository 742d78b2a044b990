//! Registering: the tables of engine.md 2.2 and 2.3, refusals, and records that are followed.

use proxycfg::engine::{RegisterError, Registered};
use proxycfg::model::{
    CheckStatus, MeshGatewayMode, ProxyId, ProxySource, ServiceInstance, ServiceKind, TaggedAddress,
};
use proxycfg::proxy::Registration;

use crate::host::*;
use crate::world::*;

const OTHER: &str = "other";

#[test]
fn engine_m5_registering_the_same_again_does_nothing() {
    let host = Host::new();
    let id = proxy_id("web");
    host.register(&id, sidecar("web", &["db"]));
    let before = host.ready(&id);
    host.settle();
    let counts = host.manager.counts();
    assert_eq!(
        host.register(&id, sidecar("web", &["db"])),
        Registered::Unchanged
    );
    host.settle();
    assert!(is_same(&before, &host.ready(&id)));
    let after = host.manager.counts();
    assert_eq!(
        (after.runs, after.published, after.queries, after.states),
        (counts.runs, counts.published, counts.queries, counts.states)
    );
    assert_eq!(host.feed().all.lock().len(), 1);
}

#[test]
fn engine_m6_each_row_of_the_table_of_registrations() {
    let host = Host::new();
    let id = proxy_id("web");
    let manager = &host.manager;
    let register = |port: u16, source: &str, overwrite: bool| {
        let mut instance = sidecar("web", &[]);
        instance.port = port;
        let mut options = options(instance);
        options.source = ProxySource::new(source);
        options.overwrite = overwrite;
        manager.register(&id, options).unwrap()
    };
    let owner = || manager.status(&id).unwrap().source.unwrap();
    let port = || {
        host.settle();
        host.ready(&id).header.port
    };
    for overwrite in [false, true] {
        assert_eq!(register(1, "local", overwrite), Registered::Created);
        assert_eq!(port(), 1);
        assert_eq!(register(1, "local", overwrite), Registered::Unchanged);
        assert_eq!(register(2, "local", overwrite), Registered::Changed);
        assert_eq!(port(), 2);
        assert!(manager.deregister(&id, &ProxySource::LOCAL));
    }
    register(1, "local", false);
    assert_eq!(
        register(3, OTHER, false),
        Registered::OtherSource,
        "not an error"
    );
    assert_eq!((port(), owner()), (1, ProxySource::LOCAL));
    assert_eq!(register(3, OTHER, true), Registered::Changed);
    assert_eq!((port(), owner()), (3, ProxySource::new(OTHER)));
    assert_eq!(register(3, "local", true), Registered::Unchanged);
    assert_eq!(owner(), ProxySource::LOCAL, "unchanged, but taken over");
    assert!(!manager.deregister(&id, &ProxySource::new(OTHER)));
    assert!(manager.deregister(&id, &ProxySource::LOCAL));
    assert!(!manager.deregister(&id, &ProxySource::LOCAL));
    assert!(manager.status(&id).is_none());
}

#[test]
fn engine_m6_each_row_of_the_table_of_changes() {
    let host = Host::new();
    let id = proxy_id("web");
    let base = || sidecar("web", &["db"]);
    type Change = fn(&mut ServiceInstance);
    let changes: [(&str, Change); 10] = [
        ("address", |i| i.address = "10.9.9.9".into()),
        ("port", |i| i.port = 10),
        ("destination", |i| {
            i.proxy.destination_service_name = "api".into()
        }),
        ("upstreams removed", |i| i.proxy.upstreams.clear()),
        ("bind port", |i| i.proxy.upstreams[0].local_bind_port = 10),
        ("free settings", |i| {
            i.proxy.config.insert("protocol".into(), "http".into());
        }),
        ("name", |i| i.service = "renamed".into()),
        ("meta", |i| {
            i.meta.insert("a".into(), "b".into());
        }),
        ("tagged addresses", |i| {
            i.tagged_addresses
                .insert("wan".into(), TaggedAddress::default());
        }),
        ("mesh gateway", |i| {
            i.proxy.mesh_gateway.mode = MeshGatewayMode::Local
        }),
    ];
    for (what, change) in changes {
        host.register(&id, base());
        host.ready(&id);
        host.settle();
        let mut watch = host.manager.watch(&id);
        next(&mut watch);
        let mut changed = base();
        change(&mut changed);
        assert_eq!(host.register(&id, changed), Registered::Changed, "{what}");
        next(&mut watch);
        host.manager.deregister(&id, &ProxySource::LOCAL);
    }
    host.register_as(&id, base(), "foo");
    assert_eq!(
        host.register_as(&id, base(), "bar"),
        Registered::Created,
        "token"
    );
}

#[test]
fn engine_m6_what_health_rewrites_is_no_change() {
    let world = World::new();
    world.instance("web", 1);
    let id = ProxyId::new("web-1-sidecar-proxy", node_name("web", 1));
    let mut follow = options(sidecar("web", &[]));
    follow.registration = Registration::Record;
    world.manager().register(&id, follow.clone()).unwrap();
    let first = world.ready(&id);
    world.check("web", 1, CheckStatus::Critical);
    world.settle();
    assert!(is_same(&first, &world.ready(&id)));
    assert_eq!(
        world.manager().register(&id, follow).unwrap(),
        Registered::Unchanged
    );
}

#[test]
fn engine_m6_a_followed_record_changes_goes_and_comes_back() {
    let world = World::new();
    let id = ProxyId::new("web-1-sidecar-proxy", node_name("web", 1));
    let mut follow = options(sidecar("web", &[]));
    follow.registration = Registration::Record;
    world.manager().register(&id, follow).unwrap();
    world.settle();
    let status = world.manager().status(&id).unwrap();
    assert!(!status.ready);
    assert!(
        status.issues.iter().any(|i| i.blocks && i.error.is_some()),
        "{status:?}"
    );

    world.instance("web", 1);
    let mut watch = world.manager().watch(&id);
    assert_eq!(next(&mut watch).header.port, 21000);
    world.remove_instance("web", 1);
    world.settle();
    assert!(
        watch.try_next().unwrap().is_none(),
        "the last snapshot stays"
    );
    assert!(!world.manager().status(&id).unwrap().ready);
    world.instance("web", 1);
    world.settle();
    assert!(world.manager().status(&id).unwrap().ready);
}

#[test]
fn engine_m10_a_refused_registration_starts_nothing_and_can_be_repeated() {
    let host = Host::new();
    let id = proxy_id("web");
    let mut bad = sidecar("web", &["db"]);
    bad.proxy.upstreams[0].destination_type = "carrier-pigeon".into();
    for _ in 0..2 {
        let error = host
            .manager
            .register(&id, options(bad.clone()))
            .unwrap_err();
        assert!(
            matches!(&error, RegisterError::UnknownUpstreamType { kind, .. } if kind == "carrier-pigeon"),
            "{error}"
        );
        assert!(error.to_string().contains("unknown upstream type"));
    }
    assert!(host.manager.status(&id).is_none());
    assert_eq!(host.manager.counts().queries, 0);

    host.register(&id, sidecar("web", &["db"]));
    let good = host.ready(&id);
    host.manager.register(&id, options(bad)).unwrap_err();
    host.settle();
    assert!(
        is_same(&good, &host.ready(&id)),
        "a refused change changes nothing"
    );
}

#[test]
fn engine_1_3_what_is_no_proxy_is_refused() {
    let host = Host::new();
    let id = ProxyId::new("web", "n");
    let mut plain = sidecar("web", &[]);
    plain.kind = ServiceKind::Typical;
    let error = host.manager.register(&id, options(plain)).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("not a connect-proxy, terminating-gateway, mesh-gateway, or ingress-gateway"),
        "{error}"
    );
    assert!(host.manager.status(&id).is_none());
}

#[test]
fn engine_m14_proxies_are_listed_by_source() {
    let host = Host::new();
    for (service, source) in [("b", "local"), ("a", "local"), ("c", OTHER)] {
        let mut options = options(sidecar(service, &[]));
        options.source = ProxySource::new(source);
        host.manager.register(&proxy_id(service), options).unwrap();
    }
    let listed: Vec<_> = host
        .manager
        .registered(&ProxySource::LOCAL)
        .into_iter()
        .collect();
    assert_eq!(listed, [proxy_id("a"), proxy_id("b")]);
    assert_eq!(host.manager.registered(&ProxySource::new(OTHER)).len(), 1);
    assert!(
        host.manager
            .registered(&ProxySource::new("nobody"))
            .is_empty()
    );
}
