//! Tests of the rules, without a thread: time moves by hand, and [`Bench::settle`] does what the thread would do.

use parking_lot::Mutex;

use super::*;
use crate::ca::Authority;
use crate::ca::tests::verifies;
use crate::clock::{Clock, TestClock};
use crate::model::CaConfig;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

type Log = Arc<Mutex<Vec<Result<Certificate, CaError>>>>;

struct Bench {
    clock: Arc<TestClock>,
    authority: Authority,
    table: Table,
    signed: usize,
}

impl Bench {
    fn new(config: CaConfig) -> Self {
        let clock = Arc::new(TestClock::new());
        let authority = Authority::bootstrap(clock.clone(), "dc1", config).unwrap();
        let options = LeafOptions {
            seed: Some(42),
            ..LeafOptions::default()
        };
        Self {
            clock,
            authority,
            table: Table::new(options),
            signed: 0,
        }
    }

    /// An hour's lifetime for leaves, and this many renewals per second.
    fn hourly(csr_max_per_second: f64) -> Self {
        Self::new(CaConfig {
            leaf_cert_ttl: HOUR,
            csr_max_per_second,
            ..CaConfig::default()
        })
    }

    fn now(&self) -> Now {
        Now {
            wall: self.clock.now(),
            monotonic: self.clock.monotonic(),
        }
    }

    fn issuer(&self) -> Issuer {
        Issuer {
            signing_key_id: self.authority.active_signing_key_id(),
            csr_max_per_second: self.authority.csr_max_per_second(),
        }
    }

    fn subscribe(&mut self, request: &LeafRequest) -> (LeafSubscription, Log) {
        let log = Log::default();
        let sink = Arc::clone(&log);
        let now = self.now();
        let sink: LeafSink = Box::new(move |value| sink.lock().push(value));
        (self.table.subscribe(request, sink, now), log)
    }

    /// Signs and delivers until there is nothing to do at this time; returns the next time that there may be.
    fn settle(&mut self) -> Option<Duration> {
        loop {
            let now = self.now();
            for delivery in self.table.take_deliveries(now) {
                delivery.make();
            }
            match self.table.next(&self.issuer(), now) {
                Next::Sign(job) => {
                    let result = self.authority.issue(&job.request).map(triomphe::Arc::new);
                    self.signed += usize::from(result.is_ok());
                    let issuer = self.issuer();
                    self.table.complete(job.key, result, &issuer, now);
                }
                Next::Sleep(until) => return until,
            }
        }
    }

    /// Lets time pass as the thread would see it: from timer to timer.
    fn pass(&mut self, time: Duration) {
        let end = self.clock.monotonic() + time;
        while let Some(next) = self.settle()
            && next < end
        {
            self.clock.advance(next - self.clock.monotonic());
        }
        self.clock.advance(end - self.clock.monotonic());
        self.settle();
    }

    fn get(&mut self, request: &LeafRequest) -> Result<Certificate, CaError> {
        let (issuer, now) = (self.issuer(), self.now());
        match self.table.read(request, &issuer, now) {
            Read::Ready(certificate) => Ok(certificate),
            Read::Sign { job, fallback } => {
                let result = self.authority.issue(&job.request).map(triomphe::Arc::new);
                self.signed += usize::from(result.is_ok());
                self.table.complete(job.key, result.clone(), &issuer, now);
                result.or_else(|error| fallback.ok_or(error))
            }
        }
    }

    fn rotate(&mut self) {
        self.authority.rotate().unwrap();
        let (issuer, now) = (self.issuer(), self.now());
        self.table.roots_changed(&issuer, now);
    }
}

fn web() -> LeafRequest {
    LeafRequest::for_service("web")
}

fn last(log: &Log) -> Certificate {
    log.lock().last().unwrap().clone().unwrap()
}

