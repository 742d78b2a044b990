//! The delta rows of the conformance table (xds-conformance.md), by number.

use proxycfg::server::ads::{Protocol, StreamPhase};
use proxycfg::xds::ResourceType::{Cluster, Endpoint, Listener, Route, Secret};

use crate::client::{Client, request};
use crate::world::{TYPES, World, subscribed, world_with};

#[tokio::test]
async fn row_01_wildcard_returns_everything_in_one_response() {
    for kind in [Cluster, Listener] {
        let world = world_with(kind, &["a", "b", "c"]).await;
        let mut client = world.connect().await;
        client.subscribe(kind, &[]).await;
        client.expect(kind, &["a@1", "b@1", "c@1"], &[]).await;
        client.finish().await;
    }
}

#[tokio::test]
async fn row_03_a_new_resource_arrives_under_a_wildcard() {
    for kind in [Cluster, Listener] {
        let (world, mut client) = subscribed(Protocol::Delta, kind, &["a"], &[]).await;
        world.put(kind, "b", "1").publish().await;
        client.expect(kind, &["b@1"], &[]).await;
        client.finish().await;
    }
}

#[tokio::test]
async fn row_04_names_return_the_named_ones_only() {
    for kind in TYPES {
        let (world, client) =
            subscribed(Protocol::Delta, kind, &["a", "b", "c"], &["c", "a"]).await;
        world.put(kind, "b", "2").publish().await;
        client.finish().await;
    }
}

#[tokio::test]
async fn row_06_what_does_not_exist_arrives_when_it_is_created() {
    for kind in TYPES {
        let (world, mut client) = subscribed(Protocol::Delta, kind, &["a"], &["a", "b"]).await;
        client.quiet().await;
        world.put(kind, "b", "1").publish().await;
        client.expect(kind, &["b@1"], &[]).await;
        client.finish().await;
    }
}

#[tokio::test]
async fn row_07_after_narrowing_updates_come_for_the_rest_only() {
    for kind in TYPES {
        let (world, mut client) = subscribed(Protocol::Delta, kind, &["a", "b"], &["a", "b"]).await;
        client.unsubscribe(kind, &["a"]).await;
        client.quiet().await;
        world
            .put(kind, "a", "2")
            .put(kind, "b", "2")
            .publish()
            .await;
        client.expect(kind, &["b@2"], &[]).await;
        client.finish().await;
    }
}

#[tokio::test]
async fn row_08_after_unsubscribing_from_everything_nothing_arrives() {
    for kind in TYPES {
        let (world, mut client) = subscribed(Protocol::Delta, kind, &["a", "b"], &["a", "b"]).await;
        client.unsubscribe(kind, &["b", "a"]).await;
        client.quiet().await;
        world.put(kind, "a", "2").put(kind, "c", "1");
        world.remove(kind, "b").publish().await;
        client.finish().await;
    }
}

#[tokio::test]
async fn row_09_two_types_update_independently() {
    for (first, second) in [(Cluster, Listener), (Endpoint, Route), (Listener, Endpoint)] {
        let world = world_with(first, &["a"]).await;
        world.put(second, "b", "1").publish().await;
        let mut client = world.connect().await;
        client.subscribe(first, &["a"]).await;
        client.expect(first, &["a@1"], &[]).await;
        client.subscribe(second, &["b"]).await;
        client.expect(second, &["b@1"], &[]).await;
        world.put(first, "a", "2").publish().await;
        client.expect(first, &["a@2"], &[]).await;
        client.quiet().await;
        world.put(second, "b", "2").publish().await;
        client.expect(second, &["b@2"], &[]).await;
        client.finish().await;
    }
}

#[tokio::test]
async fn row_10_subscribing_one_after_another_sends_only_the_new_one() {
    for kind in TYPES {
        let (_world, mut client) = subscribed(Protocol::Delta, kind, &["a", "b"], &["a"]).await;
        client.subscribe(kind, &["b"]).await;
        client.expect(kind, &["b@1"], &[]).await;
        client.finish().await;
    }
}

