//! `/v1/health`.

use serde_json::{Value, json};

use crate::world::{World, encoded, web};

fn ids(rows: &Value) -> Vec<&str> {
    let rows = rows.as_array().unwrap();
    rows.iter()
        .map(|row| row["Service"]["ID"].as_str().unwrap())
        .collect()
}

fn set(world: &World, check: &str, service: &str, status: &str) {
    world.accept(
        "/v1/catalog/register",
        &json!({
            "Node": "n1", "SkipNodeUpdate": true,
            "Check": {"CheckID": check, "ServiceID": service, "Status": status},
        }),
    );
}

#[test]
fn rows_have_node_service_and_checks() {
    let world = World::new();
    let index = world.accept("/v1/catalog/register", &web()).index();
    let answer = world.get("/v1/health/service/WEB");
    assert_eq!(answer.index(), index);
    let rows = answer.json();
    assert_eq!(rows[0]["Node"]["Address"], "10.0.0.9");
    assert_eq!(rows[0]["Service"]["Port"], 8080);
    assert_eq!(rows[0]["Service"]["Proxy"]["MeshGateway"], json!({}));
    assert_eq!(
        rows[0]["Checks"],
        json!([
            {
                "Node": "n1", "CheckID": "node", "Name": "node check", "Status": "passing", "Notes": "", "Output": "",
                "ServiceID": "", "ServiceName": "", "ServiceTags": [], "Type": "", "Interval": "", "Timeout": "",
                "ExposedPort": 0, "Definition": {}, "CreateIndex": index, "ModifyIndex": index,
            },
            {
                "Node": "n1", "CheckID": "web", "Name": "web check", "Status": "passing", "Notes": "", "Output": "",
                "ServiceID": "web1", "ServiceName": "web", "ServiceTags": ["v1", "blue"], "Type": "", "Interval": "",
                "Timeout": "", "ExposedPort": 0, "Definition": {}, "CreateIndex": index, "ModifyIndex": index,
            },
        ])
    );
}

#[test]
fn fc_017_status_writes_show_at_once_and_take_the_instance_out_of_passing() {
    let world = World::new();
    world.accept("/v1/catalog/register", &web());
    let passing = || ids(&world.get("/v1/health/service/web?passing").json()).len();
    let all = || ids(&world.get("/v1/health/service/web?passing=false").json()).len();
    assert_eq!((passing(), all()), (1, 1));
    set(&world, "web", "web1", "critical");
    assert_eq!((passing(), all()), (0, 1));
    set(&world, "web", "web1", "warning");
    assert_eq!((passing(), all()), (0, 1));
    set(&world, "web", "web1", "passing");
    assert_eq!((passing(), all()), (1, 1));
    set(&world, "_node_maintenance", "", "critical");
    assert_eq!((passing(), all()), (0, 1));
    world.accept(
        "/v1/catalog/deregister",
        &json!({"Node": "n1", "CheckID": "_node_maintenance"}),
    );
    assert_eq!((passing(), all()), (1, 1));
}

#[test]
fn checks_are_listed_by_node_service_and_state() {
    let world = World::new();
    world.accept("/v1/catalog/register", &web());
    set(&world, "web", "web1", "warning");
    let check_ids = |path: &str| {
        let rows = world.get(path).json();
        let rows = rows.as_array().unwrap().clone();
        rows.iter()
            .map(|row| row["CheckID"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(check_ids("/v1/health/node/n1"), ["node", "web"]);
    assert_eq!(check_ids("/v1/health/node/nobody"), [""; 0]);
    assert_eq!(check_ids("/v1/health/checks/web"), ["web"]);
    assert_eq!(check_ids("/v1/health/state/any"), ["node", "web"]);
    assert_eq!(check_ids("/v1/health/state/passing"), ["node"]);
    assert_eq!(
        check_ids("/v1/health/state/warning?node-meta=rack:r1"),
        ["web"]
    );
    assert_eq!(
        check_ids("/v1/health/state/warning?node-meta=rack:r2"),
        [""; 0]
    );
    assert_eq!(check_ids("/v1/health/state/critical"), [""; 0]);
    let filter = encoded(r#"ServiceName == "web""#);
    assert_eq!(
        check_ids(&format!("/v1/health/state/any?filter={filter}")),
        ["web"]
    );
    world
        .get("/v1/health/state/fine")
        .refused(400, &["\"fine\"", "passing"]);
}

#[test]
fn store_28_to_32_filters_see_the_whole_row() {
    let world = World::new();
    world.accept("/v1/catalog/register", &web());
    let rows = |filter: &str| {
        let path = format!("/v1/health/service/web?filter={}", encoded(filter));
        ids(&world.get(&path).json()).len()
    };
    assert_eq!(rows(r#"Service.Meta.version == "1""#), 1);
    assert_eq!(rows(r#"Service.Meta.version != "1""#), 0);
    assert_eq!(
        rows(r#""blue" in Service.Tags and not (Node.Node == "n2")"#),
        1
    );
    assert_eq!(rows("Service.Port == 8080"), 1);
    assert_eq!(rows(r#"Checks.Status == "critical""#), 0);
    for bad in ["Service.Nope == 1", "Service.Meta.a =="] {
        let path = format!("/v1/health/service/web?filter={}", encoded(bad));
        world.get(&path).refused(400, &["\"filter\""]);
    }
    world
        .get("/v1/health/service/web?passing=maybe")
        .refused(400, &["passing", "maybe"]);
    world
        .get("/v1/health/service/web?merge-central-config=true")
        .refused(400, &["merge-central-config"]);
}

#[test]
fn store_17_a_check_of_an_unknown_node_or_instance_is_refused() {
    let world = World::new();
    world.accept("/v1/catalog/register", &web());
    let before = world.index();
    let check = json!({
        "Node": "n1", "SkipNodeUpdate": true,
        "Checks": [{"CheckID": "a", "ServiceID": "nope"}, {"CheckID": "b", "ServiceID": "neither"}],
    });
    world
        .put("/v1/catalog/register", &check)
        .refused(400, &["Checks[0]", "nope", "Checks[1]", "neither"]);
    let op = json!({"Ops": [{"Check": {"Node": "n9", "CheckID": "a"}}]});
    world
        .put("/v1/proxycfg/transaction", &op)
        .refused(400, &["Ops[0].Check", "n9"]);
    assert_eq!(world.index(), before);
}
