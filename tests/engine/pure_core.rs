//! The pure core by itself, driven by answers that a test hands out: in any order, with errors, late, or not at all.
//!
//! - The last snapshot depends only on the last answers, not on the order in which they came.
//! - Make before break: an upstream that was complete stays complete while its replacement is awaited; an answer, an error or
//!   the deadline ends that; and what is served stays wanted, so that it stays fresh.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;
use std::time::Duration;

use proptest::prelude::*;
use proxycfg::model::{CaConfig, CaRoots, ProxyId, ServiceInstance, ServiceKind};
use proxycfg::proxy::{
    Changed, Input, Inputs, ProxySettings, Registration, SharedParts, SoloOutcome, SoloProxy,
};
use proxycfg::snapshot::{ConfigSnapshot, KindSnapshot, Part};
use proxycfg::source::{
    Answer, ChainCheck, EndpointsQuery, Query, QueryError, QueryId, StoreViews,
};
use proxycfg::store::{MemoryBackend, Op, Store, StoreSnapshot, Transaction};
use serde_json::json;

use crate::host::certificate;
use crate::stress::size;
use crate::world::*;

const WORLDS: usize = 3;

/// The answers to be had: from stores that differ in everything.
struct Library {
    stores: Vec<StoreSnapshot>,
    leaves: BTreeMap<(Query, usize), Answer>,
    known: BTreeMap<(Query, usize), Answer>,
}

/// One set of roots for all, so that trust domains are equal.
fn roots() -> &'static CaRoots {
    static ROOTS: OnceLock<CaRoots> = OnceLock::new();
    ROOTS.get_or_init(|| {
        let clock = std::sync::Arc::new(proxycfg::clock::TestClock::new());
        proxycfg::ca::Authority::bootstrap(clock, "dc1", CaConfig::default())
            .unwrap()
            .roots()
    })
}

impl Library {
    fn new() -> Self {
        let store = Store::new(Box::new(MemoryBackend), std::sync::Arc::new(ChainCheck)).unwrap();
        let apply = |ops: Vec<Op>| store.apply(Transaction::from(ops)).unwrap();
        apply(vec![Op::SetCaRoots {
            roots: Box::new(roots().clone()),
            cas: None,
        }]);
        let stores = (0..WORLDS)
            .map(|n| {
                for service in ["db", "api", "cache"] {
                    apply(instance_ops(service, n as u32));
                }
                if n == 1 {
                    apply(vec![
                        entry_op(json!({"Kind": "service-resolver", "Name": "db", "Redirect": {"Service": "cache"}})),
                        entry_op(json!({"Kind": "proxy-defaults", "Name": "global", "Config": {"a": 1}})),
                    ]);
                }
                if n == 2 {
                    apply(vec![
                        entry_op(json!({"Kind": "service-resolver", "Name": "db", "DefaultSubset": "v1", "Subsets": {
                            "v1": {"Filter": "Service.Meta.version == v1"}}, "Failover": {"*": {"Service": "api"}}})),
                        entry_op(json!({"Kind": "service-intentions", "Name": "web", "Sources": [
                            {"Name": "api", "Action": "deny"}]})),
                    ]);
                }
                store.snapshot()
            })
            .collect();
        Self {
            stores,
            leaves: BTreeMap::new(),
            known: BTreeMap::new(),
        }
    }

    /// The answer to a query in one of the worlds. Equal answers are one, as the engine's are.
    fn answer(&mut self, query: &Query, world: usize) -> Answer {
        if let Some(answer) = self.known.get(&(query.clone(), world)) {
            return answer.clone();
        }
        let answer = if let Query::Leaf { service } = query {
            let fresh = certificate(service);
            self.leaves
                .entry((query.clone(), world))
                .or_insert(fresh)
                .clone()
        } else {
            let views = StoreViews {
                datacenter: "dc1".into(),
            };
            views.answer(query, &self.stores[world].reader()).unwrap()
        };
        let equal = (0..WORLDS).find_map(|other| {
            let known = self.known.get(&(query.clone(), other))?;
            known.same_content(&answer).then(|| known.clone())
        });
        let answer = equal.unwrap_or(answer);
        self.known.insert((query.clone(), world), answer.clone());
        answer
    }
}

/// The state of each query, as a test has set it; pending until then.
#[derive(Default)]
struct Script {
    ids: BTreeMap<Query, QueryId>,
    inputs: BTreeMap<QueryId, Input>,
    asked: BTreeSet<QueryId>,
}