#[tokio::test]
async fn row_11_an_update_sends_only_what_changed_with_new_nonce_and_version() {
    for kind in TYPES {
        let world = world_with(kind, &["a", "b"]).await;
        let mut client = world.connect().await;
        client.subscribe(kind, &["a", "b"]).await;
        let first = client.take(kind).await;
        world.put(kind, "b", "2").publish().await;
        let second = client.take(kind).await;
        assert_eq!(second.contents(), ["b@2"]);
        assert!(second.removed.is_empty());
        assert_ne!(second.nonce, first.nonce);
        assert_ne!(second.versions["b"], first.versions["b"]);
        client.finish().await;
    }
}

#[tokio::test]
async fn row_12_removal_is_announced_by_name() {
    for kind in TYPES {
        let (world, mut client) = subscribed(Protocol::Delta, kind, &["a", "b"], &["a", "b"]).await;
        world.remove(kind, "a").publish().await;
        client.expect(kind, &[], &["a"]).await;
        world.put(kind, "a", "1").publish().await;
        client.expect(kind, &["a@1"], &[]).await;
        client.finish().await;
    }
}

#[tokio::test]
async fn row_12_removal_is_announced_under_a_wildcard() {
    for kind in [Cluster, Listener] {
        let (world, mut client) = subscribed(Protocol::Delta, kind, &["a", "b"], &[]).await;
        world.remove(kind, "b").publish().await;
        client.expect(kind, &[], &["b"]).await;
        world.put(kind, "b", "1").publish().await;
        client.expect(kind, &["b@1"], &[]).await;
        client.finish().await;
    }
}

#[tokio::test]
async fn row_13_an_update_of_what_was_unsubscribed_is_not_sent() {
    for kind in TYPES {
        let (world, mut client) = subscribed(Protocol::Delta, kind, &["a", "b"], &["a", "b"]).await;
        client.unsubscribe(kind, &["a"]).await;
        client.quiet().await;
        world.put(kind, "a", "2").publish().await;
        client.quiet().await;
        client.unsubscribe(kind, &["b"]).await;
        client.quiet().await;
        world.put(kind, "b", "2").publish().await;
        client.finish().await;
    }
}

#[tokio::test]
async fn row_14_a_refused_resource_is_not_sent_again_until_its_content_changes() {
    for (kind, other) in [
        (Cluster, Listener),
        (Endpoint, Cluster),
        (Listener, Cluster),
        (Route, Listener),
    ] {
        let world = world_with(kind, &["a"]).await;
        world.put(other, "o", "1").publish().await;
        let mut client = world.connect().await;
        client.subscribe(kind, &["a"]).await;
        client.expect(kind, &["a@1"], &[]).await;
        client.subscribe(other, &["o"]).await;
        client.expect(other, &["o@1"], &[]).await;

        world.put(kind, "a", "bad").publish().await;
        let refused = client.receive().await;
        assert_eq!(refused.contents(), ["a@bad"]);
        client.nack(&refused, "duplicate address").await;
        client.quiet().await;
        let streams = world.service.streams();
        let status = streams[0].types.iter().find(|status| status.kind == kind);
        let quarantined = &status.unwrap().quarantined;
        assert_eq!(quarantined.len(), 1);
        assert_eq!(quarantined[0].name, "a");
        assert_eq!(quarantined[0].reason, "duplicate address");
        assert_eq!(world.service.metrics().nacks.of(kind).get(), 1);

        // Other types go on; so does the same content in a later set.
        world.put(other, "o", "2").publish().await;
        client.expect(other, &["o@2"], &[]).await;
        client.quiet().await;
        world.put(kind, "a", "good").publish().await;
        client.expect(kind, &["a@good"], &[]).await;
        let streams = world.service.streams();
        let status = streams[0].types.iter().find(|status| status.kind == kind);
        assert!(status.unwrap().quarantined.is_empty());
        client.finish().await;
    }
}

