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

mod metrics;
#[cfg(test)]
mod tests;
mod watched;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

pub(super) use metrics::register_metrics;
pub(super) use watched::Watched;

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
