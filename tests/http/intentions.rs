//! `/v1/connect/intentions`.

use serde_json::{Value, json};

use crate::world::World;

const EXACT: &str = "/v1/connect/intentions/exact";

fn entry(destination: &str, sources: Value) -> Value {
    json!({"Kind": "service-intentions", "Name": destination, "Sources": sources})
}

/// The entries of store.md 6.4, case 47, and one more destination.
fn world() -> World {
    let world = World::new();
    for entry in [
        entry(
            "api",
            json!([{"Name": "web", "Action": "allow", "Description": "d"}]),
        ),
        entry(
            "*",
            json!([{"Name": "*", "Action": "deny"}, {"Name": "web", "Action": "deny"}]),
        ),
        entry(
            "db",
            json!([{"Name": "*", "Action": "allow"}, {"Name": "batch", "Action": "deny"}]),
        ),
    ] {
        world.accept("/v1/config", &entry);
    }
    world
}

/// `SOURCE->DESTINATION ACTION PRECEDENCE` of each.
fn shown(list: &Value) -> Vec<String> {
    let text = |of: &Value, key: &str| of[key].as_str().unwrap_or_default().to_owned();
    let intentions = list.as_array().unwrap().iter();
    let one = |of: &Value| {
        let (source, destination) = (text(of, "SourceName"), text(of, "DestinationName"));
        format!(
            "{source}->{destination} {} {}",
            text(of, "Action"),
            of["Precedence"]
        )
    };
    intentions.map(one).collect()
}

#[test]
fn store_47_48_intentions_match_by_destination() {
    let world = world();
    let path = "/v1/connect/intentions/match?by=destination&name=api&name=cache";
    let answer = world.get(path);
    assert!(answer.index() > 1);
    let matches = answer.json();
    assert_eq!(
        shown(&matches["api"]),
        ["web->api allow 9", "web->* deny 6", "*->* deny 5"]
    );
    assert_eq!(shown(&matches["cache"]), ["web->* deny 6", "*->* deny 5"]);
    let own = &matches["api"][0];
    let row = world.get("/v1/config/service-intentions/api").json();
    assert_eq!(
        *own,
        json!({
            "Description": "d", "SourceNS": "default", "SourceName": "web", "SourcePartition": "default",
            "DestinationNS": "default", "DestinationName": "api", "DestinationPartition": "default",
            "SourceType": "consul", "Action": "allow", "Precedence": 9,
            "CreateIndex": row["CreateIndex"], "ModifyIndex": row["ModifyIndex"],
        })
    );
}

#[test]
fn intentions_match_by_source() {
    let world = world();
    let matches = |name: &str| {
        let path = format!("/v1/connect/intentions/match?by=source&name={name}");
        shown(&world.get(&path).json()[name])
    };
    assert_eq!(
        matches("web"),
        [
            "web->api allow 9",
            "*->db allow 8",
            "web->* deny 6",
            "*->* deny 5"
        ]
    );
    assert_eq!(
        matches("BATCH"),
        ["batch->db deny 9", "*->db allow 8", "*->* deny 5"]
    );
    assert_eq!(matches("*"), ["*->db allow 8", "*->* deny 5"]);
    assert_eq!(
        world
            .get("/v1/connect/intentions/match?by=source&name=default/web")
            .json()["default/web"]
            .as_array()
            .unwrap()
            .len(),
        4
    );
}

#[test]
fn all_intentions_are_listed_and_waited_for() {
    let world = world();
    let path = "/v1/connect/intentions";
    let answer = world.get(path);
    assert_eq!(
        shown(&answer.json()),
        [
            "batch->db deny 9",
            "web->api allow 9",
            "*->db allow 8",
            "web->* deny 6",
            "*->* deny 5"
        ]
    );
    let later = world.get_later(&format!("{path}?index={}", answer.index()));
    world.waiting(1);
    world.accept(
        &format!("{EXACT}?source=cron&destination=db"),
        &json!({"Action": "deny"}),
    );
    assert_eq!(shown(&later.join().unwrap().json()).len(), 6);
    assert_eq!(World::new().get(path).json(), json!([]));
}

