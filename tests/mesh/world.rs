//! A control plane: local agent, catalog, engine, certificate authority, xDS server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use proxycfg::config_source::{
    CatalogConfigSource, CatalogOptions, LocalConfigSource, LocalState, LocalSync,
    LocalSyncOptions, Origin, SessionLimiter,
};
use proxycfg::embedded::{Embedded, EmbeddedConfig};
use proxycfg::hcl;
use proxycfg::model::{self, CheckStatus, Node, ProxyId, ServiceDefinition, SidecarPortRange};
use proxycfg::server::MeshProvider;
use proxycfg::server::access::AllowAll;
use proxycfg::server::ads::{AdsConfig, AdsService, Protocol, StreamPhase, serve};
use proxycfg::server::bootstrap::BootstrapParams;
use proxycfg::server::propagation::Propagation;
use proxycfg::store::Transaction;
use proxycfg::xds::Generator;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use crate::member::Member;
use crate::support::envoy::Envoy;
use crate::support::ports::free_port;
use crate::support::{DEADLINE, wait_until};

/// The node of the control plane's own agent.
pub const NODE: &str = "agent-node";

/// How long a catalog proxy outlives its last stream here.
const GRACE: Duration = Duration::from_millis(300);

/// A control plane that runs until it is dropped.
pub struct Mesh {
    pub embedded: Embedded,
    pub local: Arc<LocalState>,
    pub catalog: Arc<CatalogConfigSource>,
    pub ads: AdsService,
    pub times: Arc<Propagation>,
    sync: LocalSync,
    runtime: Option<Runtime>,
    stop: Option<oneshot::Sender<()>>,
    xds_port: u16,
}

impl Mesh {
    /// A control plane in which who isn't spoken of may call.
    pub fn start() -> Self {
        Self::with(|_| {})
    }

    /// A control plane in which who isn't spoken of may not call.
    pub fn start_deny() -> Self {
        Self::with(|config| config.engine.proxies.intention_default_allow = false)
    }

