//! One stream of either form, without any I/O: requests and resources in, responses out.
//!
//! [`AdsStream`] holds one [`Delivery`] per type and knows the order of the send pass (xds.md 1.6):
//!
//! | step | type | changes | waits for |
//! |---|---|---|---|
//! | 1 | secret | additions and new versions | |
//! | 2 | cluster | additions and new versions | |
//! | 3 | endpoint | additions and new versions | |
//! | 4 | cluster | new versions of aggregates | cluster, endpoint |
//! | 5 | listener | all | cluster, endpoint |
//! | 6 | route | all | cluster, endpoint |
//! | 7 | cluster | removals | cluster, endpoint, listener, route |
//! | 8 | endpoint | removals | the same |
//! | 9 | secret | removals | the same |
//!
//! "Waits for": while a response of that type is on its way, the pass stops before this step. So a listener never
//! arrives before the clusters and endpoints that it uses, and nothing is taken away that a listener or route on its way
//! to the client still replaces. An aggregate cluster that takes the place of a cluster in use goes after its members have
//! their endpoints: Envoy puts it in place at once, and would find no member ready. At most one response of a type is on its way, which bounds what a stream can cost.
//! Sending a cluster or listener has its endpoints or routes sent again, because Envoy forgets them (xds.md 1.8).
//!
//! All this is the same for both forms ([`Protocol`]). In the state of the world a response of clusters or listeners holds
//! everything: what is removed only in a later step stays in it, in its last accepted content, until then.

use smol_str::{SmolStr, format_smolstr};
use triomphe::Arc;

use super::delivery::{Delivery, Verdict};
use super::limits::AdsLimits;
use super::plan::Kinds;
use super::protocol::Protocol;
use super::request::AdsRequest;
use super::status::{Quarantined, TypeStatus};
use crate::xds::{Resource, ResourceSet, ResourceType};

/// Why a request ends its stream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// It doesn't say which type it is about.
    #[error("request has no type_url: name the resource type")]
    NoTypeUrl,
    /// The names of one type are too many.
    #[error(
        "request for {kind} resources: more than {limit} names on one stream; subscribe to fewer"
    )]
    TooManyNames {
        /// The type of the request.
        kind: ResourceType,
        /// [`AdsLimits::max_names`].
        limit: usize,
    },
    /// A name or version is too long.
    #[error(
        "request for {kind} resources: a resource name or version is longer than {limit} bytes"
    )]
    NameTooLong {
        /// The type of the request.
        kind: ResourceType,
        /// [`AdsLimits::max_name_len`].
        limit: usize,
    },
}

/// What a request was, for logs and counters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestKind {
    /// Of a type that isn't served; it is ignored (decision X6).
    UnknownType,
    /// It answers no response: names are subscribed to or unsubscribed from.
    Subscription(ResourceType),
    /// Acknowledges the response on its way.
    Ack(ResourceType),
    /// Refuses the response on its way.
    Nack {
        /// The type of the response.
        kind: ResourceType,
        /// The resources in the response, without those unsubscribed from since.
        names: Vec<SmolStr>,
        /// The client's explanation, shortened.
        reason: SmolStr,
    },
    /// Its nonce belongs to no response on its way. What it subscribes to counts all the same.
    Stale(ResourceType),
}

/// One response. It shares the resources' bytes; they are copied when the transport encodes it.
#[derive(Debug, Clone)]
pub struct AdsResponse {
    /// The type of all resources in it.
    pub kind: ResourceType,
    /// Counts the responses of the stream, as 8 hexadecimal digits.
    pub nonce: SmolStr,
    /// What is in it, sorted by name: new and changed resources, or all that the client is to have.
    pub resources: Vec<Arc<Resource>>,
    /// Names of resources that are gone, sorted. In the state of the world they are just not in it any more.
    pub removed: Vec<SmolStr>,
}

/// The state of one stream. Not thread-safe by itself, and never blocks.
#[derive(Debug)]
pub struct AdsStream {
    protocol: Protocol,
    limits: AdsLimits,
    resources: Option<ResourceSet>,
    types: [Delivery; ResourceType::COUNT],
    responses: u64,
}

