//! What the simulated Envoys of a run share: who they are, which changes were made when, and what they have seen of them.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

use base64::Engine as _;
use parking_lot::Mutex;
use proxycfg::xds::ResourceType as Kind;
use serde_json::json;
use smol_str::SmolStr;
use tokio::sync::Notify;

use crate::wire::{Item, References};

/// Errors that are shown; the others are counted.
const SHOWN: u64 = 5;

pub struct Fleet {
    started: Instant,
    /// When each change was begun, in nanoseconds since the start.
    changes: Vec<AtomicU64>,
    /// The change whose arrival is awaited, and how many hold it or a later one.
    awaited: AtomicU64,
    holding: AtomicU64,
    ready: AtomicU64,
    pub progress: Notify,
    pub responses: AtomicU64,
    pub resources: AtomicU64,
    pub bytes: AtomicU64,
    pub errors: AtomicU64,
    pub pushes: AtomicU64,
    first: Mutex<Vec<Duration>>,
    seen: Mutex<Vec<Duration>>,
    pub references: References,
    kept: Option<Mutex<Kept>>,
}

/// All resources that proxies were given, each content once.
#[derive(Default)]
struct Kept {
    numbers: HashMap<(Kind, SmolStr, SmolStr), usize>,
    resources: Vec<(Kind, SmolStr, SmolStr, Vec<u8>)>,
    of: HashMap<usize, Vec<usize>>,
}

impl Fleet {
    /// `most` changes at most; `keep` says whether to remember the resources for [`Fleet::write_kept`].
    pub fn new(most: usize, keep: bool) -> Self {
        Self {
            started: Instant::now(),
            changes: (0..=most).map(|_| AtomicU64::new(0)).collect(),
            awaited: AtomicU64::new(u64::MAX),
            holding: AtomicU64::new(0),
            ready: AtomicU64::new(0),
            progress: Notify::new(),
            responses: AtomicU64::new(0),
            resources: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            pushes: AtomicU64::new(0),
            first: Mutex::default(),
            seen: Mutex::default(),
            references: References::default(),
            kept: keep.then(Mutex::default),
        }
    }

    pub fn id_of(&self, proxy: usize) -> String {
        format!("web-{proxy}-sidecar-proxy")
    }

    pub fn node_of(&self, proxy: usize) -> String {
        format!("web-node-{proxy}")
    }

    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    pub fn failed(&self, error: &str) {
        if self.errors.fetch_add(1, Relaxed) < SHOWN {
            eprintln!("load: {error}");
        }
        self.progress.notify_one();
    }

    /// A client has everything that it asked for.
    pub fn configured(&self, began: Instant, now: Instant) {
        self.first.lock().push(now.saturating_duration_since(began));
        self.ready.fetch_add(1, SeqCst);
        self.progress.notify_one();
    }

    /// How many have ever become configured.
    pub fn ready(&self) -> u64 {
        self.ready.load(SeqCst)
    }

    /// The change begins now; [`Fleet::holding`] counts from 0 for it.
    pub fn begin(&self, change: u64) {
        self.holding.store(0, SeqCst);
        self.awaited.store(change, SeqCst);
        let now = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let place = self
            .changes
            .get(usize::try_from(change).unwrap_or(usize::MAX));
        if let Some(place) = place {
            place.store(now, SeqCst);
        }
    }

    /// How many hold the change that began last.
    pub fn holding(&self) -> u64 {
        self.holding.load(SeqCst)
    }

    /// A client has got a change. One that it got while it was still being configured says nothing about pushes.
    pub fn holds(&self, change: u64, now: Instant, configured: bool) {
        let place = self
            .changes
            .get(usize::try_from(change).unwrap_or(usize::MAX));
        let begun = place.map_or(0, |place| place.load(SeqCst));
        if begun == 0 {
            return;
        }
        if configured {
            let now = now.saturating_duration_since(self.started);
            let took = now.saturating_sub(Duration::from_nanos(begun));
            self.seen.lock().push(took);
            self.pushes.fetch_add(1, Relaxed);
        }
        if change == self.awaited.load(SeqCst) {
            self.holding.fetch_add(1, SeqCst);
            self.progress.notify_one();
        }
    }

    /// The times to the first configuration since the last call.
    pub fn take_first(&self) -> Vec<Duration> {
        sorted(std::mem::take(&mut *self.first.lock()))
    }

    /// The times from changes to their arrival since the last call.
    pub fn take_seen(&self) -> Vec<Duration> {
        sorted(std::mem::take(&mut *self.seen.lock()))
    }

    /// Remembers a resource that a proxy was given, if that is wanted.
    pub fn keep(&self, proxy: usize, kind: Kind, item: &Item<'_>) {
        let Some(kept) = &self.kept else { return };
        let mut kept = kept.lock();
        let key = (kind, SmolStr::new(item.name), SmolStr::new(item.version));
        let next = kept.resources.len();
        let number = *kept.numbers.entry(key).or_insert(next);
        if number == next {
            let (name, version) = (SmolStr::new(item.name), SmolStr::new(item.version));
            kept.resources
                .push((kind, name, version, item.value.to_vec()));
        }
        kept.of.entry(proxy).or_default().push(number);
    }

    /// Takes over what another fleet remembers.
    pub fn absorb(&self, other: &Self) {
        let Some(kept) = &other.kept else { return };
        let kept = kept.lock();
        for (proxy, numbers) in &kept.of {
            for number in numbers {
                let Some((kind, name, version, value)) = kept.resources.get(*number) else {
                    continue;
                };
                self.keep(
                    *proxy,
                    *kind,
                    &Item {
                        name,
                        version,
                        value,
                    },
                );
            }
        }
    }

    /// Writes what proxies were given: a JSON object a line, resources first.
    pub fn write_kept(&self, to: &Path) -> Result<(), String> {
        let Some(kept) = &self.kept else {
            return Ok(());
        };
        let kept = kept.lock();
        let mut out = String::new();
        for (kind, name, _, value) in &kept.resources {
            let value = base64::engine::general_purpose::STANDARD.encode(value);
            let _ = writeln!(
                out,
                "{}",
                json!({"type": kind.url(), "name": name, "value": value})
            );
        }
        for (proxy, numbers) in &kept.of {
            let _ = writeln!(
                out,
                "{}",
                json!({"node": self.id_of(*proxy), "resources": numbers})
            );
        }
        std::fs::write(to, out).map_err(|e| format!("can't write {}: {e}", to.display()))
    }
}

fn sorted(mut times: Vec<Duration>) -> Vec<Duration> {
    times.sort_unstable();
    times
}

/// The time that so many percent of sorted times don't exceed.
pub fn percentile(times: &[Duration], percent: usize) -> Duration {
    let at = (times.len() * percent / 100).min(times.len().saturating_sub(1));
    times.get(at).copied().unwrap_or_default()
}
