//! The sync loop of an agent (engine.md 4.3): the local state goes into the catalog, and its proxies into the engine.
//!
//! A pass is made at once, after every signal of the local state, and at least every resync time, which signals don't put
//! off. A burst of changes gives one or two passes. An error concerns only the record that it is about; the next resync
//! tries again, restarts proxies that have ended by themselves, and notices a changed default token.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded, never, select};
use parking_lot::RwLock;
use smol_str::SmolStr;

use crate::clock::Clock;
use crate::engine::{Manager, RegisterOptions};
use crate::model::{Node, ProxyId, ProxySource, ServiceInstance};
use crate::proxy::Registration;
use crate::sync::fault::{self, Point};
use crate::sync::{Background, Latest, Read};

use super::anti_entropy::StoreSync;
use super::local_records::RestoreError;
use super::local_state::{LocalState, Version};
use super::local_tables::{LocalEntry, LocalTables};
use super::{RETRY, contain};

/// How the sync loop is set up.
#[derive(Debug, Clone)]
pub struct LocalSyncOptions {
    /// The agent's node as the catalog is to hold it; its name is that of the local state.
    pub node: Node,
    /// Most time between two passes; zero means that only changes cause them.
    pub resync: Duration,
    /// The token for services that have none of their own.
    pub default_token: SmolStr,
}

impl LocalSyncOptions {
    /// The settings for a node: resync every 30 seconds, no default token.
    #[must_use]
    pub fn new(node: Node) -> Self {
        Self {
            node,
            resync: Duration::from_secs(30),
            default_token: SmolStr::default(),
        }
    }
}

/// A pass that has ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Synced {
    /// The store index that holds the local state, for [`Manager::wait_index`].
    pub store_index: u64,
    /// Passes made so far.
    pub passes: u64,
    /// What couldn't be written or registered, and why; tried again with the next pass.
    pub problems: Vec<String>,
    /// Why the local state couldn't be kept: the store's back end failed. It is tried again with the next pass.
    pub unkept: Option<String>,
    version: Version,
}

/// Why the sync loop can't be started, or waiting for it ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SyncError {
    /// Timed out.
    #[error("the local state was not taken in in time")]
    TimedOut,
    /// The loop has ended.
    #[error("the sync of the local state has ended")]
    Ended,
    /// What the store has kept can't be read.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// No thread.
    #[error("can't start a thread for the sync of the local state: {0}")]
    Thread(#[from] std::io::Error),
}

/// The running sync loop, on a thread of its own. Dropping it ends the loop; what it has registered stays.
pub struct LocalSync {
    // First, so that the thread has ended before the channels to it close.
    thread: Background,
    shared: Arc<Shared>,
    state: Arc<LocalState>,
    poke: Sender<()>,
}

struct Shared {
    default_token: RwLock<SmolStr>,
    done: Latest<Synced>,
}

impl LocalSync {
    /// Starts the loop. Its first pass begins at once.
    ///
    /// # Errors
    /// What the store has kept of the local state can't be read, or there is no thread.
    pub fn start(
        manager: Manager,
        state: Arc<LocalState>,
        options: LocalSyncOptions,
    ) -> Result<Self, SyncError> {
        let shared = Arc::new(Shared {
            default_token: RwLock::new(options.default_token),
            done: Latest::new(),
        });
        let (poke, poked) = bounded(1);
        let mut node = options.node;
        state.node().as_str().clone_into(&mut node.node);
        let worker = Loop {
            catalog: StoreSync::new(manager.store().clone(), node)?,
            changed: state.subscribe(),
            clock: manager.clock().clone(),
            proxies: ProxySync {
                manager,
                failing: BTreeMap::new(),
            },
            state: state.clone(),
            shared: shared.clone(),
            resync: options.resync,
            taken_in: Version::default(),
            refused: Vec::new(),
            passes: 0,
        };
        let thread =
            Background::spawn("proxycfg-sync", move |stopped| worker.run(stopped, &poked))?;
        Ok(Self {
            shared,
            state,
            poke,
            thread,
        })
    }

    /// Changes the token for services that have none of their own. Taken in soon, by a pass.
    pub fn set_default_token(&self, token: impl Into<SmolStr>) {
        *self.shared.default_token.write() = token.into();
        self.sync_soon();
    }

    /// Has a pass made soon, as at a resync.
    pub fn sync_soon(&self) {
        // Full means that one is asked for already.
        let _ = self.poke.try_send(());
    }

    /// Waits until the present local state has been taken in: for start-up and tests.
    ///
    /// # Errors
    /// The deadline passed, or the loop has ended.
    pub fn flush(&self, deadline: Instant) -> Result<Synced, SyncError> {
        let (_, wanted) = self.state.at();
        let mut seen = 0;
        loop {
            match self.shared.done.wait_after(seen, Some(deadline)) {
                Read::New(synced, _) if synced.version.all >= wanted.all => return Ok(synced),
                Read::New(_, version) => seen = version,
                Read::Unchanged => return Err(SyncError::TimedOut),
                Read::Ended => return Err(SyncError::Ended),
            }
        }
    }

