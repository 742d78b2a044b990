//! How streams of both forms start and end: rows 22 and 24, and the ends of xds.md 1.9.

use std::sync::atomic::Ordering;
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::node::UserAgentVersionType;
use envoy_types::pb::envoy::config::core::v3::{BuildVersion, Node};
use envoy_types::pb::envoy::r#type::v3::SemanticVersion;
use proxycfg::server::ads::{
    AdsConfig, AuthError, EndReason, OpenError, Protocol, StreamPhase, StreamUpdate,
};
use proxycfg::xds::ResourceType::{Cluster, Listener};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tonic::Code;

use crate::client::{Client, node};
use crate::world::{DEADLINE, PROXY, World};

pub async fn world() -> World {
    world_with(AdsConfig::default()).await
}

pub async fn world_with(config: AdsConfig) -> World {
    let world = World::start_with(config).await;
    world.put(Cluster, "a", "1").publish().await;
    world
}

/// A client on a stream of its own that has got its clusters.
pub async fn served(world: &World, protocol: Protocol) -> Client {
    let mut client = world.connect_as(protocol).await;
    client.subscribe(Cluster, &[]).await;
    client.expect(Cluster, &["a@1"], &[]).await;
    client
}

/// The code with which a stream ends that starts with this node.
async fn code_for(world: &World, protocol: Protocol, node: Option<Node>) -> Code {
    let mut client = Client::try_connect(world, protocol, node, "")
        .await
        .unwrap();
    client.subscribe(Cluster, &[]).await;
    client.ended().await.code()
}

fn envoy(major_number: u32, minor_number: u32) -> Node {
    let version = SemanticVersion {
        major_number,
        minor_number,
        patch: 0,
    };
    Node {
        user_agent_version_type: Some(UserAgentVersionType::UserAgentBuildVersion(BuildVersion {
            version: Some(version),
            metadata: None,
        })),
        ..node(PROXY)
    }
}

#[tokio::test]
async fn row_22_a_first_request_without_a_node_ends_the_stream() {
    for protocol in Protocol::ALL {
        let world = world().await;
        let mut other = served(&world, protocol).await;
        assert_eq!(
            code_for(&world, protocol, None).await,
            Code::InvalidArgument
        );
        assert_eq!(
            code_for(&world, protocol, Some(Node::default())).await,
            Code::InvalidArgument
        );
        world.put(Cluster, "a", "2").publish().await;
        other.expect(Cluster, &["a@2"], &[]).await;
        other.finish().await;
        world.until_closed().await;
    }
}

#[tokio::test]
async fn row_22_a_request_without_a_type_ends_the_stream() {
    for protocol in Protocol::ALL {
        let world = world().await;
        let mut other = served(&world, protocol).await;
        let mut client = served(&world, protocol).await;
        client.send(Default::default()).await;
        assert_eq!(client.ended().await.code(), Code::InvalidArgument);
        other.quiet().await;
        other.finish().await;
    }
}

/// Bytes that are no message at all, in a frame that says they are.
#[tokio::test]
async fn row_22_garbage_ends_the_stream() {
    let world = world().await;
    let mut other = served(&world, Protocol::Delta).await;
    for method in ["DeltaAggregatedResources", "StreamAggregatedResources"] {
        let status = send_garbage(&world, method).await;
        assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    }

    // And bytes that aren't even HTTP/2 end the connection.
    let mut raw = tokio::net::TcpStream::connect(world.addr).await.unwrap();
    raw.write_all(&[0xff; 1000]).await.unwrap();
    let mut rest = Vec::new();
    let read = tokio::time::timeout(DEADLINE, raw.read_to_end(&mut rest)).await;
    // The server may close or reset the connection.
    drop(read.expect("the connection ends"));
    other.quiet().await;
    other.finish().await;
}

mod garbage {
    //! A codec that sends bytes as they are.

    use tonic::Status;
    use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

    #[derive(Clone, Copy, Default)]
    pub struct Raw;

    impl Codec for Raw {
        type Encode = Vec<u8>;
        type Decode = ();
        type Encoder = Self;
        type Decoder = Self;

        fn encoder(&mut self) -> Self {
            *self
        }

        fn decoder(&mut self) -> Self {
            *self
        }
    }

    impl Encoder for Raw {
        type Item = Vec<u8>;
        type Error = Status;

        fn encode(&mut self, item: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
            prost::bytes::BufMut::put_slice(buffer, &item);
            Ok(())
        }
    }

