//! Durable back ends: what is kept of each commit, and what a store begins with.

use smol_str::SmolStr;

use crate::model::{CaConfig, CaRoots, ConfigEntry, EntryKey, HealthCheck, Node, ServiceInstance};
use crate::store::key::{CheckKey, InstanceKey, PeeredName};
use crate::store::row::Row;

/// The key of a row in any table.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RowKey {
    /// A node.
    Node(PeeredName),
    /// An instance.
    Service(InstanceKey),
    /// A check.
    Check(CheckKey),
    /// A config entry.
    Config(EntryKey),
    /// The trust roots.
    CaRoots,
    /// The CA configuration.
    CaConfig,
    /// An opaque state.
    State(SmolStr),
}

/// A row of any table, with its key.
#[derive(Debug, Clone, PartialEq)]
pub enum AnyRow {
    /// A node.
    Node(Row<Node>),
    /// An instance.
    Service {
        /// The node that it is on.
        node: PeeredName,
        /// The instance.
        row: Row<ServiceInstance>,
    },
    /// A check.
    Check(Row<HealthCheck>),
    /// A config entry.
    Config(Row<ConfigEntry>),
    /// The trust roots.
    CaRoots(Row<CaRoots>),
    /// The CA configuration. May hold a private key, which its JSON leaves out: see `PrivateKey::expose_pem`.
    CaConfig(Row<CaConfig>),
    /// An opaque state.
    State {
        /// Its name.
        name: SmolStr,
        /// The state.
        row: Row<OpaqueState>,
    },
}

impl AnyRow {
    /// The row's key.
    #[must_use]
    pub fn key(&self) -> RowKey {
        match self {
            Self::Node(row) => RowKey::Node(PeeredName::new(&row.peer_name, &row.node)),
            Self::Service { node, row } => RowKey::Service(InstanceKey::new(node, &row.id)),
            Self::Check(row) => RowKey::Check(CheckKey::of(row)),
            Self::Config(row) => RowKey::Config(row.key()),
            Self::CaRoots(_) => RowKey::CaRoots,
            Self::CaConfig(_) => RowKey::CaConfig,
            Self::State { name, .. } => RowKey::State(name.clone()),
        }
    }
}

/// Bytes that another part of the program keeps with the records, in one commit with them: the authority's state, the
/// hashes of files. They may be secret, so `{:?}` shows only how many there are, and there is no JSON form.
#[derive(Clone, PartialEq, Eq)]
pub struct OpaqueState(pub Vec<u8>);

impl std::fmt::Debug for OpaqueState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "OpaqueState({} bytes)", self.0.len())
    }
}

/// What one commit changed.
#[derive(Debug, Clone, PartialEq)]
pub struct CommitRecord {
    /// The store index of the commit.
    pub index: u64,
    /// The rows written (`Some`) and removed (`None`), by key.
    pub rows: Vec<(RowKey, Option<AnyRow>)>,
}

/// All rows of a store at one index.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Image {
    /// The store index.
    pub index: u64,
    /// The rows, by table (in the order of [`RowKey`]) and key.
    pub rows: Vec<AnyRow>,
}

/// Keeps commits durable. Called from one thread at a time; it must not call the store.
///
/// Nothing of a commit is seen by a reader, and its writer isn't answered, before [`Backend::persist`] has returned.
/// Writers don't wait for each other to be kept: while a group of commits is being kept, others draft theirs on top, and
/// these are the next group.
pub trait Backend: Send {
    /// What was kept, read once when a store is made; none for a new store.
    ///
    /// # Errors
    /// If it can't be read.
    fn load(&mut self) -> Result<Option<Image>, BackendError>;

    /// Keeps a group of commits, in the order of their indexes: all of them, or none. When this returns, they must survive
    /// whatever the back end promises to survive. A group is never empty.
    ///
    /// # Errors
    /// If they can't be kept; their transactions are then refused, and the next commit has the index of the first again.
    fn persist(&mut self, commits: &[CommitRecord]) -> Result<(), BackendError>;

    /// Replaces everything kept by an image.
    ///
    /// # Errors
    /// If it can't be kept; the store then stays as it was.
    fn replace(&mut self, image: &Image) -> Result<(), BackendError>;
}

/// Why a back end failed. A clone tells the same: all writers of a group get one.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the store's records could not be {doing}: {cause}")]
pub struct BackendError {
    /// `read` or `kept`.
    pub doing: &'static str,
    /// What happened.
    #[source]
    pub cause: std::sync::Arc<dyn std::error::Error + Send + Sync>,
}

impl BackendError {
    /// What `doing` (`read` or `kept`) failed of.
    pub fn new(
        doing: &'static str,
        cause: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self {
            doing,
            cause: cause.into().into(),
        }
    }
}

/// A [`Backend`] that keeps nothing: the store lives in memory alone.
#[derive(Debug, Clone, Copy, Default)]
pub struct MemoryBackend;

impl Backend for MemoryBackend {
    fn load(&mut self) -> Result<Option<Image>, BackendError> {
        Ok(None)
    }

    fn persist(&mut self, _commits: &[CommitRecord]) -> Result<(), BackendError> {
        Ok(())
    }

    fn replace(&mut self, _image: &Image) -> Result<(), BackendError> {
        Ok(())
    }
}
