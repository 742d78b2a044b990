//! `serve`: what it takes on, by its options.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use envoy_types::pb::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use envoy_types::pb::google::protobuf::{Struct, Value, value::Kind};
use proxycfg::xds::ResourceType;
use serde_json::json;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

use super::world::{DEADLINE, Server, folder, run, until};

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}

/// A stream of a proxy on the node `n2`.
pub struct Stream {
    requests: mpsc::Sender<DiscoveryRequest>,
    responses: Streaming<DiscoveryResponse>,
}

impl Stream {
    async fn open(server: SocketAddr, id: &str) -> Result<Self, Status> {
        let endpoint = format!("http://{server}");
        let mut client = AggregatedDiscoveryServiceClient::connect(endpoint)
            .await
            .unwrap();
        let (requests, outgoing) = mpsc::channel(8);
        let name = Value {
            kind: Some(Kind::StringValue("n2".into())),
        };
        let first = DiscoveryRequest {
            type_url: ResourceType::Cluster.url().into(),
            node: Some(Node {
                id: id.into(),
                metadata: Some(Struct {
                    fields: [("node_name".to_owned(), name)].into(),
                }),
                ..Node::default()
            }),
            ..DiscoveryRequest::default()
        };
        requests.send(first).await.unwrap();
        let outgoing = ReceiverStream::new(outgoing);
        let responses = client.stream_aggregated_resources(outgoing).await?;
        Ok(Self {
            requests,
            responses: responses.into_inner(),
        })
    }

    pub async fn next(&mut self) -> Result<Option<DiscoveryResponse>, Status> {
        let next = tokio::time::timeout(DEADLINE, self.responses.message());
        next.await.expect("an answer in time")
    }

    /// Opens a stream and waits for its clusters.
    pub async fn served(server: SocketAddr, id: &str) -> Result<Self, Status> {
        let mut stream = Self::open(server, id).await?;
        let response = stream.next().await?.expect("a response");
        assert_eq!(response.type_url, ResourceType::Cluster.url());
        Ok(stream)
    }

    pub async fn ask(&self, kind: ResourceType, names: &[&str]) {
        let request = DiscoveryRequest {
            type_url: kind.url().into(),
            resource_names: names.iter().map(ToString::to_string).collect(),
            ..DiscoveryRequest::default()
        };
        self.requests.send(request).await.unwrap();
    }
}

/// A sidecar of `web` on `n2`.
pub fn proxy(id: &str) -> serde_json::Value {
    json!({
        "Node": "n2", "Address": "127.0.0.1", "SkipNodeUpdate": false,
        "Service": {
            "Kind": "connect-proxy", "ID": id, "Service": "web-sidecar-proxy", "Port": 21000,
            "Proxy": {"DestinationServiceName": "web"},
        },
    })
}

#[test]
fn with_several_servers_each_takes_its_share_and_sheds_what_is_too_much() {
    let there = folder(&[]);
    let server = Server::start(there.path(), &["--servers", "4"]);
    let ids = ["p1", "p2", "p3", "p4"];
    for id in ids {
        server.put("/v1/catalog/register", &proxy(id));
    }
    let limit = |max: usize| {
        let line = format!("proxycfg_xds_sessions_max {max}");
        until(&line, || {
            server
                .text("/metrics")
                .lines()
                .any(|l| l == line)
                .then_some(())
        });
    };
    // 4 / 4 and a tenth more, rounded up.
    limit(2);
    runtime().block_on(async {
        let mut first = Stream::served(server.xds, "p1").await.unwrap();
        let mut second = Stream::served(server.xds, "p2").await.unwrap();
        let refused = Stream::served(server.xds, "p3").await.err().unwrap();
        assert_eq!(refused.code(), Code::ResourceExhausted);
        assert!(refused.message().contains("try another"), "{refused:?}");

        // Fewer proxies, a smaller share: one of the two has to go, whichever it is.
        for id in ["p3", "p4"] {
            let gone = json!({"Node": "n2", "ServiceID": id});
            server.put("/v1/catalog/deregister", &gone);
        }
        limit(1);
        let drained = tokio::select! {
            ended = first.next() => ended,
            ended = second.next() => ended,
        };
        assert_eq!(drained.unwrap_err().code(), Code::ResourceExhausted);
        let metrics = server.text("/metrics");
        assert!(
            metrics.contains("proxycfg_xds_streams_drained_total 1"),
            "{metrics}"
        );
    });
}

