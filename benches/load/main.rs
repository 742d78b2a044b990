//! A load generator for xDS servers: simulated Envoys over delta ADS, and writes that change endpoints.
//!
//! `cargo bench --bench load -- --proxies 3000 --writes 10` starts the program, registers a mesh, connects everybody, and
//! shows what happens; `-- --help` tells the options. `benches/compare/run` uses its rows. It measures from here: a change
//! begins before its HTTP request is sent, and has arrived when the client has the bytes with it.
//!
//! The clients share one runtime of two threads; what writes and looks on has a thread of its own, so that it doesn't wait
//! behind them.

mod client;
mod fleet;
mod http;
mod rows;
mod server;
mod wire;
mod world;

use std::io::{IsTerminal as _, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use clap::Parser;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

use fleet::{Fleet, percentile};
use server::Server;
use world::{Shape, Writer};

/// How long everybody may take for one thing.
const PATIENCE: Duration = Duration::from_secs(120);

/// Simulated Envoys against an xDS server: how soon they are configured, how soon changes reach them, at what cost.
#[derive(Debug, Parser)]
#[command(name = "load")]
struct Args {
    /// Envoys.
    #[arg(long, default_value_t = 100)]
    proxies: usize,
    /// Streams on each connection.
    #[arg(long, default_value_t = 1)]
    per_connection: usize,
    /// Services that each of them dials; the first is the same for all.
    #[arg(long, default_value_t = 10)]
    upstreams: usize,
    /// Instances of each service.
    #[arg(long, default_value_t = 10)]
    endpoints: usize,
    /// Services.
    #[arg(long, default_value_t = 100)]
    services: usize,
    /// Endpoint changes a second.
    #[arg(long, default_value_t = 5.0)]
    writes: f64,
    /// How long to write.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Change the services by turns, not always the one that all dial.
    #[arg(long)]
    spread: bool,
    /// Connections opened a second, at first; 0 opens all at once.
    #[arg(long, default_value_t = 0)]
    ramp: usize,
    /// Attach to a running server instead of starting one: its xDS address. Needs --http.
    #[arg(long, requires = "http")]
    xds: Option<String>,
    /// The HTTP address of the running server.
    #[arg(long, requires = "xds")]
    http: Option<String>,
    /// The process of the running server, to show what it costs.
    #[arg(long, requires = "xds")]
    pid: Option<u32>,
    /// Don't register the mesh: the server has it.
    #[arg(long)]
    no_set_up: bool,
    /// The program to start.
    #[arg(long, value_name = "FILE", default_value = env!("CARGO_BIN_EXE_proxycfg"))]
    program: PathBuf,
    /// More options for `proxycfg serve`, e.g. --serve=--data-dir --serve=DIR.
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true)]
    serve: Vec<String>,
    /// Start another program instead of ours, which serves the resources of --resources: command and options.
    #[arg(long, value_name = "COMMAND", requires = "resources")]
    peer: Option<String>,
    /// Where the resources of our server are written to, and a peer's are read from.
    #[arg(long, value_name = "FILE")]
    resources: Option<PathBuf>,
    /// Do a row of benches/compare, and print it as JSON lines.
    #[arg(long, value_enum)]
    row: Option<Row>,
    /// How often a row does its work.
    #[arg(long, default_value_t = 20)]
    rounds: usize,
    /// What cargo bench adds.
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Row {
    /// One change after the other, each until all have it.
    Push,
    /// All but a few lose their connections and come back at once, while changes go on.
    Storm,
}

fn main() {
    let mut args = Args::parse();
    // Run by the tests with nothing said, it only shows that it works.
    if std::env::args().len() == 1 {
        (args.proxies, args.services, args.endpoints, args.upstreams) = (5, 3, 2, 3);
        (args.seconds, args.writes) = (0.2, 20.0);
    }
    if let Err(error) = run(&args) {
        eprintln!("load: {error}");
        std::process::exit(1);
    }
}

fn run(args: &Args) -> Result<(), String> {
    let text = |e: std::io::Error| e.to_string();
    let clients = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(text)?;
    let control = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(text)?;
    let result = control.block_on(async {
        let mut load = Load::start(args, &clients).await?;
        match args.row {
            Some(Row::Push) => rows::push(&mut load).await,
            Some(Row::Storm) => rows::storm(&mut load).await,
            None => freely(&mut load).await,
        }
    });
    clients.shutdown_timeout(Duration::from_secs(1));
    result
}

