//! A simulated Envoy: one delta ADS stream that subscribes as a sidecar does and acknowledges everything.
//!
//! Everything of clusters first; then the endpoints and secrets that they name; when these are there, everything of
//! listeners; then the routes and secrets that those name. It is configured when nothing that it asked for is missing.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use h2::client::SendRequest;
use h2::{RecvStream, SendStream};
use hyper::http::Request;
use prost::bytes::{Buf as _, Bytes, BytesMut};
use proxycfg::xds::ResourceType as Kind;
use smol_str::SmolStr;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::fleet::Fleet;
use crate::wire::{self, Response};

const PATH: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";

/// Room for one stream, and for a connection.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 1 << 22;

/// Runs the clients of one connection until they are aborted or the server ends it.
pub async fn connection(fleet: Arc<Fleet>, xds: SocketAddr, proxies: Vec<usize>, began: Instant) {
    let streams = run(&fleet, xds, proxies, began).await;
    if let Err(error) = streams {
        fleet.failed(&error);
    }
}

async fn run(
    fleet: &Arc<Fleet>,
    xds: SocketAddr,
    proxies: Vec<usize>,
    began: Instant,
) -> Result<(), String> {
    let tcp = TcpStream::connect(xds)
        .await
        .map_err(|e| format!("can't connect: {e}"))?;
    tcp.set_nodelay(true).map_err(|e| e.to_string())?;
    let (sender, connection) = h2::client::Builder::new()
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .enable_push(false)
        .handshake::<_, Bytes>(tcp)
        .await
        .map_err(|e| format!("handshake: {e}"))?;
    let mut tasks = JoinSet::new();
    for proxy in proxies {
        let (fleet, sender) = (fleet.clone(), sender.clone());
        tasks.spawn(async move { Client::new(fleet, proxy, began).stream(sender).await });
    }
    drop(sender);
    tasks.spawn(async move { connection.await.map_err(|e| format!("connection: {e}")) });
    while let Some(ended) = tasks.join_next().await {
        match ended {
            Ok(result) => result?,
            // Ended by us.
            Err(error) if error.is_cancelled() => return Ok(()),
            Err(error) => return Err(error.to_string()),
        }
    }
    Ok(())
}

struct Client {
    fleet: Arc<Fleet>,
    proxy: usize,
    began: Instant,
    node: Bytes,
    /// What it has ever asked for by name.
    asked: HashSet<(Kind, SmolStr)>,
    /// What of that hasn't come yet.
    missing: HashSet<(Kind, SmolStr)>,
    listeners_asked: bool,
    listeners: bool,
    configured: bool,
    /// The newest change seen of each assignment.
    changes: HashMap<SmolStr, u64>,
}

impl Client {
    fn new(fleet: Arc<Fleet>, proxy: usize, began: Instant) -> Self {
        Self {
            node: wire::node(&fleet.id_of(proxy), &fleet.node_of(proxy)),
            fleet,
            proxy,
            began,
            asked: HashSet::new(),
            missing: HashSet::new(),
            listeners_asked: false,
            listeners: false,
            configured: false,
            changes: HashMap::new(),
        }
    }

