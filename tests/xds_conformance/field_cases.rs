//! Scenarios from the field (field-cases.md) as far as they are about the protocol.

use proxycfg::xds::ResourceType::{Cluster, Endpoint, Listener, Route};

use crate::client::{Client, request};
use crate::world::World;

/// A client that has asked for all clusters and listeners, and for these endpoints and routes.
async fn synced(world: &World, endpoints: &[&str], routes: &[&str]) -> Client {
    let mut client = world.connect().await;
    for (kind, names) in [
        (Cluster, &[][..]),
        (Endpoint, endpoints),
        (Listener, &[]),
        (Route, routes),
    ] {
        client.subscribe(kind, names).await;
        client.take(kind).await;
    }
    client.quiet().await;
    client
}

#[tokio::test]
async fn fc_014_a_resource_that_vanishes_for_a_while_keeps_its_subscription() {
    let world = World::start().await;
    world
        .put(Cluster, "db", "1")
        .put(Endpoint, "db", "1")
        .publish()
        .await;
    let mut client = synced(&world, &["db"], &[]).await;
    world.remove(Endpoint, "db").publish().await;
    client.expect(Endpoint, &[], &["db"]).await;
    world.put(Endpoint, "db", "1").publish().await;
    client.expect(Endpoint, &["db@1"], &[]).await;
    client.finish().await;
}

#[tokio::test]
async fn fc_015_a_changed_cluster_gets_its_endpoints_again() {
    let world = World::start().await;
    for name in ["db", "cache"] {
        world.put(Cluster, name, "1").put(Endpoint, name, "1");
    }
    world
        .put_listener("l", "1", "r")
        .put(Route, "r", "1")
        .publish()
        .await;
    let mut client = synced(&world, &["db", "cache"], &["r"]).await;
    world.put(Cluster, "db", "2").publish().await;
    client.expect(Cluster, &["db@2"], &[]).await;
    client.expect(Endpoint, &["db@1"], &[]).await;
    client.quiet().await;
    world.put_listener("l", "2", "r").publish().await;
    client.expect(Listener, &["l@2"], &[]).await;
    client.expect(Route, &["r@1"], &[]).await;
    client.finish().await;
}

#[tokio::test]
async fn fc_015_endpoints_on_their_way_when_the_cluster_changes_are_sent_again() {
    let world = World::start().await;
    world
        .put(Cluster, "db", "1")
        .put(Endpoint, "db", "1")
        .publish()
        .await;
    let mut client = synced(&world, &["db"], &[]).await;
    world.put(Endpoint, "db", "2").publish().await;
    let endpoint = client.receive().await;
    assert_eq!(endpoint.contents(), ["db@2"]);
    world.put(Cluster, "db", "2").publish().await;
    client.expect(Cluster, &["db@2"], &[]).await;
    client.ack(&endpoint).await;
    client.expect(Endpoint, &["db@2"], &[]).await;
    client.finish().await;
}

#[tokio::test]
async fn fc_016_names_of_a_reconnecting_wildcard_client_are_no_narrowing() {
    let world = World::start().await;
    for name in ["local_app", "a"] {
        world.put(Cluster, name, "1").put(Listener, name, "1");
    }
    world.put(Endpoint, "b", "1").publish().await;
    let mut client = world.connect().await;
    let names = ["a", "local_app"];
    let mut held = Vec::new();
    for kind in [Cluster, Listener] {
        client.subscribe(kind, &[]).await;
        held.push(client.take(kind).await.versions);
    }
    client.finish().await;

    let mut client = world.connect().await;
    for (kind, held) in [(Cluster, &held[0]), (Listener, &held[1])] {
        let held = names.map(|name| (name, held[name].as_str()));
        client.resume(kind, &names, &held).await;
        client.expect(kind, &[], &[]).await;
    }
    client.subscribe(Endpoint, &["b"]).await;
    client.expect(Endpoint, &["b@1"], &[]).await;
    world
        .put(Cluster, "b", "1")
        .put(Listener, "b", "1")
        .publish()
        .await;
    client.expect(Cluster, &["b@1"], &[]).await;
    client.expect(Endpoint, &["b@1"], &[]).await;
    client.expect(Listener, &["b@1"], &[]).await;
    client.finish().await;
}

