//! Random histories, with the engine's threads at work. Two oracles:
//!
//! - *incremental equals from scratch*: each live snapshot equals the one that a fresh engine computes from the final store;
//! - *confluence*: the same final records, written in another order, give the same snapshots.
//!
//! And on the way, for each watch: indexes never go down, no snapshot comes twice, and none shows half of a transaction.
//! Store indexes and certificates are masked.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use proptest::prelude::*;
use proxycfg::engine::{SnapshotRef, Watch};
use proxycfg::model::{
    CheckStatus, EntryKey, EntryKind, ProxyId, ProxySource, ServiceInstance, Weights,
};
use proxycfg::snapshot::ConfigSnapshot;
use proxycfg::store::{AnyRow, Image, Op, Register, Transaction};
use serde_json::{Value, json};

use crate::oracle::*;
use crate::stress::size;
use crate::world::*;

#[derive(Debug, Clone)]
enum Act {
    Instance(usize, u32),
    RemoveInstance(usize, u32),
    Check(usize, u32, u8),
    ProxyDefaults(u8),
    ServiceDefaults(usize, u8),
    Resolver(usize, u8),
    Intentions(usize, u8),
    Delete(u8, usize),
    /// Records that belong together, with the same marker.
    Pair(u32),
    Register(usize, u8, u8, bool),
    Deregister(usize),
    Watch(usize),
    Cancel(usize),
    Settle,
    RotateRoot,
    Tick(u8),
}

fn act() -> impl Strategy<Value = Act> {
    let (service, proxy) = (0..SERVICES.len(), 0..PROXIES);
    prop_oneof![
        4 => (service.clone(), 0..3_u32).prop_map(|(s, n)| Act::Instance(s, n)),
        2 => (service.clone(), 0..3_u32).prop_map(|(s, n)| Act::RemoveInstance(s, n)),
        3 => (service.clone(), 0..3_u32, 0..3_u8).prop_map(|(s, n, c)| Act::Check(s, n, c)),
        1 => (0..3_u8).prop_map(Act::ProxyDefaults),
        2 => (service.clone(), 0..5_u8).prop_map(|(s, v)| Act::ServiceDefaults(s, v)),
        3 => (service.clone(), 0..8_u8).prop_map(|(s, v)| Act::Resolver(s, v)),
        2 => (service.clone(), 0..3_u8).prop_map(|(s, v)| Act::Intentions(s, v)),
        2 => (0..4_u8, service.clone()).prop_map(|(k, s)| Act::Delete(k, s)),
        3 => (1..1_000_u32).prop_map(Act::Pair),
        2 => (proxy.clone(), 0..16_u8, 0..3_u8, any::<bool>())
            .prop_map(|(p, u, v, t)| Act::Register(p, u, v, t)),
        4 => (proxy.clone(), prop::sample::select(&USUAL[..]), any::<bool>())
            .prop_map(|(p, u, t)| Act::Register(p, u, 0, t)),
        1 => proxy.clone().prop_map(Act::Deregister),
        2 => proxy.clone().prop_map(Act::Watch),
        1 => proxy.prop_map(Act::Cancel),
        1 => Just(Act::Settle),
        1 => Just(Act::RotateRoot),
        1 => (1..15_u8).prop_map(Act::Tick),
    ]
}

/// What is written together, with the marker `k`: a resolver of the service `pair`, its only instance, and the defaults of
/// the proxy that dials it.
fn pair(k: u32) -> Vec<Op> {
    let mut ops = instance_ops("pair", 1);
    for op in &mut ops {
        if let Op::Register(register) = op
            && let Some(service) = &mut register.service
        {
            service.weights = Weights {
                passing: i64::from(k),
                warning: 1,
            };
        }
    }
    ops.push(entry_op(
        json!({"Kind": "service-resolver", "Name": "pair", "ConnectTimeout": format!("{k}s")}),
    ));
    ops.push(entry_op(
        json!({"Kind": "service-defaults", "Name": "dialer", "LocalConnectTimeoutMs": k}),
    ));
    ops
}

fn dialer() -> ProxyId {
    proxy_id("dialer")
}

