//! Bodies without end: refused with what the limit is and how to change it, and never held.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use serde_json::Value;

use super::world::{DEADLINE, Server, folder, height, until};

/// What the server may grow by, in KiB: far less than it is sent.
const MOST_GROWTH: u64 = 100 * 1024;

const CHUNK: usize = 64 * 1024;

/// How a body is sent.
#[derive(Debug, Clone, Copy)]
enum Sent {
    /// With its length before it.
    Announced,
    /// In chunks, so that nobody knows how many will come.
    Chunked,
    /// Only after the server has agreed.
    Asking,
}

/// Sends so many bytes, or until the server hangs up; its answer, if there was one.
fn send(server: SocketAddr, sent: Sent, bytes: usize) -> Option<String> {
    let mut stream = TcpStream::connect(server).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream.set_write_timeout(Some(DEADLINE)).unwrap();
    let length = match sent {
        Sent::Announced => format!("Content-Length: {bytes}"),
        Sent::Chunked => "Transfer-Encoding: chunked".to_owned(),
        Sent::Asking => format!("Content-Length: {bytes}\r\nExpect: 100-continue"),
    };
    let head = format!("PUT /v1/config HTTP/1.1\r\nHost: x\r\n{length}\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let content = vec![b' '; CHUNK];
    if !matches!(sent, Sent::Asking) {
        for _ in 0..bytes / CHUNK {
            let written = match sent {
                Sent::Chunked => write!(stream, "{CHUNK:x}\r\n")
                    .and_then(|()| stream.write_all(&content))
                    .and_then(|()| stream.write_all(b"\r\n")),
                _ => stream.write_all(&content),
            };
            if written.is_err() {
                break;
            }
        }
        // Not when the server has hung up.
        let _ = stream.write_all(b"0\r\n\r\n");
    }
    let mut answer = Vec::new();
    // It ends with a reset if the server left bytes unread.
    let _ = stream.read_to_end(&mut answer);
    (!answer.is_empty()).then(|| String::from_utf8(answer).unwrap())
}

#[test]
fn bodies_over_the_limit_are_refused_and_not_held() {
    let there = folder(&[]);
    let server = Server::start(there.path(), &["--max-http-body=100000"]);
    let before = server.store_index();
    let at_first = height(server.pid());
    for sent in [Sent::Announced, Sent::Chunked, Sent::Asking] {
        for megabytes in [1, 8] {
            let answer = send(server.http, sent, megabytes << 20).expect("an answer");
            assert!(answer.starts_with("HTTP/1.1 413 "), "{sent:?}: {answer}");
            for told in ["100000 bytes", "--max-http-body", "connection: close"] {
                assert!(answer.contains(told), "{sent:?} {told}: {answer}");
            }
        }
    }
    // Those who don't stop sending are hung up on.
    for sent in [Sent::Announced, Sent::Chunked] {
        let answer = send(server.http, sent, 500 << 20);
        assert!(answer.is_none_or(|text| text.starts_with("HTTP/1.1 413 ")));
    }
    let address = server.http;
    let crowd: Vec<_> = (0..24)
        .map(|_| std::thread::spawn(move || send(address, Sent::Chunked, 8 << 20)))
        .collect();
    for sender in crowd {
        sender.join().unwrap();
    }
    let grown = height(server.pid()) - at_first;
    assert!(grown < MOST_GROWTH, "{grown} KiB");
    assert_eq!(server.store_index(), before);
    server.put(
        "/v1/config",
        &serde_json::json!({"Kind": "service-defaults", "Name": "a"}),
    );
    assert_eq!(server.stop().0, 0);
}

#[test]
fn bodies_within_the_limit_share_what_is_held_of_all() {
    let there = folder(&[]);
    // Four of the largest at a time.
    let args = ["--max-http-body=4000000", "--max-http-bodies=16000000"];
    let server = Server::start(there.path(), &args);
    let at_first = height(server.pid());
    let head = "PUT /v1/config HTTP/1.1\r\nHost: x\r\nContent-Length: 4000000\r\n\r\n";
    let mut senders: Vec<_> = (0..60)
        .map(|_| {
            let mut stream = TcpStream::connect(server.http).unwrap();
            stream.write_all(head.as_bytes()).unwrap();
            stream
        })
        .collect();
    // All but their last byte: 240 MB, if they were held.
    let most = vec![b' '; 3_999_999];
    let sent = senders.iter_mut().map(|s| s.write_all(&most).is_ok());
    assert_eq!(sent.count(), 60);
    // There is room for three bodies and some of a fourth at least; the others are told, though they don't end.
    let refused =
        "proxycfg_http_requests_total{method=\"PUT\",route=\"/v1/config\",status=\"429\"} ";
    until("those without room are refused", || {
        let metrics = server.text("/metrics");
        let count = metrics
            .lines()
            .find_map(|line| line.strip_prefix(refused))?;
        (count.trim().parse::<usize>().unwrap() >= 50).then_some(())
    });
    let grown = height(server.pid()) - at_first;
    assert!(grown < MOST_GROWTH, "{grown} KiB");
    drop(senders);
    server.put(
        "/v1/config",
        &serde_json::json!({"Kind": "service-defaults", "Name": "a"}),
    );
    assert_eq!(
        server.get("/v1/config/service-defaults/a").unwrap()["Name"],
        Value::from("a")
    );
}