#[test]
fn store_134_equal_requests_share_one_certificate() {
    let mut bench = Bench::hourly(50.0);
    let (_, one) = bench.subscribe(&web());
    let (_, two) = bench.subscribe(&web());
    let (_, other) = bench.subscribe(&web().with_dns_san(["a"]));
    bench.settle();
    let (_, late) = bench.subscribe(&web());
    bench.settle();
    assert_eq!(bench.signed, 2);
    assert!(triomphe::Arc::ptr_eq(&last(&one), &last(&two)));
    assert!(triomphe::Arc::ptr_eq(&last(&one), &last(&late)));
    assert_ne!(last(&one), last(&other));
    assert!(one.lock().len() == 1 && late.lock().len() == 1);
}

#[test]
fn store_130_e11_first_issues_are_never_refused() {
    let mut bench = Bench::hourly(1.0);
    let logs: Vec<Log> = (0..5)
        .map(|i| {
            bench
                .subscribe(&LeafRequest::for_service(format!("s{i}")))
                .1
        })
        .collect();
    bench.settle();
    assert!(logs.iter().all(|log| log.lock().len() == 1));
    assert!(bench.get(&LeafRequest::for_service("s5")).is_ok());
}

#[test]
fn store_130_renewals_keep_the_limit_and_the_old_certificate() {
    let mut bench = Bench::hourly(0.001);
    let logs: Vec<Log> = (0..5)
        .map(|i| {
            bench
                .subscribe(&LeafRequest::for_service(format!("s{i}")))
                .1
        })
        .collect();
    bench.settle();
    // All are due after 54 minutes, but only every 1000 s one may be renewed.
    bench.pass(54 * 60 * SECOND);
    assert!((5 + 1..=5 + 2).contains(&bench.signed), "{}", bench.signed);
    let kept = logs.iter().filter(|log| log.lock().len() == 1);
    for log in kept {
        assert!(log.lock()[0].is_ok());
        assert!(last(log).is_valid_at(bench.clock.now()));
    }
    // What runs out meanwhile counts as a first issue.
    bench.pass(7 * 60 * SECOND);
    for log in &logs {
        assert!(last(log).is_valid_at(bench.clock.now()));
        assert!(log.lock().iter().all(Result::is_ok));
    }
}

#[test]
fn fc_075_a_leaf_is_renewed_in_time_for_ever() {
    let mut bench = Bench::hourly(50.0);
    let (_, log) = bench.subscribe(&web());
    bench.pass(10 * HOUR);
    let log = log.lock();
    let leaves: Vec<&Certificate> = log.iter().map(|value| value.as_ref().unwrap()).collect();
    assert!((11..=17).contains(&leaves.len()), "{}", leaves.len());
    for pair in leaves.windows(2) {
        let age = |part: u32| pair[0].valid_after + (HOUR + 60 * SECOND) * part / 10;
        let renewed = pair[1].valid_after + 60 * SECOND;
        assert!(renewed >= age(6) - SECOND && renewed <= age(9) + SECOND);
        assert!(pair[1].valid_after < pair[0].valid_before, "no gap");
        assert_ne!(pair[0].serial_number, pair[1].serial_number);
    }
}

#[test]
fn fc_075_wall_time_jumps_forward_past_the_end() {
    let mut bench = Bench::hourly(50.0);
    let (_, log) = bench.subscribe(&web());
    let sleep = bench.settle().unwrap() - bench.clock.monotonic();
    assert!(sleep <= 5 * SECOND, "it looks at wall time often");
    bench.clock.set_wall(bench.clock.now() + 3 * HOUR);
    bench.pass(sleep);
    assert_eq!(log.lock().len(), 2);
    assert!(last(&log).is_valid_at(bench.clock.now()));
}

#[test]
fn fc_075_wall_time_jumps_into_the_renewal_range() {
    let mut bench = Bench::hourly(50.0);
    let logs: Vec<Log> = (0..50)
        .map(|i| {
            bench
                .subscribe(&LeafRequest::for_service(format!("s{i}")))
                .1
        })
        .collect();
    bench.settle();
    bench.clock.set_wall(bench.clock.now() + 45 * 60 * SECOND);
    bench.pass(10 * SECOND);
    let renewed = |logs: &[Log]| logs.iter().filter(|log| log.lock().len() > 1).count();
    assert!(renewed(&logs) < 10, "what is left of the range is used");
    bench.pass(10 * 60 * SECOND);
    assert_eq!(renewed(&logs), 50);
}

