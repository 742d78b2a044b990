//! A running HTTP server over an embedded engine and a local agent, and short ways to ask it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use proxycfg::clock::TestClock;
use proxycfg::config_source::{LocalState, LocalSync, LocalSyncOptions};
use proxycfg::embedded::{Embedded, EmbeddedConfig};
use proxycfg::model::{Node, SidecarPortRange};
use proxycfg::server::access::{AllowAll, Authorizer};
use proxycfg::server::http::{HttpConfig, HttpParts, HttpState, LocalAgent, MeshDump, serve};
use proxycfg::xds::Generator;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

/// How long a condition may take before a test fails.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The node of the local agent.
pub const NODE: &str = "agent-1";

pub struct World {
    pub embedded: Arc<Embedded>,
    pub clock: Arc<TestClock>,
    pub local: Arc<LocalState>,
    pub address: SocketAddr,
    sync: LocalSync,
    client: ureq::Agent,
    shutdown: Option<oneshot::Sender<()>>,
    served: Option<tokio::task::JoinHandle<std::io::Result<()>>>,
    runtime: Option<Runtime>,
}

/// An answer.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub headers: ureq::http::HeaderMap,
    pub text: String,
}

impl Answer {
    #[track_caller]
    pub fn json(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text);
        assert_eq!(self.header("content-type"), "application/json");
        serde_json::from_str(&self.text).unwrap()
    }

    #[track_caller]
    pub fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name);
        value
            .unwrap_or_else(|| panic!("no {name} in {self:?}"))
            .to_str()
            .unwrap()
    }

    #[track_caller]
    pub fn index(&self) -> u64 {
        assert_eq!(self.header("x-consul-knownleader"), "true");
        assert_eq!(self.header("x-consul-lastcontact"), "0");
        let index = self.header("x-consul-index").parse().unwrap();
        assert!(index >= 1);
        index
    }

    /// Checks that the request was refused with a text that has all of these.
    #[track_caller]
    pub fn refused(&self, status: u16, parts: &[&str]) {
        assert_eq!(self.status, status, "{}", self.text);
        assert!(self.header("content-type").starts_with("text/plain"));
        for part in parts {
            assert!(
                self.text.contains(part),
                "{part:?} is missing in {:?}",
                self.text
            );
        }
    }
}

impl World {
    pub fn new() -> Self {
        Self::with(|_| {})
    }

    pub fn with(change: impl FnOnce(&mut HttpConfig)) -> Self {
        Self::start(change, |_| Arc::new(AllowAll::default()))
    }

    /// A server that asks an authorizer.
    pub fn guarded(authorizer: impl FnOnce(Arc<TestClock>) -> Arc<dyn Authorizer>) -> Self {
        Self::start(|_| {}, authorizer)
    }

    fn start(
        change: impl FnOnce(&mut HttpConfig),
        authorizer: impl FnOnce(Arc<TestClock>) -> Arc<dyn Authorizer>,
    ) -> Self {
        let clock = Arc::new(TestClock::new());
        let mut config = EmbeddedConfig::default();
        config.engine.workers = 2;
        let embedded = Arc::new(Embedded::start_with(config, clock.clone()).unwrap());
        let local = Arc::new(LocalState::new(NODE, SidecarPortRange::default()));
        let node = Node {
            node: NODE.to_owned(),
            address: "10.0.0.1".to_owned(),
            datacenter: "dc1".to_owned(),
            ..Node::default()
        };
        let sync = LocalSync::start(
            embedded.manager.clone(),
            local.clone(),
            LocalSyncOptions::new(node),
        )
        .unwrap();
        let mut config = HttpConfig {
            stop_grace: PATIENCE,
            ..HttpConfig::default()
        };
        change(&mut config);
        let parts = HttpParts {
            authorizer: authorizer(clock.clone()),
            embedded: embedded.clone(),
            node: NODE.into(),
            agent: Arc::new(LocalAgent::new(local.clone(), None)),
            dump: Arc::new(MeshDump::new(Arc::new(Generator::new()), None)),
            ads: None,
            registry: prometheus_client::registry::Registry::default(),
        };
        let http = HttpState::new(parts, config);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let (shutdown, stopped) = oneshot::channel::<()>();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let served = runtime.spawn(serve(listener, http, async {
            let _ = stopped.await;
        }));
        let client = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(PATIENCE))
            .build()
            .new_agent();
        let world = Self {
            embedded,
            clock,
            local,
            address,
            sync,
            client,
            shutdown: Some(shutdown),
            served: Some(served),
            runtime: Some(runtime),
        };
        world.flush();
        world
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    #[track_caller]
    pub fn get(&self, path: &str) -> Answer {
        answer(self.client.get(self.url(path)).call())
    }