/// A server with its mesh, and everything that acts on it.
pub struct Load<'a> {
    args: &'a Args,
    clients: &'a Runtime,
    fleet: Arc<Fleet>,
    server: Server,
    xds: SocketAddr,
    writer: Writer,
    connections: Vec<JoinHandle<()>>,
}

impl<'a> Load<'a> {
    async fn start(args: &'a Args, clients: &'a Runtime) -> Result<Self, String> {
        let shape = Shape {
            proxies: args.proxies + rows::others(args),
            upstreams: args.upstreams,
            endpoints: args.endpoints,
            services: args.services.max(args.upstreams),
        };
        let ours = args.peer.is_none();
        let keep = ours && args.resources.is_some();
        let fleet = Arc::new(Fleet::new(1_000_000, keep));
        let server = match (&args.peer, &args.resources, &args.xds, &args.http) {
            (Some(command), Some(resources), ..) => Server::peer(command, resources)?,
            (_, _, Some(xds), Some(http)) => Server::attach(xds.clone(), http.clone(), args.pid),
            _ => Server::start(&args.program, &args.serve)?,
        };
        if ours && !args.no_set_up {
            world::set_up(&fleet, shape, &server.http).await?;
        }
        let xds = tokio::net::lookup_host(&server.xds)
            .await
            .map_err(|e| format!("{}: {e}", server.xds))?;
        let xds = xds
            .into_iter()
            .next()
            .ok_or("the xDS address has no address")?;
        let writer = Writer::new(&server.http, ours).await?;
        Ok(Self {
            args,
            clients,
            fleet,
            server,
            xds,
            writer,
            connections: Vec::new(),
        })
    }

    /// Connects the main fleet: all of it at once, or at the wanted pace.
    async fn connect(&mut self, ramp: usize) {
        let all: Vec<usize> = (0..self.args.proxies).collect();
        let start = Instant::now();
        for (n, proxies) in all.chunks(self.args.per_connection.max(1)).enumerate() {
            if ramp > 0 {
                let at = start + Duration::from_secs_f64(n as f64 / ramp as f64);
                tokio::time::sleep_until(at.into()).await;
            }
            let began = if ramp > 0 { Instant::now() } else { start };
            let connection =
                client::connection(self.fleet.clone(), self.xds, proxies.to_vec(), began);
            self.connections.push(self.clients.spawn(connection));
        }
    }

    /// Takes the main fleet's connections away.
    async fn disconnect(&mut self) {
        for connection in &self.connections {
            connection.abort();
        }
        for connection in self.connections.drain(..) {
            // Ended, one way or the other.
            let _ = connection.await;
        }
    }

    /// Waits until as many of the main fleet have become configured in all.
    async fn until_ready(&self, count: u64) -> Result<(), String> {
        let fleet = &self.fleet;
        until(fleet, "configured", count, || fleet.ready()).await
    }
}

/// Waits until as many of a fleet have come so far. An error of any of them ends it.
async fn until(fleet: &Fleet, what: &str, count: u64, now: impl Fn() -> u64) -> Result<(), String> {
    let deadline = Instant::now() + PATIENCE;
    while now() < count {
        let errors = fleet.errors.load(Relaxed);
        if errors > 0 || Instant::now() > deadline {
            return Err(format!("{} of {count} are {what}, {errors} errors", now()));
        }
        // A notice may have come before: the pause bounds the loss.
        let pause = Duration::from_millis(100);
        let _ = tokio::time::timeout(pause, fleet.progress.notified()).await;
    }
    Ok(())
}

