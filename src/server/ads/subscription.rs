//! What a client asks for of one type: whether everything, and which names.
//!
//! Kept apart from what the client holds (field case FC-014): a resource that vanishes for a while doesn't end the
//! subscription to it; only `resource_names_unsubscribe` does.

use std::collections::{BTreeSet, HashMap};

use smol_str::SmolStr;

use crate::xds::ResourceType;

/// The name that stands for every resource of a type.
pub(super) const ALL: &str = "*";

/// The subscription of a stream to one type.
#[derive(Debug, Default)]
pub(super) struct Subscription {
    registered: bool,
    wildcard: bool,
    /// Whether the client never said that it wants everything; it was concluded from a reconnect.
    inferred: bool,
    names: BTreeSet<SmolStr>,
}

impl Subscription {
    /// Whether the client has sent a request of this type.
    pub(super) fn registered(&self) -> bool {
        self.registered
    }

    /// Whether the client asks for every resource of the type.
    pub(super) fn wildcard(&self) -> bool {
        self.wildcard
    }

    /// The names that the client asks for one by one.
    pub(super) fn names(&self) -> &BTreeSet<SmolStr> {
        &self.names
    }

    /// Whether the client asks for this resource, by name or by wildcard.
    pub(super) fn covers(&self, name: &str) -> bool {
        self.wildcard || self.names.contains(name)
    }

    /// How many of these names would be new.
    pub(super) fn count_new(&self, names: &[String]) -> usize {
        names
            .iter()
            .filter(|name| !self.names.contains(name.as_str()))
            .count()
    }

    /// Takes note of the first request of the type on the stream. Decides about the wildcard:
    ///
    /// - `*` named: everything;
    /// - nothing named: everything, for clusters and listeners; nothing, for other types (decision X6, conformance row 17);
    /// - exactly the resources named that the client says it holds: that is how older Envoys resume a wildcard
    ///   subscription after a reconnect, so for clusters and listeners it means everything too (FC-016). A client that
    ///   names one resource it doesn't hold gets the named ones only (row 4).
    pub(super) fn register(
        &mut self,
        kind: ResourceType,
        subscribe: &[String],
        held: &HashMap<String, String>,
    ) {
        self.registered = true;
        if subscribe.iter().any(|name| name == ALL) {
            self.wildcard = true;
            return;
        }
        if !kind.empty_means_all() {
            return;
        }
        let resumed = !subscribe.is_empty() && {
            let named: BTreeSet<&str> = subscribe.iter().map(String::as_str).collect();
            named.len() == held.len() && named.iter().all(|name| held.contains_key(*name))
        };
        self.wildcard = subscribe.is_empty() || resumed;
        self.inferred = resumed;
    }

    /// Whether the wildcard is only inferred. From now on it isn't: the client has asked for it.
    pub(super) fn confirm_wildcard(&mut self) -> bool {
        std::mem::take(&mut self.inferred)
    }

    /// Adds a name, or the wildcard.
    pub(super) fn subscribe(&mut self, name: &str) {
        if name == ALL {
            self.wildcard = true;
        } else if !self.names.contains(name) {
            self.names.insert(SmolStr::new(name));
        }
    }

    /// Takes a name, or the wildcard, away. Whether it was there.
    pub(super) fn unsubscribe(&mut self, name: &str) -> bool {
        if name == ALL {
            std::mem::take(&mut self.wildcard)
        } else {
            self.names.remove(name)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(kind: ResourceType, names: &[&str], held: &[&str]) -> Subscription {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let held = held
            .iter()
            .map(|name| (name.to_string(), String::from("v")))
            .collect();
        let mut subscription = Subscription::default();
        subscription.register(kind, &names, &held);
        for name in &names {
            subscription.subscribe(name);
        }
        subscription
    }

    #[test]
    fn row_17_an_empty_first_request_is_a_wildcard_for_clusters_and_listeners_only() {
        for kind in ResourceType::ALL {
            let expected = matches!(kind, ResourceType::Cluster | ResourceType::Listener);
            assert_eq!(first(kind, &[], &[]).wildcard(), expected, "{kind}");
        }
    }

    #[test]
    fn row_17_a_star_is_a_wildcard_for_every_type() {
        for kind in ResourceType::ALL {
            let subscription = first(kind, &["*", "a"], &[]);
            assert!(subscription.wildcard(), "{kind}");
            assert!(subscription.names().contains("a") && !subscription.names().contains("*"));
        }
    }

    #[test]
    fn fc_016_naming_exactly_what_is_held_resumes_a_wildcard() {
        let resumed = |kind, names, held| first(kind, names, held).wildcard();
        assert!(resumed(ResourceType::Cluster, &["a", "b"], &["b", "a"]));
        assert!(resumed(ResourceType::Listener, &["a"], &["a"]));
        assert!(!resumed(ResourceType::Cluster, &["a", "b"], &["a"]));
        assert!(!resumed(ResourceType::Cluster, &["a"], &[]));
        assert!(!resumed(ResourceType::Endpoint, &["a"], &["a"]));
    }

    #[test]
    fn fc_022_names_and_wildcard_are_independent() {
        let mut subscription = first(ResourceType::Cluster, &[], &[]);
        subscription.subscribe("a");
        assert!(subscription.unsubscribe("a"));
        assert!(subscription.wildcard() && subscription.covers("a"));
        subscription.subscribe("b");
        assert!(subscription.unsubscribe("*"));
        assert!(subscription.covers("b") && !subscription.covers("a"));
        assert!(!subscription.unsubscribe("*"));
    }
}
