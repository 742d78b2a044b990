//! Random histories under faults. When the faults are over and time has passed, everything is as if there had been none.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use proxycfg::clock::Clock as _;
use proxycfg::config_source::{ConfigSource as _, SourceWatch};
use proxycfg::engine::{CallbackWatch, RegisterOptions, SnapshotRef, Watch};
use proxycfg::model::{CheckStatus, EntryKey, EntryKind, ProxyId, ProxySource, ServiceKind};
use proxycfg::proxy::Registration;
use proxycfg::store::{Op, Transaction};
use serde_json::json;

use crate::faults::{Random, raise};
use crate::mesh::{Mesh, SOURCE, alive, from_scratch, handles};
use crate::moody::Moody;
use crate::oracle::*;
use crate::world::*;

/// A watch and what it saw last.
struct Seen<W> {
    watch: W,
    last: Option<SnapshotRef>,
}

impl<W> Seen<W> {
    fn new(watch: W) -> Self {
        Self { watch, last: None }
    }

    /// Takes what is new; false at the end of the watch.
    fn look<E>(&mut self, next: impl Fn(&mut W) -> Result<Option<SnapshotRef>, E>) -> bool {
        loop {
            match next(&mut self.watch) {
                Ok(Some(snapshot)) => {
                    if let Some(last) = &self.last {
                        assert!(snapshot.store_index >= last.store_index, "back in time");
                        assert!(!is_same(last, &snapshot), "twice");
                    }
                    self.last = Some(snapshot);
                }
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    }
}

#[derive(Default)]
struct Held {
    registered: BTreeMap<ProxyId, RegisterOptions>,
    watches: Vec<Seen<Watch>>,
    callbacks: Vec<CallbackWatch>,
    streams: Vec<Seen<SourceWatch>>,
    /// Watches whose readers are gone without a word, and when that will be noticed: until then nobody looks at them.
    half_open: Vec<(Duration, Box<dyn Any>)>,
    /// Callbacks that hang until the faults are over.
    hanging: Vec<CallbackWatch>,
    over: Arc<AtomicBool>,
}

impl Drop for Held {
    fn drop(&mut self) {
        // A failed history must end too.
        self.over.store(true, Ordering::SeqCst);
    }
}

/// How long it takes until a peer that is gone is noticed: the xDS server asks after 30 s, and waits for 20.
const NOTICED: Duration = Duration::from_secs(50);

impl Held {
    /// A watch's reader is gone without a word, for now and for ever.
    fn abandon(&mut self, watch: impl Any, now: Duration) {
        self.half_open.push((now + NOTICED, Box::new(watch)));
    }

    /// Drops what is noticed to be abandoned.
    fn notice(&mut self, now: Duration) {
        self.half_open.retain(|(until, _)| *until > now);
    }

    fn look(&mut self) {
        self.watches.retain_mut(|seen| seen.look(Watch::try_next));
        self.streams
            .retain_mut(|seen| seen.look(SourceWatch::try_next));
    }
}

/// A sidecar in the catalog.
fn catalog_proxy(service: &str, n: u32) -> ProxyId {
    ProxyId::new(
        format!("{service}-{n}-sidecar-proxy"),
        node_name(service, n),
    )
}

fn take_at<T>(from: &mut Vec<T>, random: &mut Random) -> Option<T> {
    (!from.is_empty()).then(|| from.swap_remove(random.below(from.len())))
}

/// Does one thing. Writes may fail: the faults see to that.
fn act(mesh: &Mesh, held: &mut Held, random: &mut Random) {
    let manager = &mesh.embedded.manager;
    let s = random.below(SERVICES.len());
    let (service, n) = (SERVICES[s], random.below(3) as u32);
    let (p, variant) = (random.below(PROXIES), random.below(8) as u8);
    let ops = match random.below(25) {
        0..=3 => instance_ops(service, n),
        4 => vec![Op::DeregisterNode {
            node: node_name(service, n).as_str().into(),
        }],
        5 | 6 => {
            let status = [
                CheckStatus::Passing,
                CheckStatus::Warning,
                CheckStatus::Critical,
            ];
            vec![check_op(service, n, status[random.below(3)])]
        }
        7 => {
            let config = [json!({}), json!({"protocol": "http"})][random.below(2)].clone();
            let entry = json!({"Kind": "proxy-defaults", "Name": "global", "Config": config});
            vec![entry_op(entry)]
        }
        8 => vec![entry_op(service_defaults(service, variant % 5))],
        9 | 10 => vec![entry_op(resolver(service, variant))],
        11 => vec![entry_op(intentions(service, variant % 3))],
        12 => {
            let (kind, name) = [
                (EntryKind::ProxyDefaults, "global"),
                (EntryKind::ServiceDefaults, service),
                (EntryKind::ServiceResolver, service),
                (EntryKind::ServiceIntentions, service),
            ][random.below(4)];
            vec![Op::DeleteConfig {
                key: EntryKey::new(kind, name),
                cas: None,
            }]
        }
        13 | 14 => {
            let id = id_of(p);
            let instance = if random.one_in(3) {
                definition(p, random.below(16) as u8, random.below(3) as u8)
            } else {
                definition(p, USUAL[random.below(USUAL.len())], 0)
            };
            let mut options = options(instance);
            options.token = ["", "token"][random.below(2)].into();
            options.source = SOURCE;
            manager.register(&id, options.clone()).unwrap();
            held.registered.insert(id, options);
            return;
        }
        15 => {
            let id = id_of(p);
            let was = manager.deregister(&id, &SOURCE);
            assert_eq!(was, held.registered.remove(&id).is_some());
            return;
        }
        16 => {
            let mut watch = manager.watch(&id_of(p));
            if random.one_in(2) {
                watch.set_waker(|| {});
            }
            held.watches.push(Seen::new(watch));
            return;
        }
        17 => {
            if held.hanging.len() < 2 && random.one_in(4) {
                let over = held.over.clone();
                let hang = move |_| {
                    while !over.load(Ordering::SeqCst) {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                };
                let watch = manager.watch_with(&id_of(p), hang);
                held.hanging.push(watch);
                return;
            }
            let (slow, broken) = (random.one_in(4), random.one_in(4));
            let watch = manager.watch_with(&id_of(p), move |_| {
                if slow {
                    std::thread::sleep(Duration::from_millis(2));
                }
                assert!(!broken, "by intent");
            });
            held.callbacks.push(watch);
            return;
        }
        18 => {
            match random.below(3) {
                0 => drop(take_at(&mut held.watches, random)),
                1 => drop(take_at(&mut held.callbacks, random)),
                _ => drop(take_at(&mut held.streams, random)),
            }
            return;
        }
        23 => {
            let now = mesh.clock.monotonic();
            if random.one_in(2) {
                if let Some(watch) = take_at(&mut held.watches, random) {
                    held.abandon(watch, now);
                }
            } else if let Some(stream) = take_at(&mut held.streams, random) {
                held.abandon(stream, now);
            }
            return;
        }
        19 => {
            // Local services go by names of their own; `db` they all dial.
            let name = format!("local-{service}");
            if random.one_in(3) {
                // It may not be there.
                let _ = mesh.local.remove(&name);
            } else {
                mesh.define(&name, 8_000 + u16::from(variant));
            }
            return;
        }
        20 => {
            if let Ok(watch) = mesh.catalog.watch(&catalog_proxy(service, n)) {
                held.streams.push(Seen::new(watch));
            }
            return;
        }
        21 => {
            match &mesh.feed {
                Some(feed) if random.one_in(4) => feed.end_tokens(),
                Some(feed) => feed.stir(),
                None => {
                    // Refused when it can't be kept.
                    let _ = mesh.embedded.rotate_root();
                }
            }
            return;
        }
        22 => {
            let seconds = [1, 5, 30, 3_600, 100 * 3_600][random.below(5)];
            mesh.clock.advance(Duration::from_secs(seconds));
            held.notice(mesh.clock.monotonic());
            if random.one_in(4) {
                // Somebody sets the machine's clock, back or forward.
                let hours = Duration::from_secs(random.below(200) as u64 * 3_600);
                let wall = mesh.clock.now();
                let to = [wall.checked_sub(hours), wall.checked_add(hours)][random.below(2)];
                mesh.clock.set_wall(to.unwrap_or(wall));
            }
            return;
        }
        _ => {
            held.look();
            return;
        }
    };
    // What contradicts the records is refused as a whole, and what can't be kept too.
    let _ = mesh.embedded.store.apply(Transaction::from(ops));
}

fn play(seed: u64, acts: usize) {
    let mut random = Random::new(seed);
    let moody = random.one_in(2).then(|| Moody::new(seed));
    let mesh = Mesh::new(moody);
    let base = alive(&mesh.embedded.manager.counts());
    let mut held = Held::default();
    let faults = raise(seed);
    for _ in 0..acts {
        act(&mesh, &mut held, &mut random);
    }
    drop(faults);
    calm(&mesh, &mut held);
    count_out(&mesh, &mut held);
    compare(&mesh, &mut held);
    release(&mesh, held);
    mesh.ends_at(base);
}

/// The faults are over: whoever lost its token comes again, and time passes.
fn calm(mesh: &Mesh, held: &mut Held) {
    let manager = &mesh.embedded.manager;
    if let Some(feed) = &mesh.feed {
        feed.calm();
    }
    held.over.store(true, Ordering::SeqCst);
    mesh.flush();
    // A view that failed is tried again when what it read changes (decision E5): here, everything at once.
    let image = mesh.embedded.store.image();
    mesh.embedded.store.restore(&image).unwrap();
    mesh.flush();
    // With that step, all that the feed said before is taken in too, and whose token has ended shows.
    for (id, options) in &held.registered {
        if manager.status(id).is_some_and(|s| s.ended.is_some()) {
            manager.deregister(id, &SOURCE);
        }
        manager.register(id, options.clone()).unwrap();
    }
}

/// Those who are gone without a word have been noticed: what they alone wanted is let go, after its grace.
fn count_out(mesh: &Mesh, held: &mut Held) {
    mesh.clock.advance(NOTICED);
    held.notice(mesh.clock.monotonic());
    assert!(held.half_open.is_empty());
    held.look();
    let wanted: BTreeSet<_> = held
        .streams
        .iter()
        .map(|s| s.watch.proxy_id().clone())
        .collect();
    eventually("no proxy is followed that nobody wants", || {
        mesh.clock.advance(Duration::from_secs(3));
        mesh.catalog.followed() <= wanted.len()
    });
    let watches = held.watches.len() + held.callbacks.len() + held.streams.len();
    eventually("no watch is left that nobody reads", || {
        mesh.embedded.manager.counts().watches <= (watches + held.hanging.len()) as u64
    });
}

fn compare(mesh: &Mesh, held: &mut Held) {
    let manager = &mesh.embedded.manager;
    let mut expected = mesh.local_proxies();
    expected.extend(held.registered.clone());
    held.look();
    for stream in &held.streams {
        let id = stream.watch.proxy_id().clone();
        let records = mesh.embedded.store.snapshot();
        let record = records
            .reader()
            .instance(id.node.as_str(), &id.service_id)
            .is_some();
        if !record {
            // It waits for its record.
            eventually("an unknown proxy isn't registered", || {
                // A look that panicked is tried again after a while.
                mesh.clock.advance(Duration::from_secs(1));
                let status = manager.status(&id);
                status.is_none_or(|status| status.source.is_none())
            });
            continue;
        }
        let options = RegisterOptions {
            kind: ServiceKind::ConnectProxy,
            registration: Registration::Record,
            source: ProxySource::new("catalog"),
            token: Default::default(),
            overwrite: true,
        };
        expected.insert(id, options);
    }
    for id in expected.keys() {
        mesh.heal(id);
    }
    mesh.flush();
    let live = mesh.snapshots(expected.keys().cloned());
    let image = mesh.embedded.store.image();
    same("from scratch", &live, &from_scratch(&image, &expected));
    eventually("every watcher has the newest", || {
        held.look();
        let of_watches = held.watches.iter().map(|s| (s.watch.proxy_id(), &s.last));
        let of_streams = held.streams.iter().map(|s| (s.watch.proxy_id(), &s.last));
        of_watches
            .chain(of_streams)
            .all(|(id, last)| match (&manager.watch(id).current(), last) {
                (Some(newest), Some(last)) => is_same(newest, last),
                (None, _) => true,
                (Some(_), None) => false,
            })
    });
}

fn release(mesh: &Mesh, held: Held) {
    for id in held.registered.keys() {
        mesh.embedded.manager.deregister(id, &SOURCE);
    }
    for entry in mesh.local.services() {
        // A sidecar goes with its service.
        let _ = mesh.local.remove(&entry.service.id);
    }
    drop(held);
    mesh.flush();
}

#[test]
fn after_any_faults_all_is_as_if_there_had_been_none() {
    let _alone = crate::alone();
    let given = std::env::var("PROXYCFG_SEED").ok();
    let seeds = match given.and_then(|text| text.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => {
            let first = crate::size("PROXYCFG_FIRST_SEED", 1) as u64;
            first..first + crate::size("PROXYCFG_SEEDS", 40) as u64
        }
    };
    let acts = crate::size("PROXYCFG_ACTS", 150);
    let (threads, _) = handles();
    for seed in seeds {
        let played = catch_unwind(AssertUnwindSafe(|| play(seed, acts)));
        if let Err(panic) = played {
            eprintln!("play it again with PROXYCFG_SEED={seed} PROXYCFG_ACTS={acts}");
            resume_unwind(panic);
        }
    }
    eventually("no thread is left", || handles().0 <= threads);
}
