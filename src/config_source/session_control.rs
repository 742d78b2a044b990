//! Runs a session limiter: drains, and works out the limit from the number of servers and proxies (engine.md 5.7).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_channel::{Receiver, Sender, bounded, never, select};

use crate::clock::Clock;
use crate::model::ServiceKind;
use crate::store::{ChangeFeed, Changes, Key, Store, StoreSnapshot};
use crate::sync::Background;

use super::sessions::{SessionLimiter, drain_rate, max_sessions};

/// The kinds of proxies, whose instances are counted.
const KINDS: [ServiceKind; 5] = [
    ServiceKind::ConnectProxy,
    ServiceKind::MeshGateway,
    ServiceKind::TerminatingGateway,
    ServiceKind::IngressGateway,
    ServiceKind::ApiGateway,
];

/// The thread that runs a limiter. Dropping it ends the thread; the limit then stays, and nothing is drained.
pub struct SessionControl {
    // First, so that the thread has ended before the channel to it closes.
    thread: Background,
    shared: Arc<Shared>,
    told: Sender<()>,
}

#[derive(Default)]
struct Shared {
    servers: AtomicUsize,
    /// The last limit that was worked out; 0 if there was none.
    ideal: AtomicUsize,
}

impl SessionControl {
    /// Starts draining. With a number of servers above 0 the limit follows the number of proxies in the store; with 0 it is
    /// left as it is.
    ///
    /// # Errors
    /// There is no thread.
    pub fn start(
        limiter: SessionLimiter,
        store: &Store,
        clock: Arc<dyn Clock>,
        servers: usize,
    ) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            servers: AtomicUsize::new(servers),
            ideal: AtomicUsize::new(0),
        });
        let (tell, told) = bounded(1);
        // The feed is opened before the first count, so that no commit falls between.
        let changes = store.changes();
        let uncounted = Some(store.snapshot());
        let control = Control {
            limiter,
            clock,
            changes,
            uncounted,
            proxies: 0,
            shared: shared.clone(),
            rate: None,
        };
        let thread = Background::spawn("proxycfg-sessions", move |stopped| {
            control.run(stopped, &told);
        })?;
        Ok(Self {
            shared,
            told: tell,
            thread,
        })
    }

    /// Tells the number of healthy servers. 0 means unknown: the limit stays as it is.
    pub fn set_servers(&self, servers: usize) {
        self.shared.servers.store(servers, Ordering::SeqCst);
        // Full means that a token lies there already.
        let _ = self.told.try_send(());
    }

    /// The last limit that was worked out, for the gauge `xds.server.idealStreamsMax`; 0 if there was none.
    #[must_use]
    pub fn ideal_max(&self) -> usize {
        self.shared.ideal.load(Ordering::SeqCst)
    }

    /// Ends the thread. Doing it twice is fine.
    pub fn stop(&self) {
        self.thread.stop();
    }
}

impl std::fmt::Debug for SessionControl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SessionControl")
            .field("ideal_max", &self.ideal_max())
            .finish_non_exhaustive()
    }
}

struct Control {
    limiter: SessionLimiter,
    clock: Arc<dyn Clock>,
    changes: ChangeFeed,
    /// The newest state, if it may have another number of proxies. They are counted only where a limit depends on it, since
    /// that takes as long as there are proxies.
    uncounted: Option<StoreSnapshot>,
    proxies: usize,
    shared: Arc<Shared>,
    rate: Option<u32>,
}

impl Control {
    fn run(mut self, stopped: &Receiver<()>, told: &Receiver<()>) {
        loop {
            self.set_limit();
            let now = self.clock.monotonic();
            let timer = match self.limiter.drain(now) {
                Some(due) => self.clock.alarm(due.saturating_sub(now)),
                None => never(),
            };
            select! {
                recv(stopped) -> _ => return,
                recv(told) -> _ => {}
                recv(self.limiter.woken()) -> _ => {}
                recv(timer) -> _ => {}
                recv(self.changes.woken()) -> _ => {
                    if let Some(changes) = self.changes.take()
                        && concerns_proxies(&changes)
                    {
                        self.uncounted = Some(changes.snapshot);
                    }
                }
            }
        }
    }

    /// Sets limit and rate where they differ from what was set last.
    fn set_limit(&mut self) {
        let servers = self.shared.servers.load(Ordering::SeqCst);
        if servers == 0 {
            return;
        }
        if let Some(state) = self.uncounted.take() {
            self.proxies = count(&state);
        }
        let rate = drain_rate(self.proxies);
        if self.rate != Some(rate) {
            self.rate = Some(rate);
            self.limiter.set_drain_rate(Some(f64::from(rate)));
        }
        if let Some(max) = max_sessions(self.proxies, servers)
            && self.shared.ideal.swap(max, Ordering::SeqCst) != max
        {
            self.limiter.set_max_sessions(max);
        }
    }
}

fn concerns_proxies(changes: &Changes) -> bool {
    let of_proxies = |key: &Key| matches!(key, Key::Kind { kind, .. } if kind.is_proxy());
    changes.everything || changes.keys.iter().any(of_proxies)
}

/// How many proxies the local catalog has.
fn count(store: &StoreSnapshot) -> usize {
    let reader = store.reader();
    KINDS
        .iter()
        .map(|kind| reader.instances_of_kind("", *kind).len())
        .sum()
}
