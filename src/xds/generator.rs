//! From a snapshot to the resources of its proxy.
//!
//! Three layers keep the cost of a change in proportion to what changed:
//!
//! 1. what proxies share (roots, the clusters and routes of a chain, endpoint assignments) is kept in caches of the
//!    [`Generator`], under the ids of the parts that it is made from, and encoded once for all of them;
//! 2. what is the proxy's own (its certificate, its public listener, the listeners of its upstreams) is taken from the
//!    previous result as long as the parts that it is made from are the same;
//! 3. the [`ResourceSet`] shares with the previous one whatever came out equal.
//!
//! Where only instances have come, gone or changed, which is by far the most frequent change, none of this is gone through:
//! the assignments concerned take the place of the old ones, and all else is the previous result (`instances`).
//!
//! A part that can't be turned into something that Envoy takes costs only itself (decision X3): its last good resources
//! stand, if there are any, and the problem is told. Access rules are the exception: they never stay old, in doubt they
//! deny.

mod instances;
mod shared;
mod upstreams;

use std::collections::BTreeMap;
use std::fmt;

use prost::Message;
use smol_str::SmolStr;
use triomphe::Arc;

use super::proto::cluster;
use super::sidecar::{self, Inbound, ListenerResource, Proxy, Settings};
use super::{
    BuildError, Problem, Resource, ResourceSet, ResourceSetBuilder, ResourceType, names, secrets,
};
use crate::model::{MeshConfig, UpstreamId};
use crate::snapshot::{
    ConfigSnapshot, ConnectProxySnapshot, Header, KindSnapshot, PartId, PartRef, UpstreamList,
};
use crate::sync::fault::{self, Point};
use instances::{Assigned, Frame};
use shared::Shared;
use upstreams::{Upstream, Upstreams};

/// Makes resources from snapshots; one for all proxies of a process. May be used from many threads at once.
#[derive(Debug, Default)]
pub struct Generator {
    shared: Shared,
}

/// The resources of one proxy, and what the next generation can take over.
#[derive(Debug, Clone)]
pub struct Generated {
    /// The resources.
    pub set: ResourceSet,
    /// What an operator should know, sorted by resource.
    pub problems: Vec<Problem>,
    memory: Memory,
}

#[cfg(all(test, feature = "server"))]
impl Generated {
    /// A result that says nothing about what it was made from.
    pub(crate) fn of(set: ResourceSet) -> Self {
        Self {
            set,
            problems: Vec::new(),
            memory: Memory::default(),
        }
    }
}

/// What the resources were made from.
#[derive(Clone, Default)]
struct Memory {
    own: Arc<Own>,
    /// All parts but the upstreams.
    frame: Option<Frame>,
    upstreams: Option<UpstreamList>,
    assignments: Vec<Assigned>,
}

/// What the proxy's own resources were made from.
#[derive(Clone, Default)]
struct Own {
    settings: Option<(PartId, Arc<Settings>)>,
    roots: Option<Arc<Resource>>,
    leaf: Option<Arc<Unit>>,
    application: Option<Arc<Unit>>,
    public_listener: Option<Arc<PublicListener>>,
    upstreams: BTreeMap<UpstreamId, Arc<Upstream>>,
    /// Keeps shared entries in their caches.
    holds: Vec<shared::Hold>,
}

/// Leaves all out: settings may hold private keys (decision C1).
impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").finish_non_exhaustive()
    }
}

/// Resources that were made from the same parts.
#[derive(Debug, Default)]
struct Unit {
    inputs: Vec<PartId>,
    local_app: Option<Arc<Resource>>,
    resources: Vec<Arc<Resource>>,
    listeners: Vec<Listening>,
    problems: Vec<Problem>,
}

/// An encoded listener and the place that it binds to.
#[derive(Debug, Clone)]
struct Listening {
    resource: Arc<Resource>,
    place: SmolStr,
}

