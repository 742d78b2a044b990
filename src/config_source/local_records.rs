//! The local state on disk: kept in the store beside the catalog, each service in one commit with its catalog record
//! (decision R2).
//!
//! What is kept of a service are its definition with its owner and the mark of a sidecar, so that a restart continues as
//! if nothing had happened (FC-041). That something is kept also says that the catalog's record was written by the local
//! state and may be removed by it. The states of checks come back from the catalog.

use std::collections::BTreeMap;

use smol_str::{SmolStr, format_smolstr};
use triomphe::Arc;

use crate::hcl::Value;
use crate::model::{
    CheckStatus, Decode, HealthCheck, NameKey, Place, Problems, ServiceInstance, record,
};
use crate::store::{OpaqueState, StoreSnapshot};

use super::local_state::LocalState;
use super::local_tables::{LocalCheck, LocalEntry, LocalTables, Origin};

/// What the store has kept of the local state can't be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{name}: the store's copy of the local state can't be read: {problem}; restore or remove the data directory"
)]
pub struct RestoreError {
    /// Name of the store's opaque state.
    pub name: SmolStr,
    /// What is wrong.
    pub problem: String,
}

record! {
    /// A service as it is kept.
    pub struct KeptService {
        /// Instance.
        service: ServiceInstance = "Service",
        /// Token.
        token: String = "Token",
        /// Owner.
        origin: String = "Origin",
        /// The service that it is the sidecar of.
        sidecar_of: String = "SidecarOf",
        /// Checks.
        checks: Vec<KeptCheck> = "Checks",
    }
}

record! {
    /// A check as it is kept.
    pub struct KeptCheck {
        /// The check, without its state.
        check: HealthCheck = "Check",
        /// Owner, if it was registered by itself.
        alone: Option<String> = "Alone",
    }
}

record! {
    /// The checks of the node as they are kept.
    pub struct KeptNode {
        /// The checks.
        checks: Vec<KeptCheck> = "Checks",
    }
}

/// Name of the state that keeps a service.
pub(super) fn service_state(node: &NameKey, id: &NameKey) -> SmolStr {
    format_smolstr!("local-service/{node}/{id}")
}

/// Name of the state that keeps the checks of a node.
pub(super) fn node_state(node: &NameKey) -> SmolStr {
    format_smolstr!("local-node/{node}")
}

/// What to keep of a service. Equal records give equal bytes, whatever the states of the checks.
pub(super) fn encode_service(entry: &LocalEntry) -> OpaqueState {
    encode(&KeptService {
        service: (*entry.service).clone(),
        token: entry.token.to_string(),
        origin: entry.origin.as_str().to_owned(),
        sidecar_of: entry
            .sidecar_of
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default(),
        checks: entry.checks.values().map(keep_check).collect(),
    })
}

/// What to keep of the node's checks; nothing if there are none.
pub(super) fn encode_node_checks<'a>(
    checks: impl Iterator<Item = &'a LocalCheck>,
) -> Option<OpaqueState> {
    let checks: Vec<KeptCheck> = checks.map(keep_check).collect();
    (!checks.is_empty()).then(|| encode(&KeptNode { checks }))
}

fn encode(value: &impl serde::Serialize) -> OpaqueState {
    // Plain records with text keys: there is nothing in them that JSON can't hold.
    OpaqueState(serde_json::to_vec(value).unwrap_or_default())
}

fn keep_check(check: &LocalCheck) -> KeptCheck {
    KeptCheck {
        check: HealthCheck {
            status: CheckStatus::default(),
            output: String::new(),
            ..(*check.check).clone()
        },
        alone: check.alone.as_ref().map(|o| o.as_str().to_owned()),
    }
}

fn decode<T: Decode>(name: SmolStr, state: &OpaqueState) -> Result<T, RestoreError> {
    let refuse = |problem| RestoreError {
        name: name.clone(),
        problem,
    };
    let json: serde_json::Value =
        serde_json::from_slice(&state.0).map_err(|e| refuse(e.to_string()))?;
    let mut problems = Problems::default();
    match T::decode(&Value::from_json(&json), &Place::ROOT, &mut problems) {
        Some(value) if problems.is_ok() => Ok(value),
        _ => Err(refuse(problems.text())),
    }
}

/// Everything that is kept of the local state, of any node that the agent has had.
pub(super) struct Kept {
    /// Services by node and id.
    pub services: Vec<(NameKey, NameKey, KeptService)>,
    /// Checks of nodes.
    pub node_checks: Vec<(NameKey, Vec<KeptCheck>)>,
}

pub(super) fn read(store: &StoreSnapshot) -> Result<Kept, RestoreError> {
    let reader = store.reader();
    let mut kept = Kept {
        services: Vec::new(),
        node_checks: Vec::new(),
    };
    for node in reader.nodes() {
        let node_key = NameKey::new(&node.node);
        let name = node_state(&node_key);
        if let Some(state) = reader.state(&name) {
            let own: KeptNode = decode(name, state)?;
            kept.node_checks.push((node_key.clone(), own.checks));
        }
        for instance in reader.node_services(&node.node) {
            let id = NameKey::new(&instance.id);
            let name = service_state(&node_key, &id);
            if let Some(state) = reader.state(&name) {
                kept.services
                    .push((node_key.clone(), id, decode(name, state)?));
            }
        }
    }
    Ok(kept)
}

impl LocalState {
    /// Puts back what the store has kept of the local state, with the states that the catalog has of its checks. To be
    /// called once, before anything else is registered; records of files come back with their owners, so that files that
    /// haven't changed need not be loaded again. On an empty store it does nothing.
    ///
    /// # Errors
    /// What is kept can't be read; nothing is changed then.
    pub fn restore(&self, store: &StoreSnapshot) -> Result<(), RestoreError> {
        let kept = read(store)?;
        let reader = store.reader();
        let mut states: BTreeMap<(NameKey, NameKey), (CheckStatus, String)> = BTreeMap::new();
        for node in reader.nodes() {
            for row in reader.node_checks(&node.node) {
                let key = (NameKey::new(&node.node), NameKey::new(&row.check_id));
                states.insert(key, (row.status, row.output.clone()));
            }
        }
        let check = |node: &NameKey, kept: KeptCheck| {
            let mut check = kept.check;
            self.node().as_str().clone_into(&mut check.node);
            let key = (node.clone(), NameKey::new(&check.check_id));
            if let Some((status, output)) = states.get(&key) {
                check.status = *status;
                check.output.clone_from(output);
            }
            LocalCheck {
                check: Arc::new(check),
                alone: kept.alone.as_deref().map(Origin::from_text),
            }
        };
        let mut tables = LocalTables::default();
        for (node, _, kept) in kept.services {
            let checks = kept.checks.into_iter().map(|c| check(&node, c));
            let parent = Some(kept.sidecar_of).filter(|id| !id.is_empty());
            tables.load(LocalEntry {
                service: Arc::new(kept.service),
                token: SmolStr::from(kept.token),
                origin: Origin::from_text(&kept.origin),
                sidecar_of: parent.as_ref().map(NameKey::from),
                checks: checks
                    .map(|c| (NameKey::new(&c.check.check_id), c))
                    .collect(),
            });
        }
        for (node, checks) in kept.node_checks {
            for kept in checks {
                tables.load_node_check(check(&node, kept));
            }
        }
        self.load(tables);
        Ok(())
    }
}