impl Inputs for Script {
    fn get(&mut self, query: &Query) -> (QueryId, Input) {
        let next = QueryId(self.ids.len() as u64 + 1);
        let id = *self.ids.entry(query.clone()).or_insert(next);
        self.asked.insert(id);
        (id, self.inputs.get(&id).cloned().unwrap_or(Input::Pending))
    }
}

impl Script {
    fn queries(&self) -> Vec<(Query, QueryId)> {
        self.ids.iter().map(|(q, id)| (q.clone(), *id)).collect()
    }
}

fn definition(variant: u8) -> ServiceInstance {
    let mut instance = sidecar(
        "web",
        [&["db", "api"][..], &["db"], &["api", "cache", "db"]][usize::from(variant % 3)],
    );
    if variant == 3 {
        instance.proxy.upstreams[0]
            .config
            .insert("connect_timeout_ms".into(), json!(700));
    }
    instance
}

struct Rig {
    library: Library,
    script: Script,
    state: SoloProxy,
    shared: SharedParts,
    settings: ProxySettings,
    now: Duration,
    last: Option<triomphe::Arc<ConfigSnapshot>>,
    /// An error or the deadline may have ended the service of something old.
    excused: bool,
}

impl Rig {
    fn new(variant: u8) -> Self {
        let id = ProxyId::new("web-sidecar-proxy", "n");
        let registration = Part::new(Registration::Definition(triomphe::Arc::new(definition(
            variant,
        ))));
        Self {
            library: Library::new(),
            script: Script::default(),
            state: SoloProxy::new(id, ServiceKind::ConnectProxy, registration).unwrap(),
            shared: SharedParts::default(),
            settings: ProxySettings::default(),
            now: Duration::ZERO,
            last: None,
            excused: false,
        }
    }

    fn run(&mut self, changed: Changed<'_>) -> SoloOutcome {
        let outcome = self.state.run(
            &self.settings,
            &self.shared,
            &mut self.script,
            changed,
            1,
            self.now,
        );
        if let Some(snapshot) = &outcome.snapshot {
            if let Some(last) = &self.last {
                assert!(!last.diff(snapshot).is_empty(), "the same snapshot twice");
                if !self.excused {
                    nothing_broke(last, snapshot);
                }
            }
            self.last = Some(snapshot.clone());
        }
        if let Some(due) = outcome.deadline {
            assert!(due > self.now, "a deadline that is over");
            assert!(due <= self.now + self.settings.make_before_break);
        }
        if let Some(last) = &self.last {
            self.what_is_served_is_wanted(last);
        }
        outcome
    }

    /// The endpoints in service have live subscriptions: they'd go stale otherwise.
    fn what_is_served_is_wanted(&self, snapshot: &ConfigSnapshot) {
        let wants = self.state.wants();
        let KindSnapshot::ConnectProxy(sidecar) = &snapshot.kind;
        for upstream in sidecar.upstreams.iter() {
            let Some(target) = &upstream.target else {
                continue;
            };
            for (id, chain_target) in &target.chain.targets {
                let query = Query::Endpoints(EndpointsQuery {
                    service: chain_target.service.clone(),
                    filter: chain_target.subset.filter.as_str().into(),
                    datacenter: chain_target.datacenter.clone(),
                    peer: Default::default(),
                });
                let known = self.script.ids.get(&query);
                assert!(
                    known.is_some_and(|id| wants.binary_search(id).is_ok()),
                    "{id} is served, but not wanted"
                );
            }
        }
    }

    fn set(&mut self, query: &Query, id: QueryId, to: Event) {
        let last = match self.script.inputs.get(&id) {
            Some(Input::Answered(answer)) => Some(answer.clone()),
            Some(Input::Failed { last, .. }) => last.clone(),
            Some(Input::Pending) | None => None,
        };
        let input = match to {
            Event::World(world) => Input::Answered(self.library.answer(query, world)),
            Event::Error => {
                self.excused = true;
                Input::Failed {
                    error: QueryError::new("by intent"),
                    last,
                }
            }
        };
        self.script.inputs.insert(id, input);
    }

