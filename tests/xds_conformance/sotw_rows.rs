//! The rows of the conformance table (xds-conformance.md) for the state of the world, by number. Rows 22 to 24 are in
//! `ends`, for both forms.
//!
//! Where a response of clusters or listeners holds everything and one of other types only what changed, tests are told
//! apart by [`whole`].

use proxycfg::server::ads::{Protocol, StreamPhase};
use proxycfg::xds::ResourceType::{self, Cluster, Endpoint, Listener, Route, Secret};

use crate::client::{Client, request};
use crate::world::{TYPES, World, subscribed, world_with};

/// Whether a response of this type holds all that the client is to have.
fn whole(kind: ResourceType) -> bool {
    matches!(kind, Cluster | Listener)
}

async fn connect(world: &World) -> Client {
    world.connect_as(Protocol::StateOfTheWorld).await
}

/// Takes a response with everything in it, or one with the change only.
async fn expect(client: &mut Client, kind: ResourceType, all: &[&str], changed: &[&str]) {
    let contents = if whole(kind) { all } else { changed };
    client.expect(kind, contents, &[]).await;
}

#[tokio::test]
async fn sotw_row_01_wildcard_returns_everything_in_one_response() {
    for kind in [Cluster, Listener] {
        let world = world_with(kind, &["a", "b", "c"]).await;
        let mut client = connect(&world).await;
        client.subscribe(kind, &[]).await;
        client.expect(kind, &["a@1", "b@1", "c@1"], &[]).await;
        client.finish().await;
    }
}

#[tokio::test]
async fn sotw_row_02_an_update_under_a_wildcard_returns_everything_at_the_new_version() {
    for kind in [Cluster, Listener] {
        let world = world_with(kind, &["a", "b"]).await;
        let mut client = connect(&world).await;
        client.subscribe(kind, &[]).await;
        let first = client.take(kind).await;
        world.put(kind, "b", "2").publish().await;
        let second = client.take(kind).await;
        assert_eq!(second.contents(), ["a@1", "b@2"]);
        assert_ne!(second.version, first.version);
        assert_ne!(second.nonce, first.nonce);
        // Equal content has an equal version.
        world.put(kind, "b", "1").publish().await;
        assert_eq!(client.take(kind).await.version, first.version);
        client.finish().await;
    }
}

#[tokio::test]
async fn sotw_row_03_a_new_resource_arrives_under_a_wildcard() {
    for kind in [Cluster, Listener] {
        let (world, mut client) = subscribed(Protocol::StateOfTheWorld, kind, &["a"], &[]).await;
        world.put(kind, "b", "1").publish().await;
        client.expect(kind, &["a@1", "b@1"], &[]).await;
        client.finish().await;
    }
}

#[tokio::test]
async fn sotw_row_04_names_return_the_named_ones_only() {
    for kind in TYPES {
        let (world, client) = subscribed(
            Protocol::StateOfTheWorld,
            kind,
            &["a", "b", "c"],
            &["c", "a"],
        )
        .await;
        world.put(kind, "b", "2").publish().await;
        client.finish().await;
    }
}

#[tokio::test]
async fn sotw_row_05_an_update_returns_the_full_named_set_of_clusters_or_listeners() {
    for kind in TYPES {
        let (world, mut client) = subscribed(
            Protocol::StateOfTheWorld,
            kind,
            &["a", "b", "c"],
            &["a", "b"],
        )
        .await;
        world.put(kind, "b", "2").publish().await;
        expect(&mut client, kind, &["a@1", "b@2"], &["b@2"]).await;
        // One more name: what is there is sent.
        client.subscribe(kind, &["c"]).await;
        expect(&mut client, kind, &["a@1", "b@2", "c@1"], &["c@1"]).await;
        client.finish().await;
    }
}

#[tokio::test]
async fn sotw_row_06_what_does_not_exist_arrives_when_it_is_created() {
    for kind in TYPES {
        let (world, mut client) =
            subscribed(Protocol::StateOfTheWorld, kind, &["a"], &["a", "b"]).await;
        client.quiet().await;
        world.put(kind, "b", "1").publish().await;
        expect(&mut client, kind, &["a@1", "b@1"], &["b@1"]).await;
        client.finish().await;
    }
}

