//! Many threads at once.

/// The size of a long test: small in the normal run, full on demand (decision T1).
pub fn size(variable: &str, normal: usize) -> usize {
    std::env::var(variable)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(normal)
}
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use proxycfg::WaitError;
use proxycfg::engine::WatchEvent;
use proxycfg::model::{CheckStatus, GoDuration, ProxySource};
use serde_json::json;

use crate::world::*;

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

#[test]
fn engine_m11_everything_at_once_ends_with_the_newest() {
    let world = World::new();
    for n in 1..=3 {
        world.instance("db", n);
    }
    let rounds = size("PROXYCFG_ROUNDS", 400);
    let late = Duration::from_secs(10);
    let slow_call = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..8_u64 {
            let (world, slow_call) = (&world, &slow_call);
            scope.spawn(move || {
                let mut random = Random(thread + 1);
                let mut watches = Vec::new();
                let mut called = Vec::new();
                for _ in 0..rounds {
                    let begun = Instant::now();
                    let id = proxy_id(&format!("p{}", random.below(4)));
                    match random.below(10) {
                        0..=2 => {
                            let mut instance = sidecar(&id.service_id, &["db", "api"]);
                            instance.port = random.below(3) as u16 + 1;
                            if random.below(2) == 0 {
                                instance.proxy.upstreams.pop();
                            }
                            let mut options = options(instance);
                            options.token = ["", "a", "b"][random.below(3) as usize].into();
                            world.manager().register(&id, options).unwrap();
                        }
                        3 => {
                            world.manager().deregister(&id, &ProxySource::LOCAL);
                        }
                        4 => watches.push((world.manager().watch(&id), 0)),
                        5 => {
                            let slow = random.below(4) == 0;
                            called.push(world.manager().watch_with(&id, move |event| {
                                if slow && matches!(event, WatchEvent::Snapshot(_)) {
                                    std::thread::sleep(Duration::from_millis(1));
                                }
                            }));
                        }
                        6 => {
                            called.pop();
                            watches.pop();
                        }
                        7 => {
                            world.check(
                                "db",
                                random.below(3) as u32 + 1,
                                [CheckStatus::Passing, CheckStatus::Critical][random.below(2) as usize],
                            );
                        }
                        8 => {
                            let timeout = format!("{}s", random.below(5) + 1);
                            world.entry(json!({"Kind": "service-resolver", "Name": "db", "ConnectTimeout": timeout}));
                        }
                        _ => {
                            let _ = world.manager().status(&id);
                            let _ = world.manager().proxies();
                            world.clock.advance(Duration::from_millis(random.below(3_000)));
                        }
                    }
                    for (watch, seen) in &mut watches {
                        if let Some(snapshot) = watch.try_next().unwrap() {
                            assert!(snapshot.store_index >= *seen, "back in time");
                            *seen = snapshot.store_index;
                        }
                    }
                    if begun.elapsed() > late {
                        slow_call.fetch_add(1, Ordering::SeqCst);
                    }
                }
            });
        }
    });
    assert_eq!(slow_call.load(Ordering::SeqCst), 0);
    let mut watches = Vec::new();
    for n in 0..4 {
        let id = proxy_id(&format!("p{n}"));
        watches.push(world.manager().watch(&id));
        world.register(&id, sidecar(&id.service_id, &["db"]));
    }
    world.entry(json!({"Kind": "service-resolver", "Name": "db", "ConnectTimeout": "77s"}));
    for watch in &mut watches {
        eventually("the newest", || {
            let _ = watch.try_next().unwrap();
            watch.current().is_some_and(|snapshot| {
                let target = upstream(&snapshot, "db").target.clone();
                target.is_some_and(|t| {
                    let resolver = t.chain.start().unwrap().resolver.as_ref().unwrap();
                    resolver.connect_timeout.to_string() == "1m17s"
                })
            })
        });
    }
    let counts = world.manager().counts();
    assert_eq!((counts.watches, counts.states, counts.panics), (4, 4, 0));
}

