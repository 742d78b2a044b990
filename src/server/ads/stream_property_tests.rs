//! Random histories between an [`AdsStream`] and a simulated Envoy, in both forms.
//!
//! The simulated client behaves as an Envoy does: it forgets the endpoints (routes) of a cluster (listener) that it is
//! sent, refuses bad content, takes the rest of such a response or nothing of it, and reconnects with what it holds.
//! Messages of both directions lie in queues, so that they cross. When both queues have run empty the client must hold
//! exactly the current resources that it asks for, except those whose content it refuses. In the state of the world a
//! client that isn't told that endpoints are gone may hold them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use envoy_types::pb::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest};
use envoy_types::pb::google::rpc;
use proptest::prelude::*;
use smol_str::{SmolStr, format_smolstr};

use super::{AdsResponse, AdsStream};
use crate::server::ads::{AdsLimits, Protocol};
use crate::xds::ResourceType::{Cluster, Endpoint, Listener, Route, Secret};
use crate::xds::{Resource, ResourceSet, ResourceType};

/// Content that the client refuses.
const BAD: u8 = 3;

/// Messages after which a history without further causes counts as a storm.
const STORM: usize = 2_000;

#[derive(Debug, Clone)]
enum Op {
    /// Puts (content below 4) or removes resources, and publishes.
    Publish(Vec<(ResourceType, u8, u8)>),
    Subscribe(ResourceType, Vec<u8>),
    Unsubscribe(ResourceType, Vec<u8>),
    Wildcard(ResourceType, bool),
    ServerReads,
    ServerSends,
    ClientReads,
    Reconnect,
}

fn kind() -> impl Strategy<Value = ResourceType> {
    prop::sample::select(vec![Cluster, Endpoint, Listener, Route, Secret])
}

fn op() -> impl Strategy<Value = Op> {
    let change = (kind(), 0..4_u8, 0..6_u8);
    let names = prop::collection::vec(0..4_u8, 1..4);
    prop_oneof![
        4 => prop::collection::vec(change, 1..6).prop_map(Op::Publish),
        3 => (kind(), prop::collection::vec(0..4_u8, 0..4)).prop_map(|(k, n)| Op::Subscribe(k, n)),
        1 => (kind(), names).prop_map(|(k, n)| Op::Unsubscribe(k, n)),
        1 => (kind(), any::<bool>()).prop_map(|(k, on)| Op::Wildcard(k, on)),
        4 => Just(Op::ServerReads),
        4 => Just(Op::ServerSends),
        4 => Just(Op::ClientReads),
        1 => Just(Op::Reconnect),
    ]
}

/// What the client asks for and holds of one type.
#[derive(Debug, Default, Clone)]
struct Held {
    asked: bool,
    wildcard: bool,
    /// Whether a complete list has named anything.
    named: bool,
    names: BTreeSet<SmolStr>,
    /// The nonce of the last response.
    nonce: SmolStr,
    /// Whether it has ever accepted a response, and whether on this stream; and whether it came here with something.
    accepted: bool,
    confirmed: bool,
    resumed: bool,
    versions: BTreeMap<SmolStr, SmolStr>,
}

impl Held {
    fn covers(&self, name: &str) -> bool {
        self.wildcard || self.names.contains(name)
    }

    fn drop_uncovered(&mut self) {
        let keep = self.clone();
        self.versions.retain(|name, _| keep.covers(name));
    }
}

/// A message to the server.
#[derive(Debug)]
enum Message {
    Delta(DeltaDiscoveryRequest),
    /// And whether it answers a response.
    World(DiscoveryRequest, bool),
}

/// A message to the client.
#[derive(Debug)]
struct Sent {
    response: AdsResponse,
    changes: usize,
}

#[derive(Debug)]
struct Simulation {
    protocol: Protocol,
    /// Whether the client takes the good part of a response that it refuses.
    partial: bool,
    contents: BTreeMap<(ResourceType, SmolStr), u8>,
    set: Option<ResourceSet>,
    stream: AdsStream,
    to_server: VecDeque<Message>,
    to_client: VecDeque<Sent>,
    client: [Held; ResourceType::COUNT],
    // What the server has sent on this stream and not read an answer to.
    on_its_way: BTreeSet<ResourceType>,
    answered: BTreeSet<ResourceType>,
    refused_alone: BTreeSet<(ResourceType, SmolStr, SmolStr)>,
    // What the client has acknowledged at some time on this stream.
    accepted: BTreeSet<(ResourceType, SmolStr, SmolStr)>,
    sent: usize,
}

fn name(number: u8) -> SmolStr {
    format_smolstr!("n{number}")
}

