//! Proxies of other nodes, and Envoys that nobody has registered.

use proxycfg::model::{ProxyId, ProxySource};
use proxycfg::server::ads::StreamPhase;
use serde_json::json;

use crate::member::Member;
use crate::support::apps::tcp_name;
use crate::support::{DEADLINE, wait_until};
use crate::traffic::{from_now_on, refused_from_now_on};
use crate::world::Mesh;

fn check(what: bool, message: &str) -> Result<(), String> {
    if what {
        Ok(())
    } else {
        Err(message.to_owned())
    }
}

#[test]
fn a_proxy_of_another_node_is_served_while_its_envoy_is_there() {
    let mesh = Mesh::start();
    let db = Member::tcp("db", "db-1");
    let mut remote = Member::tcp("remote", "remote-1").upstream("db");
    mesh.register(&db);
    mesh.apply(remote.registration("other"));
    let id = ProxyId::new(remote.proxy_id(), "other");
    let manager = &mesh.embedded.manager;
    assert!(manager.registered(&ProxySource::CATALOG).is_empty());

    let db_envoy = mesh.envoy(&db);
    let envoy = mesh.connect(&remote.proxy_id(), Some("other"));
    envoy.wait_ready();
    assert_eq!(
        manager.registered(&ProxySource::CATALOG),
        [id.clone()].into()
    );
    from_now_on("db-1", || tcp_name(&remote.address_of("db")));

    // It follows its record.
    remote.remove_upstream("db");
    remote.add_upstream("db", json!({}));
    mesh.apply(remote.registration("other"));
    from_now_on("db-1", || tcp_name(&remote.address_of("db")));
    mesh.assert_calm(&[&db_envoy, &envoy]);

    // Gone and back within the time of grace or after it: it is served again.
    drop(envoy);
    wait_until("released", DEADLINE, || {
        check(
            manager.registered(&ProxySource::CATALOG).is_empty(),
            "still registered",
        )?;
        check(mesh.catalog.followed() == 0, "still followed")?;
        check(manager.status(&id).is_none(), "still watched")
    });
    let envoy = mesh.connect(&remote.proxy_id(), Some("other"));
    envoy.wait_ready();
    from_now_on("db-1", || tcp_name(&remote.address_of("db")));
    mesh.assert_calm(&[&db_envoy, &envoy]);
}

#[test]
fn an_envoy_that_nobody_registered_waits() {
    let mesh = Mesh::start();
    let db = Member::tcp("db", "db-1");
    let web = Member::tcp("web", "web-1").upstream("db");
    let remote = Member::tcp("remote", "remote-1").upstream("db");
    let web_envoy = mesh.connect(&web.proxy_id(), None);
    let remote_envoy = mesh.connect(&remote.proxy_id(), Some("other"));
    for id in [web.proxy_id(), remote.proxy_id()] {
        wait_until("its stream waits", DEADLINE, || match mesh.phase(&id) {
            Some(StreamPhase::WaitingForResources) => Ok(()),
            phase => Err(format!("{phase:?}")),
        });
    }
    // Another proxy isn't held up by them.
    mesh.register(&db);
    let db_envoy = mesh.envoy(&db);
    assert!(!web_envoy.ready());
    assert!(!remote_envoy.ready());

    mesh.register(&web);
    web_envoy.wait_ready();
    from_now_on("db-1", || tcp_name(&web.address_of("db")));
    mesh.apply(remote.registration("other"));
    remote_envoy.wait_ready();
    from_now_on("db-1", || tcp_name(&remote.address_of("db")));

    // Without its registration it keeps what it has, and follows again when it is registered anew.
    mesh.deregister(&web);
    from_now_on("db-1", || tcp_name(&web.address_of("db")));
    let mut again = web;
    again.add_upstream("remote", json!({}));
    mesh.register(&again);
    from_now_on("remote-1", || tcp_name(&again.address_of("remote")));
    from_now_on("db-1", || tcp_name(&again.address_of("db")));
    mesh.intention("web", "db", "deny");
    refused_from_now_on(|| tcp_name(&again.address_of("db")));
    mesh.assert_calm(&[&db_envoy, &web_envoy, &remote_envoy]);
}
