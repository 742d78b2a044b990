//! From records as clients write them to operations of the store.

use crate::model::{self, CatalogDeregistration, CatalogRegistration, NameKey};
use crate::store::{Op, PeeredName, Register, Transaction};

/// A registration in a datacenter, which it need not name.
pub(super) fn register(registration: CatalogRegistration, datacenter: &str) -> Op {
    let mut node = registration.to_node();
    if node.datacenter.is_empty() {
        datacenter.clone_into(&mut node.datacenter);
    }
    Op::Register(Box::new(Register {
        node,
        checks: registration.all_checks().cloned().collect(),
        service: registration.service,
        skip_node_update: registration.skip_node_update,
    }))
}

/// What a deregistration names: a service before a check before the node.
pub(super) fn deregister(what: &CatalogDeregistration) -> Op {
    let node = PeeredName::new(&what.peer_name, &what.node);
    if !what.service_id.is_empty() {
        let id = NameKey::new(&what.service_id);
        Op::DeregisterService { node, id }
    } else if !what.check_id.is_empty() {
        let check_id = NameKey::new(&what.check_id);
        Op::DeregisterCheck { node, check_id }
    } else {
        Op::DeregisterNode { node }
    }
}

/// A transaction; operations keep their order.
pub(super) fn transaction(transaction: model::Transaction, datacenter: &str) -> Transaction {
    let op = |op| match op {
        model::Op::Register(registration) => Some(register(*registration, datacenter)),
        model::Op::Deregister(what) => Some(deregister(&what)),
        model::Op::Config(entry) => Some(Op::SetConfig { entry, cas: None }),
        // A kind that isn't known was refused when the transaction was read.
        model::Op::DeleteConfig(which) => {
            which.key().map(|key| Op::DeleteConfig { key, cas: None })
        }
        model::Op::Check(check) => Some(Op::SetCheck(check)),
    };
    transaction.ops.into_iter().filter_map(op).collect()
}