/// The public listener, and the last settings that made a good one.
#[derive(Debug)]
struct PublicListener {
    inputs: (Vec<PartId>, SmolStr),
    good: Option<(PartRef<Header>, PartRef<Option<MeshConfig>>)>,
    listening: Option<Listening>,
    clusters: Vec<Arc<Resource>>,
    problems: Vec<Problem>,
}

impl Generator {
    /// A generator with empty caches.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How many resources have been encoded so far, by all threads.
    #[must_use]
    pub fn encodings(&self) -> u64 {
        self.shared.encodings()
    }

    /// How many entries the caches hold.
    #[must_use]
    pub fn cached(&self) -> usize {
        self.shared.len()
    }

    /// The resources of a snapshot. `previous` is the result for an earlier snapshot of the same proxy; without it
    /// nothing that can't be built has a last good form.
    #[must_use]
    pub fn resources(&self, snapshot: &ConfigSnapshot, previous: Option<&Generated>) -> Generated {
        let _ = fault::hit(Point::Generate);
        if let Some(generated) = previous.and_then(|previous| self.instances(snapshot, previous)) {
            return generated;
        }
        let mut run = Run {
            shared: &self.shared,
            snapshot,
            old: previous.map(|previous| &*previous.memory.own),
            old_set: previous.map(|previous| &previous.set),
            new: Own::default(),
            assignments: Vec::new(),
            set: ResourceSet::builder(snapshot.store_index),
            places: BTreeMap::new(),
            problems: Vec::new(),
        };
        let KindSnapshot::ConnectProxy(sidecar) = &snapshot.kind;
        run.sidecar(sidecar);
        run.problems.sort_unstable();
        run.problems.dedup();
        Generated {
            set: match previous {
                Some(previous) => run.set.build_after(&previous.set),
                None => run.set.build(),
            },
            problems: run.problems,
            memory: Memory {
                own: Arc::new(run.new),
                frame: Some(Frame::of(snapshot, sidecar)),
                upstreams: Some(sidecar.upstreams.clone()),
                assignments: run.assignments,
            },
        }
    }
}

/// One generation.
struct Run<'a> {
    shared: &'a Shared,
    snapshot: &'a ConfigSnapshot,
    old: Option<&'a Own>,
    old_set: Option<&'a ResourceSet>,
    new: Own,
    assignments: Vec<Assigned>,
    set: ResourceSetBuilder,
    /// Who binds to which address or socket.
    places: BTreeMap<SmolStr, SmolStr>,
    problems: Vec<Problem>,
}

