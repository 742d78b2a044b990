//! Runners against real sockets on loopback, and on a clock that moves by hand.

mod probes;
mod scheduling;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::*;
use crate::clock::{RealClock, TestClock};
use crate::model::GoDuration;

const DEADLINE: Duration = Duration::from_secs(20);

/// Remembers everything that it is told.
#[derive(Default)]
struct Recorder {
    seen: Mutex<Seen>,
    more: Condvar,
}

#[derive(Default)]
struct Seen {
    reports: Vec<(CheckKey, CheckStatus, String)>,
    deregistered: Vec<String>,
    targets: BTreeMap<String, AliasTarget>,
}

impl CheckSink for Recorder {
    fn report(&self, key: &CheckKey, status: CheckStatus, output: String) {
        let mut seen = self.seen.lock();
        // An alias reads what was reported, as it would from a catalog.
        let target = match status {
            CheckStatus::Passing => AliasTarget::Passing,
            status => AliasTarget::Failing {
                status,
                name: key.check_id.to_string(),
                output: output.clone(),
            },
        };
        seen.targets.insert(key.service_id.to_string(), target);
        seen.reports.push((key.clone(), status, output));
        self.more.notify_all();
    }

    fn deregister_service(&self, service_id: &str) {
        self.seen.lock().deregistered.push(service_id.to_owned());
        self.more.notify_all();
    }

    fn alias_target(&self, _asking: &CheckKey, _node: &str, service_id: &str) -> AliasTarget {
        self.seen
            .lock()
            .targets
            .get(service_id)
            .cloned()
            .unwrap_or(AliasTarget::Missing)
    }
}

impl Recorder {
    fn wait<T>(&self, what: &str, mut f: impl FnMut(&Seen) -> Option<T>) -> T {
        let end = Instant::now() + DEADLINE;
        let mut seen = self.seen.lock();
        loop {
            if let Some(found) = f(&seen) {
                return found;
            }
            assert!(
                !self.more.wait_until(&mut seen, end).timed_out(),
                "{what}; reports: {:?}",
                seen.reports
            );
        }
    }

    /// The last report of a check, once it satisfies `f`.
    fn wait_report(
        &self,
        check_id: &str,
        f: impl Fn(CheckStatus, &str) -> bool,
    ) -> (CheckStatus, String) {
        self.wait(check_id, |seen| {
            let last = seen
                .reports
                .iter()
                .rev()
                .find(|(key, ..)| key.check_id == check_id)?;
            f(last.1, &last.2).then(|| (last.1, last.2.clone()))
        })
    }

    fn first(&self, check_id: &str) -> (CheckStatus, String) {
        self.wait_report(check_id, |_, _| true)
    }

    fn count(&self, check_id: &str) -> usize {
        self.seen
            .lock()
            .reports
            .iter()
            .filter(|(key, ..)| key.check_id == check_id)
            .count()
    }
}

fn check(service: &str, id: &str, definition: CheckDefinition) -> DesiredCheck {
    DesiredCheck {
        key: CheckKey::new(service, id),
        definition,
        status: CheckStatus::Critical,
    }
}

fn tcp(address: &str) -> CheckDefinition {
    CheckDefinition {
        tcp: address.to_owned(),
        ..Default::default()
    }
}

fn ttl(seconds: i64) -> CheckDefinition {
    CheckDefinition {
        ttl: GoDuration::from_secs(seconds),
        ..Default::default()
    }
}

fn alias(service: &str) -> CheckDefinition {
    CheckDefinition {
        alias_service: service.to_owned(),
        ..Default::default()
    }
}

fn real() -> (Arc<Recorder>, CheckRunner) {
    let sink = Arc::new(Recorder::default());
    let runner = CheckRunner::new(sink.clone(), Arc::new(RealClock::new())).unwrap();
    (sink, runner)
}

fn simulated() -> (Arc<Recorder>, Arc<TestClock>, CheckRunner) {
    let sink = Arc::new(Recorder::default());
    let clock = Arc::new(TestClock::new());
    let runner = CheckRunner::new(sink.clone(), clock.clone()).unwrap();
    (sink, clock, runner)
}

/// Moves time, and waits until the scheduler has done all that was due by then.
fn advance(clock: &TestClock, runner: &CheckRunner, by: Duration) {
    clock.advance(by);
    // A step deals with heartbeats first and with timers last, so the second one is dealt with after those timers.
    for _ in 0..2 {
        let (done, told) = bounded(1);
        let beat = Heartbeat {
            key: CheckKey::new("", "of no check"),
            status: CheckStatus::Passing,
            output: String::new(),
            _done: done,
        };
        runner.shared.inbox.lock().heartbeats.push(beat);
        runner.shared.wake();
        let _ = told.recv();
    }
}

/// An address that refuses connections for as long as the socket is held: bound, so that nobody else gets it, but not
/// listening.
fn closed() -> (tokio::net::TcpSocket, String) {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let address = socket.local_addr().unwrap().to_string();
    (socket, address)
}

/// Serves each connection with `serve`, for as long as the test runs.
fn serve(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let serve = Arc::new(serve);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let serve = serve.clone();
            std::thread::spawn(move || serve(stream));
        }
    });
    address
}

/// Reads one request with its body.
fn read_request(stream: &mut impl Read) -> String {
    let mut bytes = Vec::new();
    let mut byte = [0];
    while !bytes.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap_or(0) == 1 {
        bytes.push(byte[0]);
    }
    let mut text = String::from_utf8(bytes).unwrap();
    let length = text.lines().find_map(|line| {
        line.to_lowercase()
            .strip_prefix("content-length: ")?
            .parse()
            .ok()
    });
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).unwrap();
    text.push_str(std::str::from_utf8(&body).unwrap());
    text
}

/// Answers by path: `/status/CODE`, `/hop` (to `/status/200`), `/loop`, `/hang`, `/long`, else the request itself.
fn answer(stream: &mut (impl Read + Write)) {
    let request = read_request(stream);
    let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
    let (status, extra, body) = match path.as_str() {
        "/hop" => (
            "302 Found".to_owned(),
            "Location: /status/200\r\n",
            "moved".to_owned(),
        ),
        "/loop" => ("302 Found".to_owned(), "Location: /loop\r\n", String::new()),
        "/hang" => {
            let _ = stream.read(&mut [0]);
            return;
        }
        "/long" => ("200 OK".to_owned(), "", "x".repeat(100_000)),
        path => match path.strip_prefix("/status/") {
            Some(code) => (format!("{code} Whatever"), "", format!("answered {code}")),
            None => ("200 OK".to_owned(), "", request),
        },
    };
    // The client may have read enough and gone.
    let _ = write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\n{extra}\r\n{body}",
        body.len()
    );
}

fn http_server() -> String {
    serve(|mut stream| answer(&mut stream))
}

fn http(url: String) -> CheckDefinition {
    CheckDefinition {
        http: url,
        ..Default::default()
    }
}
