//! `/v1/proxycfg`.

use std::time::{Duration, Instant};

use proxycfg::model::ProxyId;
use serde_json::{Value, json};

use crate::world::{NODE, PATIENCE, World, eventually};

const SIDECAR: &str = "web1-sidecar-proxy";

fn ready() -> World {
    let world = World::new();
    world.accept(
        "/v1/agent/service/register",
        &json!({
            "Name": "web", "ID": "web1", "Port": 8080,
            "Connect": {"SidecarService": {"Proxy": {"Upstreams": [{"DestinationName": "db", "LocalBindPort": 9191}]}}},
        }),
    );
    world.flush();
    let id = ProxyId::new(SIDECAR, NODE);
    world
        .embedded
        .manager
        .wait_ready(&id, Instant::now() + PATIENCE)
        .unwrap();
    world.flush();
    world
}

fn path(query: &str) -> String {
    format!("/v1/proxycfg/snapshot/{SIDECAR}?{query}")
}

#[test]
fn proxies_are_listed_with_what_they_wait_for() {
    let world = ready();
    let unknown = world.embedded.manager.watch(&ProxyId::new("ghost", NODE));
    let list = world.get("/v1/proxycfg/proxies").json();
    assert_eq!(list.as_array().unwrap().len(), 2);
    assert_eq!(list[0]["ID"], "ghost");
    assert_eq!(list[0]["Ready"], false);
    assert_eq!(list[0]["Source"], "");
    assert_eq!(list[0]["Watchers"], 1);
    assert!(
        list[0]["WaitingFor"][0]
            .as_str()
            .unwrap()
            .contains("registered")
    );
    assert_eq!(list[1]["ID"], SIDECAR);
    assert_eq!(list[1]["Node"], NODE);
    assert_eq!(list[1]["Kind"], "connect-proxy");
    assert_eq!(list[1]["Source"], "local");
    assert_eq!(list[1]["Ready"], true);
    assert_eq!(list[1]["WaitingFor"], json!([]));
    assert!(list[1]["Index"].as_u64().unwrap() > 0);
    assert_eq!(list[1]["Streams"], json!([]));
    drop(unknown);
}

#[test]
fn c1_a_snapshot_is_shown_without_keys_whole_or_in_part() {
    let world = ready();
    let answer = world.get(&path(""));
    let snapshot = answer.json();
    assert_eq!(snapshot["ProxyID"]["ID"], SIDECAR);
    assert_eq!(answer.index(), snapshot["Index"].as_u64().unwrap());
    assert_eq!(
        snapshot["ConnectProxy"]["Leaf"]["PrivateKeyPEM"],
        "<redacted>"
    );
    assert!(!answer.text.contains("PRIVATE KEY"));
    let port = world.get(&path(
        "pointer=/ConnectProxy/Upstreams/db/Definition/LocalBindPort",
    ));
    assert_eq!(port.json(), json!(9191));
    assert_eq!(world.get(&path(&format!("node={NODE}"))).json(), snapshot);

    world.get(&path("pointer=/Nope")).refused(404, &["/Nope"]);
    world
        .get(&path("pointer=Nope"))
        .refused(400, &["\"pointer\""]);
    world.get(&path("node=n9")).refused(404, &["n9"]);
    world
        .get("/v1/proxycfg/snapshot/nobody")
        .refused(404, &["nobody", "/v1/proxycfg/proxies"]);
}

#[test]
fn a_proxy_without_a_snapshot_says_so() {
    let world = World::new();
    let _watch = world.embedded.manager.watch(&ProxyId::new("ghost", NODE));
    world
        .get("/v1/proxycfg/snapshot/ghost")
        .refused(404, &["ghost", "registration"]);
    world
        .get("/v1/proxycfg/resources/ghost")
        .refused(404, &["ghost"]);
    world
        .put("/v1/proxycfg/renew/ghost", &json!(null))
        .refused(404, &["ghost"]);
}

