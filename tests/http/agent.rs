//! `/v1/agent`.

use serde_json::json;

use crate::world::{NODE, World, encoded};

fn web() -> serde_json::Value {
    json!({
        "Name": "web", "ID": "web1", "Port": 8080, "Tags": ["v1"],
        "Check": {"CheckID": "web-ttl", "TTL": "30s"},
        "Connect": {"SidecarService": {}},
    })
}

#[test]
fn the_agent_says_who_it_is() {
    let world = World::with(|config| config.xds_plaintext_port = Some(8502));
    let own = world.get("/v1/agent/self").json();
    assert_eq!(own["Config"]["Datacenter"], "dc1");
    assert_eq!(own["Config"]["NodeName"], NODE);
    assert_eq!(own["Config"]["Version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(own["Member"]["Name"], NODE);
    assert_eq!(own["xDS"]["Port"], 8502);
    assert_eq!(own["xDS"]["Ports"], json!({"Plaintext": 8502, "TLS": -1}));
}

#[test]
fn store_36_a_service_and_its_sidecar_are_registered_shown_and_removed() {
    let world = World::new();
    let answer = world.accept("/v1/agent/service/register", &web());
    assert_eq!(answer.text, "");
    let services = world.get("/v1/agent/services").json();
    assert_eq!(services["web1"]["Service"], "web");
    assert_eq!(
        services["web1"]["Weights"],
        json!({"Passing": 1, "Warning": 1})
    );
    assert_eq!(services["web1"]["Datacenter"], "dc1");
    let sidecar = &services["web1-sidecar-proxy"];
    assert_eq!(sidecar["Kind"], "connect-proxy");
    assert_eq!(sidecar["Port"], 21000);
    assert_eq!(sidecar["Proxy"]["LocalServicePort"], 8080);
    let filter = encoded(r#"Kind == "connect-proxy""#);
    let only = world
        .get(&format!("/v1/agent/services?filter={filter}"))
        .json();
    assert_eq!(only.as_object().unwrap().len(), 1);

    // It comes into the catalog under the agent's node.
    world.flush();
    assert_eq!(world.get("/v1/catalog/service/web").json()[0]["Node"], NODE);

    let one = world.get("/v1/agent/service/WEB1-sidecar-proxy");
    assert_eq!(one.json()["ID"], "web1-sidecar-proxy");
    assert_eq!(
        one.json()["ContentHash"],
        one.header("x-consul-contenthash")
    );
    world
        .get("/v1/agent/service/web")
        .refused(404, &["\"web\"", "ID"]);

    let gone = world.put("/v1/agent/service/deregister/web1", &json!(null));
    assert_eq!((gone.status, gone.text.as_str()), (200, ""));
    assert_eq!(world.get("/v1/agent/services").json(), json!({}));
    world
        .put("/v1/agent/service/deregister/web1", &json!(null))
        .refused(404, &["\"web1\""]);
    world.flush();
    assert_eq!(world.get("/v1/catalog/service/web").json(), json!([]));
}

#[test]
fn a_service_can_be_waited_for_by_its_hash() {
    let world = World::new();
    world.accept("/v1/agent/service/register", &web());
    world.flush();
    let hash = world
        .get("/v1/agent/service/web1")
        .header("x-consul-contenthash")
        .to_owned();
    let same = world.get(&format!("/v1/agent/service/web1?hash={hash}&wait=50ms"));
    assert_eq!(same.header("x-consul-contenthash"), hash);
    let waiting = world.get_later(&format!("/v1/agent/service/web1?hash={hash}&wait=1m"));
    world.waiting(1);
    let mut changed = web();
    changed["Port"] = json!(8081);
    world.accept("/v1/agent/service/register", &changed);
    let answer = waiting.join().unwrap();
    assert_eq!(answer.json()["Port"], 8081);
    assert_ne!(answer.header("x-consul-contenthash"), hash);
    let other = world.get("/v1/agent/service/web1?hash=other&wait=1m");
    assert_eq!(other.json()["Port"], 8081);
}

#[test]
fn the_state_of_a_ttl_check_is_told() {
    let world = World::new();
    world.accept("/v1/agent/service/register", &web());
    let status = || {
        let checks = world.get("/v1/agent/checks").json();
        let check = &checks["web-ttl"];
        let text = |key: &str| check[key].as_str().unwrap().to_owned();
        (text("Status"), text("Output"))
    };
    let is = |status: &str, output: &str| (status.to_owned(), output.to_owned());
    assert_eq!(status(), is("critical", ""));
    let tell = |path: &str| {
        let answer = world.put(path, &json!(null));
        assert_eq!((answer.status, answer.text.as_str()), (200, ""));
    };
    tell("/v1/agent/check/pass/web-ttl?note=all%20well");
    assert_eq!(status(), is("passing", "all well"));
    tell("/v1/agent/check/warn/web-ttl");
    assert_eq!(status(), is("warning", ""));
    tell("/v1/agent/check/fail/WEB-TTL?note=down");
    assert_eq!(status(), is("critical", "down"));
    let update = json!({"Status": "passing", "Output": "up again"});
    world.accept("/v1/agent/check/update/web-ttl", &update);
    assert_eq!(status(), is("passing", "up again"));
    world.flush();
    assert_eq!(
        world.get("/v1/health/checks/web").json()[0]["Status"],
        "passing"
    );

    world
        .put("/v1/agent/check/pass/nope", &json!(null))
        .refused(404, &["\"nope\""]);
    let update = |body| world.put("/v1/agent/check/update/web-ttl", &body);
    update(json!({"Output": "?"})).refused(400, &["Status", "passing"]);
    update(json!({"Status": "fine"})).refused(400, &["Status", "fine"]);
    let checks = world.get("/v1/agent/checks").json();
    let sidecars: Vec<_> = checks
        .as_object()
        .unwrap()
        .keys()
        .filter(|id| *id != "web-ttl")
        .collect();
    assert_eq!(sidecars.len(), 2, "{sidecars:?}");
    world
        .put(
            &format!("/v1/agent/check/pass/{}", encoded(sidecars[0])),
            &json!(null),
        )
        .refused(400, &["TTL"]);
}

#[test]
fn checks_are_registered_by_themselves() {
    let world = World::new();
    world.accept("/v1/agent/service/register", &web());
    world.accept(
        "/v1/agent/check/register",
        &json!({"ID": "disk", "Name": "disk", "TTL": "1m"}),
    );
    world.accept(
        "/v1/agent/check/register",
        &json!({"ID": "more", "Name": "more", "TTL": "1m", "ServiceID": "web1"}),
    );
    let checks = world.get("/v1/agent/checks").json();
    assert_eq!(checks["disk"]["ServiceID"], "");
    assert_eq!(checks["more"]["ServiceName"], "web");
    let filter = encoded(r#"CheckID == "disk""#);
    let only = world
        .get(&format!("/v1/agent/checks?filter={filter}"))
        .json();
    assert_eq!(only.as_object().unwrap().len(), 1);

    // A check of its own outlives a registration, unless that is to replace it.
    world.accept("/v1/agent/service/register", &web());
    assert_ne!(world.get("/v1/agent/checks").json()["more"], json!(null));
    world.accept(
        "/v1/agent/service/register?replace-existing-checks=true",
        &web(),
    );
    assert_eq!(world.get("/v1/agent/checks").json()["more"], json!(null));
    assert_ne!(world.get("/v1/agent/checks").json()["web-ttl"], json!(null));

    world.accept("/v1/agent/check/deregister/disk", &json!(null));
    world
        .put("/v1/agent/check/deregister/disk", &json!(null))
        .refused(404, &["\"disk\""]);
    world
        .put(
            "/v1/agent/check/register",
            &json!({"ID": "x", "TTL": "1m", "ServiceID": "nope"}),
        )
        .refused(400, &["ServiceID", "nope"]);
}
