//! Upstreams come and go by registration.

use std::net::TcpStream;

use serde_json::json;

use crate::member::Member;
use crate::support::apps::tcp_name;
use crate::support::{DEADLINE, wait_until};
use crate::traffic::{Traffic, from_now_on};
use crate::world::Mesh;

#[test]
fn fc_030_upstreams_are_added_and_removed_without_disturbing_others() {
    let mesh = Mesh::start();
    let (db, cache) = (Member::tcp("db", "db-1"), Member::tcp("cache", "cache-1"));
    let mut web = Member::tcp("web", "web-1").upstream("db");
    for member in [&db, &cache, &web] {
        mesh.register(member);
    }
    let envoys = [mesh.envoy(&db), mesh.envoy(&cache), mesh.envoy(&web)];
    let to_db = web.address_of("db");
    from_now_on("db-1", || tcp_name(&to_db));
    let traffic = Traffic::start(move || tcp_name(&to_db));
    let web_envoy = &envoys[2];
    let clusters = || web_envoy.stat("cluster_manager.active_clusters");
    let before = clusters();

    for _ in 0..3 {
        web.add_upstream("cache", json!({}));
        let to_cache = web.address_of("cache");
        mesh.register(&web);
        from_now_on("cache-1", || tcp_name(&to_cache));
        traffic.more(3);

        web.remove_upstream("cache");
        mesh.register(&web);
        wait_until(
            "the listener is gone",
            DEADLINE,
            || match TcpStream::connect(&to_cache) {
                Err(_) => Ok(()),
                Ok(_) => Err("still there".to_owned()),
            },
        );
        wait_until("the cluster is gone", DEADLINE, || match clusters() {
            count if count == before => Ok(()),
            count => Err(format!("{count} clusters, {before} before")),
        });
        traffic.more(3);
    }
    traffic.assert_always("db-1");
    mesh.assert_calm(&envoys.each_ref());
}

#[test]
fn must_hold_28_a_listener_moves_to_another_port() {
    let mesh = Mesh::start();
    let db = Member::tcp("db", "db-1");
    let mut web = Member::tcp("web", "web-1").upstream("db");
    mesh.register(&db);
    mesh.register(&web);
    let envoys = [mesh.envoy(&db), mesh.envoy(&web)];
    let before = web.address_of("db");
    from_now_on("db-1", || tcp_name(&before));
    web.remove_upstream("db");
    web.add_upstream("db", json!({}));
    mesh.register(&web);
    from_now_on("db-1", || tcp_name(&web.address_of("db")));
    wait_until("the old port is closed", DEADLINE, || {
        TcpStream::connect(&before).map_or(Ok(()), |_| Err("still open".to_owned()))
    });
    mesh.assert_calm(&envoys.each_ref());
}
