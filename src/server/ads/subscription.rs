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
    /// Whether a complete list has ever named anything: only before that, an empty one means everything.
    named: bool,
    names: BTreeSet<SmolStr>,
}

/// What makes a subscription equal to a complete list.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) subscribe: Vec<SmolStr>,
    pub(super) unsubscribe: Vec<SmolStr>,
}

impl Change {
    pub(super) fn is_empty(&self) -> bool {
        self.subscribe.is_empty() && self.unsubscribe.is_empty()
    }
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

    /// What has to change for a client that lists everything it asks for (state of the world). Registers the type if it
    /// is the first list.
    ///
    /// A list that is empty means everything, for clusters and listeners, as long as no list before has named anything;
    /// from then on it means nothing, and everything is called `*`.
    pub(super) fn change_to(&mut self, kind: ResourceType, list: &[String]) -> Change {
        if !self.registered {
            self.register(kind, list, &HashMap::new());
        }
        self.named |= !list.is_empty();
        if !self.named {
            return Change::default();
        }
        let listed: BTreeSet<&str> = list.iter().map(String::as_str).collect();
        let all = self.wildcard.then_some(ALL);
        let now = self.names.iter().map(SmolStr::as_str).chain(all);
        let gone = now.filter(|name| !listed.contains(name));
        let unsubscribe = gone.map(SmolStr::new).collect();
        let new = listed.into_iter().filter(|name| match *name {
            ALL => !self.wildcard,
            name => !self.names.contains(name),
        });
        Change {
            subscribe: new.map(SmolStr::new).collect(),
            unsubscribe,
        }
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
    fn a_complete_list_is_compared_with_what_is_asked_for() {
        let lists = |kind, lists: &[&[&str]]| {
            let mut subscription = Subscription::default();
            for list in lists {
                let list: Vec<String> = list.iter().map(ToString::to_string).collect();
                let change = subscription.change_to(kind, &list);
                for name in &change.unsubscribe {
                    assert!(subscription.unsubscribe(name));
                }
                for name in &change.subscribe {
                    subscription.subscribe(name);
                }
                assert!(subscription.change_to(kind, &list).is_empty());
            }
            let names: Vec<String> = subscription.names.iter().map(ToString::to_string).collect();
            (subscription.wildcard, names.join(","))
        };
        use ResourceType::{Cluster, Endpoint};
        assert_eq!(lists(Cluster, &[&[]]), (true, String::new()));
        assert_eq!(lists(Cluster, &[&[], &[]]), (true, String::new()));
        assert_eq!(lists(Cluster, &[&[], &["*", "a"]]), (true, "a".into()));
        assert_eq!(
            lists(Cluster, &[&["*", "a"], &["a", "b"]]),
            (false, "a,b".into())
        );
        assert_eq!(lists(Cluster, &[&[], &["a"]]), (false, "a".into()));
        // An empty list says something else once a list has named something.
        assert_eq!(lists(Cluster, &[&[], &["a"], &[]]), (false, String::new()));
        assert_eq!(lists(Cluster, &[&["a"], &[]]), (false, String::new()));
        assert_eq!(lists(Endpoint, &[&[]]), (false, String::new()));
        assert_eq!(
            lists(Endpoint, &[&["a", "b"], &["c", "b"]]),
            (false, "b,c".into())
        );
        assert_eq!(lists(Endpoint, &[&["*"], &[]]), (false, String::new()));
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
