use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
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

/// An address where nothing listens.
fn closed_address() -> String {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .to_string()
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

#[test]
fn r1_tcp_passes_or_says_why_not() {
    let (sink, runner) = real();
    let open = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = open.local_addr().unwrap().to_string();
    let closed = closed_address();
    runner.set_checks(vec![
        check("web", "open", tcp(&address)),
        check("web", "closed", tcp(&closed)),
    ]);
    assert_eq!(
        sink.first("open"),
        (
            CheckStatus::Passing,
            format!("TCP connect {address}: Success")
        )
    );
    assert_eq!(
        sink.first("closed"),
        (
            CheckStatus::Critical,
            format!("TCP connect {closed}: connection refused")
        )
    );
}

#[test]
fn r1_udp_passes_unless_refused() {
    let (sink, runner) = real();
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let closed = UdpSocket::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .to_string();
    let udp = |address: &str| CheckDefinition {
        udp: address.to_owned(),
        timeout: GoDuration::from_millis(400),
        ..Default::default()
    };
    runner.set_checks(vec![
        check("web", "silent", udp(&address)),
        check("web", "closed", udp(&closed)),
    ]);
    assert_eq!(
        sink.first("silent"),
        (
            CheckStatus::Passing,
            format!("UDP connect {address}: Success")
        )
    );
    assert_eq!(
        sink.first("closed"),
        (
            CheckStatus::Critical,
            format!("UDP connect {closed}: connection refused")
        )
    );
}

#[test]
fn r1_http_status_decides() {
    let (sink, runner) = real();
    let server = http_server();
    let url = |path: &str| format!("http://{server}{path}");
    let closed = format!("http://{}/", closed_address());
    runner.set_checks(vec![
        check("web", "ok", http(url("/status/204"))),
        check("web", "busy", http(url("/status/429"))),
        check("web", "bad", http(url("/status/503"))),
        check("web", "moved", http(url("/hop"))),
        check("web", "loop", http(url("/loop"))),
        check("web", "long", http(url("/long"))),
        check("web", "closed", http(closed.clone())),
    ]);
    let (status, output) = sink.first("ok");
    assert_eq!(
        (status, output),
        (
            CheckStatus::Passing,
            format!("HTTP GET {}: 204 No Content Output: ", url("/status/204"))
        )
    );
    let (status, output) = sink.first("busy");
    assert_eq!(
        (status, output),
        (
            CheckStatus::Warning,
            format!(
                "HTTP GET {}: 429 Too Many Requests Output: answered 429",
                url("/status/429")
            )
        )
    );
    let (status, output) = sink.first("bad");
    assert_eq!(
        (status, output),
        (
            CheckStatus::Critical,
            format!(
                "HTTP GET {}: 503 Service Unavailable Output: answered 503",
                url("/status/503")
            )
        )
    );
    let (status, output) = sink.first("moved");
    assert_eq!(
        (status, output),
        (
            CheckStatus::Passing,
            format!("HTTP GET {}: 200 OK Output: answered 200", url("/hop"))
        )
    );
    let (status, output) = sink.first("loop");
    assert_eq!(
        (status, output),
        (
            CheckStatus::Critical,
            format!("HTTP GET {}: stopped after 10 redirects", url("/loop"))
        )
    );
    let (status, output) = sink.first("long");
    assert_eq!(status, CheckStatus::Passing);
    assert!(
        output.ends_with("xxx... (cut after 4096 bytes)") && output.len() < 4300,
        "{}",
        output.len()
    );
    let (status, output) = sink.first("closed");
    assert_eq!(
        (status, output),
        (
            CheckStatus::Critical,
            format!("HTTP GET {closed}: connection refused")
        )
    );
}

#[test]
fn r1_http_sends_method_headers_and_body() {
    let (sink, runner) = real();
    let server = http_server();
    runner.set_checks(vec![check(
        "web",
        "echo",
        CheckDefinition {
            http: format!("http://user:p%40ss@{server}/echo?x=1"),
            method: "put".into(),
            body: "ping".into(),
            header: [
                ("Host".to_owned(), vec!["web.example".to_owned()]),
                ("X-Two".to_owned(), vec!["1".to_owned(), "2".to_owned()]),
            ]
            .into(),
            ..Default::default()
        },
    )]);
    let (status, output) = sink.first("echo");
    assert_eq!(status, CheckStatus::Passing);
    let output = output.to_lowercase();
    for part in [
        "put /echo?x=1 http/1.1",
        "\r\nhost: web.example\r\n",
        "\r\nx-two: 1\r\n",
        "\r\nx-two: 2\r\n",
        "\r\nauthorization: basic dxnlcjpwqhnz\r\n",
        "\r\n\r\nping",
    ] {
        assert!(output.contains(part), "{part:?} is missing in {output}");
    }
}

/// A TLS server with a certificate of its own making for `web.example`; `alpn` as given.
fn tls_server(
    alpn: &[u8],
    serve_one: impl Fn(&mut rustls::StreamOwned<rustls::ServerConnection, TcpStream>)
    + Send
    + Sync
    + 'static,
) -> String {
    let made = rcgen::generate_simple_self_signed(vec!["web.example".to_owned()]).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let mut config = rustls::ServerConfig::builder_with_provider(Arc::new(
        rustls::crypto::ring::default_provider(),
    ))
    .with_safe_default_protocol_versions()
    .unwrap()
    .with_no_client_auth()
    .with_single_cert(vec![made.cert.der().clone()], key)
    .unwrap();
    config.alpn_protocols = vec![alpn.to_vec()];
    let config = Arc::new(config);
    serve(move |stream| {
        let connection = rustls::ServerConnection::new(config.clone()).unwrap();
        serve_one(&mut rustls::StreamOwned::new(connection, stream));
    })
}

#[test]
fn r1_https_verifies_unless_told_not_to() {
    let (sink, runner) = real();
    let server = tls_server(b"http/1.1", |stream| {
        // A client that refuses the certificate breaks off the handshake.
        if stream.conn.complete_io(&mut stream.sock).is_ok() {
            answer(stream);
        }
    });
    let https = |skip: bool| CheckDefinition {
        tls_skip_verify: skip,
        ..http(format!("https://{server}/status/200"))
    };
    runner.set_checks(vec![
        check("web", "skip", https(true)),
        check("web", "verify", https(false)),
    ]);
    let (status, output) = sink.first("skip");
    assert_eq!(status, CheckStatus::Passing, "{output}");
    let (status, output) = sink.first("verify");
    assert_eq!(status, CheckStatus::Critical);
    assert!(output.contains("certificate"), "{output}");
}

#[test]
fn r1_h2_ping_over_tls() {
    let (sink, runner) = real();
    // Preface, SETTINGS, and PING are answered frame by frame.
    let server = tls_server(b"h2", |stream| {
        let mut preface = [0; 24];
        stream.read_exact(&mut preface).unwrap();
        stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).unwrap();
        let mut head = [0; 9];
        while stream.read_exact(&mut head).is_ok() {
            let mut payload = vec![0; usize::from(head[1]) * 256 + usize::from(head[2])];
            stream.read_exact(&mut payload).unwrap();
            let acknowledged = head[4] & 1 == 1;
            if (head[3] == 4 || head[3] == 6) && !acknowledged {
                let length = if head[3] == 6 { 8 } else { 0 };
                let mut frame = vec![0, 0, length, head[3], 1, 0, 0, 0, 0];
                frame.extend_from_slice(&payload[..usize::from(length)]);
                stream.write_all(&frame).unwrap();
            }
        }
    });
    let closed = closed_address();
    let ping = |address: &str| CheckDefinition {
        h2ping: address.to_owned(),
        tls_skip_verify: true,
        ..Default::default()
    };
    runner.set_checks(vec![
        check("web", "ping", ping(&server)),
        check("web", "closed", ping(&closed)),
    ]);
    assert_eq!(
        sink.first("ping"),
        (
            CheckStatus::Passing,
            format!("HTTP2 ping {server}: Success")
        )
    );
    assert_eq!(
        sink.first("closed"),
        (
            CheckStatus::Critical,
            format!("HTTP2 ping {closed}: connection refused")
        )
    );
}

