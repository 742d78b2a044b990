//! What can be written, and how a write ends.

use std::fmt;

use smol_str::SmolStr;

use crate::model::{
    CaConfig, CaRoots, ConfigEntry, EntryKey, HealthCheck, NameKey, Node, ServiceInstance,
};
use crate::store::backend::{BackendError, OpaqueState};
use crate::store::key::PeeredName;
use crate::store::snapshot::StoreSnapshot;

/// Writes that take effect together or not at all (decisions R3). Applied in order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Transaction {
    /// The writes.
    pub ops: Vec<Op>,
}

impl Transaction {
    /// A transaction of one write.
    #[must_use]
    pub fn of(op: Op) -> Self {
        Self { ops: vec![op] }
    }
}

impl From<Vec<Op>> for Transaction {
    fn from(ops: Vec<Op>) -> Self {
        Self { ops }
    }
}

impl FromIterator<Op> for Transaction {
    fn from_iter<I: IntoIterator<Item = Op>>(ops: I) -> Self {
        Self {
            ops: ops.into_iter().collect(),
        }
    }
}

/// One write. Records are expected normalised and valid by themselves; the store checks what depends on other records.
#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    /// Writes a node, and an instance and checks on it.
    Register(Box<Register>),
    /// Removes a node with all its instances and checks. An absent one is no error.
    DeregisterNode {
        /// The node.
        node: PeeredName,
    },
    /// Removes an instance with its checks. An absent one is no error.
    DeregisterService {
        /// The node.
        node: PeeredName,
        /// The instance's id.
        id: NameKey,
    },
    /// Removes a check. An absent one is no error.
    DeregisterCheck {
        /// The node.
        node: PeeredName,
        /// The check's id.
        check_id: NameKey,
    },
    /// Writes a check of an existing node or instance (store.md 1.5).
    SetCheck(Box<HealthCheck>),
    /// Writes a config entry.
    SetConfig {
        /// The entry.
        entry: Box<ConfigEntry>,
        /// If given, the row index that the stored entry must have; 0 means that there must be none (store.md 2.1).
        cas: Option<u64>,
    },
    /// Deletes a config entry. An absent one is no error.
    DeleteConfig {
        /// Which entry.
        key: EntryKey,
        /// If given, the row index that the stored entry must have.
        cas: Option<u64>,
    },
    /// Writes the set of trust roots (store.md 4.1). The store stamps the roots' row indexes.
    SetCaRoots {
        /// All roots.
        roots: Box<CaRoots>,
        /// If given, the row index that the stored set must have; 0 means that there must be none.
        cas: Option<u64>,
    },
    /// Writes the CA configuration.
    SetCaConfig {
        /// The configuration.
        config: Box<CaConfig>,
        /// If given, the row index that the stored configuration must have; 0 means that there must be none.
        cas: Option<u64>,
    },
    /// Writes or removes (`None`) an opaque state.
    SetState {
        /// Its name.
        name: SmolStr,
        /// The bytes.
        state: Option<OpaqueState>,
    },
}

/// A node with an instance and checks on it. Parts equal to what is stored stay untouched (store.md 2.1).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Register {
    /// The node; its peer is that of the whole registration.
    pub node: Node,
    /// An instance on it.
    pub service: Option<ServiceInstance>,
    /// A check of the node or of an instance on it.
    pub check: Option<HealthCheck>,
    /// More checks of the node or of instances on it.
    pub checks: Vec<HealthCheck>,
    /// Leave the node as it is if it exists.
    pub skip_node_update: bool,
}

/// How a transaction ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// The store index afterwards.
    pub index: u64,
    /// Whether anything changed: a transaction that writes only what is stored already leaves the index (store.md 2.1).
    pub changed: bool,
    /// The positions of writes whose expected row index didn't match. If there are any, nothing was written.
    pub stale: Vec<usize>,
}

impl Applied {
    /// Whether the store is now as the transaction wants it, which is so unless an expected row index didn't match.
    #[must_use]
    pub fn applied(&self) -> bool {
        self.stale.is_empty()
    }
}

/// Why a transaction was refused. Nothing of it was stored, the index is unchanged, and nobody was woken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Writes that contradict what is stored.
    #[error("{}", lines(.0))]
    Refused(Vec<Refusal>),
    /// The configuration wouldn't hold together afterwards (store.md 3.18).
    #[error("{}", lines(.0))]
    Inconsistent(Vec<String>),
    /// The back end couldn't read or keep the records.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// One problem of one write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Where in the transaction, e.g. `Ops[2].Register.Checks[0]`.
    pub place: String,
    /// What is wrong, and what mends it.
    pub problem: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.problem)
    }
}

fn lines(problems: &[impl ToString]) -> String {
    let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
    lines.join("\n")
}

/// Judges what a transaction would make of the config entries, before it is committed (store.md 3.18). Called under the
/// writer's lock: it must not write to the store.
pub trait WriteCheck: Send + Sync {
    /// Whether the entries written or deleted (`entries`, sorted) may be so.
    ///
    /// # Errors
    /// One sentence per problem; the transaction is then refused.
    fn check(
        &self,
        before: &StoreSnapshot,
        after: &StoreSnapshot,
        entries: &[EntryKey],
    ) -> Result<(), Vec<String>>;
}

/// A [`WriteCheck`] that accepts everything.
#[derive(Debug, Clone, Copy, Default)]
pub struct AllowAll;

impl WriteCheck for AllowAll {
    fn check(
        &self,
        _before: &StoreSnapshot,
        _after: &StoreSnapshot,
        _entries: &[EntryKey],
    ) -> Result<(), Vec<String>> {
        Ok(())
    }
}
