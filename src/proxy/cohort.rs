//! What proxies have in common: the state of a *cohort*.
//!
//! The replicas of a service differ in who they are, and in little else: the same certificate, the same intentions, the same
//! upstreams with the same chains and endpoints. All that is kept once, in the cohort that they belong to, is brought up to date
//! once for each change, and stands in their snapshots as one shared part. A proxy without replicas is a cohort of one.

use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use smallvec::SmallVec;
use smol_str::SmolStr;
use triomphe::Arc;

use crate::model::{CaRoots, Intention, IssuedCert, JwtProvider, MeshConfig};
use crate::proxy::ProxySettings;
use crate::proxy::registration::UpstreamPlans;
use crate::proxy::shared::SharedParts;
use crate::proxy::slot::{Changed, Inputs, Issue, Run, Slot};
use crate::proxy::upstream::UpstreamState;
use crate::snapshot::{Part, PartRef, SharedSidecar, UpstreamEntry, UpstreamList};
use crate::source::{Answer, Query, QueryError, QueryId};

/// With more upstreams than this, a run finds those that are concerned in an index, not by a look at each.
const LOOKED_THROUGH: usize = 32;

/// Which cohort a sidecar belongs to: that of its service and of what it dials. Equal lists of upstreams are one part
/// ([`SharedParts`]), so that specs are compared without a look into them.
#[derive(Debug, Clone)]
pub struct CohortSpec {
    service: SmolStr,
    upstreams: PartRef<UpstreamPlans>,
}

impl CohortSpec {
    pub(super) fn new(service: &str, upstreams: PartRef<UpstreamPlans>) -> Self {
        Self {
            service: service.into(),
            upstreams,
        }
    }

    pub(super) fn is_of(&self, service: &str, upstreams: &PartRef<UpstreamPlans>) -> bool {
        Part::is_same(&self.upstreams, upstreams) && self.service == service
    }
}

impl PartialEq for CohortSpec {
    fn eq(&self, other: &Self) -> bool {
        self.is_of(&other.service, &other.upstreams)
    }
}

impl Eq for CohortSpec {}

impl Hash for CohortSpec {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.upstreams.id().hash(state);
        self.service.hash(state);
    }
}

/// What the state of a cohort has come to. Cloning shares it.
#[derive(Debug, Clone, Default)]
pub struct CohortOutput {
    /// The shared part of its members' snapshots; none while something is lacking that no snapshot can be without.
    pub sidecar: Option<Arc<SharedSidecar>>,
    /// What isn't as it should be; mostly nothing.
    troubles: Option<Arc<Troubles>>,
}

#[derive(Debug, Default, PartialEq)]
struct Troubles {
    issues: Vec<Issue>,
    deadline: Option<Duration>,
    terminal: Option<QueryError>,
}

impl CohortOutput {
    /// What it waits for, and what is wrong.
    #[must_use]
    pub fn issues(&self) -> &[Issue] {
        self.troubles.as_ref().map_or(&[], |t| &t.issues)
    }

    /// When to run again even if no answer changes, in monotonic time.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        self.troubles.as_ref()?.deadline
    }

    /// Why the members end, if their token is no longer valid.
    #[must_use]
    pub fn terminal(&self) -> Option<&QueryError> {
        self.troubles.as_ref()?.terminal.as_ref()
    }

    /// Whether the two share everything: the answer "no" may be wrong, "yes" is not.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        same_part(self.sidecar.as_ref(), other.sidecar.as_ref())
            && same_part(self.troubles.as_ref(), other.troubles.as_ref())
    }
}

fn same_part<T>(a: Option<&Arc<T>>, b: Option<&Arc<T>>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => Arc::ptr_eq(a, b),
        (None, None) => true,
        _ => false,
    }
}

/// What a run of a cohort came to, beside its output.
#[derive(Debug, Clone, Copy, Default)]
pub struct CohortOutcome {
    /// The output isn't what it was.
    pub changed: bool,
    /// Parts built.
    pub built: u64,
    /// Whether [`CohortState::wants`] may differ from what it was.
    pub rewired: bool,
}

/// The state of one cohort of sidecars.
#[derive(Debug, Clone)]
pub struct CohortState {
    spec: CohortSpec,
    roots: Slot<(), PartRef<CaRoots>>,
    leaf: Slot<SmolStr, PartRef<IssuedCert>>,
    intentions: Slot<SmolStr, PartRef<Vec<Intention>>>,
    mesh: Slot<(), PartRef<Option<MeshConfig>>>,
    jwt_providers: Slot<(), PartRef<Vec<Arc<JwtProvider>>>>,
    /// Sorted by id, as the plans are.
    upstreams: Box<[UpstreamState]>,
    index: Option<Index>,
    list: Option<UpstreamList>,
    /// The positions of the upstreams with issues.
    troubled: BTreeSet<usize>,
    output: CohortOutput,
}

