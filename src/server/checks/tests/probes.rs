//! One run of each kind.

use std::net::UdpSocket;

use super::*;

#[test]
fn r1_tcp_passes_or_says_why_not() {
    let (sink, runner) = real();
    let open = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = open.local_addr().unwrap().to_string();
    let (_held, closed) = closed();
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
    // Connected to itself, it takes nothing from others, and nobody else gets its port.
    let deaf = UdpSocket::bind("127.0.0.1:0").unwrap();
    deaf.connect(deaf.local_addr().unwrap()).unwrap();
    let closed = deaf.local_addr().unwrap().to_string();
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
    let (_held, closed) = closed();
    let closed = format!("http://{closed}/");
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
    let (_held, closed) = closed();
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

    use super::super::super::grpc::{HealthCheckRequest, HealthCheckResponse, ServingStatus};

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
    let (_held, closed) = closed();
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