#[tokio::test]
async fn row_14_of_a_refused_response_only_what_is_refused_alone_is_kept_back() {
    for kind in TYPES {
        let world = world_with(kind, &["a", "b", "c"]).await;
        let mut client = world.connect().await;
        client.subscribe(kind, &["a", "b", "c"]).await;
        let all = client.receive().await;
        assert_eq!(all.contents(), ["a@1", "b@1", "c@1"]);
        client.nack(&all, "b is bad").await;
        client.expect(kind, &["a@1"], &[]).await;
        let bad = client.receive().await;
        assert_eq!(bad.contents(), ["b@1"]);
        client.nack(&bad, "b is really bad").await;
        client.expect(kind, &["c@1"], &[]).await;
        client.quiet().await;
        world.put(kind, "c", "2").publish().await;
        client.expect(kind, &["c@2"], &[]).await;
        client.quiet().await;
        world.put(kind, "b", "2").publish().await;
        client.expect(kind, &["b@2"], &[]).await;
        client.finish().await;
    }
}

#[tokio::test]
async fn row_15_after_a_reconnect_only_differences_are_sent() {
    for kind in TYPES {
        let world = world_with(kind, &["a", "b", "c", "d"]).await;
        let mut client = world.connect().await;
        client.subscribe(kind, &["a", "b", "c"]).await;
        let held = client.take(kind).await.versions;
        client.finish().await;

        world.put(kind, "b", "2");
        world.remove(kind, "c").publish().await;
        let mut client = world.connect().await;
        let held: Vec<(&str, &str)> = held.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        client.resume(kind, &["a", "b", "c", "d"], &held).await;
        if matches!(kind, Listener | Route) {
            client.expect(kind, &["b@2", "d@1"], &["c"]).await;
        } else {
            // Removals of these types come last (xds.md 1.6).
            client.expect(kind, &["b@2", "d@1"], &[]).await;
            client.expect(kind, &[], &["c"]).await;
        }
        client.finish().await;
    }
}

#[tokio::test]
async fn row_15_an_unchanged_client_gets_one_empty_answer_for_each_type() {
    for kind in TYPES {
        let world = world_with(kind, &["a"]).await;
        let mut client = world.connect().await;
        client.subscribe(kind, &["a"]).await;
        let held = client.take(kind).await.versions;
        client.finish().await;

        let mut client = world.connect().await;
        client.resume(kind, &["a"], &[("a", &held["a"])]).await;
        client.expect(kind, &[], &[]).await;
        client.finish().await;
    }
}

#[tokio::test]
async fn row_16_asking_again_for_a_known_resource_sends_it_again() {
    for kind in TYPES {
        let (_world, mut client) =
            subscribed(Protocol::Delta, kind, &["a", "b"], &["a", "b"]).await;
        client.subscribe(kind, &["b"]).await;
        client.expect(kind, &["b@1"], &[]).await;
        client.finish().await;
    }
}

#[tokio::test]
async fn row_17_wildcard_and_names_together() {
    for kind in [Cluster, Listener] {
        let (world, mut client) = subscribed(Protocol::Delta, kind, &["a", "b"], &[]).await;
        client.subscribe(kind, &["a", "c"]).await;
        client.expect(kind, &["a@1"], &[]).await;
        world
            .put(kind, "b", "2")
            .put(kind, "c", "1")
            .publish()
            .await;
        client.expect(kind, &["b@2", "c@1"], &[]).await;
        client.unsubscribe(kind, &["*"]).await;
        client.quiet().await;
        world
            .put(kind, "a", "2")
            .put(kind, "b", "3")
            .publish()
            .await;
        client.expect(kind, &["a@2"], &[]).await;
        client.finish().await;
    }
}

#[tokio::test]
async fn row_17_a_star_is_a_wildcard() {
    for kind in TYPES {
        let world = world_with(kind, &["a", "b"]).await;
        let mut client = world.connect().await;
        client.subscribe(kind, &["*"]).await;
        client.expect(kind, &["a@1", "b@1"], &[]).await;
        world.put(kind, "c", "1").publish().await;
        client.expect(kind, &["c@1"], &[]).await;
        client.finish().await;
    }
}

#[tokio::test]
async fn row_17_a_star_added_later_sends_the_rest() {
    for kind in TYPES {
        let (_world, mut client) = subscribed(Protocol::Delta, kind, &["a", "b"], &["a"]).await;
        client.subscribe(kind, &["*"]).await;
        client.expect(kind, &["b@1"], &[]).await;
        client.finish().await;
    }
}

