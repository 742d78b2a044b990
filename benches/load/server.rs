//! The server under load: ours, another program, or one that runs already; and what its process costs.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use serde_json::Value;

/// How long a server may take to listen. A peer reads all resources first.
const START: Duration = Duration::from_secs(60);

pub struct Server {
    child: Option<Child>,
    pid: Option<u32>,
    pub xds: String,
    pub http: String,
}

impl Server {
    /// One that runs already.
    pub fn attach(xds: String, http: String, pid: Option<u32>) -> Self {
        Self {
            child: None,
            pid,
            xds,
            http,
        }
    }

    /// Starts `proxycfg serve` on free ports.
    pub fn start(program: &Path, extra: &[String]) -> Result<Self, String> {
        let mut command = Command::new(program);
        command
            .args([
                "serve",
                "--http-addr",
                "127.0.0.1:0",
                "--xds-addr",
                "127.0.0.1:0",
            ])
            .args(["--node-name", "load", "--log-json"])
            .args(["--log-level", "warn,proxycfg::server::serve=info"])
            .args(extra)
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = command
            .spawn()
            .map_err(|e| format!("{}: {e}", program.display()))?;
        let log = child.stderr.take().ok_or("no log")?;
        let (send, addresses) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(log).lines().map_while(Result::ok) {
                let entry: Value = serde_json::from_str(&line).unwrap_or_default();
                let fields = &entry["fields"];
                let address = fields["address"].as_str().map(str::to_owned);
                match (fields["message"].as_str(), address) {
                    (Some("xDS is open"), Some(address)) => drop(send.send((true, address))),
                    (Some("HTTP API is open"), Some(address)) => drop(send.send((false, address))),
                    _ if entry["level"] != "INFO" => eprintln!("server: {line}"),
                    _ => {}
                }
            }
        });
        let mut server = Self::of(child);
        while server.xds.is_empty() || server.http.is_empty() {
            let (xds, address) = addresses
                .recv_timeout(START)
                .map_err(|_| "the server doesn't start")?;
            *(if xds {
                &mut server.xds
            } else {
                &mut server.http
            }) = address;
        }
        Ok(server)
    }

    /// Starts a peer, which prints its addresses as a JSON line, `{"xds":"...","http":"..."}`, when it serves.
    pub fn peer(command: &str, resources: &Path) -> Result<Self, String> {
        let mut words = command.split_whitespace();
        let mut peer = Command::new(words.next().ok_or("no peer is named")?);
        peer.args(words)
            .arg("-resources")
            .arg(resources)
            .stdout(Stdio::piped());
        let mut child = peer.spawn().map_err(|e| format!("{command}: {e}"))?;
        let out = child.stdout.take().ok_or("no output")?;
        let (send, first) = mpsc::channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            let _ = BufReader::new(out).read_line(&mut line);
            let _ = send.send(line);
        });
        let mut server = Self::of(child);
        let line = first
            .recv_timeout(START)
            .map_err(|_| "the peer doesn't start")?;
        let addresses: Value =
            serde_json::from_str(&line).map_err(|e| format!("the peer says {line:?}: {e}"))?;
        let address = |name: &str| addresses[name].as_str().map(str::to_owned);
        server.xds = address("xds").ok_or("the peer names no xDS address")?;
        server.http = address("http").ok_or("the peer names no HTTP address")?;
        Ok(server)
    }

    fn of(child: Child) -> Self {
        Self {
            pid: Some(child.id()),
            child: Some(child),
            xds: String::new(),
            http: String::new(),
        }
    }

    /// The processor time that its threads have taken so far; what threads took that have ended since isn't in it.
    pub fn cpu(&self) -> Option<Duration> {
        let mut total = 0;
        for thread in std::fs::read_dir(format!("/proc/{}/task", self.pid?)).ok()? {
            // One that ends meanwhile has no file any more.
            let times = std::fs::read_to_string(thread.ok()?.path().join("schedstat"));
            let nanos = times.unwrap_or_default();
            total += nanos.split(' ').next()?.parse::<u64>().unwrap_or(0);
        }
        Some(Duration::from_nanos(total))
    }

    /// Its resident memory in bytes.
    pub fn memory(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid?)).ok()?;
        let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
        line.split_whitespace()
            .nth(1)?
            .parse::<u64>()
            .ok()
            .map(|kb| kb * 1024)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
