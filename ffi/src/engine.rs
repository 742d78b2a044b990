//! Engines: their life, and what is written into their store.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use proxycfg::{
    CloseReport, Embedded, EmbeddedConfig, Manager, ProxyId, SnapshotRef, Transaction, WaitError,
    hcl, model,
};
use smol_str::SmolStr;

use crate::guard::{Code, ErrorHandle, Failure, Outcome, call, infallible};
use crate::handles::{self, Number};
use crate::maker::Maker;
use crate::memory::{self, Str};
use crate::queue::Queue;
use crate::registry::ProxyIdRef;
use crate::snapshot::SnapshotHandle;
use crate::source::{Source, SourceHandle};
use crate::watch::Watch;

/// An engine: a store, a certificate authority, and the proxies whose snapshots it keeps current. Made by
/// `proxycfg_engine_new`, freed with `proxycfg_engine_free`. Usable from any number of threads at the same time.
#[derive(Debug)]
pub struct EngineHandle(());

/// What holds for callers that no intention speaks of.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IntentionDefault {
    /// They may call.
    Allow = 0,
    /// They may not.
    Deny = 1,
}

/// How an engine is set up. Set `size` to `sizeof(proxycfg_engine_options)` and everything else to zero: zero is the
/// default of every field. The struct may grow in later versions.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct EngineOptions {
    /// `sizeof(proxycfg_engine_options)`.
    pub size: usize,
    /// The datacenter; empty means `dc1`.
    pub datacenter: Str,
    /// A `proxycfg_intention_default`.
    pub intention_default: i32,
    /// Worker threads, at most 1,024; 0 means one a core.
    pub workers: u32,
    /// Most threads that call into the host; callbacks that block hold one each. At most 65,536; 0 means 64.
    pub callback_threads: u32,
    /// Most snapshots a second over all proxies; 0 means no limit.
    pub updates_per_second: u32,
    /// Least time between two snapshots of one proxy, in milliseconds.
    pub min_publish_interval_ms: u64,
    /// How long a query outlives the last proxy that wants it, in milliseconds; 0 means 10,000.
    pub linger_ms: u64,
    /// A source of the host, which answers some kinds of query; NULL means none. A source serves one engine.
    pub source: *const SourceHandle,
    /// The kinds of query that go to `source`: the sum of `1 << PROXYCFG_QUERY_KIND_...` of each.
    pub source_kinds: u64,
}

/// The size of the first version of [`EngineOptions`], up to its last field.
const LEAST_OPTIONS: usize = std::mem::offset_of!(EngineOptions, source_kinds) + size_of::<u64>();

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            size: size_of::<Self>(),
            datacenter: Str::EMPTY,
            intention_default: 0,
            workers: 0,
            callback_threads: 0,
            updates_per_second: 0,
            min_publish_interval_ms: 0,
            linger_ms: 0,
            source: std::ptr::null(),
            source_kinds: 0,
        }
    }
}

/// An engine and what depends on it.
pub(crate) struct Engine {
    embedded: Embedded,
    pub datacenter: SmolStr,
    pub maker: Arc<Maker>,
    closed: AtomicBool,
    /// Handles that end with the engine.
    watches: Mutex<HashSet<Number>>,
    queues: Mutex<HashSet<Number>>,
}

impl Engine {
    pub fn manager(&self) -> &Manager {
        &self.embedded.manager
    }

    pub fn check_open(&self) -> Outcome<()> {
        if self.closed.load(Ordering::SeqCst) {
            return Err(Failure::new(Code::Closed, "the engine is closed"));
        }
        Ok(())
    }

    pub fn adopt_watch(&self, watch: Number) {
        self.watches.lock().insert(watch);
    }

    pub fn adopt_queue(&self, queue: Number) {
        self.queues.lock().insert(queue);
    }

    pub fn forget_watch(&self, watch: Number) {
        self.watches.lock().remove(&watch);
    }

    pub fn forget_queue(&self, queue: Number) {
        self.queues.lock().remove(&queue);
    }

