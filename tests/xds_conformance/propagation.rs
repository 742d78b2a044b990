//! How long changes take to be sent and acknowledged.

use std::time::Duration;

use proxycfg::server::propagation::Stage::{Acknowledged, Sent};
use proxycfg::xds::ResourceType::{Cluster, Endpoint};

use crate::world::World;

/// How many responses were counted as sent, and how many as acknowledged.
fn counts(world: &World) -> (u64, u64) {
    (world.times.count(Sent), world.times.count(Acknowledged))
}

#[tokio::test]
async fn responses_that_a_commit_led_to_are_timed_until_they_are_acknowledged() {
    let world = World::start().await;
    world.put(Cluster, "a", "1").put(Endpoint, "a", "1");
    world.publish().await;
    let mut client = world.connect().await;
    client.subscribe(Cluster, &[]).await;
    client.expect(Cluster, &["a@1"], &[]).await;
    client.subscribe(Endpoint, &["a"]).await;
    client.expect(Endpoint, &["a@1"], &[]).await;
    client.quiet().await;
    // These were sent because the client came.
    assert_eq!(counts(&world), (0, 0));

    world.put(Endpoint, "a", "2").publish().await;
    let answer = client.receive().await;
    assert_eq!(counts(&world), (1, 0));
    client.ack(&answer).await;
    world
        .until("the answer is taken", || counts(&world) == (1, 1))
        .await;

    // A commit that changes nothing for this client, and a request of its own.
    world.publish().await;
    client.quiet().await;
    client.subscribe(Endpoint, &["a"]).await;
    client.expect(Endpoint, &["a@2"], &[]).await;
    client.quiet().await;
    assert_eq!(counts(&world), (1, 1));
    client.finish().await;
}

#[tokio::test]
async fn a_commit_that_had_to_wait_for_a_slow_client_is_timed_from_its_own_moment() {
    let world = World::start().await;
    world.put(Endpoint, "a", "1").publish().await;
    let mut client = world.connect().await;
    client.subscribe(Endpoint, &["a"]).await;
    let first = client.receive().await;
    world.put(Endpoint, "a", "2").publish().await;
    world.clock.advance(Duration::from_millis(300));
    client.ack(&first).await;
    let second = client.receive().await;
    // The first response was there because the client came; only the second is about a commit.
    client.ack(&second).await;
    world
        .until("both answers are taken", || counts(&world) == (1, 1))
        .await;
    client.finish().await;
}