    impl Decoder for Raw {
        type Item = ();
        type Error = Status;

        fn decode(&mut self, _: &mut DecodeBuf<'_>) -> Result<Option<()>, Status> {
            Ok(Some(()))
        }
    }
}

async fn send_garbage(world: &World, method: &str) -> tonic::Status {
    let channel = tonic::transport::Endpoint::from_shared(format!("http://{}", world.addr))
        .unwrap()
        .connect()
        .await
        .unwrap();
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready().await.unwrap();
    let path = format!("/envoy.service.discovery.v3.AggregatedDiscoveryService/{method}");
    let once = tokio_stream::once(vec![0x0a, 0xff, 0xff, 0xff]);
    let response = grpc
        .streaming(
            tonic::Request::new(once),
            path.parse().unwrap(),
            garbage::Raw,
        )
        .await;
    let mut stream = response.unwrap().into_inner();
    loop {
        match tokio::time::timeout(DEADLINE, stream.message())
            .await
            .unwrap()
        {
            Ok(Some(())) => {}
            Ok(None) => return tonic::Status::ok(""),
            Err(status) => return status,
        }
    }
}

#[tokio::test]
async fn xds_3_fc_010_old_envoys_are_refused_and_leave_nothing_behind() {
    for protocol in Protocol::ALL {
        let world = world().await;
        for _ in 0..50 {
            assert_eq!(
                code_for(&world, protocol, Some(envoy(1, 19))).await,
                Code::InvalidArgument
            );
        }
        world.until_closed().await;
        assert!(world.provider.opened.lock().is_empty());
        let mut client = Client::try_connect(&world, protocol, Some(envoy(1, 40)), "")
            .await
            .unwrap();
        client.subscribe(Cluster, &[]).await;
        client.expect(Cluster, &["a@1"], &[]).await;
        client.finish().await;
    }
}

#[tokio::test]
async fn xds_1_2_the_node_names_the_proxy() {
    for protocol in Protocol::ALL {
        let world = world().await;
        let client = served(&world, protocol).await;
        let opened = world.provider.opened.lock().clone();
        assert_eq!(opened.len(), 1);
        assert_eq!(opened[0].id, PROXY);
        let streams = world.service.streams();
        assert_eq!(streams.len(), 1);
        assert_eq!(streams[0].phase, StreamPhase::Running);
        assert_eq!(streams[0].node.as_ref(), Some(&opened[0]));
        assert!(streams[0].peer.is_some());
        client.finish().await;
    }
}

#[tokio::test]
async fn row_21_synced_index_follows_acknowledgements() {
    for protocol in Protocol::ALL {
        let world = world().await;
        let mut client = served(&world, protocol).await;
        client.quiet().await;
        let synced = || {
            world.service.streams()[0]
                .types
                .last()
                .unwrap()
                .synced_index
        };
        assert_eq!(synced(), Some(1));
        let index = world.put(Cluster, "a", "2").publish().await;
        let answer = client.receive().await;
        client.quiet().await;
        assert_eq!(synced(), Some(1));
        client.ack(&answer).await;
        client.quiet().await;
        assert_eq!(synced(), Some(index));
        client.finish().await;
    }
}

#[tokio::test]
async fn row_24_ends_of_the_source_have_their_codes() {
    for protocol in Protocol::ALL {
        let ends = [
            (EndReason::Terminated, Code::Aborted),
            (EndReason::SessionTerminated, Code::ResourceExhausted),
            (EndReason::SourceFailed("sync loop".into()), Code::Internal),
            (EndReason::Generation("bad".into()), Code::Unavailable),
            (
                EndReason::Auth(AuthError::Unauthenticated("deleted".into())),
                Code::Unauthenticated,
            ),
        ];
        for (reason, code) in ends {
            let world = world().await;
            let mut client = served(&world, protocol).await;
            world.provider.send(PROXY, StreamUpdate::Ended(reason));
            assert_eq!(client.ended().await.code(), code);
            world.until_closed().await;
        }
    }
}

#[tokio::test]
async fn row_24_a_dropped_source_aborts_the_stream() {
    for protocol in Protocol::ALL {
        let world = world().await;
        let mut client = served(&world, protocol).await;
        world.provider.close(PROXY);
        assert_eq!(client.ended().await.code(), Code::Aborted);
        world.until_closed().await;
    }
}

