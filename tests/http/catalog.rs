//! `/v1/catalog` and `/v1/status`.

use serde_json::json;

use crate::world::{World, encoded, web, web_sidecar};

#[test]
fn the_status_is_that_of_a_single_server() {
    let world = World::new();
    assert_eq!(
        world.get("/v1/status/leader").json(),
        json!("127.0.0.1:8300")
    );
    assert_eq!(
        world.get("/v1/status/peers").json(),
        json!(["127.0.0.1:8300"])
    );
    assert_eq!(world.get("/v1/catalog/datacenters").json(), json!(["dc1"]));
}

#[test]
fn a_registration_is_shown_in_consuls_forms() {
    let world = World::new();
    let written = world.accept("/v1/catalog/register", &web());
    assert_eq!(written.json(), json!(true));
    let index = written.index();

    let rows = world.get("/v1/catalog/service/web").json();
    assert_eq!(
        rows,
        json!([{
            "ID": "", "Node": "n1", "Address": "10.0.0.9", "Datacenter": "dc1", "TaggedAddresses": {},
            "NodeMeta": {"rack": "r1"}, "ServiceKind": "", "ServiceID": "web1", "ServiceName": "web",
            "ServiceTags": ["v1", "blue"], "ServiceAddress": "", "ServiceTaggedAddresses": {},
            "ServiceWeights": {"Passing": 1, "Warning": 1}, "ServiceMeta": {"version": "1"}, "ServicePort": 8080,
            "ServiceSocketPath": "", "ServiceEnableTagOverride": false,
            "ServiceProxy": {"Mode": "", "MeshGateway": {}, "Expose": {}}, "ServiceConnect": {},
            "CreateIndex": index, "ModifyIndex": index,
        }])
    );
    let node = world.get("/v1/catalog/node/n1").json();
    assert_eq!(
        node["Node"],
        json!({
            "ID": "", "Node": "n1", "Address": "10.0.0.9", "Datacenter": "dc1", "TaggedAddresses": {},
            "Meta": {"rack": "r1"}, "CreateIndex": index, "ModifyIndex": index,
        })
    );
    assert_eq!(node["Services"]["web1"]["Service"], "web");
    let list = world.get("/v1/catalog/node-services/N1").json();
    assert_eq!(list["Services"][0]["ID"], "web1");
    assert_eq!(list["Node"]["Node"], "n1");

    assert_eq!(world.get("/v1/catalog/node/nobody").json(), json!(null));
    assert_eq!(
        world.get("/v1/catalog/node-services/nobody").json(),
        json!({"Node": null, "Services": []})
    );
    assert_eq!(world.get("/v1/catalog/service/nobody").json(), json!([]));
    let services = world.get("/v1/catalog/services").json();
    assert_eq!(services, json!({"web": ["blue", "v1"]}));
}

#[test]
fn connect_gives_the_proxies_of_a_service() {
    let world = World::new();
    world.accept("/v1/catalog/register", &web());
    assert_eq!(world.get("/v1/catalog/connect/web").json(), json!([]));
    world.accept("/v1/catalog/register", &web_sidecar());
    let rows = world.get("/v1/catalog/connect/web").json();
    assert_eq!(rows[0]["ServiceID"], "web1-proxy");
    assert_eq!(rows[0]["ServiceKind"], "connect-proxy");
    assert_eq!(rows[0]["ServiceProxy"]["DestinationServiceName"], "web");
    assert_eq!(
        rows[0]["ServiceProxy"]["Upstreams"][0]["LocalBindPort"],
        9191
    );
    assert_eq!(
        world.get("/v1/health/connect/web").json()[0]["Service"]["ID"],
        "web1-proxy"
    );
}