    async fn stream(mut self, sender: SendRequest<Bytes>) -> Result<(), String> {
        let mut sender = sender.ready().await.map_err(|e| format!("stream: {e}"))?;
        let request = Request::post(format!("http://xds{PATH}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())
            .map_err(|e| e.to_string())?;
        let (response, mut send) = sender
            .send_request(request, false)
            .map_err(|e| format!("stream: {e}"))?;
        drop(sender);
        self.send(&mut send, Kind::Cluster, &[], "")?;
        let response = response.await.map_err(|e| format!("stream: {e}"))?;
        if let Some(status) = response.headers().get("grpc-status") {
            return Err(format!(
                "stream refused: {status:?} {:?}",
                response.headers().get("grpc-message")
            ));
        }
        self.read(response.into_body(), send).await
    }

    async fn read(
        &mut self,
        mut body: RecvStream,
        mut send: SendStream<Bytes>,
    ) -> Result<(), String> {
        let mut waiting = BytesMut::new();
        while let Some(chunk) = body.data().await {
            let mut chunk = chunk.map_err(|e| format!("stream: {e}"))?;
            let now = Instant::now();
            let _ = body.flow_control().release_capacity(chunk.len());
            self.fleet.bytes.fetch_add(chunk.len() as u64, Relaxed);
            if waiting.is_empty() {
                while let Some(len) = whole(&chunk) {
                    let message = chunk.split_to(len);
                    self.take(&message[5..], &mut send, now)?;
                }
                waiting.extend_from_slice(&chunk);
            } else {
                waiting.extend_from_slice(&chunk);
                while let Some(len) = whole(&waiting) {
                    let message = waiting.split_to(len).freeze();
                    self.take(&message[5..], &mut send, now)?;
                }
                if waiting.is_empty() {
                    waiting = BytesMut::new();
                }
            }
        }
        let trailers = body.trailers().await.ok().flatten().unwrap_or_default();
        Err(format!(
            "the server ended a stream: {:?} {:?}",
            trailers.get("grpc-status"),
            trailers.get("grpc-message")
        ))
    }

    fn send(
        &self,
        send: &mut SendStream<Bytes>,
        kind: Kind,
        names: &[SmolStr],
        nonce: &str,
    ) -> Result<(), String> {
        let request = wire::request(&self.node, kind, names, nonce);
        send.send_data(request, false)
            .map_err(|e| format!("stream: {e}"))
    }

    fn take(
        &mut self,
        message: &[u8],
        send: &mut SendStream<Bytes>,
        now: Instant,
    ) -> Result<(), String> {
        let response = Response::read(message)?;
        let kind = response.kind;
        self.send(send, kind, &[], response.nonce)?;
        self.fleet.responses.fetch_add(1, Relaxed);
        let mut wanted = Vec::new();
        for item in response.items() {
            self.fleet.resources.fetch_add(1, Relaxed);
            match kind {
                Kind::Cluster | Kind::Listener => {
                    let refers = self.fleet.references.of(kind, &item)?;
                    wanted.extend(
                        refers
                            .0
                            .iter()
                            .filter(|name| !self.asked.contains(*name))
                            .cloned(),
                    );
                }
                Kind::Endpoint => {
                    if let Some(change) = wire::mark_in(item.value) {
                        let known = self.changes.insert(SmolStr::new(item.name), change);
                        if known.is_none_or(|known| known < change) {
                            self.fleet.holds(change, now, self.configured);
                        }
                    }
                }
                _ => {}
            }
            if !self.configured {
                self.missing.remove(&(kind, SmolStr::new(item.name)));
                self.fleet.keep(self.proxy, kind, &item);
            }
        }
        for kind in [Kind::Secret, Kind::Endpoint, Kind::Route] {
            let new = wanted.iter().filter(|(of, _)| *of == kind);
            let mut names = Vec::new();
            for name in new {
                if self.asked.insert(name.clone()) {
                    self.missing.insert(name.clone());
                    names.push(name.1.clone());
                }
            }
            if !names.is_empty() {
                self.send(send, kind, &names, "")?;
            }
        }
        if kind == Kind::Listener {
            self.listeners = true;
        }
        if !self.configured && self.missing.is_empty() {
            if !self.listeners_asked {
                self.listeners_asked = true;
                self.send(send, Kind::Listener, &[], "")?;
            } else if self.listeners {
                self.configured = true;
                self.missing = HashSet::new();
                self.fleet.configured(self.began, now);
            }
        }
        Ok(())
    }
}

/// Length of the gRPC message that the bytes begin with, if it is whole.
fn whole(bytes: &[u8]) -> Option<usize> {
    let mut head = bytes.get(1..5)?;
    let len = 5 + head.get_u32() as usize;
    (bytes.len() >= len).then_some(len)
}