/// Which upstreams a run has to look at.
#[derive(Debug, Clone)]
struct Index {
    /// Who read what, by position; sorted.
    readers: Vec<(QueryId, usize)>,
    /// Those that wait for something: time alone may change them.
    waiting: Vec<usize>,
}

/// Positions of upstreams: of those that an answer concerns, mostly one.
type Positions = SmallVec<[usize; 4]>;

/// Entries that changed, by position.
type Changes = SmallVec<[(usize, UpstreamEntry); 1]>;

/// A part that is the answer to one query.
macro_rules! answered {
    ($slot:expr, $spec:expr, $run:expr, $kind:ident, $query:expr) => {
        $slot.refresh($spec, true, $run, |spec, _, asker| {
            match asker.ask(&$query(spec))? {
                Answer::$kind(part) => Some(part),
                _ => None,
            }
        })
    };
}

impl CohortState {
    /// The state of a cohort that has seen no answer yet.
    #[must_use]
    pub fn new(spec: CohortSpec) -> Self {
        let plans = spec.upstreams.iter();
        Self {
            upstreams: plans.map(|plan| UpstreamState::new(plan.clone())).collect(),
            spec,
            roots: Slot::default(),
            leaf: Slot::default(),
            intentions: Slot::default(),
            mesh: Slot::default(),
            jwt_providers: Slot::default(),
            index: None,
            list: None,
            troubled: BTreeSet::new(),
            output: CohortOutput::default(),
        }
    }

    /// What it is the state of.
    #[must_use]
    pub fn spec(&self) -> &CohortSpec {
        &self.spec
    }

    /// What the last run came to.
    #[must_use]
    pub const fn output(&self) -> &CohortOutput {
        &self.output
    }

    /// Takes over what another cohort serves where this one has nothing complete to serve yet: for a member that comes from
    /// there, so that it keeps what it has while the new is awaited. The next run must look at everything.
    pub fn adopt(&mut self, from: &Self) {
        self.roots.adopt(&from.roots);
        self.mesh.adopt(&from.mesh);
        self.jwt_providers.adopt(&from.jwt_providers);
        if self.spec.service == from.spec.service {
            // No other service's certificate and rules: whoever moves has waited for those of the new one.
            self.leaf.adopt(&from.leaf);
            self.intentions.adopt(&from.intentions);
        }
        let mut old = from.upstreams.iter().peekable();
        for upstream in &mut self.upstreams {
            let id = upstream.plan().upstream_id();
            while old.next_if(|old| old.plan().upstream_id() < id).is_some() {}
            if let Some(old) = old.next_if(|old| old.plan().upstream_id() == id) {
                upstream.adopt(old);
            }
        }
        self.index = None;
        self.list = None;
    }

    /// Looks at the parts whose answers changed. `now` is monotonic time.
    pub fn run(
        &mut self,
        settings: &ProxySettings,
        shared: &SharedParts,
        inputs: &mut dyn Inputs,
        changed: Changed<'_>,
        now: Duration,
    ) -> CohortOutcome {
        // Whether the token is still invalid is asked again for each member that hasn't ended yet.
        let ending = self.output.terminal().is_some();
        let changed = if ending { Changed::All } else { changed };
        let mut run = Run::new(settings, inputs, changed, now);
        let run = &mut run;
        let service = &self.spec.service;
        let mut anew = answered!(self.roots, (), run, CaRoots, |(): &()| Query::CaRoots);
        anew |= answered!(self.mesh, (), run, Mesh, |(): &()| Query::Mesh);
        anew |= answered!(self.jwt_providers, (), run, JwtProviders, |(): &()| {
            Query::JwtProviders
        });
        anew |= answered!(self.leaf, service.clone(), run, Leaf, |s: &SmolStr| {
            Query::Leaf { service: s.clone() }
        });
        anew |= answered!(
            self.intentions,
            service.clone(),
            run,
            Intentions,
            |s: &SmolStr| Query::Intentions { service: s.clone() }
        );
        anew |= self.refresh_upstreams(shared, run);
        if run.rewired {
            self.index = None;
        }
        let differs = self.conclude(anew, run);
        CohortOutcome {
            changed: differs,
            built: run.built,
            rewired: run.rewired,
        }
    }

