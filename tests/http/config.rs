//! `/v1/config`.

use serde_json::json;

use crate::world::World;

#[test]
fn an_entry_is_written_read_listed_and_deleted() {
    let world = World::new();
    let entry = json!({"Kind": "service-defaults", "Name": "web", "Protocol": "http"});
    let written = world.accept("/v1/config", &entry);
    assert_eq!(written.json(), json!(true));
    let answer = world.get("/v1/config/service-defaults/web");
    assert_eq!(answer.index(), written.index());
    let read = answer.json();
    assert_eq!(read["Kind"], "service-defaults");
    assert_eq!(read["Protocol"], "http");
    assert_eq!(read["ModifyIndex"], written.index());
    assert_eq!(
        world.get("/v1/config/service-defaults").json(),
        json!([read])
    );

    assert_eq!(
        world.delete("/v1/config/service-defaults/web").json(),
        json!({})
    );
    assert_eq!(world.get("/v1/config/service-defaults").json(), json!([]));
    let missing = world.get("/v1/config/service-defaults/web");
    missing.refused(404, &["service-defaults", "\"web\""]);
    assert!(missing.index() > written.index());
    assert_eq!(
        world.delete("/v1/config/service-defaults/web").json(),
        json!({})
    );
}

#[test]
fn fc_047_spellings_kinds_and_missing_names() {
    let world = World::new();
    let snake = json!({"kind": "service-defaults", "name": "web", "protocol": "http", "mesh_gateway": {"mode": "local"}});
    let camel = json!({"Kind": "service-defaults", "Name": "web", "Protocol": "http", "MeshGateway": {"Mode": "local"}});
    let first = world.accept("/v1/config", &snake).index();
    assert_eq!(
        world.accept("/v1/config", &camel).index(),
        first,
        "they are equal"
    );
    world
        .get("/v1/config/bogus")
        .refused(400, &["\"bogus\"", "service-defaults"]);
    world
        .get("/v1/config/bogus/web")
        .refused(400, &["\"bogus\""]);
    world
        .delete("/v1/config/bogus/web")
        .refused(400, &["\"bogus\""]);
    world
        .get("/v1/config/service-router/web")
        .refused(404, &["service-router", "web"]);
    assert_eq!(world.get("/v1/config/service-router").json(), json!([]));

    let opaque = json!({"Kind": "proxy-defaults", "Name": "global", "Config": {"some_key": 1, "SomeKey": 2}, "Meta": {"a_b": "c"}});
    world.accept("/v1/config", &opaque);
    let read = world.get("/v1/config/proxy-defaults/global").json();
    assert_eq!(read["Config"], json!({"some_key": 1, "SomeKey": 2}));
    assert_eq!(read["Meta"], json!({"a_b": "c"}));
    world
        .get("/v1/config/proxy-defaults/other")
        .refused(400, &["global", "other"]);
}

#[test]
fn fc_048_unknown_keys_are_named() {
    let world = World::new();
    let before = world.index();
    let bad = json!({"Kind": "service-defaults", "Name": "web", "Protocl": "http", "MeshGateway": {"mdoe": "local"}});
    world
        .put("/v1/config", &bad)
        .refused(400, &["Protocl", "mdoe", "MeshGateway"]);
    assert_eq!(world.index(), before);
    let free =
        json!({"Kind": "proxy-defaults", "Name": "global", "Config": {"anything": {"goes": true}}});
    world.accept("/v1/config", &free);
}

#[test]
fn store_2_1_an_expected_index_decides() {
    let world = World::new();
    let entry = |protocol| json!({"Kind": "service-defaults", "Name": "web", "Protocol": protocol});
    assert_eq!(
        world.accept("/v1/config?cas=0", &entry("http")).json(),
        json!(true)
    );
    assert_eq!(
        world.accept("/v1/config?cas=0", &entry("grpc")).json(),
        json!(false)
    );
    let row = world.get("/v1/config/service-defaults/web").json();
    assert_eq!(row["Protocol"], "http");
    let index = row["ModifyIndex"].as_u64().unwrap();
    let stale = index + 1000;
    assert_eq!(
        world
            .delete(&format!("/v1/config/service-defaults/web?cas={stale}"))
            .json(),
        json!(false)
    );
    assert_eq!(
        world
            .accept(&format!("/v1/config?cas={index}"), &entry("grpc"))
            .json(),
        json!(true)
    );
    let index = world.get("/v1/config/service-defaults/web").json()["ModifyIndex"].clone();
    assert_eq!(
        world
            .delete(&format!("/v1/config/service-defaults/web?cas={index}"))
            .json(),
        json!(true)
    );
    world
        .put("/v1/config?cas=x", &entry("http"))
        .refused(400, &["\"cas\"", "\"x\""]);
}

#[test]
fn store_136_and_141_what_breaks_a_chain_is_refused_and_changes_nothing() {
    let world = World::new();
    let router = json!({
        "Kind": "service-router", "Name": "api",
        "Routes": [{"Match": {"HTTP": {"PathPrefix": "/t"}}, "Destination": {"Service": "t"}}],
    });
    let before = world.index();
    world.put("/v1/config", &router).refused(400, &["api"]);
    assert_eq!(world.index(), before);
    let defaults = |protocol| json!({"Kind": "proxy-defaults", "Name": "global", "Config": {"protocol": protocol}});
    world.accept("/v1/config", &defaults("http"));
    world.accept("/v1/config", &router);
    let index = world.index();
    // FC-046: the same again is no change; another protocol and a deletion would break the chain of api.
    world.accept("/v1/config", &defaults("http"));
    world
        .put("/v1/config", &defaults("tcp"))
        .refused(400, &["api"]);
    world
        .delete("/v1/config/proxy-defaults/global")
        .refused(400, &["api"]);
    assert_eq!(world.index(), index);
}
