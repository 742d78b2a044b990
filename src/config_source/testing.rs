//! A small engine for tests: records and central configuration from the store, certificates from a double.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;

use crate::clock::TestClock;
use crate::engine::{EngineConfig, Manager};
use crate::hcl::Value;
use crate::model::{
    AgentCheck, CaRoots, ConfigEntry, EntryKind, IssuedCert, Node, PrivateKey, ProxyDefaults,
    ProxyId, ResolvedServiceConfig, ServiceDefaults, ServiceDefinition, ServiceInstance,
    SidecarPortRange, SpiffeId,
};
use crate::snapshot::Part;
use crate::source::{
    Answer, AuthScope, Feed, FeedSink, Query, QueryError, ResolveInput, Route, Sources,
    SubscriptionId, Views, resolve,
};
use crate::store::{AllowAll, MemoryBackend, Op, Reader, Register, Store, Transaction};

use super::LocalState;

/// Signs for every token that isn't revoked, and knows for which tokens it signs now.
#[derive(Default)]
pub struct TestLeaves(Mutex<Leaves>);

#[derive(Default)]
struct Leaves {
    subscriptions: BTreeMap<SubscriptionId, (String, FeedSink)>,
    revoked: Vec<String>,
}

impl TestLeaves {
    /// The tokens that certificates are kept for, sorted.
    pub fn tokens(&self) -> Vec<String> {
        let leaves = self.0.lock();
        let mut tokens: Vec<String> = leaves
            .subscriptions
            .values()
            .map(|(token, _)| token.clone())
            .collect();
        tokens.sort();
        tokens
    }

    /// From now on the token is no longer valid, which ends its proxies.
    pub fn revoke(&self, token: &str) {
        let told: Vec<_> = {
            let mut leaves = self.0.lock();
            leaves.revoked.push(token.to_owned());
            let of_token = leaves.subscriptions.iter().filter(|(_, s)| s.0 == token);
            of_token.map(|(id, s)| (*id, s.1.clone())).collect()
        };
        for (id, sink) in told {
            sink.answer(id, Err(QueryError::token_invalid("ACL not found")));
        }
    }

    /// The token is valid again.
    pub fn allow(&self, token: &str) {
        self.0.lock().revoked.retain(|t| t != token);
    }
}

impl Feed for TestLeaves {
    fn subscribe(&self, id: SubscriptionId, scope: &AuthScope, query: &Query, sink: FeedSink) {
        let Query::Leaf { service } = query else {
            return;
        };
        let mut leaves = self.0.lock();
        let token = scope.0.to_string();
        let answer = if leaves.revoked.contains(&token) {
            Err(QueryError::token_invalid("ACL not found"))
        } else {
            Ok(Answer::Leaf(Part::new(certificate(service))))
        };
        leaves.subscriptions.insert(id, (token, sink.clone()));
        drop(leaves);
        sink.answer(id, answer);
    }

    fn unsubscribe(&self, id: SubscriptionId) {
        self.0.lock().subscriptions.remove(&id);
    }
}

fn certificate(service: &str) -> IssuedCert {
    IssuedCert {
        serial_number: "01".into(),
        cert_pem: String::new(),
        private_key: PrivateKey::from_pem("key"),
        identity: SpiffeId::Service {
            trust_domain: "test.consul".into(),
            partition: "default".into(),
            namespace: "default".into(),
            datacenter: "dc1".into(),
            service: service.into(),
        },
        authority_key_id: "02".into(),
        valid_after: SystemTime::UNIX_EPOCH,
        valid_before: SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 40),
        create_index: 1,
        modify_index: 1,
    }
}

struct TestSources {
    leaves: Arc<TestLeaves>,
}

impl Views for TestSources {
    fn eval(&self, query: &Query, reader: &Reader<'_>) -> Result<Answer, QueryError> {
        Ok(match query {
            Query::CaRoots => Answer::CaRoots(Part::new(CaRoots {
                active_root_id: "02".into(),
                trust_domain: "test.consul".into(),
                roots: Vec::new(),
            })),
            Query::Intentions { .. } => Answer::Intentions(Part::new(Vec::new())),
            Query::Mesh => Answer::Mesh(Part::new(None)),
            Query::JwtProviders => Answer::JwtProviders(Part::new(Vec::new())),
            Query::ServiceRecord { node, service_id } => {
                let row = reader.instance(node.as_str(), service_id);
                Answer::ServiceRecord(Part::new(row.map(|row| row.value.clone())))
            }
            Query::ServiceConfig(request) => {
                let resolved = resolve(&ResolveInput {
                    request,
                    proxy_defaults: proxy_defaults(reader),
                    service_defaults: service_defaults(reader, &request.service),
                    upstream_defaults: &|name| service_defaults(reader, name),
                });
                let resolved: ResolvedServiceConfig = resolved;
                Answer::ServiceConfig(Part::new(resolved))
            }
            other => return Err(QueryError::new(format!("no {other} in this test"))),
        })
    }
}

