//! Protocols of services.

use serde_json::json;

use crate::member::Member;
use crate::support::apps::{http_name, tcp_name};
use crate::support::{DEADLINE, http};
use crate::traffic::{Traffic, from_now_on};
use crate::world::Mesh;

#[test]
fn envoy_takes_http2_and_grpc() {
    let mesh = Mesh::start();
    let two = Member::tcp("two", "two-1");
    let rpc = Member::tcp("rpc", "rpc-1").upstream("two");
    let plain = Member::tcp("plain", "plain-1")
        .upstream("two")
        .upstream("rpc");
    mesh.protocol("two", "http2");
    mesh.protocol("rpc", "grpc");
    for member in [&two, &rpc, &plain] {
        mesh.register(member);
    }
    let envoys = [mesh.envoy(&two), mesh.envoy(&rpc), mesh.envoy(&plain)];
    // A request reaches the upstream's cluster, over HTTP/2: the application at its end speaks another protocol.
    let answer = http::get(&plain.address_of("two"), "/").unwrap();
    assert!(answer.status >= 500, "{answer:?}");
    envoys[2].wait_until("asked over HTTP/2", DEADLINE, |envoy| {
        let stats = envoy.stats("cluster.*two.*upstream_cx_http2_total$");
        if stats.values().any(|count| *count > 0) {
            Ok(())
        } else {
            Err(format!("{stats:?}"))
        }
    });
    // The service's access rules have let it through to the application.
    assert!(two.app.served() > 0);
    mesh.assert_calm(&envoys.each_ref());
}

#[test]
fn a_protocol_changes_while_other_traffic_goes_on() {
    let mesh = Mesh::start();
    let api = Member::http("api", "api-1");
    let db = Member::tcp("db", "db-1");
    let web = Member::tcp("web", "web-1").upstream("api").upstream("db");
    for member in [&api, &db, &web] {
        mesh.register(member);
    }
    let envoys = [mesh.envoy(&api), mesh.envoy(&db), mesh.envoy(&web)];
    let (to_api, to_db) = (web.address_of("api"), web.address_of("db"));
    from_now_on("api-1", || http_name(&to_api));
    from_now_on("db-1", || tcp_name(&to_db));
    let other = Traffic::start(move || tcp_name(&to_db));
    // Sees nothing of the proxies while they pass bytes on.
    let sees_caller = || -> std::io::Result<String> {
        let seen = http::get(&to_api, "/")?.json();
        let caller = seen["headers"]["x-forwarded-client-cert"].is_string();
        Ok(caller.to_string())
    };
    from_now_on("false", sees_caller);
    mesh.protocol("api", "http");
    from_now_on("true", sees_caller);
    mesh.entry(json!({"Kind": "service-defaults", "Name": "api", "Protocol": "tcp"}));
    from_now_on("false", sees_caller);
    other.assert_always("db-1");
    mesh.assert_calm(&envoys.each_ref());
}