#[test]
fn a_check_says_whether_a_pair_is_allowed() {
    let world = world();
    let allowed = |world: &World, source: &str, destination: &str| {
        let path =
            format!("/v1/connect/intentions/check?source={source}&destination={destination}");
        world.get(&path).json()["Allowed"].as_bool().unwrap()
    };
    assert!(allowed(&world, "web", "api"));
    assert!(allowed(&world, "WEB", "API"));
    assert!(!allowed(&world, "batch", "api"));
    assert!(allowed(&world, "web", "db"));
    assert!(!allowed(&world, "batch", "db"));
    assert!(!allowed(&world, "web", "cache"));
    let path = "/v1/connect/intentions/check?source=web&destination=api&source-type=consul";
    assert_eq!(world.get(path).json(), json!({"Allowed": true}));

    // Some requests only: not the connection as such.
    world.accept(
        "/v1/config",
        &json!({"Kind": "service-defaults", "Name": "api", "Protocol": "http"}),
    );
    let permissions = json!([{"Action": "allow", "HTTP": {"PathPrefix": "/"}}]);
    world.accept(
        &format!("{EXACT}?source=web&destination=api"),
        &json!({"Permissions": permissions}),
    );
    assert!(!allowed(&world, "web", "api"));

    // What no intention speaks of is as the default says.
    assert!(allowed(&World::new(), "web", "db"));
    let denying = World::with(|config| config.intention_default_allow = false);
    assert!(!allowed(&denying, "web", "db"));
}

#[test]
fn one_intention_is_written_read_and_deleted_and_the_others_stay() {
    let world = world();
    let path = format!("{EXACT}?source=web&destination=db");
    world
        .get(&path)
        .refused(404, &["Intention not found", "web", "db"]);
    let written = world.accept(&path, &json!({"Action": "deny", "Description": "no"}));
    assert_eq!(written.json(), json!(true));
    let read = world.get(&path).json();
    assert_eq!(shown(&json!([read])), ["web->db deny 9"]);
    assert_eq!(read["Description"], "no");
    assert_eq!(read["ModifyIndex"], written.index());
    let sources = |world: &World| {
        let entry = world.get("/v1/config/service-intentions/db").json();
        let sources = entry["Sources"].as_array().unwrap().clone();
        let one = |of: &Value| format!("{} {}", of["Name"], of["Action"]).replace('"', "");
        sources.iter().map(one).collect::<Vec<_>>()
    };
    assert_eq!(sources(&world), ["batch deny", "web deny", "* allow"]);

    // In its place, also from what was read, and the same again is no change.
    let mut back = read;
    back["Action"] = json!("allow");
    let written = world.accept(&path, &back);
    assert_eq!(sources(&world), ["batch deny", "web allow", "* allow"]);
    assert_eq!(world.accept(&path, &back).index(), written.index());

    assert_eq!(world.delete(&path).json(), json!(true));
    assert_eq!(sources(&world), ["batch deny", "* allow"]);
    assert_eq!(world.delete(&path).json(), json!(true));
    world.get(&path).refused(404, &["Intention not found"]);
    for source in ["batch", "*"] {
        world.delete(&format!("{EXACT}?source={source}&destination=db"));
    }
    world
        .get("/v1/config/service-intentions/db")
        .refused(404, &["db"]);
    // The first of a destination makes its entry.
    world.accept(&path, &json!({"SourceType": "consul", "Action": "allow"}));
    assert_eq!(sources(&world), ["web allow"]);
}

#[test]
fn settings_of_the_entry_and_sources_in_peers_are_kept() {
    let world = World::new();
    let mut db = entry(
        "db",
        json!([{"Name": "web", "Peer": "east", "Action": "deny"}, {"Name": "web", "Action": "deny"}]),
    );
    db["Meta"] = json!({"owner": "me"});
    world.accept("/v1/config", &db);
    let path = format!("{EXACT}?source=web&destination=db");
    world.accept(&path, &json!({"Action": "allow"}));
    let read = world.get("/v1/config/service-intentions/db").json();
    assert_eq!(read["Meta"], json!({"owner": "me"}));
    let of = |peer: &str| {
        let sources = read["Sources"].as_array().unwrap();
        let one = sources
            .iter()
            .find(|of| of["Peer"].as_str().unwrap_or_default() == peer);
        one.unwrap()["Action"].as_str().unwrap().to_owned()
    };
    assert_eq!((of("east"), of("")), ("deny".into(), "allow".into()));
}