#[tokio::test]
async fn row_17_an_empty_first_request_names_nothing_for_other_types() {
    for kind in [Endpoint, Route, Secret] {
        let world = world_with(kind, &["a"]).await;
        let mut client = world.connect().await;
        client.subscribe(kind, &[]).await;
        client.expect(kind, &[], &[]).await;
        client.subscribe(kind, &["a"]).await;
        client.expect(kind, &["a@1"], &[]).await;
        client.finish().await;
    }
}

/// Asks for everything of the four types, by name where there is no wildcard.
async fn subscribe_to_all(client: &mut Client, names: &[&str]) {
    for kind in TYPES {
        let names = if kind.empty_means_all() { &[] } else { names };
        client.subscribe(kind, names).await;
        client.take(kind).await;
    }
    client.quiet().await;
}

#[tokio::test]
async fn row_18_changes_go_out_parents_first_and_removals_last() {
    let world = World::start().await;
    for kind in TYPES {
        world.put(kind, "old", "1").put(kind, "kept", "1");
    }
    world.publish().await;
    let mut client = world.connect().await;
    subscribe_to_all(&mut client, &["old", "kept", "new"]).await;
    for kind in TYPES {
        world
            .remove(kind, "old")
            .put(kind, "kept", "2")
            .put(kind, "new", "1");
    }
    world.publish().await;

    client.expect(Cluster, &["kept@2", "new@1"], &[]).await;
    client.expect(Endpoint, &["kept@2", "new@1"], &[]).await;
    client
        .expect(Listener, &["kept@2", "new@1"], &["old"])
        .await;
    client.expect(Route, &["kept@2", "new@1"], &["old"]).await;
    client.expect(Cluster, &[], &["old"]).await;
    client.expect(Endpoint, &[], &["old"]).await;
    client.finish().await;
}

#[tokio::test]
async fn row_18_each_step_waits_for_the_acknowledgement_of_those_before() {
    let world = World::start().await;
    for kind in TYPES {
        world.put(kind, "old", "1").put(kind, "kept", "1");
    }
    world.publish().await;
    let mut client = world.connect().await;
    subscribe_to_all(&mut client, &["old", "kept"]).await;
    for kind in TYPES {
        world.remove(kind, "old").put(kind, "kept", "2");
    }
    world.publish().await;

    let cluster = client.receive().await;
    let endpoint = client.receive().await;
    assert_eq!((cluster.kind, endpoint.kind), (Cluster, Endpoint));
    client.quiet().await;
    client.ack(&endpoint).await;
    client.quiet().await;
    client.ack(&cluster).await;
    let listener = client.receive().await;
    let route = client.receive().await;
    assert_eq!((listener.kind, route.kind), (Listener, Route));
    client.quiet().await;
    client.ack(&listener).await;
    client.quiet().await;
    client.ack(&route).await;
    client.expect(Cluster, &[], &["old"]).await;
    client.expect(Endpoint, &[], &["old"]).await;
    client.finish().await;
}

#[tokio::test]
async fn row_19_a_changed_parent_has_its_children_sent_again_and_nothing_else() {
    let world = World::start().await;
    for name in ["a", "b"] {
        world.put(Cluster, name, "1").put(Endpoint, name, "1");
        let route = format!("route-{name}");
        world
            .put_listener(name, "1", &route)
            .put(Route, &route, "1");
    }
    world.publish().await;
    let mut client = world.connect().await;
    for (kind, names) in [
        (Cluster, [].as_slice()),
        (Endpoint, &["a", "b"]),
        (Listener, &[]),
        (Route, &["route-a", "route-b"]),
    ] {
        client.subscribe(kind, names).await;
        client.take(kind).await;
    }
    client.quiet().await;

    world.put(Cluster, "a", "2").publish().await;
    client.expect(Cluster, &["a@2"], &[]).await;
    client.expect(Endpoint, &["a@1"], &[]).await;
    client.quiet().await;

    world.put_listener("b", "2", "route-b").publish().await;
    client.expect(Listener, &["b@2"], &[]).await;
    client.expect(Route, &["route-b@1"], &[]).await;
    client.finish().await;
}

