//! From config sources to xDS streams: each stream watches its proxy, and every new snapshot is turned into resources on a
//! small pool of threads, so that neither the engine's workers nor the network's runtime do that work.
//!
//! What was made for a stream is kept for a while after its end (decision E8): an Envoy that comes back soon gets it without
//! its being made once more, and after an interruption all come back at once.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, select, unbounded};
use parking_lot::Mutex;
use smol_str::SmolStr;
use tokio::sync::watch;

use crate::clock::Clock;
use crate::config_source::{ConfigSource, SourceWatch, StreamEnd, WatchError};
use crate::model::ProxyId;
use crate::server::access::{Access, Authorizer, UnknownToken};
use crate::server::ads::{
    AuthError, Caller, ClientNode, EndReason, OpenError, ResourceProvider, ResourceWatch,
    StreamUpdate,
};
use crate::server::propagation::{Moment, Propagation, Stage};
use crate::xds::{Generated, Generator, Problem, ResourceSet};

/// How long resources are kept after the end of their stream.
const GRACE: Duration = Duration::from_secs(30);

/// Gives each xDS stream the resources of its proxy.
pub struct MeshProvider {
    source: Arc<dyn ConfigSource>,
    node: SmolStr,
    authorizer: Arc<dyn Authorizer>,
    shared: Arc<Shared>,
}

/// What streams and pool threads share.
struct Shared {
    generator: Arc<Generator>,
    queue: Sender<Arc<Stream>>,
    /// What the last generation of each proxy had to work around.
    problems: Mutex<BTreeMap<ProxyId, Vec<Problem>>>,
    clock: Arc<dyn Clock>,
    /// Resources of streams that have ended.
    kept: Mutex<Kept>,
    /// Measures how long changes take, if that is wanted.
    times: OnceLock<Arc<Propagation>>,
}

/// What was made for streams that have ended, and since when it is kept.
#[derive(Default)]
struct Kept {
    of: HashMap<ProxyId, (Duration, Generated)>,
    order: VecDeque<(Duration, ProxyId)>,
}

impl Kept {
    fn keep(&mut self, now: Duration, id: ProxyId, generated: Generated) {
        self.order.push_back((now, id.clone()));
        self.of.insert(id, (now, generated));
    }

    fn take(&mut self, id: &ProxyId) -> Option<Generated> {
        self.of.remove(id).map(|(_, generated)| generated)
    }

    /// Takes out what has been kept long enough.
    fn expired(&mut self, now: Duration) -> Vec<Generated> {
        let mut expired = Vec::new();
        while let Some((since, id)) = self.order.pop_front_if(|(since, _)| *since + GRACE <= now) {
            // It may have been taken, and another kept since.
            if self.of.get(&id).is_some_and(|(kept, _)| *kept == since) {
                expired.extend(self.take(&id));
            }
        }
        expired
    }
}

/// One stream's watch and what was made of it.
struct Stream {
    id: ProxyId,
    work: Mutex<Work>,
    updates: watch::Sender<StreamUpdate>,
    /// The service that the proxy stands for, once there is a snapshot.
    service: Mutex<SmolStr>,
    /// When the newest snapshot came, as told by the clock of [`Propagation`].
    woken: AtomicU64,
    /// A token is in the queue.
    queued: AtomicBool,
    /// The stream has ended: the watch is to be dropped, by a pool thread, so that ending never waits.
    gone: AtomicBool,
}

#[derive(Default)]
struct Work {
    watch: Option<SourceWatch>,
    generated: Option<Generated>,
}

impl MeshProvider {
    /// A provider over a config source, for streams that name no node: `node`; `authorizer` decides who may have which
    /// resources. Starts `threads` threads that make resources;
    /// they end with the last stream and the provider. `clock` says how long resources are kept for those who come back.
    ///
    /// # Errors
    /// The operating system can't start a thread.
    pub fn start(
        source: Arc<dyn ConfigSource>,
        node: impl Into<SmolStr>,
        authorizer: Arc<dyn Authorizer>,
        generator: Arc<Generator>,
        threads: usize,
        clock: Arc<dyn Clock>,
    ) -> std::io::Result<Self> {
        let (queue, work) = unbounded();
        let shared = Arc::new(Shared {
            generator,
            queue,
            problems: Mutex::default(),
            clock,
            kept: Mutex::default(),
            times: OnceLock::new(),
        });
        for n in 0..threads.max(1) {
            let work: Receiver<Arc<Stream>> = work.clone();
            let clock = shared.clock.clone();
            let shared = Arc::downgrade(&shared);
            std::thread::Builder::new()
                .name(format!("proxycfg-xds-{n}"))
                .spawn(move || {
                    let mut alarm = clock.alarm(GRACE);
                    loop {
                        // The queue ends when the provider and all streams are gone.
                        let stream = select! {
                            recv(work) -> stream => match stream {
                                Ok(stream) => Some(stream),
                                Err(_) => return,
                            },
                            recv(alarm) -> _ => None,
                        };
                        let Some(shared) = shared.upgrade() else {
                            return;
                        };
                        match stream {
                            Some(stream) => stream.refresh(&shared),
                            None => {
                                shared.let_go();
                                alarm = clock.alarm(GRACE);
                            }
                        }
                    }
                })?;
        }
        Ok(Self {
            source,
            node: node.into(),
            authorizer,
            shared,
        })
    }