    /// Brings each upstream up to date that may have to be, and the list of them.
    fn refresh_upstreams(&mut self, shared: &SharedParts, run: &mut Run<'_>) -> bool {
        let concerned = self.concerned(run);
        let mut changes = Changes::new();
        let troubled = &mut self.troubled;
        let mut refresh = |at: usize, upstream: &mut UpstreamState| {
            let built = run.built;
            if upstream.refresh(shared, run) {
                changes.push((at, upstream.entry()));
            }
            if run.built == built {
                // As it was.
            } else if upstream.has_issues() {
                troubled.insert(at);
            } else {
                troubled.remove(&at);
            }
        };
        match concerned {
            Some(positions) => {
                for at in positions {
                    if let Some(upstream) = self.upstreams.get_mut(at) {
                        refresh(at, upstream);
                    }
                }
            }
            None => {
                for (at, upstream) in self.upstreams.iter_mut().enumerate() {
                    refresh(at, upstream);
                }
            }
        }
        match &self.list {
            Some(_) if changes.is_empty() => return false,
            Some(list) => self.list = Some(list.with(&changes)),
            None => self.list = Some(self.upstreams.iter().map(UpstreamState::entry).collect()),
        }
        true
    }

    /// The positions of the upstreams to look at, ascending; none if each must be.
    fn concerned(&mut self, run: &Run<'_>) -> Option<Positions> {
        let Changed::Queries(ids) = run.changed else {
            return None;
        };
        if self.upstreams.len() <= LOOKED_THROUGH {
            return None;
        }
        let index = self.index.get_or_insert_with(|| Index::of(&self.upstreams));
        let mut positions = Positions::from_slice(&index.waiting);
        for id in ids {
            let from = index.readers.partition_point(|(query, _)| query < id);
            let of_query = index.readers.get(from..).unwrap_or_default().iter();
            positions.extend(
                of_query
                    .take_while(|(query, _)| query == id)
                    .map(|(_, at)| *at),
            );
        }
        positions.sort_unstable();
        positions.dedup();
        Some(positions)
    }

    /// The new output, if it differs from the last.
    fn conclude(&mut self, anew: bool, run: &mut Run<'_>) -> bool {
        let last = &self.output;
        if run.built == 0 && !anew && last.deadline() == run.deadline {
            return false;
        }
        let sidecar = match &last.sidecar {
            Some(last) if !anew => Some(last.clone()),
            last => self.sidecar().map(|new| match last {
                // Parts may have been built anew and be the same.
                Some(last) if last.is_same(&new) => last.clone(),
                _ => Arc::new(new),
            }),
        };
        let mut troubles = Troubles {
            issues: Vec::new(),
            deadline: run.deadline,
            terminal: run.terminal.take(),
        };
        self.issues(&mut troubles.issues);
        let troubles = match &last.troubles {
            _ if troubles == Troubles::default() => None,
            Some(last) if **last == troubles => Some(last.clone()),
            _ => Some(Arc::new(troubles)),
        };
        let new = CohortOutput { sidecar, troubles };
        let same = last.is_same(&new);
        self.output = new;
        !same
    }

    fn sidecar(&self) -> Option<SharedSidecar> {
        Some(SharedSidecar {
            roots: self.roots.output()?.clone(),
            leaf: self.leaf.output()?.clone(),
            intentions: self.intentions.output()?.clone(),
            mesh: self.mesh.output()?.clone(),
            jwt_providers: self.jwt_providers.output()?.clone(),
            upstreams: self.list.clone()?,
        })
    }

    /// The queries that must stay subscribed, sorted, each once.
    #[must_use]
    pub fn wants(&self) -> Vec<QueryId> {
        let mut wants = Vec::new();
        self.roots.wants(&mut wants);
        self.leaf.wants(&mut wants);
        self.intentions.wants(&mut wants);
        self.mesh.wants(&mut wants);
        self.jwt_providers.wants(&mut wants);
        for upstream in &self.upstreams {
            upstream.wants(&mut wants);
        }
        wants.sort_unstable();
        wants.dedup();
        wants
    }

    fn issues(&self, into: &mut Vec<Issue>) {
        self.roots.issues(into);
        self.leaf.issues(into);
        self.intentions.issues(into);
        self.mesh.issues(into);
        self.jwt_providers.issues(into);
        for at in &self.troubled {
            self.upstreams[*at].issues(into);
        }
    }
}

impl Index {
    fn of(upstreams: &[UpstreamState]) -> Self {
        let mut readers = Vec::new();
        let mut waiting = Vec::new();
        let mut wants = Vec::new();
        for (at, upstream) in upstreams.iter().enumerate() {
            upstream.wants(&mut wants);
            readers.extend(wants.drain(..).map(|query| (query, at)));
            if upstream.is_waiting() {
                waiting.push(at);
            }
        }
        readers.sort_unstable();
        readers.dedup();
        Self { readers, waiting }
    }
}
