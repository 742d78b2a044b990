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
//! Where a response replaces everything (clusters and listeners in the state of the world), the last accepted content of
//! each resource is kept too: a response is that, with the changes that are due put in.
//!
//! A client that comes back from another stream holds nobody knows what, until it accepts a response on this one. If it
//! refuses the first one, leaving resources out to find the bad one would remove what it has of them; so it isn't asked
//! again until what there is for it changes, and meanwhile goes on with what it took and with what it had.
//!
//! From these and the current resources a [`Plan`] follows: what is still to be sent. It is computed when something is
//! about to be sent, kept while it holds, and never while a response is on its way; so updates in between fold into one.

mod answer;
mod request;

use std::collections::{BTreeMap, BTreeSet};

use smol_str::SmolStr;
use triomphe::Arc;

use super::plan::{Batch, Kinds, Lone, Plan};
use super::protocol::Protocol;
use super::refusal::{Content, Refusals};
use super::subscription::Subscription;
use crate::xds::{Resource, ResourceSet, ResourceType};

/// The version of something that the client may hold, but nobody knows in which version. No resource has it.
const UNKNOWN_VERSION: SmolStr = SmolStr::new_static("");

pub(super) use answer::Verdict;

use answer::Pending;

/// Whether it is known what the client holds, where responses replace everything.
#[derive(Debug, PartialEq)]
enum Sight {
    /// It is: it came with nothing, or has accepted a response on this stream.
    Clear,
    /// It holds something of an earlier stream, and hasn't answered on this one.
    Blind,
    /// It does, and has refused these resources, by name and version.
    Refused(Vec<(SmolStr, SmolStr)>),
    /// It has, and has asked for other names since.
    AskedAnew,
}

/// The state of one type on one stream.
#[derive(Debug)]
pub(super) struct Delivery {
    protocol: Protocol,
    kind: ResourceType,
    subscription: Subscription,
    held: BTreeMap<SmolStr, SmolStr>,
    resend: BTreeSet<SmolStr>,
    pending: Option<Pending>,
    /// The nonce of the last response that was answered.
    last_answered: SmolStr,
    /// What the client has last accepted of each resource, if a response has to hold everything.
    accepted: BTreeMap<SmolStr, Arc<Resource>>,
    sight: Sight,
    /// What the client forgets if it asks again for what it has given up while that was on its way.
    lost_children: Vec<SmolStr>,
    refusals: Refusals,
    last_refusal: Option<SmolStr>,
    /// Whether any response has been sent. The first is sent even if it is empty (conformance row 20).
    answered: bool,
    plan: Option<Plan>,
    synced_index: Option<u64>,
}

