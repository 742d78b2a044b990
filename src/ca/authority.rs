//! The signer: roots, rotation, issuing.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;
use rcgen::KeyPair;
use smol_str::{SmolStr, format_smolstr};
use zeroize::Zeroize;

use super::root::{Cluster, SigningRoot, parse_key};
use super::signing::{LeafContent, check_identity, sign_leaf, unexpired};
use super::state::{CaState, StoredRoot, VERSION};
use super::{CaError, SignedLeaf};
use crate::clock::Clock;
use crate::model::{CaConfig, CaRoot, CaRoots, IssuedCert, LeafRequest, PrivateKey, timestamp};

/// Serial numbers are `generation << SERIAL_BITS | counter`: a restart from saved state takes a new generation, so that
/// no serial number repeats although issues aren't saved one by one.
const SERIAL_BITS: u32 = 36;

/// The certificate authority of one datacenter: always bootstrapped, with exactly one active root.
///
/// Shared between threads; calls exclude each other for the time of one signature (tens of microseconds). Roots are
/// only returned: publishing them to the store, and telling [`super::LeafManager::roots_changed`], is the caller's
/// task.
pub struct Authority {
    clock: Arc<dyn Clock>,
    datacenter: SmolStr,
    cluster: Cluster,
    generation: u64,
    inner: Mutex<Inner>,
}

struct Inner {
    config: CaConfig,
    /// Older roots, in the order in which they were active; not the active one.
    older: Vec<CaRoot>,
    active: SigningRoot,
    /// How many serial numbers this generation has used.
    counter: u64,
    /// How often roots or configuration have changed.
    revision: u64,
}

/// A change of roots or configuration that is prepared but not in effect, so that it can be kept and published before the
/// first certificate is signed with it. Dropping it drops the change.
///
/// At most one plan at a time comes into effect: see [`Authority::commit`].
pub struct CaPlan {
    revision: u64,
    config: CaConfig,
    older: Vec<CaRoot>,
    /// The new active root; none if it stays.
    active: Option<SigningRoot>,
    roots: CaRoots,
    state: CaState,
}

impl CaPlan {
    /// The roots as they will be, the active one last.
    #[must_use]
    pub fn roots(&self) -> &CaRoots {
        &self.roots
    }

    /// The configuration as it will be.
    #[must_use]
    pub fn config(&self) -> &CaConfig {
        &self.config
    }

    /// The state to save, as [`Authority::export_state`] will give it.
    #[must_use]
    pub fn state(&self) -> &CaState {
        &self.state
    }

    /// Whether another root will sign.
    #[must_use]
    pub fn rotates(&self) -> bool {
        self.active.is_some()
    }

    fn into_change(self) -> CaChange {
        if self.rotates() {
            CaChange::Rotated(self.roots)
        } else {
            CaChange::ConfigOnly
        }
    }
}

impl fmt::Debug for CaPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The keys are left out on purpose.
        f.debug_struct("CaPlan")
            .field("roots", &self.roots)
            .field("rotates", &self.rotates())
            .finish_non_exhaustive()
    }
}

/// What a change of the configuration did.
#[derive(Debug, Clone, PartialEq)]
pub enum CaChange {
    /// The configuration alone changed; the roots are as before.
    ConfigOnly,
    /// The root was rotated: these are the new roots, to be published together with the configuration.
    Rotated(CaRoots),
}

impl Authority {
    /// Makes the authority of a new cluster with a random cluster id, and its first root.
    ///
    /// # Errors
    /// A configuration that breaks a rule, or an own root that can't be used.
    pub fn bootstrap(
        clock: Arc<dyn Clock>,
        datacenter: impl Into<SmolStr>,
        config: CaConfig,
    ) -> Result<Self, CaError> {
        let id = format_smolstr!("{}", uuid::Uuid::new_v4());
        config.validate()?;
        let cluster = cluster(id);
        let serial = 1;
        let active = SigningRoot::from_config(&config, &cluster, clock.now(), serial)?;
        Ok(Self {
            clock,
            datacenter: datacenter.into(),
            cluster,
            generation: 0,
            inner: Mutex::new(Inner {
                config,
                older: Vec::new(),
                active,
                counter: serial,
                revision: 0,
            }),
        })
    }

