//! The rows of the pure core: no thread takes part.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::{Duration, Instant, SystemTime};

use proxycfg::ca::Authority;
use proxycfg::clock::TestClock;
use proxycfg::model::{
    CaConfig, CheckStatus, IssuedCert, LeafRequest, PrivateKey, ServiceKind, SpiffeId,
};
use proxycfg::proxy::{Changed, Input, Inputs, ProxySettings, SharedParts, SoloProxy};
use proxycfg::snapshot::Part;
use proxycfg::source::{Answer, ChainCheck, QueryId, StoreViews};
use proxycfg::store::MemoryBackend;
use proxycfg::{Op, ProxyId, Query, Registration, Store, Transaction};

use crate::world::{
    Size, endpoints_in, engine, percentile, print, ready, register, service, settle, sidecar,
    write_instance, write_services,
};
use crate::{allocations, chains};

/// A handle of a snapshot to a watcher, cloned and dropped: alone, and with another core at the same.
pub fn handle(size: &Size) {
    let engine = engine();
    let index = write_services(&engine.store, size.upstreams, size.endpoints);
    settle(&engine, index);
    let id = ProxyId::new("web", "bench");
    let instance = sidecar("web", "web", (0..size.upstreams).map(service));
    register(&engine, &id, triomphe::Arc::new(instance));
    let snapshot = ready(&engine, &id);
    assert_eq!(endpoints_in(&snapshot), size.upstreams * size.endpoints);
    let rounds = 5_000_000_u32;
    let work = || {
        let begin = Instant::now();
        for _ in 0..rounds {
            drop(black_box(snapshot.clone()));
        }
        begin.elapsed().as_nanos() as f64 / f64::from(rounds)
    };
    print("time", work(), "ns");
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                for _ in 0..1_000 {
                    drop(black_box(snapshot.clone()));
                }
            }
        });
        print("contended", work(), "ns");
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    engine.close_soon();
}

/// Answers that the bench hands out: a query's number is its place.
#[derive(Default)]
struct Answers {
    ids: BTreeMap<Query, QueryId>,
    inputs: Vec<Input>,
}

impl Answers {
    fn set(&mut self, id: QueryId, answer: Answer) {
        self.inputs[id.0 as usize] = Input::Answered(answer);
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

fn certificate(service: &str) -> Answer {
    Answer::Leaf(Part::new(IssuedCert {
        serial_number: "1".into(),
        cert_pem: "certificate".into(),
        private_key: PrivateKey::from_pem("key"),
        identity: SpiffeId::Service {
            trust_domain: "td.consul".into(),
            partition: "default".into(),
            namespace: "default".into(),
            datacenter: "dc1".into(),
            service: service.into(),
        },
        authority_key_id: "00".into(),
        valid_after: SystemTime::UNIX_EPOCH,
        valid_before: SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000_000),
        create_index: 1,
        modify_index: 1,
    }))
}

/// The next snapshot after one endpoint's check has changed, in the pure core: from the new answer to the new snapshot.
pub fn next_snapshot(size: &Size) {
    let check = std::sync::Arc::new(ChainCheck);
    let store = Store::new(Box::new(MemoryBackend), check).expect("a store");
    let clock = std::sync::Arc::new(TestClock::new());
    let authority = Authority::bootstrap(clock, "dc1", CaConfig::default());
    let roots = Box::new(authority.expect("an authority").roots());
    let written = store.apply(Transaction::of(Op::SetCaRoots { roots, cas: None }));
    written.expect("a write");
    write_services(&store, size.upstreams, size.endpoints);
    let views = StoreViews {
        datacenter: "dc1".into(),
    };
    let answer = |query: &Query| match query {
        Query::Leaf { service } => certificate(service),
        query => {
            let snapshot = store.snapshot();
            views.answer(query, &snapshot.reader()).expect("an answer")
        }
    };
    let instance = sidecar("web", "web", (0..size.upstreams).map(service));
    let registration = Part::new(Registration::Definition(triomphe::Arc::new(instance)));
    let id = ProxyId::new("web", "bench");
    let kind = ServiceKind::ConnectProxy;
    let mut state = SoloProxy::new(id, kind, registration).expect("a state");
    let (settings, shared) = (ProxySettings::default(), SharedParts::default());
    let mut answers = Answers::default();
    let mut run = |answers: &mut Answers, changed: Changed<'_>| {
        let now = Duration::ZERO;
        let outcome = state.run(&settings, &shared, answers, changed, 1, now);
        outcome.snapshot
    };
    let mut last = run(&mut answers, Changed::All);
    loop {
        let open = answers.ids.iter();
        let open = open.filter(|(_, id)| matches!(answers.inputs[id.0 as usize], Input::Pending));
        let open: Vec<(Query, QueryId)> = open.map(|(q, id)| (q.clone(), *id)).collect();
        if open.is_empty() {
            break;
        }
        for (query, id) in &open {
            answers.set(*id, answer(query));
        }
        last = run(&mut answers, Changed::All).or(last);
    }
    let mut last = last.expect("a snapshot");
    assert_eq!(endpoints_in(&last), size.upstreams * size.endpoints);
    let changing = answers.ids.iter().find_map(|(query, id)| match query {
        Query::Endpoints(endpoints) if endpoints.service == "s0" => Some((query.clone(), *id)),
        _ => None,
    });
    let (query, changing) = changing.expect("endpoints are asked for");
    let (mut took, mut allocated) = (Vec::new(), Vec::new());
    for round in 0..size.rounds.max(5) * 40 {
        let status = match round % 2 {
            0 => CheckStatus::Critical,
            _ => CheckStatus::Passing,
        };
        write_instance(&store, "s0", 0, status);
        answers.set(changing, answer(&query));
        let counted = allocations();
        let begin = Instant::now();
        let next = run(&mut answers, Changed::Queries(&[changing]));
        took.push(begin.elapsed());
        allocated.push(allocations() - counted);
        let next = next.expect("a new snapshot");
        let diff = last.diff(&next);
        assert!(!diff.is_empty(), "the endpoints changed");
        last = next;
    }
    let median = percentile(&mut took, 50);
    print("time", median.as_nanos() as f64 / 1e3, "us");
    allocated.sort_unstable();
    // The tables of shared parts grow now and then: not in the median.
    print("allocations", allocated[allocated.len() / 2] as f64, "");
}

/// A chain with so many splits, compiled.
pub fn chain(size: &Size) {
    let time = chains::flat(size.splits, size.rounds * 10);
    print("time", time.as_nanos() as f64 / 1e3, "us");
}

/// A leaf certificate with its key, issued; how many a second on one core.
pub fn leaf(size: &Size) {
    let clock = std::sync::Arc::new(TestClock::new());
    let authority = Authority::bootstrap(clock, "dc1", CaConfig::default());
    let authority = authority.expect("an authority");
    let rounds = size.rounds * 20;
    let begin = Instant::now();
    for number in 0..rounds {
        let request = LeafRequest::for_service(service(number));
        let issued = authority.issue(&request).expect("a certificate");
        assert!(issued.cert_pem.starts_with("-----BEGIN"));
    }
    let took = begin.elapsed();
    print("time", took.as_nanos() as f64 / 1e3 / rounds as f64, "us");
}