    fn close(&self, deadline: Instant) -> CloseReport {
        self.closed.store(true, Ordering::SeqCst);
        self.embedded.close(deadline)
    }

    /// Ends what the host hasn't ended itself; its handles become invalid.
    fn end_children(&self) {
        let queues = std::mem::take(&mut *self.queues.lock());
        for queue in queues {
            // Gone already if the host frees it at this moment on another thread.
            if let Ok(queue) = handles::take::<Queue>(queue) {
                queue.close();
            }
        }
        let watches = std::mem::take(&mut *self.watches.lock());
        for watch in watches {
            if let Ok(watch) = handles::take::<Watch>(watch) {
                watch.cancel();
            }
        }
    }
}

/// The point in time that is so many milliseconds from now.
pub(crate) fn deadline(timeout_ms: u64) -> Instant {
    const VERY_LONG: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
    Instant::now() + Duration::from_millis(timeout_ms).min(VERY_LONG)
}

impl From<WaitError> for Failure {
    fn from(error: WaitError) -> Self {
        let code = match error {
            WaitError::TimedOut => Code::TimedOut,
            WaitError::Ended => Code::Closed,
            WaitError::EngineThread => Code::EngineThread,
        };
        Self::new(code, error.to_string())
    }
}

/// Starts an engine.
///
/// `options` may be NULL: all defaults. `engine` receives the handle.
// SAFETY: see `proxycfg_abi_version`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn proxycfg_engine_new(
    options: *const EngineOptions,
    engine: *mut *mut EngineHandle,
    error: *mut *mut ErrorHandle,
) -> Code {
    call("proxycfg_engine_new", error, || {
        // SAFETY: the host gives NULL or a place for a pointer.
        let engine = unsafe { memory::needed_out(engine, "engine") }?;
        let base = EngineOptions::default();
        let options = if options.is_null() {
            base
        } else {
            // SAFETY: all fields are numbers and pointers; the host gives a struct of the size that it says.
            unsafe { memory::sized(options, base, LEAST_OPTIONS, "options") }?
        };
        // SAFETY: the host gives a text.
        let config = unsafe { read_options(&options) }?;
        let source = if options.source.is_null() {
            None
        } else {
            Some(handles::get::<Source, _>(options.source)?.clone())
        };
        if source.is_none() && options.source_kinds != 0 {
            return Err(Failure::argument(
                "options.source_kinds is set, but options.source is NULL",
            ));
        }
        engine.set(start(config, source, options.source_kinds)?.handle());
        Ok(())
    })
}

fn start(mut config: EmbeddedConfig, source: Option<Arc<Source>>, kinds: u64) -> Outcome<Number> {
    if let Some(source) = &source {
        config.host = Some(source.attach(kinds)?);
    }
    let datacenter = config.engine.proxies.datacenter.clone();
    let embedded = match Embedded::start(config) {
        Ok(embedded) => embedded,
        Err(error) => {
            if let Some(source) = source {
                source.detach();
            }
            return Err(Failure::new(Code::System, error.to_string()));
        }
    };
    Ok(handles::put(Arc::new(Engine {
        embedded,
        datacenter,
        maker: Arc::default(),
        closed: AtomicBool::new(false),
        watches: Mutex::default(),
        queues: Mutex::default(),
    })))
}