/// Writes for a while, with a line that tells how it goes, and a report at the end.
async fn freely(load: &mut Load<'_>) -> Result<(), String> {
    let (args, fleet) = (load.args, load.fleet.clone());
    let mut line = Line::default();
    load.connect(args.ramp).await;
    while fleet.ready() < args.proxies as u64 && fleet.errors.load(Relaxed) == 0 {
        let _ = tokio::time::timeout(Duration::from_millis(200), async {
            while fleet.ready() < args.proxies as u64 {
                fleet.progress.notified().await;
            }
        })
        .await;
        line.show(load, 0, &[]);
        if fleet.elapsed() > PATIENCE {
            return Err("not all become configured in time".to_owned());
        }
    }
    let first = fleet.take_first();
    let (cpu_before, began) = (load.server.cpu(), Instant::now());
    let connected_cost = cpu_before;
    let mut tick = tokio::time::interval(Duration::from_secs_f64(1.0 / args.writes.max(0.001)));
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut writes, mut all, mut recent, mut shown) =
        (0_u64, Vec::new(), Vec::new(), Instant::now());
    while began.elapsed().as_secs_f64() < args.seconds {
        if args.writes > 0.0 {
            tick.tick().await;
            let service = if args.spread {
                writes as usize % args.services.max(1)
            } else {
                0
            };
            load.writer.change(&fleet, service).await?;
            writes += 1;
        } else {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        if shown.elapsed() > line.pause() {
            recent = fleet.take_seen();
            all.extend_from_slice(&recent);
            line.show(load, writes, &recent);
            shown = Instant::now();
        }
    }
    let took = began.elapsed();
    tokio::time::sleep(Duration::from_millis(500)).await;
    all.extend(fleet.take_seen());
    line.end(load, writes, &recent);
    all.sort_unstable();
    let pushes = fleet.pushes.load(Relaxed);
    println!(
        "proxies               {} on {} connections",
        args.proxies,
        load.connections.len()
    );
    println!("first configuration   {}", times(&first));
    println!("change -> received    {}", times(&all));
    println!(
        "writes                {writes} in {:.1} s, {:.1} a second",
        took.as_secs_f64(),
        writes as f64 / took.as_secs_f64()
    );
    println!(
        "responses             {} with {} resources, {:.1} MB",
        fleet.responses.load(Relaxed),
        fleet.resources.load(Relaxed),
        fleet.bytes.load(Relaxed) as f64 / 1e6
    );
    if let (Some(before), Some(after), Some(memory), Some(connected)) = (
        cpu_before,
        load.server.cpu(),
        load.server.memory(),
        connected_cost,
    ) {
        let used = after.saturating_sub(before);
        println!(
            "server                {:.2} s of CPU until all were configured, {:.2} s while writing ({:.1} us a push), {:.1} MB",
            connected.as_secs_f64(),
            used.as_secs_f64(),
            used.as_secs_f64() * 1e6 / pushes.max(1) as f64,
            memory as f64 / 1e6
        );
    }
    let errors = fleet.errors.load(Relaxed);
    println!("errors                {errors}");
    load.disconnect().await;
    if errors > 0 || (writes > 0 && pushes == 0) {
        return Err("there were errors, or no change arrived".to_owned());
    }
    Ok(())
}

fn times(sorted: &[Duration]) -> String {
    if sorted.is_empty() {
        return "-".to_owned();
    }
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    format!(
        "p50 {:.2} ms   p99 {:.2} ms   max {:.2} ms   ({} times)",
        ms(percentile(sorted, 50)),
        ms(percentile(sorted, 99)),
        ms(percentile(sorted, 100)),
        sorted.len()
    )
}

/// The line that tells how it goes: written over on a terminal, one a second elsewhere.
#[derive(Default)]
struct Line {
    last: Option<Instant>,
}

impl Line {
    fn pause(&self) -> Duration {
        let often = std::io::stderr().is_terminal();
        Duration::from_millis(if often { 200 } else { 1_000 })
    }

    fn show(&mut self, load: &Load<'_>, writes: u64, recent: &[Duration]) {
        if self.last.is_none_or(|last| last.elapsed() >= self.pause()) {
            self.write(load, writes, recent);
            self.last = Some(Instant::now());
        }
    }

    fn end(&mut self, load: &Load<'_>, writes: u64, recent: &[Duration]) {
        self.write(load, writes, recent);
        if std::io::stderr().is_terminal() {
            eprintln!();
        }
    }

    fn write(&self, load: &Load<'_>, writes: u64, recent: &[Duration]) {
        let fleet = &load.fleet;
        let (mut err, ms) = (std::io::stderr(), |time: Duration| time.as_secs_f64() * 1e3);
        let text = format!(
            "{:6.1} s  {}/{} configured  {writes} writes  {} pushes  p50 {:.1} p99 {:.1} ms  server {:.1} s CPU {:.0} MB  {} errors",
            fleet.elapsed().as_secs_f64(),
            fleet.ready(),
            load.args.proxies,
            fleet.pushes.load(Relaxed),
            ms(percentile(recent, 50)),
            ms(percentile(recent, 99)),
            load.server.cpu().unwrap_or_default().as_secs_f64(),
            load.server.memory().unwrap_or_default() as f64 / 1e6,
            fleet.errors.load(Relaxed)
        );
        // Not being able to show it is no reason to stop.
        let _ = if err.is_terminal() {
            write!(err, "\r\x1b[K{text}").and_then(|()| err.flush())
        } else {
            writeln!(err, "{text}")
        };
    }
}
