//! Single faults, and how each hop gets over them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use proxycfg::config_source::ConfigSource as _;
use proxycfg::model::ProxyId;
use proxycfg::store::{StoreError, Transaction};
use proxycfg::sync::fault::{Installed, Point, install};

use crate::faults::be_quiet;
use crate::mesh::{Mesh, NODE, SOURCE};
use crate::world::*;

/// Has one point panic each time; how often it did.
fn panics_at(wanted: Point) -> (Installed, Arc<AtomicUsize>) {
    be_quiet();
    let count = Arc::new(AtomicUsize::new(0));
    let of_injector = count.clone();
    let installed = install(move |point| {
        if point == wanted {
            of_injector.fetch_add(1, Ordering::SeqCst);
            panic!("by intent");
        }
        false
    });
    (installed, count)
}

fn fails_at(wanted: Point) -> Installed {
    install(move |point| point == wanted)
}

fn happened(count: &AtomicUsize) {
    eventually("the fault", || count.load(Ordering::SeqCst) > 0);
}

/// Moves time on by some seconds: less than it takes until everything is looked at anyway.
fn soon(mesh: &Mesh, what: &str, mut condition: impl FnMut() -> bool) {
    for _ in 0..20 {
        mesh.clock.advance(Duration::from_secs(1));
        let pause = Instant::now() + Duration::from_millis(500);
        while Instant::now() < pause {
            if condition() {
                return;
            }
            std::thread::yield_now();
        }
    }
    panic!("not soon: {what}");
}

#[test]
fn a_pass_of_the_local_sync_that_panicked_is_tried_again_soon() {
    let _alone = crate::alone();
    let mesh = Mesh::new(None);
    let (fault, count) = panics_at(Point::LocalSync);
    mesh.define("web", 8_080);
    happened(&count);
    drop(fault);
    let id = ProxyId::new("web-sidecar-proxy", NODE);
    soon(&mesh, "the registration", || {
        mesh.embedded.manager.status(&id).is_some_and(|s| s.ready)
    });
}

#[test]
fn a_look_of_the_catalog_source_that_panicked_is_tried_again_soon() {
    let _alone = crate::alone();
    let mesh = Mesh::new(None);
    let id = ProxyId::new("web-1-sidecar-proxy", node_name("web", 1));
    let mut stream = mesh.catalog.watch(&id).unwrap();
    let (fault, count) = panics_at(Point::CatalogSource);
    let ops = instance_ops("web", 1);
    mesh.embedded.store.apply(Transaction::from(ops)).unwrap();
    happened(&count);
    drop(fault);
    soon(&mesh, "the snapshot", || {
        stream.try_next().unwrap().is_some()
    });
}

#[test]
fn a_write_that_is_not_kept_is_refused_and_never_seen() {
    let _alone = crate::alone();
    let mesh = Mesh::new(None);
    let store = &mesh.embedded.store;
    let before = store.snapshot().index();
    let write = || store.apply(Transaction::from(instance_ops("web", 1)));
    let fault = fails_at(Point::Persist);
    assert!(matches!(write(), Err(StoreError::Backend(_))));
    drop(fault);
    let (fault, _) = panics_at(Point::Persist);
    assert!(matches!(write(), Err(StoreError::Backend(_))));
    drop(fault);
    assert_eq!(store.snapshot().index(), before);
    assert!(write().unwrap().index > before);
}

#[test]
fn a_certificate_that_can_not_be_signed_is_tried_again() {
    let _alone = crate::alone();
    let mesh = Mesh::new(None);
    let fault = fails_at(Point::Sign);
    let id = proxy_id("web");
    let mut options = options(sidecar("web", &[]));
    options.source = SOURCE;
    mesh.embedded.manager.register(&id, options).unwrap();
    let status = || mesh.embedded.manager.status(&id).unwrap();
    eventually("the error shows", || {
        let issues = status().issues;
        let mut errors = issues.iter().filter_map(|issue| issue.error.as_deref());
        errors.any(|error| error.contains("fault point: signing"))
    });
    drop(fault);
    mesh.heal(&id);
    assert!(status().issues.is_empty());
}

#[test]
fn answers_that_come_twice_change_nothing() {
    let _alone = crate::alone();
    let mesh = Mesh::new(None);
    let _fault = fails_at(Point::Answer);
    let id = proxy_id("web");
    let mut options = options(sidecar("web", &[]));
    options.source = SOURCE;
    mesh.embedded.manager.register(&id, options).unwrap();
    let mut watch = mesh.embedded.manager.watch(&id);
    next(&mut watch);
    mesh.flush();
    assert!(watch.try_next().unwrap().is_none());
}

#[cfg(feature = "server")]
#[test]
fn a_generation_that_panics_takes_no_thread_along() {
    use proxycfg::config_source::LocalConfigSource;
    use proxycfg::server::MeshProvider;
    use proxycfg::server::access::AllowAll;
    use proxycfg::server::ads::{Caller, ClientNode, ResourceProvider as _, StreamUpdate};
    use proxycfg::xds::Generator;

    let _alone = crate::alone();
    let mesh = Mesh::new(None);
    mesh.define("web", 8_080);
    mesh.flush();
    mesh.heal(&ProxyId::new("web-sidecar-proxy", NODE));
    let manager = &mesh.embedded.manager;
    let source = Arc::new(LocalConfigSource::new(manager.clone(), mesh.local.clone()));
    let provider = MeshProvider::start(
        source,
        NODE,
        Arc::new(AllowAll::default()),
        Arc::new(Generator::new()),
        1,
        manager.clock().clone(),
    )
    .unwrap();
    let node = ClientNode {
        id: "web-sidecar-proxy".into(),
        node_name: None,
        cluster: "web".into(),
        namespace: None,
        partition: None,
        envoy_version: None,
    };
    let caller = Caller {
        token: Default::default(),
        peer: None,
    };
    let (fault, count) = panics_at(Point::Generate);
    let first = provider.open(&node, &caller).unwrap();
    happened(&count);
    drop(fault);
    // The one thread is still there: for a new stream, and for the first one with its next snapshot.
    let second = provider.open(&node, &caller).unwrap();
    let has_resources = |updates: &StreamUpdate| matches!(updates, StreamUpdate::Resources(_));
    eventually("resources of another stream", || {
        has_resources(&second.updates().borrow())
    });
    mesh.define("web", 8_081);
    eventually("resources of the next snapshot", || {
        has_resources(&first.updates().borrow())
    });
}
