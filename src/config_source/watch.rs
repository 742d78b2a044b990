//! What a config source hands to a stream: snapshots, and the reasons to end the stream (engine.md 5.1).

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use crossbeam_channel::bounded;

use crate::engine::{RegisterError, SnapshotRef, Watch, WatchEnd};
use crate::model::{ProxyId, ServiceKind};
use crate::sync::{Latest, Read, WakerId};

use super::catalog::Lease;
use super::sessions::{CapacityReached, Session};

/// Hands out the snapshots of proxies to the streams of a server.
pub trait ConfigSource: Send + Sync + 'static {
    /// Watches a proxy for a stream. `id.token` is the token that the stream presented. Never waits.
    ///
    /// A proxy that isn't registered is no error: the watch is silent until it is.
    ///
    /// # Errors
    /// Too many streams, or not something that can be served.
    fn watch(&self, id: &ProxyId) -> Result<SourceWatch, WatchError>;
}

/// Why a proxy can't be watched.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WatchError {
    /// This server has as many sessions as it may.
    #[error(transparent)]
    Capacity(#[from] CapacityReached),
    /// The service is there, but it isn't a proxy.
    #[error("{id}: service must be a sidecar proxy or gateway; its kind is {:?}", .kind.as_str())]
    NotAProxy {
        /// Which service.
        id: ProxyId,
        /// Its kind.
        kind: ServiceKind,
    },
    /// The engine refuses it.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// The source has been shut down.
    #[error("the config source has been shut down")]
    ShutDown,
}

/// Why a stream ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StreamEnd {
    /// The session limiter has ended the session: the client is to try another server.
    #[error("the session was drained: this server has too many streams, please try another")]
    SessionTerminated,
    /// The source no longer follows the proxy, because of an error: the client is to connect again.
    #[error("the config source has stopped following the proxy; connect again")]
    SourceTerminated,
    /// The engine has ended the watch: the proxy's token is no longer valid, or the engine was closed.
    #[error("the watch has ended; connect again")]
    WatchEnded,
}

/// A signal that is given once, for ever, and wakes whoever waits for it. Cheap to clone.
#[derive(Clone, Default)]
pub struct Signal(Arc<Latest<()>>);

impl Signal {
    /// A signal that isn't given yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether it was given.
    #[must_use]
    pub fn is_given(&self) -> bool {
        self.0.is_ended()
    }

    /// Gives it. Again is fine.
    pub fn give(&self) {
        self.0.end();
    }

    /// Waits for it; false at the deadline.
    #[must_use]
    pub fn wait(&self, deadline: Instant) -> bool {
        matches!(self.0.wait_after(0, Some(deadline)), Read::Ended)
    }

    /// Has a function called once it is given, unless that is so already. It must only signal, and not block.
    pub(super) fn add_waker(&self, waker: impl Fn() + Send + Sync + 'static) -> WakerId {
        self.0.add_waker(waker)
    }

    pub(super) fn remove_waker(&self, id: WakerId) {
        self.0.remove_waker(id);
    }
}

impl fmt::Debug for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Signal").field(&self.is_given()).finish()
    }
}

/// A stream's watch on a proxy. Dropping it cancels; that never waits.
///
/// Read it with [`SourceWatch::try_next`] whenever the waker was called, or wait with [`SourceWatch::next`].
pub struct SourceWatch {
    // The order of the fields is that of engine.md 5.2: the watch goes, then the registration, then the session.
    watch: Watch,
    wakers: Vec<(Signal, WakerId)>,
    lease: Option<Lease>,
    session: Option<Session>,
}

impl SourceWatch {
    pub(super) fn new(watch: Watch, lease: Option<Lease>, session: Option<Session>) -> Self {
        Self {
            watch,
            wakers: Vec::new(),
            lease,
            session,
        }
    }

    /// The proxy as it is watched in the engine. A local proxy has no token there.
    #[must_use]
    pub fn proxy_id(&self) -> &ProxyId {
        self.watch.proxy_id()
    }

    /// The newest snapshot, if there is one that this watch hasn't given yet.
    ///
    /// # Errors
    /// The stream is to end.
    pub fn try_next(&mut self) -> Result<Option<SnapshotRef>, StreamEnd> {
        if self.session_terminated().is_some_and(Signal::is_given) {
            return Err(StreamEnd::SessionTerminated);
        }
        if self.source_terminated().is_some_and(Signal::is_given) {
            return Err(StreamEnd::SourceTerminated);
        }
        let next = self.watch.try_next();
        next.map_err(|WatchEnd::Ended| StreamEnd::WatchEnded)
    }

    /// Waits for a snapshot that this watch hasn't given yet. `None` at the deadline. Takes the place of the waker. Not for
    /// threads of the engine.
    ///
    /// # Errors
    /// The stream is to end.
    pub fn next(&mut self, deadline: Instant) -> Result<Option<SnapshotRef>, StreamEnd> {
        let (wake, woken) = bounded(1);
        self.set_waker(move || {
            // Full means that the token lies there already.
            let _ = wake.try_send(());
        });
        loop {
            if let Some(snapshot) = self.try_next()? {
                return Ok(Some(snapshot));
            }
            if woken.recv_deadline(deadline).is_err() {
                return self.try_next();
            }
        }
    }

    /// The newest snapshot, whether given before or not.
    #[must_use]
    pub fn current(&self) -> Option<SnapshotRef> {
        self.watch.current()
    }

    /// Given when the session limiter ends the session; `None` for local proxies, which need no session.
    #[must_use]
    pub fn session_terminated(&self) -> Option<&Signal> {
        self.session.as_ref().map(Session::terminated)
    }

    /// Given when the source has stopped following the proxy; `None` for local proxies.
    #[must_use]
    pub fn source_terminated(&self) -> Option<&Signal> {
        self.lease.as_ref().map(Lease::terminated)
    }

    /// Has a function called whenever [`SourceWatch::try_next`] may give something new, the end included. It is called on
    /// threads of the engine or the source: it must only signal, and not block. A second one replaces the first. What
    /// came before isn't signalled: look once after setting it.
    pub fn set_waker(&mut self, waker: impl Fn() + Send + Sync + 'static) {
        self.remove_wakers();
        let waker = Arc::new(waker);
        let signals = [self.session_terminated(), self.source_terminated()];
        let signals: Vec<Signal> = signals.into_iter().flatten().cloned().collect();
        for signal in signals {
            let waker = waker.clone();
            let id = signal.add_waker(move || waker());
            self.wakers.push((signal, id));
        }
        self.watch.set_waker(move || waker());
    }

    fn remove_wakers(&mut self) {
        for (signal, id) in self.wakers.drain(..) {
            signal.remove_waker(id);
        }
    }
}

impl Drop for SourceWatch {
    fn drop(&mut self) {
        self.remove_wakers();
    }
}

impl fmt::Debug for SourceWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceWatch")
            .field("watch", &self.watch)
            .field("session_terminated", &self.session_terminated())
            .field("source_terminated", &self.source_terminated())
            .finish_non_exhaustive()
    }
}
