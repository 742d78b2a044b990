//! The upstreams of a sidecar: clusters, endpoint assignments, a listener, and the routes that it names.
//!
//! An upstream's clusters, listener and routes refer to each other, so that they are built together or stay as they were
//! together. Its endpoint assignments follow from the clusters that stand, with the newest instances.

use std::collections::BTreeMap;

use smol_str::SmolStr;
use triomphe::Arc;

use crate::model::UpstreamId;
use crate::snapshot::{ConnectProxySnapshot, PartId, PartRef, UpstreamEntry, UpstreamTarget};
use crate::xds::sidecar::{self, Proxy, Routing};
use crate::xds::{BuildError, Problem, Resource, ResourceType};

use super::instances::Assigned;
use super::shared::{Hold, Mesh, SharedCluster};
use super::{Listening, Run, told};

/// What an upstream consists of.
#[derive(Debug)]
pub(super) struct Upstream {
    inputs: (Vec<PartId>, SmolStr),
    content: Option<Content>,
    /// The listener that was sent: an earlier one where the newest can't bind.
    sent: Option<Listening>,
    problems: Vec<Problem>,
}

/// The resources that stand or fall together.
#[derive(Debug, Clone)]
struct Content {
    clusters: Arc<[SharedCluster]>,
    route: Option<Arc<Resource>>,
    listening: Option<Listening>,
    holds: Vec<Hold>,
}

/// All upstreams in one generation.
pub(super) struct Upstreams<'a, 'b> {
    run: &'a mut Run<'b>,
    proxy: &'a Proxy<'a>,
    sidecar: &'a ConnectProxySnapshot,
    /// Clusters by name: chains that lead to the same target share its cluster.
    clusters: BTreeMap<SmolStr, Chosen<'a>>,
}

/// A cluster, and whose chain it is taken from.
struct Chosen<'a> {
    /// The clusters of a chain, and which of them it is.
    clusters: Arc<[SharedCluster]>,
    at: usize,
    target: Option<&'a PartRef<UpstreamTarget>>,
    /// The upstream, by place.
    upstream: usize,
}

impl Chosen<'_> {
    fn cluster(&self) -> &SharedCluster {
        &self.clusters[self.at]
    }
}

impl<'a, 'b> Upstreams<'a, 'b> {
    pub(super) fn new(
        run: &'a mut Run<'b>,
        proxy: &'a Proxy<'a>,
        sidecar: &'a ConnectProxySnapshot,
    ) -> Self {
        Self {
            run,
            proxy,
            sidecar,
            clusters: BTreeMap::new(),
        }
    }

    /// Adds all that upstreams need.
    pub(super) fn add(mut self) {
        for (place, entry) in self.sidecar.upstreams.iter().enumerate() {
            // Others are reached through the transparent proxy's one listener only (4.2.1).
            if entry.definition.upstream.is_explicit() && !entry.id().is_wildcard() {
                self.upstream(place, entry);
            }
        }
        let clusters = std::mem::take(&mut self.clusters);
        self.run.add(
            clusters
                .values()
                .map(|chosen| chosen.cluster().resource.clone()),
        );
        for chosen in clusters.values() {
            self.assignment(chosen);
        }
    }

    fn upstream(&mut self, place: usize, entry: &'a UpstreamEntry) {
        let old = self
            .run
            .old
            .and_then(|old| old.upstreams.get(entry.id()))
            .cloned();
        let Some((inputs, content, problems)) = self.content(entry, old.as_deref()) else {
            return;
        };
        self.run.problems.extend(problems.iter().cloned());
        let mut sent = None;
        if let Some(content) = &content {
            for at in 0..content.clusters.len() {
                self.choose(Chosen {
                    clusters: content.clusters.clone(),
                    at,
                    target: entry.target.as_ref(),
                    upstream: place,
                });
            }
            self.run.add(content.route.clone());
            if let Some(listening) = &content.listening {
                let last = old.as_ref().and_then(|old| old.sent.as_ref());
                sent = self
                    .run
                    .listen(listening, last.filter(|last| last.place != listening.place));
            }
        }
        let upstream = Arc::new(Upstream {
            inputs,
            content,
            sent,
            problems,
        });
        self.run.new.upstreams.insert(entry.id().clone(), upstream);
    }

