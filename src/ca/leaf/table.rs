//! The leaf manager without its thread: the rules by which keys are queued, signed and delivered. Every call
//! is told the time, so that tests need no thread.
//!
//! Each key (a distinct [`LeafRequest`]) has a place:
//!
//! - *resting*: nothing to do until its wall timer (renewal instant) or its monotonic timer (jitter after a root
//!   change, or back-off after a failure) rings;
//! - *urgent*, *on demand*, *renewal*: in one of the three queues;
//! - *signing*: handed out as a [`Job`].
//!
//! A key in the renewal queue keeps a wall timer at its certificate's end, which moves it to the urgent queue: an
//! expired certificate counts as none. Wall time may jump; the difference of the two clocks shows it, and then every
//! key is looked at once.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use smol_str::SmolStr;

use super::keys::{Certificate, Delivery, Entry, KeyId, Keys, Place, Subscriber, Subscription};
use super::random::Random;
use super::timing::{RateLimit, renewal_instant, retry_delay};
use super::{LeafOptions, LeafSink, LeafStatus, LeafSubscription};
use crate::ca::CaError;
use crate::model::LeafRequest;

/// A difference of wall and monotonic time that changes by more than this is a jump of wall time.
const JUMP: Duration = Duration::from_secs(2);

/// Both times of one instant.
#[derive(Debug, Clone, Copy)]
pub(super) struct Now {
    pub(super) wall: SystemTime,
    pub(super) monotonic: Duration,
}

/// What the authority says at the time of a call.
#[derive(Debug, Clone)]
pub(super) struct Issuer {
    pub(super) signing_key_id: SmolStr,
    pub(super) csr_max_per_second: f64,
}

/// One signature to be made outside the lock.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) key: KeyId,
    pub(super) request: LeafRequest,
}

/// What the thread does next.
#[derive(Debug)]
pub(super) enum Next {
    /// Make a signature and call [`Table::complete`].
    Sign(Job),
    /// Sleep until this monotonic time, or until woken.
    Sleep(Option<Duration>),
}

/// What a one-shot read finds.
#[derive(Debug)]
pub(super) enum Read {
    /// A certificate that is valid and not due.
    Ready(Certificate),
    /// The caller is to make this signature and call [`Table::complete`]; until then `fallback` is still valid.
    Sign {
        job: Job,
        fallback: Option<Certificate>,
    },
}

/// The table of keys.
pub(super) struct Table {
    options: LeafOptions,
    random: Random,
    keys: Keys,
    by_subscription: HashMap<LeafSubscription, KeyId>,
    next_id: u64,
    /// Places in a queue may be stale: only those count whose entry says so.
    urgent: VecDeque<KeyId>,
    on_demand: VecDeque<KeyId>,
    renewals: VecDeque<KeyId>,
    undelivered: BTreeSet<KeyId>,
    limit: RateLimit,
    /// The last instant seen, to notice jumps of wall time.
    last: Option<Now>,
}

impl Table {
    pub(super) fn new(options: LeafOptions) -> Self {
        let random = match options.seed {
            Some(seed) => Random::seeded(seed),
            None => Random::from_system(),
        };
        Self {
            options,
            random,
            keys: Keys::default(),
            by_subscription: HashMap::new(),
            next_id: 0,
            urgent: VecDeque::new(),
            on_demand: VecDeque::new(),
            renewals: VecDeque::new(),
            undelivered: BTreeSet::new(),
            limit: RateLimit::default(),
            last: None,
        }
    }