    /// Goes on from saved state. The clock may be past the root's end: then issuing fails until a rotation.
    ///
    /// Save [`Authority::export_state`] once more before the first issue: it holds the new generation, which keeps
    /// serial numbers unique.
    ///
    /// # Errors
    /// State that contradicts itself.
    pub fn from_state(clock: Arc<dyn Clock>, state: CaState) -> Result<Self, CaError> {
        let refuse = |reason: String| CaError::State { reason };
        let cluster = cluster(state.cluster_id.clone());
        let mut older = Vec::new();
        let mut active = None;
        for stored in state.roots {
            let root = CaRoot {
                rotated_out_at: stored.rotated_out_at,
                ..stored.root
            };
            if !root.active {
                older.push(root);
            } else if active.replace(root).is_some() {
                return Err(refuse("more than one root is active".into()));
            }
        }
        let record = active.ok_or_else(|| refuse("no root is active".into()))?;
        let key = parse_key(&state.active_key)?;
        let mut active = SigningRoot::load(&record.root_cert, key, &cluster)?;
        if active.record.id != record.id {
            return Err(refuse(format!(
                "the certificate of the active root {} has the id {}",
                record.id, active.record.id
            )));
        }
        active.record = record;
        let mut config = state.config;
        config.private_key = Some(state.own_key).filter(|key| !key.is_empty());
        config.validate()?;
        let authority = Self {
            clock,
            datacenter: state.datacenter,
            cluster,
            generation: state.generation + 1,
            inner: Mutex::new(Inner {
                config,
                older,
                active,
                counter: 0,
                revision: 0,
            }),
        };
        authority
            .roots()
            .validate()
            .map_err(|problem| refuse(problem.to_string()))?;
        Ok(authority)
    }

    /// The state to save: after bootstrap, after [`Authority::from_state`], and after each change of configuration or
    /// roots. Issuing needs no saving.
    #[must_use]
    pub fn export_state(&self) -> CaState {
        let inner = self.inner.lock();
        self.state(
            &inner.config,
            inner.active.private_key(),
            &self.public_roots(&inner),
        )
    }

    fn state(&self, config: &CaConfig, active_key: PrivateKey, roots: &CaRoots) -> CaState {
        let mut config = config.clone();
        let own_key = config.private_key.take();
        let stored = |root: &CaRoot| StoredRoot {
            rotated_out_at: root.rotated_out_at,
            root: root.clone(),
        };
        CaState {
            version: VERSION,
            cluster_id: self.cluster.id.clone(),
            datacenter: self.datacenter.clone(),
            generation: self.generation,
            config,
            own_key: own_key.unwrap_or_else(|| PrivateKey::from_pem("")),
            active_key,
            roots: roots.roots.iter().map(stored).collect(),
        }
    }

    /// The current roots, the active one last. Row indexes are 0: the store stamps them.
    #[must_use]
    pub fn roots(&self) -> CaRoots {
        self.public_roots(&self.inner.lock())
    }

    /// The current configuration.
    #[must_use]
    pub fn config(&self) -> CaConfig {
        self.inner.lock().config.clone()
    }

    /// `<cluster id>.consul`.
    #[must_use]
    pub fn trust_domain(&self) -> &SmolStr {
        &self.cluster.trust_domain
    }

    /// The datacenter that it signs for.
    #[must_use]
    pub fn datacenter(&self) -> &SmolStr {
        &self.datacenter
    }

    /// The key id of the active root: a leaf with another [`IssuedCert::authority_key_id`] is of an older root.
    #[must_use]
    pub fn active_signing_key_id(&self) -> SmolStr {
        self.inner.lock().active.record.signing_key_id.clone()
    }

    /// The limit of renewals per second, 0 for none.
    pub(super) fn csr_max_per_second(&self) -> f64 {
        self.inner.lock().config.csr_max_per_second
    }

    /// Issues a leaf for a fresh P-256 key. No rate limit is applied here.
    ///
    /// # Errors
    /// Another datacenter, an expired root, a DNS name that can't be written.
    pub fn issue(&self, request: &LeafRequest) -> Result<IssuedCert, CaError> {
        let asked = request.datacenter();
        if !asked.is_empty() && *asked != self.datacenter {
            return Err(CaError::OtherDatacenter {
                asked: asked.clone(),
                own: self.datacenter.clone(),
            });
        }
        let trust_domain = &self.cluster.trust_domain;
        let identity = request.identity(trust_domain, &self.datacenter);
        let content = LeafContent {
            identity: check_identity(identity, &self.cluster, &self.datacenter)?,
            dns_names: request.certificate_dns_names(trust_domain, &self.datacenter),
            ip_addresses: request.certificate_ip_addresses(),
        };
        let mut key = KeyPair::generate().map_err(CaError::crypto("making a leaf's key"))?;
        let signed = self.sign(content, &key);
        let private_key = PrivateKey::from_pem(key.serialize_pem());
        key.zeroize();
        let signed = signed?;
        Ok(IssuedCert {
            serial_number: signed.serial_number,
            cert_pem: signed.cert_pem,
            private_key,
            identity: signed.identity,
            authority_key_id: signed.authority_key_id,
            valid_after: signed.valid_after,
            valid_before: signed.valid_before,
            create_index: signed.index,
            modify_index: signed.index,
        })
    }

