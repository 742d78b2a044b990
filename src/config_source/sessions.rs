//! The session limiter: spreads streams over several servers (engine.md 5.7).
//!
//! A server may hold a fair share of all streams plus a margin. Beyond that it refuses new ones, and when the share
//! shrinks it ends some that it has, one by one, so that their clients try another server. It starts without a limit, and
//! stays so on a single server (decision E10); local proxies never count.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use parking_lot::Mutex;
use uuid::Uuid;

use super::watch::Signal;

/// This server has as many sessions as it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("active session limit reached")]
pub struct CapacityReached;

/// Counts sessions and says when there are too many. A handle is cheap to clone.
///
/// Draining is done by a [`SessionControl`](super::SessionControl); without one nothing is drained.
#[derive(Clone)]
pub struct SessionLimiter {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    wake: Sender<()>,
    woken: Receiver<()>,
}

struct State {
    /// 0 means no limit.
    max: usize,
    /// Sessions that are drained each second; none means at once.
    drain_rate: Option<f64>,
    last_drain: Option<Duration>,
    sessions: BTreeMap<u64, Signal>,
    next_id: u64,
    random: u64,
}

impl Default for SessionLimiter {
    fn default() -> Self {
        Self::new()
    }
}

impl SessionLimiter {
    /// A limiter without a limit.
    #[must_use]
    pub fn new() -> Self {
        let (wake, woken) = bounded(1);
        // The upper half of a version 4 UUID is random but for four bits.
        let (seed, _) = Uuid::new_v4().as_u64_pair();
        Self {
            shared: Arc::new(Shared {
                state: Mutex::new(State {
                    max: 0,
                    drain_rate: None,
                    last_drain: None,
                    sessions: BTreeMap::new(),
                    next_id: 0,
                    random: seed,
                }),
                wake,
                woken,
            }),
        }
    }

    /// Begins a session.
    ///
    /// # Errors
    /// There are as many as there may be.
    pub fn begin(&self) -> Result<Session, CapacityReached> {
        let mut state = self.shared.state.lock();
        if state.max != 0 && state.sessions.len() >= state.max {
            return Err(CapacityReached);
        }
        state.next_id += 1;
        let id = state.next_id;
        let terminated = Signal::new();
        state.sessions.insert(id, terminated.clone());
        Ok(Session {
            limiter: self.clone(),
            id,
            terminated,
        })
    }

    /// Sets the most sessions; 0 means no limit. If there are more now, some, chosen at random, are drained.
    pub fn set_max_sessions(&self, max: usize) {
        self.shared.state.lock().max = max;
        self.wake();
    }

    /// The most sessions; 0 means no limit.
    #[must_use]
    pub fn max_sessions(&self) -> usize {
        self.shared.state.lock().max
    }

    /// Sets how many sessions are drained each second; `None`, or nothing above 0, means all at once.
    pub fn set_drain_rate(&self, per_second: Option<f64>) {
        self.shared.state.lock().drain_rate = per_second.filter(|rate| *rate > 0.0);
        self.wake();
    }

    /// How many sessions there are. A drained one doesn't count, even if its holder hasn't reacted yet.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.shared.state.lock().sessions.len()
    }

    /// Drains what may be drained at this monotonic time. When to come again, if there is more.
    pub(super) fn drain(&self, now: Duration) -> Option<Duration> {
        loop {
            let terminated = {
                let mut state = self.shared.state.lock();
                if state.max == 0 || state.sessions.len() <= state.max {
                    return None;
                }
                if let (Some(rate), Some(last)) = (state.drain_rate, state.last_drain) {
                    let due = last.saturating_add(spacing(rate));
                    if due > now {
                        return Some(due);
                    }
                }
                state.last_drain = Some(now);
                state.take_any()
            };
            // Given outside of the lock: wakers run.
            match terminated {
                Some(terminated) => terminated.give(),
                None => return None,
            }
        }
    }

    /// A channel that holds a token when the limit or the rate has changed.
    pub(super) fn woken(&self) -> &Receiver<()> {
        &self.shared.woken
    }

    fn wake(&self) {
        // Full means that a token lies there already.
        let _ = self.shared.wake.try_send(());
    }
}

impl fmt::Debug for SessionLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.state.lock();
        f.debug_struct("SessionLimiter")
            .field("max", &state.max)
            .field("in_flight", &state.sessions.len())
            .finish_non_exhaustive()
    }
}

impl State {
    /// Takes out a session at random.
    fn take_any(&mut self) -> Option<Signal> {
        let count = u64::try_from(self.sessions.len()).ok().filter(|n| *n > 0)?;
        // SplitMix64.
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let nth = usize::try_from((mixed ^ (mixed >> 31)) % count).ok()?;
        let id = *self.sessions.keys().nth(nth)?;
        self.sessions.remove(&id)
    }
}

fn spacing(rate: f64) -> Duration {
    Duration::try_from_secs_f64(1.0 / rate).unwrap_or(Duration::MAX)
}

