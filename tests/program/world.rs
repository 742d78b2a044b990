//! Running the binary: to its end, or as a server that is asked and stopped.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// Longer than anything here takes on a busy machine.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// How a run ended.
#[derive(Debug)]
pub struct Ended {
    pub code: i32,
    pub out: String,
    pub err: String,
}

/// The binary with no settings from the environment.
pub fn program(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_proxycfg"));
    command.current_dir(folder).stdin(Stdio::null());
    for name in [
        "PROXYCFG_HTTP_ADDR",
        "CONSUL_HTTP_ADDR",
        "CONSUL_HTTP_TOKEN",
        "RUST_LOG",
    ] {
        command.env_remove(name);
    }
    command
}

/// Runs to the end.
pub fn run(folder: &Path, args: &[&str]) -> Ended {
    let output = program(folder).args(args).output().unwrap();
    Ended {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// A folder of its own, with files.
pub fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in files {
        write(folder.path(), name, content);
    }
    folder
}

/// Writes a file as careful tools do: beside it, then renamed.
pub fn write(folder: &Path, name: &str, content: &str) {
    let path = folder.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let beside = folder.join(".new");
    std::fs::write(&beside, content).unwrap();
    std::fs::rename(&beside, &path).unwrap();
}

/// Waits until a condition gives something.
pub fn until<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + DEADLINE;
    loop {
        if let Some(found) = condition() {
            return found;
        }
        assert!(Instant::now() < deadline, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The most memory that a process ever had, in KiB.
#[allow(dead_code, reason = "for some of the tests that share this file")]
pub fn height(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    number.unwrap().parse().unwrap()
}

/// The log of a server, a JSON object a line.
#[derive(Default)]
struct Log {
    lines: Mutex<Vec<Value>>,
    grown: Condvar,
}

/// A running `proxycfg serve` on free ports.
pub struct Server {
    child: Child,
    log: Arc<Log>,
    reader: Option<JoinHandle<()>>,
    pub http: SocketAddr,
    pub xds: SocketAddr,
}

impl Server {
    /// Starts it in a folder and waits until it serves.
    pub fn start(folder: &Path, args: &[&str]) -> Self {
        Self::start_as(program(folder), args)
    }

    /// Starts it by a command that ends with the binary.
    pub fn start_as(mut command: Command, args: &[&str]) -> Self {
        let mut child = command
            .args([
                "serve",
                "--http-addr",
                "127.0.0.1:0",
                "--xds-addr",
                "127.0.0.1:0",
            ])
            .args(["--node-name", "n1", "--log-json"])
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = Arc::new(Log::default());
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let into = log.clone();
        let reader = std::thread::spawn(move || {
            for line in stderr.lines() {
                let line = line.unwrap();
                let entry = serde_json::from_str(&line)
                    .unwrap_or_else(|_| panic!("no JSON in the log: {line}"));
                into.lines.lock().unwrap().push(entry);
                into.grown.notify_all();
            }
        });
        let unset = "127.0.0.1:0".parse().unwrap();
        let mut server = Self {
            child,
            log,
            reader: Some(reader),
            http: unset,
            xds: unset,
        };
        server.http = server.address("HTTP API is open");
        server.xds = server.address("xDS is open");
        server
    }

    fn address(&self, message: &str) -> SocketAddr {
        let entry = self.logged(message);
        entry["fields"]["address"]
            .as_str()
            .unwrap()
            .parse()
            .unwrap()
    }

    /// Waits for a log line whose message contains a text.
    pub fn logged(&self, text: &str) -> Value {
        let deadline = Instant::now() + DEADLINE;
        let mut lines = self.log.lines.lock().unwrap();
        loop {
            let mut all = lines.iter();
            if let Some(found) = all.find(|line| message(line).contains(text)) {
                return found.clone();
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "not in the log: {text}\n{lines:#?}");
            lines = self.log.grown.wait_timeout(lines, left).unwrap().0;
        }
    }

    /// How many log lines contain a text.
    pub fn count_logged(&self, text: &str) -> usize {
        let lines = self.log.lines.lock().unwrap();
        lines.iter().filter(|l| message(l).contains(text)).count()
    }

    /// All of the log so far.
    #[allow(dead_code, reason = "for the tests of security, which share this file")]
    pub fn whole_log(&self) -> String {
        let lines = self.log.lines.lock().unwrap();
        lines.iter().map(Value::to_string).collect()
    }

    /// Runs a client command against it.
    pub fn client(&self, args: &[&str]) -> Ended {
        let address = self.http.to_string();
        let folder = std::env::temp_dir();
        run(&folder, &[args, &["--http-addr", &address]].concat())
    }

    /// Gets JSON; `None` if there is no such thing.
    pub fn get(&self, path: &str) -> Option<Value> {
        let agent = agent();
        let mut response = agent.get(self.url(path)).call().unwrap();
        match response.status().as_u16() {
            200 => Some(response.body_mut().read_json().unwrap()),
            404 => None,
            status => panic!(
                "{path}: {status} {:?}",
                response.body_mut().read_to_string()
            ),
        }
    }

    /// Gets text.
    pub fn text(&self, path: &str) -> String {
        let mut response = agent().get(self.url(path)).call().unwrap();
        assert_eq!(response.status().as_u16(), 200, "{path}");
        response.body_mut().read_to_string().unwrap()
    }

    /// Puts JSON, which must be accepted.
    pub fn put(&self, path: &str, body: &Value) {
        let (status, text) = self.try_put(path, body).expect(path);
        assert_eq!(status, 200, "{path}: {text}");
    }

    /// Puts JSON; the status and the text of the answer. None if the server has gone away.
    pub fn try_put(&self, path: &str, body: &Value) -> Option<(u16, String)> {
        let mut response = agent().put(self.url(path)).send_json(body).ok()?;
        let text = response.body_mut().read_to_string().ok()?;
        Some((response.status().as_u16(), text))
    }

    /// The highest store index: the HTTP index of everything.
    pub fn store_index(&self) -> u64 {
        let mut response = agent().get(self.url("/v1/agent/services")).call().unwrap();
        assert_eq!(response.status().as_u16(), 200);
        let index = response.headers()["x-consul-index"]
            .to_str()
            .unwrap()
            .parse();
        // Read to its end, so that the connection isn't cut.
        response.body_mut().read_to_string().unwrap();
        index.unwrap()
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills it as a crash would, and waits until it is gone.
    pub fn kill(mut self) {
        // It may be dead already.
        let _ = self.child.kill();
        self.child.wait().unwrap();
        self.reader.take().unwrap().join().unwrap();
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.http)
    }

    /// Sends it a signal.
    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill")
            .arg(format!("-{name}"))
            .arg(self.child.id().to_string())
            .status()
            .unwrap();
        assert!(sent.success());
    }

    /// Asks it to end, and waits. What it wrote on standard output comes back.
    pub fn stop(mut self) -> (i32, String) {
        self.signal("TERM");
        let status = until("the server's end", || self.child.try_wait().unwrap());
        self.reader.take().unwrap().join().unwrap();
        let mut out = String::new();
        let mut stdout = self.child.stdout.take().unwrap();
        stdout.read_to_string(&mut out).unwrap();
        (status.code().unwrap_or(-1), out)
    }
}

fn message(line: &Value) -> &str {
    line["fields"]["message"].as_str().unwrap_or_default()
}

fn agent() -> ureq::Agent {
    ureq::Agent::config_builder()
        .http_status_as_error(false)
        .timeout_global(Some(DEADLINE))
        .proxy(None)
        .build()
        .new_agent()
}

impl Drop for Server {
    fn drop(&mut self) {
        // Fails if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
