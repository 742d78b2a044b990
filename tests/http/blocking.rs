//! Reads that wait (store.md 2.4).

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::world::{World, web, web_sidecar};

#[test]
fn a_waiting_read_answers_when_its_records_change_and_no_sooner() {
    let world = World::new();
    world.accept("/v1/catalog/register", &web());
    let index = world.get("/v1/health/service/web").index();
    let waiting = world.get_later(&format!("/v1/health/service/web?index={index}&wait=1m"));
    world.waiting(1);
    // Other records don't wake it.
    world.accept(
        "/v1/config",
        &json!({"Kind": "service-defaults", "Name": "db", "Protocol": "http"}),
    );
    world.accept(
        "/v1/catalog/register",
        &json!({"Node": "n2", "Address": "10.0.0.2", "Service": {"Service": "db", "Port": 1}}),
    );
    world.waiting(1);
    assert!(!waiting.is_finished());
    let written = world.accept(
        "/v1/catalog/register",
        &json!({"Node": "n1", "SkipNodeUpdate": true, "Check": {"CheckID": "web", "ServiceID": "web1", "Status": "critical"}}),
    );
    let answer = waiting.join().unwrap();
    assert_eq!(answer.index(), written.index());
    assert_eq!(answer.json()[0]["Checks"][1]["Status"], "critical");
    world.waiting(0);
}

#[test]
fn fc_073_the_requested_time_is_honoured() {
    let world = World::new();
    world.accept("/v1/catalog/register", &web());
    world.accept(
        "/v1/config",
        &json!({"Kind": "service-defaults", "Name": "web", "Protocol": "http"}),
    );
    let wait = Duration::from_millis(160);
    for path in [
        "/v1/connect/ca/roots",
        "/v1/agent/connect/ca/roots",
        "/v1/agent/connect/ca/leaf/web",
        "/v1/catalog/service/web",
        "/v1/catalog/nodes",
        "/v1/catalog/services",
        "/v1/health/service/web",
        "/v1/config/service-defaults/web",
    ] {
        let first = world.get(path);
        let start = Instant::now();
        let second = world.get(&format!("{path}?index={}&wait=160ms", first.index()));
        let took = start.elapsed();
        assert_eq!(second.json(), first.json(), "{path}");
        assert_eq!(second.index(), first.index(), "{path}");
        assert!(took >= wait && took < wait * 60, "{path} took {took:?}");
    }
}

#[test]
fn a_read_of_what_is_missing_waits_for_it_and_not_for_others() {
    let world = World::new();
    let missing = world.get("/v1/config/service-defaults/web");
    assert_eq!(missing.status, 404);
    let index = missing.index();
    let waiting = world.get_later(&format!(
        "/v1/config/service-defaults/web?index={index}&wait=1m"
    ));
    world.waiting(1);
    world.accept(
        "/v1/config",
        &json!({"Kind": "service-defaults", "Name": "db", "Protocol": "http"}),
    );
    world.waiting(1);
    assert!(!waiting.is_finished());
    world.accept(
        "/v1/config",
        &json!({"Kind": "service-defaults", "Name": "web", "Protocol": "http"}),
    );
    assert_eq!(waiting.join().unwrap().json()["Protocol"], "http");
}

#[test]
fn a_change_that_the_answer_does_not_show_wakes_nobody() {
    let world = World::new();
    world.accept("/v1/catalog/register", &web());
    let path = "/v1/health/service/web?tag=nope";
    let index = world.get(path).index();
    let waiting = world.get_later(&format!("{path}&index={index}&wait=1m"));
    world.waiting(1);
    // The service changes, but no row that is asked for.
    for status in ["critical", "passing", "critical"] {
        world.accept(
            "/v1/catalog/register",
            &json!({"Node": "n1", "SkipNodeUpdate": true, "Check": {"CheckID": "web", "ServiceID": "web1", "Status": status}}),
        );
        world.waiting(1);
    }
    assert!(!waiting.is_finished());
    let mut tagged = web();
    tagged["Service"]["Tags"] = json!(["nope"]);
    world.accept("/v1/catalog/register", &tagged);
    assert_eq!(waiting.join().unwrap().json().as_array().unwrap().len(), 1);
}

#[test]
fn an_index_of_another_life_is_answered_at_once() {
    let world = World::new();
    let index = world.index() + 1_000_000;
    let answer = world.get(&format!("/v1/catalog/nodes?index={index}&wait=10m"));
    assert!(answer.index() < index);
}

#[test]
fn bad_waits_and_indexes_are_refused() {
    let world = World::new();
    world
        .get("/v1/catalog/nodes?index=x")
        .refused(400, &["\"index\"", "\"x\""]);
    world
        .get("/v1/catalog/nodes?index=-1")
        .refused(400, &["\"index\""]);
    world
        .get("/v1/catalog/nodes?wait=soon")
        .refused(400, &["\"wait\"", "soon"]);
    world
        .get("/v1/catalog/nodes?wait=-1s")
        .refused(400, &["\"wait\""]);
}

#[test]
fn many_waiting_reads_hold_no_threads() {
    let world = World::new();
    let index = world.get("/v1/health/service/web").index();
    let clients: Vec<_> = (0..200)
        .map(|_| {
            let mut client = TcpStream::connect(world.address).unwrap();
            let request = format!(
                "GET /v1/health/service/web?index={index}&wait=5m HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
            );
            client.write_all(request.as_bytes()).unwrap();
            client
        })
        .collect();
    world.waiting(200);
    // Others are served meanwhile.
    world.accept("/v1/catalog/register", &web_sidecar());
    world.waiting(200);
    world.accept("/v1/catalog/register", &web());
    for mut client in clients {
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        assert!(
            text.starts_with("HTTP/1.1 200") && text.contains("web1"),
            "{text}"
        );
    }
    world.waiting(0);
}

#[test]
fn a_client_that_hangs_up_leaves_nothing() {
    let world = World::new();
    let index = world.get("/v1/catalog/nodes").index();
    let mut client = TcpStream::connect(world.address).unwrap();
    let request =
        format!("GET /v1/catalog/nodes?index={index}&wait=5m HTTP/1.1\r\nHost: x\r\n\r\n");
    client.write_all(request.as_bytes()).unwrap();
    world.waiting(1);
    drop(client);
    world.waiting(0);
}

#[test]
fn a_stopping_server_answers_those_who_wait() {
    let mut world = World::new();
    let first = world.get("/v1/catalog/nodes");
    let waiting = world.get_later(&format!(
        "/v1/catalog/nodes?index={}&wait=5m",
        first.index()
    ));
    world.waiting(1);
    world.stop();
    assert_eq!(waiting.join().unwrap().json(), first.json());
}
