//! Any sequence of xDS requests on one stream, between changes of the resources: a client that need not be an Envoy. It
//! may answer what it wasn't sent, claim to hold what it doesn't, refuse anything, and name anything.
//!
//! - A request over a limit is refused and changes nothing.
//! - What is asked for is what a model of the rules says (xds.md 1.5; decision X6).
//! - At most one response of a type is on its way; nothing is sent that wasn't asked for, isn't current or was refused
//!   before; no listener or route goes before the clusters and endpoints, no removal before what uses it (xds.md 1.6).
//! - Once the client behaves (acknowledges everything) the stream comes to rest soon, with everything delivered.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use proxycfg::server::ads::{
    AdsLimits, AdsRequest, AdsResponse, AdsStream, Names, Protocol, RequestError, RequestKind,
    TypeStatus,
};
use proxycfg::xds::ResourceType::{Cluster, Endpoint, Listener, Route};
use proxycfg::xds::{Resource, ResourceSet, ResourceType};
use smol_str::{SmolStr, ToSmolStr as _};

use super::choices::Choices;

/// What a request can name: two that never exist, and everything.
const NAMES: [&str; 7] = ["n0", "n1", "n2", "n3", "absent", "", "*"];

/// Steps of one input, so that long inputs don't take long.
const MOST_STEPS: usize = 300;

/// Answers after which a client that acknowledges everything must have everything: each type is sent a few times at most,
/// and suspects one by one.
const SETTLED: usize = 100;

type Key = (ResourceType, SmolStr);

/// Runs one input.
pub fn run(bytes: &[u8]) {
    let mut choices = Choices::new(bytes);
    let protocol = *choices.one_of(&Protocol::ALL);
    let mut run = Run::new(protocol);
    for _ in 0..MOST_STEPS {
        if choices.done() {
            break;
        }
        match choices.below(8) {
            0 | 1 => run.publish(&mut choices),
            2..=4 => run.request(&mut choices),
            5 | 6 => {
                run.send();
            }
            _ => run.strange_request(&mut choices),
        }
        run.check_status();
    }
    run.settle();
    run.settle();
}

/// What the model knows of one type.
#[derive(Debug, Clone, Default)]
struct Asked {
    registered: bool,
    wildcard: bool,
    /// Whether a complete list has named anything.
    named: bool,
    names: BTreeSet<SmolStr>,
    /// The response on its way.
    on_its_way: Option<AdsResponse>,
    /// Names in it that the client doesn't come to hold by it: it gave them up since, or forgets them for their parent.
    lost: BTreeSet<SmolStr>,
    nonces: Vec<SmolStr>,
    /// Whether the client came with something of an earlier stream, and hasn't accepted a response on this one.
    blind: bool,
}

impl Asked {
    fn covers(&self, name: &str) -> bool {
        self.wildcard || self.names.contains(name)
    }
}

struct Run {
    protocol: Protocol,
    limits: AdsLimits,
    stream: AdsStream,
    contents: BTreeMap<Key, (u8, bool)>,
    set: Option<ResourceSet>,
    asked: [Asked; ResourceType::COUNT],
    /// What the client holds: sent and acknowledged, or claimed; and neither given up nor forgotten since.
    delivered: BTreeMap<Key, SmolStr>,
    /// Versions that were acknowledged at some time, and that were refused in a response of their own.
    accepted: BTreeSet<(Key, SmolStr)>,
    refused: BTreeSet<(Key, SmolStr)>,
    refused_alone: BTreeSet<(Key, SmolStr)>,
    responses: u64,
}

impl Run {
    fn new(protocol: Protocol) -> Self {
        let limits = AdsLimits {
            max_names: 8,
            max_name_len: 70,
            ..AdsLimits::default()
        };
        Self {
            protocol,
            stream: AdsStream::new(protocol, limits.clone()),
            limits,
            contents: BTreeMap::new(),
            set: None,
            asked: Default::default(),
            delivered: BTreeMap::new(),
            accepted: BTreeSet::new(),
            refused: BTreeSet::new(),
            refused_alone: BTreeSet::new(),
            responses: 0,
        }
    }

    fn world(&self) -> bool {
        self.protocol == Protocol::StateOfTheWorld
    }

