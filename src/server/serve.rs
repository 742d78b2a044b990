//! The control plane as a program: everything put together, from files to listeners, and taken apart again.
//!
//! The order is what callers rely on: the files are read and checked before anything listens; both listeners are bound
//! before anything starts, so that a port in use is told at once; Envoys are answered only when the files are in effect
//! and the first step has settled, so that none is given less than what was configured.
//!
//! With a data folder, what it keeps is loaded first: the store, then the local state with its owners, over which the files
//! go. Only then is the local state brought into the catalog, so that nothing is taken out of it on the way; and only when
//! the first step over all of it has settled are Envoys answered, so that none that reconnects is told to remove anything.

use std::fmt;
use std::io::{IsTerminal as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use smol_str::SmolStr;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::{error, info, warn};

use super::ads::{self, AdsService};
use super::backup_socket::BackupSocket;
use super::files::{
    FileProblems, FileSet, FileTargets, FileWatcher, KeptRecords, LocalRecords, OwnedRecords,
    RefusedRecord, ReloadOutcome, Reloader, WatchOptions, apply, check_node_name, check_together,
    load,
};
use super::http::{self, HttpConfig, HttpParts, HttpState, LocalAgent, MeshDump};
use super::limits::{Limits, session_metrics};
use super::listen::{Bound, Guard, Protection, bind};
use super::local_checks::LocalChecks;
use super::provider::MeshProvider;
use crate::clock::{Clock, RealClock};
use crate::config_source::{
    CatalogConfigSource, CatalogOptions, LocalConfigSource, LocalState, LocalSync,
    LocalSyncOptions, Origin, OriginRecords, RecordError, SessionControl, SessionLimiter,
};
use crate::embedded::{Embedded, EmbeddedConfig, EmbeddedError};
use crate::model::{NameKey, Node, SidecarPortRange};
use crate::store::durable::{DurableBackend, Observer};
use crate::xds::Generator;

/// Consul's port for its HTTP API.
const HTTP_PORT: u16 = 8500;

/// Consul's port for xDS.
const XDS_PORT: u16 = 8502;

/// How long the first step may take.
const SETTLE: Duration = Duration::from_secs(60);

/// How long stopping may take, all parts together.
const STOP: Duration = Duration::from_secs(15);

/// How soon an idle stream whose token is gone ends.
const TOKEN_CHECK: Duration = Duration::from_secs(30);

/// Threads that make Envoy resources.
const GENERATOR_THREADS: usize = 2;

/// Upper bounds of the histogram of times to write to the disk, in seconds.
const PERSIST_TIMES: [f64; 11] = [
    0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.0,
];

/// How often old roots are looked for that nothing depends on any more.
const PRUNE: Duration = Duration::from_secs(3600);

/// What to serve, and where. What is `None` is taken from the files, else from the default.
#[derive(Debug, Clone, Default)]
pub struct ServeOptions {
    /// Files and folders.
    pub config: Vec<PathBuf>,
    /// Name of this agent's node; default is the machine's name.
    pub node_name: Option<String>,
    /// Datacenter; default `dc1`.
    pub datacenter: Option<String>,
    /// Where the HTTP API listens; default 127.0.0.1:8500.
    pub http_addr: Option<SocketAddr>,
    /// Where xDS listens; default 127.0.0.1:8502.
    pub xds_addr: Option<SocketAddr>,
    /// What holds for callers that no intention speaks of; default true.
    pub intention_default_allow: Option<bool>,
    /// How the ports are protected (decision C2).
    pub protection: Protection,
    /// What the server takes on.
    pub limits: Limits,
    /// Where records and the certificate authority are kept; default in memory only.
    pub data_dir: Option<PathBuf>,
}

/// Why the control plane doesn't run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The files are bad.
    #[error("{0}")]
    Files(#[from] FileProblems),
    /// An option is bad.
    #[error("{0}")]
    BadInput(String),
    /// Something that it needs can't be had.
    #[error("{0}")]
    Failed(String),
}

fn failed(what: &str) -> impl FnOnce(&dyn fmt::Display) -> ServeError {
    move |error| ServeError::Failed(format!("{what}: {error}"))
}

/// Runs the control plane until SIGINT or SIGTERM. A second signal ends the process at once, with code 1.
///
/// # Errors
/// It can't start, or a listener fails.
pub fn serve(options: ServeOptions) -> Result<(), ServeError> {
    let set = load(&options.config)?;
    check_together(&set)?;
    let plan = Plan::new(options, &set)?;
    for warning in &set.warnings {
        warn!("{warning}");
    }
    let clock: Arc<dyn Clock> = Arc::new(RealClock::new());
    let guard = plan.protection.start(&clock)?;
    let http = bind(plan.http_addr, "--http-addr")?;
    let xds = bind(plan.xds_addr, "--xds-addr")?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("proxycfg-net")
        .enable_all()
        .build()
        .map_err(|e| failed("can't start the network's threads")(&e))?;
    let mut parts = Parts::start(&plan, &set, &guard, clock, &http.1, &xds.1)?;
    let result = runtime.block_on(parts.run(&plan, set, &guard, http, xds));
    let deadline = Instant::now() + STOP;
    parts.stop(deadline);
    runtime.shutdown_timeout(deadline.saturating_duration_since(Instant::now()));
    info!("stopped");
    result
}

/// The options with the files' settings and the defaults filled in.
struct Plan {
    config: Vec<PathBuf>,
    node_name: SmolStr,
    datacenter: SmolStr,
    http_addr: SocketAddr,
    xds_addr: SocketAddr,
    intention_default_allow: bool,
    sidecar_ports: SidecarPortRange,
    limits: Limits,
    data_dir: Option<PathBuf>,
    protection: Protection,
}

impl Plan {
    fn new(options: ServeOptions, set: &FileSet) -> Result<Self, ServeError> {
        let files = &set.settings;
        let node_name = options
            .node_name
            .or_else(|| files.node_name.as_ref().map(|s| s.value.clone()));
        let node_name = match node_name {
            Some(name) => name,
            None => machine_name()?,
        };
        let datacenter = options
            .datacenter
            .or_else(|| files.datacenter.as_ref().map(|s| s.value.clone()))
            .unwrap_or_else(|| "dc1".to_owned());
        let address = |given: Option<SocketAddr>, port: Option<u16>, default: u16| {
            let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
            given.unwrap_or_else(|| SocketAddr::new(local, port.unwrap_or(default)))
        };
        let http_port = files.http_port.as_ref().map(|s| s.value);
        let xds_port = files.xds_port.as_ref().map(|s| s.value);
        let http_addr = address(options.http_addr, http_port, HTTP_PORT);
        let xds_addr = address(options.xds_addr, xds_port, XDS_PORT);
        options.protection.check(http_addr, "--http-addr")?;
        options.protection.check(xds_addr, "--xds-addr")?;
        if http_addr == xds_addr && http_addr.port() != 0 {
            return Err(ServeError::BadInput(format!(
                "--http-addr and --xds-addr are both {http_addr}; give each a port of its own"
            )));
        }
        Ok(Self {
            config: options.config,
            node_name: node_name.into(),
            datacenter: datacenter.into(),
            http_addr,
            xds_addr,
            intention_default_allow: options
                .intention_default_allow
                .or_else(|| files.intention_default_allow.as_ref().map(|s| s.value))
                .unwrap_or(true),
            sidecar_ports: files.sidecar_ports(),
            limits: options.limits,
            data_dir: options.data_dir,
            protection: options.protection,
        })
    }
}

fn machine_name() -> Result<String, ServeError> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .ok()
        .or_else(|| std::env::var("HOSTNAME").ok())
        .unwrap_or_default();
    let name = name.trim();
    match check_node_name(name) {
        Ok(()) => Ok(name.to_owned()),
        Err(why) => Err(ServeError::BadInput(format!(
            "the machine's name {name:?} can't be the node's name ({why}); give --node-name"
        ))),
    }
}

