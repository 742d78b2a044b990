//! One type on one stream: what the client asks for, what it holds, what is on its way.
//!
//! Five things that are kept apart, because each changes for its own reason (field-case must-hold 9):
//!
//! | part | changes when |
//! |---|---|
//! | the subscription | a request names something |
//! | `held`: what the client is believed to have | a response is acknowledged |
//! | `resend`: what it has, but must get again | its parent is sent, or it asks again |
//! | `pending`: the one response that is on its way | a response is sent or answered |
//! | refusals | a response is refused |
//!
//! From these and the current resources a [`Plan`] follows: what is still to be sent. It is computed when something is
//! about to be sent, kept while it holds, and never while a response is on its way; so updates in between fold into one.

use std::collections::{BTreeMap, BTreeSet};

use envoy_types::pb::envoy::service::discovery::v3::DeltaDiscoveryRequest;
use smol_str::SmolStr;
use triomphe::Arc;

use super::delta::RequestError;
use super::limits::AdsLimits;
use super::plan::{Batch, Kinds, Lone, Plan};
use super::refusal::{Content, Refusals, shortened};
use super::subscription::{ALL, Subscription};
use crate::xds::{Resource, ResourceSet, ResourceType};

/// The version of something that the client may hold, but nobody knows in which version. No resource has it.
const UNKNOWN_VERSION: SmolStr = SmolStr::new_static("");

/// What a request said about the last response of its type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It carried no nonce.
    None,
    /// It carried a nonce that belongs to no response on its way.
    Stale,
    Acked,
    Refused {
        names: Vec<SmolStr>,
        reason: SmolStr,
    },
}

#[derive(Debug)]
struct Pending {
    nonce: SmolStr,
    items: Vec<(SmolStr, Content)>,
    /// Names among them that the client has unsubscribed from since: the answer says nothing about them.
    dropped: BTreeSet<SmolStr>,
    /// Names among them that were sent because the client needs them again, whatever their version.
    again: BTreeSet<SmolStr>,
    /// The resources of the child type that the client forgets when it gets the response.
    children: Vec<SmolStr>,
}

/// The state of one type on one stream.
#[derive(Debug)]
pub(super) struct Delivery {
    kind: ResourceType,
    subscription: Subscription,
    held: BTreeMap<SmolStr, SmolStr>,
    resend: BTreeSet<SmolStr>,
    pending: Option<Pending>,
    refusals: Refusals,
    last_refusal: Option<SmolStr>,
    /// Whether any response has been sent. The first is sent even if it is empty (conformance row 20).
    answered: bool,
    plan: Option<Plan>,
    synced_index: Option<u64>,
}

impl Delivery {
    pub(super) fn new(kind: ResourceType) -> Self {
        Self {
            kind,
            subscription: Subscription::default(),
            held: BTreeMap::new(),
            resend: BTreeSet::new(),
            pending: None,
            refusals: Refusals::default(),
            last_refusal: None,
            answered: false,
            plan: None,
            synced_index: None,
        }
    }

    pub(super) fn registered(&self) -> bool {
        self.subscription.registered()
    }

    pub(super) fn subscription(&self) -> &Subscription {
        &self.subscription
    }

    pub(super) fn pending(&self) -> bool {
        self.pending.is_some()
    }

    /// The resources of the child type that the client forgets when it gets what is on its way.
    pub(super) fn forgotten_children(&self) -> Vec<SmolStr> {
        let pending = self.pending.as_ref();
        pending.map_or_else(Vec::new, |pending| pending.children.clone())
    }

    pub(super) fn answered(&self) -> bool {
        self.answered
    }

    pub(super) fn held(&self) -> &BTreeMap<SmolStr, SmolStr> {
        &self.held
    }

    pub(super) fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    pub(super) fn last_refusal(&self) -> Option<&SmolStr> {
        self.last_refusal.as_ref()
    }

    /// The index of the newest set that the client has got everything of.
    pub(super) fn synced_index(&self) -> Option<u64> {
        self.synced_index
    }

    /// Takes a request of this type (xds.md 1.5). A request that is over a limit changes nothing.
    pub(super) fn request(
        &mut self,
        request: &DeltaDiscoveryRequest,
        limits: &AdsLimits,
    ) -> Result<Verdict, RequestError> {
        self.check(request, limits)?;
        let verdict = self.answer(request);
        let first = !self.registered();
        if first {
            self.subscription.register(
                self.kind,
                &request.resource_names_subscribe,
                &request.initial_resource_versions,
            );
            self.resume(request);
        }
        // Unsubscribing first: a name in both lists stays subscribed, and is sent again.
        for name in &request.resource_names_unsubscribe {
            self.unsubscribe(name);
        }
        for name in &request.resource_names_subscribe {
            self.subscribe(name, first);
        }
        Ok(verdict)
    }

