//! A feed that answers late, again, wrongly, or not without a panic.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use proxycfg::model::{IssuedCert, PrivateKey, SpiffeId};
use proxycfg::snapshot::Part;
use proxycfg::source::{Answer, AuthScope, Feed, FeedSink, Query, QueryError, SubscriptionId};

use crate::faults::Random;

#[derive(Clone)]
struct Live {
    scope: AuthScope,
    query: Query,
    sink: FeedSink,
}

/// Certificates from a host.
pub struct Moody {
    live: Mutex<BTreeMap<SubscriptionId, Live>>,
    /// Subscriptions that are over, whose answers come nevertheless.
    over: Mutex<Vec<(SubscriptionId, Live)>>,
    random: Mutex<Random>,
    calm: AtomicBool,
    serial: AtomicU64,
}

impl Moody {
    pub fn new(seed: u64) -> Self {
        Self {
            live: Mutex::default(),
            over: Mutex::default(),
            random: Mutex::new(Random::new(seed)),
            calm: AtomicBool::new(false),
            serial: AtomicU64::new(1),
        }
    }

    pub fn count(&self) -> usize {
        self.live.lock().len()
    }

    /// Answers everybody well, from now on at once.
    pub fn calm(&self) {
        self.calm.store(true, Ordering::SeqCst);
        let live = self.live.lock().clone();
        for (id, of) in live {
            of.sink.answer(id, Ok(self.certificate(&of.query)));
        }
    }

    /// Answers some, well or not; also some that ask no more.
    pub fn stir(&self) {
        let live = self.live.lock().clone();
        for (id, of) in live {
            let drawn = self.random.lock().below(6);
            match drawn {
                0 => of.sink.answer(id, Err(QueryError::new("by intent"))),
                1 | 2 => of.sink.answer(id, Ok(self.certificate(&of.query))),
                3 => {
                    let answer = self.certificate(&of.query);
                    let twice = vec![(id, Ok(answer.clone())), (id, Ok(answer))];
                    of.sink.answer_all(twice);
                }
                _ => {}
            }
        }
        let over = std::mem::take(&mut *self.over.lock());
        for (id, of) in over {
            of.sink.answer(id, Ok(self.certificate(&of.query)));
        }
    }

    /// Ends the tokens of all that have one.
    pub fn end_tokens(&self) {
        let live = self.live.lock().clone();
        for (id, of) in live {
            if !of.scope.0.is_empty() {
                of.sink
                    .answer(id, Err(QueryError::token_invalid("ACL not found")));
            }
        }
    }

    fn certificate(&self, query: &Query) -> Answer {
        let Query::Leaf { service } = query else {
            panic!("only leaves come from here: {query}")
        };
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        Answer::Leaf(Part::new(IssuedCert {
            serial_number: serial.to_string().into(),
            cert_pem: "certificate".into(),
            private_key: PrivateKey::from_pem("key"),
            identity: SpiffeId::Service {
                trust_domain: "td.consul".into(),
                partition: "default".into(),
                namespace: "default".into(),
                datacenter: "dc1".into(),
                service: service.as_str().into(),
            },
            authority_key_id: "00".into(),
            valid_after: SystemTime::UNIX_EPOCH,
            valid_before: SystemTime::UNIX_EPOCH + Duration::from_secs(4_000_000_000),
            create_index: serial,
            modify_index: serial,
        }))
    }
}

impl Feed for Moody {
    fn subscribe(&self, id: SubscriptionId, scope: &AuthScope, query: &Query, sink: FeedSink) {
        let of = Live {
            scope: scope.clone(),
            query: query.clone(),
            sink,
        };
        self.live.lock().insert(id, of.clone());
        let drawn = if self.calm.load(Ordering::SeqCst) {
            0
        } else {
            self.random.lock().below(6)
        };
        match drawn {
            0..=2 => of.sink.answer(id, Ok(self.certificate(query))),
            3 => of.sink.answer(id, Err(QueryError::new("by intent"))),
            4 => panic!("by intent"),
            // Late.
            _ => {}
        }
    }

    fn unsubscribe(&self, id: SubscriptionId) {
        if let Some(of) = self.live.lock().remove(&id) {
            self.over.lock().push((id, of));
        }
    }
}
