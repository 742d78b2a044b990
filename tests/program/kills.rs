//! A writing server, killed at random moments (decision R2). How often is said by `PROXYCFG_KILLS`.
//!
//! After each kill, on the same folder: every acknowledged write is there; of one that was under way all is there or nothing;
//! the store index hasn't gone back; and the trust domain is the same.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use super::world::{Server, folder};

/// Writers; each has records of its own, which it writes over and over, numbered.
const WRITERS: usize = 6;

/// What is known of a writer's records.
#[derive(Default)]
struct Known {
    /// The number that was acknowledged last.
    acknowledged: AtomicU64,
    /// The number that was tried last.
    tried: AtomicU64,
}

/// One write of a writer: two records that must never differ in their number, in the ways that there are to write.
fn write(server: &Server, writer: usize, number: u64) -> Option<(u16, String)> {
    let meta = json!({"number": number.to_string()});
    match writer % 3 {
        0 => {
            let entry = |side: &str| json!({"Config": {"Kind": "service-defaults", "Name": format!("{side}-{writer}"), "Meta": meta}});
            let ops = json!({"Ops": [entry("left"), entry("right")]});
            server.try_put("/v1/proxycfg/transaction", &ops)
        }
        1 => {
            let body = json!({"Node": format!("node-{writer}"), "Address": "10.0.0.1", "NodeMeta": meta,
                "Service": {"Service": format!("catalog-{writer}"), "Meta": meta}});
            server.try_put("/v1/catalog/register", &body)
        }
        _ => {
            let sidecar = json!({"SidecarService": {"Meta": meta}});
            let body = json!({"Name": format!("local-{writer}"), "Port": 80, "Meta": meta, "Connect": sidecar});
            server.try_put("/v1/agent/service/register", &body)
        }
    }
}

/// The numbers of a writer's two records; 0 if they aren't there.
fn read(server: &Server, writer: usize) -> (u64, u64) {
    let number = |record: Option<Value>, pointer: &str| {
        let text = record.as_ref().and_then(|record| record.pointer(pointer));
        text.map_or(0, |text| text.as_str().unwrap().parse().unwrap())
    };
    match writer % 3 {
        0 => {
            let entry = |side: &str| {
                let record = server.get(&format!("/v1/config/service-defaults/{side}-{writer}"));
                number(record, "/Meta/number")
            };
            (entry("left"), entry("right"))
        }
        1 => {
            let record = server.get(&format!("/v1/catalog/service/catalog-{writer}"));
            let of = |pointer| number(record.clone(), pointer);
            (of("/0/NodeMeta/number"), of("/0/ServiceMeta/number"))
        }
        _ => {
            let service = |id: String| {
                let record = server.get(&format!("/v1/agent/service/{id}"));
                number(record, "/Meta/number")
            };
            (
                service(format!("local-{writer}")),
                service(format!("local-{writer}-sidecar-proxy")),
            )
        }
    }
}

fn random(below: u64) -> u64 {
    RandomState::new().build_hasher().finish() % below
}

#[test]
fn r2_kills_at_random_moments_lose_nothing_acknowledged() {
    let kills = std::env::var("PROXYCFG_KILLS").map_or(15, |text| text.parse().unwrap());
    let there = folder(&[]);
    let known: Vec<Known> = (0..WRITERS).map(|_| Known::default()).collect();
    let highest = AtomicU64::new(0);
    let mut trust_domain = None;
    let (mut writes, mut under_way) = (0, 0);
    for kill in 0..=kills {
        let server = Server::start(
            there.path(),
            &[
                "--data-dir",
                "data",
                "--log-level",
                "warn,proxycfg::server::serve=info",
            ],
        );
        let index = server.store_index();
        assert!(
            index >= highest.load(Ordering::SeqCst),
            "kill {kill}: the index went back to {index}"
        );
        let domain = server.get("/v1/connect/ca/roots").unwrap()["TrustDomain"].clone();
        assert_eq!(trust_domain.get_or_insert_with(|| domain.clone()), &domain);
        for (writer, known) in known.iter().enumerate() {
            let acknowledged = known.acknowledged.load(Ordering::SeqCst);
            let tried = known.tried.load(Ordering::SeqCst);
            let (one, other) = read(&server, writer);
            assert_eq!(
                one, other,
                "kill {kill}: half of a write of {writer} is there"
            );
            assert!(
                one >= acknowledged && one <= tried,
                "kill {kill}: writer {writer} has {one}, acknowledged {acknowledged}, tried {tried}"
            );
            under_way += u64::from(one > acknowledged);
            known.acknowledged.store(one, Ordering::SeqCst);
        }
        if kill == kills {
            break;
        }
        std::thread::scope(|scope| {
            for (writer, known) in known.iter().enumerate() {
                let (server, highest) = (&server, &highest);
                scope.spawn(move || {
                    loop {
                        let number = known.tried.fetch_add(1, Ordering::SeqCst) + 1;
                        let Some((status, text)) = write(server, writer, number) else {
                            return;
                        };
                        assert_eq!(status, 200, "{text}");
                        known.acknowledged.store(number, Ordering::SeqCst);
                        if writer % 3 == 0 {
                            let answer: Value = serde_json::from_str(&text).unwrap();
                            highest.fetch_max(answer["Index"].as_u64().unwrap(), Ordering::SeqCst);
                        }
                    }
                });
            }
            // The moment is what is tested, so it is a time and not a condition.
            std::thread::sleep(Duration::from_millis(random(250)));
            server.signal("KILL");
        });
        server.kill();
        writes = known
            .iter()
            .map(|k| k.acknowledged.load(Ordering::SeqCst))
            .sum::<u64>();
    }
    println!("{kills} kills, {writes} writes, of which {under_way} were there unacknowledged");
}
