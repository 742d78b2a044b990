//! The task of one stream: waits for whatever comes next, and lets [`AdsStream`] decide.
//!
//! A response is made only when there is room for it in the channel to the transport. A client that doesn't read thus
//! costs one response in that channel, one in the transport, and its subscriptions; updates meanwhile fold.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::Node;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tonic::{Code, Status, Streaming};
use tracing::{debug, warn};

use super::node::{Caller, ClientNode};
use super::protocol::Protocol;
use super::provider::{EndReason, ResourceWatch, StreamUpdate};
use super::rarely::Rarely;
use super::request::AdsRequest;
use super::service::Shared;
use super::status::{StreamEntry, StreamState};
use super::stream::{AdsResponse, AdsStream, RequestKind};
use super::wire::Wire;
use crate::server::propagation::{Moment, Stage};
use crate::server::rate::{Rate, TokenBucket};
use crate::xds::{ResourceSet, ResourceType};

/// Where responses go.
pub(super) type Responses = mpsc::Sender<Result<AdsResponse, Status>>;

/// One stream.
#[derive(Debug)]
pub(super) struct StreamTask {
    shared: Arc<Shared>,
    caller: Caller,
    entry: StreamEntry,
    session: Option<Session>,
    /// Whether something happened since the last send pass found nothing to send.
    unsent: bool,
    next_auth: Instant,
    opened: Instant,
    /// How many requests may come.
    requests: Option<TokenBucket>,
    /// The commit that led to the newest resources, until the client has got all of it.
    news: Option<Moment>,
    /// The commit that the response of each type that is on its way is about.
    on_its_way: [Option<Moment>; ResourceType::COUNT],
}

/// The stream's watch of its proxy.
#[derive(Debug)]
struct Session {
    watch: Box<dyn ResourceWatch>,
    updates: watch::Receiver<StreamUpdate>,
    resources: Option<ResourceSet>,
}

impl StreamTask {
    /// `None` if there are as many streams as there may be.
    pub(super) fn new(shared: Arc<Shared>, caller: Caller, protocol: Protocol) -> Option<Self> {
        let config = &shared.config;
        let state = StreamState {
            peer: caller.peer,
            node: None,
            stream: AdsStream::new(protocol, config.limits.clone()),
        };
        let entry = shared.streams.enter(state, config.max_streams)?;
        let opened = Instant::now();
        let rate = config.limits.max_request_rate;
        Some(Self {
            next_auth: opened + config.auth_check_interval,
            opened,
            requests: rate.map(|rate| TokenBucket::new(rate, Duration::ZERO)),
            shared,
            caller,
            entry,
            session: None,
            unsent: false,
            news: None,
            on_its_way: Default::default(),
        })
    }

    /// Runs the stream to its end. `Ok`: the client went away.
    pub(super) async fn run<W: Wire>(
        mut self,
        mut requests: Streaming<W::Request>,
        responses: Responses,
    ) -> Result<(), Status> {
        let mut stopping = self.shared.stopping.subscribe();
        let stopping = pin!(until_stopping(&mut stopping));
        let mut stopping = Rarely::new(stopping);
        let closed = pin!(responses.closed());
        let mut closed = Rarely::new(closed);
        // Rings at the earliest time that rights may have to be looked at, and is then set anew: rights are looked at so often
        // on a busy stream that setting it each time would cost more than looking.
        let alarm = pin!(sleep_until(self.next_auth));
        let mut alarm = Rarely::new(alarm);
        loop {
            if !self.send_due(&responses)? {
                return Ok(());
            }
            // Newer resources come before sending, so that what is sent is the newest; sending comes before reading, so
            // that a client that floods the stream with requests doesn't starve itself.
            tokio::select! {
                biased;
                () = &mut closed => return Ok(()),
                () = &mut stopping => {
                    return Err(Status::unavailable("this server is stopping: connect again"));
                }
                update = next_update(&mut self.session) => self.take_update(update)?,
                () = &mut alarm => {
                    let now = Instant::now();
                    if now >= self.next_auth {
                        // If there is nothing yet to have rights to, it is looked again when there is.
                        self.next_auth = now + self.shared.config.auth_check_interval;
                        self.authorize()?;
                    }
                    alarm.change().as_mut().reset(self.next_auth);
                }
                room = responses.reserve(), if self.unsent => {
                    let Ok(room) = room else { return Ok(()) };
                    if let Some(response) = self.next_response() {
                        room.send(Ok(response));
                    }
                }
                request = requests.message() => match request {
                    Ok(Some(request)) => self.take_request(W::read(&request)).await?,
                    Ok(None) => return Ok(()),
                    Err(status) => return broken_off(status),
                },
            }
        }
    }