#[test]
fn rows_are_chosen_by_tag_label_and_filter() {
    let world = World::new();
    world.accept("/v1/catalog/register", &web());
    let mut second = web();
    second["Node"] = json!("n2");
    second["NodeMeta"] = json!({});
    second["Service"]["Tags"] = json!(["v2"]);
    second["Service"]["Meta"] = json!({"version": "2"});
    world.accept("/v1/catalog/register", &second);

    let nodes_of = |query: &str| {
        let rows = world
            .get(&format!("/v1/catalog/service/web?{query}"))
            .json();
        let rows = rows.as_array().unwrap().clone();
        rows.iter()
            .map(|row| row["Node"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(nodes_of("stale&near=_agent"), ["n1", "n2"]);
    assert_eq!(nodes_of("tag=V1&tag=blue"), ["n1"]);
    assert_eq!(nodes_of("tag=v1&tag=v2"), [""; 0]);
    assert_eq!(nodes_of("node-meta=rack:r1"), ["n1"]);
    let filter =
        encoded(r#"ServiceMeta.version == "2" and ServicePort == 8080 and "v2" in ServiceTags"#);
    assert_eq!(nodes_of(&format!("filter={filter}")), ["n2"]);

    let nodes = world.get(&format!(
        "/v1/catalog/nodes?filter={}",
        encoded(r#"Meta.rack == "r1""#)
    ));
    assert_eq!(nodes.json().as_array().unwrap().len(), 1);
    let all = world.get("/v1/catalog/nodes").json();
    let all: Vec<_> = all
        .as_array()
        .unwrap()
        .iter()
        .map(|n| n["Node"].clone())
        .collect();
    assert_eq!(all, ["agent-1", "n1", "n2"]);
    let services = world.get("/v1/catalog/services?node-meta=rack:r1").json();
    assert_eq!(services, json!({"web": ["blue", "v1"]}));

    let bad = world.get(&format!(
        "/v1/catalog/service/web?filter={}",
        encoded("Service.Port == 1")
    ));
    bad.refused(400, &["\"filter\"", "Service"]);
    world
        .get("/v1/catalog/nodes?node-meta=rack")
        .refused(400, &["node-meta", "KEY:VALUE"]);
    world
        .get("/v1/catalog/services?filter=x")
        .refused(400, &["\"filter\"", "not supported here"]);
}

#[test]
fn deregistering_removes_a_check_an_instance_or_the_node() {
    let world = World::new();
    world.accept("/v1/catalog/register", &web());
    world.accept(
        "/v1/catalog/deregister",
        &json!({"Node": "n1", "CheckID": "web"}),
    );
    assert_eq!(world.get("/v1/health/checks/web").json(), json!([]));
    assert_eq!(world.get("/v1/health/node/n1").json()[0]["CheckID"], "node");

    world.accept(
        "/v1/catalog/deregister",
        &json!({"Node": "n1", "ServiceID": "web1", "Datacenter": "dc1"}),
    );
    assert_eq!(world.get("/v1/catalog/service/web").json(), json!([]));
    assert_ne!(world.get("/v1/catalog/node/n1").json(), json!(null));

    let gone = world.accept("/v1/catalog/deregister", &json!({"Node": "n1"}));
    assert_eq!(world.get("/v1/catalog/node/n1").json(), json!(null));
    let again = world.accept("/v1/catalog/deregister", &json!({"Node": "n1"}));
    assert_eq!(gone.index(), again.index());
}

#[test]
fn store_2_1_writing_the_same_again_changes_no_index() {
    let world = World::new();
    let first = world.accept("/v1/catalog/register", &web()).index();
    assert_eq!(world.accept("/v1/catalog/register", &web()).index(), first);
}

#[test]
fn a_node_left_as_it_is_must_exist() {
    let world = World::new();
    let mut service = web();
    service.as_object_mut().unwrap().remove("Address");
    service["SkipNodeUpdate"] = json!(true);
    let before = world.index();
    world
        .put("/v1/catalog/register", &service)
        .refused(400, &["Address", "n1"]);
    assert_eq!(world.index(), before);
    world.accept("/v1/catalog/register", &web());
    world.accept("/v1/catalog/register", &service);
    assert_eq!(
        world.get("/v1/catalog/node/n1").json()["Node"]["Address"],
        "10.0.0.9"
    );
}

#[test]
fn other_datacenters_and_tenancies_are_refused() {
    let world = World::new();
    world
        .get("/v1/catalog/nodes?dc=dc9")
        .refused(500, &["No path to datacenter", "dc9"]);
    assert_eq!(world.get("/v1/catalog/nodes?dc=dc1").status, 200);
    let before = world.index();
    let mut there = web();
    there["Datacenter"] = json!("dc9");
    world
        .put("/v1/catalog/register", &there)
        .refused(500, &["No path to datacenter"]);
    for query in ["ns=team", "partition=p1", "sg=group"] {
        world
            .get(&format!("/v1/health/service/web?{query}"))
            .refused(400, &["enterprise only"]);
        world
            .put(&format!("/v1/catalog/register?{query}"), &web())
            .refused(400, &["enterprise only"]);
    }
    assert_eq!(world.index(), before);
    assert_eq!(
        world
            .get("/v1/catalog/nodes?ns=default&partition=default")
            .status,
        200
    );
}

#[test]
fn pretty_answers_are_indented() {
    let world = World::new();
    let answer = world.get("/v1/catalog/datacenters?pretty");
    assert_eq!(answer.text, "[\n    \"dc1\"\n]\n");
}