#[tokio::test]
async fn fc_018_an_upstream_without_instances_blocks_nothing() {
    let world = World::start().await;
    for name in ["db", "cache"] {
        world.put(Cluster, name, "1").put(Listener, name, "1");
    }
    world
        .put(Endpoint, "db", "two")
        .put(Endpoint, "cache", "none")
        .publish()
        .await;
    let mut client = world.connect().await;
    client.subscribe(Cluster, &[]).await;
    client.expect(Cluster, &["cache@1", "db@1"], &[]).await;
    client.subscribe(Endpoint, &["db", "cache"]).await;
    client
        .expect(Endpoint, &["cache@none", "db@two"], &[])
        .await;
    client.subscribe(Listener, &[]).await;
    client.expect(Listener, &["cache@1", "db@1"], &[]).await;
    world.put(Endpoint, "cache", "one").publish().await;
    client.expect(Endpoint, &["cache@one"], &[]).await;
    client.finish().await;
}

#[tokio::test]
async fn fc_019_fc_026_an_empty_assignment_is_sent_and_the_next_instance_arrives() {
    let world = World::start().await;
    world
        .put(Cluster, "db", "1")
        .put(Endpoint, "db", "three")
        .publish()
        .await;
    let mut client = synced(&world, &["db"], &[]).await;
    for content in ["none", "one", "none", "another"] {
        world.put(Endpoint, "db", content).publish().await;
        client
            .expect(Endpoint, &[&format!("db@{content}")], &[])
            .await;
    }
    client.finish().await;
}

/// The first answer carries the removal because there is nothing else to send and nobody who uses the cluster.
#[tokio::test]
async fn fc_020_what_was_deleted_while_the_client_was_away_is_removed() {
    let world = World::start().await;
    world
        .put(Cluster, "a", "1")
        .put(Cluster, "b", "1")
        .publish()
        .await;
    let mut client = world.connect().await;
    client.subscribe(Cluster, &[]).await;
    let held = client.take(Cluster).await.versions;
    client.finish().await;
    let held = [("a", held["a"].as_str()), ("b", held["b"].as_str())];

    world.remove(Cluster, "b").publish().await;
    let mut client = world.connect().await;
    client.resume(Cluster, &[], &held).await;
    client.expect(Cluster, &[], &["b"]).await;
    client.finish().await;

    // If there is something to send, what is new comes first and the removal follows (xds.md 1.6).
    world.put(Cluster, "a", "2").publish().await;
    let mut client = world.connect().await;
    client.resume(Cluster, &[], &held).await;
    client.expect(Cluster, &["a@2"], &[]).await;
    client.expect(Cluster, &[], &["b"]).await;
    client.finish().await;
}

#[tokio::test]
async fn fc_021_asking_again_is_always_answered() {
    let world = World::start().await;
    world.put(Endpoint, "a", "1").publish().await;
    let mut client = world.connect().await;
    client.subscribe(Endpoint, &["a"]).await;
    client.expect(Endpoint, &["a@1"], &[]).await;
    client.unsubscribe(Endpoint, &["a"]).await;
    client.subscribe(Endpoint, &["a"]).await;
    client.expect(Endpoint, &["a@1"], &[]).await;
    client.subscribe(Endpoint, &["a"]).await;
    client.expect(Endpoint, &["a@1"], &[]).await;
    client.finish().await;
}

#[tokio::test]
async fn fc_021_unsubscribing_while_it_is_on_its_way_is_remembered() {
    let world = World::start().await;
    world
        .put(Endpoint, "a", "1")
        .put(Endpoint, "b", "1")
        .publish()
        .await;
    let mut client = world.connect().await;
    client.subscribe(Endpoint, &["a", "b"]).await;
    let both = client.receive().await;
    client.unsubscribe(Endpoint, &["a"]).await;
    client.ack(&both).await;
    client.quiet().await;
    client.subscribe(Endpoint, &["a"]).await;
    client.expect(Endpoint, &["a@1"], &[]).await;
    client.finish().await;
}

