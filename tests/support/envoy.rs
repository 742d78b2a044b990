//! A real Envoy, and its admin interface.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::Value;

use super::{DEADLINE, http, wait_until};

/// An Envoy that runs until it is dropped.
pub struct Envoy {
    name: String,
    child: Child,
    admin: String,
    log: PathBuf,
}

/// The Envoy binary, found or installed by `.ci/envoy`.
///
/// # Panics
/// There is none; the message says what to do.
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join(".ci/envoy");
        let output = Command::new(&script)
            .stderr(Stdio::piped())
            .output()
            .unwrap_or_else(|error| panic!("{}: {error}", script.display()));
        assert!(
            output.status.success(),
            "no Envoy for the tests with real Envoys: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        PathBuf::from(String::from_utf8_lossy(&output.stdout).trim())
    })
}

/// Lets Envoy check a bootstrap without serving.
///
/// # Errors
/// What Envoy said against it.
pub fn validate(bootstrap: &Value, name: &str) -> Result<(), String> {
    let (config, log) = files(bootstrap, name);
    let status = command(&config, &log)
        .args(["--mode", "validate"])
        .status()
        .expect("the binary runs");
    if status.success() {
        Ok(())
    } else {
        Err(tail(&log))
    }
}

impl Envoy {
    /// Starts an Envoy with a bootstrap, which must name the admin address. `name` is for messages and files.
    ///
    /// # Panics
    /// There is no Envoy, or it ends before its admin interface answers.
    pub fn start(bootstrap: &Value, name: &str) -> Self {
        Self::start_with(bootstrap, name, &[])
    }

    /// [`Envoy::start`] with more arguments.
    pub fn start_with(bootstrap: &Value, name: &str, arguments: &[&str]) -> Self {
        let socket = &bootstrap["admin"]["address"]["socket_address"];
        let (Some(address), Some(port)) =
            (socket["address"].as_str(), socket["port_value"].as_u64())
        else {
            panic!("{name}: the bootstrap names no admin address");
        };
        let (config, log) = files(bootstrap, name);
        let child = command(&config, &log)
            .args(arguments)
            .spawn()
            .expect("the binary runs");
        let mut envoy = Self {
            name: name.to_owned(),
            child,
            admin: format!("{address}:{port}"),
            log,
        };
        wait_until(&format!("{name}: admin interface"), DEADLINE, || {
            if let Ok(Some(status)) = envoy.child.try_wait() {
                panic!("{name} ended with {status}:\n{}", tail(&envoy.log));
            }
            envoy.admin_get("/server_info").map(drop)
        });
        envoy
    }

    /// Whether it serves: `/ready` says LIVE.
    pub fn ready(&self) -> bool {
        http::get(&self.admin, "/ready").is_ok_and(|response| response.status == 200)
    }

    /// Waits until it serves.
    pub fn wait_ready(&self) {
        self.wait_until("ready", DEADLINE, |envoy| {
            if envoy.ready() {
                Ok(())
            } else {
                Err("not ready".to_owned())
            }
        });
    }

    /// Counters and gauges whose names match a regular expression.
    pub fn stats(&self, filter: &str) -> BTreeMap<String, u64> {
        // Only what a query string can't hold as it is.
        let filter: String = filter
            .chars()
            .map(|c| match c {
                '%' | '&' | '+' | '#' | ' ' | '|' | '^' | '\\' => format!("%{:02X}", u32::from(c)),
                c => c.to_string(),
            })
            .collect();
        let text = self.admin_text(&format!("/stats?filter={filter}"));
        text.lines()
            .filter_map(|line| {
                let (name, value) = line.rsplit_once(": ")?;
                Some((name.to_owned(), value.parse().ok()?))
            })
            .collect()
    }

    /// One counter or gauge; 0 if there is none of that name.
    pub fn stat(&self, name: &str) -> u64 {
        let filter = format!("^{}$", name.replace('.', "\\."));
        self.stats(&filter).get(name).copied().unwrap_or(0)
    }

    /// `/config_dump` with endpoints.
    pub fn config_dump(&self) -> Value {
        self.admin_json("/config_dump?include_eds")
    }