    /// The content of an upstream: the old one if nothing that it is made from has changed, or if a new one can't be
    /// made. `None` for an upstream that was never complete.
    #[allow(clippy::type_complexity, reason = "taken apart at once")]
    fn content(
        &self,
        entry: &UpstreamEntry,
        old: Option<&Upstream>,
    ) -> Option<((Vec<PartId>, SmolStr), Option<Content>, Vec<Problem>)> {
        let Some(target) = &entry.target else {
            // Its chain isn't known at the moment; that is no reason to take it away.
            let old = old?;
            return Some((Default::default(), old.content.clone(), Vec::new()));
        };
        let parts = vec![
            self.run.snapshot.header.id(),
            self.sidecar.mesh.id(),
            entry.definition.id(),
            target.settings.id(),
            target.chain.id(),
        ];
        let inputs = (parts, self.run.snapshot.roots().trust_domain.clone());
        if let Some(old) = old
            && old.inputs == inputs
        {
            return Some((inputs, old.content.clone(), old.problems.clone()));
        }
        Some(match self.build(entry, target) {
            Ok((content, problems)) => (inputs, Some(content), problems),
            Err(error) => {
                let problems = vec![told(entry.id(), &error)];
                (inputs, old.and_then(|old| old.content.clone()), problems)
            }
        })
    }

    fn build(
        &self,
        entry: &UpstreamEntry,
        target: &UpstreamTarget,
    ) -> Result<(Content, Vec<Problem>), BuildError> {
        let shared = self.run.shared;
        let mesh = Mesh {
            entry: &self.sidecar.mesh,
            trust_domain: &self.run.snapshot.roots().trust_domain,
            datacenter: &self.run.snapshot.header.datacenter,
            fetch_timeout_ms: self.proxy.settings.fetch_timeout_ms,
        };
        let (clusters, hold) = shared.clusters(&target.chain, &target.settings, mesh);
        let mut content = Content {
            clusters: clusters?,
            route: None,
            listening: None,
            holds: vec![hold],
        };
        let Some(mut routing) = Routing::of(&target.chain)? else {
            return Ok((content, Vec::new()));
        };
        if let (Routing::Cluster(name), [only]) = (&mut routing, &*content.clusters) {
            // An operator's own cluster has a name of its own.
            name.clone_from(only.resource.name());
        }
        if routing == Routing::Table {
            let validate = self
                .run
                .snapshot
                .mesh()
                .is_some_and(|mesh| mesh.validate_clusters);
            let (route, hold) = shared.route(&target.chain, &entry.id().to_string(), validate);
            content.route = Some(route?);
            content.holds.push(hold);
        }
        let (listener, complaints) = sidecar::upstream_listener(
            self.proxy,
            entry.id(),
            &entry.definition.upstream,
            &target.chain,
            &target.settings,
            &routing,
        )?;
        content.listening = Some(shared.listening(listener));
        let id: UpstreamId = entry.id().clone();
        let problems = complaints
            .into_iter()
            .map(|text| Problem::new(smol_str::format_smolstr!("{id}"), text));
        Ok((content, problems.collect()))
    }

    /// Where several chains lead to the same cluster with different settings, those of the chain of the cluster's own
    /// service hold, else those of the first upstream. Upstreams come in the order of their ids.
    fn choose(&mut self, chosen: Chosen<'a>) {
        let cluster = chosen.cluster();
        let name = cluster.resource.name();
        match self.clusters.get_mut(name) {
            Some(first) if first.cluster().own || !cluster.own => {}
            Some(first) => *first = chosen,
            None => {
                self.clusters.insert(name.clone(), chosen);
            }
        }
    }

    /// Every cluster that asks for endpoints gets an assignment (decision X4).
    fn assignment(&mut self, chosen: &Chosen<'_>) {
        let Some(assignment) = &chosen.cluster().assignment else {
            return;
        };
        let known = |target: &&PartRef<UpstreamTarget>| {
            target
                .chain
                .targets
                .contains_key(assignment.target.as_str())
        };
        let old = self
            .run
            .old_set
            .and_then(|set| set.get(ResourceType::Endpoint, &assignment.cluster));
        let target = match (chosen.target.filter(known), chosen.target, old) {
            (Some(target), ..) | (None, Some(target), None) => target,
            // A cluster of an earlier chain, whose instances nobody watches any more: they stay as they were.
            (None, _, Some(old)) => {
                let old = old.clone();
                self.run.add([old]);
                return;
            }
            (None, None, None) => return,
        };
        let instances = target.endpoints_of(&assignment.target);
        let datacenter = &self.run.snapshot.header.datacenter;
        let (resource, problems, hold) = self
            .run
            .shared
            .assignment(assignment, instances, datacenter);
        self.run.problems.extend(problems);
        self.run.assignments.push(Assigned {
            clusters: chosen.clusters.clone(),
            cluster: chosen.at,
            upstream: chosen.upstream,
            hold,
        });
        self.run.add([resource]);
    }
}