/// The last step is pinned as in generic xDS: unsubscribing from `*` ends the wildcard. Unsubscribing from a name under
/// a wildcard sends it again, because the client can't know whether the wildcard includes it.
#[tokio::test]
async fn fc_022_wildcard_and_names_are_kept_apart() {
    for kind in [Cluster, Listener] {
        let world = World::start().await;
        world
            .put(kind, "a", "1")
            .put(kind, "b", "1")
            .publish()
            .await;
        let mut client = world.connect().await;
        client.subscribe(kind, &[]).await;
        client.expect(kind, &["a@1", "b@1"], &[]).await;
        client.subscribe(kind, &["a"]).await;
        client.expect(kind, &["a@1"], &[]).await;
        world.put(kind, "b", "2").publish().await;
        client.expect(kind, &["b@2"], &[]).await;
        client.unsubscribe(kind, &["a"]).await;
        client.expect(kind, &["a@1"], &[]).await;
        world.put(kind, "a", "2").publish().await;
        client.expect(kind, &["a@2"], &[]).await;
        client.unsubscribe(kind, &["*"]).await;
        client.quiet().await;
        world.put(kind, "b", "3").publish().await;
        client.finish().await;
    }
}

/// The name lists of a refusal are honoured too.
#[tokio::test]
async fn fc_023_an_acknowledgement_counts_for_its_own_nonce() {
    let world = World::start().await;
    world
        .put(Cluster, "a", "1")
        .put(Cluster, "b", "1")
        .publish()
        .await;
    let mut client = world.connect().await;
    client.subscribe(Cluster, &["a"]).await;
    client.expect(Cluster, &["a@1"], &[]).await;
    world.put(Cluster, "a", "2").publish().await;
    let second = client.receive().await;
    let mut refusal = request(Cluster);
    refusal.response_nonce.clone_from(&second.nonce);
    refusal.error_detail = Some(Default::default());
    refusal.resource_names_subscribe.push("b".into());
    client.send(refusal).await;
    client.expect(Cluster, &["b@1"], &[]).await;
    let mut unknown = request(Cluster);
    unknown.response_nonce = "zzz".into();
    client.send(unknown).await;
    client.quiet().await;
    // It still holds what it acknowledged first: going back to that is no change.
    world.put(Cluster, "a", "1").publish().await;
    client.finish().await;
}

#[tokio::test]
async fn fc_024_a_refused_update_makes_no_loop_and_recovers() {
    let world = World::start().await;
    world
        .put(Cluster, "c", "1")
        .put(Listener, "l", "1")
        .publish()
        .await;
    let mut client = synced(&world, &[], &[]).await;
    world.put(Listener, "l", "bad").publish().await;
    let refused = client.receive().await;
    client.nack(&refused, "duplicate address").await;
    client.quiet().await;
    world.put(Cluster, "c", "2").publish().await;
    client.expect(Cluster, &["c@2"], &[]).await;
    client.quiet().await;
    // The same content in later sets, and asked for by name, is not sent either.
    world.put(Listener, "l", "1").publish().await;
    world.put(Listener, "l", "bad").publish().await;
    client.subscribe(Listener, &["l"]).await;
    client.quiet().await;
    world.put(Listener, "l", "fixed").publish().await;
    client.expect(Listener, &["l@fixed"], &[]).await;
    client.finish().await;
}

#[tokio::test]
async fn fc_025_only_the_newest_of_many_sets_is_left() {
    let world = World::start().await;
    world.put(Cluster, "c", "0").publish().await;
    let mut client = world.connect().await;
    client.subscribe(Cluster, &[]).await;
    let mut last = client.take(Cluster).await;
    for content in 1..=200 {
        world
            .put(Cluster, "c", &content.to_string())
            .publish()
            .await;
    }
    while last.contents() != ["c@200"] {
        let next = client.take(Cluster).await;
        assert!(next.contents() != last.contents());
        last = next;
    }
    client.finish().await;
}