#[test]
fn without_a_number_of_servers_there_is_no_share() {
    let there = folder(&[]);
    let server = Server::start(there.path(), &[]);
    server.put("/v1/catalog/register", &proxy("p1"));
    let streams = runtime().block_on(async {
        let mut streams = Vec::new();
        for _ in 0..5 {
            streams.push(Stream::served(server.xds, "p1").await.unwrap());
        }
        streams
    });
    assert!(
        server
            .text("/metrics")
            .contains("proxycfg_xds_sessions_max 0")
    );
    assert_eq!(streams.len(), 5);
}

#[test]
fn options_limit_what_is_taken_on() {
    let there = folder(&[]);
    let args = [
        "--max-http-body=1000",
        "--max-http-write-rate=1",
        "--max-xds-names=3",
        "--max-xds-streams=2",
        "--max-xds-request=5000",
        "--max-xds-request-rate=3",
    ];
    let server = Server::start(there.path(), &args);
    server.put("/v1/catalog/register", &proxy("p1"));
    let large = json!({"Kind": "service-defaults", "Name": "a", "Meta": {"a": "x".repeat(1000)}});
    let (status, text) = server.try_put("/v1/config", &large).unwrap();
    assert_eq!(status, 413, "{text}");
    let statuses = (0..20).map(|_| server.try_put("/v1/config", &json!({})).unwrap().0);
    assert!(statuses.collect::<Vec<_>>().contains(&429));

    runtime().block_on(async {
        let _other = Stream::served(server.xds, "p1").await.unwrap();
        let ended = async |stream: &mut Stream| loop {
            match stream.next().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("ended without a word"),
                Err(status) => return status,
            }
        };
        let again = async || loop {
            // The place of the one before is given back a moment after its end.
            match Stream::served(server.xds, "p1").await {
                Ok(stream) => return stream,
                Err(status) => assert_eq!(status.code(), Code::ResourceExhausted),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        let mut stream = again().await;
        let third = Stream::served(server.xds, "p1").await.err().unwrap();
        assert_eq!(third.code(), Code::ResourceExhausted);
        stream
            .ask(ResourceType::Endpoint, &["a", "b", "c", "d"])
            .await;
        let status = ended(&mut stream).await;
        assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");

        let mut stream = again().await;
        stream
            .ask(ResourceType::Endpoint, &[&"x".repeat(6_000)])
            .await;
        assert_eq!(ended(&mut stream).await.code(), Code::OutOfRange);

        let mut stream = again().await;
        for _ in 0..40 {
            // Fails when the stream has ended meanwhile.
            let request = DiscoveryRequest {
                type_url: ResourceType::Route.url().into(),
                ..DiscoveryRequest::default()
            };
            let _ = stream.requests.send(request).await;
        }
        assert_eq!(ended(&mut stream).await.code(), Code::ResourceExhausted);
    });
}

#[test]
fn bad_limits_are_refused_and_good_ones_explained() {
    let there = folder(&[]);
    for args in [
        ["--servers", "0"],
        ["--max-http-body", "0"],
        ["--max-xds-streams", "many"],
        ["--max-xds-request-rate", "fast"],
        ["--max-xds-connections", "0"],
        ["--max-config-file", "16777217"],
        ["--max-http-header", "8191"],
        ["--http-header-timeout", "30"],
        ["--http-idle-timeout", "0s"],
    ] {
        let ended = run(there.path(), &[&["serve"], &args[..]].concat());
        assert_eq!(ended.code, 2, "{args:?}");
        assert!(ended.err.contains(args[0]), "{}", ended.err);
    }
    let help = run(there.path(), &["serve", "--help"]).out;
    for option in [
        "--servers",
        "--max-http-body",
        "--max-http-requests",
        "--max-http-request-rate",
        "--max-http-write-rate",
        "--max-xds-request",
        "--max-xds-request-rate",
        "--max-xds-names",
        "--max-xds-streams",
        "--max-xds-streams-per-connection",
        "--max-xds-stream-rate",
        "--max-config-file",
        "--max-config-total",
        "--max-http-bodies",
        "--max-http-header",
        "--max-http-connections",
        "--http-header-timeout",
        "--http-body-timeout",
        "--http-idle-timeout",
        "--max-xds-connections",
        "--xds-idle-timeout",
        "--xds-keepalive",
        "--xds-keepalive-timeout",
    ] {
        assert!(help.contains(&format!("{option} <")), "{option}");
    }
    for told in [
        "413",
        "429",
        "408",
        "431",
        "503",
        "ResourceExhausted",
        "4 MiB",
    ] {
        assert!(help.contains(told), "{told}");
    }
}

#[test]
fn the_time_from_a_write_to_its_acknowledgement_is_in_the_metrics() {
    let there = folder(&[]);
    let server = Server::start(there.path(), &[]);
    let mut registered = proxy("p1");
    server.put("/v1/catalog/register", &registered);
    // Gives way between two looks: what is to be counted is on its way in this thread's runtime.
    let counts = async |stage: &str, count: u64| {
        let line = format!("proxycfg_propagation_seconds_count{{stage=\"{stage}\"}} {count}");
        let deadline = Instant::now() + DEADLINE;
        while !server.text("/metrics").lines().any(|l| l == line) {
            assert!(Instant::now() < deadline, "in vain: {line}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    runtime().block_on(async {
        let mut stream = Stream::served(server.xds, "p1").await.unwrap();
        counts("sent", 0).await;
        let answer = |nonce: &str| DiscoveryRequest {
            type_url: ResourceType::Cluster.url().into(),
            response_nonce: nonce.into(),
            ..DiscoveryRequest::default()
        };
        // Responses of a stream are numbered.
        stream.requests.send(answer("00000001")).await.unwrap();
        registered["Service"]["Proxy"]["LocalServicePort"] = json!(3000);
        server.put("/v1/catalog/register", &registered);
        let response = stream.next().await.unwrap().expect("the new clusters");
        for stage in ["snapshot", "resources", "sent"] {
            counts(stage, 1).await;
        }
        stream.requests.send(answer(&response.nonce)).await.unwrap();
        counts("acknowledged", 1).await;
    });
}

/// A crowd of connections that say nothing, more than there are file handles: whoever asks is answered.
#[test]
fn connections_that_say_nothing_leave_room_and_file_handles() {
    let there = folder(&[]);
    let limited = |files: &str| {
        let mut command = std::process::Command::new("sh");
        command.current_dir(there.path());
        let program = env!("CARGO_BIN_EXE_proxycfg");
        command.args([
            "-c",
            &format!("ulimit -n {files}; exec \"$0\" \"$@\""),
            program,
        ]);
        command
    };
    let server = Server::start_as(limited("400"), &["--xds-keepalive=1h"]);
    server.put("/v1/catalog/register", &proxy("p1"));
    let told = server.logged("only 400 files may be open");
    assert_eq!(told["level"], "WARN");
    let connect = |to: SocketAddr| std::net::TcpStream::connect(to).unwrap();
    let mut crowd = Vec::new();
    for _ in 0..300 {
        crowd.push(connect(server.http));
        crowd.push(connect(server.xds));
        if crowd.len().is_multiple_of(100) {
            server.get("/v1/agent/self").unwrap();
        }
    }
    let stream = runtime()
        .block_on(Stream::served(server.xds, "p1"))
        .unwrap();
    let metrics = server.text("/metrics");
    let value = |name: &str| -> u64 {
        let found = metrics.lines().find_map(|line| line.strip_prefix(name));
        found
            .unwrap_or_else(|| panic!("{metrics}"))
            .trim()
            .parse()
            .unwrap()
    };
    for of in ["http", "xds"] {
        assert!(value(&format!("proxycfg_connections{{server=\"{of}\"}}")) < 80);
        assert!(
            value(&format!(
                "proxycfg_connections_displaced_total{{server=\"{of}\"}}"
            )) > 200
        );
        assert_eq!(
            value(&format!(
                "proxycfg_connections_refused_total{{server=\"{of}\"}}"
            )),
            0
        );
    }
    assert_eq!(server.count_logged("can't accept a connection"), 0);
    drop((stream, crowd));
    // As many as the system gives are taken.
    let server = Server::start_as(limited("-S 400"), &[]);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.pid())).unwrap();
    let line = limits
        .lines()
        .find(|line| line.starts_with("Max open files"))
        .unwrap();
    let numbers: Vec<&str> = line.split_whitespace().skip(3).take(2).collect();
    assert_eq!(numbers[0], numbers[1], "{line}");
}