/// # Safety
/// The texts are readable.
unsafe fn read_options(options: &EngineOptions) -> Outcome<EmbeddedConfig> {
    let mut config = EmbeddedConfig::default();
    // SAFETY: as the caller promises.
    let datacenter = unsafe { memory::text(options.datacenter, "options.datacenter") }?;
    let engine = &mut config.engine;
    if !datacenter.is_empty() {
        let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
        if datacenter.len() > model::MAX_NAME || !datacenter.chars().all(good) {
            return Err(Failure::argument(format!(
                "options.datacenter: {datacenter:?} must consist of a-z, 0-9, - and _, at most {} of them",
                model::MAX_NAME
            )));
        }
        engine.proxies.datacenter = datacenter.into();
    }
    engine.proxies.intention_default_allow = match options.intention_default {
        d if d == IntentionDefault::Allow as i32 => true,
        d if d == IntentionDefault::Deny as i32 => false,
        other => {
            return Err(Failure::argument(format!(
                "options.intention_default: {other} is no proxycfg_intention_default"
            )));
        }
    };
    for (name, given, most, field) in [
        ("workers", options.workers, 1_024, &mut engine.workers),
        (
            "callback_threads",
            options.callback_threads,
            65_536,
            &mut engine.callback_threads,
        ),
    ] {
        if given > most {
            return Err(Failure::argument(format!(
                "options.{name}: {given} is more than {most}"
            )));
        }
        if given > 0 {
            *field = given as usize;
        }
    }
    engine.updates_per_second = options.updates_per_second.into();
    // Times beyond a year are as good as a year, and can be calculated with.
    let time = |ms: u64| Duration::from_millis(ms).min(Duration::from_secs(365 * 24 * 3600));
    engine.min_publish_interval = time(options.min_publish_interval_ms);
    if options.linger_ms > 0 {
        engine.linger = time(options.linger_ms);
    }
    Ok(config)
}

/// Ends an engine: every watch ends, no callback is begun any more, sources are told that nobody wants their answers, and
/// threads are waited for, at most `timeout_ms` milliseconds. The handle stays valid: what remains can be read, and
/// watches and queues can be freed. Closing twice is fine. Called from a callback it doesn't wait.
///
/// `stuck_threads` (may be NULL) receives the number of threads that were still busy at the end: callbacks that block.
// SAFETY: see `proxycfg_abi_version`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn proxycfg_engine_close(
    engine: *const EngineHandle,
    timeout_ms: u64,
    stuck_threads: *mut usize,
    error: *mut *mut ErrorHandle,
) -> Code {
    call("proxycfg_engine_close", error, || {
        // SAFETY: the host gives NULL or a place for a number.
        let stuck_threads = unsafe { memory::out(stuck_threads) };
        let engine = handles::get::<Engine, _>(engine)?;
        let report = engine.close(deadline(timeout_ms));
        if let Some(stuck_threads) = stuck_threads {
            stuck_threads.set(report.stuck_threads);
        }
        Ok(())
    })
}

/// Frees an engine, and with it all its watches and queues that haven't been freed: their handles become invalid, their
/// destructors run. If it hasn't been closed it is closed first, waiting at most 10 seconds. Snapshots stay valid until
/// they are released. Called from a callback it doesn't wait. NULL is fine; freeing one twice does nothing.
// SAFETY: see `proxycfg_abi_version`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn proxycfg_engine_free(engine: *mut EngineHandle) {
    infallible("proxycfg_engine_free", || {
        let Ok(engine) = handles::take::<Engine>(Number::of(engine)) else {
            return;
        };
        let report = engine.close(deadline(10_000));
        if report.stuck_threads > 0 {
            tracing::warn!(
                threads = report.stuck_threads,
                "an engine was freed while callbacks are blocked"
            );
        }
        engine.end_children();
    });
}

/// Writes into the store: a transaction of registrations, config entries and checks, all or nothing.
///
/// `transaction` is JSON: `{"Ops": [{"Register": {...}}, {"Deregister": {...}}, {"Config": {...}}, {"DeleteConfig":
/// {"Kind": ..., "Name": ...}}, {"Check": {...}}]}`, each in the form of Consul's catalog and config API.
/// `store_index` (may be NULL) receives the store index afterwards; a transaction that changes nothing leaves it. A
/// transaction with a mistake is `PROXYCFG_RESULT_REFUSED`, and the message lists all problems with their places.
// SAFETY: see `proxycfg_abi_version`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn proxycfg_engine_apply(
    engine: *const EngineHandle,
    transaction: Str,
    store_index: *mut u64,
    error: *mut *mut ErrorHandle,
) -> Code {
    call("proxycfg_engine_apply", error, || {
        // SAFETY: the host gives NULL or a place for a number.
        let store_index = unsafe { memory::out(store_index) };
        let engine = handles::get::<Engine, _>(engine)?;
        engine.check_open()?;
        // SAFETY: the host gives a text.
        let json = unsafe { memory::text(transaction, "transaction") }?;
        let index = apply(&engine, json)?;
        if let Some(store_index) = store_index {
            store_index.set(index);
        }
        Ok(())
    })
}

