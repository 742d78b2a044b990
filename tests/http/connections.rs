//! Connections: how many there may be, and how long one may be open for nothing.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::world::{PATIENCE, World, eventually, web};

const SHORT: Duration = Duration::from_millis(400);

fn connect(world: &World) -> TcpStream {
    let stream = TcpStream::connect(world.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Asks on a connection of its own, which stays open; the head of the answer.
fn ask(stream: &mut TcpStream, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    answer(stream)
}

/// The head of an answer; all of it, if there is no body.
fn answer(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    let mut byte = [0];
    while !text.ends_with(b"\r\n\r\n") {
        assert_eq!(stream.read(&mut byte).unwrap(), 1, "{text:?}");
        text.push(byte[0]);
    }
    let text = String::from_utf8(text).unwrap();
    let lower = text.to_lowercase();
    let length = lower
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.unwrap().parse().unwrap()];
    stream.read_exact(&mut body).unwrap();
    text
}

/// Waits until the server has hung up; how long that took.
fn hung_up(mut stream: TcpStream) -> Duration {
    let start = Instant::now();
    let mut rest = Vec::new();
    // The end, or a reset.
    if let Err(error) = stream.read_to_end(&mut rest) {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
    }
    start.elapsed()
}

fn counted(world: &World, line: &str) -> u64 {
    let text = world.get("/metrics").text;
    let found = text
        .lines()
        .find_map(|l| l.strip_prefix(line))
        .unwrap_or_else(|| panic!("{text}"));
    found.trim().parse().unwrap()
}

const OPEN: &str = "proxycfg_connections{server=\"http\"}";
const REFUSED: &str = "proxycfg_connections_refused_total{server=\"http\"}";
const OVERDUE: &str = "proxycfg_connections_overdue_total{server=\"http\"}";

#[test]
fn a_head_that_never_ends_is_not_waited_for() {
    let world = World::with(|config| config.header_timeout = SHORT);
    let silent = connect(&world);
    let mut dripping = connect(&world);
    let start = Instant::now();
    dripping
        .write_all(b"GET /v1/catalog/nodes HTTP/1.1\r\n")
        .unwrap();
    while dripping.write_all(b"A: b\r\n").is_ok() {
        assert!(start.elapsed() < PATIENCE, "it may drip for ever");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(start.elapsed() >= SHORT / 2);
    hung_up(silent);
    world.get("/v1/catalog/nodes").json();
    assert_eq!(counted(&world, OVERDUE), 2);
}

#[test]
fn a_connection_is_kept_for_the_next_request_but_not_for_ever() {
    let world = World::with(|config| {
        config.header_timeout = PATIENCE;
        config.idle_timeout = SHORT;
    });
    let mut stream = connect(&world);
    for _ in 0..3 {
        assert!(ask(&mut stream, "/v1/status/leader").starts_with("HTTP/1.1 200"));
        std::thread::sleep(SHORT / 4);
    }
    assert!(hung_up(stream) < PATIENCE / 2);
    // A read that waits isn't idle, however long.
    let index = world.get("/v1/catalog/nodes").index();
    let waiting = world.get_later(&format!("/v1/catalog/nodes?index={index}"));
    world.waiting(1);
    std::thread::sleep(SHORT * 2);
    world.accept("/v1/catalog/register", &web());
    waiting.join().unwrap().json();
}

#[test]
fn clients_that_say_nothing_make_room_for_those_that_do() {
    let world = World::with(|config| config.max_connections = 3);
    let first = connect(&world);
    let crowd: Vec<_> = (0..20).map(|_| connect(&world)).collect();
    hung_up(first);
    world.get("/v1/catalog/nodes").json();
    assert!(counted(&world, OPEN) <= 3);
    assert_eq!(counted(&world, REFUSED), 0);
    assert_eq!(crowd.len(), 20);
}

#[test]
fn when_all_connections_have_requests_others_are_told_to_come_later() {
    let world = World::with(|config| config.max_connections = 2);
    let index = world.get("/v1/catalog/nodes").index();
    let mut waiting: Vec<_> = (0..2).map(|_| connect(&world)).collect();
    for (n, stream) in waiting.iter_mut().enumerate() {
        let request = format!("GET /v1/catalog/nodes?index={index} HTTP/1.1\r\nHost: x\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        world.waiting(n + 1);
    }
    let mut refused = connect(&world);
    refused
        .write_all(b"GET /v1/catalog/nodes HTTP/1.1\r\nHost: x\r\n\r\n")
        .unwrap();
    let mut text = String::new();
    refused.read_to_string(&mut text).unwrap();
    assert!(
        text.starts_with("HTTP/1.1 503 Service Unavailable\r\n"),
        "{text}"
    );
    assert!(
        text.contains("--max-http-connections") && text.contains("Retry-After: 1"),
        "{text}"
    );
    // Places that are given back are taken again.
    drop(waiting.pop());
    eventually("a place", || {
        let mut stream = connect(&world);
        ask(&mut stream, "/v1/status/leader").starts_with("HTTP/1.1 200")
    });
    assert!(counted(&world, REFUSED) >= 1);
    drop(waiting);
}

#[test]
fn a_client_that_stops_reading_is_not_waited_for() {
    let world = World::with(|config| config.idle_timeout = SHORT);
    let sources: Vec<_> = (0..200)
        .map(
            |n| json!({"Name": format!("s{n}"), "Action": "allow", "Description": "x".repeat(500)}),
        )
        .collect();
    let entry = json!({"Kind": "service-intentions", "Name": "db", "Sources": sources});
    world.accept("/v1/config", &entry);
    let mut stream = connect(&world);
    stream.set_write_timeout(Some(SHORT)).unwrap();
    let request = b"GET /v1/connect/intentions HTTP/1.1\r\nHost: x\r\n\r\n";
    // Until what lies between them is full.
    let start = Instant::now();
    while stream.write_all(request).is_ok() {
        assert!(start.elapsed() < PATIENCE);
    }
    eventually("it is given up", || counted(&world, OVERDUE) >= 1);
    drop(stream);
}

#[test]
fn bodies_of_all_requests_share_a_room() {
    let world = World::with(|config| {
        config.max_body = 100_000;
        config.max_bodies = 100_000;
    });
    let slow = || {
        let mut slow = connect(&world);
        let head = "PUT /v1/config HTTP/1.1\r\nHost: x\r\nContent-Length: 90000\r\n\r\n";
        slow.write_all(head.as_bytes()).unwrap();
        slow.write_all(&[b' '; 80_000]).unwrap();
        slow.set_nonblocking(true).unwrap();
        slow
    };
    let large = json!({"Kind": "service-defaults", "Name": "a", "Meta": {"a": "x".repeat(40_000)}});
    let mut holds = slow();
    eventually("there is no room", || {
        let answer = world.put("/v1/config", &large);
        if answer.status == 429 {
            answer.refused(429, &["100000 bytes", "--max-http-bodies", "try again"]);
            assert_eq!(answer.header("retry-after"), "1");
            return true;
        }
        if holds.read(&mut [0]).is_ok() {
            // The other one was first, and this one refused.
            holds = slow();
        }
        false
    });
    let small = json!({"Kind": "service-defaults", "Name": "a", "Protocol": "http"});
    world.accept("/v1/config", &small);
    drop(holds);
    eventually("there is room again", || {
        world.put("/v1/config", &large).status != 429
    });
}

#[test]
fn heads_have_a_size_and_a_number_of_lines() {
    let world = World::with(|config| config.max_header = 10_000);
    let long = format!("A: {}\r\n", "x".repeat(40_000));
    let many = "A: b\r\n".repeat(101);
    for headers in [&long, &many] {
        let mut stream = connect(&world);
        let request = format!("GET /v1/catalog/nodes HTTP/1.1\r\nHost: x\r\n{headers}\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        let mut some = [0; 512];
        // It ends with a reset if bytes are left unread.
        while let Ok(n) = stream.read(&mut some) {
            answer.extend_from_slice(&some[..n]);
            if n == 0 || answer.len() >= 12 {
                break;
            }
        }
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    }
    // Not too large, and never at an end: no more than that is held.
    let mut endless = connect(&world);
    endless.write_all(b"GET /").unwrap();
    let start = Instant::now();
    while endless.write_all(&[b'x'; 1_000]).is_ok() {
        assert!(start.elapsed() < PATIENCE);
    }
    world.get("/v1/catalog/nodes").json();
}