/// A step of the send pass.
struct Step {
    kind: ResourceType,
    kinds: Kinds,
    waits_for: &'static [ResourceType],
}

const PARENTS: &[ResourceType] = &[ResourceType::Cluster, ResourceType::Endpoint];
const USERS: &[ResourceType] = &[
    ResourceType::Cluster,
    ResourceType::Endpoint,
    ResourceType::Listener,
    ResourceType::Route,
];

const PASS: [Step; 9] = [
    Step::new(ResourceType::Secret, Kinds::Upserts, &[]),
    Step::new(ResourceType::Cluster, Kinds::Upserts, &[]),
    Step::new(ResourceType::Endpoint, Kinds::Upserts, &[]),
    Step::new(ResourceType::Cluster, Kinds::Composed, PARENTS),
    Step::new(ResourceType::Listener, Kinds::Both, PARENTS),
    Step::new(ResourceType::Route, Kinds::Both, PARENTS),
    Step::new(ResourceType::Cluster, Kinds::Removals, USERS),
    Step::new(ResourceType::Endpoint, Kinds::Removals, USERS),
    Step::new(ResourceType::Secret, Kinds::Removals, USERS),
];

impl Step {
    const fn new(kind: ResourceType, kinds: Kinds, waits_for: &'static [ResourceType]) -> Self {
        Self {
            kind,
            kinds,
            waits_for,
        }
    }
}

impl AdsStream {
    /// A stream that has seen nothing yet.
    #[must_use]
    pub fn new(protocol: Protocol, limits: AdsLimits) -> Self {
        Self {
            protocol,
            limits,
            resources: None,
            types: ResourceType::ALL.map(|kind| Delivery::new(protocol, kind)),
            responses: 0,
        }
    }