#[test]
fn fc_001_a_burst_with_watchers_that_come_and_go() {
    let world = World::new();
    world.instance("db", 1);
    let id = proxy_id("web");
    world.register(&id, sidecar("web", &["db"]));
    world.ready(&id);
    let mut old = world.manager().watch(&id);
    let done = AtomicBool::new(false);
    let longest = AtomicU64::new(0);
    let timed = |work: &dyn Fn()| {
        let begun = Instant::now();
        work();
        longest.fetch_max(begun.elapsed().as_millis() as u64, Ordering::SeqCst);
    };
    std::thread::scope(|scope| {
        for thread in 0..size("PROXYCFG_THREADS", 20) {
            let (done, world, id, timed) = (&done, &world, &id, &timed);
            scope.spawn(move || {
                while !done.load(Ordering::SeqCst) {
                    if thread % 10 == 0 {
                        timed(&|| assert!(world.manager().watch(id).current().is_some()));
                    } else {
                        timed(&|| {
                            let mut watch = world.manager().watch(id);
                            next(&mut watch);
                        });
                    }
                }
            });
        }
        for n in 0..size("PROXYCFG_ROUNDS", 200) as u32 {
            let ops = if n % 2 == 0 {
                instance_ops("db", n % 20 + 2)
            } else {
                vec![check_op(
                    "db",
                    1,
                    [CheckStatus::Critical, CheckStatus::Passing][n as usize / 2 % 2],
                )]
            };
            world.apply(ops);
        }
        world.settle();
        done.store(true, Ordering::SeqCst);
    });
    assert!(longest.load(Ordering::SeqCst) < 10_000, "{longest:?} ms");
    let fresh = world.ready(&id);
    let mut last = None;
    while let Some(snapshot) = old.try_next().unwrap() {
        last = Some(snapshot);
    }
    assert!(triomphe::Arc::ptr_eq(&fresh, &last.unwrap()));
    assert_eq!(addresses(&fresh, "db").len(), 11);
}

#[test]
fn engine_s14_many_sources_that_answer_at_once() {
    let world = World::new();
    let names: Vec<String> = (0..100).map(|n| format!("u{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for name in &names {
        world.instance(name, 1);
    }
    let id = proxy_id("web");
    world.register(&id, sidecar("web", &names));
    let snapshot = world.ready(&id);
    for name in &names {
        assert_eq!(addresses(&snapshot, name).len(), 1, "{name}");
    }
}

#[test]
fn registering_while_the_engine_closes_leaves_nothing_behind() {
    for round in 0..50 {
        let world = World::new();
        let manager = world.manager().clone();
        let registrar = std::thread::spawn(move || {
            for n in 0..200 {
                let id = proxy_id(&format!("p{n}"));
                let mut watch = manager.watch(&id);
                if manager.register(&id, options(sidecar("p", &[]))).is_err() {
                    // Perhaps after a snapshot that was made before the engine ended.
                    let until = Instant::now() + PATIENCE;
                    let mut read = std::iter::repeat_with(|| watch.next(Some(until)));
                    let end = read.find(|read| !matches!(read, Ok(Some(_))));
                    return matches!(end, Some(Err(WaitError::Ended)));
                }
            }
            true
        });
        for _ in 0..round * 50 {
            std::hint::spin_loop();
        }
        let report = world.manager().close(Instant::now() + PATIENCE);
        assert!(registrar.join().unwrap(), "a watch on a closed engine ends");
        assert_eq!(report.stuck_threads, 0);
        assert!(world.manager().proxies().is_empty());
        assert_eq!(world.manager().counts().states, 0);
    }
}

#[test]
fn waiting_for_an_index_is_waiting_for_every_proxy() {
    let world = Arc::new(World::new());
    world.instance("db", 1);
    for round in 0..size("PROXYCFG_ROUNDS", 300) as u32 {
        // Registrations and changes race; after the wait every proxy that has a snapshot shows the last commit.
        let ids: Vec<_> = (0..3).map(|n| proxy_id(&format!("p{n}"))).collect();
        let registrar = {
            let (world, ids) = (world.clone(), ids.clone());
            std::thread::spawn(move || {
                for id in &ids {
                    world.register(id, sidecar(&id.service_id, &["db"]));
                }
            })
        };
        let seconds = round % 50 + 1;
        for n in 0..5 {
            world.entry(json!({"Kind": "service-resolver", "Name": "db", "ConnectTimeout": format!("{}s", seconds + n)}));
        }
        registrar.join().unwrap();
        world.settle();
        for id in &ids {
            if let Some(snapshot) = world.manager().watch(id).current() {
                let target = upstream(&snapshot, "db").target.clone().unwrap();
                let resolver = target.chain.start().unwrap().resolver.as_ref().unwrap();
                let timeout = GoDuration::from_millis(i64::from(seconds + 4) * 1_000);
                if resolver.connect_timeout != timeout {
                    let index = snapshot.store_index;
                    let before = world.manager().status(id);
                    let counts = world.manager().counts();
                    std::thread::sleep(Duration::from_millis(300));
                    let later = world.manager().watch(id).current().unwrap();
                    panic!(
                        "round {round}: {} instead of {timeout}; at index {index} of {}, done {}; then {}; {before:?}\n{counts:?}\n{:?}",
                        resolver.connect_timeout,
                        world.store().snapshot().index(),
                        world.manager().done_index(),
                        later.store_index,
                        world.manager().counts()
                    );
                }
            }
            world.manager().deregister(id, &ProxySource::LOCAL);
        }
    }
}
