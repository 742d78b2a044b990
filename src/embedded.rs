//! An engine with everything in it: store, certificate authority, sources and manager, wired together.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use smol_str::SmolStr;

use crate::ca::{Authority, CaChange, CaError, LeafManager, LeafOptions};
use crate::clock::{Clock, RealClock};
use crate::engine::{CloseReport, EngineConfig, Manager};
use crate::model::{CaConfig, CaRoots};
use crate::source::{ChainCheck, EmbeddedSources, HostFeed, HostSources, Sources};
use crate::store::{MemoryBackend, Op, Store, StoreError, Transaction};

/// How an embedded engine is set up.
#[derive(Debug, Clone, Default)]
pub struct EmbeddedConfig {
    /// Threads, limits, and what holds for all proxies; its datacenter is that of store and authority too.
    pub engine: EngineConfig,
    /// The certificate authority.
    pub ca: CaConfig,
    /// Certificates: jitter and grace.
    pub leaves: LeafOptions,
    /// The feed of a host that answers some kinds of query itself. Its store of everything else is the embedded one: a host
    /// that gives its own trust roots also gives the certificates, and the chains if its trust domain is another one.
    pub host: Option<HostFeed>,
}

/// Why an embedded engine can't start or go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EmbeddedError {
    /// The certificate authority refused.
    #[error("certificate authority: {0}")]
    Ca(#[from] CaError),
    /// The store refused.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The operating system can't start threads.
    #[error("can't start a thread: {0}")]
    Threads(#[from] std::io::Error),
}

/// A store, a certificate authority and an engine over them, in one process.
pub struct Embedded {
    /// The engine.
    pub manager: Manager,
    /// The store.
    pub store: Arc<Store>,
    /// Certificates.
    pub leaves: Arc<LeafManager>,
    authority: Arc<Authority>,
    /// Changes of the authority and their publication happen one after another.
    changing: Mutex<()>,
}

impl Embedded {
    /// Starts on the machine's clock.
    ///
    /// # Errors
    /// The authority's configuration is bad, or the operating system can't start threads.
    pub fn start(config: EmbeddedConfig) -> Result<Self, EmbeddedError> {
        Self::start_with(config, Arc::new(RealClock::new()))
    }

    /// Starts on a given clock.
    ///
    /// # Errors
    /// The authority's configuration is bad, or the operating system can't start threads.
    pub fn start_with(
        config: EmbeddedConfig,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, EmbeddedError> {
        let datacenter: SmolStr = config.engine.proxies.datacenter.clone();
        let store = Arc::new(Store::new(Box::new(MemoryBackend), Arc::new(ChainCheck))?);
        let authority = Arc::new(Authority::bootstrap(
            clock.clone(),
            datacenter.clone(),
            config.ca,
        )?);
        let leaves = Arc::new(LeafManager::start(
            authority.clone(),
            clock.clone(),
            config.leaves,
        )?);
        publish(&store, &authority, authority.roots())?;
        let embedded = EmbeddedSources::new(datacenter, leaves.clone());
        let sources: Arc<dyn Sources> = match config.host {
            Some(host) => Arc::new(HostSources::new(host, embedded)),
            None => Arc::new(embedded),
        };
        let manager = Manager::start(config.engine, clock, store.clone(), sources)?;
        Ok(Self {
            manager,
            store,
            leaves,
            authority,
            changing: Mutex::new(()),
        })
    }

    /// The certificate authority. Change it only through [`Embedded::rotate_root`] and [`Embedded::set_ca_config`], which
    /// also publish the change.
    #[must_use]
    pub fn authority(&self) -> &Arc<Authority> {
        &self.authority
    }

    /// Makes a new root, cross-signed by the old one; certificates follow within the jitter time.
    ///
    /// # Errors
    /// The authority or the store refuses.
    pub fn rotate_root(&self) -> Result<CaRoots, EmbeddedError> {
        let _one_at_a_time = self.changing.lock();
        let roots = self.authority.rotate()?;
        publish(&self.store, &self.authority, roots.clone())?;
        self.leaves.roots_changed();
        Ok(roots)
    }

    /// Changes the authority's configuration; a new root follows if the configuration asks for one.
    ///
    /// # Errors
    /// The configuration is bad, or the store refuses.
    pub fn set_ca_config(&self, config: CaConfig) -> Result<(), EmbeddedError> {
        let _one_at_a_time = self.changing.lock();
        match self.authority.update_config(config)? {
            CaChange::ConfigOnly => publish(&self.store, &self.authority, self.authority.roots())?,
            CaChange::Rotated(roots) => publish(&self.store, &self.authority, roots)?,
        }
        self.leaves.roots_changed();
        Ok(())
    }

    /// Drops roots that no certificate depends on any more. To be called about hourly. Returns whether there were any.
    ///
    /// # Errors
    /// The store refuses.
    pub fn prune_roots(&self) -> Result<bool, EmbeddedError> {
        let _one_at_a_time = self.changing.lock();
        let Some(roots) = self.authority.prune() else {
            return Ok(false);
        };
        publish(&self.store, &self.authority, roots)?;
        Ok(true)
    }

    /// Ends engine and certificate renewal, waiting for threads until the deadline.
    pub fn close(&self, deadline: Instant) -> CloseReport {
        let report = self.manager.close(deadline);
        self.leaves.close();
        report
    }

    /// Ends with a deadline that is far enough for callbacks that don't block.
    pub fn close_soon(&self) -> CloseReport {
        self.close(Instant::now() + Duration::from_secs(10))
    }
}

impl std::fmt::Debug for Embedded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Embedded")
            .field("manager", &self.manager)
            .finish_non_exhaustive()
    }
}

/// Writes roots and configuration into the store, where chains and proxies read them.
fn publish(store: &Store, authority: &Authority, roots: CaRoots) -> Result<(), StoreError> {
    let ops = vec![
        Op::SetCaConfig {
            config: Box::new(authority.config()),
            cas: None,
        },
        Op::SetCaRoots {
            roots: Box::new(roots),
            cas: None,
        },
    ];
    store.apply(Transaction::from(ops)).map(drop)
}