#[tokio::test]
async fn fc_029_a_new_cluster_and_its_endpoints_come_before_the_route_to_it() {
    let world = World::start().await;
    world.put(Cluster, "v1", "1").put(Endpoint, "v1", "1");
    world
        .put_listener("l", "1", "r")
        .put(Route, "r", "to v1")
        .publish()
        .await;
    let mut client = synced(&world, &["v1"], &["r"]).await;
    world
        .put(Cluster, "v2", "1")
        .put(Endpoint, "v2", "1")
        .put(Route, "r", "to v2");
    world
        .remove(Cluster, "v1")
        .remove(Endpoint, "v1")
        .publish()
        .await;
    let cluster = client.receive().await;
    assert_eq!(cluster.contents(), ["v2@1"]);
    // An Envoy asks for the endpoints before it acknowledges the clusters.
    client.subscribe(Endpoint, &["v2"]).await;
    client.ack(&cluster).await;
    client.expect(Endpoint, &["v2@1"], &[]).await;
    let route = client.receive().await;
    assert_eq!((route.kind, route.contents()), (Route, vec!["r@to v2"]));
    // What the old route used stays until the new one is taken.
    client.quiet().await;
    client.ack(&route).await;
    client.expect(Cluster, &[], &["v1"]).await;
    client.expect(Endpoint, &[], &["v1"]).await;
    client.finish().await;
}

#[tokio::test]
async fn fc_030_a_removed_upstream_loses_its_listener_then_its_cluster() {
    let world = World::start().await;
    for name in ["db", "local_app"] {
        world.put(Cluster, name, "1").put(Listener, name, "1");
    }
    world.put(Endpoint, "db", "1").publish().await;
    let mut client = synced(&world, &["db"], &[]).await;
    world.remove(Cluster, "db").remove(Listener, "db");
    world.remove(Endpoint, "db").publish().await;
    let listener = client.receive().await;
    assert_eq!(
        (listener.kind, listener.removed.as_slice()),
        (Listener, ["db".into()].as_slice())
    );
    client.quiet().await;
    client.unsubscribe(Endpoint, &["db"]).await;
    client.ack(&listener).await;
    client.expect(Cluster, &[], &["db"]).await;
    client.finish().await;
}

#[tokio::test]
async fn fc_032_two_servers_give_equal_content_equal_versions() {
    let mut seen = Vec::new();
    for order in [["a", "b"], ["b", "a"]] {
        let world = World::start().await;
        for name in order {
            world.put(Cluster, name, "old").publish().await;
        }
        world
            .put(Cluster, "a", "1")
            .put(Cluster, "b", "1")
            .publish()
            .await;
        let mut client = world.connect().await;
        client.subscribe(Cluster, &[]).await;
        seen.push(client.take(Cluster).await.versions);
        client.finish().await;

        // What the other server gave is as good as one's own.
        let mut client = world.connect().await;
        let held = ["a", "b"].map(|name| (name, seen[0][name].as_str()));
        client.resume(Cluster, &[], &held).await;
        client.expect(Cluster, &[], &[]).await;
        client.finish().await;
    }
    assert_eq!(seen[0], seen[1]);
}

/// Decision X6 rules here: for endpoints an empty first request names nothing.
#[tokio::test]
async fn fc_033_a_stream_may_start_without_names_of_endpoints() {
    let world = World::start().await;
    world
        .put(Endpoint, "a", "1")
        .put(Endpoint, "b", "1")
        .publish()
        .await;
    let mut client = world.connect().await;
    client.subscribe(Endpoint, &[]).await;
    client.expect(Endpoint, &[], &[]).await;
    client.subscribe(Endpoint, &["a"]).await;
    client.expect(Endpoint, &["a@1"], &[]).await;
    world.put(Endpoint, "a", "2").publish().await;
    client.expect(Endpoint, &["a@2"], &[]).await;
    world.put(Endpoint, "b", "2").publish().await;
    client.finish().await;
}
