//! What the streams of a server are doing, for `proxies` and other displays.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use smol_str::SmolStr;

use super::node::ClientNode;
use super::protocol::Protocol;
use super::stream::AdsStream;
use crate::xds::{ResourceSet, ResourceType};

/// How far a stream has come (xds.md 1.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamPhase {
    /// No request has come yet.
    WaitingForNode,
    /// It is known which proxy it is, but there are no resources for it: it isn't registered or not ready.
    WaitingForResources,
    /// There are resources.
    Running,
}

/// One stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamStatus {
    /// Counts the streams of the server from 1.
    pub id: u64,
    /// The form of its messages.
    pub protocol: Protocol,
    /// The client's address.
    pub peer: Option<SocketAddr>,
    /// Who it says it is.
    pub node: Option<ClientNode>,
    /// How far it has come.
    pub phase: StreamPhase,
    /// The store index of the newest resources that it has taken to send.
    pub index: Option<u64>,
    /// Each type that it has asked for, in sending order.
    pub types: Vec<TypeStatus>,
}

/// One type on one stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypeStatus {
    /// The type.
    pub kind: ResourceType,
    /// Whether the client asks for every resource.
    pub wildcard: bool,
    /// How many resources it asks for by name.
    pub names: usize,
    /// How many resources it has acknowledged, or said it has.
    pub held: usize,
    /// Whether a response is on its way.
    pub waiting_for_answer: bool,
    /// Whether resources of a refused response still have to be sent singly.
    pub retrying_singly: bool,
    /// The store index of the newest resources that the client has got everything of (what is quarantined aside).
    pub synced_index: Option<u64>,
    /// The explanation of the last refusal on the stream.
    pub last_refusal: Option<SmolStr>,
    /// Current resources that the client has refused and won't be sent again until their content changes.
    pub quarantined: Vec<Quarantined>,
}

/// A current resource that is kept back (decision X5).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quarantined {
    /// Its name.
    pub name: SmolStr,
    /// The version that was refused.
    pub version: SmolStr,
    /// Why, in the client's words, shortened.
    pub reason: SmolStr,
}

/// A stream's state, shared by its task and those who look at it.
#[derive(Debug)]
pub(super) struct StreamState {
    pub(super) peer: Option<SocketAddr>,
    pub(super) node: Option<ClientNode>,
    pub(super) stream: AdsStream,
}

impl StreamState {
    fn status(&self, id: u64) -> StreamStatus {
        let phase = match (&self.node, self.stream.resources()) {
            (None, _) => StreamPhase::WaitingForNode,
            (Some(_), None) => StreamPhase::WaitingForResources,
            (Some(_), Some(_)) => StreamPhase::Running,
        };
        StreamStatus {
            id,
            protocol: self.stream.protocol(),
            peer: self.peer,
            node: self.node.clone(),
            phase,
            index: self.stream.resources().map(ResourceSet::index),
            types: self.stream.status(),
        }
    }
}

/// The live streams of a server.
#[derive(Debug, Default)]
pub(super) struct StreamRegistry {
    streams: Mutex<Streams>,
}

#[derive(Debug, Default)]
struct Streams {
    last_id: u64,
    live: BTreeMap<u64, Arc<Mutex<StreamState>>>,
}

impl StreamRegistry {
    /// Lists a stream for as long as the entry lives. `None` if there are as many as there may be.
    pub(super) fn enter(self: &Arc<Self>, state: StreamState, most: usize) -> Option<StreamEntry> {
        let state = Arc::new(Mutex::new(state));
        let mut streams = self.streams.lock();
        if streams.live.len() >= most {
            return None;
        }
        streams.last_id += 1;
        let id = streams.last_id;
        streams.live.insert(id, state.clone());
        Some(StreamEntry {
            id,
            state,
            registry: self.clone(),
        })
    }

    pub(super) fn len(&self) -> usize {
        self.streams.lock().live.len()
    }

    pub(super) fn list(&self) -> Vec<StreamStatus> {
        let live: Vec<_> = {
            let streams = self.streams.lock();
            let pairs = streams.live.iter();
            pairs.map(|(id, state)| (*id, state.clone())).collect()
        };
        live.into_iter()
            .map(|(id, state)| state.lock().status(id))
            .collect()
    }
}

/// A stream's place in the registry; gives it back when dropped.
#[derive(Debug)]
pub(super) struct StreamEntry {
    id: u64,
    state: Arc<Mutex<StreamState>>,
    registry: Arc<StreamRegistry>,
}

impl StreamEntry {
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn state(&self) -> &Mutex<StreamState> {
        &self.state
    }
}

impl Drop for StreamEntry {
    fn drop(&mut self) {
        self.registry.streams.lock().live.remove(&self.id);
    }
}
