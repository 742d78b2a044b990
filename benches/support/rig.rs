//! The pure core without threads: a store with services, and a proxy whose questions are answered from it.

use std::collections::BTreeMap;
use std::time::Duration;

use proxycfg::ca::Authority;
use proxycfg::clock::TestClock;
use proxycfg::model::{CaConfig, CheckStatus, LeafRequest, ServiceInstance, ServiceKind};
use proxycfg::proxy::{Changed, Input, Inputs, ProxySettings, SharedParts, SoloProxy};
use proxycfg::snapshot::Part;
use proxycfg::source::{Answer, ChainCheck, QueryId, StoreViews};
use proxycfg::store::MemoryBackend;
use proxycfg::{Op, ProxyId, Query, Registration, SnapshotRef, Store, Transaction};
use triomphe::Arc;

use crate::world::{endpoints_in, service, sidecar, write_instance, write_services};

/// An authority.
pub fn authority() -> Authority {
    let clock = std::sync::Arc::new(TestClock::new());
    Authority::bootstrap(clock, "dc1", CaConfig::default()).expect("an authority")
}

/// Answers as the engine would have them: a query's number is its place.
#[derive(Default)]
struct Answers {
    ids: BTreeMap<Query, QueryId>,
    inputs: Vec<Input>,
}

impl Answers {
    fn set(&mut self, id: QueryId, answer: Answer) {
        self.inputs[id.0 as usize] = Input::Answered(answer);
    }

    /// The queries that have no answer yet.
    fn open(&self) -> Vec<(Query, QueryId)> {
        let waits = |id: &QueryId| matches!(self.inputs[id.0 as usize], Input::Pending);
        let open = self.ids.iter().filter(|(_, id)| waits(id));
        open.map(|(query, id)| (query.clone(), *id)).collect()
    }
}

impl Inputs for Answers {
    fn get(&mut self, query: &Query) -> (QueryId, Input) {
        let id = match self.ids.get(query) {
            Some(id) => *id,
            None => {
                let id = QueryId(self.inputs.len() as u64);
                self.ids.insert(query.clone(), id);
                self.inputs.push(Input::Pending);
                id
            }
        };
        (id, self.inputs[id.0 as usize].clone())
    }

    fn again(&mut self, query: QueryId) -> Option<Input> {
        self.inputs.get(query.0 as usize).cloned()
    }
}

/// A store with services, and what a proxy asks of it.
pub struct Rig {
    authority: Authority,
    store: Store,
    views: StoreViews,
    answers: Answers,
    settings: ProxySettings,
    shared: SharedParts,
    instance: Arc<ServiceInstance>,
    /// Of all upstreams.
    endpoints: usize,
}

impl Rig {
    /// A store with so many services, which the proxy dials, of so many endpoints.
    pub fn new(upstreams: usize, endpoints: usize) -> Self {
        let check = std::sync::Arc::new(ChainCheck);
        let store = Store::new(Box::new(MemoryBackend), check).expect("a store");
        let authority = authority();
        let roots = Box::new(authority.roots());
        let written = store.apply(Transaction::of(Op::SetCaRoots { roots, cas: None }));
        written.expect("a write");
        write_services(&store, upstreams, endpoints);
        Self {
            authority,
            store,
            views: StoreViews {
                datacenter: "dc1".into(),
            },
            answers: Answers::default(),
            settings: ProxySettings::default(),
            shared: SharedParts::default(),
            instance: Arc::new(sidecar("web", "web", (0..upstreams).map(service))),
            endpoints: upstreams * endpoints,
        }
    }

    fn answer(&self, query: &Query) -> Answer {
        if let Query::Leaf { service } = query {
            let issued = self
                .authority
                .issue(&LeafRequest::for_service(service.as_str()));
            return Answer::Leaf(Part::new(issued.expect("a certificate")));
        }
        let snapshot = self.store.snapshot();
        let answer = self.views.answer(query, &snapshot.reader());
        answer.expect("an answer")
    }

    /// The proxy, which has seen no answer.
    pub fn proxy(&self) -> SoloProxy {
        let registration = Part::new(Registration::Definition(self.instance.clone()));
        let id = ProxyId::new("web", "bench");
        SoloProxy::new(id, ServiceKind::ConnectProxy, registration).expect("a state")
    }

    /// Runs the proxy on the answers as they are.
    pub fn run(&mut self, proxy: &mut SoloProxy, changed: Changed<'_>) -> Option<SnapshotRef> {
        let now = Duration::ZERO;
        let answers = &mut self.answers;
        let outcome = proxy.run(&self.settings, &self.shared, answers, changed, 1, now);
        outcome.snapshot
    }

    /// Runs a proxy, answering what it asks, until it asks nothing more.
    pub fn settle(&mut self, proxy: &mut SoloProxy) -> SnapshotRef {
        let mut last = None;
        loop {
            last = self.run(proxy, Changed::All).or(last);
            let open = self.answers.open();
            if open.is_empty() {
                break;
            }
            for (query, id) in open {
                let answer = self.answer(&query);
                self.answers.set(id, answer);
            }
        }
        let last = last.expect("a snapshot");
        assert_eq!(endpoints_in(&last), self.endpoints);
        last
    }

    /// Changes the health of an endpoint of the first upstream; the query whose answer is another.
    pub fn change(&mut self, passing: bool) -> QueryId {
        let status = match passing {
            true => CheckStatus::Passing,
            false => CheckStatus::Critical,
        };
        write_instance(&self.store, "s0", 0, status);
        let changed = self.answers.ids.iter().find_map(|(query, id)| match query {
            Query::Endpoints(of) if of.service == "s0" => Some((query.clone(), *id)),
            _ => None,
        });
        let (query, id) = changed.expect("endpoints are asked for");
        let answer = self.answer(&query);
        self.answers.set(id, answer);
        id
    }
}