    /// The form of its messages.
    #[must_use]
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Takes a request (xds.md 1.5). Who the client is, is not looked at here.
    ///
    /// # Errors
    /// If the request can't be understood or is over a limit; it has changed nothing then, and the stream should end.
    pub fn on_request<'a>(
        &mut self,
        request: impl Into<AdsRequest<'a>>,
    ) -> Result<RequestKind, RequestError> {
        let request = request.into();
        if request.type_url.is_empty() {
            return Err(RequestError::NoTypeUrl);
        }
        let Some(kind) = ResourceType::from_url(request.type_url) else {
            return Ok(RequestKind::UnknownType);
        };
        let first = !self.delivery(kind).registered();
        let verdict = self.types[kind.slot()].request(&request, &self.limits)?;
        if first {
            self.forget_children_on_their_way(kind);
        }
        let lost = self.delivery_mut(kind).take_lost_children();
        if let Some(child) = kind.child() {
            for name in lost {
                self.delivery_mut(child).mark_resend(&name);
            }
        }
        Ok(match verdict {
            Verdict::None => RequestKind::Subscription(kind),
            Verdict::Stale => RequestKind::Stale(kind),
            Verdict::Acked => RequestKind::Ack(kind),
            Verdict::Refused { names, reason } => RequestKind::Nack {
                kind,
                names,
                reason,
            },
        })
    }

    /// Takes the current resources of the proxy. Sets that come while responses are on their way fold into the newest.
    pub fn on_resources(&mut self, resources: ResourceSet) {
        for kind in ResourceType::ALL {
            let shared = self
                .resources
                .as_ref()
                .is_some_and(|old| old.shares(&resources, kind));
            if !shared {
                let old = self.resources.as_ref();
                self.types[kind.slot()].resources_changed(old, &resources);
            }
        }
        self.resources = Some(resources);
    }

    /// The newest resources it was given. Nothing is sent before there are any (xds.md 1.4).
    #[must_use]
    pub fn resources(&self) -> Option<&ResourceSet> {
        self.resources.as_ref()
    }

    /// The next response that may be sent now: one step of the send pass. `None` until the next request or resources.
    ///
    /// What is returned counts as sent.
    pub fn next_response(&mut self) -> Option<AdsResponse> {
        let resources = self.resources.clone()?;
        for step in &PASS {
            if step
                .waits_for
                .iter()
                .any(|kind| self.delivery(*kind).pending())
            {
                break;
            }
            let kinds = self.kinds_of(step, &resources);
            if let Some(response) = self.send(step.kind, kinds, &resources) {
                return Some(response);
            }
        }
        for delivery in &mut self.types {
            delivery.pass_ended(&resources);
        }
        None
    }

    /// Whether a response is on its way.
    pub(super) fn awaits_answer(&self) -> bool {
        self.types.iter().any(Delivery::pending)
    }

    /// What the client asks for and has got, for each type that it has asked for.
    #[must_use]
    pub fn status(&self) -> Vec<TypeStatus> {
        let asked = ResourceType::ALL
            .into_iter()
            .filter(|kind| self.delivery(*kind).registered());
        asked.map(|kind| self.type_status(kind)).collect()
    }

    /// The step's kinds of change. A first answer of a type in which there is nothing but removals carries them, instead
    /// of being empty, as long as no listener or route is asked for that could still use what is removed (FC-020).
    fn kinds_of(&mut self, step: &Step, resources: &ResourceSet) -> Kinds {
        let users = [ResourceType::Listener, ResourceType::Route];
        let unused = users.iter().all(|kind| !self.delivery(*kind).registered());
        let delivery = self.delivery_mut(step.kind);
        let first = delivery.registered() && !delivery.answered();
        if first && unused && delivery.only_removals_due(resources) {
            Kinds::Both
        } else {
            step.kinds
        }
    }

    fn send(
        &mut self,
        kind: ResourceType,
        kinds: Kinds,
        resources: &ResourceSet,
    ) -> Option<AdsResponse> {
        let batch = self.delivery_mut(kind).next(resources, kinds)?;
        self.responses += 1;
        let nonce = format_smolstr!("{:08x}", self.responses);
        let written = self.delivery_mut(kind).sent(nonce.clone(), &batch);
        if let Some(child) = kind.child() {
            for name in self.delivery(kind).forgotten_children() {
                self.delivery_mut(child).mark_resend(&name);
            }
        }
        Some(AdsResponse {
            kind,
            nonce,
            resources: written,
            removed: batch.removals,
        })
    }

    /// A first request lists what the client held when it sent it. By the time it gets a parent that is on its way, it
    /// has forgotten the children among that.
    fn forget_children_on_their_way(&mut self, child: ResourceType) {
        let parents = ResourceType::ALL.into_iter();
        for parent in parents.filter(|parent| parent.child() == Some(child)) {
            for name in self.delivery(parent).forgotten_children() {
                self.delivery_mut(child).mark_resend(&name);
            }
        }
    }

    fn type_status(&self, kind: ResourceType) -> TypeStatus {
        let delivery = self.delivery(kind);
        let quarantined = delivery.refusals().names().filter_map(|name| {
            let current = self.resources.as_ref()?.get(kind, name)?;
            let reason = delivery
                .refusals()
                .reason(name, Some(current.version()))?
                .clone();
            Some(Quarantined {
                name: name.clone(),
                version: current.version().clone(),
                reason,
            })
        });
        let retrying_singly = delivery.refusals().all_suspects().any(|(name, content)| {
            let resources = self.resources.as_ref();
            let current = resources.and_then(|resources| resources.get(kind, name));
            current.map(|current| current.version()) == content
        });
        TypeStatus {
            kind,
            wildcard: delivery.subscription().wildcard(),
            names: delivery.subscription().names().len(),
            held: delivery.held().len(),
            waiting_for_answer: delivery.pending(),
            retrying_singly,
            synced_index: delivery.synced_index(),
            last_refusal: delivery.last_refusal().cloned(),
            quarantined: quarantined.collect(),
        }
    }

    fn delivery(&self, kind: ResourceType) -> &Delivery {
        &self.types[kind.slot()]
    }

    fn delivery_mut(&mut self, kind: ResourceType) -> &mut Delivery {
        &mut self.types[kind.slot()]
    }
}

#[cfg(test)]
#[path = "delta_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "stream_property_tests.rs"]
mod property_tests;