    fn replaces_all(&self, kind: ResourceType) -> bool {
        self.world() && matches!(kind, Cluster | Listener)
    }

    fn publish(&mut self, choices: &mut Choices<'_>) {
        for _ in 0..=choices.below(4) {
            let kind = *choices.one_of(&ResourceType::ALL);
            let key = (kind, SmolStr::new(NAMES[choices.below(4)]));
            match choices.below(6) {
                content @ 0..4 => self
                    .contents
                    .insert(key, (content as u8, choices.once_in(4))),
                _ => self.contents.remove(&key),
            };
        }
        let index = self.set.as_ref().map_or(1, |set| set.index() + 1);
        let mut builder = ResourceSet::builder(index);
        for ((kind, name), (content, composed)) in &self.contents {
            let resource = Resource::new(*kind, name.clone(), vec![*content]);
            let resource = resource.with_children(kind.child().map(|_| name.clone()));
            let composed = *composed && *kind == Cluster;
            builder.insert(if composed {
                resource.composed()
            } else {
                resource
            });
        }
        let set = match &self.set {
            Some(old) => builder.build_after(old),
            None => builder.build(),
        };
        // Content that changes ends a refusal.
        let current = |key: &Key| Some(set.get(key.0, &key.1)?.version().clone());
        self.refused_alone
            .retain(|(key, version)| current(key).as_ref() == Some(version));
        self.set = Some(set.clone());
        self.stream.on_resources(set);
    }

    fn request(&mut self, choices: &mut Choices<'_>) {
        let kind = *choices.one_of(&ResourceType::ALL);
        let first = names(choices);
        let unsubscribe = if choices.once_in(2) {
            names(choices)
        } else {
            Vec::new()
        };
        let mut held = HashMap::new();
        if choices.once_in(3) {
            for name in names(choices) {
                let version = match choices.below(3) {
                    0 => String::new(),
                    1 => "other".to_owned(),
                    _ => {
                        let set = self.set.as_ref();
                        let current = set.and_then(|set| set.get(kind, &name));
                        current.map_or_else(String::new, |r| r.version().to_string())
                    }
                };
                held.insert(name, version);
            }
        }
        let asked = &self.asked[kind.slot()];
        let nonce = match choices.below(5) {
            0 => SmolStr::default(),
            1 | 2 => asked.nonces.last().cloned().unwrap_or_default(),
            3 => match asked.nonces.len() {
                0 => SmolStr::new("ffffffff"),
                sent => asked.nonces[choices.below(sent)].clone(),
            },
            _ => {
                let other = choices.one_of(&self.asked);
                other.nonces.last().cloned().unwrap_or_default()
            }
        };
        let refuses = choices.once_in(3);
        let version = if choices.once_in(3) { "earlier" } else { "" };
        let names = if self.world() {
            Names::All(&first)
        } else {
            Names::Changes {
                subscribe: &first,
                unsubscribe: &unsubscribe,
                held: &held,
            }
        };
        self.take(&AdsRequest {
            type_url: kind.url(),
            node: None,
            names,
            version,
            nonce: &nonce,
            error: refuses.then_some("no\tgood"),
        });
    }

    /// A request that may be over a limit, or that can't be understood.
    fn strange_request(&mut self, choices: &mut Choices<'_>) {
        let kind = *choices.one_of(&ResourceType::ALL);
        let many: Vec<String> = (0..=self.limits.max_names)
            .map(|i| format!("m{i}"))
            .collect();
        let long = vec!["x".repeat(self.limits.max_name_len + 1)];
        let empty = HashMap::new();
        let (type_url, list) = match choices.below(4) {
            0 => ("", Vec::new()),
            1 => ("type.googleapis.com/envoy.config.core.v3.Node", many),
            2 => (kind.url(), many),
            _ => (kind.url(), long),
        };
        let names = if self.world() {
            Names::All(&list)
        } else {
            Names::Changes {
                subscribe: &list,
                unsubscribe: &[],
                held: &empty,
            }
        };
        self.take(&AdsRequest {
            type_url,
            node: None,
            names,
            version: "",
            nonce: "00000001",
            error: None,
        });
    }