    /// A control plane with other settings.
    pub fn with(change: impl FnOnce(&mut EmbeddedConfig)) -> Self {
        let mut config = EmbeddedConfig::default();
        config.engine.workers = 2;
        change(&mut config);
        let embedded = Embedded::start(config).unwrap();
        let manager = &embedded.manager;
        let local = Arc::new(LocalState::new(NODE, SidecarPortRange::default()));
        let node = Node {
            node: NODE.to_owned(),
            address: "127.0.0.1".to_owned(),
            datacenter: "dc1".to_owned(),
            ..Node::default()
        };
        let sync =
            LocalSync::start(manager.clone(), local.clone(), LocalSyncOptions::new(node)).unwrap();
        let source = LocalConfigSource::new(manager.clone(), local.clone());
        let options = CatalogOptions { grace: GRACE };
        let catalog =
            CatalogConfigSource::start(manager.clone(), source, SessionLimiter::new(), &options);
        let catalog = Arc::new(catalog.unwrap());
        let provider = MeshProvider::start(
            catalog.clone(),
            NODE,
            Arc::new(AllowAll::default()),
            Arc::new(Generator::new()),
            1,
            manager.clock().clone(),
        )
        .unwrap();
        let times = Arc::new(Propagation::new(manager.clock().clone()));
        let commits = times.clone();
        let observer = Box::new(move |index| commits.committed(index));
        embedded.store.observe_commits(observer);
        provider.measure(times.clone());
        let provider = Arc::new(provider);
        let ads = AdsService::measured(provider, AdsConfig::default(), Some(times.clone()));

        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let listener = runtime
            .block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))
            .unwrap();
        let xds_port = listener.local_addr().unwrap().port();
        let (stop, stopped) = oneshot::channel();
        runtime.spawn(serve(listener, None, ads.clone(), async move {
            // Dropping the world stops the server too.
            let _ = stopped.await;
        }));
        Self {
            embedded,
            local,
            catalog,
            ads,
            times,
            sync,
            runtime: Some(runtime),
            stop: Some(stop),
            xds_port,
        }
    }

    /// Registers a service with its sidecar, or changes it, at the local agent.
    pub fn register(&self, member: &Member) {
        let document = hcl::Value::from_json(&member.definition());
        let (definition, warnings) = ServiceDefinition::read(&document)
            .unwrap_or_else(|problems| panic!("{}", problems.text()));
        assert!(warnings.warnings.is_empty(), "{}", warnings.text());
        self.local
            .add(definition, &Origin::API)
            .unwrap_or_else(|problems| panic!("{}", problems.text()));
        self.settle();
    }

    /// Deregisters a service with its sidecar from the local agent.
    pub fn deregister(&self, member: &Member) {
        self.local.remove(&member.id).unwrap();
        self.settle();
    }

    /// Sets the state of a local sidecar's check.
    pub fn check(&self, member: &Member, status: CheckStatus) {
        self.local
            .set_check(&member.check_id(), status, "set by the test")
            .unwrap();
        self.settle();
    }

    /// Writes to the catalog.
    pub fn apply(&self, ops: Vec<Value>) {
        let document = hcl::Value::from_json(&json!({ "Ops": ops }));
        let (transaction, _) = model::Transaction::read(&document)
            .unwrap_or_else(|problems| panic!("{}", problems.text()));
        let transaction = Transaction::try_from(transaction).unwrap();
        self.embedded.store.apply(transaction).unwrap();
        self.settle();
    }

    /// Writes a config entry.
    pub fn entry(&self, entry: Value) {
        self.apply(vec![json!({ "Config": entry })]);
    }

    /// Deletes a config entry.
    pub fn delete_entry(&self, kind: &str, name: &str) {
        self.apply(vec![json!({"DeleteConfig": {"Kind": kind, "Name": name}})]);
    }

    /// Says of a service which protocol it speaks.
    pub fn protocol(&self, service: &str, protocol: &str) {
        self.entry(json!({"Kind": "service-defaults", "Name": service, "Protocol": protocol}));
    }

    /// Says whether one service may call another.
    pub fn intention(&self, from: &str, to: &str, action: &str) {
        let sources = json!([{"Name": from, "Action": action}]);
        self.entry(json!({"Kind": "service-intentions", "Name": to, "Sources": sources}));
    }

    /// Waits until the engine has taken in all that was written.
    pub fn settle(&self) {
        let deadline = Instant::now() + DEADLINE;
        let synced = self.sync.flush(deadline).unwrap();
        assert!(synced.problems.is_empty(), "{:?}", synced.problems);
        let index = self.embedded.store.snapshot().index();
        self.embedded.manager.wait_index(index, deadline).unwrap();
    }

    /// Starts the Envoy of a local sidecar, and waits until it serves.
    pub fn envoy(&self, member: &Member) -> Envoy {
        let envoy = self.connect(&member.proxy_id(), None);
        envoy.wait_ready();
        envoy
    }

    /// Starts an Envoy for any proxy, without waiting until it serves.
    pub fn connect(&self, proxy_id: &str, node_name: Option<&str>) -> Envoy {
        Envoy::start(&self.bootstrap(proxy_id, node_name), proxy_id)
    }

    /// Starts the Envoy of a local sidecar with a bootstrap that says only what it must, and waits until it serves.
    pub fn plain_envoy(&self, member: &Member) -> Envoy {
        self.envoy_with(member, |bootstrap| {
            let removed = bootstrap.as_object_mut().unwrap().remove("layered_runtime");
            assert!(removed.is_some());
        })
    }

    /// Starts the Envoy of a local sidecar with another bootstrap, and waits until it serves.
    pub fn envoy_with(&self, member: &Member, change: impl FnOnce(&mut Value)) -> Envoy {
        let mut bootstrap = self.bootstrap(&member.proxy_id(), None);
        change(&mut bootstrap);
        let envoy = Envoy::start(&bootstrap, &member.proxy_id());
        envoy.wait_ready();
        envoy
    }

    /// Starts the Envoy of a local sidecar that asks for the state of the world, and waits until it serves.
    pub fn sotw_envoy(&self, member: &Member) -> Envoy {
        let params = BootstrapParams {
            xds_protocol: Protocol::StateOfTheWorld,
            ..self.parameters(&member.proxy_id(), None)
        };
        let bootstrap = params.build(&|_| None).unwrap();
        assert_eq!(
            bootstrap["dynamic_resources"]["ads_config"]["api_type"],
            "GRPC"
        );
        let envoy = Envoy::start(&bootstrap, &member.proxy_id());
        envoy.wait_ready();
        envoy
    }

    fn bootstrap(&self, proxy_id: &str, node_name: Option<&str>) -> Value {
        self.parameters(proxy_id, node_name)
            .build(&|_| None)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    fn parameters(&self, proxy_id: &str, node_name: Option<&str>) -> BootstrapParams {
        BootstrapParams {
            node_name: node_name.map(str::to_owned),
            admin_port: free_port(),
            ..BootstrapParams::new(proxy_id, proxy_id, "127.0.0.1", self.xds_port)
        }
    }

    /// The phase of a proxy's stream, if it has one.
    pub fn phase(&self, proxy_id: &str) -> Option<StreamPhase> {
        let streams = self.ads.streams();
        let of_proxy = |node: &proxycfg::server::ads::ClientNode| node.id == proxy_id;
        streams
            .into_iter()
            .find(|stream| stream.node.as_ref().is_some_and(of_proxy))
            .map(|stream| stream.phase)
    }

    /// The engine's id of a local sidecar.
    pub fn engine_id(member: &Member) -> ProxyId {
        ProxyId::new(member.proxy_id(), NODE)
    }

    /// The SPIFFE URI of a service.
    pub fn spiffe(&self, service: &str) -> String {
        let domain = self.embedded.authority().trust_domain();
        format!("spiffe://{domain}/ns/default/dc/dc1/svc/{service}")
    }

    /// Waits until the Envoys have taken everything that there is for them, and checks that none has refused anything.
    pub fn assert_calm(&self, envoys: &[&Envoy]) {
        self.settle();
        wait_until("every stream is up to date", DEADLINE, || {
            let behind: Vec<_> = self
                .ads
                .streams()
                .into_iter()
                .filter(|stream| stream.types.iter().any(|kind| kind.waiting_for_answer))
                .collect();
            if behind.is_empty() {
                Ok(())
            } else {
                Err(format!("{behind:?}"))
            }
        });
        for stream in self.ads.streams() {
            for kind in &stream.types {
                assert_eq!(kind.last_refusal, None, "{stream:?}");
                assert!(kind.quarantined.is_empty(), "{stream:?}");
            }
        }
        let metrics = self.ads.metrics();
        assert_eq!(metrics.nacks.total(), 0);
        assert_eq!(metrics.requests_unknown_type.get(), 0);
        for envoy in envoys {
            envoy.assert_nothing_rejected();
        }
        assert_eq!(self.embedded.manager.counts().panics, 0);
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        self.stop.take();
        self.ads.stop();
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(5));
        }
        self.catalog.shut_down();
        self.sync.stop();
        self.embedded.close_soon();
    }
}