/// Connections of Envoys that have none of their streams left, or never had one.
#[test]
fn xds_connections_without_a_stream_are_closed() {
    use std::io::Read as _;

    let there = folder(&[]);
    let args = ["--xds-idle-timeout=500ms", "--max-xds-connections=2"];
    let server = Server::start(there.path(), &args);
    server.put("/v1/catalog/register", &proxy("p1"));
    let mut silent = std::net::TcpStream::connect(server.xds).unwrap();
    silent.set_read_timeout(Some(DEADLINE)).unwrap();
    // Fails if it is reset.
    let _ = silent.read_to_end(&mut Vec::new());
    runtime().block_on(async {
        let mut first = Stream::served(server.xds, "p1").await.unwrap();
        let _second = Stream::served(server.xds, "p1").await.unwrap();
        // Both have a stream: a third connection is turned away, and they stay.
        let endpoint = format!("http://{}", server.xds);
        let third = AggregatedDiscoveryServiceClient::connect(endpoint).await;
        if let Ok(mut third) = third {
            let (_requests, outgoing) = mpsc::channel::<DiscoveryRequest>(1);
            let outgoing = ReceiverStream::new(outgoing);
            let opened = third.stream_aggregated_resources(outgoing).await;
            assert!(opened.is_err());
        }
        tokio::time::sleep(Duration::from_millis(1_000)).await;
        first.ask(ResourceType::Endpoint, &["nothing"]).await;
        let response = first.next().await.unwrap().unwrap();
        assert_eq!(response.type_url, ResourceType::Endpoint.url());
    });
    server.logged("connections are refused");
    until("both are closed", || {
        let metrics = server.text("/metrics");
        metrics
            .contains("proxycfg_connections{server=\"xds\"} 0")
            .then_some(())
    });
}