    /// Sends what is due as long as there is room, newer resources first taken. `false` if the client is gone.
    fn send_due(&mut self, responses: &Responses) -> Result<bool, Status> {
        while self.unsent {
            if let Some(session) = &mut self.session
                && session.updates.has_changed().unwrap_or(false)
            {
                let update = session.updates.borrow_and_update().clone();
                self.take_update(update)?;
            }
            match responses.try_reserve() {
                Ok(room) => {
                    if let Some(response) = self.next_response() {
                        room.send(Ok(response));
                    }
                }
                Err(TrySendError::Full(())) => break,
                Err(TrySendError::Closed(())) => return Ok(false),
            }
        }
        Ok(true)
    }

    fn next_response(&mut self) -> Option<AdsResponse> {
        let mut state = self.entry.state().lock();
        let Some(response) = state.stream.next_response() else {
            if !state.stream.awaits_answer() {
                self.news = None;
            }
            self.unsent = false;
            return None;
        };
        drop(state);
        self.on_its_way[response.kind.slot()] = self.news;
        self.reached(Stage::Sent, self.news);
        let metrics = &self.shared.metrics;
        metrics.responses.of(response.kind).add_one();
        metrics
            .resources
            .of(response.kind)
            .add(response.resources.len());
        metrics
            .removals
            .of(response.kind)
            .add(response.removed.len());
        debug!(
            stream = self.entry.id(),
            kind = %response.kind,
            nonce = %response.nonce,
            resources = response.resources.len(),
            removed = response.removed.len(),
            "xDS response"
        );
        Some(response)
    }

    fn take_update(&mut self, update: StreamUpdate) -> Result<(), Status> {
        let resources = match update {
            StreamUpdate::Waiting => return Ok(()),
            StreamUpdate::Ended(reason) => {
                if reason == EndReason::SessionTerminated {
                    self.shared.metrics.streams_drained.add_one();
                }
                return Err(reason.into());
            }
            StreamUpdate::Resources(resources) => resources,
        };
        if let Some(session) = &mut self.session {
            let before = session.resources.replace(resources.clone());
            // The first resources are there because of the stream.
            if before.is_some_and(|before| before.index() < resources.index())
                && let Some(times) = &self.shared.times
            {
                self.news = times.commit(resources.index());
            }
        }
        self.authorize()?;
        self.shared.metrics.updates.add_one();
        self.entry.state().lock().stream.on_resources(resources);
        self.unsent = true;
        Ok(())
    }

    async fn take_request(&mut self, request: AdsRequest<'_>) -> Result<(), Status> {
        if let Some(requests) = &mut self.requests
            && requests.take(self.opened.elapsed()).is_err()
        {
            let limit = self.shared.config.limits.max_request_rate;
            return Err(Status::resource_exhausted(format!(
                "more than {} requests a second on this stream: connect again and ask for more names in one request",
                limit.map_or(0, Rate::per_second)
            )));
        }
        if self.session.is_none() {
            self.open(request.node).await?;
        }
        let kind = self.entry.state().lock().stream.on_request(request)?;
        self.note(&kind, request.type_url);
        self.authorize()?;
        self.unsent = true;
        Ok(())
    }

