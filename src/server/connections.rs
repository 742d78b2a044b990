//! The connections of clients to one server: how many there may be, and how long one may be open for nothing.
//!
//! Whoever reaches a port can open connections, also strangers, so that these are what is limited first:
//!
//! - Every connection has a *seat*, from its first packet on: before its TLS handshake, before anybody knows who it is. When
//!   all seats are taken, a new connection takes the seat of the one that has been without a request for longest; only if all
//!   have requests (answered ones, waiting reads, xDS streams) is the new one refused. So clients that open connections and
//!   say nothing can't keep others out, however many they open.
//! - A connection without a request is closed after a while; sooner if it has begun to send one and doesn't come to its end
//!   (a client that sends a byte now and then), or if it is new.
//! - A client that doesn't read what it asked for is waited for as long as for one that asks nothing.
//!
//! All this is done where bytes are read and written, below TLS and HTTP, so that it holds for both servers and in every state
//! that their transports may be in. What is above tells when requests begin and end ([`Place::request`]).

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};
use tracing::debug;

/// How many connections there may be, and how long they may be open for nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Most connections at a time, at least 1.
    pub max: usize,
    /// How long a new connection may take for its first request, and every connection from the first byte of a request's head
    /// to its last.
    pub head: Duration,
    /// How long a connection may be without a request, and how long a client may read nothing of what is written to it.
    pub idle: Duration,
    /// Whether a request's head is all that comes outside of requests. It isn't with HTTP/2, whose connections speak of their
    /// own state at any time; there, [`Self::head`] is for the first request alone.
    pub only_heads: bool,
}

/// The connections to one server.
#[derive(Debug)]
pub struct Connections {
    limits: ConnectionLimits,
    seats: Mutex<Seats>,
    refused: AtomicU64,
    displaced: AtomicU64,
    overdue: AtomicU64,
}

#[derive(Debug, Default)]
struct Seats {
    taken: usize,
    next: u64,
    /// Those without a request, the one first that has been so for longest.
    idle: BTreeMap<u64, Place>,
}

/// A connection's place among the others: what its requests are counted at. A clone is another handle to the same place.
#[derive(Clone)]
pub struct Place(Arc<Inner>);

struct Inner {
    connections: Arc<Connections>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    requests: usize,
    /// Times at which requests began while there were none.
    begun: u64,
    /// The key among those without a request.
    idle: Option<u64>,
    /// Since when it has been without one.
    since: Instant,
    /// Whether another connection has got the seat.
    displaced: bool,
    gone: bool,
    waker: Option<Waker>,
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.0.state.lock();
        f.debug_tuple("Place").field(&*state).finish()
    }
}

/// A request on a connection; ends when it is dropped.
#[derive(Debug)]
pub struct RequestGuard(Place);

/// The seat of a connection; given back when it is dropped.
#[derive(Debug)]
pub(super) struct Seat(Place);