#[test]
fn files_have_sizes_and_a_size_together() {
    use super::world::write;

    let of = |name: &str| {
        format!(
            "service {{ name = \"{name}\" port = 80 }} # {}\n",
            "x".repeat(500)
        )
    };
    let there = folder(&[("c/a.hcl", &of("a")), ("c/b.hcl", &of("b"))]);
    for (flag, told) in [
        (
            "--max-config-file=400",
            "c/a.hcl: is larger than 400 bytes (--max-config-file); split it",
        ),
        (
            "--max-config-total=1000",
            "larger than 1000 bytes (--max-config-total); give fewer",
        ),
    ] {
        for command in [&["validate", "c"][..], &["serve", "--config", "c"]] {
            let ended = run(there.path(), &[command, &[flag]].concat());
            assert_eq!(ended.code, 2, "{command:?} {flag}");
            assert!(ended.err.contains(told), "{flag}: {}", ended.err);
        }
    }
    let server = Server::start(there.path(), &["--config", "c", "--max-config-total=1500"]);
    write(there.path(), "c/c.hcl", &of("c"));
    server.logged("the last good state stays");
    assert!(server.whole_log().contains("larger than 1500 bytes"));
    assert!(server.get("/v1/agent/service/a").is_some());
    assert!(server.get("/v1/agent/service/c").is_none());
}