    /// Answers everything that is asked for from one world, until nothing more is asked.
    fn finish(&mut self, world: usize) -> serde_json::Value {
        loop {
            let mut changed = Vec::new();
            for (query, id) in self.script.queries() {
                let answer = self.library.answer(&query, world);
                let current = match self.script.inputs.get(&id) {
                    Some(Input::Answered(known)) => known.id() == answer.id(),
                    _ => false,
                };
                if !current {
                    self.script.inputs.insert(id, Input::Answered(answer));
                    changed.push(id);
                }
            }
            if changed.is_empty() {
                break;
            }
            changed.sort_unstable();
            self.run(Changed::Queries(&changed));
        }
        assert!(self.state.is_ready());
        assert!(self.state.issues().is_empty(), "{:?}", self.state.issues());
        let last = self.last.as_ref().expect("a snapshot");
        last.to_json()
    }
}

/// An upstream that is still there and had all endpoints has all endpoints.
fn nothing_broke(old: &ConfigSnapshot, new: &ConfigSnapshot) {
    let KindSnapshot::ConnectProxy(before) = &old.kind;
    let KindSnapshot::ConnectProxy(after) = &new.kind;
    let complete = |entry: &proxycfg::snapshot::UpstreamEntry| {
        entry
            .target
            .as_ref()
            .is_some_and(|t| t.endpoints.iter().all(|e| e.endpoints.is_some()))
    };
    for upstream in before.upstreams.iter().filter(|u| complete(u)) {
        if let Some(now) = after.upstreams.iter().find(|u| u.id() == upstream.id()) {
            assert!(
                complete(now),
                "{} broke while its replacement is awaited",
                now.id()
            );
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Event {
    World(usize),
    Error,
}

#[derive(Debug, Clone)]
enum Act {
    /// Something happens to one of the queries asked so far.
    Query(usize, Event),
    Register(u8),
    Tick(u64),
}

fn act(errors: bool) -> impl Strategy<Value = Act> {
    let event = if errors {
        prop_oneof![
            4 => (0..WORLDS).prop_map(Event::World),
            1 => Just(Event::Error),
        ]
        .boxed()
    } else {
        (0..WORLDS).prop_map(Event::World).boxed()
    };
    let longest: u64 = if errors { 8_000 } else { 100 };
    prop_oneof![
        12 => (any::<prop::sample::Index>(), event)
            .prop_map(|(n, event)| Act::Query(n.index(64), event)),
        1 => (0..4_u8).prop_map(Act::Register),
        1 => (0..longest).prop_map(Act::Tick),
    ]
}

fn play(acts: &[Act], end: usize, last: u8) -> serde_json::Value {
    let mut rig = Rig::new(0);
    rig.run(Changed::All);
    let mut due = None;
    for act in acts {
        let outcome = match act {
            Act::Query(n, event) => {
                let queries = rig.script.queries();
                let (query, id) = queries[n % queries.len()].clone();
                rig.set(&query, id, *event);
                rig.run(Changed::Queries(&[id]))
            }
            Act::Register(variant) => {
                register(&mut rig, *variant);
                rig.run(Changed::All)
            }
            Act::Tick(millis) => {
                rig.now += Duration::from_millis(*millis);
                if due.is_some_and(|due: Duration| due <= rig.now) {
                    rig.excused = true;
                }
                rig.run(Changed::Queries(&[]))
            }
        };
        due = outcome.deadline;
    }
    register(&mut rig, last);
    rig.run(Changed::All);
    rig.finish(end)
}

fn register(rig: &mut Rig, variant: u8) {
    let definition = triomphe::Arc::new(definition(variant));
    rig.state
        .set_registration(Part::new(Registration::Definition(definition)));
}

fn from_scratch(end: usize, last: u8) -> serde_json::Value {
    let mut rig = Rig::new(last);
    rig.run(Changed::All);
    rig.finish(end)
}

fn masked(mut json: serde_json::Value) -> serde_json::Value {
    json["ConnectProxy"]["Leaf"] = json!(null);
    json
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: size("PROXYCFG_CASES", 150) as u32,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn the_last_snapshot_does_not_depend_on_the_order_of_answers(
        acts in prop::collection::vec(act(false), 0..60), end in 0..WORLDS, last in 0..4_u8,
    ) {
        prop_assert_eq!(masked(play(&acts, end, last)), masked(from_scratch(end, last)));
    }

    #[test]
    fn the_last_snapshot_does_not_depend_on_errors_and_time_on_the_way(
        acts in prop::collection::vec(act(true), 0..60), end in 0..WORLDS, last in 0..4_u8,
    ) {
        prop_assert_eq!(masked(play(&acts, end, last)), masked(from_scratch(end, last)));
    }
}

/// A rig with everything answered from world 0, then the chain of db redirected (world 1) to endpoints that are awaited.
fn awaiting() -> (Rig, QueryId) {
    let mut rig = Rig::new(1);
    rig.run(Changed::All);
    rig.finish(0);
    let chain = rig
        .script
        .queries()
        .into_iter()
        .find(|(q, _)| matches!(q, Query::Chain(_)))
        .unwrap();
    rig.set(&chain.0, chain.1, Event::World(1));
    let outcome = rig.run(Changed::Queries(&[chain.1]));
    assert!(outcome.snapshot.is_none(), "the old one stays");
    assert_eq!(outcome.deadline, Some(Duration::from_secs(10)));
    let awaited = rig
        .script
        .ids
        .iter()
        .find(|(q, _)| matches!(q, Query::Endpoints(e) if e.service == "cache"));
    let awaited = *awaited.unwrap().1;
    (rig, awaited)
}

fn shown(rig: &Rig) -> (String, bool) {
    let last = rig.last.as_ref().unwrap();
    let target = upstream(last, "db").target.as_ref().unwrap();
    let id = target.chain.targets.keys().next().unwrap().clone();
    (id, target.endpoints[0].endpoints.is_some())
}

#[test]
fn make_before_break_ends_with_the_first_answer() {
    let (mut rig, awaited) = awaiting();
    assert_eq!(shown(&rig), ("db.default.default.dc1".into(), true));
    let query = Query::Endpoints(EndpointsQuery {
        service: "cache".into(),
        datacenter: "dc1".into(),
        ..EndpointsQuery::default()
    });
    rig.set(&query, awaited, Event::World(1));
    let outcome = rig.run(Changed::Queries(&[awaited]));
    assert!(outcome.snapshot.is_some() && outcome.deadline.is_none());
    assert_eq!(shown(&rig), ("cache.default.default.dc1".into(), true));
}

#[test]
fn make_before_break_ends_with_an_error() {
    let (mut rig, awaited) = awaiting();
    rig.script.inputs.insert(
        awaited,
        Input::Failed {
            error: QueryError::new("no path"),
            last: None,
        },
    );
    rig.excused = true;
    assert!(rig.run(Changed::Queries(&[awaited])).snapshot.is_some());
    assert_eq!(shown(&rig), ("cache.default.default.dc1".into(), false));
}

#[test]
fn make_before_break_ends_with_the_deadline() {
    let (mut rig, _) = awaiting();
    rig.now = Duration::from_millis(9_999);
    let outcome = rig.run(Changed::Queries(&[]));
    assert!(outcome.snapshot.is_none());
    assert_eq!(
        outcome.deadline,
        Some(Duration::from_secs(10)),
        "it doesn't move"
    );
    rig.now = Duration::from_secs(10);
    rig.excused = true;
    assert!(rig.run(Changed::Queries(&[])).snapshot.is_some());
    assert_eq!(shown(&rig), ("cache.default.default.dc1".into(), false));
}

#[test]
fn make_before_break_going_back_costs_nothing() {
    let (mut rig, _) = awaiting();
    let wants = rig.state.wants().len();
    let chain = rig
        .script
        .queries()
        .into_iter()
        .find(|(q, _)| matches!(q, Query::Chain(_)))
        .unwrap();
    rig.set(&chain.0, chain.1, Event::World(0));
    let outcome = rig.run(Changed::Queries(&[chain.1]));
    assert!(outcome.snapshot.is_none() && outcome.deadline.is_none());
    assert_eq!(
        rig.state.wants().len(),
        wants - 1,
        "what was awaited isn't wanted any more"
    );
    assert!(rig.state.issues().is_empty());
}

#[test]
fn only_parts_that_read_a_changed_answer_are_built() {
    let mut rig = Rig::new(0);
    rig.run(Changed::All);
    rig.finish(0);
    for (query, id) in rig.script.queries() {
        rig.set(&query, id, Event::World(0));
        let outcome = rig.run(Changed::Queries(&[id]));
        assert_eq!(outcome.built, 1, "{query}");
        assert!(outcome.snapshot.is_none(), "{query}: nothing changed");
    }
    assert_eq!(rig.run(Changed::Queries(&[])).built, 0);
}
