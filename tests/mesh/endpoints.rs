//! Instances come and go.

use proxycfg::model::CheckStatus;
use proxycfg::server::propagation::Stage;

use crate::member::Member;
use crate::support::apps::tcp_name;
use crate::support::{DEADLINE, wait_until};
use crate::traffic::{Traffic, answered_by, from_now_on, refused_from_now_on};
use crate::world::Mesh;

#[test]
fn instances_are_added_failing_and_removed() {
    let mesh = Mesh::start();
    let (first, second) = (Member::tcp("db", "db-1"), Member::tcp("db", "db-2"));
    let web = Member::tcp("web", "web-1").upstream("db");
    mesh.register(&web);
    let web_envoy = mesh.envoy(&web);
    let ask = || tcp_name(&web.address_of("db"));
    refused_from_now_on(ask);

    mesh.register(&first);
    let first_envoy = mesh.envoy(&first);
    from_now_on("db-1", ask);
    // Its Envoy runs before the instance is offered to others.
    let second_envoy = mesh.connect(&second.proxy_id(), None);
    mesh.register(&second);
    second_envoy.wait_ready();
    answered_by(&["db-1", "db-2"], ask);

    mesh.check(&first, CheckStatus::Critical);
    from_now_on("db-2", ask);
    mesh.check(&second, CheckStatus::Critical);
    refused_from_now_on(ask);
    mesh.check(&first, CheckStatus::Warning);
    from_now_on("db-1", ask);
    mesh.check(&first, CheckStatus::Passing);
    mesh.check(&second, CheckStatus::Passing);
    answered_by(&["db-1", "db-2"], ask);

    // No connection fails when an instance is taken out before it stops.
    let address = web.address_of("db");
    let traffic = Traffic::start(move || tcp_name(&address));
    mesh.deregister(&first);
    from_now_on("db-2", ask);
    traffic.more(3);
    let answers = traffic.stop();
    assert!(
        answers.keys().all(|answer| answer.starts_with("db-")),
        "{answers:?}"
    );
    mesh.deregister(&second);
    refused_from_now_on(ask);
    mesh.register(&first);
    from_now_on("db-1", ask);
    mesh.assert_calm(&[&web_envoy, &first_envoy, &second_envoy]);
}

#[test]
fn the_way_of_a_change_is_timed_up_to_the_acknowledgement() {
    let mesh = Mesh::start();
    let db = Member::tcp("db", "db-1");
    mesh.register(&db);
    let web = Member::tcp("web", "web-1").upstream("db");
    mesh.register(&web);
    let _envoy = mesh.envoy(&web);
    mesh.check(&db, CheckStatus::Critical);
    refused_from_now_on(|| tcp_name(&web.address_of("db")));
    for stage in [
        Stage::Snapshot,
        Stage::Resources,
        Stage::Sent,
        Stage::Acknowledged,
    ] {
        wait_until("a change comes so far", DEADLINE, || {
            let counted = mesh.times.count(stage) > 0;
            counted.then_some(()).ok_or_else(|| format!("{stage:?}"))
        });
    }
}

#[test]
fn fc_018_an_upstream_without_instances_holds_up_nobody() {
    let mesh = Mesh::start();
    let db = Member::tcp("db", "db-1");
    let web = Member::tcp("web", "web-1").upstream("cache").upstream("db");
    mesh.register(&db);
    mesh.register(&web);
    let db_envoy = mesh.envoy(&db);
    let web_envoy = mesh.envoy(&web);
    from_now_on("db-1", || tcp_name(&web.address_of("db")));
    let to_cache = || tcp_name(&web.address_of("cache"));
    refused_from_now_on(to_cache);

    let cache = Member::tcp("cache", "cache-1");
    mesh.register(&cache);
    let cache_envoy = mesh.envoy(&cache);
    from_now_on("cache-1", to_cache);
    mesh.assert_calm(&[&db_envoy, &web_envoy, &cache_envoy]);
}