/// Everything that runs.
struct Parts {
    embedded: Arc<Embedded>,
    sync: Arc<LocalSync>,
    catalog: Arc<CatalogConfigSource>,
    sessions: Arc<SessionControl>,
    checks: Arc<LocalChecks>,
    ads: AdsService,
    http: Arc<HttpState>,
    targets: FileTargets,
    watcher: Option<FileWatcher>,
}

impl Parts {
    /// Starts all parts and waits until the files are in effect.
    fn start(
        plan: &Plan,
        set: &FileSet,
        guard: &Guard,
        clock: Arc<dyn Clock>,
        http: &SocketAddr,
        xds: &SocketAddr,
    ) -> Result<Self, ServeError> {
        let mut config = EmbeddedConfig::default();
        config.engine.proxies.datacenter = plan.datacenter.clone();
        config.engine.proxies.intention_default_allow = plan.intention_default_allow;
        let mut registry = Registry::default();
        let embedded = start_engine(plan, config, clock.clone(), &mut registry)?;
        let embedded = Arc::new(embedded);
        let manager = &embedded.manager;
        let state = Arc::new(LocalState::new(plan.node_name.clone(), plan.sidecar_ports));
        state
            .restore(&embedded.store.snapshot())
            .map_err(|e| failed("can't start the local agent")(&e))?;
        let targets = FileTargets {
            store: embedded.store.clone(),
            local: Arc::new(FileRecordsInLocalState(state.clone())),
        };
        let report = apply(set, &targets, true)?;
        let node = Node {
            node: plan.node_name.to_string(),
            address: Ipv4Addr::LOCALHOST.to_string(),
            datacenter: plan.datacenter.to_string(),
            ..Node::default()
        };
        let sync = LocalSync::start(manager.clone(), state.clone(), LocalSyncOptions::new(node))
            .map_err(|e| failed("can't start the local agent")(&e))?;
        let sync = Arc::new(sync);
        let checks = LocalChecks::start(state.clone(), embedded.store.clone(), clock)
            .map_err(|e| failed("can't start the health checks")(&e))?;
        let checks = Arc::new(checks);
        let deadline = Instant::now() + SETTLE;
        let synced = sync
            .flush(deadline)
            .map_err(|e| failed("the services of the files were not taken in")(&e))?;
        if let Some(why) = synced.unkept {
            return Err(ServeError::Failed(why));
        }
        manager
            .wait_index(synced.store_index.max(report.store_index), deadline)
            .map_err(|e| failed("the first configuration of the proxies was not ready")(&e))?;

        let local = LocalConfigSource::new(manager.clone(), state.clone());
        let options = CatalogOptions::default();
        let limiter = SessionLimiter::new();
        let servers = plan.limits.servers.unwrap_or(0);
        let clock = manager.clock().clone();
        let sessions = SessionControl::start(limiter.clone(), &embedded.store, clock, servers)
            .map_err(|e| failed("can't start the control of sessions")(&e))?;
        let sessions = Arc::new(sessions);
        let registry = session_metrics(&limiter, &sessions);
        let catalog = CatalogConfigSource::start(manager.clone(), local, limiter, &options)
            .map_err(|e| failed("can't start the catalog's proxies")(&e))?;
        let catalog = Arc::new(catalog);
        let authorizer = guard.authorizer.clone();
        let generator = Arc::new(Generator::new());
        let provider = MeshProvider::start(
            catalog.clone(),
            plan.node_name.clone(),
            authorizer.clone(),
            generator.clone(),
            GENERATOR_THREADS,
        )
        .map_err(|e| failed("can't start the threads that make resources")(&e))?;
        let provider = Arc::new(provider);
        let mut ads_config = plan.limits.ads();
        if plan.protection.tokens.is_some() {
            ads_config.auth_check_interval = TOKEN_CHECK;
        }
        let ads = AdsService::new(provider.clone(), ads_config);
        let advertised = match http.ip() {
            ip if ip.is_unspecified() => Ipv4Addr::LOCALHOST.to_string(),
            ip => ip.to_string(),
        };
        let http_config = HttpConfig {
            intention_default_allow: plan.intention_default_allow,
            advertise_address: advertised.into(),
            xds_plaintext_port: guard.tls.is_none().then(|| xds.port()),
            xds_tls_port: guard.tls.is_some().then(|| xds.port()),
            ..plan.limits.http()
        };
        let mut agent = LocalAgent::new(state, Some(checks.clone()));
        if plan.data_dir.is_some() {
            agent = agent.kept_by(sync.clone());
        }
        let http_parts = HttpParts {
            authorizer,
            embedded: embedded.clone(),
            node: plan.node_name.clone(),
            agent: Arc::new(agent),
            dump: Arc::new(MeshDump::new(generator, Some(provider))),
            ads: Some(ads.clone()),
            registry,
        };
        Ok(Self {
            embedded,
            sync,
            catalog,
            sessions,
            checks,
            ads,
            http: HttpState::new(http_parts, http_config),
            targets,
            watcher: None,
        })
    }