impl Simulation {
    fn new(protocol: Protocol, partial: bool) -> Self {
        Self {
            protocol,
            partial,
            contents: BTreeMap::new(),
            set: None,
            stream: AdsStream::new(protocol, AdsLimits::default()),
            to_server: VecDeque::new(),
            to_client: VecDeque::new(),
            client: Default::default(),
            on_its_way: BTreeSet::new(),
            answered: BTreeSet::new(),
            refused_alone: BTreeSet::new(),
            accepted: BTreeSet::new(),
            sent: 0,
        }
    }

    fn held(&mut self, kind: ResourceType) -> &mut Held {
        &mut self.client[kind.slot()]
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Publish(changes) => self.publish(changes),
            Op::Subscribe(kind, numbers) => {
                let names: Vec<SmolStr> = numbers.into_iter().map(name).collect();
                self.subscribe(kind, &names);
            }
            Op::Unsubscribe(kind, numbers) => {
                let names: Vec<SmolStr> = numbers.into_iter().map(name).collect();
                self.unsubscribe(kind, &names);
            }
            Op::Wildcard(kind, true) => self.subscribe(kind, &["*".into()]),
            Op::Wildcard(kind, false) => self.unsubscribe(kind, &["*".into()]),
            Op::ServerReads => {
                self.server_reads();
            }
            Op::ServerSends => {
                self.server_sends();
            }
            Op::ClientReads => {
                self.client_reads();
            }
            Op::Reconnect => self.reconnect(),
        }
    }

    fn publish(&mut self, changes: Vec<(ResourceType, u8, u8)>) {
        for (kind, number, content) in changes {
            if content < 4 {
                self.contents.insert((kind, name(number)), content);
            } else {
                self.contents.remove(&(kind, name(number)));
            }
        }
        let index = self.set.as_ref().map_or(1, |set| set.index() + 1);
        let mut builder = ResourceSet::builder(index);
        for ((kind, name), content) in &self.contents {
            let resource = Resource::new(*kind, name.clone(), vec![*content]);
            let children = kind.child().map(|_| name.clone());
            builder.insert(resource.with_children(children));
        }
        let set = match &self.set {
            Some(old) => builder.build_after(old),
            None => builder.build(),
        };
        self.set = Some(set.clone());
        self.stream.on_resources(set);
    }

    fn world(&self) -> bool {
        self.protocol == Protocol::StateOfTheWorld
    }

    fn subscribe(&mut self, kind: ResourceType, names: &[SmolStr]) {
        let world = self.world();
        let held = self.held(kind);
        if names.is_empty() {
            if held.asked {
                return;
            }
            held.wildcard = kind.empty_means_all();
        }
        held.asked = true;
        if world && !names.is_empty() && !std::mem::replace(&mut held.named, true) {
            // A star that isn't written is gone with the first list that isn't empty.
            held.wildcard = false;
        }
        for name in names {
            if name == "*" {
                held.wildcard = true;
            } else {
                held.names.insert(name.clone());
            }
        }
        if world {
            held.drop_uncovered();
            self.send_whole(kind, None);
            return;
        }
        self.to_server
            .push_back(Message::Delta(DeltaDiscoveryRequest {
                type_url: kind.url().into(),
                resource_names_subscribe: names.iter().map(ToString::to_string).collect(),
                ..DeltaDiscoveryRequest::default()
            }));
    }

    fn unsubscribe(&mut self, kind: ResourceType, names: &[SmolStr]) {
        let world = self.world();
        let held = self.held(kind);
        if !held.asked || (world && !held.named) {
            return;
        }
        for name in names {
            if name == "*" {
                held.wildcard = false;
            } else {
                held.names.remove(name);
            }
        }
        held.drop_uncovered();
        if world {
            self.send_whole(kind, None);
            return;
        }
        self.to_server
            .push_back(Message::Delta(DeltaDiscoveryRequest {
                type_url: kind.url().into(),
                resource_names_unsubscribe: names.iter().map(ToString::to_string).collect(),
                ..DeltaDiscoveryRequest::default()
            }));
    }

    /// Sends the complete list; with a verdict (whether it is a refusal) on the last response, if it is an answer to it.
    fn send_whole(&mut self, kind: ResourceType, refuses: Option<bool>) {
        let held = self.held(kind);
        let mut names: Vec<String> = held.names.iter().map(ToString::to_string).collect();
        if held.wildcard && held.named {
            names.push("*".into());
        }
        let request = DiscoveryRequest {
            type_url: kind.url().into(),
            resource_names: names,
            version_info: if held.accepted {
                "v".into()
            } else {
                String::new()
            },
            response_nonce: held.nonce.to_string(),
            error_detail: refuses.unwrap_or_default().then(refusal),
            ..DiscoveryRequest::default()
        };
        let message = Message::World(request, refuses.is_some());
        self.to_server.push_back(message);
    }

    fn server_reads(&mut self) -> bool {
        let (kind, answers) = match self.to_server.pop_front() {
            None => return false,
            Some(Message::Delta(request)) => {
                self.stream.on_request(&request).unwrap();
                (request.type_url, !request.response_nonce.is_empty())
            }
            Some(Message::World(request, answers)) => {
                self.stream.on_request(&request).unwrap();
                (request.type_url, answers)
            }
        };
        if answers {
            let kind = ResourceType::from_url(&kind).unwrap();
            self.on_its_way.remove(&kind);
        }
        true
    }

    fn server_sends(&mut self) -> bool {
        let Some(response) = self.stream.next_response() else {
            return false;
        };
        self.sent += 1;
        let kind = response.kind;
        let changes = self.stream.delivery(kind).changes_on_their_way();
        self.check_response(&response, changes);
        self.on_its_way.insert(kind);
        self.answered.insert(kind);
        self.to_client.push_back(Sent { response, changes });
        true
    }

    /// The rules of the send pass, and that what is sent is current.
    fn check_response(&self, response: &AdsResponse, changes: usize) {
        let kind = response.kind;
        let set = self
            .set
            .as_ref()
            .expect("nothing is sent before there are resources");
        let waits_for = |kinds: &[ResourceType]| {
            for other in kinds {
                assert!(
                    !self.on_its_way.contains(other),
                    "{response:?} before {other}"
                );
            }
        };
        waits_for(&[kind]);
        let gone = !response.removed.is_empty();
        let new = changes > response.removed.len();
        let first = !self.answered.contains(&kind);
        // A client that came back may have to be told that there is nothing.
        let told = self.protocol.replaces_all(kind) && self.client[kind.slot()].resumed;
        assert!(
            new || gone || first || told,
            "an empty response: {response:?}"
        );
        if matches!(kind, Listener | Route) {
            waits_for(&[Cluster, Endpoint]);
        } else {
            assert!(
                !(new && gone),
                "additions and removals at once: {response:?}"
            );
            if gone && !first {
                waits_for(&[Cluster, Endpoint, Listener, Route]);
            }
        }
        for resource in &response.resources {
            let refused = (kind, resource.name().clone(), resource.version().clone());
            let current = set.get(kind, resource.name());
            assert!(
                current.is_some_and(|current| current.version() == resource.version())
                    || (self.protocol.replaces_all(kind) && self.accepted.contains(&refused)),
                "neither current nor accepted: {refused:?}"
            );
            assert!(
                !self.refused_alone.contains(&refused),
                "sent again: {refused:?}"
            );
        }
        for name in &response.removed {
            assert!(set.get(kind, name).is_none());
        }
    }

    fn client_reads(&mut self) -> bool {
        let Some(Sent { response, changes }) = self.to_client.pop_front() else {
            return false;
        };
        let kind = response.kind;
        let bad = |resource: &Resource| resource.bytes().as_ref() == [BAD];
        let held = self.client[kind.slot()].clone();
        self.held(kind).nonce = response.nonce.clone();
        let refuses = response
            .resources
            .iter()
            .any(|resource| bad(resource) && held.covers(resource.name()));
        let takes = self.partial || !refuses;
        if !refuses {
            let held = self.held(kind);
            (held.accepted, held.confirmed) = (true, true);
        }
        for resource in &response.resources {
            let (name, version) = (resource.name().clone(), resource.version().clone());
            if !held.covers(&name) {
                continue;
            }
            let key = (kind, name.clone(), version.clone());
            if bad(resource) {
                if changes == 1 && (held.confirmed || !held.resumed) {
                    self.refused_alone.insert(key);
                }
                continue;
            }
            if !refuses {
                self.accepted.insert(key);
            }
            // Where everything is said each time, a client sees what it has already.
            let known =
                self.protocol.replaces_all(kind) && held.versions.get(&name) == Some(&version);
            if takes && !known {
                self.held(kind).versions.insert(name, version);
                self.drop_children(resource);
            }
        }
        if takes && self.protocol.replaces_all(kind) {
            let listed: BTreeSet<&SmolStr> = response.resources.iter().map(|r| r.name()).collect();
            let versions = &mut self.held(kind).versions;
            versions.retain(|name, _| listed.contains(name));
        } else if takes && !self.world() {
            for name in &response.removed {
                self.held(kind).versions.remove(name);
            }
        }
        if self.world() {
            self.send_whole(kind, Some(refuses));
            return true;
        }
        self.to_server
            .push_back(Message::Delta(DeltaDiscoveryRequest {
                type_url: kind.url().into(),
                response_nonce: response.nonce.to_string(),
                error_detail: refuses.then(refusal),
                ..DeltaDiscoveryRequest::default()
            }));
        true
    }

    fn drop_children(&mut self, parent: &Resource) {
        if let Some(child) = parent.kind().child() {
            for name in parent.children() {
                self.held(child).versions.remove(name);
            }
        }
    }

    fn reconnect(&mut self) {
        self.stream = AdsStream::new(self.protocol, AdsLimits::default());
        self.to_server.clear();
        self.to_client.clear();
        self.on_its_way.clear();
        self.answered.clear();
        self.refused_alone.clear();
        self.accepted.clear();
        if let Some(set) = &self.set {
            self.stream.on_resources(set.clone());
        }
        for kind in ResourceType::ALL {
            let held = self.held(kind).clone();
            if !held.asked {
                continue;
            }
            let now = self.held(kind);
            now.nonce = SmolStr::default();
            (now.resumed, now.confirmed) = (now.accepted, false);
            if self.world() {
                let nothing = held.names.is_empty() && !held.wildcard;
                let named = held.named && !nothing;
                self.held(kind).named = named;
                if nothing && kind.empty_means_all() {
                    // As below.
                    self.held(kind).asked = false;
                } else {
                    self.send_whole(kind, None);
                }
                continue;
            }
            let mut names: Vec<String> = held.names.iter().map(ToString::to_string).collect();
            let implied = kind.empty_means_all() && names.is_empty();
            if held.wildcard && !implied {
                names.push("*".into());
            }
            if !held.wildcard && implied {
                // There is no way to say "nothing" for these types in a first request.
                self.held(kind).asked = false;
                continue;
            }
            let versions = held.versions.iter();
            self.to_server
                .push_back(Message::Delta(DeltaDiscoveryRequest {
                    type_url: kind.url().into(),
                    resource_names_subscribe: names,
                    initial_resource_versions: versions
                        .map(|(name, version)| (name.to_string(), version.to_string()))
                        .collect(),
                    ..DeltaDiscoveryRequest::default()
                }));
        }
    }

    /// Lets all messages through.
    fn settle(&mut self) {
        let before = self.sent;
        while self.server_reads() || self.server_sends() || self.client_reads() {
            assert!(self.sent - before < STORM, "a storm of messages");
        }
    }

    fn check_settled(&mut self) {
        let Some(set) = self.set.clone() else {
            assert_eq!(self.sent, 0);
            return;
        };
        for kind in ResourceType::ALL {
            let held = self.held(kind).clone();
            if !held.asked {
                continue;
            }
            assert!(self.answered.contains(&kind), "{kind} was never answered");
            let blind = self.protocol.replaces_all(kind) && held.resumed && !held.confirmed;
            if blind && !self.partial {
                // It takes nothing of a response with something bad in it.
                continue;
            }
            for number in 0..4 {
                let name = name(number);
                let holds = held.versions.get(&name);
                match set.get(kind, &name).filter(|_| held.covers(&name)) {
                    Some(current) if current.bytes().as_ref() == [BAD] => {
                        assert_ne!(holds, Some(current.version()), "{kind} {name}");
                    }
                    // It can't be told.
                    None if !self.protocol.announces_removals(kind) => {}
                    current => {
                        let expected = current.map(|current| current.version());
                        assert_eq!(holds, expected, "{kind} {name}");
                    }
                }
            }
        }
        for status in self.stream.status() {
            assert_eq!(status.synced_index, Some(set.index()), "{status:?}");
            assert!(
                !status.waiting_for_answer && !status.retrying_singly,
                "{status:?}"
            );
        }
    }
}

fn refusal() -> rpc::Status {
    rpc::Status {
        message: "bad".into(),
        ..rpc::Status::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_settled_client_holds_what_it_asks_for(
        partial: bool,
        ops in prop::collection::vec(op(), 1..80),
        more in prop::collection::vec(op(), 0..20),
    ) {
        for protocol in Protocol::ALL {
            let mut simulation = Simulation::new(protocol, partial);
            for part in [&ops, &more] {
                for op in part {
                    simulation.apply(op.clone());
                }
                simulation.settle();
                simulation.check_settled();
            }
            // Nothing happened since: nothing is sent, not even after an equal set.
            let sent = simulation.sent;
            if simulation.set.is_some() {
                simulation.publish(Vec::new());
            }
            simulation.settle();
            prop_assert_eq!(simulation.sent, sent);
        }
    }
}
