//! What is written into the catalog directly: `/v1/catalog/register` and `/v1/catalog/deregister`.

use std::collections::{BTreeMap, BTreeSet};

use crate::hcl::Value;
use crate::model::check::HealthCheck;
use crate::model::decode::{Place, Problems, record};
use crate::model::node::{Locality, Node};
use crate::model::rules;
use crate::model::service::ServiceInstance;
use crate::model::validate::{self, Validate};

record! {
    /// A node, with an instance and checks on it.
    pub struct CatalogRegistration {
        /// The node's UUID, optional.
        id: String = "ID",
        /// The node's name.
        node: String = "Node" always,
        /// The node's address; needed unless `SkipNodeUpdate`.
        address: String = "Address",
        /// The node's datacenter.
        datacenter: String = "Datacenter",
        /// The node's addresses by tag.
        tagged_addresses: BTreeMap<String, String> = "TaggedAddresses",
        /// The node's free labels.
        node_meta: BTreeMap<String, String> = "NodeMeta",
        /// The node's region and zone.
        locality: Option<Locality> = "Locality",
        /// An instance on the node.
        service: Option<ServiceInstance> = "Service",
        /// One check.
        check: Option<HealthCheck> = "Check",
        /// Several checks.
        checks: Vec<HealthCheck> = "Checks",
        /// Leave a node that is known as it is.
        skip_node_update: bool = "SkipNodeUpdate",
        /// The peer that all of it is imported from, or empty.
        peer_name: String = "PeerName",
        /// Partition; only `default`.
        partition: String = "Partition",
    }
    ignored ["Token", "WriteRequest"]
}

impl CatalogRegistration {
    /// Reads, checks and normalizes a registration; the problems that come with it are warnings.
    ///
    /// # Errors
    /// All problems with their places, if there is an error among them.
    pub fn read(document: &Value) -> Result<(Self, Problems), Problems> {
        validate::read(document)
    }

    /// The node.
    #[must_use]
    pub fn to_node(&self) -> Node {
        Node {
            id: self.id.clone(),
            node: self.node.clone(),
            address: self.address.clone(),
            datacenter: self.datacenter.clone(),
            tagged_addresses: self.tagged_addresses.clone(),
            meta: self.node_meta.clone(),
            locality: self.locality.clone(),
            partition: self.partition.clone(),
            peer_name: self.peer_name.clone(),
        }
    }

    /// All checks: the single one, then the list. After normalization each names its node.
    pub fn all_checks(&self) -> impl Iterator<Item = &HealthCheck> {
        self.check.iter().chain(&self.checks)
    }

    fn checks_with_places(&self) -> impl Iterator<Item = (Option<usize>, &HealthCheck)> {
        let single = self.check.iter().map(|check| (None, check));
        single.chain(self.checks.iter().enumerate().map(|(i, c)| (Some(i), c)))
    }
}

impl Validate for CatalogRegistration {
    fn validate(&self, at: &Place<'_>, problems: &mut Problems) {
        let mut node = self.to_node();
        if self.skip_node_update && node.address.is_empty() {
            // The store has the address; only that there is one can't be asked for here.
            "127.0.0.1".clone_into(&mut node.address);
        }
        let meta = std::mem::take(&mut node.meta);
        node.validate(at, problems);
        rules::meta(&meta, &at.key("NodeMeta"), problems);
        if let Some(service) = &self.service {
            let at = at.key("Service");
            service.validate(&at, problems);
            if !service.peer_name.is_empty() && service.peer_name != self.peer_name {
                problems.error(
                    &at.key("PeerName"),
                    "differs from the registration's PeerName",
                );
            }
        }
        let list = at.key("Checks");
        let mut seen = BTreeSet::new();
        for (index, check) in self.checks_with_places() {
            let here = match index {
                None => at.key("Check"),
                Some(i) => list.index(i),
            };
            check.check(false, &here, problems);
            if !check.node.is_empty() && !check.node.eq_ignore_ascii_case(&self.node) {
                problems.error(
                    &here.key("Node"),
                    format!(
                        "the check is of the node {}, not of the registered node {}",
                        rules::shown(&check.node),
                        rules::shown(&self.node)
                    ),
                );
            }
            let id = if check.check_id.is_empty() {
                &check.name
            } else {
                &check.check_id
            };
            if !seen.insert(id) && !id.is_empty() {
                problems.error(
                    &here.key("CheckID"),
                    format!("the check {} is given twice", rules::shown(id)),
                );
            }
        }
    }

    fn enterprise_only(&self, at: &Place<'_>, problems: &mut Problems) {
        rules::default_tenancy("Partition", &self.partition, at, problems);
        if let Some(service) = &self.service {
            service.enterprise_only(&at.key("Service"), problems);
        }
        let list = at.key("Checks");
        for (index, check) in self.checks_with_places() {
            let here = match index {
                None => at.key("Check"),
                Some(i) => list.index(i),
            };
            check.enterprise_only(&here, problems);
        }
    }

    fn normalize(&mut self) {
        self.id.make_ascii_lowercase();
        rules::clear_default(&mut self.partition);
        if let Some(service) = &mut self.service {
            service.normalize();
            if service.peer_name.is_empty() {
                service.peer_name.clone_from(&self.peer_name);
            }
        }
        for check in self.check.iter_mut().chain(&mut self.checks) {
            check.normalize();
            check.node.clone_from(&self.node);
            if check.peer_name.is_empty() {
                check.peer_name.clone_from(&self.peer_name);
            }
        }
    }
}

record! {
    /// What to remove: a check, else an instance with its checks, else a node with all that is on it.
    pub struct CatalogDeregistration {
        /// The node's name.
        node: String = "Node" always,
        /// An instance on it.
        service_id: String = "ServiceID",
        /// A check on it.
        check_id: String = "CheckID",
        /// The node's datacenter.
        datacenter: String = "Datacenter",
        /// The peer that it was imported from, or empty.
        peer_name: String = "PeerName",
        /// Namespace; only `default`.
        namespace: String = "Namespace",
        /// Partition; only `default`.
        partition: String = "Partition",
    }
    ignored ["Address", "Token", "WriteRequest"]
}

impl CatalogDeregistration {
    /// Reads, checks and normalizes a deregistration; the problems that come with it are warnings.
    ///
    /// # Errors
    /// All problems with their places, if there is an error among them.
    pub fn read(document: &Value) -> Result<(Self, Problems), Problems> {
        validate::read(document)
    }
}

impl Validate for CatalogDeregistration {
    fn validate(&self, at: &Place<'_>, problems: &mut Problems) {
        rules::plain_text("node name", &self.node, &at.key("Node"), problems);
        for (key, id) in [("ServiceID", &self.service_id), ("CheckID", &self.check_id)] {
            if !id.is_empty() {
                rules::plain_text(key, id, &at.key(key), problems);
            }
        }
        rules::optional_mesh_name(
            "datacenter name",
            &self.datacenter,
            &at.key("Datacenter"),
            problems,
        );
    }

    fn enterprise_only(&self, at: &Place<'_>, problems: &mut Problems) {
        rules::only_default(&self.namespace, &self.partition, at, problems);
    }

    fn normalize(&mut self) {
        rules::clear_default(&mut self.namespace);
        rules::clear_default(&mut self.partition);
    }
}
