//! Peers that are gone without a word: what they held is given back, and nobody else notices.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::limits::{Stream, proxy};
use super::world::{Server, folder, until};
use proxycfg::xds::ResourceType;

/// Passes bytes on in both directions until it is told to fall silent; from then on it takes in nothing, and closes nothing,
/// as if the network between had been cut.
struct Relay {
    address: SocketAddr,
    silent: Arc<AtomicBool>,
}

impl Relay {
    fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let silent = Arc::new(AtomicBool::new(false));
        let of_threads = silent.clone();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let client = client.unwrap();
                let server = TcpStream::connect(server).unwrap();
                let (from, to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                for (from, to) in [(from, to), (server, client)] {
                    let silent = of_threads.clone();
                    std::thread::spawn(move || pass(from, to, &silent));
                }
            }
        });
        Self { address, silent }
    }

    fn fall_silent(&self) {
        self.silent.store(true, Ordering::SeqCst);
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, silent: &AtomicBool) {
    let mut buffer = [0; 4096];
    loop {
        let read = from.read(&mut buffer);
        if silent.load(Ordering::SeqCst) {
            // Both ends stay open, for as long as the test runs.
            loop {
                std::thread::park();
            }
        }
        match read {
            Ok(n) if n > 0 && to.write_all(&buffer[..n]).is_ok() => {}
            _ => return,
        }
    }
}

fn metric(server: &Server, name: &str) -> u64 {
    let text = server.text("/metrics");
    let found = text.lines().find_map(|line| line.strip_prefix(name));
    found
        .unwrap_or_else(|| panic!("no {name}: {text}"))
        .trim()
        .parse()
        .unwrap()
}

fn streams(server: &Server) -> u64 {
    metric(server, "proxycfg_xds_streams ")
}

#[test]
fn an_envoy_that_is_gone_without_a_word_is_counted_out() {
    let there = folder(&[]);
    let server = Server::start(
        there.path(),
        &["--xds-keepalive=500ms", "--xds-keepalive-timeout=2s"],
    );
    for id in ["p1", "p2", "p3"] {
        server.put("/v1/catalog/register", &proxy(id));
    }
    let relay = Relay::to(server.xds);
    // Pings are answered by a thread of its own.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut other = Stream::served(server.xds, "p1").await.unwrap();
        let mut gone = Vec::new();
        for _ in 0..3 {
            for id in ["p2", "p3"] {
                gone.push(Stream::served(relay.address, id).await.unwrap());
            }
        }
        assert_eq!(streams(&server), 7);
        relay.fall_silent();
        // What would be sent to them now goes nowhere, and holds up nobody.
        server.put("/v1/config", &serde_json::json!({
            "Kind": "service-defaults", "Name": "web", "LocalConnectTimeoutMs": 1234, "Protocol": "http"}));
        other.ask(ResourceType::Endpoint, &["nothing"]).await;
        let response = other.next().await.unwrap().expect("the other one goes on");
        assert_eq!(response.type_url, ResourceType::Endpoint.url());
        until("the gone are counted out", || (streams(&server) == 1).then_some(()));
        assert_eq!(metric(&server, "proxycfg_connections{server=\"xds\"}"), 1);
        assert_eq!(metric(&server, "proxycfg_xds_streams_failed_total"), 0);
        let proxies = server.get("/v1/proxycfg/proxies").unwrap();
        for proxy in proxies.as_array().unwrap() {
            let streams = proxy["Streams"].as_array().map_or(0, Vec::len);
            assert_eq!(streams, usize::from(proxy["ID"] == "p1"), "{proxy}");
        }
        drop(gone);
    });
    until("their proxies are let go", || {
        (metric(&server, "proxycfg_watches ") == 0).then_some(())
    });
}