/// A stream's session. Dropping it ends it; a drained one has ended already, so no place is given back twice.
pub struct Session {
    limiter: SessionLimiter,
    id: u64,
    terminated: Signal,
}

impl Session {
    /// Given when the limiter ends the session.
    #[must_use]
    pub fn terminated(&self) -> &Signal {
        &self.terminated
    }

    /// Ends the session. Again is fine.
    pub fn end(&self) {
        self.limiter.shared.state.lock().sessions.remove(&self.id);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("terminated", &self.terminated)
            .finish_non_exhaustive()
    }
}

/// The most sessions of one of several servers that serve a number of proxies: its share and a tenth more. `None` while
/// either is unknown.
#[must_use]
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counts are far below 2^52, and the product is not negative"
)]
pub fn max_sessions(proxies: usize, servers: usize) -> Option<usize> {
    if proxies == 0 || servers == 0 {
        return None;
    }
    // In this order, so that the result is that of the public tables, which has the rounding of 1.1 in it.
    Some((proxies as f64 / servers as f64 * 1.1).ceil() as usize)
}

/// How many sessions to drain each second, by the number of proxies: slowly, since each costs a reconnect.
#[must_use]
pub fn drain_rate(proxies: usize) -> u32 {
    let rate = (proxies.saturating_sub(256) / 256).clamp(1, 10);
    u32::try_from(rate).unwrap_or(10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_x2_tables() {
        for (proxies, servers, max) in [
            (100, 2, Some(56)),
            (100, 1, Some(111)),
            (99, 1, Some(109)),
            (30, 3, Some(11)),
            (100, 0, None),
            (0, 5, None),
        ] {
            assert_eq!(max_sessions(proxies, servers), max, "{proxies}, {servers}");
        }
        for (proxies, rate) in [
            (0, 1),
            (1, 1),
            (512, 1),
            (768, 2),
            (1024, 3),
            (2816, 10),
            (1_000_000_000, 10),
        ] {
            assert_eq!(drain_rate(proxies), rate, "{proxies}");
        }
    }

    #[test]
    fn session_x1_limit() {
        let limiter = SessionLimiter::new();
        let sessions: Vec<Session> = (0..10).map(|_| limiter.begin().unwrap()).collect();
        limiter.set_max_sessions(5);
        assert_eq!(limiter.drain(Duration::ZERO), None);
        let drained = sessions
            .iter()
            .filter(|s| s.terminated().is_given())
            .count();
        assert_eq!(drained, 5);
        assert_eq!(limiter.begin().unwrap_err(), CapacityReached);
        limiter.set_max_sessions(6);
        let sixth = limiter.begin().unwrap();
        assert!(limiter.begin().is_err());
        sixth.end();
        let again = limiter.begin().unwrap();
        // A second end of the first is no end of another's.
        sixth.end();
        assert!(limiter.begin().is_err());
        drop(again);
        // The drained ones have given their places back when they were drained, and only then.
        drop(sessions);
        assert_eq!(limiter.in_flight(), 0);
        assert_eq!(CapacityReached.to_string(), "active session limit reached");
    }

    #[test]
    fn session_x3_drain_rate() {
        let limiter = SessionLimiter::new();
        let sessions: Vec<Session> = (0..5).map(|_| limiter.begin().unwrap()).collect();
        limiter.set_drain_rate(Some(1.0));
        limiter.set_max_sessions(2);
        let start = Duration::from_secs(100);
        let mut at = vec![start];
        while let Some(next) = limiter.drain(*at.last().unwrap()) {
            at.push(next);
        }
        let second = Duration::from_secs(1);
        assert_eq!(at, [start, start + second, start + second * 2]);
        assert_eq!(limiter.in_flight(), 2);
        drop(sessions);
    }

    #[test]
    fn session_x4_sessions_that_end_during_the_wait() {
        let limiter = SessionLimiter::new();
        let sessions: Vec<Session> = (0..5).map(|_| limiter.begin().unwrap()).collect();
        limiter.set_drain_rate(Some(1.0));
        limiter.set_max_sessions(2);
        let due = limiter.drain(Duration::ZERO).unwrap();
        drop(sessions);
        assert_eq!(limiter.drain(due), None);
        assert_eq!(limiter.in_flight(), 0);
    }

    #[test]
    fn session_raising_the_limit_stops_draining() {
        let limiter = SessionLimiter::new();
        let sessions: Vec<Session> = (0..5).map(|_| limiter.begin().unwrap()).collect();
        limiter.set_drain_rate(Some(1.0));
        limiter.set_max_sessions(2);
        assert!(limiter.drain(Duration::ZERO).is_some());
        limiter.set_max_sessions(0);
        assert_eq!(limiter.drain(Duration::from_secs(9)), None);
        assert_eq!(limiter.in_flight(), 4);
        drop(sessions);
    }
}