mod grpc_server {
    use std::convert::Infallible;
    use std::future::{Future, Ready, ready};
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use tonic::body::Body;
    use tonic::codegen::http::{Request, Response};
    use tonic_prost::ProstCodec;

    use super::super::grpc::{HealthCheckRequest, HealthCheckResponse, ServingStatus};

    /// A health service: `web` serves, `old` doesn't, others aren't known.
    #[derive(Clone)]
    pub struct Health;

    struct Check;

    impl tonic::server::UnaryService<HealthCheckRequest> for Check {
        type Response = HealthCheckResponse;
        type Future = Ready<Result<tonic::Response<HealthCheckResponse>, tonic::Status>>;

        fn call(&mut self, request: tonic::Request<HealthCheckRequest>) -> Self::Future {
            let status = match request.get_ref().service.as_str() {
                "web" => ServingStatus::Serving,
                "old" => ServingStatus::NotServing,
                _ => return ready(Err(tonic::Status::not_found("unknown service"))),
            };
            ready(Ok(tonic::Response::new(HealthCheckResponse {
                status: status as i32,
            })))
        }
    }

    impl tonic::server::NamedService for Health {
        const NAME: &'static str = "grpc.health.v1.Health";
    }

    impl tower::Service<Request<Body>> for Health {
        type Response = Response<Body>;
        type Error = Infallible;
        type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: Request<Body>) -> Self::Future {
            assert_eq!(request.uri().path(), "/grpc.health.v1.Health/Check");
            Box::pin(async move {
                let codec = ProstCodec::<HealthCheckResponse, HealthCheckRequest>::default();
                Ok(tonic::server::Grpc::new(codec).unary(Check, request).await)
            })
        }
    }
}

