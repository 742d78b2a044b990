//! An engine with everything in it: store, certificate authority, sources and manager, wired together.

mod kept_leaves;

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use smol_str::SmolStr;

use crate::ca::{Authority, CaError, CaPlan, CaState, LeafKeeper, LeafManager, LeafOptions};
use crate::clock::{Clock, RealClock};
use crate::engine::{CloseReport, EngineConfig, Manager};
use crate::model::{CaConfig, CaRoots};
use crate::source::{ChainCheck, EmbeddedSources, HostFeed, HostSources, Sources};
use crate::store::{
    AnyRow, Backend, Image, MemoryBackend, Op, OpaqueState, Store, StoreError, StoreSnapshot,
    Transaction,
};

use kept_leaves::KeptLeaves;

/// Name of the store's opaque state that keeps the authority. It holds private keys.
const CA_STATE: &str = "certificate-authority";

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
    /// What is kept belongs to another datacenter.
    #[error(
        "the records that are kept are of datacenter {kept:?}, not {wanted:?}; give that datacenter, or another data folder"
    )]
    OtherDatacenter {
        /// Whose they are.
        kept: SmolStr,
        /// What the configuration says.
        wanted: SmolStr,
    },
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
    /// Whether the authority's state is kept in the store.
    durable: bool,
    kept_leaves: Option<Arc<KeptLeaves>>,
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
        let store = Store::new(Box::new(MemoryBackend), Arc::new(ChainCheck))?;
        Self::start_over(config, clock, store, false)
    }

    /// Starts on a given clock with what a durable back end has kept: records, and the certificate authority with its roots,
    /// keys and trust domain, whose configuration then stands instead of [`EmbeddedConfig::ca`]. Its state is kept before
    /// the first certificate is signed, at the start and after each change (decision R2). Leaf certificates are kept soon
    /// after they are signed; those that are valid are used again.
    ///
    /// # Errors
    /// What is kept can't be read or is of another datacenter; else as for [`Embedded::start_with`].
    pub fn start_durable(
        config: EmbeddedConfig,
        clock: Arc<dyn Clock>,
        backend: Box<dyn Backend>,
    ) -> Result<Self, EmbeddedError> {
        let store = Store::new(backend, Arc::new(ChainCheck))?;
        Self::start_over(config, clock, store, true)
    }

    fn start_over(
        config: EmbeddedConfig,
        clock: Arc<dyn Clock>,
        store: Store,
        durable: bool,
    ) -> Result<Self, EmbeddedError> {
        let datacenter: SmolStr = config.engine.proxies.datacenter.clone();
        let store = Arc::new(store);
        let authority = match kept_authority(&store.snapshot(), &datacenter)? {
            Some(state) => Authority::from_state(clock.clone(), state)?,
            None => Authority::bootstrap(clock.clone(), datacenter.clone(), config.ca)?,
        };
        let authority = Arc::new(authority);
        let state = durable.then(|| authority.export_state());
        // Before anything can be signed: the kept state holds what keeps serial numbers unique.
        publish(
            &store,
            authority.config(),
            authority.roots(),
            state.as_ref(),
        )?;
        let kept_leaves = if durable {
            Some(Arc::new(KeptLeaves::start(&store, clock.now())?))
        } else {
            None
        };
        let leaves = Arc::new(LeafManager::start_with(
            authority.clone(),
            clock.clone(),
            config.leaves,
            kept_leaves.clone().map(|kept| kept as Arc<dyn LeafKeeper>),
        )?);
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
            durable,
            kept_leaves,
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
        let plan = self.authority.plan_rotation()?;
        let roots = plan.roots().clone();
        self.carry_out(plan)?;
        Ok(roots)
    }

    /// Changes the authority's configuration; a new root follows if the configuration asks for one.
    ///
    /// # Errors
    /// The configuration is bad, or the store refuses.
    pub fn set_ca_config(&self, config: CaConfig) -> Result<(), EmbeddedError> {
        let _one_at_a_time = self.changing.lock();
        let plan = self.authority.plan_config(config)?;
        self.carry_out(plan)
    }

    /// Drops roots that no certificate depends on any more. To be called about hourly. Returns whether there were any.
    ///
    /// # Errors
    /// The store refuses.
    pub fn prune_roots(&self) -> Result<bool, EmbeddedError> {
        let _one_at_a_time = self.changing.lock();
        let Some(plan) = self.authority.plan_prune() else {
            return Ok(false);
        };
        self.carry_out(plan)?;
        Ok(true)
    }

    /// Publishes a change of the authority, and only then has it take effect: a certificate of a root that isn't kept yet,
    /// or that proxies don't trust yet, is never signed.
    fn carry_out(&self, plan: CaPlan) -> Result<(), EmbeddedError> {
        let state = self.durable.then(|| plan.state());
        publish(
            &self.store,
            plan.config().clone(),
            plan.roots().clone(),
            state,
        )?;
        self.authority.commit(plan)?;
        self.leaves.roots_changed();
        Ok(())
    }

    /// Ends engine and certificate renewal, waiting for threads until the deadline. What was to be kept is kept then.
    pub fn close(&self, deadline: Instant) -> CloseReport {
        let report = self.manager.close(deadline);
        self.leaves.close();
        if let Some(kept) = &self.kept_leaves {
            kept.stop();
        }
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

/// The authority's state that the store has kept.
fn kept_authority(
    store: &StoreSnapshot,
    datacenter: &SmolStr,
) -> Result<Option<CaState>, EmbeddedError> {
    let reader = store.reader();
    let Some(kept) = reader.state(CA_STATE) else {
        return Ok(None);
    };
    let state = CaState::from_bytes(&kept.0)?;
    if state.datacenter() != datacenter {
        return Err(EmbeddedError::OtherDatacenter {
            kept: state.datacenter().clone(),
            wanted: datacenter.clone(),
        });
    }
    Ok(Some(state))
}

/// Makes a backup's image ready to go on from. The authority that it was made of may have signed more certificates since:
/// the serial numbers go on where it can't have come to.
///
/// # Errors
/// The image's authority can't be read.
pub fn restored(image: &mut Image) -> Result<(), EmbeddedError> {
    for row in &mut image.rows {
        if let AnyRow::State { name, row } = row
            && name == CA_STATE
        {
            let state = CaState::from_bytes(&row.0)?.restored();
            row.value = triomphe::Arc::new(OpaqueState(state.to_bytes()?));
        }
    }
    Ok(())
}

/// Writes roots and configuration into the store, where chains and proxies read them, and the authority's state, if it is
/// to be kept, in the same commit.
fn publish(
    store: &Store,
    config: CaConfig,
    roots: CaRoots,
    state: Option<&CaState>,
) -> Result<(), EmbeddedError> {
    let mut ops = vec![
        Op::SetCaConfig {
            config: Box::new(config),
            cas: None,
        },
        Op::SetCaRoots {
            roots: Box::new(roots),
            cas: None,
        },
    ];
    if let Some(state) = state {
        ops.push(Op::SetState {
            name: CA_STATE.into(),
            state: Some(OpaqueState(state.to_bytes()?)),
        });
    }
    store.apply(Transaction::from(ops))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::TestClock;
    use crate::model::LeafRequest;
    use crate::store::{BackendError, CommitRecord};

    /// A back end that keeps rows in shared memory, and fails when told to.
    #[derive(Clone, Default)]
    struct Disk(Arc<Mutex<Content>>);

    #[derive(Default)]
    struct Content {
        image: Image,
        full: bool,
    }

    impl Backend for Disk {
        fn load(&mut self) -> Result<Option<Image>, BackendError> {
            Ok(Some(self.0.lock().image.clone()))
        }

        fn persist(&mut self, commits: &[CommitRecord]) -> Result<(), BackendError> {
            let mut content = self.0.lock();
            if content.full {
                return Err(BackendError::new("kept", "disk full"));
            }
            for commit in commits {
                content.image.index = commit.index;
                for (key, row) in &commit.rows {
                    content.image.rows.retain(|row| row.key() != *key);
                    content.image.rows.extend(row.clone());
                }
            }
            Ok(())
        }

        fn replace(&mut self, image: &Image) -> Result<(), BackendError> {
            self.0.lock().image = image.clone();
            Ok(())
        }
    }

    fn start(disk: &Disk) -> Result<Embedded, EmbeddedError> {
        let config = EmbeddedConfig::default();
        Embedded::start_durable(config, Arc::new(TestClock::new()), Box::new(disk.clone()))
    }

    fn serial(embedded: &Embedded) -> u64 {
        let request = LeafRequest::for_service("web");
        embedded.authority().issue(&request).unwrap().create_index
    }

    #[test]
    fn r2_the_authority_goes_on_after_a_restart() {
        let disk = Disk::default();
        let first = start(&disk).unwrap();
        first.rotate_root().unwrap();
        let config = CaConfig {
            leaf_cert_ttl: Duration::from_secs(2 * 3600),
            ..CaConfig::default()
        };
        first.set_ca_config(config.clone()).unwrap();
        let (roots, before) = (first.authority().roots(), serial(&first));
        let in_store = |embedded: &Embedded| {
            let snapshot = embedded.store.snapshot();
            let reader = snapshot.reader();
            reader
                .ca_roots()
                .map(|row| (row.value.clone(), row.modify_index))
        };
        let published = in_store(&first);
        // Killed: nothing more is kept.
        disk.0.lock().full = true;
        drop(first);
        disk.0.lock().full = false;

        let again = start(&disk).unwrap();
        assert_eq!(again.authority().roots(), roots);
        assert_eq!(again.authority().config(), config);
        assert_eq!(in_store(&again), published, "nobody need look again");
        assert!(serial(&again) > before);
        let other = EmbeddedConfig {
            engine: EngineConfig::default(),
            ..EmbeddedConfig::default()
        };
        let mut other = other;
        other.engine.proxies.datacenter = "dc9".into();
        drop(again);
        let error =
            Embedded::start_durable(other, Arc::new(TestClock::new()), Box::new(disk.clone()))
                .unwrap_err();
        assert!(
            error
                .to_string()
                .contains("of datacenter \"dc1\", not \"dc9\"")
        );
    }

    #[test]
    fn r2_a_root_that_is_not_kept_signs_nothing() {
        let disk = Disk::default();
        let embedded = start(&disk).unwrap();
        let roots = embedded.authority().roots();
        disk.0.lock().full = true;
        assert!(embedded.rotate_root().is_err());
        let own = CaConfig {
            private_key_bits: 384,
            ..CaConfig::default()
        };
        assert!(embedded.set_ca_config(own.clone()).is_err());
        assert_eq!(embedded.authority().roots(), roots);
        assert_eq!(embedded.authority().config(), CaConfig::default());
        disk.0.lock().full = false;
        embedded.set_ca_config(own).unwrap();
        let rotated = embedded.authority().roots();
        assert_eq!(rotated.roots.len(), 2);
        drop(embedded);
        assert_eq!(start(&disk).unwrap().authority().roots(), rotated);
    }

    fn leaf(embedded: &Embedded) -> SmolStr {
        let request = LeafRequest::for_service("web");
        embedded.leaves.get(&request).unwrap().serial_number.clone()
    }

    fn end(embedded: Embedded) {
        assert_eq!(embedded.close_soon().stuck_threads, 0);
    }

    #[test]
    fn r2_leaf_certificates_go_on_after_a_restart() {
        let disk = Disk::default();
        let first = start(&disk).unwrap();
        let serial = leaf(&first);
        end(first);
        let again = start(&disk).unwrap();
        assert_eq!(leaf(&again), serial);
        again.rotate_root().unwrap();
        end(again);
        let rotated = start(&disk).unwrap();
        let renewed = leaf(&rotated);
        assert_ne!(renewed, serial, "of the old root");
        end(rotated);

        let clock = TestClock::new();
        clock.advance(Duration::from_secs(80 * 3600));
        let later = Embedded::start_durable(
            EmbeddedConfig::default(),
            Arc::new(clock),
            Box::new(disk.clone()),
        );
        let later = later.unwrap();
        assert_ne!(leaf(&later), renewed, "it has ended");
        end(later);
        let rows = disk.0.lock().image.rows.clone();
        let states = rows
            .iter()
            .filter(|row| matches!(row, AnyRow::State { .. }));
        assert_eq!(states.count(), 2, "the authority and one certificate");
    }

    #[test]
    fn a_restored_authority_repeats_no_serial_number() {
        let disk = Disk::default();
        let first = start(&disk).unwrap();
        let mut image = first.store.image();
        drop(first);
        let later = serial(&start(&disk).unwrap());
        restored(&mut image).unwrap();
        let copy = Disk::default();
        copy.0.lock().image = image;
        assert!(serial(&start(&copy).unwrap()) > later);
    }

    #[test]
    fn c1_without_a_back_end_the_store_holds_no_key() {
        let embedded = Embedded::start_with(EmbeddedConfig::default(), Arc::new(TestClock::new()));
        let image = embedded.unwrap().store.image();
        let states = image
            .rows
            .iter()
            .filter(|row| matches!(row, AnyRow::State { .. }));
        assert_eq!(states.count(), 0);
    }
}
