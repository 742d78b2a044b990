//! Leaf certificates kept in the store, so that after a restart proxies go on with theirs: no herd of signatures, no new
//! secrets for Envoys.
//!
//! They are written by a thread of their own, many in one commit, after they were handed out: signing doesn't wait for a disk.
//! One that a crash loses is signed anew.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::SystemTime;

use crossbeam_channel::{Receiver, Sender, select, unbounded};
use parking_lot::Mutex;
use serde_json::{Value as Json, json};
use smol_str::{SmolStr, format_smolstr};

use crate::ca::LeafKeeper;
use crate::model::{IssuedCert, LeafRequest};
use crate::store::{AnyRow, Op, OpaqueState, Store, Transaction};
use crate::sync::Background;

/// What the names of their states begin with.
const PREFIX: &str = "leaf-certificate/";

/// The most that are kept: requests come from callers, and the disk is bounded.
const MOST: usize = 20_000;

/// See the module.
pub(super) struct KeptLeaves {
    /// What earlier processes kept and nobody has asked for yet, by name.
    found: Mutex<HashMap<SmolStr, IssuedCert>>,
    /// Every certificate that is kept, with its end.
    kept: Mutex<BTreeMap<SmolStr, SystemTime>>,
    write: Sender<(SmolStr, OpaqueState)>,
    thread: Background,
}

impl KeptLeaves {
    /// Reads what is kept, removes what is of no use any more, and starts to keep.
    pub fn start(store: &Arc<Store>, now: SystemTime) -> std::io::Result<Self> {
        let mut found = HashMap::new();
        let mut kept = BTreeMap::new();
        let mut gone = Vec::new();
        for row in store.image().rows {
            let AnyRow::State { name, row } = row else {
                continue;
            };
            if !name.starts_with(PREFIX) {
                continue;
            }
            match decode(&row.0).filter(|certificate| certificate.is_valid_at(now)) {
                Some(certificate) => {
                    kept.insert(name.clone(), certificate.valid_before);
                    found.insert(name, certificate);
                }
                None => gone.push(Op::SetState { name, state: None }),
            }
        }
        let (write, written) = unbounded();
        let of_thread = store.clone();
        let thread = Background::spawn("leaf-keeper", move |stopped| {
            apply(&of_thread, gone);
            keep_all(&of_thread, &written, stopped);
        })?;
        Ok(Self {
            found: Mutex::new(found),
            kept: Mutex::new(kept),
            write,
            thread,
        })
    }

    /// Ends the thread; it writes what it was given before.
    pub fn stop(&self) {
        self.thread.stop();
    }

    /// Whether there is room for it. Those that have ended make room at the next start.
    fn admit(&self, name: &SmolStr, certificate: &IssuedCert) -> bool {
        let mut kept = self.kept.lock();
        if kept.len() >= MOST && !kept.contains_key(name) {
            return false;
        }
        kept.insert(name.clone(), certificate.valid_before);
        true
    }
}

impl LeafKeeper for KeptLeaves {
    fn take(&self, request: &LeafRequest) -> Option<IssuedCert> {
        self.found.lock().remove(&name_of(request))
    }

    fn keep(&self, request: &LeafRequest, certificate: &triomphe::Arc<IssuedCert>) {
        let name = name_of(request);
        if let Some(state) = encode(certificate)
            && self.admit(&name, certificate)
        {
            // The thread has ended only if everything ends.
            let _ = self.write.send((name, state));
        }
    }
}

fn keep_all(store: &Store, written: &Receiver<(SmolStr, OpaqueState)>, stopped: &Receiver<()>) {
    loop {
        let first = select! {
            recv(written) -> first => first.ok(),
            recv(stopped) -> _ => None,
        };
        let ended = first.is_none();
        let all: BTreeMap<SmolStr, OpaqueState> =
            first.into_iter().chain(written.try_iter()).collect();
        let ops = all.into_iter().map(|(name, state)| Op::SetState {
            name,
            state: Some(state),
        });
        apply(store, ops.collect());
        if ended {
            return;
        }
    }
}

fn apply(store: &Store, ops: Vec<Op>) {
    if let Err(error) = store.apply(Transaction::from(ops)) {
        tracing::warn!(%error, "certificates are not kept: a restart signs them anew");
    }
}

/// The state's name. Requests that differ have texts that differ; a version that writes them otherwise signs anew.
fn name_of(request: &LeafRequest) -> SmolStr {
    let text = format!("{request:?}");
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    let hex: String = digest.as_ref()[..16]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format_smolstr!("{PREFIX}{hex}")
}

/// The certificate with its key, for the store alone (decision C1).
fn encode(certificate: &IssuedCert) -> Option<OpaqueState> {
    let public = certificate.to_json_with_private_key().ok()?;
    let state = json!({"Certificate": public, "AuthorityKeyID": certificate.authority_key_id});
    serde_json::to_vec(&state).ok().map(OpaqueState)
}

fn decode(bytes: &[u8]) -> Option<IssuedCert> {
    let mut state: Json = serde_json::from_slice(bytes).ok()?;
    let certificate: IssuedCert = serde_json::from_value(state["Certificate"].take()).ok()?;
    Some(IssuedCert {
        authority_key_id: state["AuthorityKeyID"].as_str()?.into(),
        ..certificate
    })
}
