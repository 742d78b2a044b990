//! The catalog config source: proxies of other nodes, registered while somebody watches them (engine.md 5.2 to 5.6).
//!
//! For each watched id there is one [`Followed`]: it counts its streams, and waits on the store for its catalog record.
//! When the record is there and is a proxy's, the id is registered with the engine, which follows the record's content by
//! itself (decision E3); when it is gone, it is deregistered, and the streams stay. When it turns into something else, the
//! streams are told to end. All of this is done under the lock of that one id, so ids never hold each other up.
//!
//! The last stream's end starts a time of grace, after which the id is deregistered (decision E8), so that a client that
//! reconnects finds everything warm. One thread serves all ids: it is woken by the store for single ids, and by the clock.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded, never, select};
use foldhash::fast::RandomState;
use parking_lot::Mutex;

use crate::clock::Clock;
use crate::engine::{Manager, RegisterOptions};
use crate::model::{ProxyId, ProxySource, ServiceKind};
use crate::proxy::Registration;
use crate::store::WaitHandle;
use crate::sync::Background;
use crate::sync::fault::{self, Point};

use super::local::LocalConfigSource;
use super::sessions::SessionLimiter;
use super::watch::{ConfigSource, Signal, SourceWatch, WatchError};
use super::{RETRY, contain};

/// How a catalog config source is set up.
#[derive(Debug, Clone)]
pub struct CatalogOptions {
    /// How long a proxy stays registered after its last stream has ended. With zero it is deregistered before the cancel of
    /// that stream returns.
    pub grace: Duration,
}

impl Default for CatalogOptions {
    fn default() -> Self {
        Self {
            grace: Duration::from_secs(10),
        }
    }
}

/// Hands out the snapshots of proxies anywhere in the catalog, and delegates those of this server's own agent to the local
/// source. Dropping it shuts it down.
pub struct CatalogConfigSource {
    shared: Arc<Shared>,
    thread: Background,
}

struct Shared {
    manager: Manager,
    local: LocalConfigSource,
    limiter: SessionLimiter,
    clock: Arc<dyn Clock>,
    grace: Duration,
    table: Mutex<Table>,
    inbox: Mutex<Inbox>,
    wake: Sender<()>,
}

#[derive(Default)]
struct Table {
    followed: HashMap<ProxyId, Arc<Followed>, RandomState>,
    shut_down: bool,
}

/// What the thread is to look at.
#[derive(Default)]
struct Inbox {
    /// Ids whose record has changed.
    changed: BTreeSet<ProxyId>,
    /// Ids whose last stream has ended, and until when they have grace.
    released: Vec<(Duration, ProxyId)>,
}

/// A watched id.
struct Followed {
    id: ProxyId,
    terminated: Signal,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    streams: usize,
    /// The wait for a change of the record; there is never more than one.
    wait: Option<WaitHandle>,
    /// Without streams: when to deregister.
    release_at: Option<Duration>,
    /// Deregistered for good. A new stream begins with a new one.
    over: bool,
}

impl CatalogConfigSource {
    /// Starts a source on a manager's store.
    ///
    /// # Errors
    /// There is no thread.
    pub fn start(
        manager: Manager,
        local: LocalConfigSource,
        limiter: SessionLimiter,
        options: &CatalogOptions,
    ) -> std::io::Result<Self> {
        let (wake, woken) = bounded(1);
        let shared = Arc::new(Shared {
            clock: manager.clock().clone(),
            manager,
            local,
            limiter,
            grace: options.grace,
            table: Mutex::default(),
            inbox: Mutex::default(),
            wake,
        });
        let of_thread = shared.clone();
        let thread = Background::spawn("proxycfg-catalog", move |stopped| {
            of_thread.run(stopped, &woken);
        })?;
        Ok(Self { shared, thread })
    }

    /// How many ids are followed, those within their grace included.
    #[must_use]
    pub fn followed(&self) -> usize {
        self.shared.table.lock().followed.len()
    }