    /// Has measured how long changes take to become snapshots and resources. Once only.
    pub fn measure(&self, times: Arc<Propagation>) {
        // Whoever was first stays.
        let _ = self.shared.times.set(times);
    }

    /// What the last generation of a proxy's resources had to work around.
    #[must_use]
    pub fn problems(&self, id: &ProxyId) -> Vec<Problem> {
        self.shared
            .problems
            .lock()
            .get(id)
            .cloned()
            .unwrap_or_default()
    }
}

impl fmt::Debug for MeshProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MeshProvider")
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

impl ResourceProvider for MeshProvider {
    fn resolve_token(&self, caller: &Caller) -> Result<(), AuthError> {
        self.authorizer
            .grants(&caller.token)
            .map(drop)
            .map_err(unknown)
    }

    fn open(
        &self,
        node: &ClientNode,
        caller: &Caller,
    ) -> Result<Box<dyn ResourceWatch>, OpenError> {
        let on = node.node_name.clone().unwrap_or_else(|| self.node.clone());
        let id = ProxyId::new(node.id.clone(), on).with_token(caller.token.clone());
        let mut watch = self.source.watch(&id).map_err(|error| match error {
            WatchError::Capacity(_) => OpenError::Capacity,
            other => OpenError::Failed(other.to_string()),
        })?;
        let id = watch.proxy_id().clone();
        let stream = Arc::new(Stream {
            id,
            work: Mutex::default(),
            updates: watch::Sender::new(StreamUpdate::Waiting),
            service: Mutex::default(),
            woken: AtomicU64::new(0),
            queued: AtomicBool::new(false),
            gone: AtomicBool::new(false),
        });
        let (weak, shared) = (Arc::downgrade(&stream), Arc::downgrade(&self.shared));
        watch.set_waker(move || {
            if let (Some(stream), Some(shared)) = (weak.upgrade(), shared.upgrade()) {
                if let Some(times) = shared.times.get() {
                    stream.woken.store(times.now().0, Ordering::Relaxed);
                }
                shared.enqueue(&stream);
            }
        });
        stream.work.lock().watch = Some(watch);
        self.shared.enqueue(&stream);
        Ok(Box::new(MeshWatch {
            stream,
            shared: self.shared.clone(),
            authorizer: self.authorizer.clone(),
            token: caller.token.clone(),
        }))
    }
}

impl Shared {
    fn enqueue(&self, stream: &Arc<Stream>) {
        if !stream.queued.swap(true, Ordering::SeqCst) {
            // Holds at most one token of a stream; the receivers live as long as the pool.
            let _ = self.queue.send(stream.clone());
        }
    }

    /// Drops what has been kept long enough.
    fn let_go(&self) {
        let expired = self.kept.lock().expired(self.clock.monotonic());
        drop(expired);
    }

    /// Remembers what is wrong with a proxy's resources, and says what is new about it once.
    fn note(&self, id: &ProxyId, problems: &[Problem]) {
        let mut all = self.problems.lock();
        let known = all.get(id).map_or(&[][..], Vec::as_slice);
        for problem in problems.iter().filter(|problem| !known.contains(problem)) {
            let (resource, message) = (&problem.resource, &problem.message);
            tracing::warn!(proxy = %id, %resource, %message, "a resource can't be made as configured");
        }
        if problems.is_empty() {
            all.remove(id);
        } else {
            all.insert(id.clone(), problems.to_vec());
        }
    }
}