#[test]
fn r1_grpc_asks_the_health_service() {
    let (sink, runner) = real();
    let server = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let listener = server
        .block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))
        .unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
    server.spawn(
        tonic::transport::Server::builder()
            .add_service(grpc_server::Health)
            .serve_with_incoming(incoming),
    );
    let closed = closed_address();
    let grpc = |text: String| CheckDefinition {
        grpc: text,
        ..Default::default()
    };
    runner.set_checks(vec![
        check("web", "web", grpc(format!("{address}/web"))),
        check("web", "old", grpc(format!("{address}/old"))),
        check("web", "none", grpc(address.clone())),
        check("web", "closed", grpc(closed.clone())),
    ]);
    assert_eq!(
        sink.first("web"),
        (
            CheckStatus::Passing,
            format!("gRPC check {address}/web: success")
        )
    );
    assert_eq!(
        sink.first("old"),
        (
            CheckStatus::Critical,
            format!("gRPC check {address}/old: NOT_SERVING")
        )
    );
    assert_eq!(
        sink.first("none"),
        (
            CheckStatus::Critical,
            format!("gRPC check {address}: rpc error: code = NotFound desc = unknown service")
        )
    );
    let (status, output) = sink.first("closed");
    assert_eq!(status, CheckStatus::Critical);
    assert!(
        output.starts_with(&format!("gRPC check {closed}: "))
            && output.contains("connection refused"),
        "{output}"
    );
    drop(runner);
    server.shutdown_background();
}

