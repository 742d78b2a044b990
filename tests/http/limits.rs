//! What is refused because it is too much.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use proxycfg::server::Rate;
use serde_json::json;

use crate::world::{PATIENCE, World};

#[test]
fn requests_beyond_the_most_at_a_time_are_told_to_come_later() {
    let world = World::with(|config| config.max_requests = 2);
    let index = world.get("/v1/catalog/nodes").index();
    let path = format!("/v1/catalog/nodes?index={index}");
    let waiting = [world.get_later(&path), world.get_later(&path)];
    world.waiting(2);
    let refused = world.get("/v1/catalog/nodes");
    refused.refused(429, &["2 requests", "try again in 1 s"]);
    assert_eq!(refused.header("retry-after"), "1");
    let body = json!({"Node": "n1", "Address": "10.0.0.9"});
    world
        .put("/v1/catalog/register", &body)
        .refused(429, &["2 requests"]);
    // What is going on can be seen all the same.
    let metrics = world.get("/metrics");
    assert_eq!(metrics.status, 200);
    assert!(
        metrics
            .text
            .contains("route=\"/v1/catalog/nodes\",status=\"429\"} 1"),
        "{}",
        metrics.text
    );
    // A place that is given back is taken again.
    let register = json!({"Node": "n1", "Address": "10.0.0.9"});
    let transaction = proxycfg::model::Transaction::read(&proxycfg::hcl::Value::from_json(
        &json!({"Ops": [{"Register": register}]}),
    ));
    let transaction = proxycfg::store::Transaction::try_from(transaction.unwrap().0).unwrap();
    world.embedded.store.apply(transaction).unwrap();
    for waiting in waiting {
        waiting.join().unwrap().json();
    }
    crate::world::eventually("places are given back", || {
        world.get("/v1/catalog/nodes").status == 200
    });
}

#[test]
fn requests_that_come_too_fast_are_told_to_come_later() {
    let world = World::with(|config| config.max_request_rate = Rate::new(1));
    for _ in 0..10 {
        world.get("/v1/catalog/nodes").json();
    }
    let refused = world.get("/v1/catalog/nodes");
    refused.refused(429, &["more requests come", "try again in 1 s"]);
    assert_eq!(refused.header("retry-after"), "1");
    // The test's clock is the server's.
    world.clock.advance(Duration::from_secs(2));
    world.get("/v1/catalog/nodes").json();
    world.get("/v1/catalog/nodes").json();
    world.get("/v1/catalog/nodes").refused(429, &[]);
    assert_eq!(world.get("/metrics").status, 200);
}

#[test]
fn writes_have_a_rate_of_their_own() {
    let world = World::with(|config| config.max_write_rate = Rate::new(1));
    let entry =
        |n: usize| json!({"Kind": "service-defaults", "Name": format!("s{n}"), "Protocol": "http"});
    for n in 0..10 {
        world.accept("/v1/config", &entry(n));
    }
    world
        .put("/v1/config", &entry(10))
        .refused(429, &["more writes come"]);
    world
        .delete("/v1/config/service-defaults/s1")
        .refused(429, &["more writes come"]);
    let listed = world.get("/v1/config/service-defaults").json();
    assert_eq!(listed.as_array().unwrap().len(), 10);
    world.clock.advance(Duration::from_secs(1));
    world.accept("/v1/config", &entry(10));
}

/// It asks for much, again and again on one connection, and reads nothing: the server answers what fits between them, and
/// nobody else notices.
#[test]
fn a_client_that_stops_reading_holds_one_answer() {
    let world = World::new();
    let description = "x".repeat(500);
    let sources: Vec<_> = (0..200)
        .map(|n| json!({"Name": format!("s{n}"), "Action": "allow", "Description": description}))
        .collect();
    world.accept(
        "/v1/config",
        &json!({"Kind": "service-intentions", "Name": "db", "Sources": sources}),
    );
    let mut stream = TcpStream::connect(world.address).unwrap();
    stream
        .set_write_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    let request = format!(
        "GET /v1/connect/intentions HTTP/1.1\r\nHost: {}\r\n\r\n",
        world.address
    );
    // Until what lies between them is full; 50,000 answers would be 5 GB.
    let mut sent = 0;
    while sent < 50_000 && stream.write_all(request.as_bytes()).is_ok() {
        sent += 1;
    }
    assert!(sent > 0);
    let in_flight = |world: &World| {
        let text = world.get("/metrics").text;
        let line = text.lines().find(|line| {
            line.starts_with(
                "proxycfg_http_requests_total{method=\"GET\",route=\"/v1/connect/intentions\"",
            )
        });
        let count = line.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
        count.unwrap_or(0)
    };
    // Answers of 130 KB each: only as many are made as the sockets' buffers hold.
    let made = in_flight(&world);
    assert!(made < 500, "{made} answers for {sent} requests");
    world
        .get("/v1/connect/intentions/match?by=destination&name=db")
        .json();
    // It can go on.
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut some = vec![0; 1_000_000];
    stream.read_exact(&mut some).unwrap();
    assert!(some.starts_with(b"HTTP/1.1 200 OK"));
}
