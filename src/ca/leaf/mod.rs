//! Keeps leaf certificates fresh (store.md 4.2, "Leaf manager").
//!
//! [`LeafManager`] is a thread around a table ([`table`]): the table decides what to sign next, the thread signs and
//! delivers, both outside the lock. See the room's documentation for the order of work.

mod keys;
mod random;
mod table;
mod timing;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use crossbeam_channel::{Receiver, Sender, bounded, select};
use parking_lot::Mutex;
use smol_str::SmolStr;

use self::table::{Issuer, Next, Now, Read, Table};
use super::{Authority, CaError};
use crate::clock::Clock;
use crate::model::{IssuedCert, LeafRequest};
use crate::sync::fault::{self, Point};

/// Gets each new certificate of a subscription, or the error that keeps it from being made (each different error
/// once). After an error the last certificate stays in use. Called on the manager's thread, under no lock; it must not
/// block, and may call the manager.
pub type LeafSink = Box<dyn Fn(Result<triomphe::Arc<IssuedCert>, CaError>) + Send + Sync>;

/// Keeps issued certificates over a restart, so that proxies go on with theirs.
pub trait LeafKeeper: Send + Sync {
    /// The certificate that an earlier process kept for a request. Given once.
    fn take(&self, request: &LeafRequest) -> Option<IssuedCert>;

    /// Is told each new certificate, before it is delivered; must not wait. One that gets lost is issued anew.
    fn keep(&self, request: &LeafRequest, certificate: &triomphe::Arc<IssuedCert>);
}

/// Names a subscription. Never used twice by one manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeafSubscription(u64);

/// Settings of a [`LeafManager`].
#[derive(Debug, Clone)]
pub struct LeafOptions {
    /// Renewals after a root change are spread over this time. 30 s.
    pub root_change_jitter: Duration,
    /// A key that nobody uses any more is kept for this time. 60 s.
    pub linger: Duration,
    /// Wall time is compared with the certificates' ends at least this often, because it may jump. 5 s.
    pub wall_check: Duration,
    /// Makes the random instants repeatable, for tests.
    pub seed: Option<u64>,
}

impl Default for LeafOptions {
    fn default() -> Self {
        Self {
            root_change_jitter: Duration::from_secs(30),
            linger: Duration::from_secs(60),
            wall_check: Duration::from_secs(5),
            seed: None,
        }
    }
}

/// What is known of one key, for status pages and metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeafStatus {
    /// The key.
    pub request: LeafRequest,
    /// Serial number of its certificate, if it has one.
    pub serial_number: Option<SmolStr>,
    /// End of validity of its certificate.
    pub valid_before: Option<SystemTime>,
    /// Why the last attempt failed.
    pub error: Option<CaError>,
    /// How many attempts failed in a row.
    pub failures: u32,
    /// How many subscriptions it has; with none it lingers.
    pub subscribers: usize,
}

/// Keeps one certificate per distinct request fresh, on a thread of its own (named `leaf-certs`).
///
/// Dropping it closes it.
pub struct LeafManager {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    authority: Arc<Authority>,
    clock: Arc<dyn Clock>,
    keeper: Option<Arc<dyn LeafKeeper>>,
    state: Mutex<State>,
    wake: Sender<()>,
}

struct State {
    table: Table,
    closed: bool,
}

impl LeafManager {
    /// Starts the manager and its thread. Use the clock of the authority.
    ///
    /// # Errors
    /// The system refuses the thread.
    pub fn start(
        authority: Arc<Authority>,
        clock: Arc<dyn Clock>,
        options: LeafOptions,
    ) -> Result<Self, CaError> {
        Self::start_with(authority, clock, options, None)
    }

