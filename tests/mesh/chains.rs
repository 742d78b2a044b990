//! Resolvers: redirects, subsets, failover.

use proxycfg::model::CheckStatus;
use serde_json::{Value, json};

use crate::member::Member;
use crate::support::apps::{http_name, tcp_name};
use crate::support::envoy::Envoy;
use crate::traffic::{answered_by, from_now_on, refused_from_now_on};
use crate::world::Mesh;

/// The clusters that an Envoy has over xDS.
fn clusters(envoy: &Envoy) -> Vec<Value> {
    let dump = envoy.config_dump();
    let configs = dump["configs"].as_array().unwrap();
    let of_clusters = configs.iter().find(|config| {
        config["@type"]
            .as_str()
            .is_some_and(|kind| kind.ends_with("ClustersConfigDump"))
    });
    let active = of_clusters.unwrap()["dynamic_active_clusters"].as_array();
    active
        .into_iter()
        .flatten()
        .map(|one| one["cluster"].clone())
        .collect()
}

#[test]
fn a_resolver_redirects_and_chooses_subsets() {
    let mesh = Mesh::start();
    let old = Member::tcp("db", "db-v1").meta("version", "v1");
    let new = Member::tcp("db", "db-v2").meta("version", "v2");
    let web = Member::tcp("web", "web-1").upstream("db").upstream("alias");
    for member in [&old, &new, &web] {
        mesh.register(member);
    }
    let envoys = [mesh.envoy(&old), mesh.envoy(&new), mesh.envoy(&web)];
    let to_db = || tcp_name(&web.address_of("db"));
    let to_alias = || tcp_name(&web.address_of("alias"));
    answered_by(&["db-v1", "db-v2"], to_db);
    refused_from_now_on(to_alias);

    let resolver = |default: &str| {
        let subsets = json!({
            "v1": {"Filter": "Service.Meta.version == v1"},
            "v2": {"Filter": "Service.Meta.version == \"v2\"", "OnlyPassing": true},
        });
        json!({"Kind": "service-resolver", "Name": "db", "ConnectTimeout": "7s", "DefaultSubset": default, "Subsets": subsets})
    };
    mesh.entry(resolver("v1"));
    from_now_on("db-v1", to_db);
    let db_clusters: Vec<Value> = clusters(&envoys[2])
        .into_iter()
        .filter(|cluster| cluster["name"].as_str().unwrap().contains("db."))
        .collect();
    assert!(
        !db_clusters.is_empty()
            && db_clusters
                .iter()
                .all(|cluster| cluster["connect_timeout"] == "7s"),
        "{db_clusters:?}"
    );
    mesh.entry(resolver("v2"));
    from_now_on("db-v2", to_db);
    // In a subset of passing instances only, a warning is too much.
    mesh.check(&new, CheckStatus::Warning);
    refused_from_now_on(to_db);
    mesh.check(&new, CheckStatus::Passing);
    from_now_on("db-v2", to_db);

    let redirect = |subset: &str| json!({"Kind": "service-resolver", "Name": "alias", "Redirect": {"Service": "db", "ServiceSubset": subset}});
    mesh.entry(redirect(""));
    from_now_on("db-v2", to_alias);
    mesh.entry(redirect("v1"));
    from_now_on("db-v1", to_alias);
    // A new instance joins the subset that it belongs to.
    mesh.deregister(&old);
    refused_from_now_on(to_alias);
    mesh.register(&old);
    from_now_on("db-v1", to_alias);
    mesh.delete_entry("service-resolver", "alias");
    refused_from_now_on(to_alias);
    mesh.entry(resolver(""));
    answered_by(&["db-v1", "db-v2"], to_db);
    mesh.assert_calm(&envoys.each_ref());
}

#[test]
fn a_failing_service_fails_over_to_another_and_back() {
    let mesh = Mesh::start();
    let primary = Member::tcp("db", "db-1");
    let backup = Member::tcp("backup", "backup-1");
    let web = Member::tcp("web", "web-1").upstream("db");
    for member in [&primary, &backup, &web] {
        mesh.register(member);
    }
    let failover = json!({"*": {"Service": "backup"}});
    let resolver = json!({"Kind": "service-resolver", "Name": "db", "ConnectTimeout": "2s", "Failover": failover});
    mesh.entry(resolver.clone());
    let envoys = [mesh.envoy(&primary), mesh.envoy(&backup), mesh.envoy(&web)];
    let to_db = || tcp_name(&web.address_of("db"));
    from_now_on("db-1", to_db);
    mesh.check(&primary, CheckStatus::Critical);
    from_now_on("backup-1", to_db);
    mesh.check(&primary, CheckStatus::Passing);
    from_now_on("db-1", to_db);
    // Without any instance as with failing ones (FC-054).
    mesh.deregister(&primary);
    from_now_on("backup-1", to_db);
    mesh.check(&backup, CheckStatus::Critical);
    refused_from_now_on(to_db);
    mesh.register(&primary);
    from_now_on("db-1", to_db);
    // The failover comes and goes while the service is in use.
    mesh.delete_entry("service-resolver", "db");
    from_now_on("db-1", to_db);
    mesh.check(&primary, CheckStatus::Critical);
    refused_from_now_on(to_db);
    mesh.check(&backup, CheckStatus::Passing);
    mesh.entry(resolver);
    from_now_on("backup-1", to_db);
    mesh.assert_calm(&envoys.each_ref());
}

#[test]
fn an_http_service_fails_over_by_its_route() {
    let mesh = Mesh::start();
    for service in ["api", "backup"] {
        mesh.protocol(service, "http");
    }
    let primary = Member::http("api", "api-1");
    let backup = Member::http("backup", "backup-1");
    let web = Member::tcp("web", "web-1").upstream("api");
    for member in [&primary, &backup, &web] {
        mesh.register(member);
    }
    let envoys = [mesh.envoy(&primary), mesh.envoy(&backup), mesh.envoy(&web)];
    let to_api = || http_name(&web.address_of("api"));
    from_now_on("api-1", to_api);
    // From an inline route to one over RDS, and back, below.
    mesh.entry(json!({
        "Kind": "service-resolver", "Name": "api", "RequestTimeout": "5s",
        "Failover": {"*": {"Targets": [{"Service": "backup"}]}},
    }));
    from_now_on("api-1", to_api);
    mesh.check(&primary, CheckStatus::Critical);
    from_now_on("backup-1", to_api);
    mesh.entry(
        json!({"Kind": "service-resolver", "Name": "api", "Redirect": {"Service": "backup"}}),
    );
    from_now_on("backup-1", to_api);
    mesh.check(&primary, CheckStatus::Passing);
    mesh.delete_entry("service-resolver", "api");
    from_now_on("api-1", to_api);
    mesh.assert_calm(&envoys.each_ref());
}