    /// Starts the watch, at the first request.
    async fn open(&mut self, node: Option<&Node>) -> Result<(), Status> {
        let node = ClientNode::read(node)?;
        node.check_version(&self.shared.config)?;
        self.entry.state().lock().node = Some(node.clone());
        let (provider, caller) = (self.shared.provider.clone(), self.caller.clone());
        // The semaphore is never closed.
        let turn = self.shared.opening.acquire().await;
        let opened = tokio::task::spawn_blocking(move || provider.open(&node, &caller)).await;
        drop(turn);
        let watch = opened.map_err(|error| {
            Status::internal(format!("failed to watch proxy service: {error}"))
        })??;
        let mut updates = watch.updates();
        updates.mark_changed();
        self.session = Some(Session {
            watch,
            updates,
            resources: None,
        });
        Ok(())
    }

    /// Looks at the caller's rights, once there are resources (xds.md 1.4).
    fn authorize(&mut self) -> Result<(), Status> {
        let Some(session) = &self.session else {
            return Ok(());
        };
        let Some(resources) = &session.resources else {
            return Ok(());
        };
        self.next_auth = Instant::now() + self.shared.config.auth_check_interval;
        Ok(session.watch.authorize(resources)?)
    }

    fn note(&self, kind: &RequestKind, type_url: &str) {
        let metrics = &self.shared.metrics;
        let stream = self.entry.id();
        let of = match kind {
            RequestKind::UnknownType => {
                metrics.requests_unknown_type.add_one();
                warn!(stream, type_url, "xDS request of a type that isn't served");
                return;
            }
            RequestKind::Subscription(of) => of,
            RequestKind::Ack(of) => {
                metrics.acks.of(*of).add_one();
                self.reached(Stage::Acknowledged, self.on_its_way[of.slot()]);
                of
            }
            RequestKind::Stale(of) => {
                metrics.stale_nonces.of(*of).add_one();
                debug!(stream, kind = %of, "xDS request with a nonce that is not on its way");
                of
            }
            RequestKind::Nack {
                kind: of,
                names,
                reason,
            } => {
                metrics.nacks.of(*of).add_one();
                let proxy = self.proxy();
                let count = names.len();
                let first = names.first().map_or("", |name| name.as_str());
                warn!(stream, %proxy, kind = %of, count, first, %reason, "client refused xDS resources");
                of
            }
        };
        metrics.requests.of(*of).add_one();
    }

    fn reached(&self, stage: Stage, commit: Option<Moment>) {
        if let (Some(times), Some(commit)) = (&self.shared.times, commit) {
            times.reached(stage, commit, times.now());
        }
    }

    fn proxy(&self) -> smol_str::SmolStr {
        let state = self.entry.state().lock();
        let node = state.node.as_ref();
        node.map(|node| node.id.clone()).unwrap_or_default()
    }
}

/// A request that can't be read ends the stream with an error; a client that goes away doesn't (xds.md 1.9).
fn broken_off(status: Status) -> Result<(), Status> {
    match status.code() {
        Code::InvalidArgument | Code::OutOfRange | Code::Internal | Code::Unimplemented => {
            Err(status)
        }
        _ => Ok(()),
    }
}

/// Waits until the service stops.
async fn until_stopping(stopping: &mut watch::Receiver<bool>) {
    // An error would mean that the service is gone, and this stream holds on to it.
    let _ = stopping.wait_for(|stopping| *stopping).await;
}

/// Waits for the next update; for ever while there is no watch.
async fn next_update(session: &mut Option<Session>) -> StreamUpdate {
    let Some(session) = session else {
        return std::future::pending().await;
    };
    match session.updates.changed().await {
        Ok(()) => session.updates.borrow_and_update().clone(),
        Err(_) => StreamUpdate::Ended(EndReason::Terminated),
    }
}
