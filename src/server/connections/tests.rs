use std::io;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

use super::*;

const HEAD: Duration = Duration::from_millis(100);
const IDLE: Duration = Duration::from_millis(200);
/// Longer than either.
const LONG: Duration = Duration::from_millis(300);

fn connections(max: usize) -> Arc<Connections> {
    connections_with(max, IDLE)
}

fn connections_with(max: usize, idle: Duration) -> Arc<Connections> {
    Connections::new(ConnectionLimits {
        max,
        head: HEAD,
        idle,
        only_heads: true,
    })
}

fn connect(connections: &Arc<Connections>) -> Option<(DuplexStream, Watched<DuplexStream>)> {
    let (client, server) = duplex(64);
    Some((client, Watched::new(server, connections.enter()?)))
}

/// Reads on the server's side until that fails, which isn't before a time.
async fn fails(server: &mut Watched<DuplexStream>, start: Instant, after: Duration) {
    let mut byte = [0];
    loop {
        match server.read(&mut byte).await {
            Ok(n) => assert_eq!(n, 1),
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
                assert!(start.elapsed() >= after, "{:?}", start.elapsed());
                return;
            }
        }
    }
}

#[tokio::test]
async fn a_new_connection_has_to_ask_soon() {
    let connections = connections(9);
    let (_client, mut server) = connect(&connections).unwrap();
    fails(&mut server, Instant::now(), HEAD).await;
    assert_eq!(connections.overdue(), 1);
}

#[tokio::test]
async fn a_head_that_comes_byte_by_byte_has_its_time_from_the_first() {
    let connections = connections_with(9, LONG * 1_000);
    let (mut client, mut server) = connect(&connections).unwrap();
    drop(server.place().request());
    let start = Instant::now();
    let dripping = tokio::spawn(async move {
        tokio::time::sleep(LONG).await;
        while client.write_all(b"x").await.is_ok() {
            tokio::time::sleep(HEAD / 10).await;
        }
    });
    fails(&mut server, start, LONG + HEAD).await;
    drop(server);
    dripping.await.unwrap();
}

#[tokio::test]
async fn a_request_has_all_the_time_and_silence_begins_after_it() {
    let connections = connections(9);
    let (mut client, mut server) = connect(&connections).unwrap();
    client.write_all(b"xx").await.unwrap();
    server.read_exact(&mut [0; 2]).await.unwrap();
    let request = server.place().request();
    let start = Instant::now();
    let ending = tokio::spawn(async move {
        tokio::time::sleep(LONG).await;
        drop(request);
    });
    fails(&mut server, start, LONG + IDLE).await;
    ending.await.unwrap();
}

#[tokio::test]
async fn what_is_not_read_is_given_up() {
    let connections = connections(9);
    let (mut client, mut server) = connect(&connections).unwrap();
    let _request = server.place().request();
    let start = Instant::now();
    let reading = tokio::spawn(async move {
        tokio::time::sleep(IDLE / 2).await;
        client.read_exact(&mut [0; 10]).await.unwrap();
        client
    });
    let error = server.write_all(&[0; 1_000]).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    assert!(start.elapsed() >= IDLE / 2 + IDLE);
    reading.await.unwrap();
}

#[tokio::test]
async fn who_asks_nothing_for_longest_makes_room() {
    let connections = connections(3);
    let (_a, mut first) = connect(&connections).unwrap();
    let (_b, second) = connect(&connections).unwrap();
    let (_c, third) = connect(&connections).unwrap();
    // The first one has asked, and is now the last that will have to go.
    drop(first.place().request());
    let asking = second.place().request();
    let (_d, fourth) = connect(&connections).unwrap();
    assert!(third.place().0.state.lock().displaced);
    let _asking = (asking, fourth.place().request());
    let waiting = tokio::spawn(async move { first.read(&mut [0]).await });
    tokio::task::yield_now().await;
    let (_e, fifth) = connect(&connections).unwrap();
    let error = waiting.await.unwrap().unwrap_err();
    assert!(error.to_string().contains("another connection"), "{error}");
    let also_asking = fifth.place().request();
    assert!(connect(&connections).is_none(), "all have requests");
    assert_eq!(
        (
            connections.open(),
            connections.refused(),
            connections.displaced()
        ),
        (3, 1, 2)
    );
    drop(also_asking);
    assert!(connections.make_room());
    assert!(!connections.make_room());
    drop((second, third, fourth, fifth));
    assert_eq!(connections.open(), 0);
}

#[tokio::test]
async fn requests_that_outlive_their_connection_leave_nothing() {
    let connections = connections(2);
    let (_client, server) = connect(&connections).unwrap();
    let request = server.place().request();
    drop(server);
    drop(request);
    assert_eq!(connections.open(), 0);
    assert!(connections.seats.lock().idle.is_empty());
}