    fn check(
        &self,
        request: &DeltaDiscoveryRequest,
        limits: &AdsLimits,
    ) -> Result<(), RequestError> {
        let names = self.subscription.names().len()
            + self
                .subscription
                .count_new(&request.resource_names_subscribe)
            + request.initial_resource_versions.len();
        if names > limits.max_names {
            return Err(RequestError::TooManyNames {
                kind: self.kind,
                limit: limits.max_names,
            });
        }
        let longest = request
            .resource_names_subscribe
            .iter()
            .chain(request.initial_resource_versions.keys())
            .chain(request.initial_resource_versions.values())
            .map(String::len)
            .max();
        if longest.is_some_and(|len| len > limits.max_name_len) {
            return Err(RequestError::NameTooLong {
                kind: self.kind,
                limit: limits.max_name_len,
            });
        }
        Ok(())
    }

    /// Takes the acknowledgement or refusal that a request may carry. Only what the nonce belongs to counts (FC-023).
    fn answer(&mut self, request: &DeltaDiscoveryRequest) -> Verdict {
        if request.response_nonce.is_empty() {
            return Verdict::None;
        }
        let Some(pending) = self
            .pending
            .take_if(|pending| pending.nonce == request.response_nonce)
        else {
            return Verdict::Stale;
        };
        match &request.error_detail {
            None => {
                self.acked(pending);
                Verdict::Acked
            }
            Some(error) => {
                let reason = shortened(&error.message);
                let items = pending.items.iter().map(|(name, _)| name);
                let names = items
                    .filter(|name| !pending.dropped.contains(*name))
                    .cloned()
                    .collect();
                self.refused(pending, &reason);
                Verdict::Refused { names, reason }
            }
        }
    }

    fn acked(&mut self, pending: Pending) {
        for (name, content) in pending.items {
            if pending.dropped.contains(&name) {
                continue;
            }
            self.refusals.clear(&name);
            match content {
                Some(version) => self.held.insert(name, version),
                None => {
                    self.resend.remove(&name);
                    self.held.remove(&name)
                }
            };
        }
    }

    fn refused(&mut self, pending: Pending, reason: &SmolStr) {
        self.plan = None;
        self.last_refusal = Some(reason.clone());
        let alone = pending.items.len() == 1;
        for (name, content) in pending.items {
            if alone {
                // It still needs the name again: should the content go back to what it once held, that has to be sent.
                if pending.again.contains(&name) && self.subscription.covers(&name) {
                    self.resend.insert(name.clone());
                }
                self.refusals.quarantine(name, content, reason.clone());
            } else if self.subscription.covers(&name) {
                // The client may have taken some of it.
                self.held.insert(name.clone(), UNKNOWN_VERSION);
                self.refusals.suspect(name, content);
            }
        }
    }

    /// Takes over what a reconnecting client says it holds (conformance row 15).
    fn resume(&mut self, request: &DeltaDiscoveryRequest) {
        self.plan = None;
        for (name, version) in &request.initial_resource_versions {
            if !self.subscription.wildcard() {
                self.subscription.subscribe(name);
            }
            self.held.insert(SmolStr::new(name), SmolStr::new(version));
        }
    }

    fn subscribe(&mut self, name: &str, first: bool) {
        self.plan = None;
        if name == ALL && self.subscription.confirm_wildcard() {
            self.doubt_unnamed();
        }
        self.subscription.subscribe(name);
        self.pick_up(name);
        // Asking again for what the client has got, or is about to get, means that it wants it once more (row 16).
        // The names in a first request are no second asking: those it holds are the ones it lists with versions.
        if name != ALL && !first {
            self.mark_resend(name);
        }
    }

    fn unsubscribe(&mut self, name: &str) {
        if !self.subscription.unsubscribe(name) {
            return;
        }
        self.plan = None;
        if name == ALL {
            self.forget_uncovered();
        } else if self.subscription.covers(name) {
            // Still covered by the wildcard. The client can't know whether that includes this resource until it is told.
            self.mark_resend(name);
        } else {
            self.forget(name);
        }
    }

    /// The client drops what it no longer asks for; so if it asks again, it has to be sent again (FC-021).
    fn forget(&mut self, name: &str) {
        self.held.remove(name);
        self.resend.remove(name);
        self.refusals.clear(name);
        if let Some(pending) = &mut self.pending
            && pending.items.iter().any(|(item, _)| item == name)
        {
            pending.dropped.insert(SmolStr::new(name));
        }
    }

    /// A client that was taken to want everything asks for everything only now: it may have ignored what it didn't name.
    fn doubt_unnamed(&mut self) {
        let names = self.subscription.names();
        let unnamed = self
            .held
            .iter_mut()
            .filter(|(name, _)| !names.contains(*name));
        for (_, version) in unnamed {
            *version = UNKNOWN_VERSION;
        }
        if let Some(pending) = &mut self.pending {
            let items = pending.items.iter().map(|(name, _)| name);
            let unnamed = items.filter(|name| !names.contains(*name)).cloned();
            pending.dropped.extend(unnamed);
        }
    }

    /// The client asks again for what it had unsubscribed from while that was on its way. It may get that response
    /// before or after it asks, so it may come to hold what is in it, or not.
    fn pick_up(&mut self, name: &str) {
        let Some(pending) = &self.pending else {
            return;
        };
        let picked_up = pending
            .dropped
            .iter()
            .filter(|dropped| name == ALL || *dropped == name);
        for name in picked_up {
            self.held.entry(name.clone()).or_insert(UNKNOWN_VERSION);
        }
    }

