//! What the reader does with odd documents.

use serde_json::json;

use crate::hcl::{self, Data, Member, Pos, Value};
use crate::model::{
    ConfigEntry, HealthCheck, Node, ServiceDefinition, ServiceInstance, Upstream, accept, read,
};

#[test]
fn nulls_mean_absent() {
    let json = json!({"Kind": null, "ID": null, "Service": "web", "Tags": null, "Meta": {"a": null, "b": "c"}, "Weights": null, "Proxy": null, "Connect": null, "Locality": null});
    let (read, _) = read::<ServiceInstance>(&Value::from_json(&json)).unwrap();
    assert!(read.meta.contains_key("b") && !read.meta.contains_key("a"));
    assert!(read.tags.is_empty() && read.locality.is_none());
    assert_eq!(read.id, "web");
}

#[test]
fn a_key_given_twice_is_an_error() {
    assert!(hcl::parse_json(br#"{"Name": "web", "Name": "db"}"#).is_err());
    // Other spellings are only known to be the same key by the reader.
    let document =
        hcl::parse_json(br#"{"Name": "web", "port": 1, "PORT": 2, "Meta": {"a": "1"}}"#).unwrap();
    let problems = ServiceDefinition::read(&document).unwrap_err();
    assert_eq!(problems.text(), "PORT: given twice; remove one");
    // A tree that was built by hand may hold a key twice even in a map.
    let member = |value: &str| Member {
        key: "a".into(),
        pos: Pos::START,
        value: Value::new(Data::String(value.into()), Pos::START),
    };
    let map = Value::new(Data::Object(vec![member("1"), member("2")]), Pos::START);
    let mut problems = crate::model::Problems::default();
    let at = crate::model::Place::ROOT;
    <std::collections::BTreeMap<String, String> as crate::model::Decode>::decode(
        &map,
        &at,
        &mut problems,
    );
    assert_eq!(problems.text(), "a: given twice; remove one");
}

#[test]
fn blocks_of_hcl_stand_for_lists_and_objects() {
    let text = br#"
        name = "web"
        port = 8080
        check { ttl = "10s" }
        connect {
          sidecar_service {
            proxy {
              upstreams { destination_name = "db" local_bind_port = 9000 }
              upstreams { destination_name = "cache" local_bind_port = 9001 config { protocol = "http" } }
            }
          }
        }
    "#;
    let (definition, _) = ServiceDefinition::read(&hcl::parse(text).unwrap()).unwrap();
    let upstreams = &definition
        .sidecar()
        .unwrap()
        .proxy
        .as_ref()
        .unwrap()
        .upstreams;
    assert_eq!(upstreams.len(), 2);
    assert_eq!(upstreams[1].config["protocol"], "http");
}

#[test]
fn places_in_hcl_are_lines_and_columns() {
    let text = b"kind = \"service-defaults\"\nname = \"web\"\nmesh_gateway {\n  mode = \"sideways\"\n}\nexternal_sni = \"a b\"\n";
    let problems = ConfigEntry::read(&hcl::parse(text).unwrap()).unwrap_err();
    let places: Vec<_> = problems
        .errors
        .iter()
        .map(|p| p.pos.unwrap().to_string())
        .collect();
    assert_eq!(places, ["4:3", "6:1"], "{}", problems.text());
}

#[test]
fn nodes() {
    let good = Node {
        node: "n1".into(),
        address: "10.0.0.1".into(),
        partition: "default".into(),
        ..Node::default()
    };
    let (node, _) = accept(good.clone()).unwrap();
    assert_eq!(node.partition, "");
    let bad = Node {
        id: "x".into(),
        node: " ".into(),
        address: String::new(),
        datacenter: "d.c".into(),
        ..Node::default()
    };
    let problems = accept(bad).unwrap_err();
    assert_eq!(problems.errors.len(), 4, "{}", problems.text());
}

#[test]
fn checks_of_other_partitions_are_refused() {
    let check = HealthCheck {
        node: "n1".into(),
        name: "x".into(),
        partition: "p".into(),
        ..HealthCheck::default()
    };
    assert!(
        accept(check)
            .unwrap_err()
            .text()
            .contains("enterprise only")
    );
}

#[test]
fn warnings_do_not_refuse() {
    let json = json!({"Name": "web", "Port": 1, "SocketPath": "/s", "Weights": {"Passing": 0, "Warning": 1}, "Proxy": {"LocalServicePort": 1},
        "Connect": {"SidecarService": {}}, "Check": {"TTL": "1s", "OutputMaxSize": 5}});
    let (_, problems) = ServiceDefinition::read(&Value::from_json(&json)).unwrap();
    let mut places: Vec<_> = problems
        .warnings
        .iter()
        .map(|p| p.to_string().split(':').next().unwrap().to_owned())
        .collect();
    places.sort();
    assert_eq!(places, ["Check.OutputMaxSize", "Port", "Proxy", "Weights"]);
}

#[test]
fn what_is_written_out_but_unset_gives_no_warning() {
    let json = json!({"Node": "n1", "CheckID": "c", "Status": "", "Definition": {"HTTP": "", "Header": null, "TCPUseTLS": false, "OSService": "",
        "Interval": "0s", "IntervalDuration": 0, "ScriptArgs": []}});
    let (check, problems) = read::<HealthCheck>(&Value::from_json(&json)).unwrap();
    assert_eq!(check.definition, crate::model::CheckDefinition::default());
    assert_eq!(problems.warnings, []);
}

#[test]
fn an_explicit_upstream_has_an_address() {
    let upstream = Upstream {
        local_bind_port: 1,
        ..Upstream::default()
    };
    assert_eq!(upstream.bind_address(), "127.0.0.1");
}

#[test]
fn no_problem_holds_a_raw_control_character() {
    let document = hcl::parse_json(br#"{"Node": "n1", "Add\u001bress": "10.0.0.1"}"#).unwrap();
    let problems = read::<Node>(&document).unwrap_err().text();
    let expected = "Add\\u{1b}ress: unknown key; did you mean Address?";
    assert!(problems.contains(expected), "{problems:?}");
}