#[tokio::test]
async fn row_20_the_first_request_of_a_type_is_answered_even_without_resources() {
    for kind in [Cluster, Endpoint, Listener, Route, Secret] {
        for names in [&[][..], &["nothing"]] {
            let world = world_with(kind, &[]).await;
            let mut client = world.connect().await;
            client.subscribe(kind, names).await;
            client.expect(kind, &[], &[]).await;
            // Later ones aren't.
            client.subscribe(kind, &["nothing-either"]).await;
            client.finish().await;
        }
    }
}

#[tokio::test]
async fn row_20_a_proxy_without_a_snapshot_gets_no_answer_and_is_listed_as_waiting() {
    let world = World::start().await;
    let mut client = world.connect().await;
    for kind in TYPES {
        client.subscribe(kind, &[]).await;
    }
    let metrics = world.service.metrics();
    world
        .until("four requests are taken", || metrics.requests.total() == 4)
        .await;
    assert_eq!(metrics.responses.total(), 0);
    let streams = world.service.streams();
    assert_eq!(streams[0].phase, StreamPhase::WaitingForResources);

    world.put(Cluster, "a", "1").publish().await;
    client.expect(Cluster, &["a@1"], &[]).await;
    for kind in [Endpoint, Listener, Route] {
        client.expect(kind, &[], &[]).await;
    }
    client.finish().await;
}

#[tokio::test]
async fn row_21_one_response_of_a_type_is_on_its_way_and_updates_fold() {
    for kind in TYPES {
        let world = world_with(kind, &["a"]).await;
        let mut client = world.connect().await;
        client.subscribe(kind, &["a", "b"]).await;
        let first = client.receive().await;
        assert_eq!(first.contents(), ["a@1"]);
        for content in ["2", "3", "4"] {
            world.put(kind, "a", content).publish().await;
        }
        world.put(kind, "b", "1").publish().await;
        client.quiet().await;
        client.ack(&first).await;
        client.expect(kind, &["a@4", "b@1"], &[]).await;
        client.finish().await;
    }
}

#[tokio::test]
async fn row_21_a_change_that_is_taken_back_meanwhile_is_not_sent() {
    for kind in TYPES {
        let world = world_with(kind, &["a"]).await;
        let mut client = world.connect().await;
        client.subscribe(kind, &["a"]).await;
        let first = client.receive().await;
        world.put(kind, "a", "2").publish().await;
        world.put(kind, "a", "1").publish().await;
        client.ack(&first).await;
        client.finish().await;
    }
}

#[tokio::test]
async fn row_22_a_stale_nonce_changes_nothing() {
    for kind in TYPES {
        let world = world_with(kind, &["a", "b"]).await;
        let mut client = world.connect().await;
        client.subscribe(kind, &["a"]).await;
        let first = client.take(kind).await;
        world.put(kind, "a", "2").publish().await;
        let second = client.receive().await;
        client.ack(&first).await;
        client.nack(&first, "too late").await;
        client.quiet().await;
        // Still on its way: the next change waits.
        world.put(kind, "a", "3").publish().await;
        client.quiet().await;
        client.ack(&second).await;
        client.expect(kind, &["a@3"], &[]).await;
        assert_eq!(world.service.metrics().stale_nonces.of(kind).get(), 2);
        assert_eq!(world.service.metrics().nacks.total(), 0);

        // The names in a request with a stale nonce count.
        let mut with_name = request(kind);
        with_name.response_nonce = "zzz".into();
        with_name.resource_names_subscribe.push("b".into());
        client.send(with_name).await;
        client.expect(kind, &["b@1"], &[]).await;
        client.finish().await;
    }
}

#[tokio::test]
async fn row_22_an_unknown_type_is_ignored() {
    let world = world_with(Cluster, &["a"]).await;
    let mut client = world.connect().await;
    let mut unknown = request(Cluster);
    unknown.type_url = "type.googleapis.com/envoy.service.runtime.v3.Runtime".into();
    client.send(unknown).await;
    client.subscribe(Cluster, &[]).await;
    client.expect(Cluster, &["a@1"], &[]).await;
    assert_eq!(world.service.metrics().requests_unknown_type.get(), 1);
    client.finish().await;
}