    /// The last pass that has ended.
    #[must_use]
    pub fn last(&self) -> Option<Synced> {
        self.shared.done.get()
    }

    /// Ends the loop and waits for a pass that is under way. What is registered stays. Doing it twice is fine.
    pub fn stop(&self) {
        self.thread.stop();
    }
}

impl std::fmt::Debug for LocalSync {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalSync")
            .field("last", &self.last())
            .finish_non_exhaustive()
    }
}

struct Loop {
    catalog: StoreSync,
    proxies: ProxySync,
    changed: Receiver<()>,
    clock: Arc<dyn Clock>,
    state: Arc<LocalState>,
    shared: Arc<Shared>,
    resync: Duration,
    taken_in: Version,
    /// What the catalog refused last: logged once.
    refused: Vec<String>,
    passes: u64,
}

impl Loop {
    fn run(mut self, stopped: &Receiver<()>, poked: &Receiver<()>) {
        let mut timer = self.timer();
        let mut well = contain("the sync of the local state", || self.pass(true));
        loop {
            let retry = if well {
                never()
            } else {
                self.clock.alarm(RETRY)
            };
            let everything = select! {
                recv(stopped) -> _ => break,
                recv(retry) -> _ => true,
                recv(self.changed) -> _ => false,
                recv(poked) -> _ => true,
                recv(timer) -> _ => {
                    timer = self.timer();
                    true
                }
            };
            // What was to be looked at stays so until a pass comes to its end.
            let everything = everything || !well;
            well = contain("the sync of the local state", || self.pass(everything));
        }
        self.shared.done.end();
    }

    fn timer(&self) -> Receiver<Instant> {
        if self.resync.is_zero() {
            never()
        } else {
            self.clock.alarm(self.resync)
        }
    }

    /// One pass. Proxies are looked at only if a record changed, unless `everything` is to be.
    fn pass(&mut self, everything: bool) {
        let _ = fault::hit(Point::LocalSync);
        let (tables, version) = self.state.at();
        let mut outcome = self.catalog.sync(&tables);
        if outcome.problems != self.refused {
            for problem in &outcome.problems {
                tracing::warn!("{problem}; it is tried again");
            }
            self.refused.clone_from(&outcome.problems);
        }
        if everything || version.records != self.taken_in.records {
            let token = self.shared.default_token.read().clone();
            self.proxies.sync(&tables, self.catalog.node(), &token);
        }
        outcome
            .problems
            .extend(self.proxies.failing.values().cloned());
        self.taken_in = version;
        self.passes += 1;
        self.shared.done.publish(Synced {
            store_index: outcome.store_index,
            passes: self.passes,
            problems: outcome.problems,
            unkept: outcome.unkept,
            version,
        });
    }
}

/// Registers the local proxies with the engine.
struct ProxySync {
    manager: Manager,
    /// The proxies that can't be registered, and why.
    failing: BTreeMap<ProxyId, String>,
}

impl ProxySync {
    fn sync(&mut self, tables: &LocalTables, node: &Node, default_token: &SmolStr) {
        let mut failing = BTreeMap::new();
        let mut wanted = BTreeSet::new();
        for (_, entry) in tables.services().filter(|(_, s)| s.service.kind.is_proxy()) {
            let id = ProxyId::new(&*entry.service.id, &*node.node);
            let options = RegisterOptions {
                kind: entry.service.kind,
                registration: Registration::Definition(with_locality(entry, node)),
                source: ProxySource::LOCAL,
                token: if entry.token.is_empty() {
                    default_token.clone()
                } else {
                    entry.token.clone()
                },
                overwrite: true,
            };
            if let Err(error) = self.manager.register(&id, options) {
                let error = error.to_string();
                if self.failing.get(&id) != Some(&error) {
                    tracing::warn!(proxy = %id, %error, "a local proxy can't be registered; it is tried again");
                }
                failing.insert(id.clone(), error);
            }
            wanted.insert(id);
        }
        self.failing = failing;
        // Absent, or not a proxy any more.
        for id in self.manager.registered(&ProxySource::LOCAL) {
            if !wanted.contains(&id) {
                self.manager.deregister(&id, &ProxySource::LOCAL);
            }
        }
    }
}

/// The instance to register: its own locality wins over its node's, and the stored one isn't touched.
fn with_locality(entry: &LocalEntry, node: &Node) -> triomphe::Arc<ServiceInstance> {
    if entry.service.locality.is_some() || node.locality.is_none() {
        return entry.service.clone();
    }
    triomphe::Arc::new(ServiceInstance {
        locality: node.locality.clone(),
        ..(*entry.service).clone()
    })
}