    /// Serves until a signal comes or a listener fails.
    async fn run(
        &mut self,
        plan: &Plan,
        set: FileSet,
        guard: &Guard,
        (http, http_addr): Bound,
        (xds, xds_addr): Bound,
    ) -> Result<(), ServeError> {
        let signals = |e: std::io::Error| failed("can't listen for signals")(&e);
        let mut interrupt = signal(SignalKind::interrupt()).map_err(signals)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(signals)?;
        let mut hangup = signal(SignalKind::hangup()).map_err(signals)?;
        let listener = |e: std::io::Error| failed("can't use a listener")(&e);
        let http = tokio::net::TcpListener::from_std(http).map_err(listener)?;
        let xds = tokio::net::TcpListener::from_std(xds).map_err(listener)?;
        let stopping = watch::Sender::new(false);
        let mut http: JoinHandle<Result<(), String>> = {
            let stopped = ended(&stopping);
            let serving = http::serve(http, guard.tls.clone(), self.http.clone(), stopped);
            tokio::spawn(async { serving.await.map_err(|e| format!("HTTP listener: {e}")) })
        };
        let mut xds: JoinHandle<Result<(), String>> = {
            let stopped = ended(&stopping);
            let serving = ads::serve(xds, guard.tls.clone(), self.ads.clone(), stopped);
            tokio::spawn(async { serving.await.map_err(|e| e.to_string()) })
        };
        tokio::spawn(prune_roots(self.embedded.clone()));
        if let Some(folder) = &plan.data_dir {
            match BackupSocket::open(folder) {
                Ok(socket) => drop(tokio::spawn(socket.serve(self.embedded.store.clone()))),
                Err(error) => {
                    warn!(%error, "`proxycfg backup` needs this server stopped: no socket can be made in the data folder");
                }
            }
        }
        let banner = Banner::new(plan, &set, http_addr, xds_addr);
        self.watch_files(plan, set)?;
        info!(address = %http_addr, "HTTP API is open");
        info!(address = %xds_addr, "xDS is open");
        banner.show();

        let mut result = Ok(());
        loop {
            tokio::select! {
                _ = interrupt.recv() => break,
                _ = terminate.recv() => break,
                _ = hangup.recv() => if let Some(watcher) = &self.watcher {
                    watcher.reload_now();
                } else {
                    info!("SIGHUP: there are no files to read again");
                },
                ended = &mut http => {
                    result = Err(unexpected(ended));
                    break;
                }
                ended = &mut xds => {
                    result = Err(unexpected(ended));
                    break;
                }
            }
        }
        if result.is_ok() {
            info!("stopping; another signal ends the program at once");
            tokio::spawn(end_at_next_signal(interrupt, terminate));
        }
        stopping.send_replace(true);
        let both = async {
            // Whichever failed has been awaited, and says so again; the other one's end is what is waited for.
            if !http.is_finished() {
                report_end((&mut http).await);
            }
            if !xds.is_finished() {
                report_end((&mut xds).await);
            }
        };
        if tokio::time::timeout(STOP, both).await.is_err() {
            warn!("connections are closed that didn't end in time");
        }
        result
    }

