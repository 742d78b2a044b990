//! Catalog nodes.

use std::collections::BTreeMap;

use crate::model::decode::{Place, Problems, record};
use crate::model::rules;
use crate::model::validate::Validate;

record! {
    /// A machine that runs services (store.md 1.1).
    pub struct Node {
        /// Optional UUID.
        id: String = "ID",
        /// Name; with the peer the primary key.
        node: String = "Node" always,
        /// Address; used where a service has none.
        address: String = "Address" always,
        /// The datacenter it is in.
        datacenter: String = "Datacenter" always,
        /// Addresses by tag: `lan`, `wan`, `lan_ipv4`, ...
        tagged_addresses: BTreeMap<String, String> = "TaggedAddresses",
        /// Free labels.
        meta: BTreeMap<String, String> = "Meta",
        /// Region and zone.
        locality: Option<Locality> = "Locality",
        /// Partition; only `default` is supported.
        partition: String = "Partition",
        /// The peer that it was imported from, or empty.
        peer_name: String = "PeerName",
    }
    ignored ["CreateIndex", "ModifyIndex"]
}

record! {
    /// Where a node or service is.
    pub struct Locality {
        /// Region.
        region: String = "Region",
        /// Zone within the region.
        zone: String = "Zone",
    }
}

record! {
    /// An address and port under a tag.
    pub struct TaggedAddress {
        /// Address.
        address: String = "Address" always,
        /// Port; 0 means the service's own.
        port: u16 = "Port" always,
    }
}

impl Node {
    /// The best address from outside the datacenter (`wan`) or from within (store.md 1.1).
    #[must_use]
    pub fn best_address(&self, wan: bool) -> &str {
        let tagged = self.tagged_addresses.get("wan").filter(|a| !a.is_empty());
        match tagged {
            Some(address) if wan => address,
            _ => &self.address,
        }
    }
}

impl Validate for Node {
    /// store.md 1.1.
    fn validate(&self, at: &Place<'_>, problems: &mut Problems) {
        rules::plain_text("node name", &self.node, &at.key("Node"), problems);
        rules::plain_text(
            "node's address",
            &self.address,
            &at.key("Address"),
            problems,
        );
        if !self.id.is_empty() && uuid::Uuid::parse_str(&self.id).is_err() {
            problems.error(
                &at.key("ID"),
                format!("{} is not a UUID", rules::shown(&self.id)),
            );
        }
        rules::optional_mesh_name(
            "datacenter name",
            &self.datacenter,
            &at.key("Datacenter"),
            problems,
        );
        rules::optional_mesh_name("peer name", &self.peer_name, &at.key("PeerName"), problems);
        rules::meta(&self.meta, &at.key("Meta"), problems);
    }

    fn enterprise_only(&self, at: &Place<'_>, problems: &mut Problems) {
        rules::default_tenancy("Partition", &self.partition, at, problems);
    }

    fn normalize(&mut self) {
        rules::clear_default(&mut self.partition);
        self.id.make_ascii_lowercase();
    }
}
