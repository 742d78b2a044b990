//! The authority's state for a durable back end (decision: roots, keys and trust domain survive a restart).

use std::time::SystemTime;

use serde::{Deserialize, Serialize, Serializer};
use smol_str::SmolStr;

use super::CaError;
use crate::model::{CaConfig, CaRoot, PrivateKey, timestamp};

/// The version of the written form.
pub(super) const VERSION: u32 = 1;

/// Everything that an [`super::Authority`] needs to go on after a restart.
///
/// Its serde form **contains private keys**: it is for a protected store, and for nothing else. Its `Debug` doesn't.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct CaState {
    pub(super) version: u32,
    pub(super) cluster_id: SmolStr,
    pub(super) datacenter: SmolStr,
    /// How often an authority was made from this state: the upper part of its serial numbers.
    pub(super) generation: u64,
    pub(super) config: CaConfig,
    #[serde(serialize_with = "exposed", default = "no_key")]
    pub(super) own_key: PrivateKey,
    #[serde(serialize_with = "exposed")]
    pub(super) active_key: PrivateKey,
    pub(super) roots: Vec<StoredRoot>,
}

/// A root with the field that its public form hides.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct StoredRoot {
    pub(super) root: CaRoot,
    #[serde(with = "timestamp::optional", default)]
    pub(super) rotated_out_at: Option<SystemTime>,
}

impl CaState {
    /// The state as bytes (JSON) with the private keys: for a protected store.
    ///
    /// # Errors
    /// A time that can't be written.
    pub fn to_bytes(&self) -> Result<Vec<u8>, CaError> {
        serde_json::to_vec(self).map_err(|problem| CaError::State {
            reason: problem.to_string(),
        })
    }

    /// Reads what [`CaState::to_bytes`] wrote.
    ///
    /// # Errors
    /// Bytes of another kind or version.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, CaError> {
        let state: Self = serde_json::from_slice(bytes).map_err(|problem| CaError::State {
            // The library's message may quote what it stumbled over; where it did is enough.
            reason: format!(
                "line {}, column {} isn't what this version writes",
                problem.line(),
                problem.column()
            ),
        })?;
        if state.version == VERSION {
            return Ok(state);
        }
        Err(CaError::State {
            reason: format!(
                "it has version {}, this program reads {VERSION}",
                state.version
            ),
        })
    }

    /// The state to go on from if it may be an old one: serial numbers skip what may have been signed since. How far is
    /// random, so that two restores of one backup don't meet either.
    #[must_use]
    pub fn restored(mut self) -> Self {
        let (random, _) = uuid::Uuid::new_v4().as_u64_pair();
        self.generation += 1 + (random & 0xFFFF);
        self
    }

    /// The datacenter that the authority signs for.
    #[must_use]
    pub fn datacenter(&self) -> &SmolStr {
        &self.datacenter
    }

    /// The cluster id: the trust domain without its `.consul`.
    #[must_use]
    pub fn cluster_id(&self) -> &SmolStr {
        &self.cluster_id
    }
}

fn exposed<S: Serializer>(key: &PrivateKey, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(key.expose_pem())
}

fn no_key() -> PrivateKey {
    PrivateKey::from_pem("")
}