#[test]
fn writers_at_the_same_time_lose_nothing() {
    let world = World::new();
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let world = &world;
            scope.spawn(move || {
                for number in 0..10 {
                    let path = format!("{EXACT}?source=s{writer}-{number}&destination=db");
                    world.accept(&path, &json!({"Action": "allow"}));
                }
            });
        }
    });
    let entry = world.get("/v1/config/service-intentions/db").json();
    assert_eq!(entry["Sources"].as_array().unwrap().len(), 40);
}

#[test]
fn bad_requests_are_told_what_is_wrong_and_change_nothing() {
    let world = world();
    let before = world.index();
    let get = |path: &str| world.get(&format!("/v1/connect/intentions/{path}"));
    get("match?name=a").refused(400, &["\"by\" not set"]);
    get("match?by=both&name=a").refused(400, &["both", "source", "destination"]);
    get("match?by=source").refused(400, &["\"name\" not set"]);
    get("match?by=source&name=a.b").refused(400, &["\"name\"", "a.b", "letters"]);
    get("match?by=source&name=a&name=other/b").refused(400, &["other/b", "enterprise only"]);
    get("match?by=source&name=a&filter=x").refused(400, &["filter"]);
    get("match?by=source&name=a&ns=other").refused(400, &["enterprise only"]);
    get("match?by=source&name=a&index=x").refused(400, &["index"]);
    get("check?source=a").refused(400, &["\"destination\" not set"]);
    get("check?destination=a").refused(400, &["\"source\" not set"]);
    get("check?source=*&destination=a").refused(400, &["\"source\"", "*"]);
    get("check?source=b&destination=*").refused(400, &["\"destination\"", "*"]);
    get("check?source=b&destination=a&source-type=ext").refused(400, &["ext", "consul"]);
    get("exact?source=a").refused(400, &["\"destination\" not set"]);
    get("exact?source=we*&destination=a").refused(400, &["we*"]);
    get("other").refused(404, &["/v1/connect/intentions"]);
    world
        .post("/v1/connect/intentions", b"{}")
        .refused(405, &["POST"]);

    let path = format!("{EXACT}?source=web&destination=db");
    let put = |body: Value| world.put(&path, &body);
    world
        .put(EXACT, &json!({"Action": "allow"}))
        .refused(400, &["\"source\" not set"]);
    world
        .put_bytes(&path, b"")
        .refused(400, &["no body", "intention"]);
    world.put_bytes(&path, b"{").refused(400, &["line 1"]);
    put(json!([])).refused(400, &["object"]);
    put(json!({})).refused(400, &["Action"]);
    put(json!({"Action": "maybe"})).refused(400, &["maybe", "line 1"]);
    put(json!({"Acton": "allow"})).refused(400, &["Acton"]);
    put(json!({"Action": "allow", "SourceName": "api"})).refused(400, &["SourceName", "api"]);
    put(json!({"Action": "allow", "DestinationName": "x"})).refused(400, &["DestinationName"]);
    put(json!({"Action": "allow", "SourceNS": "other"})).refused(400, &["SourceNS", "enterprise"]);
    put(json!({"Action": "allow", "SourcePeer": "p"})).refused(400, &["SourcePeer"]);
    put(json!({"Action": "allow", "Meta": {"a": "b"}}))
        .refused(400, &["Meta", "service-intentions"]);
    put(json!({"Action": "allow", "SourceType": "spiffe"})).refused(400, &["Type", "consul"]);
    let long = "x".repeat(513);
    put(json!({"Action": "allow", "Description": long})).refused(400, &["Description", "512"]);
    let permissions =
        json!([{"Action": "allow", "HTTP": {"PathExact": "a", "Methods": ["get", "get"]}}]);
    put(json!({"Permissions": permissions})).refused(400, &["Permissions[0].HTTP", "PathExact"]);
    // db speaks TCP.
    let permissions = json!([{"Action": "allow", "HTTP": {"PathPrefix": "/"}}]);
    put(json!({"Permissions": permissions})).refused(400, &["db"]);
    world
        .put(
            &format!("{EXACT}?source=web&destination=*"),
            &json!({"Permissions": permissions}),
        )
        .refused(400, &["Permissions", "\"*\""]);
    assert_eq!(world.index(), before);
}