    fn watch_files(&mut self, plan: &Plan, set: FileSet) -> Result<(), ServeError> {
        if plan.config.is_empty() {
            return Ok(());
        }
        let reloader = Reloader::new(plan.config.clone(), self.targets.clone(), set);
        let clock = self.embedded.manager.clock().clone();
        let watcher = FileWatcher::start(reloader, WatchOptions::default(), clock, report_reload)
            .map_err(|e| failed("can't watch the files")(&e))?;
        self.watcher = Some(watcher);
        Ok(())
    }

    /// Ends all parts, those that give work to others first.
    fn stop(&mut self, deadline: Instant) {
        self.watcher.take();
        self.checks.stop();
        self.sessions.stop();
        self.catalog.shut_down();
        self.sync.stop();
        let report = self.embedded.close(deadline);
        if report.stuck_threads > 0 {
            warn!(threads = report.stuck_threads, "threads are still busy");
        }
    }
}

/// Starts the engine over what is kept, or over nothing.
fn start_engine(
    plan: &Plan,
    config: EmbeddedConfig,
    clock: Arc<dyn Clock>,
    registry: &mut Registry,
) -> Result<Embedded, ServeError> {
    let engine = |e: EmbeddedError| failed("can't start the engine")(&e);
    let Some(folder) = &plan.data_dir else {
        info!(
            "records and the certificate authority are kept in memory only: a restart makes a new trust domain"
        );
        return Embedded::start_with(config, clock).map_err(engine);
    };
    let backend = DurableBackend::open(folder).map_err(|e| ServeError::Failed(e.to_string()))?;
    let backend = backend.observed(PersistMetrics::register(registry).observer());
    Embedded::start_durable(config, clock, Box::new(backend)).map_err(|error| match error {
        // It names the file and the mend.
        EmbeddedError::Store(error) => ServeError::Failed(error.to_string()),
        other => engine(other),
    })
}