#[test]
fn fc_075_wall_time_jumps_back() {
    let mut bench = Bench::hourly(50.0);
    let (_, log) = bench.subscribe(&web());
    bench.settle();
    bench.clock.set_wall(bench.clock.now() - HOUR);
    assert!(!last(&log).is_valid_at(bench.clock.now()), "not valid yet");
    bench.pass(5 * SECOND);
    assert!(last(&log).is_valid_at(bench.clock.now()));
    // A small step changes nothing.
    let signed = bench.signed;
    bench.clock.set_wall(bench.clock.now() - 30 * SECOND);
    bench.pass(10 * SECOND);
    assert_eq!(bench.signed, signed);
}

#[test]
fn store_127_fc_074_a_root_change_is_spread_and_limited() {
    let mut bench = Bench::new(CaConfig::default());
    let logs: Vec<Log> = (0..500)
        .map(|i| {
            bench
                .subscribe(&LeafRequest::for_service(format!("s{i}")))
                .1
        })
        .collect();
    bench.settle();
    assert_eq!(bench.signed, 500);
    bench.pass(HOUR);
    let old_root = bench.authority.roots().active().unwrap().clone();
    bench.rotate();
    let mut per_second = Vec::new();
    for _ in 0..40 {
        let before = bench.signed;
        bench.pass(SECOND);
        per_second.push(bench.signed - before);
        for log in &logs {
            assert!(last(log).is_valid_at(bench.clock.now()));
        }
    }
    assert_eq!(per_second.iter().sum::<usize>(), 500, "each once");
    assert!(
        per_second.iter().all(|signed| *signed <= 50),
        "{per_second:?}"
    );
    assert!(
        per_second[..30].iter().all(|signed| *signed > 3),
        "{per_second:?}"
    );
    assert_eq!(per_second[32..].iter().sum::<usize>(), 0, "{per_second:?}");
    let new_key = bench.authority.active_signing_key_id();
    for log in &logs {
        assert_eq!(last(log).authority_key_id, new_key);
    }
    assert!(verifies(
        &last(&logs[0]).cert_pem,
        &old_root,
        bench.clock.now()
    ));
}

#[test]
fn fc_074_a_low_limit_delays_but_reaches_every_leaf() {
    let mut bench = Bench::new(CaConfig {
        csr_max_per_second: 5.0,
        ..CaConfig::default()
    });
    let logs: Vec<Log> = (0..500)
        .map(|i| {
            bench
                .subscribe(&LeafRequest::for_service(format!("s{i}")))
                .1
        })
        .collect();
    bench.settle();
    bench.rotate();
    bench.pass(30 * SECOND);
    assert!(bench.signed - 500 <= 151, "{}", bench.signed);
    bench.pass(75 * SECOND);
    assert_eq!(bench.signed, 1000);
    assert!(logs.iter().all(|log| log.lock().len() == 2));
}

#[test]
fn store_128_a_change_that_keeps_the_signing_key_renews_nothing() {
    let mut bench = Bench::new(CaConfig::default());
    let (_, log) = bench.subscribe(&web());
    bench.settle();
    bench.rotate();
    bench.pass(31 * SECOND);
    assert_eq!(log.lock().len(), 2);
    bench.pass(20 * HOUR);
    let (issuer, now) = (bench.issuer(), bench.now());
    bench.table.roots_changed(&issuer, now);
    bench.pass(31 * SECOND);
    assert_eq!(log.lock().len(), 2);
}

