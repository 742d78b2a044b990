//! `/v1/connect/ca` and leaf certificates.

use std::time::Duration;

use serde_json::json;

use crate::world::{World, eventually};

fn leaf_path(index: u64, wait: &str) -> String {
    format!("/v1/agent/connect/ca/leaf/web?index={index}&wait={wait}")
}

#[test]
fn roots_are_public_and_the_same_on_both_paths() {
    let world = World::new();
    let answer = world.get("/v1/connect/ca/roots");
    let roots = answer.json();
    assert_eq!(roots["Roots"].as_array().unwrap().len(), 1);
    assert_eq!(roots["ActiveRootID"], roots["Roots"][0]["ID"]);
    assert!(roots["TrustDomain"].as_str().unwrap().ends_with(".consul"));
    assert_eq!(roots["Roots"][0]["Active"], true);
    assert!(!answer.text.contains("PRIVATE KEY"));
    assert_eq!(world.get("/v1/agent/connect/ca/roots").json(), roots);
    let pem = world.get("/v1/connect/ca/roots?pem=true");
    assert_eq!(
        pem.header("content-type"),
        "application/pem-certificate-chain"
    );
    assert_eq!(
        pem.text.trim_end(),
        roots["Roots"][0]["RootCert"].as_str().unwrap().trim_end()
    );
}

#[test]
fn c1_only_the_leaf_endpoint_shows_a_private_key() {
    let world = World::new();
    let answer = world.get("/v1/agent/connect/ca/leaf/web");
    let leaf = answer.json();
    assert_eq!(leaf["Service"], "web");
    assert!(
        leaf["ServiceURI"]
            .as_str()
            .unwrap()
            .ends_with("/ns/default/dc/dc1/svc/web")
    );
    assert!(
        leaf["PrivateKeyPEM"]
            .as_str()
            .unwrap()
            .contains("PRIVATE KEY")
    );
    assert_eq!(answer.index(), leaf["ModifyIndex"].as_u64().unwrap());
    assert_eq!(world.get("/v1/agent/connect/ca/leaf/web").json(), leaf);
    let path = "/v1/agent/connect/ca/leaf/a.b";
    world.get(path).refused(400, &["\"a.b\"", "letters"]);
}

#[test]
fn fc_072_a_plain_read_of_a_leaf_is_of_the_new_root_and_valid() {
    let world = World::new();
    let hour = json!({"Provider": "consul", "Config": {"LeafCertTTL": "1h"}});
    world.accept("/v1/connect/ca/configuration", &hour);
    let read = || world.get("/v1/agent/connect/ca/leaf/web").json();
    let first = read();
    world.accept("/v1/proxycfg/ca/rotate", &json!({}));
    let roots = world.get("/v1/connect/ca/roots").json();
    assert_eq!(roots["Roots"].as_array().unwrap().len(), 2);
    let active = &roots["Roots"][1];
    assert_eq!(active["Active"], true);
    world.clock.advance(Duration::from_secs(31));
    // The renewal is due by now, and nobody watches. While the thread that renews is just signing it, the old one is
    // still a good answer.
    let mut second = first.clone();
    eventually("the certificate is renewed", || {
        second = read();
        second["SerialNumber"] != first["SerialNumber"]
    });
    let intermediate = active["IntermediateCerts"][0].as_str().unwrap();
    assert!(
        second["CertPEM"]
            .as_str()
            .unwrap()
            .contains(intermediate.trim())
    );

    world.clock.advance(Duration::from_secs(2 * 3600));
    let third = read();
    assert_ne!(third["SerialNumber"], second["SerialNumber"]);
    assert!(third["ValidAfter"].as_str() > second["ValidBefore"].as_str());
}

#[test]
fn the_configuration_is_read_written_and_checked() {
    let world = World::new();
    let config = world.get("/v1/connect/ca/configuration").json();
    assert_eq!(config["Provider"], "consul");
    assert_eq!(config["Config"]["LeafCertTTL"], "72h");
    assert!(config["ModifyIndex"].as_u64().unwrap() > 0);
    let before = world.index();
    let put = |body: serde_json::Value| world.put("/v1/connect/ca/configuration", &body);
    put(json!({"Config": {"LeafCertTTL": "30m", "IntermediateCertTTL": "1h"}}))
        .refused(400, &["LeafCertTTL", "IntermediateCertTTL"]);
    put(json!({"Config": {"LeafTTL": "2h"}})).refused(400, &["LeafTTL", "line 1"]);
    put(json!({"Provider": "vault"})).refused(400, &["vault", "consul"]);
    assert_eq!(world.index(), before);
    let answer = put(json!({"Config": {"LeafCertTTL": "2h"}}));
    assert_eq!((answer.status, answer.text.as_str()), (200, ""));
    assert_eq!(
        world.get("/v1/connect/ca/configuration").json()["Config"]["LeafCertTTL"],
        "2h"
    );
}

#[test]
fn a_waiting_read_of_a_leaf_gets_the_renewed_one() {
    let world = World::new();
    let index = world.get("/v1/agent/connect/ca/leaf/web").index();
    let waiting = world.get_later(&leaf_path(index, "1m"));
    let subscribed = || {
        world
            .embedded
            .leaves
            .statuses()
            .iter()
            .any(|leaf| leaf.subscribers > 0)
    };
    eventually("the read waits", subscribed);
    world
        .embedded
        .leaves
        .renew(&proxycfg::model::LeafRequest::for_service("web"));
    let answer = waiting.join().unwrap();
    assert!(answer.index() > index);
    eventually("the read has left nothing", || !subscribed());
}
