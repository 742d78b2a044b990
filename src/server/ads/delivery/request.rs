//! What a request of one type changes.

use super::answer::Verdict;
use super::{Delivery, Sight, UNKNOWN_VERSION};
use crate::server::ads::limits::AdsLimits;
use crate::server::ads::protocol::Protocol;
use crate::server::ads::request::{AdsRequest, Names};
use crate::server::ads::stream::RequestError;
use crate::server::ads::subscription::ALL;

use smol_str::SmolStr;

impl Delivery {
    /// Takes a request of this type (xds.md 1.5). A request that is over a limit changes nothing.
    pub(in crate::server::ads) fn request(
        &mut self,
        request: &AdsRequest<'_>,
        limits: &AdsLimits,
    ) -> Result<Verdict, RequestError> {
        self.check(&request.names, limits)?;
        let verdict = self.answer(request);
        let first = !self.registered();
        match request.names {
            Names::Changes {
                subscribe,
                unsubscribe,
                held,
            } => {
                if first {
                    self.subscription.register(self.kind, subscribe, held);
                    self.resume(held);
                }
                // Unsubscribing first: a name in both lists stays subscribed, and is sent again.
                for name in unsubscribe {
                    self.unsubscribe(name);
                }
                for name in subscribe {
                    self.subscribe(name, !first);
                }
            }
            Names::All(names) => {
                if first && self.replaces_all() && !request.version.is_empty() {
                    self.sight = Sight::Blind;
                }
                let changed = self.ask_for(names);
                // The client has seen the newest response, and has nothing to say about it nor other names to ask for:
                // then part of it wants once more what another part had asked for before.
                let seen = verdict == Verdict::None && !request.nonce.is_empty();
                if seen && !changed && !first {
                    self.ask_again();
                }
            }
        }
        Ok(verdict)
    }

    fn check(&self, names: &Names<'_>, limits: &AdsLimits) -> Result<(), RequestError> {
        let (count, longest) = match names {
            Names::Changes {
                subscribe, held, ..
            } => (
                self.subscription.names().len()
                    + self.subscription.count_new(subscribe)
                    + held.len(),
                subscribe
                    .iter()
                    .chain(held.keys())
                    .chain(held.values())
                    .map(String::len)
                    .max(),
            ),
            Names::All(names) => (names.len(), names.iter().map(String::len).max()),
        };
        if count > limits.max_names {
            return Err(RequestError::TooManyNames {
                kind: self.kind,
                limit: limits.max_names,
            });
        }
        if longest.is_some_and(|len| len > limits.max_name_len) {
            return Err(RequestError::NameTooLong {
                kind: self.kind,
                limit: limits.max_name_len,
            });
        }
        Ok(())
    }

    /// Makes the subscription equal to a complete list. Whether it wasn't before.
    fn ask_for(&mut self, names: &[String]) -> bool {
        let change = self.subscription.change_to(self.kind, names);
        // Subscribing first: what is covered before and after, by name or by wildcard, was covered all the time.
        for name in &change.subscribe {
            self.subscribe(name, false);
        }
        for name in &change.unsubscribe {
            self.unsubscribe(name);
        }
        if !change.is_empty() && matches!(self.sight, Sight::Refused(_)) {
            // Which part of what it refused it took depends on when it asked.
            self.sight = Sight::AskedAnew;
        }
        !change.is_empty()
    }

    /// The client asks for the same names once more. What replaces everything it can't have lost in part.
    fn ask_again(&mut self) {
        if self.replaces_all() {
            return;
        }
        let names: Vec<SmolStr> = self.held.keys().cloned().collect();
        for name in names {
            self.mark_resend(&name);
        }
    }

    /// `again`: what the client has got already it gets once more.
    fn subscribe(&mut self, name: &str, again: bool) {
        self.plan = None;
        if name == ALL && self.subscription.confirm_wildcard() {
            self.doubt_unnamed();
        }
        self.subscription.subscribe(name);
        self.pick_up(name);
        // Asking again for what the client has got, or is about to get, means that it wants it once more (row 16).
        // The names in a first request are no second asking: those it holds are the ones it lists with versions.
        if name != ALL && again {
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
            // Still covered by the wildcard. A client that names changes can't know whether that includes this resource
            // until it is told.
            if self.protocol == Protocol::Delta {
                self.mark_resend(name);
            }
        } else {
            self.forget(name);
        }
    }

    /// The client drops what it no longer asks for; so if it asks again, it has to be sent again (FC-021).
    fn forget(&mut self, name: &str) {
        self.held.remove(name);
        self.resend.remove(name);
        self.accepted.remove(name);
        self.refusals.clear(name);
        if let Some(pending) = &mut self.pending {
            if pending.items.iter().any(|(item, _)| item == name) {
                pending.dropped.insert(SmolStr::new(name));
            }
            self.lost_children
                .extend(pending.children_of(|other| other == name));
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
            accepted,
            refusals,
            pending,
            lost_children,
            ..
        } = self;
        held.retain(|name, _| subscription.covers(name));
        resend.retain(|name| subscription.covers(name));
        accepted.retain(|name, _| subscription.covers(name));
        refusals.retain_suspects(|name, _| subscription.covers(name));
        if let Some(pending) = pending {
            let names = pending.items.iter().map(|(name, _)| name);
            let dropped = names.filter(|name| !subscription.covers(name)).cloned();
            pending.dropped.extend(dropped);
            lost_children.extend(pending.children_of(|name| !subscription.covers(name)));
        }
    }
}