/// What is counted of writes to the data folder.
struct PersistMetrics {
    times: Histogram,
    commits: Counter,
    failures: Counter,
}

impl PersistMetrics {
    fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            times: Histogram::new(PERSIST_TIMES),
            commits: Counter::default(),
            failures: Counter::default(),
        };
        registry.register(
            "proxycfg_persist_seconds",
            "Time until a group of commits is on the disk",
            metrics.times.clone(),
        );
        registry.register(
            "proxycfg_persist_commits",
            "Commits that were written to the disk, in groups",
            metrics.commits.clone(),
        );
        registry.register(
            "proxycfg_persist_failures",
            "Groups of commits that could not be written to the disk, and were refused",
            metrics.failures.clone(),
        );
        metrics
    }

    fn observer(self) -> Observer {
        Box::new(move |group| {
            self.times.observe(group.elapsed.as_secs_f64());
            if group.kept {
                self.commits.inc_by(group.commits as u64);
            } else {
                self.failures.inc();
            }
        })
    }
}

/// Ends when the server is to stop.
fn ended(stopping: &watch::Sender<bool>) -> impl Future<Output = ()> + Send + use<> {
    let mut stopping = stopping.subscribe();
    async move {
        // The sender outlives the servers; if it doesn't, it is time to stop too.
        let _ = stopping.wait_for(|stop| *stop).await;
    }
}

type Ended = Result<Result<(), String>, tokio::task::JoinError>;

fn unexpected(ended: Ended) -> ServeError {
    ServeError::Failed(match ended {
        Ok(Ok(())) => "a listener ended".to_owned(),
        Ok(Err(why)) => why,
        Err(panic) => format!("a listener ended: {panic}"),
    })
}

fn report_end(ended: Ended) {
    match ended {
        Ok(Ok(())) => {}
        Ok(Err(why)) => warn!("{why}"),
        Err(panic) => error!("a listener ended: {panic}"),
    }
}

async fn end_at_next_signal(mut interrupt: Signal, mut terminate: Signal) {
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    warn!("ended by a second signal");
    std::process::exit(1);
}

async fn prune_roots(embedded: Arc<Embedded>) {
    loop {
        tokio::time::sleep(PRUNE).await;
        let embedded = embedded.clone();
        match tokio::task::spawn_blocking(move || embedded.prune_roots()).await {
            Ok(Ok(true)) => info!("dropped roots that no certificate depends on any more"),
            Ok(Ok(false)) => {}
            Ok(Err(problem)) => warn!(%problem, "can't drop old roots"),
            // The runtime is shutting down.
            Err(_) => return,
        }
    }
}

/// Tells the log what came of a reload.
fn report_reload(outcome: &ReloadOutcome) {
    match outcome {
        ReloadOutcome::Unchanged => info!("the files are unchanged"),
        ReloadOutcome::Applied {
            report,
            warnings,
            settings,
        } => {
            for warning in warnings {
                warn!("{warning}");
            }
            if !settings.is_empty() {
                warn!(
                    "changed in the files, in effect after a restart: {}",
                    settings.join(", ")
                );
            }
            info!(
                changed = report.files_changed,
                gone = report.files_gone,
                entries_written = report.entries_written,
                entries_deleted = report.entries_deleted,
                "the files were read again and are in effect"
            );
        }
        ReloadOutcome::Refused(problems) => {
            for problem in problems.iter() {
                error!("{problem}");
            }
            error!("the files were not taken over: the last good state stays in effect");
        }
    }
}

/// The local state as the place where services and checks of files go.
struct FileRecordsInLocalState(Arc<LocalState>);