    /// Stops following: everything is deregistered and the streams are told to end. Their cancels still work. Doing it
    /// twice is fine.
    pub fn shut_down(&self) {
        let followed: Vec<Arc<Followed>> = {
            let mut table = self.shared.table.lock();
            table.shut_down = true;
            table.followed.drain().map(|(_, f)| f).collect()
        };
        for followed in followed {
            let mut state = followed.state.lock();
            self.shared.finish(&followed, &mut state);
            drop(state);
            followed.terminated.give();
        }
        self.thread.stop();
    }
}

impl ConfigSource for CatalogConfigSource {
    fn watch(&self, id: &ProxyId) -> Result<SourceWatch, WatchError> {
        let shared = &self.shared;
        if shared.local.serves(id) {
            return Ok(shared.local.watch_local(id));
        }
        let session = shared.limiter.begin()?;
        // Before anything is registered, so that no snapshot is missed.
        let watch = shared.manager.watch(id);
        let lease = shared.join(id)?;
        Ok(SourceWatch::new(watch, Some(lease), Some(session)))
    }
}

impl Drop for CatalogConfigSource {
    fn drop(&mut self) {
        self.shut_down();
    }
}

impl fmt::Debug for CatalogConfigSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CatalogConfigSource")
            .field("followed", &self.followed())
            .finish_non_exhaustive()
    }
}

/// A stream's share in a followed id; dropping it gives the share back.
pub(super) struct Lease {
    shared: Arc<Shared>,
    followed: Arc<Followed>,
}

impl Lease {
    pub fn terminated(&self) -> &Signal {
        &self.followed.terminated
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.shared.leave(&self.followed);
    }
}

impl Shared {
    /// Counts a stream in and makes sure that the id is followed. Also registers anew what has ended by itself (engine.md
    /// 5.5): a registration that is alive isn't touched by that.
    fn join(self: &Arc<Self>, id: &ProxyId) -> Result<Lease, WatchError> {
        loop {
            let followed = {
                let mut table = self.table.lock();
                if table.shut_down {
                    return Err(WatchError::ShutDown);
                }
                let entry = table.followed.entry(id.clone());
                let new = || {
                    Arc::new(Followed {
                        id: id.clone(),
                        terminated: Signal::new(),
                        state: Mutex::default(),
                    })
                };
                entry.or_insert_with(new).clone()
            };
            let mut state = followed.state.lock();
            if state.over {
                drop(state);
                self.forget(&followed);
                continue;
            }
            if let Err(error) = self.look(&followed, &mut state) {
                self.finish(&followed, &mut state);
                drop(state);
                self.ended(&followed);
                return Err(error);
            }
            state.streams += 1;
            state.release_at = None;
            drop(state);
            return Ok(Lease {
                shared: self.clone(),
                followed,
            });
        }
    }

    /// Counts a stream out.
    fn leave(&self, followed: &Arc<Followed>) {
        let mut state = followed.state.lock();
        state.streams -= 1;
        if state.streams > 0 || state.over {
            return;
        }
        if self.grace.is_zero() {
            self.finish(followed, &mut state);
            drop(state);
            self.forget(followed);
        } else {
            let due = self.clock.monotonic().saturating_add(self.grace);
            state.release_at = Some(due);
            drop(state);
            self.tell(|inbox| inbox.released.push((due, followed.id.clone())));
        }
    }

    /// Reads the id's record, registers or deregisters accordingly, and waits for its next change.
    fn look(self: &Arc<Self>, followed: &Followed, state: &mut State) -> Result<(), WatchError> {
        let id = &followed.id;
        let store = self.manager.store();
        let snapshot = store.snapshot();
        let reader = snapshot.reader();
        let kind = reader
            .instance(id.node.as_str(), &id.service_id)
            .map(|row| row.kind);
        let reads = reader.finish();
        let (weak, of_waker) = (Arc::downgrade(self), id.clone());
        let waker = Box::new(move || {
            if let Some(shared) = weak.upgrade() {
                shared.tell(|inbox| {
                    inbox.changed.insert(of_waker);
                });
            }
        });
        state.wait = None;
        state.wait = Some(store.wait_until_changed(reads, snapshot.index(), waker));
        match kind {
            None => {
                self.manager.deregister(id, &ProxySource::CATALOG);
                Ok(())
            }
            Some(kind) => self.register(id, kind),
        }
    }