fn apply(engine: &Engine, json: &str) -> Outcome<u64> {
    let refused = |message: String| Failure::new(Code::Refused, message);
    let document = hcl::parse_json(json.as_bytes())
        .map_err(|e| Failure::argument(format!("transaction: {e}")))?;
    let (mut transaction, notes) =
        model::Transaction::read(&document).map_err(|problems| refused(problems.text()))?;
    for warning in &notes.warnings {
        tracing::warn!(problem = %warning, "a transaction says something without effect");
    }
    transaction
        .place_in(&engine.datacenter)
        .map_err(|problems| refused(problems.join("\n")))?;
    let transaction = Transaction::try_from(transaction).map_err(|e| refused(e.to_string()))?;
    let applied = engine
        .embedded
        .store
        .apply(transaction)
        .map_err(|e| refused(e.to_string()))?;
    Ok(applied.index)
}

/// Waits until everything that can be computed from what was written up to a store index has reached the snapshots;
/// proxies that wait for answers of a source, or are held back by a rate limit, are excepted. `timeout_ms` is the most
/// that it waits, in milliseconds.
// SAFETY: see `proxycfg_abi_version`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn proxycfg_engine_wait_index(
    engine: *const EngineHandle,
    store_index: u64,
    timeout_ms: u64,
    error: *mut *mut ErrorHandle,
) -> Code {
    call("proxycfg_engine_wait_index", error, || {
        let engine = handles::get::<Engine, _>(engine)?;
        engine
            .manager()
            .wait_index(store_index, deadline(timeout_ms))?;
        Ok(())
    })
}

/// Waits until a proxy has a snapshot, at most `timeout_ms` milliseconds. `snapshot` (may be NULL) receives it; release it
/// with `proxycfg_snapshot_release`.
// SAFETY: see `proxycfg_abi_version`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn proxycfg_engine_wait_ready(
    engine: *const EngineHandle,
    id: *const ProxyIdRef,
    timeout_ms: u64,
    snapshot: *mut *const SnapshotHandle,
    error: *mut *mut ErrorHandle,
) -> Code {
    call("proxycfg_engine_wait_ready", error, || {
        // SAFETY: the host gives NULL or a place for a pointer.
        let snapshot = unsafe { memory::out(snapshot) };
        let engine = handles::get::<Engine, _>(engine)?;
        // SAFETY: the host gives NULL or an id.
        let id = unsafe { ProxyIdRef::read(id) }?;
        let ready = wait_ready(&engine, &id, timeout_ms)?;
        if let Some(snapshot) = snapshot {
            snapshot.set(engine.maker.wrap(ready).into_handle());
        }
        Ok(())
    })
}

fn wait_ready(engine: &Engine, id: &ProxyId, timeout_ms: u64) -> Outcome<SnapshotRef> {
    let manager = engine.manager();
    let error = match manager.wait_ready(id, deadline(timeout_ms)) {
        Ok(snapshot) => return Ok(snapshot),
        Err(error) => error,
    };
    let mut failure = Failure::from(error);
    if error == WaitError::TimedOut {
        failure.message = match manager.status(id) {
            Some(status) if status.source.is_some() => {
                let issues: Vec<String> = status
                    .issues
                    .iter()
                    .map(|issue| match &issue.error {
                        Some(error) => format!("{}: {error}", issue.subject),
                        None => issue.subject.clone(),
                    })
                    .collect();
                format!("timed out: the proxy {id} waits for {}", issues.join("; "))
            }
            _ => format!("timed out: the proxy {id} isn't registered"),
        };
    }
    Err(failure)
}