impl LocalRecords for FileRecordsInLocalState {
    fn replace(&self, records: Vec<OwnedRecords>) -> Result<(), Vec<RefusedRecord>> {
        let records = records.into_iter().map(|of_file| OriginRecords {
            origin: Origin::file(&of_file.file),
            services: of_file.services,
            checks: of_file.checks,
        });
        let refused = |error: RecordError| RefusedRecord {
            file: error.origin.path().unwrap_or_default().to_owned(),
            is_check: error.is_check,
            position: error.position,
            problems: error.problems,
        };
        match self.0.replace_origins(records.collect()) {
            Ok(_) => Ok(()),
            Err(errors) => Err(errors.into_iter().map(refused).collect()),
        }
    }

    fn kept(&self) -> KeptRecords {
        let origins = self.0.origins();
        let files = origins.iter().filter_map(Origin::path);
        let of_api = |origin: &Origin| origin.path().is_none();
        let services = self.0.services().into_iter();
        let checks = self.0.checks().into_iter();
        KeptRecords {
            files: files.map(str::to_owned).collect(),
            services: services
                .filter(|entry| of_api(&entry.origin) && entry.sidecar_of.is_none())
                .map(|entry| NameKey::new(&entry.service.id))
                .collect(),
            checks: checks
                .filter(|check| check.alone.as_ref().is_some_and(of_api))
                .map(|check| NameKey::new(&check.check.check_id))
                .collect(),
        }
    }
}

/// What a person at a terminal is told: what is served, where, and how to attach an Envoy.
struct Banner(String);

impl Banner {
    fn new(plan: &Plan, set: &FileSet, http: SocketAddr, xds: SocketAddr) -> Self {
        let services: Vec<&str> = set.services().map(|s| s.record.name.as_str()).collect();
        let mut served = match services.as_slice() {
            [] => "no services yet; register some with --config or over the HTTP API".to_owned(),
            names if names.len() <= 6 => names.join(", "),
            names => format!("{}, ... ({} services)", names[..5].join(", "), names.len()),
        };
        match set.entries().count() {
            0 => {}
            1 => served.push_str("; 1 config entry"),
            n => served.push_str(&format!("; {n} config entries")),
        }
        let encrypted = plan.protection.tls_cert.is_some();
        let mut elsewhere = if encrypted {
            format!(" --http-addr https://{http} --ca-file CA.pem")
        } else if http.port() == HTTP_PORT && http.ip().is_loopback() {
            String::new()
        } else {
            format!(" --http-addr {http}")
        };
        if plan.protection.tls_client_ca.is_some() {
            elsewhere.push_str(" --client-cert CERT.pem --client-key KEY.pem");
        }
        if plan.protection.tokens.is_some() {
            elsewhere.push_str(" --token-file FILE");
        }
        let (scheme, secured) = if encrypted {
            ("https", " (TLS)")
        } else {
            ("http", "")
        };
        let definitions: Vec<_> = set.services().map(|s| &s.record).collect();
        let with_sidecar = definitions.iter().find(|d| d.sidecar().is_some());
        let proxy = definitions.iter().find(|d| d.kind.is_proxy());
        let attach = match (with_sidecar, proxy) {
            (Some(service), _) => format!("--sidecar-for {}", service.effective_id()),
            (None, Some(proxy)) => format!("--proxy-id {}", proxy.effective_id()),
            (None, None) => "--sidecar-for SERVICE_ID".to_owned(),
        };
        let kept = match &plan.data_dir {
            Some(folder) => format!("kept in        {}", folder.display()),
            None => "kept in memory: a restart makes a new trust domain".to_owned(),
        };
        Self(format!(
            "proxycfg {} on node {}, datacenter {}\n\
             \x20 serves         {served}\n\
             \x20 xDS            {xds}{secured}\n\
             \x20 HTTP API       {scheme}://{http}\n\
             \x20 attach Envoy   proxycfg envoy {attach}{elsewhere}\n\
             \x20 see proxies    proxycfg proxies{elsewhere}\n\
             \x20 {kept}\n\
             Ctrl-C stops it.",
            env!("CARGO_PKG_VERSION"),
            plan.node_name,
            plan.datacenter,
        ))
    }

    fn show(&self) {
        let mut out = std::io::stdout();
        if out.is_terminal() {
            // The log has said the same.
            let _ = writeln!(out, "{}", self.0);
        }
    }
}