#[test]
fn a_snapshot_can_be_waited_for_by_index() {
    let world = ready();
    let index = world.get(&path("")).index();
    let start = Instant::now();
    let same = world.get(&path(&format!("index={index}&wait=50ms")));
    assert_eq!(same.index(), index);
    assert!(start.elapsed() >= Duration::from_millis(50));
    let waiting = world.get_later(&path(&format!("index={index}&wait=1m")));
    let watched = || world.get("/v1/proxycfg/proxies").json()[0]["Watchers"] == json!(1);
    eventually("the read watches", watched);
    world.accept(
        "/v1/config",
        &json!({"Kind": "service-defaults", "Name": "db", "Protocol": "http"}),
    );
    let answer = waiting.join().unwrap();
    assert!(answer.index() > index);
    let chain = &answer.json()["ConnectProxy"]["Upstreams"]["db"]["DiscoveryChain"];
    assert_eq!(chain["Protocol"], "http");
    eventually("the read has left nothing", || !watched());
}

#[test]
fn a_renewed_certificate_is_noticed_by_the_hash() {
    let world = ready();
    let part = path("pointer=/ConnectProxy/Leaf");
    let first = world.get(&part);
    let hash = first.header("x-consul-contenthash");
    let waiting = world.get_later(&format!("{part}&hash={hash}&wait=1m"));
    let watched = || world.get("/v1/proxycfg/proxies").json()[0]["Watchers"] == json!(1);
    eventually("the read watches", watched);
    // A change elsewhere in the snapshot isn't what is waited for.
    world.accept(
        "/v1/config",
        &json!({"Kind": "service-defaults", "Name": "db", "Protocol": "http"}),
    );
    world.flush();
    assert!(!waiting.is_finished());
    assert_eq!(
        world
            .accept(&format!("/v1/proxycfg/renew/{SIDECAR}"), &json!(null))
            .json(),
        json!(true)
    );
    let answer = waiting.join().unwrap();
    assert_ne!(answer.json()["SerialNumber"], first.json()["SerialNumber"]);
}

#[test]
fn c1_resources_are_shown_by_type_without_keys() {
    let world = ready();
    let all = world.get(&format!("/v1/proxycfg/resources/{SIDECAR}"));
    assert!(!all.text.contains("PRIVATE KEY"));
    let types: Vec<Value> = all
        .json()
        .as_array()
        .unwrap()
        .iter()
        .map(|r| r["Type"].clone())
        .collect();
    for kind in ["cluster", "endpoint", "listener", "secret"] {
        assert!(types.contains(&json!(kind)), "{types:?}");
    }
    let listeners = world
        .get(&format!("/v1/proxycfg/resources/{SIDECAR}?type=listener"))
        .json();
    assert!(
        listeners
            .as_array()
            .unwrap()
            .iter()
            .all(|r| r["Type"] == "listener")
    );
    world
        .get(&format!("/v1/proxycfg/resources/{SIDECAR}?type=thing"))
        .refused(400, &["\"type\"", "listener"]);
}

#[test]
fn r3_a_transaction_is_all_or_nothing() {
    let world = World::new();
    let good = json!({"Ops": [
        {"Register": {"Node": "n1", "Address": "10.0.0.1", "Service": {"Service": "web", "Port": 80}}},
        {"Config": {"Kind": "service-defaults", "Name": "web", "Protocol": "http"}},
        {"Check": {"Node": "n1", "CheckID": "web", "ServiceID": "web", "Status": "passing"}},
    ]});
    let before = world.index();
    let answer = world.accept("/v1/proxycfg/transaction", &good);
    assert_eq!(answer.json(), json!({"Index": before + 1, "Changed": true}));
    assert_eq!(
        world.get("/v1/catalog/node/n1").json()["Node"]["Datacenter"],
        "dc1"
    );
    let again = world.accept("/v1/proxycfg/transaction", &good);
    assert_eq!(again.json(), json!({"Index": before + 1, "Changed": false}));

    let bad = json!({"Ops": [
        {"DeleteConfig": {"Kind": "service-defaults", "Name": "web"}},
        {"Deregister": {"Node": "n1"}},
        {"Check": {"Node": "n1", "CheckID": "web"}},
    ]});
    world
        .put("/v1/proxycfg/transaction", &bad)
        .refused(400, &["Ops[2].Check", "n1"]);
    let unread = json!({"Ops": [
        {"Config": {"Kind": "service-defaults", "Name": "a.b"}},
        {"Register": {"Node": "", "Address": "10.0.0.1"}},
        {"Nope": {}},
    ]});
    world.put("/v1/proxycfg/transaction", &unread).refused(
        400,
        &["Ops[0].Config.Name", "Ops[1].Register.Node", "Ops[2]"],
    );
    assert_eq!(world.index(), before + 1);
}
