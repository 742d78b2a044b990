//! Who talks to whom: certificates on both sides.

use serde_json::{Value, json};

use crate::member::Member;
use crate::support::apps::{http_name, tcp_name};
use crate::support::envoy::Envoy;
use crate::support::http;
use crate::tls::read_without_certificate;
use crate::traffic::{from_now_on, refused_from_now_on};
use crate::world::Mesh;

/// The SPIFFE URIs and serial numbers of the certificates that an Envoy presents.
pub fn own_certificates(envoy: &Envoy) -> Vec<(String, String)> {
    let certs = envoy.certs();
    let chains = certs["certificates"].as_array().unwrap();
    let mut found: Vec<(String, String)> = chains
        .iter()
        .flat_map(|one| one["cert_chain"].as_array().into_iter().flatten())
        .flat_map(|cert| {
            let names = cert["subject_alt_names"].as_array().into_iter().flatten();
            names.filter_map(|name| {
                let uri = name["uri"].as_str()?.to_owned();
                Some((uri, cert["serial_number"].as_str()?.to_owned()))
            })
        })
        // Intermediate and cross-signed certificates name the trust domain only.
        .filter(|(uri, _)| uri.contains("/svc/"))
        .collect();
    found.sort();
    found.dedup();
    found
}

/// The serial numbers of the certificates that an Envoy trusts.
pub fn trusted_serials(envoy: &Envoy) -> Vec<String> {
    let certs = envoy.certs();
    let chains = certs["certificates"].as_array().unwrap();
    let mut found: Vec<String> = chains
        .iter()
        .flat_map(|one| one["ca_cert"].as_array().into_iter().flatten())
        .filter_map(|cert| Some(cert["serial_number"].as_str()?.to_owned()))
        .collect();
    found.sort();
    found.dedup();
    found
}

#[test]
fn traffic_flows_with_mutual_tls_and_the_right_names() {
    let mesh = Mesh::start();
    let db = Member::tcp("db", "db-1");
    let web = Member::tcp("web", "web-1")
        .upstream("db")
        .upstream("impostor");
    mesh.register(&db);
    mesh.register(&web);
    // Says that it is an instance of `impostor`, but leads to the application of `db`.
    let false_place = json!({
        "Kind": "connect-proxy", "ID": "impostor-proxy", "Service": "impostor-proxy",
        "Address": "127.0.0.1", "Port": db.public,
        "Proxy": {"DestinationServiceName": "impostor"},
    });
    mesh.apply(vec![
        json!({"Register": {"Node": "n2", "Address": "127.0.0.1", "Service": false_place}}),
    ]);
    let (db_envoy, web_envoy) = (mesh.envoy(&db), mesh.envoy(&web));

    from_now_on("db-1", || tcp_name(&web.address_of("db")));
    for (envoy, service) in [(&db_envoy, "db"), (&web_envoy, "web")] {
        let own = own_certificates(envoy);
        assert_eq!(own.len(), 1, "{own:?}");
        assert_eq!(own[0].0, mesh.spiffe(service));
    }
    assert!(
        db_envoy.stat(
            "listener.127.0.0.1_PORT.ssl.handshake"
                .replace("PORT", &db.public.to_string())
                .as_str()
        ) > 0
    );

    // Who has no certificate doesn't get in, with TLS or without.
    let served = db.app.served();
    read_without_certificate(&db.public_address()).unwrap_err();
    tcp_name(&db.public_address()).unwrap_err();
    // Who has the wrong one isn't talked to.
    refused_from_now_on(|| tcp_name(&web.address_of("impostor")));
    assert_eq!(db.app.served(), served);
    assert!(
        web_envoy
            .stats("impostor.*ssl.fail_verify_san$")
            .values()
            .any(|count| *count > 0)
    );
    mesh.assert_calm(&[&db_envoy, &web_envoy]);
}

#[test]
fn an_http_application_sees_who_called() {
    let mesh = Mesh::start();
    mesh.protocol("api", "http");
    let api = Member::http("api", "api-1");
    let web = Member::tcp("web", "web-1").upstream("api");
    mesh.register(&api);
    mesh.register(&web);
    let (api_envoy, web_envoy) = (mesh.envoy(&api), mesh.envoy(&web));

    from_now_on("api-1", || http_name(&web.address_of("api")));
    let forged = [(
        "X-Forwarded-Client-Cert",
        "URI=spiffe://elsewhere/ns/default/dc/dc1/svc/admin",
    )];
    let answer = http::request(&web.address_of("api"), "POST", "/a?b=c", &forged, "text").unwrap();
    let seen = answer.json();
    assert_eq!(
        (&seen["method"], &seen["path"], &seen["body"]),
        (&json!("POST"), &json!("/a?b=c"), &json!("text"))
    );
    let certificate = seen["headers"]["x-forwarded-client-cert"].as_str().unwrap();
    // The last element is what the proxy itself has seen.
    let last = certificate.rsplit(',').next().unwrap();
    assert!(
        last.contains(&format!("URI={}", mesh.spiffe("web"))),
        "{certificate}"
    );
    assert!(
        last.contains(&format!("By={}", mesh.spiffe("api"))),
        "{certificate}"
    );
    read_without_certificate(&api.public_address()).unwrap_err();
    assert_eq!(inline_routes(&web_envoy, "api"), 1);
    mesh.assert_calm(&[&api_envoy, &web_envoy]);
}

/// How many listeners lead to a chain by a route of their own, that is not one over RDS.
fn inline_routes(envoy: &Envoy, chain: &str) -> usize {
    let dump = envoy.config_dump();
    let configs = dump["configs"].as_array().unwrap();
    let of_listeners = configs.iter().find(|config| {
        config["@type"]
            .as_str()
            .is_some_and(|kind| kind.ends_with("ListenersConfigDump"))
    });
    let listeners = of_listeners.unwrap()["dynamic_listeners"]
        .as_array()
        .unwrap();
    let leads_there = |listener: &&Value| {
        let chains = listener["active_state"]["listener"]["filter_chains"]
            .as_array()
            .unwrap();
        chains.iter().any(|one| {
            one["filters"]
                .as_array()
                .unwrap()
                .iter()
                .any(|filter| filter["typed_config"]["route_config"]["name"] == chain)
        })
    };
    listeners.iter().filter(leads_there).count()
}