/// Asserts that a snapshot of the dialer has one marker in all three places.
fn is_whole(snapshot: &ConfigSnapshot) {
    let Some(target) = &upstream(snapshot, "pair").target else {
        panic!("an upstream without a chain")
    };
    let resolver = target.chain.start().and_then(|node| node.resolver.as_ref());
    let timeout = resolver.map(|r| r.connect_timeout.to_string());
    let Some(endpoints) = &target.endpoints[0].endpoints else {
        panic!("a chain without endpoints")
    };
    let weight = endpoints.first().map(|e| e.weight_passing);
    let local = snapshot.header.proxy.config.get("local_connect_timeout_ms");
    let k = local.and_then(Value::as_u64).unwrap_or(0);
    if k == 0 {
        assert_eq!(
            (timeout.as_deref(), weight),
            (Some("5s"), None),
            "before the first"
        );
        return;
    }
    assert_eq!(
        (timeout, weight),
        (
            Some(proxycfg::model::GoDuration::from_millis(i64::from(k as u32) * 1_000).to_string()),
            Some(k as u32)
        ),
        "half of a transaction"
    );
}

struct Seen {
    id: ProxyId,
    watch: Watch,
    last: Option<SnapshotRef>,
}

impl Seen {
    fn look(&mut self) {
        while let Ok(Some(snapshot)) = self.watch.try_next() {
            if let Some(last) = &self.last {
                assert!(snapshot.store_index >= last.store_index, "back in time");
                assert!(!triomphe::Arc::ptr_eq(last, &snapshot), "twice");
            }
            if self.id == dialer() {
                is_whole(&snapshot);
            }
            self.last = Some(snapshot);
        }
    }
}

/// Plays a history; returns what is registered at the end.
fn play(world: &World, acts: &[Act]) -> Registered {
    let mut registered = Registered::new();
    let watches: Mutex<Vec<Seen>> = Mutex::default();
    let done = AtomicBool::new(false);
    let enlist = |registered: &mut Registered, id, instance: ServiceInstance, token| {
        register(world, &id, &instance, token);
        registered.insert(id, (instance, token));
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                for seen in watches.lock().iter_mut() {
                    seen.look();
                }
                std::thread::yield_now();
            }
        });
        let watch = |id: ProxyId| {
            let watch = world.manager().watch(&id);
            watches.lock().push(Seen {
                id,
                watch,
                last: None,
            });
        };
        watch(dialer());
        enlist(
            &mut registered,
            dialer(),
            sidecar("dialer", &["pair"]),
            false,
        );
        for act in acts {
            let ops = match act {
                Act::Instance(s, n) => instance_ops(SERVICES[*s], *n),
                Act::RemoveInstance(s, n) => vec![Op::DeregisterNode {
                    node: node_name(SERVICES[*s], *n).as_str().into(),
                }],
                Act::Check(s, n, status) => vec![check_op(
                    SERVICES[*s],
                    *n,
                    [
                        CheckStatus::Passing,
                        CheckStatus::Warning,
                        CheckStatus::Critical,
                    ][usize::from(*status)],
                )],
                Act::ProxyDefaults(v) => {
                    let config = match v {
                        0 => json!({}),
                        1 => json!({"protocol": "http"}),
                        _ => json!({"local_request_timeout_ms": 5}),
                    };
                    vec![entry_op(
                        json!({"Kind": "proxy-defaults", "Name": "global", "Config": config}),
                    )]
                }
                Act::ServiceDefaults(s, v) => vec![entry_op(service_defaults(SERVICES[*s], *v))],
                Act::Resolver(s, v) => vec![entry_op(resolver(SERVICES[*s], *v))],
                Act::Intentions(s, v) => vec![entry_op(intentions(SERVICES[*s], *v))],
                Act::Delete(kind, s) => {
                    let (kind, name) = match kind {
                        0 => (EntryKind::ProxyDefaults, "global"),
                        1 => (EntryKind::ServiceDefaults, SERVICES[*s]),
                        2 => (EntryKind::ServiceResolver, SERVICES[*s]),
                        _ => (EntryKind::ServiceIntentions, SERVICES[*s]),
                    };
                    vec![Op::DeleteConfig {
                        key: EntryKey::new(kind, name),
                        cas: None,
                    }]
                }
                Act::Pair(k) => pair(*k),
                Act::Register(p, upstreams, variant, token) => {
                    let instance = definition(*p, *upstreams, *variant);
                    enlist(&mut registered, id_of(*p), instance, *token);
                    continue;
                }
                Act::Deregister(p) => {
                    let id = id_of(*p);
                    let was = world.manager().deregister(&id, &ProxySource::LOCAL);
                    assert_eq!(was, registered.remove(&id).is_some());
                    continue;
                }
                Act::Watch(p) => {
                    watch(id_of(*p));
                    continue;
                }
                Act::Cancel(p) => {
                    let id = id_of(*p);
                    let mut watches = watches.lock();
                    if let Some(at) = watches.iter().position(|seen| seen.id == id) {
                        let gone = watches.swap_remove(at);
                        drop(watches);
                        drop(gone);
                    }
                    continue;
                }
                Act::Settle => {
                    world.settle();
                    continue;
                }
                Act::RotateRoot => {
                    world.embedded.rotate_root().unwrap();
                    continue;
                }
                Act::Tick(seconds) => {
                    world
                        .clock
                        .advance(std::time::Duration::from_secs(u64::from(*seconds)));
                    continue;
                }
            };
            // What contradicts the records is refused as a whole.
            let _ = world.store().apply(Transaction::from(ops));
        }
        world.settle();
        done.store(true, Ordering::SeqCst);
    });
    for seen in watches.lock().iter_mut() {
        // Certificates may still arrive.
        eventually("every watcher has the newest at the end", || {
            let newest = world.manager().watch(&seen.id).current();
            seen.look();
            match (&newest, &seen.last) {
                (Some(newest), Some(last)) => is_same(newest, last),
                (None, _) => true,
                (Some(_), None) => false,
            }
        });
    }
    registered
}

