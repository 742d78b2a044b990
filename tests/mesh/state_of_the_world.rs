//! Envoys that ask for the state of the world (`api_type: GRPC`): the same traffic, and the same changes under it.

use std::time::Duration;

use proxycfg::model::CheckStatus;
use proxycfg::server::ads::Protocol;
use proxycfg::source::Query;
use serde_json::json;

use crate::member::Member;
use crate::renewal::{serials, wait_renewed};
use crate::support::apps::{http_name, tcp_name};
use crate::traffic::{Traffic, answered_by, from_now_on, refused_from_now_on};
use crate::world::Mesh;

#[test]
fn sotw_envoys_follow_endpoints_intentions_chains_and_certificates() {
    let mesh = Mesh::with(|config| config.leaves.root_change_jitter = Duration::ZERO);
    mesh.protocol("api", "http");
    let (first, second) = (Member::tcp("db", "db-1"), Member::tcp("db", "db-2"));
    let api = Member::http("api", "api-1").meta("version", "1");
    let mut web = Member::tcp("web", "web-1").upstream("db").upstream("api");
    for member in [&first, &api, &web] {
        mesh.register(member);
    }
    let first_envoy = mesh.sotw_envoy(&first);
    let api_envoy = mesh.sotw_envoy(&api);
    let web_envoy = mesh.sotw_envoy(&web);
    for stream in mesh.ads.streams() {
        assert_eq!(stream.protocol, Protocol::StateOfTheWorld);
    }
    let (to_db, to_api) = (web.address_of("db"), web.address_of("api"));
    let ask_db = || tcp_name(&to_db);
    from_now_on("db-1", ask_db);
    from_now_on("api-1", || http_name(&to_api));
    // All of the following leaves it alone.
    let traffic = {
        let to_api = to_api.clone();
        Traffic::start(move || http_name(&to_api))
    };

    // Endpoints.
    mesh.register(&second);
    let second_envoy = mesh.sotw_envoy(&second);
    answered_by(&["db-1", "db-2"], ask_db);
    mesh.check(&first, CheckStatus::Critical);
    from_now_on("db-2", ask_db);
    mesh.check(&first, CheckStatus::Passing);
    answered_by(&["db-1", "db-2"], ask_db);

    // Access.
    mesh.intention("web", "db", "deny");
    refused_from_now_on(ask_db);
    mesh.intention("web", "db", "allow");
    answered_by(&["db-1", "db-2"], ask_db);

    // Clusters and routes: of a configured chain, and of an upstream that comes and goes.
    mesh.entry(json!({
        "Kind": "service-resolver", "Name": "api", "DefaultSubset": "one",
        "Subsets": {"one": {"Filter": "Service.Meta.version == 1"}},
    }));
    mesh.entry(json!({
        "Kind": "service-router", "Name": "api",
        "Routes": [{"Match": {"HTTP": {"PathPrefix": "/"}}, "Destination": {"Service": "api"}}],
    }));
    traffic.more(5);
    let cache = Member::tcp("cache", "cache-1");
    mesh.register(&cache);
    let cache_envoy = mesh.sotw_envoy(&cache);
    web.add_upstream("cache", json!({}));
    mesh.register(&web);
    let to_cache = web.address_of("cache");
    from_now_on("cache-1", || tcp_name(&to_cache));
    mesh.delete_entry("service-router", "api");
    mesh.delete_entry("service-resolver", "api");
    traffic.more(5);

    // Certificates: the leaf, and the root.
    let envoys = [
        (&web, "web", &web_envoy),
        (&first, "db", &first_envoy),
        (&api, "api", &api_envoy),
    ];
    let mut known: Vec<_> = envoys.iter().map(|(.., envoy)| serials(envoy)).collect();
    for ((member, service, envoy), known) in envoys.iter().zip(&mut known) {
        let query = Query::Leaf {
            service: (*service).into(),
        };
        let id = Mesh::engine_id(member);
        assert!(mesh.embedded.manager.refresh(&id, &query));
        *known = wait_renewed(envoy, known);
        traffic.more(5);
    }
    mesh.embedded.rotate_root().unwrap();
    for ((.., envoy), known) in envoys.iter().zip(&known) {
        wait_renewed(envoy, known);
    }
    traffic.more(5);
    answered_by(&["db-1", "db-2"], ask_db);
    from_now_on("cache-1", || tcp_name(&to_cache));

    traffic.assert_always("api-1");
    mesh.assert_calm(&[
        &first_envoy,
        &second_envoy,
        &api_envoy,
        &web_envoy,
        &cache_envoy,
    ]);
}