#[tokio::test]
async fn row_24_a_refused_watch_has_its_code_and_is_counted() {
    for protocol in Protocol::ALL {
        let world = world().await;
        let refusals = [
            (OpenError::Capacity, Code::ResourceExhausted),
            (OpenError::Failed("no".into()), Code::Internal),
            (OpenError::InvalidNode("no".into()), Code::InvalidArgument),
            (
                OpenError::Auth(AuthError::PermissionDenied("no".into())),
                Code::PermissionDenied,
            ),
        ];
        for (refusal, code) in refusals {
            *world.provider.refuse.lock() = Some(refusal);
            assert_eq!(code_for(&world, protocol, Some(node(PROXY))).await, code);
        }
        world.until_closed().await;
        assert_eq!(world.service.metrics().streams_failed.get(), 4);
    }
}

#[tokio::test]
async fn row_24_drained_sessions_are_counted() {
    for protocol in Protocol::ALL {
        let world = world().await;
        let mut client = served(&world, protocol).await;
        let end = StreamUpdate::Ended(EndReason::SessionTerminated);
        world.provider.send(PROXY, end);
        assert_eq!(client.ended().await.code(), Code::ResourceExhausted);
        assert_eq!(world.service.metrics().streams_drained.get(), 1);
    }
}

#[tokio::test]
async fn row_24_a_bad_token_is_refused_before_anything_is_read() {
    for protocol in Protocol::ALL {
        let world = world().await;
        let errors = [
            (
                AuthError::Unauthenticated("ACL not found".into()),
                Code::Unauthenticated,
            ),
            (
                AuthError::PermissionDenied("no".into()),
                Code::PermissionDenied,
            ),
            (AuthError::Internal("no leader".into()), Code::Internal),
        ];
        for (error, code) in errors {
            world.provider.tokens.lock().insert("t".into(), error);
            let refused = Client::try_connect(&world, protocol, None, "t").await;
            assert_eq!(refused.err().unwrap().code(), code);
        }
        assert_eq!(world.service.open_streams(), 0);
    }
}

#[tokio::test]
async fn row_24_a_token_that_is_deleted_ends_the_stream_at_the_next_event() {
    for protocol in Protocol::ALL {
        let world = world().await;
        let mut client = Client::try_connect(&world, protocol, Some(node(PROXY)), "t")
            .await
            .unwrap();
        client.subscribe(Cluster, &[]).await;
        client.expect(Cluster, &["a@1"], &[]).await;
        let gone = AuthError::Unauthenticated("ACL not found".into());
        world.provider.tokens.lock().insert("t".into(), gone);
        client.subscribe(Listener, &[]).await;
        assert_eq!(client.ended().await.code(), Code::Unauthenticated);
        world.until_closed().await;
    }
}

#[tokio::test]
async fn row_24_a_token_is_looked_at_again_on_an_idle_stream() {
    for protocol in Protocol::ALL {
        let world = world_with(AdsConfig {
            auth_check_interval: Duration::from_millis(20),
            ..AdsConfig::default()
        })
        .await;
        let mut client = Client::try_connect(&world, protocol, Some(node(PROXY)), "t")
            .await
            .unwrap();
        client.subscribe(Cluster, &[]).await;
        client.expect(Cluster, &["a@1"], &[]).await;
        client.quiet().await;
        let before = world.provider.authorized.load(Ordering::SeqCst);
        world
            .until("two more looks at the token", || {
                world.provider.authorized.load(Ordering::SeqCst) >= before + 2
            })
            .await;
        let denied = AuthError::PermissionDenied("no more".into());
        world.provider.tokens.lock().insert("t".into(), denied);
        assert_eq!(client.ended().await.code(), Code::PermissionDenied);
    }
}

#[tokio::test]
async fn xds_7_a_client_that_goes_away_releases_its_watch() {
    for protocol in Protocol::ALL {
        let world = world().await;
        let client = served(&world, protocol).await;
        drop(client);
        world.until_closed().await;
        assert_eq!(world.service.metrics().streams_failed.get(), 0);
        assert_eq!(world.service.metrics().streams_closed.get(), 1);
    }
}

#[tokio::test]
async fn a_stopping_server_ends_its_streams_and_waits_for_them() {
    for protocol in Protocol::ALL {
        let world = world().await;
        let mut client = served(&world, protocol).await;
        let service = world.service.clone();
        let ended = async {
            let status = client.ended().await;
            drop(client);
            status
        };
        let ((), status) = tokio::join!(world.stop(), ended);
        assert_eq!(status.code(), Code::Unavailable);
        assert_eq!(service.open_streams(), 0);
    }
}
