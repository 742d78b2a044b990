//! Intentions out of service-intentions entries.

use crate::model::{ConfigEntry, Intention, ServiceIntentions, SourceIntention, precedence};
use crate::store::row::Row;

/// The intentions of some service-intentions entries, in the order in which they decide: precedence, then names
/// (store.md 4.12).
pub(super) fn in_order<'a>(entries: impl Iterator<Item = &'a Row<ConfigEntry>>) -> Vec<Intention> {
    let mut all: Vec<Intention> = entries
        .filter_map(|row| match &*row.value {
            ConfigEntry::ServiceIntentions(entry) => Some(entry),
            _ => None,
        })
        .flat_map(|entry| {
            entry
                .sources
                .iter()
                .map(move |source| flatten(entry, source))
        })
        .collect();
    all.sort_by(|a, b| {
        let key = |i: &Intention| -> [String; 7] {
            [
                i.source_peer.clone(),
                i.source_partition.clone(),
                i.source_ns.clone(),
                i.source_name.clone(),
                i.destination_partition.clone(),
                i.destination_ns.clone(),
                i.destination_name.clone(),
            ]
        };
        b.precedence
            .cmp(&a.precedence)
            .then_with(|| key(a).cmp(&key(b)))
    });
    all
}

fn flatten(entry: &ServiceIntentions, source: &SourceIntention) -> Intention {
    Intention {
        source_name: source.name.clone(),
        source_ns: source.namespace.clone(),
        source_partition: source.partition.clone(),
        source_peer: source.peer.clone(),
        destination_name: entry.name.clone(),
        destination_ns: entry.namespace.clone(),
        destination_partition: entry.partition.clone(),
        source_type: if source.kind.is_empty() {
            "consul".to_owned()
        } else {
            source.kind.clone()
        },
        action: source.action,
        permissions: source.permissions.clone(),
        jwt: entry.jwt.clone(),
        description: source.description.clone(),
        meta: entry.meta.clone(),
        precedence: precedence(&entry.name, &source.name),
    }
}