impl Stream {
    /// Makes resources of the newest snapshot, if it is new; drops the watch of a stream that has ended.
    fn refresh(&self, shared: &Shared) {
        // Cleared first: whatever comes from now on puts a new token.
        self.queued.store(false, Ordering::SeqCst);
        let mut work = self.work.lock();
        if self.gone.load(Ordering::SeqCst) {
            let mut ended = std::mem::take(&mut *work);
            drop(work);
            if let Some(generated) = ended.generated.take() {
                let now = shared.clock.monotonic();
                shared.kept.lock().keep(now, self.id.clone(), generated);
            }
            drop(ended);
            shared.problems.lock().remove(&self.id);
            shared.let_go();
            return;
        }
        let Some(watch) = &mut work.watch else { return };
        match watch.try_next() {
            Ok(None) => {}
            Ok(Some(snapshot)) => {
                // One that panics must not take the thread along, which is every stream's: this one keeps what it has.
                let kept = match &work.generated {
                    None => shared.kept.lock().take(&self.id),
                    Some(_) => None,
                };
                let generate = || {
                    let previous = work.generated.as_ref().or(kept.as_ref());
                    shared.generator.resources(&snapshot, previous)
                };
                let Ok(generated) = catch_unwind(AssertUnwindSafe(generate)) else {
                    tracing::error!(
                        proxy = %self.id,
                        "making the proxy's resources panicked; its last ones stay until its next snapshot"
                    );
                    return;
                };
                let known = work.generated.as_ref().map(|known| &known.problems);
                if !generated.problems.is_empty() || known.is_some_and(|known| !known.is_empty()) {
                    shared.note(&self.id, &generated.problems);
                }
                let before = work.generated.as_ref().map(|before| before.set.index());
                self.measure(shared, before, generated.set.index());
                // Before the resources can be seen, so that they are authorized for what they are of.
                let mut service = self.service.lock();
                if *service != snapshot.authorized_service() {
                    *service = SmolStr::new(snapshot.authorized_service());
                }
                drop(service);
                self.updates
                    .send_replace(StreamUpdate::Resources(generated.set.clone()));
                work.generated = Some(generated);
            }
            Err(end) => {
                self.updates.send_replace(StreamUpdate::Ended(reason(end)));
            }
        }
    }

    /// Takes note of how long a commit took to get here. The first snapshot of a stream is there because of the stream.
    fn measure(&self, shared: &Shared, before: Option<u64>, index: u64) {
        let Some(times) = shared.times.get() else {
            return;
        };
        if before.is_none_or(|before| before >= index) {
            return;
        }
        if let Some(commit) = times.commit(index) {
            let woken = Moment(self.woken.load(Ordering::Relaxed));
            times.reached(Stage::Snapshot, commit, woken);
            times.reached(Stage::Resources, commit, times.now());
        }
    }
}

fn reason(end: StreamEnd) -> EndReason {
    match end {
        StreamEnd::SessionTerminated => EndReason::SessionTerminated,
        StreamEnd::SourceTerminated => EndReason::SourceFailed(end.to_string()),
        StreamEnd::WatchEnded => EndReason::Terminated,
    }
}

/// The resources of one stream's proxy.
struct MeshWatch {
    stream: Arc<Stream>,
    shared: Arc<Shared>,
    authorizer: Arc<dyn Authorizer>,
    token: SmolStr,
}

fn unknown(error: UnknownToken) -> AuthError {
    AuthError::Unauthenticated(error.to_string())
}

impl fmt::Debug for MeshWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MeshWatch")
            .field("id", &self.stream.id)
            .finish_non_exhaustive()
    }
}

impl ResourceWatch for MeshWatch {
    fn updates(&self) -> watch::Receiver<StreamUpdate> {
        self.stream.updates.subscribe()
    }

    fn authorize(&self, _resources: &ResourceSet) -> Result<(), AuthError> {
        let grants = self.authorizer.grants(&self.token).map_err(unknown)?;
        let service = self.stream.service.lock().clone();
        grants
            .require(Access::Watch(&service))
            .map_err(|denied| AuthError::PermissionDenied(denied.to_string()))
    }
}

impl Drop for MeshWatch {
    fn drop(&mut self) {
        self.stream.gone.store(true, Ordering::SeqCst);
        self.shared.enqueue(&self.stream);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xds::ResourceSet;

    #[test]
    fn e8_resources_are_kept_for_a_while_and_given_back_once() {
        let generated = |index| Generated::of(ResourceSet::builder(index).build());
        let id = |name: &str| ProxyId::new(name, "n1");
        let at = Duration::from_secs;
        let mut kept = Kept::default();
        kept.keep(at(0), id("a"), generated(1));
        kept.keep(at(1), id("b"), generated(2));
        assert!(kept.expired(at(29)).is_empty());
        assert_eq!(kept.take(&id("a")).map(|kept| kept.set.index()), Some(1));
        assert!(kept.take(&id("a")).is_none());
        kept.keep(at(20), id("a"), generated(3));
        // What is kept anew has its own time.
        assert!(kept.expired(at(30)).is_empty());
        assert_eq!(kept.expired(at(31)).len(), 1);
        assert!(kept.take(&id("b")).is_none());
        assert_eq!(kept.expired(at(50)).len(), 1);
        assert!(kept.of.is_empty() && kept.order.is_empty());
    }
}
