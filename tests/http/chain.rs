//! `/v1/discovery-chain`.

use std::thread;

use serde_json::json;

use crate::world::World;

#[test]
fn a_chain_is_compiled_from_the_entries_and_follows_them() {
    let world = World::new();
    let answer = world.get("/v1/discovery-chain/db");
    let chain = &answer.json()["Chain"];
    assert_eq!(chain["ServiceName"], "db");
    assert_eq!(chain["Default"], true);
    assert_eq!(chain["StartNode"], "resolver:db.default.default.dc1");

    let index = answer.index();
    thread::scope(|scope| {
        let waiting =
            scope.spawn(|| world.get(&format!("/v1/discovery-chain/db?index={index}&wait=30s")));
        world.accept(
            "/v1/config",
            &json!({"Kind": "service-resolver", "Name": "db", "Redirect": {"Service": "other"}}),
        );
        let followed = waiting.join().unwrap().json();
        assert_eq!(
            followed["Chain"]["StartNode"],
            "resolver:other.default.default.dc1"
        );
    });
}

#[test]
fn a_chain_can_be_compiled_for_another_datacenter() {
    let world = World::new();
    let chain = world.get("/v1/discovery-chain/db?compile-dc=dc2").json()["Chain"].clone();
    assert_eq!(chain["Datacenter"], "dc2");
}