impl Delivery {
    pub(super) fn new(protocol: Protocol, kind: ResourceType) -> Self {
        Self {
            protocol,
            kind,
            subscription: Subscription::default(),
            held: BTreeMap::new(),
            resend: BTreeSet::new(),
            pending: None,
            last_answered: SmolStr::default(),
            accepted: BTreeMap::new(),
            sight: Sight::Clear,
            lost_children: Vec::new(),
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

    /// The resources of the child type that have to be sent again because of the last request.
    pub(super) fn take_lost_children(&mut self) -> Vec<SmolStr> {
        std::mem::take(&mut self.lost_children)
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

    /// Has a resource sent again although it didn't change, if the client has it or is about to get it.
    pub(super) fn mark_resend(&mut self, name: &str) {
        let coming = is_coming(self.pending.as_ref(), name);
        if (coming || self.held.contains_key(name)) && self.resend.insert(SmolStr::new(name)) {
            self.plan = None;
        }
    }

    /// The resources of this type may have changed, from those of `old`.
    pub(super) fn resources_changed(&mut self, old: Option<&ResourceSet>, set: &ResourceSet) {
        if let Some(plan) = old.and_then(|old| self.plan_after(old, set)) {
            self.plan = Some(plan);
            return;
        }
        self.plan = None;
        let kind = self.kind;
        let exists = |name: &str| set.get(kind, name).is_some();
        self.refusals.bound(exists);
        if !self.protocol.announces_removals(kind) {
            // The client may keep them, and gets them again should they come back.
            self.held.retain(|name, _| exists(name));
            let pending = self.pending.as_ref();
            self.resend
                .retain(|name| exists(name) || is_coming(pending, name));
        }
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
        let nothing = std::mem::take(&mut plan.nothing);
        self.plan = Some(plan);
        match batch {
            None if nothing || !self.answered => Some(Batch::default()),
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

    /// Takes note that a response with these changes goes out, and says what has to be in it. It is on its way until the
    /// client names its nonce.
    pub(super) fn sent(&mut self, nonce: SmolStr, batch: &Batch) -> Vec<Arc<Resource>> {
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
        let (written, whole, children) = if self.replaces_all() {
            let whole = self.whole(batch);
            let news = whole
                .iter()
                .filter(|r| self.held.get(r.name()) != Some(r.version()));
            let children = news.flat_map(|parent| parent.children()).cloned().collect();
            (whole.clone(), whole, children)
        } else {
            let children = batch.children().cloned().collect();
            (batch.upserts.clone(), Vec::new(), children)
        };
        self.pending = Some(Pending {
            nonce,
            items,
            dropped: BTreeSet::new(),
            again,
            children,
            whole,
        });
        written
    }

    /// What the client has accepted, with these changes.
    fn whole(&self, batch: &Batch) -> Vec<Arc<Resource>> {
        let mut whole = self.accepted.clone();
        for name in &batch.removals {
            whole.remove(name);
        }
        for resource in &batch.upserts {
            whole.insert(resource.name().clone(), resource.clone());
        }
        whole.into_values().collect()
    }

    /// How many changes are on their way.
    #[cfg(test)]
    pub(super) fn changes_on_their_way(&self) -> usize {
        self.pending
            .as_ref()
            .map_or(0, |pending| pending.items.len())
    }

    fn replaces_all(&self) -> bool {
        self.protocol.replaces_all(self.kind)
    }

    /// Takes note that a send pass found nothing more to send: if nothing is on its way, the client is up to date.
    pub(super) fn pass_ended(&mut self, set: &ResourceSet) {
        if self.registered() && !self.pending() && self.plan.as_ref().is_some_and(Plan::is_done) {
            self.synced_index = Some(set.index());
        }
    }

    /// The plan for a client that has got everything of the old set, if the new one has the same names: it follows from what
    /// differs between the two, whatever else there is.
    fn plan_after(&self, old: &ResourceSet, set: &ResourceSet) -> Option<Plan> {
        let done = self.plan.as_ref().is_some_and(Plan::is_done);
        let settled = done && self.answered && self.sight == Sight::Clear;
        if !settled || self.pending() || !self.resend.is_empty() {
            return None;
        }
        let (old, new) = (old.of(self.kind), set.of(self.kind));
        if old.len() != new.len() {
            return None;
        }
        let mut plan = Plan::default();
        for (old, new) in old.iter().zip(new) {
            if Arc::ptr_eq(old, new) {
                continue;
            }
            if old.name() != new.name() {
                return None;
            }
            if self.subscription.covers(new.name()) {
                self.plan_upsert(new, &mut plan);
            }
        }
        Some(plan)
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
        match &self.sight {
            Sight::Clear | Sight::Blind => {}
            Sight::Refused(whole) if is_whole(whole, &plan.batch.upserts) => {
                return Plan::default();
            }
            Sight::Refused(_) | Sight::AskedAnew => {
                plan.nothing = plan.batch.upserts.is_empty();
            }
        }
        let told = self.protocol.announces_removals(self.kind);
        for name in self.held.keys().filter(|_| told) {
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

/// Whether the client is about to get this resource, and wants it.
fn is_coming(pending: Option<&Pending>, name: &str) -> bool {
    let is = |(item, content): &(SmolStr, Content)| item == name && content.is_some();
    pending.is_some_and(|pending| pending.items.iter().any(is) && !pending.dropped.contains(name))
}

fn is_whole(whole: &[(SmolStr, SmolStr)], resources: &[Arc<Resource>]) -> bool {
    let whole = whole.iter().map(|(name, version)| (name, version));
    whole.eq(resources.iter().map(|of| (of.name(), of.version())))
}