#[test]
fn a_leaf_that_was_being_signed_during_a_rotation_follows_it() {
    let mut bench = Bench::new(CaConfig::default());
    let (_, log) = bench.subscribe(&web());
    let now = bench.now();
    let Next::Sign(job) = bench.table.next(&bench.issuer(), now) else {
        panic!("the first issue");
    };
    let signed = triomphe::Arc::new(bench.authority.issue(&job.request).unwrap());
    bench.rotate();
    let issuer = bench.issuer();
    bench.table.complete(job.key, Ok(signed), &issuer, now);
    bench.pass(30 * SECOND);
    assert_eq!(log.lock().len(), 2);
    assert_eq!(last(&log).authority_key_id, issuer.signing_key_id);
}

#[test]
fn fc_072_a_read_without_subscription_is_never_stale() {
    let mut bench = Bench::hourly(50.0);
    let first = bench.get(&web()).unwrap();
    assert!(triomphe::Arc::ptr_eq(&first, &bench.get(&web()).unwrap()));
    bench.rotate();
    let during = bench.get(&web()).unwrap();
    assert!(during.is_valid_at(bench.clock.now()));
    // Nobody runs the table meanwhile: the read itself finds that the renewal is due.
    bench.clock.advance(30 * SECOND);
    let second = bench.get(&web()).unwrap();
    assert_eq!(
        second.authority_key_id,
        bench.authority.active_signing_key_id()
    );
    bench.clock.advance(2 * HOUR);
    let third = bench.get(&web()).unwrap();
    assert!(third.is_valid_at(bench.clock.now()));
    // The same if wall time alone moves.
    bench.clock.set_wall(bench.clock.now() + 2 * HOUR);
    assert!(bench.get(&web()).unwrap().is_valid_at(bench.clock.now()));
}

#[test]
fn e8_an_unused_key_lingers_and_is_forgotten() {
    let mut bench = Bench::new(CaConfig::default());
    let (one, log) = bench.subscribe(&web());
    bench.settle();
    let now = bench.now();
    assert!(bench.table.unsubscribe(one, now).is_some());
    assert!(bench.table.unsubscribe(one, now).is_none());
    bench.pass(59 * SECOND);
    // Somebody comes back in time: the same certificate.
    let (two, again) = bench.subscribe(&web());
    bench.settle();
    assert!(triomphe::Arc::ptr_eq(&last(&log), &last(&again)));
    bench.pass(HOUR);
    let now = bench.now();
    bench.table.unsubscribe(two, now);
    assert_eq!(bench.table.statuses().len(), 1);
    bench.pass(61 * SECOND);
    assert_eq!(bench.table.statuses().len(), 0);
    assert_eq!(bench.settle(), None, "nothing to wait for");
    assert_eq!(bench.signed, 1);
}

#[test]
fn nothing_is_delivered_after_unsubscribing() {
    let mut bench = Bench::new(CaConfig::default());
    let (one, log) = bench.subscribe(&web());
    bench.settle();
    let (two, other) = bench.subscribe(&web());
    let now = bench.now();
    let owed = bench.table.take_deliveries(now);
    assert_eq!(owed.len(), 1);
    bench.table.unsubscribe(two, now);
    owed.into_iter().for_each(Delivery::make);
    assert!(other.lock().is_empty());
    assert!(bench.table.renew(&web(), now));
    bench.table.unsubscribe(one, now);
    bench.settle();
    assert_eq!(log.lock().len(), 1);
}

#[test]
fn renewal_on_demand_goes_before_due_ones_and_keeps_the_limit() {
    let mut bench = Bench::hourly(1.0);
    let (_, log) = bench.subscribe(&web());
    for i in 0..10 {
        bench.subscribe(&LeafRequest::for_service(format!("s{i}")));
    }
    bench.settle();
    bench.rotate();
    bench.clock.advance(30 * SECOND);
    let now = bench.now();
    assert!(bench.table.renew(&web(), now));
    assert!(!bench.table.renew(&LeafRequest::for_service("unknown"), now));
    bench.settle();
    assert_eq!(
        (bench.signed, log.lock().len()),
        (12, 2),
        "one token, taken by the renewal asked for"
    );
    assert!(bench.table.renew(&web(), now));
    bench.pass(SECOND);
    assert_eq!(log.lock().len(), 3);
}

