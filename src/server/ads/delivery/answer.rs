//! What a client says about a response that was sent to it.

use std::collections::{BTreeSet, HashMap};

use smol_str::SmolStr;
use triomphe::Arc;

use super::{Delivery, Sight, UNKNOWN_VERSION};
use crate::server::ads::protocol::Protocol;
use crate::server::ads::refusal::{Content, shortened};
use crate::server::ads::request::AdsRequest;
use crate::xds::Resource;

/// What a request said about the last response of its type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::server::ads) enum Verdict {
    /// It carried no nonce, or (state of the world) that of the last response, which has been answered.
    None,
    /// It carried a nonce that belongs to no response on its way.
    Stale,
    Acked,
    Refused {
        names: Vec<SmolStr>,
        reason: SmolStr,
    },
}

/// The response that is on its way.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) nonce: SmolStr,
    /// What it changes.
    pub(super) items: Vec<(SmolStr, Content)>,
    /// Names among them that the client has unsubscribed from since: the answer says nothing about them.
    pub(super) dropped: BTreeSet<SmolStr>,
    /// Names among them that were sent because the client needs them again, whatever their version.
    pub(super) again: BTreeSet<SmolStr>,
    /// The resources of the child type that the client forgets when it gets the response.
    pub(super) children: Vec<SmolStr>,
    /// Everything that is in it, if it replaces all that the client has.
    pub(super) whole: Vec<Arc<Resource>>,
}

impl Pending {
    /// The children of some of the resources in a response that replaces everything.
    pub(super) fn children_of(&self, which: impl Fn(&str) -> bool) -> Vec<SmolStr> {
        let parents = self.whole.iter().filter(|parent| which(parent.name()));
        parents
            .flat_map(|parent| parent.children())
            .cloned()
            .collect()
    }
}

impl Delivery {
    /// Takes the acknowledgement or refusal that a request may carry. Only what the nonce belongs to counts (FC-023).
    pub(super) fn answer(&mut self, request: &AdsRequest<'_>) -> Verdict {
        if request.nonce.is_empty() || self.repeats_nonce(request) {
            return Verdict::None;
        }
        let Some(pending) = self
            .pending
            .take_if(|pending| pending.nonce == request.nonce)
        else {
            return Verdict::Stale;
        };
        self.last_answered = pending.nonce.clone();
        match request.error {
            None => {
                self.acked(pending);
                Verdict::Acked
            }
            Some(error) => {
                let reason = shortened(error);
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

    /// In the state of the world every request names the response that the client saw last, answered or not.
    fn repeats_nonce(&self, request: &AdsRequest<'_>) -> bool {
        self.protocol == Protocol::StateOfTheWorld
            && self.pending.is_none()
            && self.last_answered == request.nonce
            && request.error.is_none()
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
        if self.replaces_all() {
            self.accept(pending.whole, &pending.dropped);
        }
    }

    /// The client has got exactly this now, whatever it had taken before of responses that it refused.
    fn accept(&mut self, whole: Vec<Arc<Resource>>, dropped: &BTreeSet<SmolStr>) {
        self.plan = None;
        self.sight = Sight::Clear;
        let subscription = &self.subscription;
        let whole = whole.into_iter().map(|r| (r.name().clone(), r));
        self.accepted = whole
            .filter(|(name, _)| subscription.covers(name) && !dropped.contains(name))
            .collect();
        let accepted = &self.accepted;
        self.held
            .retain(|name, _| accepted.contains_key(name) || dropped.contains(name));
        // What it has accepted isn't in doubt any more, nor is the removal of what isn't there.
        let held = &self.held;
        self.refusals
            .retain_suspects(|name, content| match content {
                Some(version) => accepted.get(name).is_none_or(|of| of.version() != version),
                None => held.contains_key(name),
            });
        for (name, resource) in accepted {
            // One that it gave up and asked for again meanwhile it may have got before or after it gave it up.
            let version = match self.held.contains_key(name) {
                true => resource.version().clone(),
                false => UNKNOWN_VERSION,
            };
            self.held.insert(name.clone(), version);
        }
    }

    fn refused(&mut self, pending: Pending, reason: &SmolStr) {
        self.plan = None;
        self.last_refusal = Some(reason.clone());
        if self.sight != Sight::Clear {
            let whole = pending.whole.iter();
            let whole = whole.map(|of| (of.name().clone(), of.version().clone()));
            self.sight = Sight::Refused(whole.collect());
            return;
        }
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
    pub(super) fn resume(&mut self, held: &HashMap<String, String>) {
        self.plan = None;
        for (name, version) in held {
            if !self.subscription.wildcard() {
                self.subscription.subscribe(name);
            }
            self.held.insert(SmolStr::new(name), SmolStr::new(version));
        }
    }
}