    fn register(&self, id: &ProxyId, kind: ServiceKind) -> Result<(), WatchError> {
        if !kind.is_proxy() {
            let id = id.clone();
            return Err(WatchError::NotAProxy { id, kind });
        }
        let options = RegisterOptions {
            kind,
            registration: Registration::Record,
            source: ProxySource::CATALOG,
            token: id.token.clone(),
            overwrite: false,
        };
        self.manager.register(id, options)?;
        Ok(())
    }

    /// Deregisters for good. Whoever sees `over` afterwards knows that it is done.
    fn finish(&self, followed: &Followed, state: &mut State) {
        state.wait = None;
        state.release_at = None;
        if !std::mem::replace(&mut state.over, true) {
            self.manager.deregister(&followed.id, &ProxySource::CATALOG);
        }
    }

    /// After a failure: the streams are told, and the next one begins anew.
    fn ended(&self, followed: &Arc<Followed>) {
        self.forget(followed);
        followed.terminated.give();
    }

    fn forget(&self, followed: &Arc<Followed>) {
        let mut table = self.table.lock();
        let known = table.followed.get(&followed.id);
        if known.is_some_and(|known| Arc::ptr_eq(known, followed)) {
            table.followed.remove(&followed.id);
        }
    }

    fn tell(&self, what: impl FnOnce(&mut Inbox)) {
        what(&mut self.inbox.lock());
        // Full means that a token lies there already.
        let _ = self.wake.try_send(());
    }

    fn get(&self, id: &ProxyId) -> Option<Arc<Followed>> {
        self.table.lock().followed.get(id).cloned()
    }

    /// The thread.
    fn run(self: Arc<Self>, stopped: &Receiver<()>, woken: &Receiver<()>) {
        let mut grace: BTreeSet<(Duration, ProxyId)> = BTreeSet::new();
        // Looks that panicked: the change that they were for isn't told again.
        let mut retries: BTreeSet<(Duration, ProxyId)> = BTreeSet::new();
        loop {
            let first = [grace.first(), retries.first()];
            let timer = match first.into_iter().flatten().min() {
                Some((due, _)) => self.clock.alarm(due.saturating_sub(self.clock.monotonic())),
                None => never(),
            };
            select! {
                recv(stopped) -> _ => return,
                recv(woken) -> _ => {}
                recv(timer) -> _ => {}
            }
            let mut inbox = std::mem::take(&mut *self.inbox.lock());
            let now = self.clock.monotonic();
            while retries.first().is_some_and(|(due, _)| *due <= now) {
                inbox.changed.extend(retries.pop_first().map(|(_, id)| id));
            }
            for id in inbox.changed {
                if !contain("the catalog config source", || self.look_again(&id)) {
                    retries.insert((now.saturating_add(RETRY), id));
                }
            }
            grace.extend(inbox.released);
            while grace.first().is_some_and(|(due, _)| *due <= now) {
                if let Some((_, id)) = grace.pop_first() {
                    self.release(&id, now);
                }
            }
        }
    }

    fn look_again(self: &Arc<Self>, id: &ProxyId) {
        let Some(followed) = self.get(id) else { return };
        let _ = fault::hit(Point::CatalogSource);
        let mut state = followed.state.lock();
        if state.over {
            return;
        }
        if let Err(error) = self.look(&followed, &mut state) {
            tracing::warn!(proxy = %id, %error, "the catalog config source stops following the proxy; its streams end");
            self.finish(&followed, &mut state);
            drop(state);
            self.ended(&followed);
        }
    }

    fn release(&self, id: &ProxyId, now: Duration) {
        let Some(followed) = self.get(id) else { return };
        let mut state = followed.state.lock();
        // A stream that came meanwhile has taken the release back.
        if state.release_at.is_none_or(|due| due > now) {
            return;
        }
        self.finish(&followed, &mut state);
        drop(state);
        self.forget(&followed);
    }
}
