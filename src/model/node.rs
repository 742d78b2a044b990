//! Catalog nodes.

use std::collections::BTreeMap;

use crate::model::decode::record;

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
