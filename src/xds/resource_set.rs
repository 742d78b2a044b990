//! All resources of one proxy at one moment.
//!
//! A [`ResourceSet`] holds one sorted, shared slice per type. A set that is built upon the previous one
//! ([`ResourceSetBuilder::build_after`]) takes over every resource whose content is the same, and the whole slice of a
//! type in which nothing differs; "nothing changed in this type" is then one pointer comparison for each stream.

use std::collections::BTreeMap;

use smol_str::SmolStr;
use triomphe::Arc;

use super::resource::{Resource, ResourceType};

/// The resources of one type, sorted by name.
type Slice = Arc<[Arc<Resource>]>;

/// All resources of one proxy. Immutable; a clone is one reference count.
#[derive(Debug, Clone)]
pub struct ResourceSet {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    index: u64,
    slices: [Slice; ResourceType::COUNT],
}

impl ResourceSet {
    /// Starts a set that was computed at this store index.
    #[must_use]
    pub fn builder(index: u64) -> ResourceSetBuilder {
        ResourceSetBuilder {
            index,
            types: Default::default(),
        }
    }

    /// The store index of the snapshot it was generated from.
    #[must_use]
    pub fn index(&self) -> u64 {
        self.inner.index
    }

    /// The resources of one type, sorted by name.
    #[must_use]
    pub fn of(&self, kind: ResourceType) -> &[Arc<Resource>] {
        self.slice(kind)
    }

    /// One resource by type and name.
    #[must_use]
    pub fn get(&self, kind: ResourceType, name: &str) -> Option<&Arc<Resource>> {
        let slice = self.slice(kind);
        let place = slice
            .binary_search_by(|resource| resource.name().as_str().cmp(name))
            .ok()?;
        slice.get(place)
    }

    /// Whether both sets share the resources of this type. `false` doesn't mean that they differ.
    #[must_use]
    pub fn shares(&self, other: &Self, kind: ResourceType) -> bool {
        Arc::ptr_eq(self.slice(kind), other.slice(kind))
    }

    /// Whether both are the same set. `false` doesn't mean that they differ.
    #[must_use]
    pub fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// This set at another index, with these resources of one type in place of those of their names. `None` if there is none
    /// of a name.
    #[must_use]
    pub fn with(
        &self,
        index: u64,
        kind: ResourceType,
        fresh: impl IntoIterator<Item = Arc<Resource>>,
    ) -> Option<Self> {
        let mut slices = self.inner.slices.clone();
        let mut changed: Option<Vec<Arc<Resource>>> = None;
        for resource in fresh {
            let old = &self.inner.slices[kind.slot()];
            let place = old
                .binary_search_by(|other| other.name().cmp(resource.name()))
                .ok()?;
            if old.get(place).is_some_and(|old| equal(old, &resource)) {
                continue;
            }
            let changed = changed.get_or_insert_with(|| old.to_vec());
            *changed.get_mut(place)? = resource;
        }
        if let Some(changed) = changed {
            slices[kind.slot()] = Arc::from(changed);
        }
        Some(Self::new(index, slices))
    }

    fn slice(&self, kind: ResourceType) -> &Slice {
        &self.inner.slices[kind.slot()]
    }
}

/// Collects the resources of a [`ResourceSet`].
#[derive(Debug)]
pub struct ResourceSetBuilder {
    index: u64,
    types: [BTreeMap<SmolStr, Arc<Resource>>; ResourceType::COUNT],
}

impl ResourceSetBuilder {
    /// Adds a resource. One of the same type and name that was added before is replaced and returned, so that the caller
    /// can report it: two resources of one name are a mistake in what generated them.
    pub fn insert(&mut self, resource: impl Into<Arc<Resource>>) -> Option<Arc<Resource>> {
        let resource = resource.into();
        self.types[resource.kind().slot()].insert(resource.name().clone(), resource)
    }

    /// [`ResourceSetBuilder::insert`] for chaining; a later resource of the same name wins.
    #[must_use]
    pub fn with(mut self, resource: impl Into<Arc<Resource>>) -> Self {
        self.insert(resource);
        self
    }

    /// The finished set.
    #[must_use]
    pub fn build(self) -> ResourceSet {
        let slices = self
            .types
            .map(|resources| Arc::from(resources.into_values().collect::<Vec<_>>()));
        ResourceSet::new(self.index, slices)
    }

    /// The finished set, sharing with `previous` whatever is equal in it.
    #[must_use]
    pub fn build_after(self, previous: &ResourceSet) -> ResourceSet {
        let mut slot = 0;
        let slices = self.types.map(|resources| {
            let old = &previous.inner.slices[slot];
            slot += 1;
            slice_after(resources, old)
        });
        ResourceSet::new(self.index, slices)
    }
}

impl ResourceSet {
    fn new(index: u64, slices: [Slice; ResourceType::COUNT]) -> Self {
        Self {
            inner: Arc::new(Inner { index, slices }),
        }
    }
}