    fn take(&mut self, request: &AdsRequest<'_>) {
        let before = self.stream.status();
        let result = self.stream.on_request(*request);
        let kind = match result {
            Err(problem) => {
                assert_eq!(self.stream.status(), before, "a refused request");
                self.check_refusal(request, &problem);
                return;
            }
            Ok(RequestKind::UnknownType) => {
                assert_eq!(self.stream.status(), before, "an unknown type");
                assert_eq!(ResourceType::from_url(request.type_url), None);
                return;
            }
            Ok(
                RequestKind::Subscription(kind)
                | RequestKind::Ack(kind)
                | RequestKind::Nack { kind, .. }
                | RequestKind::Stale(kind),
            ) => kind,
        };
        assert_eq!(kind.url(), request.type_url);
        let on_its_way = self.asked[kind.slot()].on_its_way.as_ref();
        let answers = on_its_way.is_some_and(|response| response.nonce == request.nonce);
        match result {
            Ok(RequestKind::Ack(_)) => assert!(answers && request.error.is_none()),
            Ok(RequestKind::Nack { .. }) => assert!(answers && request.error.is_some()),
            _ => assert!(!answers),
        }
        if answers && let Some(response) = self.asked[kind.slot()].on_its_way.take() {
            self.answered(response, request.error.is_some());
        }
        self.ask(kind, request);
    }

    fn check_refusal(&self, request: &AdsRequest<'_>, problem: &RequestError) {
        let (count, longest) = match &request.names {
            Names::All(names) => (names.len(), names.iter().map(String::len).max()),
            Names::Changes {
                subscribe, held, ..
            } => {
                let asked = ResourceType::from_url(request.type_url)
                    .map_or(0, |kind| self.asked[kind.slot()].names.len());
                let all = subscribe.iter().chain(held.keys()).chain(held.values());
                (
                    asked + subscribe.len() + held.len(),
                    all.map(String::len).max(),
                )
            }
        };
        match problem {
            RequestError::NoTypeUrl => assert!(request.type_url.is_empty()),
            RequestError::TooManyNames { .. } => assert!(count > self.limits.max_names),
            RequestError::NameTooLong { .. } => {
                assert!(longest.is_some_and(|len| len > self.limits.max_name_len));
            }
        }
    }

    fn answered(&mut self, response: AdsResponse, refuses: bool) {
        let kind = response.kind;
        let changes = response.resources.len() + response.removed.len();
        if !refuses && self.replaces_all(kind) {
            self.delivered.retain(|(of, _), _| *of != kind);
        }
        if !refuses {
            self.asked[kind.slot()].blind = false;
        }
        for resource in &response.resources {
            let key = (kind, resource.name().clone());
            let version = resource.version().clone();
            if refuses {
                let item = (key, version);
                if changes == 1 && !self.replaces_all(kind) {
                    self.refused_alone.insert(item.clone());
                }
                self.refused.insert(item);
            } else {
                self.accepted.insert((key.clone(), version.clone()));
                if !self.asked[kind.slot()].lost.contains(&key.1) {
                    self.delivered.insert(key, version);
                }
            }
        }
        if !refuses {
            for name in response.removed {
                self.delivered.remove(&(kind, name));
            }
        }
    }