fn proxy_defaults<'a>(reader: &Reader<'a>) -> Option<&'a ProxyDefaults> {
    match &**reader.config(EntryKind::ProxyDefaults, "global")? {
        ConfigEntry::ProxyDefaults(defaults) => Some(defaults),
        _ => None,
    }
}

fn service_defaults<'a>(reader: &Reader<'a>, name: &str) -> Option<&'a ServiceDefaults> {
    match &**reader.config(EntryKind::ServiceDefaults, name)? {
        ConfigEntry::ServiceDefaults(defaults) => Some(defaults),
        _ => None,
    }
}

impl Sources for TestSources {
    fn route(&self, query: &Query) -> Route {
        match query {
            Query::Leaf { .. } => Route::Feed(self.leaves.clone()),
            _ => Route::View,
        }
    }
}

/// An engine over an empty store, on a clock that stands still, and an empty local state of node `n1`.
pub struct Rig {
    pub clock: Arc<TestClock>,
    pub store: Arc<Store>,
    pub leaves: Arc<TestLeaves>,
    pub manager: Manager,
    pub state: Arc<LocalState>,
}

impl Rig {
    pub fn new() -> Self {
        Self::on(empty_store())
    }

    pub fn on(store: Arc<Store>) -> Self {
        let clock = Arc::new(TestClock::new());
        let leaves = Arc::new(TestLeaves::default());
        let sources = Arc::new(TestSources {
            leaves: leaves.clone(),
        });
        let config = EngineConfig {
            workers: 2,
            linger: Duration::ZERO,
            ..EngineConfig::default()
        };
        let manager = Manager::start(config, clock.clone(), store.clone(), sources).unwrap();
        Self {
            clock,
            store,
            leaves,
            manager,
            state: Arc::new(LocalState::new("n1", SidecarPortRange::default())),
        }
    }

    pub fn apply(&self, ops: Vec<Op>) -> u64 {
        let index = self.store.apply(Transaction { ops }).unwrap().index;
        self.manager.wait_index(index, soon()).unwrap();
        index
    }

    /// Writes a service into the catalog of a node, as the catalog API does.
    pub fn catalog(&self, node: &str, service: ServiceInstance) -> u64 {
        self.apply(vec![Op::Register(Box::new(Register {
            node: node_record(node),
            service: Some(service),
            ..Register::default()
        }))])
    }

    pub fn source_of(&self, id: &ProxyId) -> Option<String> {
        let status = self.manager.status(id)?;
        status.source.map(|s| s.to_string())
    }
}

pub fn empty_store() -> Arc<Store> {
    Arc::new(Store::new(Box::new(MemoryBackend), Arc::new(AllowAll)).unwrap())
}

pub fn node_record(name: &str) -> Node {
    Node {
        node: name.to_owned(),
        address: "10.0.0.1".to_owned(),
        datacenter: "dc1".to_owned(),
        ..Node::default()
    }
}

pub fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

/// Waits for what another thread does.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = soon();
    while !holds() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn document(json: serde_json::Value) -> Value {
    Value::from_json(&json)
}

pub fn definition(json: serde_json::Value) -> ServiceDefinition {
    ServiceDefinition::read(&document(json)).unwrap().0
}

pub fn check(json: serde_json::Value) -> AgentCheck {
    AgentCheck::read(&document(json)).unwrap().0
}

/// The catalog record of a sidecar for service `web`.
pub fn sidecar(id: &str, port: u16) -> ServiceInstance {
    let json = serde_json::json!({
        "Kind": "connect-proxy", "ID": id, "Name": "web-sidecar-proxy", "Port": port,
        "Proxy": {"DestinationServiceName": "web", "DestinationServiceID": "web"},
    });
    let mut instance = definition(json).to_instance();
    instance.weights.passing = 1;
    instance.weights.warning = 1;
    instance
}