    fn forget_uncovered(&mut self) {
        let Self {
            subscription,
            held,
            resend,
            refusals,
            pending,
            ..
        } = self;
        held.retain(|name, _| subscription.covers(name));
        resend.retain(|name| subscription.covers(name));
        refusals.retain_suspects(|name| subscription.covers(name));
        if let Some(pending) = pending {
            let names = pending.items.iter().map(|(name, _)| name);
            let dropped = names.filter(|name| !subscription.covers(name)).cloned();
            pending.dropped.extend(dropped);
        }
    }

    /// Has a resource sent again although it didn't change, if the client has it or is about to get it.
    pub(super) fn mark_resend(&mut self, name: &str) {
        let coming = self.pending.as_ref().is_some_and(|pending| {
            pending
                .items
                .iter()
                .any(|(item, content)| item == name && content.is_some())
                && !pending.dropped.contains(name)
        });
        if (coming || self.held.contains_key(name)) && self.resend.insert(SmolStr::new(name)) {
            self.plan = None;
        }
    }

    /// The resources of this type may have changed.
    pub(super) fn resources_changed(&mut self, set: &ResourceSet) {
        self.plan = None;
        let kind = self.kind;
        self.refusals.bound(|name| set.get(kind, name).is_some());
    }

    /// The next response of this type with these kinds of change, if one is due. `None` while another is on its way.
    ///
    /// What is returned has to be handed to [`Delivery::sent`].
    pub(super) fn next(&mut self, set: &ResourceSet, kinds: Kinds) -> Option<Batch> {
        if !self.registered() || self.pending() {
            return None;
        }
        let mut plan = match self.plan.take() {
            Some(plan) => plan,
            None => self.make_plan(set),
        };
        let batch = plan.take(kinds);
        self.plan = Some(plan);
        match batch {
            None if !self.answered => Some(Batch::default()),
            batch => batch,
        }
    }

    /// Whether a response is due that could only announce removals.
    pub(super) fn only_removals_due(&mut self, set: &ResourceSet) -> bool {
        let plan = match self.plan.take() {
            Some(plan) => plan,
            None => self.make_plan(set),
        };
        let only = plan.batch.upserts.is_empty()
            && plan.composed.is_empty()
            && !plan.batch.removals.is_empty();
        self.plan = Some(plan);
        only
    }

    /// Takes note that a response went out. It is on its way until the client names its nonce.
    pub(super) fn sent(&mut self, nonce: SmolStr, batch: &Batch) {
        self.answered = true;
        let upserts = batch.upserts.iter().map(|resource| {
            let name = resource.name().clone();
            (name, Some(resource.version().clone()))
        });
        let removals = batch.removals.iter().map(|name| (name.clone(), None));
        let items: Vec<(SmolStr, Content)> = upserts.chain(removals).collect();
        let mut again = BTreeSet::new();
        for (name, content) in &items {
            again.extend(self.resend.take(name));
            if content.is_some() {
                self.refusals.forget_removal(name);
            }
        }
        self.pending = Some(Pending {
            nonce,
            items,
            dropped: BTreeSet::new(),
            again,
            children: batch.children().cloned().collect(),
        });
    }

    /// Takes note that a send pass found nothing more to send: if nothing is on its way, the client is up to date.
    pub(super) fn pass_ended(&mut self, set: &ResourceSet) {
        if self.registered() && !self.pending() && self.plan.as_ref().is_some_and(Plan::is_done) {
            self.synced_index = Some(set.index());
        }
    }

    fn make_plan(&self, set: &ResourceSet) -> Plan {
        let mut plan = Plan::default();
        if self.subscription.wildcard() {
            for resource in set.of(self.kind) {
                self.plan_upsert(resource, &mut plan);
            }
        } else {
            for name in self.subscription.names() {
                if let Some(resource) = set.get(self.kind, name) {
                    self.plan_upsert(resource, &mut plan);
                }
            }
        }
        for name in self.held.keys() {
            if set.get(self.kind, name).is_some() || self.refusals.quarantines(name, None) {
                continue;
            }
            if self.refusals.suspects(name, None) {
                plan.alone.push_back(Lone::Removal(name.clone()));
            } else {
                plan.batch.removals.push(name.clone());
            }
        }
        plan
    }

    fn plan_upsert(&self, resource: &Arc<Resource>, plan: &mut Plan) {
        let (name, version) = (resource.name(), resource.version());
        let due = self.held.get(name) != Some(version) || self.resend.contains(name);
        if !due || self.refusals.quarantines(name, Some(version)) {
            return;
        }
        if self.refusals.suspects(name, Some(version)) {
            plan.alone.push_back(Lone::Upsert(resource.clone()));
        } else if resource.is_composed() && self.held.contains_key(name) {
            plan.composed.push(resource.clone());
        } else {
            plan.batch.upserts.push(resource.clone());
        }
    }
}