    /// What the request asks for, by the rules.
    fn ask(&mut self, kind: ResourceType, request: &AdsRequest<'_>) {
        let replaces_all = self.replaces_all(kind);
        let asked = &mut self.asked[kind.slot()];
        let first = !std::mem::replace(&mut asked.registered, true);
        let star = |names: &[String]| names.iter().any(|name| name == "*");
        match request.names {
            Names::All(list) => {
                if first {
                    asked.blind = replaces_all && !request.version.is_empty();
                }
                asked.named |= !list.is_empty();
                if asked.named {
                    asked.wildcard = star(list);
                    asked.names = named(list).collect();
                } else {
                    asked.wildcard = kind.empty_means_all();
                }
            }
            Names::Changes {
                subscribe,
                unsubscribe,
                held,
            } => {
                if first {
                    let names: BTreeSet<&String> = subscribe.iter().collect();
                    let resumed = !names.is_empty() && names == held.keys().collect();
                    asked.wildcard = star(subscribe)
                        || kind.empty_means_all() && (subscribe.is_empty() || resumed);
                    for (name, version) in held {
                        if !asked.wildcard && name == "*" {
                            asked.wildcard = true;
                        } else if !asked.wildcard {
                            asked.names.insert(name.to_smolstr());
                        }
                        let key = (kind, name.to_smolstr());
                        self.delivered.insert(key, version.to_smolstr());
                    }
                }
                asked.wildcard &= !star(unsubscribe);
                for name in named(unsubscribe) {
                    asked.names.remove(&name);
                }
                self.lose(kind, |asked, name| !asked.covers(name));
                let asked = &mut self.asked[kind.slot()];
                asked.wildcard |= star(subscribe);
                asked.names.extend(named(subscribe));
                // It may have been given up for a moment.
                let given_up: BTreeSet<SmolStr> = named(unsubscribe).collect();
                let all = star(unsubscribe);
                self.refused_alone
                    .retain(|((of, name), _)| *of != kind || !(all || given_up.contains(name)));
            }
        }
        self.lose(kind, |asked, name| !asked.covers(name));
        let asked = &self.asked[kind.slot()];
        self.refused_alone
            .retain(|((of, name), _)| *of != kind || asked.covers(name));
    }

    /// The client holds these no longer, nor by what is on its way.
    fn lose(&mut self, kind: ResourceType, gone: impl Fn(&Asked, &str) -> bool) {
        let asked = &mut self.asked[kind.slot()];
        self.delivered
            .retain(|(of, name), _| *of != kind || !gone(asked, name));
        let on_its_way = asked.on_its_way.iter().flat_map(|r| &r.resources);
        let lost: Vec<SmolStr> = on_its_way
            .map(|resource| resource.name().clone())
            .filter(|name| gone(asked, name))
            .collect();
        asked.lost.extend(lost);
    }

    /// Sends a response, if one is due.
    fn send(&mut self) -> bool {
        let Some(response) = self.stream.next_response() else {
            return false;
        };
        self.responses += 1;
        self.check_response(&response);
        if let Some(child) = response.kind.child() {
            // An Envoy forgets the endpoints (routes) of a cluster (listener) that it gets in a new version, or by delta.
            let whole = self.replaces_all(response.kind);
            let news = response.resources.iter().filter(|parent| {
                let key = (parent.kind(), parent.name().clone());
                !whole || self.delivered.get(&key) != Some(parent.version())
            });
            let forgotten: BTreeSet<SmolStr> =
                news.flat_map(|parent| parent.children()).cloned().collect();
            self.lose(child, |_, name| forgotten.contains(name));
        }
        let asked = &mut self.asked[response.kind.slot()];
        asked.nonces.push(response.nonce.clone());
        asked.on_its_way = Some(response);
        asked.lost.clear();
        true
    }

    fn check_response(&self, response: &AdsResponse) {
        let kind = response.kind;
        let asked = &self.asked[kind.slot()];
        assert!(asked.registered, "not asked for: {response:?}");
        assert_eq!(response.nonce, format!("{:08x}", self.responses));
        let waits_for = |kinds: &[ResourceType]| {
            for other in kinds {
                let busy = self.asked[other.slot()].on_its_way.is_some();
                assert!(!busy, "{response:?} before the answer to {other}");
            }
        };
        waits_for(&[kind]);
        let first = asked.nonces.is_empty();
        if matches!(kind, Listener | Route) {
            waits_for(&[Cluster, Endpoint]);
        } else if !response.removed.is_empty() {
            assert!(response.resources.is_empty() || self.replaces_all(kind));
            if !first {
                waits_for(&[Cluster, Endpoint, Listener, Route]);
            }
        }
        let set = self.set.as_ref().expect("there are resources");
        let names = response.resources.iter().map(|resource| resource.name());
        assert!(names.is_sorted_by(|a, b| a < b), "{response:?}");
        for resource in &response.resources {
            assert_eq!(resource.kind(), kind);
            let item = ((kind, resource.name().clone()), resource.version().clone());
            assert!(asked.covers(resource.name()), "not asked for: {item:?}");
            let current = set.get(kind, resource.name()).map(|r| r.version());
            let known = self.replaces_all(kind) && self.accepted.contains(&item);
            let is_current = current == Some(resource.version());
            assert!(
                is_current || known,
                "neither current nor accepted: {item:?}"
            );
            assert!(!self.refused_alone.contains(&item), "sent again: {item:?}");
        }
        assert!(response.removed.is_sorted_by(|a, b| a < b), "{response:?}");
        for name in &response.removed {
            assert!(set.get(kind, name).is_none(), "{name} is there");
            assert!(asked.covers(name), "{name} isn't asked for");
        }
    }