/// One type's slice; `old` itself if nothing differs from it.
fn slice_after(resources: BTreeMap<SmolStr, Arc<Resource>>, old: &Slice) -> Slice {
    let mut shared = 0;
    let mut candidates = old.iter().peekable();
    let mut fresh = Vec::with_capacity(resources.len());
    for resource in resources.into_values() {
        while candidates
            .next_if(|candidate| candidate.name() < resource.name())
            .is_some()
        {}
        match candidates.next_if(|candidate| equal(candidate, &resource)) {
            Some(candidate) => {
                shared += 1;
                fresh.push(candidate.clone());
            }
            None => fresh.push(resource),
        }
    }
    if shared == fresh.len() && shared == old.len() {
        old.clone()
    } else {
        Arc::from(fresh)
    }
}

fn equal(a: &Arc<Resource>, b: &Arc<Resource>) -> bool {
    Arc::ptr_eq(a, b)
        || (a.name() == b.name() && a.version() == b.version() && a.children() == b.children())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resource(kind: ResourceType, name: &str, content: &str) -> Resource {
        Resource::new(kind, name, content.as_bytes().to_vec())
    }

    fn names(set: &ResourceSet, kind: ResourceType) -> Vec<&str> {
        set.of(kind).iter().map(|r| r.name().as_str()).collect()
    }

    #[test]
    fn resources_are_sorted_by_name_and_found() {
        let set = ResourceSet::builder(7)
            .with(resource(ResourceType::Cluster, "b", "1"))
            .with(resource(ResourceType::Cluster, "a", "1"))
            .with(resource(ResourceType::Endpoint, "b", "1"))
            .build();
        assert_eq!(set.index(), 7);
        assert_eq!(names(&set, ResourceType::Cluster), ["a", "b"]);
        assert_eq!(names(&set, ResourceType::Endpoint), ["b"]);
        assert!(set.get(ResourceType::Cluster, "b").is_some());
        assert!(set.get(ResourceType::Cluster, "c").is_none());
        assert!(set.get(ResourceType::Route, "b").is_none());
    }

    #[test]
    fn a_second_resource_of_one_name_replaces_and_hands_back_the_first() {
        let mut builder = ResourceSet::builder(1);
        assert!(
            builder
                .insert(resource(ResourceType::Route, "r", "1"))
                .is_none()
        );
        let old = builder.insert(resource(ResourceType::Route, "r", "2"));
        assert_eq!(old.unwrap().bytes().as_ref(), b"1");
    }

    #[test]
    fn a_later_set_shares_what_did_not_change() {
        let build = |b: &str| {
            ResourceSet::builder(1)
                .with(resource(ResourceType::Cluster, "a", "1"))
                .with(resource(ResourceType::Cluster, "b", b))
                .with(resource(ResourceType::Listener, "l", "1"))
        };
        let first = build("1").build();
        let second = build("2").build_after(&first);
        assert!(second.shares(&first, ResourceType::Listener));
        assert!(second.shares(&first, ResourceType::Secret));
        assert!(!second.shares(&first, ResourceType::Cluster));
        let a = |set: &ResourceSet| set.get(ResourceType::Cluster, "a").cloned().unwrap();
        assert!(Arc::ptr_eq(&a(&first), &a(&second)));

        let third = build("2").build_after(&second);
        for kind in ResourceType::ALL {
            assert!(third.shares(&second, kind), "{kind}");
        }
    }

    #[test]
    fn a_slice_that_lost_or_gained_a_resource_is_not_shared() {
        let one = ResourceSet::builder(1)
            .with(resource(ResourceType::Cluster, "b", "1"))
            .build();
        let two = ResourceSet::builder(2)
            .with(resource(ResourceType::Cluster, "a", "1"))
            .with(resource(ResourceType::Cluster, "b", "1"))
            .build_after(&one);
        assert_eq!(names(&two, ResourceType::Cluster), ["a", "b"]);
        assert!(!two.shares(&one, ResourceType::Cluster));
        let back = ResourceSet::builder(3)
            .with(resource(ResourceType::Cluster, "b", "1"))
            .build_after(&two);
        assert_eq!(names(&back, ResourceType::Cluster), ["b"]);
        assert!(!back.shares(&two, ResourceType::Cluster));
    }

    #[test]
    fn other_children_with_the_same_bytes_are_a_change() {
        let listener = |route: &str| {
            resource(ResourceType::Listener, "l", "1").with_children([SmolStr::new(route)])
        };
        let one = ResourceSet::builder(1).with(listener("r1")).build();
        let two = ResourceSet::builder(2)
            .with(listener("r2"))
            .build_after(&one);
        assert_eq!(
            two.get(ResourceType::Listener, "l").unwrap().children(),
            ["r2"]
        );
    }
}