    fn fresh_number(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    pub(super) fn subscribe(
        &mut self,
        request: &LeafRequest,
        sink: LeafSink,
        now: Now,
    ) -> LeafSubscription {
        self.move_due(now);
        let id = self.keys.of_request(request);
        let subscription = LeafSubscription(self.fresh_number());
        self.by_subscription.insert(subscription, id);
        self.keys.stop_lingering(id);
        if let Some(entry) = self.keys.get_mut(id) {
            entry.subscriptions.insert(
                subscription,
                Subscription {
                    subscriber: Arc::new(Subscriber {
                        sink,
                        cancelled: AtomicBool::new(false),
                    }),
                    seen_certificate: 0,
                    seen_error: 0,
                },
            );
            self.undelivered.insert(id);
        }
        self.sign_first_if_missing(id, now);
        subscription
    }

    /// Ends a subscription. The returned subscriber is to be dropped outside the lock: its sink is foreign code.
    pub(super) fn unsubscribe(
        &mut self,
        subscription: LeafSubscription,
        now: Now,
    ) -> Option<Arc<Subscriber>> {
        let id = self.by_subscription.remove(&subscription)?;
        let entry = self.keys.get_mut(id)?;
        let ended = entry.subscriptions.remove(&subscription)?;
        ended.subscriber.cancelled.store(true, Ordering::Release);
        if entry.subscriptions.is_empty() {
            self.keys.linger(id, now.monotonic + self.options.linger);
        }
        Some(ended.subscriber)
    }

    /// A one-shot read: keeps the key for a while, and lets the caller sign if that can't wait or is due.
    pub(super) fn read(&mut self, request: &LeafRequest, issuer: &Issuer, now: Now) -> Read {
        self.move_due(now);
        let id = self.keys.of_request(request);
        if self
            .keys
            .get(id)
            .is_some_and(|entry| entry.subscriptions.is_empty())
        {
            self.keys.linger(id, now.monotonic + self.options.linger);
        }
        let valid = self.keys.valid_certificate(id, now);
        let due = self
            .keys
            .get(id)
            .is_some_and(|entry| matches!(entry.place, Place::Renewal | Place::OnDemand));
        if let Some(certificate) = valid.clone()
            && (!due
                || self
                    .limit
                    .take(issuer.csr_max_per_second, now.monotonic)
                    .is_err())
        {
            return Read::Ready(certificate);
        }
        self.keys.stop_timers(id);
        self.keys.set_place(id, Place::Signing);
        Read::Sign {
            job: Job {
                key: id,
                request: request.clone(),
            },
            fallback: valid,
        }
    }

    /// Asks for a renewal now. False if nobody uses the key.
    pub(super) fn renew(&mut self, request: &LeafRequest, now: Now) -> bool {
        self.move_due(now);
        let Some(id) = self.keys.find(request) else {
            return false;
        };
        let Some(entry) = self.keys.get_mut(id) else {
            return false;
        };
        match entry.place {
            Place::Resting | Place::Renewal => self.queue(id, Place::OnDemand, now),
            Place::Signing => entry.again = true,
            Place::Urgent | Place::OnDemand => {}
        }
        true
    }

    /// The roots changed: spreads the renewal of what another key signed over the jitter window, and tries again at
    /// once what has no valid certificate.
    pub(super) fn roots_changed(&mut self, issuer: &Issuer, now: Now) {
        self.move_due(now);
        let ids = self.keys.ids();
        for id in ids {
            let valid = self.keys.valid_certificate(id, now);
            let Some(entry) = self.keys.get_mut(id) else {
                continue;
            };
            if entry.place != Place::Resting {
                continue;
            }
            match valid {
                None => self.queue(id, Place::Urgent, now),
                Some(certificate) => {
                    if certificate.authority_key_id != issuer.signing_key_id {
                        entry.failures = 0;
                        self.renew_with_jitter(id, now);
                    }
                }
            }
        }
    }

    /// Sets the timer of a root change, unless something earlier is set already.
    fn renew_with_jitter(&mut self, id: KeyId, now: Now) {
        let at = now.monotonic + self.random.below(self.options.root_change_jitter);
        let sooner = self.keys.get(id).and_then(Entry::timer);
        self.keys
            .set_timer(id, Some(sooner.map_or(at, |sooner| sooner.min(at))));
    }

    /// The deliveries that are owed now.
    pub(super) fn take_deliveries(&mut self, now: Now) -> Vec<Delivery> {
        let mut deliveries = Vec::new();
        for id in std::mem::take(&mut self.undelivered) {
            let valid = self.keys.valid_certificate(id, now);
            let Some(entry) = self.keys.get_mut(id) else {
                continue;
            };
            for subscription in entry.subscriptions.values_mut() {
                let mut owe = |value| {
                    deliveries.push(Delivery {
                        subscriber: Arc::clone(&subscription.subscriber),
                        value,
                    });
                };
                // An expired certificate isn't delivered: its successor, or the reason why there is none, will be.
                if let Some(certificate) = &valid
                    && subscription.seen_certificate < entry.certificate_version
                {
                    subscription.seen_certificate = entry.certificate_version;
                    owe(Ok(certificate.clone()));
                }
                if let Some(error) = &entry.error
                    && subscription.seen_error < entry.error_version
                {
                    subscription.seen_error = entry.error_version;
                    owe(Err(error.clone()));
                }
            }
        }
        deliveries
    }

    /// What to do next.
    pub(super) fn next(&mut self, issuer: &Issuer, now: Now) -> Next {
        self.move_due(now);
        if let Some(job) = self.pop(Place::Urgent) {
            return Next::Sign(job);
        }
        let mut wake = self.keys.next_timer(now, self.options.wall_check);
        if self.drop_stale_renewals() {
            match self.limit.take(issuer.csr_max_per_second, now.monotonic) {
                Ok(()) => {
                    let job = self
                        .pop(Place::OnDemand)
                        .or_else(|| self.pop(Place::Renewal));
                    if let Some(job) = job {
                        return Next::Sign(job);
                    }
                }
                Err(free_at) => wake = Some(wake.map_or(free_at, |wake| wake.min(free_at))),
            }
        }
        Next::Sleep(wake)
    }

    /// The result of a job.
    pub(super) fn complete(
        &mut self,
        key: KeyId,
        result: Result<Certificate, CaError>,
        issuer: &Issuer,
        now: Now,
    ) {
        let Some(entry) = self.keys.get_mut(key) else {
            return;
        };
        let again = std::mem::take(&mut entry.again);
        self.undelivered.insert(key);
        self.keys.set_place(key, Place::Resting);
        match result {
            Ok(certificate) => self.keep(key, certificate, issuer, now),
            Err(error) => self.keep_error(key, error, now),
        }
        if again {
            self.queue(key, Place::OnDemand, now);
        }
    }

    fn keep(&mut self, key: KeyId, certificate: Certificate, issuer: &Issuer, now: Now) {
        let Some(entry) = self.keys.get_mut(key) else {
            return;
        };
        // Two may have signed at once (the thread and a reader): the later certificate stays.
        let known = entry.certificate.as_ref().map(|known| known.create_index);
        if known.is_none_or(|known| known < certificate.create_index) {
            entry.certificate = Some(certificate);
            entry.certificate_version += 1;
        }
        entry.error = None;
        entry.failures = 0;
        let Some(certificate) = entry.certificate.clone() else {
            return;
        };
        let renew_at = renewal_instant(
            certificate.valid_after,
            certificate.valid_before,
            now.wall,
            &mut self.random,
        );
        self.keys.set_timer(key, None);
        self.keys.set_wall_timer(key, Some(renew_at));
        if certificate.authority_key_id != issuer.signing_key_id {
            // The root was rotated while this was being signed.
            self.renew_with_jitter(key, now);
        }
    }

    fn keep_error(&mut self, key: KeyId, error: CaError, now: Now) {
        let Some(entry) = self.keys.get_mut(key) else {
            return;
        };
        if entry.error.as_ref() != Some(&error) {
            entry.error = Some(error);
            entry.error_version += 1;
        }
        entry.failures = entry.failures.saturating_add(1);
        let end = entry.certificate.as_ref().map(|kept| kept.valid_before);
        let delay = retry_delay(entry.failures, &mut self.random);
        self.keys.set_timer(key, Some(now.monotonic + delay));
        self.keys
            .set_wall_timer(key, end.filter(|end| now.wall < *end));
    }

    /// What is known of each key, in order of first use.
    pub(super) fn statuses(&self) -> Vec<LeafStatus> {
        let status = |entry: &Entry| LeafStatus {
            request: entry.request.clone(),
            serial_number: entry
                .certificate
                .as_ref()
                .map(|certificate| certificate.serial_number.clone()),
            valid_before: entry
                .certificate
                .as_ref()
                .map(|certificate| certificate.valid_before),
            error: entry.error.clone(),
            failures: entry.failures,
            subscribers: entry.subscriptions.len(),
        };
        self.keys.iter().map(status).collect()
    }

    /// Moves everything that is due into its queue, and forgets keys whose time of lingering is over.
    fn move_due(&mut self, now: Now) {
        if self.wall_time_jumped(now) {
            let ids = self.keys.ids();
            for id in ids {
                self.look_after_jump(id, now);
            }
        }
        self.last = Some(now);
        self.keys.forget_unused(now.monotonic);
        while let Some(id) = self.keys.next_due(now) {
            self.queue(id, Place::Renewal, now);
        }
    }

    fn wall_time_jumped(&self, now: Now) -> bool {
        let Some(last) = self.last else {
            return false;
        };
        let passed = now.monotonic.saturating_sub(last.monotonic);
        let Some(expected) = last.wall.checked_add(passed) else {
            return true;
        };
        let difference = match now.wall.duration_since(expected) {
            Ok(ahead) => ahead,
            Err(behind) => behind.duration(),
        };
        difference > JUMP
    }

    /// After a jump of wall time: what has become invalid (also "not valid yet") is signed anew; the renewal of what is
    /// still valid is set again from the new time.
    fn look_after_jump(&mut self, id: KeyId, now: Now) {
        let valid = self.keys.valid_certificate(id, now);
        let Some(entry) = self.keys.get(id) else {
            return;
        };
        match valid {
            Some(certificate) if entry.place == Place::Resting && entry.failures == 0 => {
                let renew_at = renewal_instant(
                    certificate.valid_after,
                    certificate.valid_before,
                    now.wall,
                    &mut self.random,
                );
                self.keys.set_wall_timer(id, Some(renew_at));
            }
            Some(_) => {}
            None if entry.certificate.is_some() => self.queue(id, Place::Urgent, now),
            None => {}
        }
    }

    /// Puts a key into the queue for `place`; without a valid certificate that is always the urgent one.
    fn queue(&mut self, id: KeyId, place: Place, now: Now) {
        let valid = self.keys.valid_certificate(id, now);
        let place = if valid.is_none() {
            Place::Urgent
        } else {
            place
        };
        let Some(entry) = self.keys.get(id) else {
            return;
        };
        if entry.place >= place {
            return;
        }
        self.keys.stop_timers(id);
        self.keys.set_place(id, place);
        match place {
            Place::Urgent => self.urgent.push_back(id),
            Place::OnDemand => self.on_demand.push_back(id),
            Place::Renewal => self.renewals.push_back(id),
            Place::Resting | Place::Signing => {}
        }
        if let Some(certificate) = valid {
            // While it waits for its turn, its certificate may run out.
            self.keys.set_wall_timer(id, Some(certificate.valid_before));
        }
    }

    fn sign_first_if_missing(&mut self, id: KeyId, now: Now) {
        let has_failed = self.keys.get(id).is_some_and(|entry| entry.failures > 0);
        // After a failure the back-off decides, not the number of subscribers.
        if !has_failed && self.keys.valid_certificate(id, now).is_none() {
            self.queue(id, Place::Urgent, now);
        }
    }

    /// Takes the next key of a queue that really waits there.
    fn pop(&mut self, place: Place) -> Option<Job> {
        loop {
            let queue = match place {
                Place::Urgent => &mut self.urgent,
                Place::OnDemand => &mut self.on_demand,
                _ => &mut self.renewals,
            };
            let id = queue.pop_front()?;
            let waits = self.keys.get(id).filter(|entry| entry.place == place);
            let Some(request) = waits.map(|entry| entry.request.clone()) else {
                continue;
            };
            self.keys.stop_timers(id);
            self.keys.set_place(id, Place::Signing);
            return Some(Job { key: id, request });
        }
    }

    /// Clears stale places at the heads of the limited queues. Whether anything waits there.
    fn drop_stale_renewals(&mut self) -> bool {
        let keys = &self.keys;
        let mut waiting = false;
        for (queue, place) in [
            (&mut self.on_demand, Place::OnDemand),
            (&mut self.renewals, Place::Renewal),
        ] {
            while let Some(id) = queue.front()
                && keys.get(*id).is_none_or(|entry| entry.place != place)
            {
                queue.pop_front();
            }
            waiting |= !queue.is_empty();
        }
        waiting
    }
}

#[cfg(test)]
mod tests;
