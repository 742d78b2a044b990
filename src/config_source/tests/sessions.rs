//! Sessions in operation (engine.md 5.7, X1 to X5).

use std::time::Duration;

use crate::config_source::testing::{Rig, eventually, sidecar};
use crate::config_source::{Session, SessionControl, SessionLimiter};
use crate::store::Op;

fn terminated(sessions: &[Session]) -> usize {
    let given = sessions.iter().filter(|s| s.terminated().is_given());
    given.count()
}

#[test]
fn session_x2_the_limit_follows_the_catalog() {
    let rig = Rig::new();
    for n in 0..100 {
        rig.catalog("n1", sidecar(&format!("p{n}"), 1000 + n));
    }
    for n in 0..25 {
        let mut plain = sidecar(&format!("s{n}"), 2000 + n);
        plain.kind = Default::default();
        rig.catalog("n1", plain);
    }
    let limiter = SessionLimiter::new();
    let control = SessionControl::start(limiter.clone(), &rig.store, rig.clock.clone(), 2).unwrap();
    eventually("two servers", || limiter.max_sessions() == 56);
    control.set_servers(1);
    eventually("one server", || limiter.max_sessions() == 111);
    rig.apply(vec![Op::DeregisterService {
        node: "n1".into(),
        id: "p7".into(),
    }]);
    eventually("a proxy less", || limiter.max_sessions() == 109);
    assert_eq!(control.ideal_max(), 109);
    control.stop();
    control.stop();
}

#[test]
fn session_x3_draining_goes_by_the_clock() {
    let rig = Rig::new();
    let limiter = SessionLimiter::new();
    let sessions: Vec<Session> = (0..5).map(|_| limiter.begin().unwrap()).collect();
    limiter.set_drain_rate(Some(1.0));
    limiter.set_max_sessions(2);
    assert_eq!(terminated(&sessions), 0, "nobody drains yet");
    let before = rig.clock.pending_alarms();
    let _control =
        SessionControl::start(limiter.clone(), &rig.store, rig.clock.clone(), 0).unwrap();
    for drained in 1..=3 {
        eventually("drained", || terminated(&sessions) == drained);
        if drained < 3 {
            eventually("armed", || rig.clock.pending_alarms() > before);
            rig.clock.advance(Duration::from_millis(900));
            assert_eq!(terminated(&sessions), drained);
            rig.clock.advance(Duration::from_millis(100));
        }
    }
    assert_eq!(limiter.in_flight(), 2);
}

#[test]
fn decision_e10_without_a_number_of_servers_there_is_no_limit() {
    let rig = Rig::new();
    rig.catalog("n1", sidecar("p", 1));
    let limiter = SessionLimiter::new();
    let _control =
        SessionControl::start(limiter.clone(), &rig.store, rig.clock.clone(), 0).unwrap();
    let sessions: Vec<Session> = (0..100).map(|_| limiter.begin().unwrap()).collect();
    rig.catalog("n1", sidecar("q", 2));
    assert_eq!((limiter.max_sessions(), terminated(&sessions)), (0, 0));
}

#[test]
fn fc_028_rebalancing() {
    let rig = Rig::new();
    for n in 0..30 {
        rig.catalog("n1", sidecar(&format!("p{n}"), 1000 + n));
    }
    let limiter = SessionLimiter::new();
    let _control =
        SessionControl::start(limiter.clone(), &rig.store, rig.clock.clone(), 3).unwrap();
    eventually("the limit", || limiter.max_sessions() == 11);
    let sessions: Vec<Session> = (0..11).map(|_| limiter.begin().unwrap()).collect();
    assert!(limiter.begin().is_err());
    limiter.set_max_sessions(5);
    eventually("drained one by one", || {
        rig.clock.advance(Duration::from_secs(1));
        terminated(&sessions) == 6
    });
    assert_eq!(limiter.in_flight(), 5);
    limiter.set_max_sessions(0);
    let more: Vec<Session> = (0..100).map(|_| limiter.begin().unwrap()).collect();
    drop(sessions);
    assert_eq!(limiter.in_flight(), more.len());
}