    /// Signs a certificate request (PEM) whose key the asker keeps.
    ///
    /// # Errors
    /// A request that breaks a signing check of store.md 4.2, or an expired root.
    pub fn sign_request(&self, pem: &str) -> Result<SignedLeaf, CaError> {
        let (content, public_key) =
            LeafContent::from_request(pem, &self.cluster, &self.datacenter)?;
        self.sign(content, &public_key)
    }

    fn sign(
        &self,
        content: LeafContent,
        public_key: &impl rcgen::PublicKeyData,
    ) -> Result<SignedLeaf, CaError> {
        let now = self.clock.now();
        let mut inner = self.inner.lock();
        let serial = self.next_serial(&mut inner);
        let ttl = inner.config.leaf_cert_ttl;
        sign_leaf(&inner.active, content, public_key, now, ttl, serial)
    }

    /// Replaces the active root by one with a new key. The old root signs the new one, unless it has expired.
    ///
    /// # Errors
    /// The configuration names an own root certificate, or the old root can't sign the new one.
    pub fn rotate(&self) -> Result<CaRoots, CaError> {
        let mut inner = self.inner.lock();
        let plan = self.rotation(&mut inner)?;
        let roots = plan.roots.clone();
        inner.take(plan);
        Ok(roots)
    }

    /// Prepares what [`Authority::rotate`] does.
    ///
    /// # Errors
    /// As for [`Authority::rotate`].
    pub fn plan_rotation(&self) -> Result<CaPlan, CaError> {
        self.rotation(&mut self.inner.lock())
    }

    /// Takes a new configuration; rotates if it names another root (store.md 4.2, "Rotation").
    ///
    /// # Errors
    /// As for [`Authority::bootstrap`] and [`Authority::rotate`]; nothing changes then.
    pub fn update_config(&self, config: CaConfig) -> Result<CaChange, CaError> {
        let mut inner = self.inner.lock();
        let plan = self.reconfiguration(&mut inner, config)?;
        Ok(inner.take(plan).into_change())
    }

    /// Prepares what [`Authority::update_config`] does.
    ///
    /// # Errors
    /// As for [`Authority::update_config`].
    pub fn plan_config(&self, config: CaConfig) -> Result<CaPlan, CaError> {
        self.reconfiguration(&mut self.inner.lock(), config)
    }

    /// Forgets older roots that were rotated out longer ago than two leaf lifetimes, or have expired: all their leaves
    /// were replaced long ago. Returns the new roots if any was forgotten. To be called from time to time (hourly is
    /// plenty).
    pub fn prune(&self) -> Option<CaRoots> {
        let mut inner = self.inner.lock();
        let plan = self.pruning(&inner)?;
        let roots = plan.roots.clone();
        inner.take(plan);
        Some(roots)
    }

    /// Prepares what [`Authority::prune`] does.
    #[must_use]
    pub fn plan_prune(&self) -> Option<CaPlan> {
        self.pruning(&self.inner.lock())
    }

    /// Brings a plan into effect.
    ///
    /// # Errors
    /// Another change came into effect since it was made; nothing changes then.
    pub fn commit(&self, plan: CaPlan) -> Result<CaChange, CaError> {
        let mut inner = self.inner.lock();
        if inner.revision != plan.revision {
            return Err(CaError::Overtaken);
        }
        Ok(inner.take(plan).into_change())
    }

    fn rotation(&self, inner: &mut Inner) -> Result<CaPlan, CaError> {
        let now = self.clock.now();
        if inner.config.root_cert.is_some() {
            return Err(CaError::OwnRoot {
                reason: "the root is configured by RootCert: rotate it by configuring another PrivateKey and RootCert"
                    .into(),
            });
        }
        let serial = self.next_serial(inner);
        let newer = SigningRoot::from_config(&inner.config, &self.cluster, now, serial)?;
        let config = inner.config.clone();
        self.replacement(inner, newer, config, now)
    }

    fn reconfiguration(&self, inner: &mut Inner, config: CaConfig) -> Result<CaPlan, CaError> {
        config.validate()?;
        let now = self.clock.now();
        if !names_same_root(&inner.config, &config) {
            let serial = self.next_serial(inner);
            let newer = SigningRoot::from_config(&config, &self.cluster, now, serial)?;
            if newer.record.id != inner.active.record.id {
                return self.replacement(inner, newer, config, now);
            }
        }
        Ok(self.plan(inner, config, inner.older.clone(), None))
    }