#[test]
fn r1_a_hanging_target_costs_only_itself() {
    let (sink, runner) = real();
    let server = http_server();
    let open = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = open.local_addr().unwrap().to_string();
    let mut checks: Vec<DesiredCheck> = (0..100)
        .map(|n| {
            check(
                "web",
                &format!("hang-{n}"),
                http(format!("http://{server}/hang")),
            )
        })
        .collect();
    checks.push(check("web", "open", tcp(&address)));
    checks.push(check(
        "web",
        "short",
        CheckDefinition {
            timeout: GoDuration::from_millis(50),
            ..http(format!("http://{server}/hang"))
        },
    ));
    runner.set_checks(checks);
    assert_eq!(sink.first("open").0, CheckStatus::Passing);
    let (status, output) = sink.first("short");
    assert_eq!(
        (status, output),
        (
            CheckStatus::Critical,
            format!("HTTP GET http://{server}/hang: timeout after 50ms")
        )
    );
    assert_eq!(sink.count("hang-0"), 0);
    // Doesn't wait for the hundred that hang.
    let start = Instant::now();
    drop(runner);
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn r1_runs_again_after_each_interval_and_reports_changes_only() {
    let (sink, clock, runner) = simulated();
    let connections = Arc::new(Mutex::new(0));
    let counter = connections.clone();
    let address = serve(move |_| *counter.lock() += 1);
    runner.set_checks(vec![check("web", "tcp", tcp(&address))]);
    assert_eq!(sink.first("tcp").0, CheckStatus::Passing);
    let end = Instant::now() + DEADLINE;
    while *connections.lock() < 4 {
        assert!(Instant::now() < end, "never ran again");
        advance(&clock, &runner, Duration::from_millis(500));
    }
    assert_eq!(sink.count("tcp"), 1);
}

#[test]
fn r1_ttl_expires_and_heartbeats_keep_it() {
    let (sink, clock, runner) = simulated();
    runner.set_checks(vec![
        check("web", "beat", ttl(10)),
        check("web", "never", ttl(10)),
    ]);
    runner
        .ttl_update("beat", CheckStatus::Passing, "all well".into())
        .unwrap();
    // Told when the call returns.
    assert_eq!(
        sink.first("beat"),
        (CheckStatus::Passing, "all well".into())
    );
    advance(&clock, &runner, Duration::from_secs(9));
    runner
        .ttl_update("beat", CheckStatus::Warning, "so so".into())
        .unwrap();
    assert_eq!(sink.count("never"), 0);
    advance(&clock, &runner, Duration::from_secs(1));
    assert_eq!(
        sink.first("never"),
        (CheckStatus::Critical, "TTL expired".into())
    );
    advance(&clock, &runner, Duration::from_millis(8999));
    assert_eq!(sink.first("beat"), (CheckStatus::Warning, "so so".into()));
    advance(&clock, &runner, Duration::from_millis(1));
    assert_eq!(
        sink.first("beat"),
        (
            CheckStatus::Critical,
            "TTL expired (last output before timeout follows): so so".into()
        )
    );
    // Once: nothing more comes until somebody speaks.
    advance(&clock, &runner, Duration::from_secs(100));
    assert_eq!(sink.count("beat"), 3);
    runner
        .ttl_update("beat", CheckStatus::Passing, String::new())
        .unwrap();
    assert_eq!(sink.first("beat"), (CheckStatus::Passing, String::new()));
}

#[test]
fn r1_heartbeats_are_for_ttl_checks_only() {
    let (_, runner) = real();
    runner.set_checks(vec![check("web", "tcp", tcp("127.0.0.1:1"))]);
    for id in ["tcp", "unknown"] {
        let error = runner
            .ttl_update(id, CheckStatus::Passing, String::new())
            .unwrap_err();
        assert_eq!(error.check_id, id);
    }
}

#[test]
fn r1_alias_follows_what_it_copies() {
    let (sink, _clock, runner) = simulated();
    runner.set_checks(vec![
        check("web", "web-ttl", ttl(600)),
        check("proxy", "alias", alias("web")),
        check("proxy-of-proxy", "alias-of-alias", alias("proxy")),
        check("other", "missing", alias("nowhere")),
    ]);
    assert_eq!(
        sink.first("missing"),
        (
            CheckStatus::Critical,
            "Service nowhere could not be found".into()
        )
    );
    for (status, output, want) in [
        (CheckStatus::Passing, "fine", "All checks passing."),
        (
            CheckStatus::Warning,
            "slow",
            "Aliased check \"web-ttl\" failing: slow",
        ),
        (
            CheckStatus::Critical,
            "down",
            "Aliased check \"web-ttl\" failing: down",
        ),
    ] {
        runner.ttl_update("web-ttl", status, output.into()).unwrap();
        let (_, seen) = sink.wait_report("alias", |seen, _| seen == status);
        assert_eq!(seen, want);
        sink.wait_report("alias-of-alias", |seen, _| seen == status);
    }
    // Something that isn't run here.
    sink.seen
        .lock()
        .targets
        .insert("nowhere".into(), AliasTarget::NoChecks);
    runner.refresh_aliases();
    let (_, output) = sink.wait_report("missing", |status, _| status == CheckStatus::Passing);
    assert_eq!(output, "No checks found.");
}

#[test]
fn r1_a_circle_of_aliases_ends() {
    let (sink, _clock, runner) = simulated();
    runner.set_checks(vec![
        check("a", "a-copies-b", alias("b")),
        check("b", "b-copies-a", alias("a")),
    ]);
    sink.first("a-copies-b");
    sink.first("b-copies-a");
    // The scheduler still answers.
    runner.set_checks(vec![check("a", "beat", ttl(10))]);
    runner
        .ttl_update("beat", CheckStatus::Passing, String::new())
        .unwrap();
}

#[test]
fn r1_critical_for_too_long_deregisters() {
    let (sink, clock, runner) = simulated();
    let reaped = CheckDefinition {
        deregister_critical_service_after: GoDuration::from_secs(90),
        ..ttl(100_000)
    };
    runner.set_checks(vec![
        check("web", "web", reaped.clone()),
        check("ok", "ok", reaped.clone()),
        check("", "node", reaped),
    ]);
    runner
        .ttl_update("ok", CheckStatus::Passing, String::new())
        .unwrap();
    advance(&clock, &runner, Duration::from_secs(89));
    runner
        .ttl_update("ok", CheckStatus::Warning, String::new())
        .unwrap();
    let deregistered = || sink.seen.lock().deregistered.clone();
    assert!(deregistered().is_empty());
    advance(&clock, &runner, Duration::from_secs(1));
    assert_eq!(deregistered(), ["web"]);
    // It is still desired, so it is asked for again.
    advance(&clock, &runner, Duration::from_secs(89));
    assert_eq!(deregistered(), ["web"]);
    advance(&clock, &runner, Duration::from_secs(1));
    assert_eq!(deregistered(), ["web", "web"]);
    // Recovering ends it.
    runner
        .ttl_update("web", CheckStatus::Passing, String::new())
        .unwrap();
    advance(&clock, &runner, Duration::from_secs(1000));
    assert_eq!(deregistered(), ["web", "web"]);
}

#[test]
fn r1_set_checks_is_a_level() {
    let (sink, _clock, runner) = simulated();
    let connections = Arc::new(Mutex::new(0));
    let counter = connections.clone();
    let address = serve(move |_| *counter.lock() += 1);
    let kept = check("web", "kept", tcp(&address));
    runner.set_checks(vec![
        kept.clone(),
        check("web", "gone", ttl(10)),
        check("web", "changed", ttl(10)),
    ]);
    sink.first("kept");
    runner.set_checks(vec![
        kept,
        check("web", "changed", tcp(&address)),
        check("web", "new", ttl(10)),
    ]);
    assert_eq!(sink.first("changed").0, CheckStatus::Passing);
    runner
        .ttl_update("new", CheckStatus::Passing, String::new())
        .unwrap();
    assert!(
        runner
            .ttl_update("gone", CheckStatus::Passing, String::new())
            .is_err()
    );
    assert!(
        runner
            .ttl_update("changed", CheckStatus::Passing, String::new())
            .is_err()
    );
    // Time stands still: the kept one ran once, the changed one once.
    let end = Instant::now() + DEADLINE;
    while *connections.lock() < 2 {
        assert!(Instant::now() < end);
        std::thread::yield_now();
    }
    assert_eq!(*connections.lock(), 2);
    assert_eq!(sink.count("kept"), 1);
}

#[test]
fn r1_what_cannot_be_run_is_critical_and_says_why() {
    let (sink, runner) = real();
    let mut empty = check("web", "empty", CheckDefinition::default());
    empty.status = CheckStatus::Passing;
    runner.set_checks(vec![empty, check("web", "bad", tcp("nowhere"))]);
    let (status, output) = sink.first("empty");
    assert_eq!(status, CheckStatus::Critical);
    assert!(
        output.starts_with("the check can't be run: there is nothing to run"),
        "{output}"
    );
    let (_, output) = sink.first("bad");
    assert!(output.contains("TCP \"nowhere\""), "{output}");
}

#[test]
fn r1_the_sink_may_call_the_runner_and_may_panic() {
    struct Reentrant {
        runner: Mutex<Option<Arc<CheckRunner>>>,
        recorder: Recorder,
    }
    impl CheckSink for Reentrant {
        fn report(&self, key: &CheckKey, status: CheckStatus, output: String) {
            self.recorder.report(key, status, output);
            if key.check_id == "panics" {
                panic!("told to");
            }
            if key.check_id == "first" {
                let runner = self.runner.lock().clone().unwrap();
                runner
                    .ttl_update("second", CheckStatus::Passing, "from inside".into())
                    .unwrap();
            }
        }
        fn deregister_service(&self, _: &str) {}
        fn alias_target(&self, _: &CheckKey, _: &str, _: &str) -> AliasTarget {
            AliasTarget::Missing
        }
    }
    let sink = Arc::new(Reentrant {
        runner: Mutex::default(),
        recorder: Recorder::default(),
    });
    let runner = Arc::new(CheckRunner::new(sink.clone(), Arc::new(TestClock::new())).unwrap());
    *sink.runner.lock() = Some(runner.clone());
    runner.set_checks(vec![
        check("web", "panics", ttl(10)),
        check("web", "first", ttl(10)),
        check("web", "second", ttl(10)),
    ]);
    runner
        .ttl_update("panics", CheckStatus::Passing, String::new())
        .unwrap();
    runner
        .ttl_update("first", CheckStatus::Passing, String::new())
        .unwrap();
    let (_, output) = sink
        .recorder
        .wait_report("second", |status, _| status == CheckStatus::Passing);
    assert_eq!(output, "from inside");
    *sink.runner.lock() = None;
}