#[test]
fn a_renewal_asked_for_during_signing_is_made_afterwards() {
    let mut bench = Bench::hourly(0.0);
    let (_, log) = bench.subscribe(&web());
    let now = bench.now();
    let Next::Sign(job) = bench.table.next(&bench.issuer(), now) else {
        panic!("the first issue");
    };
    assert!(bench.table.renew(&web(), now));
    let result = bench.authority.issue(&job.request).map(triomphe::Arc::new);
    let issuer = bench.issuer();
    bench.table.complete(job.key, result, &issuer, now);
    bench.settle();
    assert_eq!(log.lock().len(), 2);
}

#[test]
fn fc_076_an_expired_root_is_reported_retried_and_recovered_from() {
    let mut bench = Bench::new(CaConfig {
        leaf_cert_ttl: 10 * HOUR,
        intermediate_cert_ttl: 30 * HOUR,
        root_cert_ttl: 30 * HOUR,
        ..CaConfig::default()
    });
    let (_, log) = bench.subscribe(&web());
    bench.pass(31 * HOUR);
    // The last leaf outlives its root: it stays, with one report of why there is no new one.
    let valid_until = log
        .lock()
        .iter()
        .rev()
        .find_map(|value| value.as_ref().ok().map(|leaf| leaf.valid_before))
        .unwrap();
    bench.pass(10 * HOUR);
    assert!(valid_until < bench.clock.now());
    let errors: Vec<CaError> = log
        .lock()
        .iter()
        .filter_map(|value| value.clone().err())
        .collect();
    assert!(
        matches!(errors.as_slice(), [CaError::RootExpired { .. }]),
        "{errors:?}"
    );
    let status = &bench.table.statuses()[0];
    assert!(status.failures > 3 && status.error == Some(errors[0].clone()));
    assert!(
        status.failures < 10 * 120 + 20,
        "with back-off: {}",
        status.failures
    );
    assert!(matches!(
        bench.get(&web()),
        Err(CaError::RootExpired { .. })
    ));

    // A new subscriber gets the reason, never the expired certificate.
    let (_, late) = bench.subscribe(&web());
    bench.settle();
    assert!(matches!(
        late.lock().as_slice(),
        [Err(CaError::RootExpired { .. })]
    ));

    bench.rotate();
    bench.settle();
    for log in [&log, &late] {
        assert!(last(log).is_valid_at(bench.clock.now()));
    }
    assert_eq!(bench.table.statuses()[0].failures, 0);
    let root = bench.authority.roots().active().unwrap().clone();
    assert!(verifies(&last(&log).cert_pem, &root, bench.clock.now()));
}

#[test]
fn a_clock_corrected_back_ends_the_failure() {
    let mut bench = Bench::new(CaConfig::default());
    let start = bench.clock.now();
    bench.clock.set_wall(start + 87601 * HOUR);
    let (_, log) = bench.subscribe(&web());
    bench.settle();
    assert!(log.lock()[0].is_err());
    bench.clock.set_wall(start + HOUR);
    bench.pass(SECOND);
    assert!(last(&log).is_valid_at(bench.clock.now()));
}

#[test]
fn a_reader_and_the_thread_that_sign_at_once_agree() {
    let mut bench = Bench::new(CaConfig::default());
    let (_, log) = bench.subscribe(&web());
    let now = bench.now();
    let issuer = bench.issuer();
    let Next::Sign(job) = bench.table.next(&issuer, now) else {
        panic!("the first issue");
    };
    let by_thread = triomphe::Arc::new(bench.authority.issue(&job.request).unwrap());
    let by_reader = bench.get(&web()).unwrap();
    bench.table.complete(job.key, Ok(by_thread), &issuer, now);
    bench.settle();
    assert_eq!(log.lock().len(), 1);
    assert!(
        triomphe::Arc::ptr_eq(&last(&log), &by_reader),
        "the later one"
    );
}
