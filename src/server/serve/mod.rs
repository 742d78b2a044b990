//! The control plane as a program: everything put together, from files to listeners, and taken apart again.
//!
//! The order is what callers rely on: the files are read and checked before anything listens; both listeners are bound
//! before anything starts, so that a port in use is told at once; Envoys are answered only when the files are in effect
//! and the first step has settled, so that none is given less than what was configured.
//!
//! With a data folder, what it keeps is loaded first: the store, then the local state with its owners, over which the files
//! go. Only then is the local state brought into the catalog, so that nothing is taken out of it on the way; and only when
//! the first step over all of it has settled are Envoys answered, so that none that reconnects is told to remove anything.

mod banner;
mod error;
mod keep;
mod listen;
mod local_files;
mod options;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use prometheus_client::registry::Registry;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::{error, info, warn};

use super::ads::{self, AdsService};
use super::backup_socket::BackupSocket;
use super::files::{
    FileSet, FileTargets, FileWatcher, Reloader, WatchOptions, apply, check_together, load,
};
use super::http::{self, HttpConfig, HttpParts, HttpState, LocalAgent, MeshDump};
use super::limits::{fit_connections, register_session_metrics};
use super::local_checks::LocalChecks;
use super::propagation::{Propagation, PropagationMetrics};
use super::provider::MeshProvider;
use crate::clock::{Clock, RealClock};
use crate::config_source::{
    CatalogConfigSource, CatalogOptions, LocalConfigSource, LocalState, LocalSync,
    LocalSyncOptions, SessionControl, SessionLimiter,
};
use crate::embedded::{Embedded, EmbeddedConfig};
use crate::model::Node;
use crate::xds::Generator;

use banner::Banner;
use error::failed;
use keep::start_engine;
use listen::{Bound, Guard, bind};
use local_files::{FileRecordsInLocalState, report_reload};
use options::Plan;

pub use error::ServeError;
pub use listen::Protection;
pub use options::ServeOptions;

/// How long the first step may take.
const SETTLE: Duration = Duration::from_secs(60);

/// How long stopping may take, all parts together.
const STOP: Duration = Duration::from_secs(15);

/// How soon an idle stream whose token is gone ends.
const TOKEN_CHECK: Duration = Duration::from_secs(30);

/// Threads that make Envoy resources.
const GENERATOR_THREADS: usize = 2;

/// How often old roots are looked for that nothing depends on any more.
const PRUNE: Duration = Duration::from_secs(3600);

/// Runs the control plane until SIGINT or SIGTERM. A second signal ends the process at once, with code 1.
///
/// # Errors
/// It can't start, or a listener fails.
pub fn serve(options: ServeOptions) -> Result<(), ServeError> {
    let set = load(&options.config, &options.limits.files())?;
    check_together(&set)?;
    let mut plan = Plan::new(options, &set)?;
    for warning in &set.warnings {
        warn!("{warning}");
    }
    if let Some(cut) = fit_connections(&mut plan.limits) {
        warn!("{cut}");
    }
    let clock: Arc<dyn Clock> = Arc::new(RealClock::new());
    let guard = plan.protection.start(&clock)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("proxycfg-net")
        .enable_all()
        .build()
        .map_err(|e| failed("can't start the network's threads")(&e))?;
    let (http, xds) = {
        let _context = runtime.enter();
        (
            bind(plan.http_addr, "--http-addr")?,
            bind(plan.xds_addr, "--xds-addr")?,
        )
    };
    let mut parts = Parts::start(&plan, &set, &guard, clock, &http.1, &xds.1)?;
    let result = runtime.block_on(parts.run(&plan, set, &guard, http, xds));
    let deadline = Instant::now() + STOP;
    parts.stop(deadline);
    runtime.shutdown_timeout(deadline.saturating_duration_since(Instant::now()));
    info!("stopped");
    result
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
        let times = Arc::new(Propagation::new(clock.clone()));
        registry.register_collector(Box::new(PropagationMetrics(times.clone())));
        let commits = times.clone();
        embedded
            .store
            .observe_commits(Box::new(move |index| commits.committed(index)));
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
        register_session_metrics(&mut registry, &limiter, &sessions);
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
            manager.clock().clone(),
        )
        .map_err(|e| failed("can't start the threads that make resources")(&e))?;
        provider.measure(times.clone());
        let provider = Arc::new(provider);
        let mut ads_config = plan.limits.ads();
        if plan.protection.tokens.is_some() {
            ads_config.auth_check_interval = TOKEN_CHECK;
        }
        let ads = AdsService::measured(provider.clone(), ads_config, Some(times));
        let advertised = match http.ip() {
            ip if ip.is_unspecified() => Ipv4Addr::LOCALHOST.to_string(),
            ip => ip.to_string(),
        };
        let http_config = HttpConfig {
            local_hosts_only: plan.protection.keeps_pages_out(*http),
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
        let limits = plan.limits.files();
        let reloader = Reloader::new(plan.config.clone(), limits, self.targets.clone(), set);
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