/// Writes the records of an image into an empty store, in an order given by `keys`, with the registrations in between.
fn shuffled(image: &Image, registered: &Registered, keys: &[u32]) -> BTreeMap<ProxyId, Value> {
    enum Deed<'a> {
        Write(Vec<Op>),
        Register(&'a ProxyId, &'a ServiceInstance, bool),
    }
    let world = World::new();
    let mut deeds: Vec<Deed<'_>> = Vec::new();
    let mut nodes: BTreeMap<String, Vec<Op>> = BTreeMap::new();
    for row in &image.rows {
        match row {
            AnyRow::Node(row) => {
                nodes.insert(
                    row.node.clone(),
                    vec![Op::Register(Box::new(Register {
                        node: (*row.value).clone(),
                        ..Register::default()
                    }))],
                );
            }
            AnyRow::Service { node, row } => {
                let ops = nodes.get_mut(node.name.as_str()).unwrap();
                let Op::Register(first) = &ops[0] else {
                    panic!("the node comes first")
                };
                let register = Register {
                    node: first.node.clone(),
                    service: Some((*row.value).clone()),
                    ..Register::default()
                };
                ops.push(Op::Register(Box::new(register)));
            }
            AnyRow::Check(row) => {
                let ops = nodes.get_mut(row.node.as_str()).unwrap();
                ops.push(Op::SetCheck(Box::new((*row.value).clone())));
            }
            AnyRow::Config(row) => deeds.push(Deed::Write(vec![Op::SetConfig {
                entry: Box::new((*row.value).clone()),
                cas: None,
            }])),
            AnyRow::CaRoots(row) => {
                world.apply(vec![Op::SetCaRoots {
                    roots: Box::new((*row.value).clone()),
                    cas: None,
                }]);
            }
            AnyRow::CaConfig(_) | AnyRow::State { .. } => {}
        }
    }
    deeds.extend(nodes.into_values().map(Deed::Write));
    for (id, (instance, token)) in registered {
        deeds.push(Deed::Register(id, instance, *token));
    }
    let mut order: Vec<(u32, usize)> = (0..deeds.len())
        .map(|n| (keys[n % keys.len()].wrapping_mul(n as u32 + 7), n))
        .collect();
    order.sort_unstable();
    let mut left: Vec<usize> = order.into_iter().map(|(_, n)| n).collect();
    // An entry may be refused as long as another isn't there.
    while !left.is_empty() {
        let before = left.len();
        left.retain(|n| match &deeds[*n] {
            Deed::Register(id, instance, token) => {
                register(&world, id, instance, *token);
                false
            }
            Deed::Write(ops) => world.store().apply(Transaction::from(ops.clone())).is_err(),
        });
        if left.len() == before {
            // Entries that only hold together: a redirect between services whose protocol differs from the default.
            let rest = left.drain(..).flat_map(|n| match &deeds[n] {
                Deed::Write(ops) => ops.clone(),
                Deed::Register(..) => Vec::new(),
            });
            let rest: Transaction = rest.collect();
            world.store().apply(rest).unwrap();
        }
    }
    snapshots(&world, registered)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: size("PROXYCFG_CASES", 150) as u32,
        max_shrink_iters: 400,
        ..ProptestConfig::default()
    })]

    #[test]
    fn contract_2_incremental_equals_from_scratch_in_any_order(
        acts in proptest::collection::vec(act(), 1..60),
        keys in proptest::collection::vec(any::<u32>(), 16),
    ) {
        let world = World::new();
        let registered = play(&world, &acts);
        let image = world.store().image();
        let live = snapshots(&world, &registered);
        same("from scratch", &live, &fresh(&image, &registered));
        same("confluence", &live, &shuffled(&image, &registered, &keys));
    }
}