impl Run<'_> {
    fn sidecar(&mut self, sidecar: &ConnectProxySnapshot) {
        let header = &self.snapshot.header;
        let settings = match self.old.and_then(|old| old.settings.as_ref()) {
            Some((part, settings)) if *part == header.id() => settings.clone(),
            _ => Arc::new(Settings::read(header)),
        };
        self.new.settings = Some((header.id(), settings.clone()));
        let proxy = Proxy::new(header, &settings);
        let id = &header.proxy_id.service_id;
        let complaints = settings.complaints.iter();
        self.problems
            .extend(complaints.map(|text| Problem::new(id.clone(), text.as_str())));
        self.roots();
        self.leaf(sidecar);
        self.public_listener(&proxy, sidecar);
        self.application(&proxy, sidecar);
        let upstreams = Upstreams::new(self, &proxy, sidecar);
        upstreams.add();
    }

    fn roots(&mut self) {
        let (result, hold) = self.shared.roots(self.snapshot.roots());
        self.new.holds.push(hold);
        let good = match result {
            Ok((resource, problems)) => {
                self.problems.extend(problems);
                Some(resource)
            }
            Err(error) => {
                self.problems
                    .push(Problem::new(names::ROOTS_SECRET, error.to_string()));
                self.old.and_then(|old| old.roots.clone())
            }
        };
        self.new.roots.clone_from(&good);
        self.add(good);
    }

    fn leaf(&mut self, sidecar: &ConnectProxySnapshot) {
        let inputs = vec![sidecar.leaf.id()];
        let old = self.old.and_then(|old| old.leaf.clone());
        let unit = reuse(old.as_ref(), &inputs).unwrap_or_else(|| {
            let mut unit = Unit {
                inputs,
                ..Unit::default()
            };
            match secrets::leaf(&sidecar.leaf) {
                Ok(secret) => unit.resources.push(self.shared.encode(
                    ResourceType::Secret,
                    names::LEAF_SECRET,
                    &secret,
                )),
                Err(error) => {
                    unit.problems
                        .push(Problem::new(names::LEAF_SECRET, error.to_string()));
                    unit.resources
                        .extend(old.iter().flat_map(|old| &old.resources).cloned());
                }
            }
            Arc::new(unit)
        });
        self.new.leaf = Some(unit.clone());
        self.add_unit(&unit);
    }

    /// The application's clusters and the exposed paths.
    fn application(&mut self, proxy: &Proxy<'_>, sidecar: &ConnectProxySnapshot) {
        let inputs = vec![self.snapshot.header.id(), sidecar.exposed_checks().id()];
        let old = self.old.and_then(|old| old.application.clone());
        let unit = reuse(old.as_ref(), &inputs).unwrap_or_else(|| {
            let mut unit = Unit {
                inputs,
                ..Unit::default()
            };
            match sidecar::local_app(proxy) {
                Ok((cluster, odd)) => {
                    let mut resource =
                        Resource::new(ResourceType::Cluster, cluster.name, cluster.bytes);
                    if cluster.composed {
                        resource = resource.composed();
                    }
                    unit.local_app = Some(self.shared.counted(resource));
                    let odd = odd.map(|text| Problem::new(names::LOCAL_APP, text));
                    unit.problems.extend(odd);
                }
                Err(error) => {
                    unit.problems
                        .push(Problem::new(names::LOCAL_APP, error.to_string()));
                    unit.local_app = old.as_ref().and_then(|old| old.local_app.clone());
                }
            }
            unit.resources.extend(unit.local_app.clone());
            let (listeners, clusters, problems) =
                sidecar::exposed_paths(proxy, sidecar.exposed_checks());
            for (name, cluster) in clusters {
                unit.resources
                    .push(self.shared.encode(ResourceType::Cluster, &name, &cluster));
            }
            unit.listeners = listeners
                .into_iter()
                .map(|listener| self.shared.listening(listener))
                .collect();
            unit.problems.extend(problems);
            Arc::new(unit)
        });
        self.new.application = Some(unit.clone());
        self.add_unit(&unit);
    }

    fn public_listener(&mut self, proxy: &Proxy<'_>, sidecar: &ConnectProxySnapshot) {
        let header = &self.snapshot.header;
        let trust_domain = &self.snapshot.roots().trust_domain;
        let parts = vec![
            header.id(),
            sidecar.intentions.id(),
            sidecar.mesh.id(),
            sidecar.jwt_providers.id(),
        ];
        let inputs = (parts, trust_domain.clone());
        let old = self.old.and_then(|old| old.public_listener.clone());
        let built = match &old {
            Some(old) if old.inputs == inputs => old.clone(),
            _ => Arc::new(self.build_public_listener(proxy, sidecar, inputs, old.as_deref())),
        };
        self.problems.extend(built.problems.iter().cloned());
        self.add(built.clusters.iter().cloned());
        if let Some(listening) = &built.listening {
            self.listen(listening, None);
        }
        self.new.public_listener = Some(built);
    }

    /// If the settings can't be honoured, the last good ones hold; the access rules are the newest in either case.
    fn build_public_listener(
        &self,
        proxy: &Proxy<'_>,
        sidecar: &ConnectProxySnapshot,
        inputs: (Vec<PartId>, SmolStr),
        old: Option<&PublicListener>,
    ) -> PublicListener {
        let problem = |text: String| Problem::new(names::PUBLIC_LISTENER, text);
        let build = |proxy: &Proxy<'_>, mesh: &PartRef<Option<MeshConfig>>| {
            let inbound = Inbound {
                intentions: &sidecar.intentions,
                mesh: (***mesh).as_ref(),
                trust_domain: &self.snapshot.roots().trust_domain,
                jwt_providers: &sidecar.jwt_providers,
            };
            sidecar::public_listener(proxy, inbound)
        };
        let mut problems = Vec::new();
        let mut good = Some((self.snapshot.header.clone(), sidecar.mesh.clone()));
        let mut built = build(proxy, &sidecar.mesh);
        if let Err(error) = &built {
            problems.push(problem(error.to_string()));
            good = old.and_then(|old| old.good.clone());
            if let Some((header, mesh)) = &good {
                // What was wrong with these settings was told when they were new.
                let settings = Settings::read(header);
                let mut proxy = Proxy::new(header, &settings);
                // Whether callers are let in by default isn't a setting of the listener but one of its rules.
                let mut newest = (***header).clone();
                newest.intention_default_allow = self.snapshot.header.intention_default_allow;
                proxy.header = &newest;
                built = build(&proxy, mesh);
            }
        }
        let (mut listening, mut clusters) = (None, Vec::new());
        if let Ok(built) = built {
            problems.extend(built.problems.into_iter().map(problem));
            listening = Some(self.shared.listening(built.listener));
            let encode = |cluster: &cluster::Cluster| {
                self.shared
                    .encode(ResourceType::Cluster, &cluster.name, cluster)
            };
            clusters = built.clusters.iter().map(encode).collect();
        }
        PublicListener {
            inputs,
            good,
            listening,
            clusters,
            problems,
        }
    }

    fn add_unit(&mut self, unit: &Unit) {
        self.problems.extend(unit.problems.iter().cloned());
        self.add(unit.resources.iter().cloned());
        for listening in &unit.listeners {
            self.listen(listening, None);
        }
    }

    fn add(&mut self, resources: impl IntoIterator<Item = Arc<Resource>>) {
        for resource in resources {
            let (kind, name) = (resource.kind(), resource.name().clone());
            if let Some(first) = self.set.insert(resource) {
                // An operator may have chosen a name that is taken: what is the sidecar's own came first, and stays.
                self.set.insert(first);
                self.problems.push(Problem::new(
                    name,
                    format!("there are two {kind} resources of this name"),
                ));
            }
        }
    }

    /// Adds a listener, unless another one binds to the same place: Envoy refuses the second. Then `old` is added, if its
    /// place is free. Returns the one that was added.
    fn listen(&mut self, listening: &Listening, old: Option<&Listening>) -> Option<Listening> {
        for candidate in [Some(listening), old].into_iter().flatten() {
            let name = candidate.resource.name().clone();
            match self.places.get(&candidate.place) {
                None => {
                    self.places.insert(candidate.place.clone(), name);
                    self.add([candidate.resource.clone()]);
                    return Some(candidate.clone());
                }
                Some(first) => {
                    let text = format!(
                        "listener {first} binds to {} already: give one of the two another address or port",
                        candidate.place
                    );
                    self.problems.push(Problem::new(name, text));
                }
            }
        }
        None
    }
}

/// The previous unit, if it was made from the same parts.
fn reuse(old: Option<&Arc<Unit>>, inputs: &[PartId]) -> Option<Arc<Unit>> {
    old.filter(|old| old.inputs == inputs).cloned()
}

impl Shared {
    fn listening(&self, built: ListenerResource) -> Listening {
        let resource = Resource::new(ResourceType::Listener, built.name, built.bytes)
            .with_children(built.routes);
        Listening {
            resource: self.counted(resource),
            place: built.place,
        }
    }

    fn encode<M: Message>(&self, kind: ResourceType, name: &str, message: &M) -> Arc<Resource> {
        self.counted(Resource::new(kind, name, message.encode_to_vec()))
    }
}

/// A problem for each error of an upstream.
fn told(id: &UpstreamId, error: &BuildError) -> Problem {
    Problem::new(smol_str::format_smolstr!("{id}"), error.to_string())
}

#[cfg(test)]
mod tests;