#[tokio::test]
async fn sotw_row_07_after_narrowing_updates_come_for_the_rest_only() {
    for kind in TYPES {
        let (world, mut client) =
            subscribed(Protocol::StateOfTheWorld, kind, &["a", "b"], &["a", "b"]).await;
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
async fn sotw_row_08_after_unsubscribing_from_everything_nothing_arrives() {
    for kind in TYPES {
        let (world, mut client) =
            subscribed(Protocol::StateOfTheWorld, kind, &["a", "b"], &["a", "b"]).await;
        client.unsubscribe(kind, &["b", "a"]).await;
        client.quiet().await;
        world.put(kind, "a", "2").put(kind, "c", "1");
        world.remove(kind, "b").publish().await;
        client.finish().await;
    }
}

#[tokio::test]
async fn sotw_row_09_two_types_update_independently() {
    for (first, second) in [(Cluster, Listener), (Endpoint, Route), (Listener, Endpoint)] {
        let world = world_with(first, &["a"]).await;
        world.put(second, "b", "1").publish().await;
        let mut client = connect(&world).await;
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
async fn sotw_row_14_a_refused_resource_is_not_sent_again_until_its_content_changes() {
    for (kind, other) in [
        (Cluster, Listener),
        (Endpoint, Cluster),
        (Listener, Cluster),
        (Route, Listener),
    ] {
        let world = world_with(kind, &["a", "b"]).await;
        world.put(other, "o", "1").publish().await;
        let mut client = connect(&world).await;
        client.subscribe(kind, &["a", "b"]).await;
        client.expect(kind, &["a@1", "b@1"], &[]).await;
        client.subscribe(other, &["o"]).await;
        client.expect(other, &["o@1"], &[]).await;

        world.put(kind, "a", "bad").publish().await;
        let refused = client.receive().await;
        let all: &[&str] = &["a@bad", "b@1"];
        assert_eq!(
            refused.contents(),
            if whole(kind) { all } else { &all[..1] }
        );
        client.nack(&refused, "duplicate address").await;
        client.quiet().await;
        let quarantined = || {
            let streams = world.service.streams();
            assert_eq!(streams[0].protocol, Protocol::StateOfTheWorld);
            let status = streams[0].types.iter().find(|status| status.kind == kind);
            status.unwrap().quarantined.clone()
        };
        assert_eq!(quarantined().len(), 1);
        assert_eq!(quarantined()[0].name, "a");
        assert_eq!(quarantined()[0].reason, "duplicate address");
        assert_eq!(world.service.metrics().nacks.of(kind).get(), 1);

        // Other types go on, and other resources of the type: where everything has to be said, with the last good content.
        world.put(other, "o", "2").publish().await;
        client.expect(other, &["o@2"], &[]).await;
        world.put(kind, "b", "2").publish().await;
        expect(&mut client, kind, &["a@1", "b@2"], &["b@2"]).await;
        client.quiet().await;
        world.put(kind, "a", "good").publish().await;
        expect(&mut client, kind, &["a@good", "b@2"], &["a@good"]).await;
        assert!(quarantined().is_empty());
        client.finish().await;
    }
}

#[tokio::test]
async fn sotw_row_14_of_a_refused_response_only_what_is_refused_alone_is_kept_back() {
    for kind in TYPES {
        let world = world_with(kind, &["a", "b", "c"]).await;
        let mut client = connect(&world).await;
        client.subscribe(kind, &["a", "b", "c"]).await;
        let all = client.receive().await;
        assert_eq!(all.contents(), ["a@1", "b@1", "c@1"]);
        client.nack(&all, "b is bad").await;
        client.expect(kind, &["a@1"], &[]).await;
        let bad = client.receive().await;
        assert!(bad.contents().contains(&"b@1"));
        client.nack(&bad, "b is really bad").await;
        expect(&mut client, kind, &["a@1", "c@1"], &["c@1"]).await;
        client.quiet().await;
        world.put(kind, "c", "2").publish().await;
        expect(&mut client, kind, &["a@1", "c@2"], &["c@2"]).await;
        client.quiet().await;
        world.put(kind, "b", "2").publish().await;
        expect(&mut client, kind, &["a@1", "b@2", "c@2"], &["b@2"]).await;
        client.finish().await;
    }
}

/// A client that comes back may hold what nobody on this stream knows of. Leaving resources out of responses to find the
/// bad one would take that away.
#[tokio::test]
async fn sotw_row_14_a_returning_client_that_refuses_the_first_response_keeps_what_it_has() {
    for kind in [Cluster, Listener] {
        let world = world_with(kind, &["a", "b"]).await;
        let mut client = connect(&world).await;
        client.subscribe(kind, &[]).await;
        let held = client.take(kind).await;
        client.finish().await;

        world.put(kind, "b", "bad").publish().await;
        let mut client = connect(&world).await;
        client.remember(&held);
        client.subscribe(kind, &[]).await;
        let all = client.receive().await;
        assert_eq!(all.contents(), ["a@1", "b@bad"]);
        client.nack(&all, "b is bad").await;
        client.quiet().await;
        world.put(kind, "a", "2").publish().await;
        let all = client.receive().await;
        assert_eq!(all.contents(), ["a@2", "b@bad"]);
        client.nack(&all, "b is still bad").await;
        client.quiet().await;
        let streams = world.service.streams();
        let status = streams[0].types.iter().find(|status| status.kind == kind);
        let reason = status.unwrap().last_refusal.clone();
        assert_eq!(reason.as_deref(), Some("b is still bad"));
        world.put(kind, "b", "2").publish().await;
        client.expect(kind, &["a@2", "b@2"], &[]).await;
        // From here on it is known what it holds.
        world.put(kind, "b", "bad").publish().await;
        let bad = client.receive().await;
        client.nack(&bad, "b is bad again").await;
        world.put(kind, "a", "3").publish().await;
        client.expect(kind, &["a@3", "b@2"], &[]).await;
        client.finish().await;
    }
}

/// Which list of names means what (xDS protocol, "how the client specifies what resources to return").
#[tokio::test]
async fn sotw_wildcards_and_names() {
    for kind in [Cluster, Listener] {
        let (world, mut client) =
            subscribed(Protocol::StateOfTheWorld, kind, &["a", "b"], &[]).await;
        // A star and a name keep the wildcard, without sending again what the client has.
        client.subscribe(kind, &["*", "a"]).await;
        client.quiet().await;
        world.put(kind, "b", "2").publish().await;
        client.expect(kind, &["a@1", "b@2"], &[]).await;
        // Without the star only the name is left.
        client.unsubscribe(kind, &["*"]).await;
        client.quiet().await;
        world
            .put(kind, "a", "2")
            .put(kind, "b", "3")
            .publish()
            .await;
        client.expect(kind, &["a@2"], &[]).await;
        // An empty list is no wildcard any more.
        client.unsubscribe(kind, &["a"]).await;
        client.quiet().await;
        world.put(kind, "a", "3").publish().await;
        client.quiet().await;
        client.subscribe(kind, &["*"]).await;
        client.expect(kind, &["a@3", "b@3"], &[]).await;
        client.finish().await;
    }
}

#[tokio::test]
async fn sotw_an_empty_first_request_names_nothing_for_other_types() {
    for kind in [Endpoint, Route, Secret] {
        let world = world_with(kind, &["a"]).await;
        let mut client = connect(&world).await;
        client.subscribe(kind, &[]).await;
        client.expect(kind, &[], &[]).await;
        client.subscribe(kind, &["a"]).await;
        client.expect(kind, &["a@1"], &[]).await;
        client.finish().await;
    }
}

/// Envoy sends its list as it was when something new in it wants what something else has got before.
#[tokio::test]
async fn sotw_names_that_are_sent_once_more_are_answered() {
    for kind in [Endpoint, Route, Secret] {
        let (_world, mut client) = subscribed(
            Protocol::StateOfTheWorld,
            kind,
            &["a", "b"],
            &["a", "b", "c"],
        )
        .await;
        client.subscribe(kind, &["a"]).await;
        client.expect(kind, &["a@1", "b@1"], &[]).await;
        client.finish().await;
    }
}

#[tokio::test]
async fn sotw_a_name_that_is_given_up_and_asked_for_again_is_sent_again() {
    for kind in TYPES {
        let (_world, mut client) =
            subscribed(Protocol::StateOfTheWorld, kind, &["a", "b"], &["a", "b"]).await;
        client.unsubscribe(kind, &["a"]).await;
        client.subscribe(kind, &["a"]).await;
        expect(&mut client, kind, &["a@1", "b@1"], &["a@1"]).await;
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
async fn sotw_row_18_changes_go_out_parents_first_and_removals_last() {
    let world = World::start().await;
    for kind in TYPES {
        world.put(kind, "old", "1").put(kind, "kept", "1");
    }
    world.publish().await;
    let mut client = connect(&world).await;
    subscribe_to_all(&mut client, &["old", "kept", "new"]).await;
    for kind in TYPES {
        world
            .remove(kind, "old")
            .put(kind, "kept", "2")
            .put(kind, "new", "1");
    }
    world.publish().await;

    // The cluster that goes stays until no listener or route uses it. Endpoints go with it, without a word.
    client
        .expect(Cluster, &["kept@2", "new@1", "old@1"], &[])
        .await;
    for kind in [Endpoint, Listener, Route, Cluster] {
        client.expect(kind, &["kept@2", "new@1"], &[]).await;
    }
    client.finish().await;
}

#[tokio::test]
async fn sotw_row_18_each_step_waits_for_the_acknowledgement_of_those_before() {
    let world = World::start().await;
    for kind in TYPES {
        world.put(kind, "old", "1").put(kind, "kept", "1");
    }
    world.publish().await;
    let mut client = connect(&world).await;
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
    client.expect(Cluster, &["kept@2"], &[]).await;
    client.finish().await;
}

#[tokio::test]
async fn sotw_row_19_a_changed_parent_has_its_children_sent_again_and_nothing_else() {
    let world = World::start().await;
    for name in ["a", "b"] {
        world.put(Cluster, name, "1").put(Endpoint, name, "1");
        let route = format!("route-{name}");
        world
            .put_listener(name, "1", &route)
            .put(Route, &route, "1");
    }
    world.publish().await;
    let mut client = connect(&world).await;
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

    // The other cluster is in the response too, but Envoy sees that it is the same.
    world.put(Cluster, "a", "2").publish().await;
    client.expect(Cluster, &["a@2", "b@1"], &[]).await;
    client.expect(Endpoint, &["a@1"], &[]).await;
    client.quiet().await;

    world.put_listener("b", "2", "route-b").publish().await;
    client.expect(Listener, &["a@1", "b@2"], &[]).await;
    client.expect(Route, &["route-b@1"], &[]).await;
    client.finish().await;
}

#[tokio::test]
async fn sotw_row_20_the_first_request_of_a_type_is_answered_even_without_resources() {
    for kind in [Cluster, Endpoint, Listener, Route, Secret] {
        for names in [&[][..], &["nothing"]] {
            let world = world_with(kind, &[]).await;
            let mut client = connect(&world).await;
            client.subscribe(kind, names).await;
            client.expect(kind, &[], &[]).await;
            // Later ones aren't.
            client.subscribe(kind, &["nothing-either"]).await;
            client.finish().await;
        }
    }
}

#[tokio::test]
async fn sotw_row_20_a_proxy_without_a_snapshot_gets_no_answer_and_is_listed_as_waiting() {
    let world = World::start().await;
    let mut client = connect(&world).await;
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
async fn sotw_row_21_one_response_of_a_type_is_on_its_way_and_updates_fold() {
    for kind in TYPES {
        let world = world_with(kind, &["a"]).await;
        let mut client = connect(&world).await;
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
async fn sotw_row_21_a_change_that_is_taken_back_meanwhile_is_not_sent() {
    for kind in TYPES {
        let world = world_with(kind, &["a"]).await;
        let mut client = connect(&world).await;
        client.subscribe(kind, &["a"]).await;
        let first = client.receive().await;
        world.put(kind, "a", "2").publish().await;
        world.put(kind, "a", "1").publish().await;
        client.ack(&first).await;
        client.finish().await;
    }
}

#[tokio::test]
async fn sotw_row_22_a_stale_nonce_changes_nothing() {
    for kind in TYPES {
        let world = world_with(kind, &["a", "b"]).await;
        let mut client = connect(&world).await;
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
        expect(&mut client, kind, &["a@3", "b@1"], &["b@1"]).await;
        // A refusal that comes twice counts once.
        world.put(kind, "b", "bad").publish().await;
        let refused = client.receive().await;
        client.nack(&refused, "no").await;
        client.nack(&refused, "no").await;
        client.quiet().await;
        assert_eq!(world.service.metrics().nacks.total(), 1);
        client.finish().await;
    }
}

#[tokio::test]
async fn sotw_row_22_an_unknown_type_is_ignored() {
    let world = world_with(Cluster, &["a"]).await;
    let mut client = connect(&world).await;
    let mut unknown = request(Cluster);
    unknown.type_url = "type.googleapis.com/envoy.service.runtime.v3.Runtime".into();
    client.send(unknown).await;
    client.subscribe(Cluster, &[]).await;
    client.expect(Cluster, &["a@1"], &[]).await;
    assert_eq!(world.service.metrics().requests_unknown_type.get(), 1);
    client.finish().await;
}

/// Both forms in one server at a time, for one proxy.
#[tokio::test]
async fn xds_1_both_methods_are_served() {
    let world = world_with(Cluster, &["a", "b"]).await;
    let mut delta = world.connect().await;
    let mut whole = connect(&world).await;
    for client in [&mut delta, &mut whole] {
        client.subscribe(Cluster, &[]).await;
        client.expect(Cluster, &["a@1", "b@1"], &[]).await;
    }
    world.put(Cluster, "a", "2").publish().await;
    delta.expect(Cluster, &["a@2"], &[]).await;
    whole.expect(Cluster, &["a@2", "b@1"], &[]).await;
    let streams = world.service.streams();
    let forms: Vec<Protocol> = streams.iter().map(|stream| stream.protocol).collect();
    assert_eq!(forms, Protocol::ALL);
    delta.finish().await;
    whole.finish().await;
}