impl Connections {
    /// No connections yet.
    #[must_use]
    pub fn new(limits: ConnectionLimits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            seats: Mutex::default(),
            refused: AtomicU64::new(0),
            displaced: AtomicU64::new(0),
            overdue: AtomicU64::new(0),
        })
    }

    /// The limits.
    #[must_use]
    pub fn limits(&self) -> &ConnectionLimits {
        &self.limits
    }

    /// How many there are.
    #[must_use]
    pub fn open(&self) -> usize {
        self.seats.lock().taken
    }

    /// How many were turned away because all others had requests.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// How many were closed, being without a request, because another one came.
    #[must_use]
    pub fn displaced(&self) -> u64 {
        self.displaced.load(Ordering::Relaxed)
    }

    /// How many were closed because they were without a request, or didn't read, for too long.
    #[must_use]
    pub fn overdue(&self) -> u64 {
        self.overdue.load(Ordering::Relaxed)
    }

    /// A seat for a new connection; none if all are taken by connections that have requests.
    pub(super) fn enter(self: &Arc<Self>) -> Option<Seat> {
        let mut seats = self.seats.lock();
        let mut waker = None;
        if seats.taken >= self.limits.max {
            match self.displace(&mut seats) {
                Some(displaced) => waker = displaced,
                None => {
                    self.refused.fetch_add(1, Ordering::Relaxed);
                    return None;
                }
            }
        }
        seats.taken += 1;
        let place = Place(Arc::new(Inner {
            connections: self.clone(),
            state: Mutex::new(State {
                requests: 0,
                begun: 0,
                idle: None,
                since: Instant::now(),
                displaced: false,
                gone: false,
                waker: None,
            }),
        }));
        place.become_idle(&mut seats, &mut place.0.state.lock());
        drop(seats);
        wake(waker);
        Some(Seat(place))
    }

    /// Closes the connection that has been without a request for longest. Whether there was one.
    pub(super) fn make_room(&self) -> bool {
        let displaced = self.displace(&mut self.seats.lock());
        let found = displaced.is_some();
        wake(displaced.flatten());
        found
    }

    /// Takes the seat of the connection that has been without a request for longest; what wakes it. None if there is none.
    #[allow(
        clippy::option_option,
        reason = "no connection, or one that nobody waits on"
    )]
    fn displace(&self, seats: &mut Seats) -> Option<Option<Waker>> {
        let (_, place) = seats.idle.pop_first()?;
        let mut state = place.0.state.lock();
        state.idle = None;
        state.displaced = true;
        seats.taken -= 1;
        self.displaced.fetch_add(1, Ordering::Relaxed);
        Some(state.waker.take())
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

impl Place {
    /// Counts a request, until the result is dropped.
    #[must_use]
    pub fn request(&self) -> RequestGuard {
        let mut seats = self.0.connections.seats.lock();
        let mut state = self.0.state.lock();
        if state.requests == 0 {
            state.begun += 1;
            if let Some(key) = state.idle.take() {
                seats.idle.remove(&key);
            }
        }
        state.requests += 1;
        RequestGuard(self.clone())
    }

    fn become_idle(&self, seats: &mut Seats, state: &mut State) {
        state.since = Instant::now();
        let key = seats.next;
        seats.next += 1;
        state.idle = Some(key);
        seats.idle.insert(key, self.clone());
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        let place = &self.0;
        let mut seats = place.0.connections.seats.lock();
        let mut state = place.0.state.lock();
        state.requests -= 1;
        if state.requests > 0 || state.gone || state.displaced {
            return;
        }
        place.become_idle(&mut seats, &mut state);
        // It has to look at its time anew.
        let waker = state.waker.take();
        drop((state, seats));
        wake(waker);
    }
}

impl Seat {
    /// Where requests are counted.
    pub fn place(&self) -> &Place {
        &self.0
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut seats = self.0.0.connections.seats.lock();
        let mut state = self.0.0.state.lock();
        state.gone = true;
        state.waker = None;
        if let Some(key) = state.idle.take() {
            seats.idle.remove(&key);
        }
        if !state.displaced {
            seats.taken -= 1;
        }
    }
}

/// A client's bytes, as long as it keeps to the limits; then reading and writing fail, which ends the connection.
#[derive(Debug)]
pub(super) struct Watched<S> {
    stream: S,
    seat: Seat,
    /// When the head of a request began to come, and how many requests there had been by then.
    head: Option<(Instant, u64)>,
    /// Since when the client has been reading nothing.
    stalled: Option<Instant>,
    written: Instant,
    reading: Pin<Box<Sleep>>,
    writing: Option<Pin<Box<Sleep>>>,
}

/// What a connection without anything to read is waiting for.
enum Waits {
    Request(Instant),
    Answer,
}

impl<S> Watched<S> {
    /// Needs a runtime's timer.
    pub fn new(stream: S, seat: Seat) -> Self {
        let now = Instant::now();
        Self {
            stream,
            head: None,
            stalled: None,
            written: now,
            reading: Box::pin(sleep_until(now + seat.0.0.connections.limits.head)),
            writing: None,
            seat,
        }
    }

    /// Where requests are counted.
    pub fn place(&self) -> &Place {
        self.seat.place()
    }

    /// The stream below.
    pub fn stream(&self) -> &S {
        &self.stream
    }

    fn connections(&self) -> &Connections {
        &self.seat.0.0.connections
    }

    fn note_read(&mut self) {
        if !self.connections().limits.only_heads {
            return;
        }
        let state = self.seat.0.0.state.lock();
        let begun = state.begun;
        if state.requests == 0 && self.head.is_none_or(|(_, of)| of != begun) {
            self.head = Some((Instant::now(), begun));
        }
    }

    /// Until when the next thing has to come.
    fn deadline(&self, context: &Context<'_>) -> io::Result<Waits> {
        let limits = &self.connections().limits;
        let mut state = self.seat.0.0.state.lock();
        if state.displaced {
            return Err(io::Error::other("another connection has got the place"));
        }
        let waker = context.waker();
        if state.waker.as_ref().is_none_or(|of| !of.will_wake(waker)) {
            state.waker = Some(waker.clone());
        }
        if state.requests > 0 {
            return Ok(Waits::Answer);
        }
        Ok(Waits::Request(match self.head {
            Some((since, begun)) if begun == state.begun => since + limits.head,
            _ if state.begun == 0 => state.since + limits.head,
            _ => state.since.max(self.written) + limits.idle,
        }))
    }

    /// Waits for the end of the time in which something has to come.
    fn poll_silence(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        loop {
            let deadline = match self.deadline(context) {
                Ok(Waits::Request(deadline)) => deadline,
                Ok(Waits::Answer) => return Poll::Pending,
                Err(error) => return Poll::Ready(error),
            };
            if Instant::now() >= deadline {
                return Poll::Ready(self.is_overdue("no request came in time"));
            }
            if self.reading.deadline() != deadline {
                self.reading.as_mut().reset(deadline);
            }
            ready!(self.reading.as_mut().poll(context));
        }
    }

    /// Waits for the end of the time in which something has to be read.
    fn poll_stall(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        let idle = self.connections().limits.idle;
        let deadline = *self.stalled.get_or_insert_with(Instant::now) + idle;
        let timer = self
            .writing
            .get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if timer.deadline() != deadline {
            timer.as_mut().reset(deadline);
        }
        ready!(timer.as_mut().poll(context));
        Poll::Ready(self.is_overdue("the client reads nothing"))
    }

    fn is_overdue(&self, why: &'static str) -> io::Error {
        self.connections().overdue.fetch_add(1, Ordering::Relaxed);
        debug!(why, "a connection is closed");
        io::Error::new(io::ErrorKind::TimedOut, why)
    }

    /// What became of an attempt to write.
    fn after_write<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_pending() {
            return self.poll_stall(context).map(Err);
        }
        self.stalled = None;
        self.written = Instant::now();
        written
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        match Pin::new(&mut this.stream).poll_read(context, buffer) {
            Poll::Ready(Ok(())) if buffer.filled().len() > before => {
                this.note_read();
                // Bytes that keep coming don't stop the time of a head that doesn't end.
                match this.poll_silence(context) {
                    Poll::Ready(error) => Poll::Ready(Err(error)),
                    Poll::Pending => Poll::Ready(Ok(())),
                }
            }
            Poll::Pending => this.poll_silence(context).map(Err),
            ready => ready,
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(context, bytes);
        this.after_write(context, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write_vectored(context, buffers);
        this.after_write(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}

/// Adds the metrics of the connections to each server, by its name.
pub(super) fn register_metrics(
    registry: &mut Registry,
    servers: Vec<(&'static str, Arc<Connections>)>,
) {
    registry.register_collector(Box::new(Metrics(servers)));
}

#[derive(Debug)]
struct Metrics(Vec<(&'static str, Arc<Connections>)>);

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    server: &'static str,
}

type Read = fn(&Connections) -> u64;

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut open = encoder.encode_descriptor(
            "proxycfg_connections",
            "Connections of clients",
            None,
            MetricType::Gauge,
        )?;
        for (server, connections) in &self.0 {
            let gauge = ConstGauge::new(i64::try_from(connections.open()).unwrap_or(i64::MAX));
            gauge.encode(open.encode_family(&Labels { server })?)?;
        }
        let counters: [(&str, &str, Read); 3] = [
            (
                "proxycfg_connections_refused",
                "Connections that were turned away because all others had requests",
                Connections::refused,
            ),
            (
                "proxycfg_connections_displaced",
                "Connections without a request that were closed because others came",
                Connections::displaced,
            ),
            (
                "proxycfg_connections_overdue",
                "Connections that were closed because no request came, or nothing was read, for too long",
                Connections::overdue,
            ),
        ];
        for (name, help, read) in counters {
            let mut counter = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (server, connections) in &self.0 {
                let count = ConstCounter::new(read(connections));
                count.encode(counter.encode_family(&Labels { server })?)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
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
}