    /// Starts the manager with what a keeper has kept: a certificate that is still valid, and of the active root's key, is
    /// delivered again instead of a new one.
    ///
    /// # Errors
    /// The system refuses the thread.
    pub fn start_with(
        authority: Arc<Authority>,
        clock: Arc<dyn Clock>,
        options: LeafOptions,
        keeper: Option<Arc<dyn LeafKeeper>>,
    ) -> Result<Self, CaError> {
        let (wake, woken) = bounded(1);
        let shared = Arc::new(Shared {
            authority,
            clock,
            keeper,
            state: Mutex::new(State {
                table: Table::new(options),
                closed: false,
            }),
            wake,
        });
        let for_thread = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("leaf-certs".into())
            .spawn(move || for_thread.run(&woken))
            .map_err(|problem| CaError::Thread {
                reason: problem.to_string(),
            })?;
        Ok(Self {
            shared,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Delivers the certificate of `request` to `sink`, now and after each renewal, until unsubscribed. Equal requests
    /// share one certificate. The first issue is never refused by a rate limit. After [`LeafManager::close`] the sink
    /// isn't called.
    pub fn subscribe(&self, request: &LeafRequest, sink: LeafSink) -> LeafSubscription {
        let now = self.shared.now();
        let subscription = self.shared.state.lock().table.subscribe(request, sink, now);
        self.shared.wake();
        subscription
    }

    /// Ends a subscription; false if it has ended already. A call of its sink that runs on the manager's thread at this
    /// moment may still finish; none starts afterwards.
    pub fn unsubscribe(&self, subscription: LeafSubscription) -> bool {
        let now = self.shared.now();
        let ended = self
            .shared
            .state
            .lock()
            .table
            .unsubscribe(subscription, now);
        self.shared.wake();
        ended.is_some()
    }

    /// The certificate of `request`, for a caller that doesn't stay. It is valid, also if nobody subscribes to it, and
    /// renewed first if it is due; the caller's thread signs if need be. Never waits. The key lingers for a moment.
    ///
    /// # Errors
    /// No valid certificate is there, and none can be signed; or the manager is closed.
    pub fn get(&self, request: &LeafRequest) -> Result<triomphe::Arc<IssuedCert>, CaError> {
        let shared = &self.shared;
        let issuer = shared.issuer();
        let read = {
            let mut state = shared.state.lock();
            if state.closed {
                return Err(CaError::Closed);
            }
            state.table.read(request, &issuer, shared.now())
        };
        let result = match read {
            Read::Ready(certificate) => Ok(certificate),
            Read::Sign { job, fallback } => {
                let result = shared.issue(&job.request);
                let issuer = shared.issuer();
                let mut state = shared.state.lock();
                state
                    .table
                    .complete(job.key, result.clone(), &issuer, shared.now());
                match (result, fallback) {
                    (Err(_), Some(valid)) => Ok(valid),
                    (result, _) => result,
                }
            }
        };
        shared.wake();
        result
    }

    /// Renews the certificate of `request` as soon as the rate limit allows, ahead of renewals that are merely due.
    /// False if there is no such key.
    pub fn renew(&self, request: &LeafRequest) -> bool {
        let now = self.shared.now();
        let known = self.shared.state.lock().table.renew(request, now);
        self.shared.wake();
        known
    }

    /// To be called after each change of the authority's roots or configuration. Certificates of another key than the
    /// active root's are renewed within the jitter window; failed ones are tried again.
    pub fn roots_changed(&self) {
        let issuer = self.shared.issuer();
        let now = self.shared.now();
        self.shared.state.lock().table.roots_changed(&issuer, now);
        self.shared.wake();
    }

    /// What is known of each key, in order of first use.
    #[must_use]
    pub fn statuses(&self) -> Vec<LeafStatus> {
        self.shared.state.lock().table.statuses()
    }

    /// Ends the thread and waits for it (not if called from a sink). No sink is called afterwards. Idempotent.
    pub fn close(&self) {
        self.shared.state.lock().closed = true;
        self.shared.wake();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread
            && thread.thread().id() != thread::current().id()
        {
            // Sinks are guarded, so a panic of the thread is a defect of this room.
            if thread.join().is_err() {
                tracing::error!("the thread that renews leaf certificates has panicked");
            }
        }
    }
}

impl Drop for LeafManager {
    fn drop(&mut self) {
        self.close();
    }
}

impl std::fmt::Debug for LeafManager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let keys = self.shared.state.lock().table.statuses().len();
        f.debug_struct("LeafManager")
            .field("keys", &keys)
            .finish_non_exhaustive()
    }
}

impl Shared {
    fn now(&self) -> Now {
        Now {
            wall: self.clock.now(),
            monotonic: self.clock.monotonic(),
        }
    }

    fn issuer(&self) -> Issuer {
        Issuer {
            signing_key_id: self.authority.active_signing_key_id(),
            csr_max_per_second: self.authority.csr_max_per_second(),
        }
    }

    /// The certificate that was kept for a request, if it is as good as a new one; else a new one.
    fn issue(&self, request: &LeafRequest) -> Result<triomphe::Arc<IssuedCert>, CaError> {
        if fault::hit(Point::Sign) {
            return Err(CaError::Crypto {
                doing: "signing",
                reason: "fault point: signing".into(),
            });
        }
        let Some(keeper) = &self.keeper else {
            return self.authority.issue(request).map(triomphe::Arc::new);
        };
        if let Some(kept) = keeper.take(request)
            && kept.is_valid_at(self.clock.now())
            && kept.authority_key_id == self.authority.active_signing_key_id()
        {
            return Ok(triomphe::Arc::new(kept));
        }
        let certificate = triomphe::Arc::new(self.authority.issue(request)?);
        keeper.keep(request, &certificate);
        Ok(certificate)
    }

    fn wake(&self) {
        // A full channel means that the thread is about to look anyway.
        let _ = self.wake.try_send(());
    }

    fn run(&self, woken: &Receiver<()>) {
        loop {
            let issuer = self.issuer();
            let (deliveries, next, looked_at) = {
                let mut state = self.state.lock();
                if state.closed {
                    return;
                }
                let now = self.now();
                let deliveries = state.table.take_deliveries(now);
                (deliveries, state.table.next(&issuer, now), now.monotonic)
            };
            for delivery in deliveries {
                if self.state.lock().closed {
                    return;
                }
                if catch_unwind(AssertUnwindSafe(|| delivery.make())).is_err() {
                    tracing::error!("a receiver of leaf certificates has panicked");
                }
            }
            match next {
                Next::Sign(job) => {
                    let result = self.issue(&job.request);
                    if let Err(error) = &result {
                        tracing::warn!(request = ?job.request, %error, "no leaf certificate");
                    }
                    let issuer = self.issuer();
                    let mut state = self.state.lock();
                    state.table.complete(job.key, result, &issuer, self.now());
                }
                Next::Sleep(until) => self.sleep(until, looked_at, woken),
            }
        }
    }

    /// Sleeps until the monotonic time `until`, or until woken.
    fn sleep(&self, until: Option<Duration>, looked_at: Duration, woken: &Receiver<()>) {
        let Some(until) = until else {
            // Woken, or the last sender is gone: look again either way.
            let _ = woken.recv();
            return;
        };
        let alarm = self.clock.alarm(until.saturating_sub(looked_at));
        // The alarm counts from when it was set. Had time passed before that, it would ring too late.
        const TOLERABLE: Duration = Duration::from_millis(10);
        if self.clock.monotonic().saturating_sub(looked_at) > TOLERABLE {
            return;
        }
        select! {
            recv(woken) -> _ => {}
            recv(alarm) -> _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
