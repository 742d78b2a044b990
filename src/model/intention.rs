//! One intention as proxies read it: a source and a destination (store.md 4.12).

use std::collections::BTreeMap;

use crate::model::config_entry::{IntentionAction, IntentionJwt, IntentionPermission};
use crate::model::decode::record;

record! {
    /// Whether a source may call a destination.
    pub struct Intention {
        /// The calling service, or `*`.
        source_name: String = "SourceName" always,
        /// Namespace of the caller.
        source_ns: String = "SourceNS",
        /// Partition of the caller.
        source_partition: String = "SourcePartition",
        /// Peer of the caller.
        source_peer: String = "SourcePeer",
        /// The service called, or `*`.
        destination_name: String = "DestinationName" always,
        /// Namespace of the service called.
        destination_ns: String = "DestinationNS",
        /// Partition of the service called.
        destination_partition: String = "DestinationPartition",
        /// Always `consul`.
        source_type: String = "SourceType",
        /// Decision, unless permissions decide.
        action: IntentionAction = "Action",
        /// Rules about requests.
        permissions: Vec<IntentionPermission> = "Permissions",
        /// Tokens needed.
        jwt: Option<IntentionJwt> = "JWT",
        /// For people.
        description: String = "Description",
        /// Free labels of the entry.
        meta: BTreeMap<String, String> = "Meta",
        /// Higher decides first.
        precedence: u32 = "Precedence" always,
    }
    ignored ["ID", "CreatedAt", "UpdatedAt", "CreateIndex", "ModifyIndex", "Hash"]
}