    /// A read in another thread.
    pub fn get_later(&self, path: &str) -> JoinHandle<Answer> {
        let (client, url) = (self.client.clone(), self.url(path));
        std::thread::spawn(move || answer(client.get(url).call()))
    }

    /// Any request with headers of its own.
    #[track_caller]
    pub fn ask(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&Value>,
    ) -> Answer {
        let mut request = ureq::http::Request::builder()
            .method(method)
            .uri(self.url(path));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = body.map(Value::to_string).unwrap_or_default();
        answer(self.client.run(request.body(body).unwrap()))
    }

    #[track_caller]
    pub fn put(&self, path: &str, body: &Value) -> Answer {
        self.put_bytes(path, body.to_string().as_bytes())
    }

    #[track_caller]
    pub fn put_bytes(&self, path: &str, body: &[u8]) -> Answer {
        answer(self.client.put(self.url(path)).send(body))
    }

    #[track_caller]
    pub fn delete(&self, path: &str) -> Answer {
        answer(self.client.delete(self.url(path)).call())
    }

    #[track_caller]
    pub fn post(&self, path: &str, body: &[u8]) -> Answer {
        answer(self.client.post(self.url(path)).send(body))
    }

    /// Writes a record that must be accepted.
    #[track_caller]
    pub fn accept(&self, path: &str, body: &Value) -> Answer {
        let answer = self.put(path, body);
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer
    }

    pub fn index(&self) -> u64 {
        self.embedded.store.snapshot().index()
    }

    /// Waits until the local state is in the catalog, and everything computed.
    pub fn flush(&self) {
        self.sync.flush(Instant::now() + PATIENCE).unwrap();
        let deadline = Instant::now() + PATIENCE;
        self.embedded
            .manager
            .wait_index(self.index(), deadline)
            .unwrap();
    }

    /// Waits until a number of reads wait in the store.
    #[track_caller]
    pub fn waiting(&self, reads: usize) {
        eventually("reads wait", || self.embedded.store.waiting() == reads);
    }

    /// Stops the server and waits until it has stopped.
    pub fn stop(&mut self) {
        drop(self.shutdown.take());
        if let (Some(served), Some(runtime)) = (self.served.take(), &self.runtime) {
            runtime.block_on(served).unwrap().unwrap();
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        drop(self.shutdown.take());
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(PATIENCE);
        }
        self.sync.stop();
        self.embedded.close_soon();
    }
}

#[track_caller]
fn answer(result: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> Answer {
    let mut response = result.unwrap();
    Answer {
        status: response.status().as_u16(),
        headers: response.headers().clone(),
        text: response.body_mut().read_to_string().unwrap(),
    }
}

#[track_caller]
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}: not in {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A text as a value in a query.
pub fn encoded(text: &str) -> String {
    let byte = |b: u8| match b {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => char::from(b).to_string(),
        _ => format!("%{b:02X}"),
    };
    text.bytes().map(byte).collect()
}

/// The node `n1` with an instance of `web`, its check, and a check of the node.
pub fn web() -> Value {
    serde_json::json!({
        "Node": "n1", "Address": "10.0.0.9", "NodeMeta": {"rack": "r1"},
        "Service": {
            "ID": "web1", "Service": "web", "Port": 8080, "Tags": ["v1", "blue"], "Meta": {"version": "1"},
        },
        "Checks": [
            {"CheckID": "node", "Name": "node check", "Status": "passing"},
            {"CheckID": "web", "Name": "web check", "Status": "passing", "ServiceID": "web1"},
        ],
    })
}

/// The sidecar of `web1` on `n1`.
pub fn web_sidecar() -> Value {
    serde_json::json!({
        "Node": "n1", "Address": "10.0.0.9", "NodeMeta": {"rack": "r1"},
        "Service": {
            "Kind": "connect-proxy", "ID": "web1-proxy", "Service": "web-proxy", "Port": 20000,
            "Proxy": {
                "DestinationServiceName": "web", "DestinationServiceID": "web1",
                "Upstreams": [{"DestinationName": "db", "LocalBindPort": 9191}],
            },
        },
    })
}