    /// `/clusters` as JSON.
    pub fn clusters(&self) -> Value {
        self.admin_json("/clusters?format=json")
    }

    /// `/listeners` as JSON.
    pub fn listeners(&self) -> Value {
        self.admin_json("/listeners?format=json")
    }

    /// `/certs`.
    pub fn certs(&self) -> Value {
        self.admin_json("/certs")
    }

    /// `address:port` of the admin interface.
    pub fn admin(&self) -> &str {
        &self.admin
    }

    /// The file that it logs to.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Panics with its log if it has refused any configuration.
    pub fn assert_nothing_rejected(&self) {
        let rejected: Vec<_> = self
            .stats("update_rejected")
            .into_iter()
            .filter(|(_, count)| *count > 0)
            .collect();
        assert!(
            rejected.is_empty(),
            "{} refused configuration: {rejected:?}\n{}",
            self.name,
            tail(&self.log)
        );
    }

    /// Asks again and again until there is an answer.
    ///
    /// # Panics
    /// There is none within `deadline`: with the last reason and the end of the log.
    pub fn wait_until<T>(
        &self,
        what: &str,
        deadline: Duration,
        mut ask: impl FnMut(&Self) -> Result<T, String>,
    ) -> T {
        wait_until(&format!("{} {what}", self.name), deadline, || {
            ask(self).map_err(|reason| {
                format!(
                    "{reason}\nEnd of {}:\n{}",
                    self.log.display(),
                    tail(&self.log)
                )
            })
        })
    }

    fn admin_get(&self, path: &str) -> Result<String, String> {
        let response = http::get(&self.admin, path).map_err(|error| error.to_string())?;
        if response.status == 200 {
            Ok(response.body)
        } else {
            Err(format!("{}: {}", response.status, response.body))
        }
    }

    /// The text at a path of the admin interface.
    pub fn admin_text(&self, path: &str) -> String {
        self.admin_get(path).unwrap_or_else(|error| {
            panic!("{}: GET {path}: {error}\n{}", self.name, tail(&self.log))
        })
    }

    /// The JSON at a path of the admin interface.
    pub fn admin_json(&self, path: &str) -> Value {
        serde_json::from_str(&self.admin_text(path)).expect("the admin interface answers JSON")
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An Envoy of its own: without hot restart it shares no memory with others, so that it needs no base id.
fn command(config: &Path, log: &Path) -> Command {
    let output = File::create(log).expect("the log can be written");
    let mut command = Command::new(binary());
    command
        .arg("--config-path")
        .arg(config)
        .args([
            "--disable-hot-restart",
            "--concurrency",
            "1",
            "--log-level",
            "info",
            // Access logs.
            "--file-flush-interval-msec",
            "100",
            // As `proxycfg envoy` does.
            "--drain-strategy",
            "immediate",
        ])
        .stdin(Stdio::null())
        .stdout(output.try_clone().expect("a file can be shared"))
        .stderr(output);
    command
}

/// The bootstrap's file and the log's, both under `target`.
fn files(bootstrap: &Value, name: &str) -> (PathBuf, PathBuf) {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("envoy");
    std::fs::create_dir_all(&folder).expect("the folder can be made");
    let stem = format!(
        "{name}-{}-{}",
        std::process::id(),
        COUNT.fetch_add(1, Ordering::SeqCst)
    );
    let config = folder.join(format!("{stem}.json"));
    std::fs::write(&config, bootstrap.to_string()).expect("the bootstrap can be written");
    (config, folder.join(format!("{stem}.log")))
}

/// The last lines of a log; the lists of extensions that Envoy starts with are cut.
fn tail(log: &Path) -> String {
    let text = std::fs::read(log)
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .unwrap_or_default();
    let lines: Vec<String> = text
        .lines()
        .map(|line| {
            let most = if line.contains("][info][") {
                200
            } else {
                usize::MAX
            };
            line.chars().take(most).collect()
        })
        .collect();
    lines[lines.len().saturating_sub(25)..].join("\n")
}
