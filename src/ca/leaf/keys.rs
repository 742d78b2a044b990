//! The keys of the leaf manager with their certificates, subscriptions and timers. What to do with them is the table's
//! business.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use super::table::Now;
use super::{LeafSink, LeafSubscription};
use crate::ca::CaError;
use crate::model::{IssuedCert, LeafRequest};

pub(super) type Certificate = triomphe::Arc<IssuedCert>;

/// Number of a key, in order of first use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct KeyId(u64);

/// Whose sink it is that a certificate goes to.
pub(super) struct Subscriber {
    pub(super) sink: LeafSink,
    pub(super) cancelled: AtomicBool,
}

/// A subscriber, and which versions of the key's certificate and error were delivered to it last.
pub(super) struct Subscription {
    pub(super) subscriber: Arc<Subscriber>,
    pub(super) seen_certificate: u64,
    pub(super) seen_error: u64,
}

/// One call of a sink, to be made outside the lock.
pub(super) struct Delivery {
    pub(super) subscriber: Arc<Subscriber>,
    pub(super) value: Result<Certificate, CaError>,
}

impl Delivery {
    /// Calls the sink, unless the subscription ended meanwhile.
    pub(super) fn make(self) {
        if !self.subscriber.cancelled.load(Ordering::Acquire) {
            (self.subscriber.sink)(self.value);
        }
    }
}

/// Where a key stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    /// Nothing to do until a timer rings.
    Resting,
    /// In the queue of due renewals.
    Renewal,
    /// In the queue of renewals that somebody asked for.
    OnDemand,
    /// In the queue of those without a valid certificate.
    Urgent,
    /// Handed out to be signed.
    Signing,
}

/// One key.
pub(super) struct Entry {
    pub(super) request: LeafRequest,
    pub(super) place: Place,
    pub(super) certificate: Option<Certificate>,
    pub(super) certificate_version: u64,
    pub(super) error: Option<CaError>,
    pub(super) error_version: u64,
    /// Failures in a row.
    pub(super) failures: u32,
    /// A renewal was asked for while a signature was under way.
    pub(super) again: bool,
    pub(super) subscriptions: BTreeMap<LeafSubscription, Subscription>,
    /// Renewal instant, or the end of the certificate while it waits for its renewal.
    wall_timer: Option<SystemTime>,
    /// Jitter after a root change, or back-off after a failure.
    timer: Option<Duration>,
    linger_until: Option<Duration>,
}

impl Entry {
    /// The monotonic time at which it falls due, if one is set.
    pub(super) fn timer(&self) -> Option<Duration> {
        self.timer
    }
}

/// All keys, and the orders of their timers.
#[derive(Default)]
pub(super) struct Keys {
    ids: HashMap<LeafRequest, KeyId>,
    entries: BTreeMap<KeyId, Entry>,
    used_ids: u64,
    wall_timers: BTreeSet<(SystemTime, KeyId)>,
    timers: BTreeSet<(Duration, KeyId)>,
    lingering: BTreeSet<(Duration, KeyId)>,
}

impl Keys {
    pub(super) fn get(&self, id: KeyId) -> Option<&Entry> {
        self.entries.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: KeyId) -> Option<&mut Entry> {
        self.entries.get_mut(&id)
    }

    /// In order of first use.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }

    pub(super) fn ids(&self) -> Vec<KeyId> {
        self.entries.keys().copied().collect()
    }

    pub(super) fn find(&self, request: &LeafRequest) -> Option<KeyId> {
        self.ids.get(request).copied()
    }

    /// The key of a request, made if there is none.
    pub(super) fn of_request(&mut self, request: &LeafRequest) -> KeyId {
        if let Some(id) = self.find(request) {
            return id;
        }
        self.used_ids += 1;
        let id = KeyId(self.used_ids);
        self.ids.insert(request.clone(), id);
        self.entries.insert(
            id,
            Entry {
                request: request.clone(),
                place: Place::Resting,
                certificate: None,
                certificate_version: 0,
                error: None,
                error_version: 0,
                failures: 0,
                again: false,
                subscriptions: BTreeMap::new(),
                wall_timer: None,
                timer: None,
                linger_until: None,
            },
        );
        id
    }

    pub(super) fn valid_certificate(&self, id: KeyId, now: Now) -> Option<Certificate> {
        let certificate = self.entries.get(&id)?.certificate.as_ref()?;
        certificate
            .is_valid_at(now.wall)
            .then(|| certificate.clone())
    }

    pub(super) fn set_place(&mut self, id: KeyId, place: Place) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.place = place;
        }
    }

    pub(super) fn set_wall_timer(&mut self, id: KeyId, at: Option<SystemTime>) {
        if let Some(entry) = self.entries.get_mut(&id) {
            if let Some(old) = std::mem::replace(&mut entry.wall_timer, at) {
                self.wall_timers.remove(&(old, id));
            }
            self.wall_timers.extend(at.map(|at| (at, id)));
        }
    }

    pub(super) fn set_timer(&mut self, id: KeyId, at: Option<Duration>) {
        if let Some(entry) = self.entries.get_mut(&id) {
            if let Some(old) = std::mem::replace(&mut entry.timer, at) {
                self.timers.remove(&(old, id));
            }
            self.timers.extend(at.map(|at| (at, id)));
        }
    }

    pub(super) fn stop_timers(&mut self, id: KeyId) {
        self.set_timer(id, None);
        self.set_wall_timer(id, None);
    }

    /// Takes a key whose wall or monotonic timer has rung.
    pub(super) fn next_due(&mut self, now: Now) -> Option<KeyId> {
        if let Some((at, id)) = self.wall_timers.first().copied()
            && at <= now.wall
        {
            self.set_wall_timer(id, None);
            return Some(id);
        }
        let (at, id) = self.timers.first().copied()?;
        if at > now.monotonic {
            return None;
        }
        self.set_timer(id, None);
        Some(id)
    }

    /// The next monotonic time at which something may be due. Wall timers count as if wall time ran evenly, and are
    /// looked at every `wall_check`, because it may not.
    pub(super) fn next_timer(&self, now: Now, wall_check: Duration) -> Option<Duration> {
        let wall = self.wall_timers.first().map(|(at, _)| {
            let delay = at.duration_since(now.wall).unwrap_or_default();
            now.monotonic + delay.min(wall_check)
        });
        let timer = self.timers.first().map(|(at, _)| *at);
        let linger = self.lingering.first().map(|(at, _)| *at);
        [wall, timer, linger].into_iter().flatten().min()
    }

    /// Forgets the key at `until`, unless [`Keys::stop_lingering`] comes first.
    pub(super) fn linger(&mut self, id: KeyId, until: Duration) {
        self.stop_lingering(id);
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.linger_until = Some(until);
            self.lingering.insert((until, id));
        }
    }

    pub(super) fn stop_lingering(&mut self, id: KeyId) {
        if let Some(entry) = self.entries.get_mut(&id)
            && let Some(until) = entry.linger_until.take()
        {
            self.lingering.remove(&(until, id));
        }
    }

    /// Forgets the keys whose time of lingering is over.
    pub(super) fn forget_unused(&mut self, now: Duration) {
        while let Some((at, id)) = self.lingering.first().copied()
            && at <= now
        {
            self.lingering.pop_first();
            self.stop_timers(id);
            if let Some(entry) = self.entries.remove(&id) {
                self.ids.remove(&entry.request);
            }
        }
    }
}