    fn check_status(&self) {
        let status = self.stream.status();
        let registered = self.asked.iter().filter(|asked| asked.registered).count();
        assert_eq!(status.len(), registered);
        for status in &status {
            let asked = &self.asked[status.kind.slot()];
            assert_eq!(status.wildcard, asked.wildcard, "{status:?} {asked:?}");
            assert_eq!(status.names, asked.names.len(), "{status:?} {asked:?}");
            assert!(status.names <= self.limits.max_names);
            assert_eq!(status.waiting_for_answer, asked.on_its_way.is_some());
            let current = self.set.as_ref().map_or(0, ResourceSet::index);
            assert!(status.synced_index.is_none_or(|index| index <= current));
        }
    }

    /// The client acknowledges everything from now on.
    fn settle(&mut self) {
        for _ in 0..SETTLED {
            while self.send() {}
            let Some(response) = self.asked.iter().find_map(|a| a.on_its_way.clone()) else {
                return self.check_settled();
            };
            let asked = &self.asked[response.kind.slot()];
            let mut list: Vec<String> = asked.names.iter().map(ToString::to_string).collect();
            if asked.wildcard && asked.named {
                list.push("*".to_owned());
            }
            let empty = HashMap::new();
            let names = if self.world() {
                Names::All(&list)
            } else {
                Names::Changes {
                    subscribe: &[],
                    unsubscribe: &[],
                    held: &empty,
                }
            };
            self.take(&AdsRequest {
                type_url: response.kind.url(),
                node: None,
                names,
                version: "v",
                nonce: &response.nonce,
                error: None,
            });
            self.check_status();
        }
        panic!("the stream doesn't come to rest");
    }

    fn check_settled(&self) {
        let Some(set) = &self.set else {
            assert_eq!(self.responses, 0);
            return;
        };
        for status in self.stream.status() {
            let asked = &self.asked[status.kind.slot()];
            assert!(!asked.nonces.is_empty(), "never answered: {status:?}");
            assert_eq!(status.synced_index, Some(set.index()), "{status:?}");
            assert!(!status.retrying_singly, "{status:?}");
            self.check_delivered(set, asked, &status);
        }
    }

    fn check_delivered(&self, set: &ResourceSet, asked: &Asked, status: &TypeStatus) {
        let kind = status.kind;
        for held_back in &status.quarantined {
            let item = ((kind, held_back.name.clone()), held_back.version.clone());
            assert!(self.refused.contains(&item), "never refused: {item:?}");
        }
        if asked.blind {
            // It refused the first response, and isn't asked again until something changes.
            return;
        }
        for resource in set.of(kind) {
            let name = resource.name();
            let held_back = status.quarantined.iter().any(|q| q.name == *name);
            if asked.covers(name) && !held_back {
                let delivered = self.delivered.get(&(kind, name.clone()));
                assert_eq!(delivered, Some(resource.version()), "{kind} {name}");
            }
        }
    }
}

fn named(names: &[String]) -> impl Iterator<Item = SmolStr> {
    names
        .iter()
        .filter(|name| *name != "*")
        .map(|name| name.to_smolstr())
}

/// Some of the names, perhaps twice.
fn names(choices: &mut Choices<'_>) -> Vec<String> {
    let mask = choices.byte();
    let chosen = NAMES.iter().enumerate();
    let chosen = chosen.filter(|(i, _)| mask >> i & 1 == 1);
    let mut names: Vec<String> = chosen.map(|(_, name)| (*name).to_owned()).collect();
    if mask & 0x80 != 0 {
        names.extend_from_within(..);
    }
    names
}
