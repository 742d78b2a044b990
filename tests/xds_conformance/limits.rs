//! What keeps streams of both forms from costing too much: rows 22 and 23, and the limits of [`AdsConfig`].

use std::pin::pin;
use std::time::Duration;

use proxycfg::server::Rate;
use proxycfg::server::ads::{AdsConfig, AdsLimits, Protocol};
use proxycfg::xds::ResourceType::{Cluster, Endpoint, Listener};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tonic::Code;

use crate::client::{Client, node};
use crate::ends::{served, world, world_with};
use crate::world::{DEADLINE, PROXY};

#[tokio::test]
async fn row_22_an_oversize_message_ends_the_stream() {
    for protocol in Protocol::ALL {
        let config = AdsConfig {
            limits: AdsLimits {
                max_request_len: 10_000,
                ..AdsLimits::default()
            },
            ..AdsConfig::default()
        };
        let world = world_with(config).await;
        let mut other = served(&world, protocol).await;
        let mut client = served(&world, protocol).await;
        client.subscribe(Endpoint, &[&"x".repeat(20_000)]).await;
        assert_eq!(client.ended().await.code(), Code::OutOfRange);
        other.quiet().await;
        other.finish().await;
    }
}

#[tokio::test]
async fn row_22_too_many_or_too_long_names_end_the_stream() {
    for protocol in Protocol::ALL {
        let config = AdsConfig {
            limits: AdsLimits {
                max_names: 3,
                max_name_len: 10,
                ..AdsLimits::default()
            },
            ..AdsConfig::default()
        };
        let world = world_with(config).await;
        let mut other = served(&world, protocol).await;

        let mut client = served(&world, protocol).await;
        client.subscribe(Endpoint, &["a", "b", "c"]).await;
        client.expect(Endpoint, &[], &[]).await;
        client.subscribe(Endpoint, &["a", "c"]).await;
        client.quiet().await;
        client.subscribe(Endpoint, &["d"]).await;
        let status = client.ended().await;
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert!(status.message().contains("more than 3 names"), "{status:?}");

        let mut client = served(&world, protocol).await;
        client.subscribe(Endpoint, &["elevenchars"]).await;
        assert_eq!(client.ended().await.code(), Code::InvalidArgument);
        other.quiet().await;
        other.finish().await;
    }
}

#[tokio::test]
async fn more_streams_than_may_be_are_refused() {
    for protocol in Protocol::ALL {
        let world = world_with(AdsConfig {
            max_streams: 2,
            ..AdsConfig::default()
        })
        .await;
        let mut first = served(&world, protocol).await;
        let second = served(&world, protocol).await;
        for _ in 0..3 {
            let refused = Client::try_connect(&world, protocol, Some(node(PROXY)), "").await;
            let status = refused.err().unwrap();
            assert_eq!(status.code(), Code::ResourceExhausted);
            assert!(status.message().contains("2 xDS streams"), "{status:?}");
        }
        assert_eq!(world.service.metrics().streams_refused.get(), 3);
        assert_eq!(world.service.metrics().streams_opened.get(), 2);
        // The others go on, and one that ends makes room.
        world.put(Cluster, "a", "2").publish().await;
        first.expect(Cluster, &["a@2"], &[]).await;
        drop(second);
        world
            .until("one has ended", || world.service.open_streams() == 1)
            .await;
        let mut third = world.connect_as(protocol).await;
        third.subscribe(Cluster, &[]).await;
        third.expect(Cluster, &["a@2"], &[]).await;
    }
}

#[tokio::test]
async fn streams_that_come_too_fast_are_refused() {
    let world = world_with(AdsConfig {
        max_stream_rate: Rate::new(1),
        ..AdsConfig::default()
    })
    .await;
    let (mut opened, mut refused) = (0_u64, 0_u64);
    for _ in 0..30 {
        match Client::try_connect(&world, Protocol::Delta, Some(node(PROXY)), "").await {
            Ok(_) => opened += 1,
            Err(status) => {
                assert_eq!(status.code(), Code::ResourceExhausted);
                assert!(status.message().contains("try again in"), "{status:?}");
                refused += 1;
            }
        }
    }
    // Ten at once, and one for each second that this took.
    assert!(opened >= 10 && refused >= 1, "{opened} {refused}");
    assert_eq!(world.service.metrics().streams_refused.get(), refused);
}

#[tokio::test]
async fn a_client_that_floods_its_stream_with_requests_is_ended() {
    for protocol in Protocol::ALL {
        let world = world_with(AdsConfig {
            limits: AdsLimits {
                max_request_rate: Rate::new(5),
                ..AdsLimits::default()
            },
            ..AdsConfig::default()
        })
        .await;
        let mut other = served(&world, protocol).await;
        let mut client = served(&world, protocol).await;
        for _ in 0..1_000 {
            client.unsubscribe(Endpoint, &["x"]).await;
        }
        let status = client.ended().await;
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert!(
            status.message().contains("5 requests a second"),
            "{status:?}"
        );
        world.put(Cluster, "a", "2").publish().await;
        other.expect(Cluster, &["a@2"], &[]).await;
        other.finish().await;
    }
}

/// Ten thousand changes of a large resource against a client that reads nothing: the server holds one response in its
/// channel and what fits into the transport's windows.
#[tokio::test]
async fn row_23_a_client_that_stops_reading_costs_bounded_memory() {
    for protocol in Protocol::ALL {
        let world = world().await;
        let mut client = served(&world, protocol).await;
        let large = "x".repeat(300_000);
        for round in 0..200 {
            for kind in [Cluster, Endpoint, Listener] {
                world.put(kind, "a", &format!("{round}{large}"));
            }
            world.publish().await;
            if round == 0 {
                client.subscribe(Endpoint, &["a"]).await;
                client.subscribe(Listener, &[]).await;
            }
        }
        // It asks on and on, and never reads or acknowledges.
        for _ in 0..500 {
            client.subscribe(Endpoint, &["a"]).await;
        }
        let metrics = world.service.metrics();
        world
            .until("the requests are taken", || {
                metrics.requests.of(Endpoint).get() >= 501
            })
            .await;
        assert!(metrics.responses.total() <= 4, "{metrics:?}");
        // Others are served meanwhile, and it goes on where it stopped.
        let mut other = world.connect().await;
        other.subscribe(Cluster, &[]).await;
        other.take(Cluster).await;
        let mut newest = false;
        while !newest {
            let answer = client.receive().await;
            newest = answer.kind == Listener && answer.got["a"].starts_with("a@199");
            client.ack(&answer).await;
        }
    }
}

/// A peer that doesn't answer probes: a bare socket that speaks just enough HTTP/2 to open a stream, and then is silent.
#[tokio::test]
async fn row_23_keep_alive_notices_a_dead_peer() {
    let world = world_with(AdsConfig {
        keepalive_interval: Duration::from_millis(50),
        keepalive_timeout: Duration::from_millis(50),
        ..AdsConfig::default()
    })
    .await;
    let mut raw = tokio::net::TcpStream::connect(world.addr).await.unwrap();
    raw.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        .await
        .unwrap();
    // An empty SETTINGS frame.
    raw.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
    let mut rest = Vec::new();
    let mut end = pin!(raw.read_to_end(&mut rest));
    let read = tokio::time::timeout(DEADLINE, &mut end).await;
    // The server may close or reset the connection.
    drop(read.expect("the server gives up"));
}