    /// The plan to make `newer` the active root, together with `config`.
    fn replacement(
        &self,
        inner: &mut Inner,
        mut newer: SigningRoot,
        config: CaConfig,
        now: SystemTime,
    ) -> Result<CaPlan, CaError> {
        // Whether or not it is used: no number is ever used twice.
        let serial = self.next_serial(inner);
        let old = &inner.active;
        // Nobody accepts a signature of an expired root; and the same key needs no introduction.
        let worthwhile = old.refuse_if_expired(now).is_ok()
            && old.record.signing_key_id != newer.record.signing_key_id;
        if worthwhile {
            match old.cross_sign(&newer, now, config.intermediate_cert_ttl, serial) {
                Ok(pem) => {
                    newer.record.intermediate_certs.push(pem);
                    // A peer may know only the root before the old one: keep that bridge as well.
                    let bridges = unexpired(&old.record, now).cloned();
                    newer.record.intermediate_certs.extend(bridges);
                }
                Err(reason) if config.force_without_cross_signing => {
                    tracing::warn!(%reason, "the CA root is rotated without cross-signing");
                }
                Err(reason) => return Err(CaError::CrossSigning { reason }),
            }
        }
        // Going back to a root that is still among the older ones takes it out of them.
        let others = inner.older.iter().filter(|root| root.id != newer.record.id);
        let mut older: Vec<CaRoot> = others.cloned().collect();
        older.push(CaRoot {
            active: false,
            rotated_out_at: Some(timestamp::whole_seconds(now)),
            ..old.record.clone()
        });
        Ok(self.plan(inner, config, older, Some(newer)))
    }

    fn pruning(&self, inner: &Inner) -> Option<CaPlan> {
        let now = self.clock.now();
        let keep_for = inner.config.leaf_cert_ttl.saturating_mul(2);
        let mut older = inner.older.clone();
        older.retain(|root| {
            let age = root
                .rotated_out_at
                .and_then(|at| now.duration_since(at).ok());
            now < root.not_after && age.is_none_or(|age| age <= keep_for)
        });
        let fewer = older.len() < inner.older.len();
        fewer.then(|| self.plan(inner, inner.config.clone(), older, None))
    }

    fn plan(
        &self,
        inner: &Inner,
        config: CaConfig,
        older: Vec<CaRoot>,
        active: Option<SigningRoot>,
    ) -> CaPlan {
        let signing = active.as_ref().unwrap_or(&inner.active);
        let roots = self.roots_of(&older, &signing.record);
        let state = self.state(&config, signing.private_key(), &roots);
        CaPlan {
            revision: inner.revision,
            config,
            older,
            active,
            roots,
            state,
        }
    }

    fn next_serial(&self, inner: &mut Inner) -> u64 {
        inner.counter += 1;
        self.serial(inner.counter)
    }

    fn serial(&self, counter: u64) -> u64 {
        (self.generation << SERIAL_BITS) + counter
    }

    fn public_roots(&self, inner: &Inner) -> CaRoots {
        self.roots_of(&inner.older, &inner.active.record)
    }

    fn roots_of(&self, older: &[CaRoot], active: &CaRoot) -> CaRoots {
        CaRoots {
            active_root_id: active.id.clone(),
            trust_domain: self.cluster.trust_domain.clone(),
            roots: older.iter().chain([active]).cloned().collect(),
        }
    }
}

impl Inner {
    /// Brings a plan of the present revision into effect; what comes back is the plan with the root that was replaced.
    fn take(&mut self, mut plan: CaPlan) -> CaPlan {
        self.revision += 1;
        self.config = plan.config.clone();
        self.older = std::mem::take(&mut plan.older);
        if let Some(newer) = &mut plan.active {
            std::mem::swap(&mut self.active, newer);
        }
        plan
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The keys are left out on purpose.
        let inner = self.inner.lock();
        f.debug_struct("Authority")
            .field("datacenter", &self.datacenter)
            .field("trust_domain", &self.cluster.trust_domain)
            .field("active_root_id", &inner.active.record.id)
            .field("older_roots", &inner.older.len())
            .finish_non_exhaustive()
    }
}

fn cluster(id: SmolStr) -> Cluster {
    let id = SmolStr::from(id.to_lowercase());
    Cluster {
        trust_domain: format_smolstr!("{id}.consul"),
        id,
    }
}

/// Whether two configurations ask for the same root, so that no rotation is needed.
fn names_same_root(one: &CaConfig, other: &CaConfig) -> bool {
    let text = |pem: &Option<String>| pem.as_deref().map(|pem| pem.trim().to_owned());
    let generated = |config: &CaConfig| {
        let is_generated = config.private_key.is_none();
        is_generated.then(|| (config.private_key_type.clone(), config.private_key_bits))
    };
    one.private_key == other.private_key
        && text(&one.root_cert) == text(&other.root_cert)
        && generated(one) == generated(other)
}
