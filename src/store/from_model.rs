//! Writes from the forms that files, callers and the HTTP API give them in.

use crate::model;
use crate::model::{CatalogDeregistration, CatalogRegistration, NameKey};
use crate::store::key::PeeredName;
use crate::store::transaction::{Op, Refusal, Register, StoreError, Transaction};

impl TryFrom<model::Transaction> for Transaction {
    type Error = StoreError;

    /// The writes of a transaction that was read (and so normalised and checked) by the model.
    ///
    /// # Errors
    /// If one deletes a config entry of an unknown kind, which reading would have refused.
    fn try_from(transaction: model::Transaction) -> Result<Self, StoreError> {
        let mut ops = Vec::with_capacity(transaction.ops.len());
        let mut problems = Vec::new();
        for (position, op) in transaction.ops.into_iter().enumerate() {
            ops.push(match op {
                model::Op::Register(registration) => (*registration).into(),
                model::Op::Deregister(deregistration) => deregistration.into(),
                model::Op::Config(entry) => Op::SetConfig { entry, cas: None },
                model::Op::Check(check) => Op::SetCheck(check),
                model::Op::DeleteConfig(deletion) => {
                    let Some(key) = deletion.key() else {
                        problems.push(Refusal {
                            place: format!("Ops[{position}].DeleteConfig.Kind"),
                            problem: format!("{:?} is no kind of config entry", deletion.kind),
                        });
                        continue;
                    };
                    Op::DeleteConfig { key, cas: None }
                }
            });
        }
        if problems.is_empty() {
            Ok(Self { ops })
        } else {
            Err(StoreError::Refused(problems))
        }
    }
}

impl From<CatalogRegistration> for Op {
    fn from(registration: CatalogRegistration) -> Self {
        Self::Register(Box::new(Register {
            node: registration.to_node(),
            service: registration.service,
            check: registration.check,
            checks: registration.checks,
            skip_node_update: registration.skip_node_update,
        }))
    }
}

impl From<CatalogDeregistration> for Op {
    /// A check if one is named, else an instance, else the node.
    fn from(names: CatalogDeregistration) -> Self {
        let node = PeeredName::new(&names.peer_name, &names.node);
        if !names.check_id.is_empty() {
            let check_id = NameKey::new(&names.check_id);
            Self::DeregisterCheck { node, check_id }
        } else if !names.service_id.is_empty() {
            let id = NameKey::new(&names.service_id);
            Self::DeregisterService { node, id }
        } else {
            Self::DeregisterNode { node }
        }
    }
}
