//! Tests by rule; the ids are those of the specification's tests.

mod config;
mod groups;
mod health;
pub(super) mod histories;
mod index;
mod scale;
mod waits;

use std::sync::Arc;

use crate::model::{
    CheckStatus, ConfigEntry, EntryKey, EntryKind, HealthCheck, IntentionAction, NameKey, Node,
    ServiceDefaults, ServiceInstance, ServiceIntentions, ServiceKind, SourceIntention,
};
use crate::store::{
    AllowAll, Applied, Backend, Changes, MemoryBackend, Op, Reader, Reads, Register, Store,
    StoreError, StoreSnapshot, Transaction, WriteCheck,
};

fn new_store() -> Store {
    Store::new(Box::new(MemoryBackend), Arc::new(AllowAll)).unwrap()
}

fn store_with(backend: impl Backend + 'static, check: impl WriteCheck + 'static) -> Store {
    Store::new(Box::new(backend), Arc::new(check)).unwrap()
}

fn node(name: &str) -> Node {
    Node {
        node: name.into(),
        address: "10.0.0.1".into(),
        datacenter: "dc1".into(),
        ..Node::default()
    }
}

fn service(name: &str, port: u16) -> ServiceInstance {
    ServiceInstance {
        service: name.into(),
        port,
        ..ServiceInstance::default()
    }
}

/// `proxy X→Y` of the specification.
fn proxy(name: &str, destination: &str) -> ServiceInstance {
    let mut proxy = service(name, 20_000);
    proxy.kind = ServiceKind::ConnectProxy;
    proxy.proxy.destination_service_name = destination.into();
    proxy
}

fn check(id: &str, service_id: &str, status: CheckStatus) -> HealthCheck {
    HealthCheck {
        check_id: id.into(),
        name: id.into(),
        service_id: service_id.into(),
        status,
        ..HealthCheck::default()
    }
}

fn register(node_name: &str, service: Option<ServiceInstance>, checks: Vec<HealthCheck>) -> Op {
    Op::Register(Box::new(Register {
        node: node(node_name),
        service,
        checks,
        ..Register::default()
    }))
}

/// `reg svc@node` of the specification.
fn reg(service_name: &str, node_name: &str) -> Op {
    register(node_name, Some(service(service_name, 8080)), vec![])
}

fn deregister(node: &str, id: &str) -> Op {
    Op::DeregisterService {
        node: node.into(),
        id: NameKey::new(id),
    }
}

fn set(entry: ConfigEntry) -> Op {
    Op::SetConfig {
        entry: Box::new(entry),
        cas: None,
    }
}

fn delete(kind: EntryKind, name: &str) -> Op {
    Op::DeleteConfig {
        key: EntryKey::new(kind, name),
        cas: None,
    }
}

fn defaults(name: &str, protocol: &str) -> ConfigEntry {
    ConfigEntry::ServiceDefaults(ServiceDefaults {
        kind: "service-defaults".into(),
        name: name.into(),
        protocol: protocol.into(),
        ..ServiceDefaults::default()
    })
}

fn intentions(destination: &str, sources: &[(&str, &str, IntentionAction)]) -> ConfigEntry {
    ConfigEntry::ServiceIntentions(ServiceIntentions {
        kind: "service-intentions".into(),
        name: destination.into(),
        sources: sources
            .iter()
            .map(|(peer, name, action)| SourceIntention {
                name: (*name).into(),
                peer: (*peer).into(),
                action: *action,
                ..SourceIntention::default()
            })
            .collect(),
        ..ServiceIntentions::default()
    })
}

fn apply(store: &Store, op: Op) -> Applied {
    store.apply(Transaction::of(op)).unwrap()
}

fn refused(store: &Store, op: Op) -> String {
    store.apply(Transaction::of(op)).unwrap_err().to_string()
}

/// A query that a test keeps up to date as a view would: it runs again only when a key that it read has changed.
struct Kept<'s, T> {
    store: &'s Store,
    feed: crate::store::ChangeFeed,
    query: Box<dyn Fn(&Reader<'_>) -> T>,
    reads: Reads,
    index: u64,
    answer: T,
    runs: usize,
}

impl<'s, T: PartialEq + Clone> Kept<'s, T> {
    fn new(store: &'s Store, query: impl Fn(&Reader<'_>) -> T + 'static) -> Self {
        let feed = store.changes();
        let snapshot = store.snapshot();
        let reader = snapshot.reader();
        let answer = query(&reader);
        let reads = reader.finish();
        Self {
            store,
            feed,
            query: Box::new(query),
            index: snapshot.index_of(&reads),
            reads,
            answer,
            runs: 1,
        }
    }

    /// The new answer, if a commit has led to another one since the last call.
    fn delivered(&mut self) -> Option<T> {
        let changes = self.feed.take()?;
        let concerned = changes.everything
            || self
                .reads
                .keys()
                .iter()
                .any(|key| changes.keys.binary_search(key).is_ok());
        let before = self.index;
        let now = self.run(&changes.snapshot, concerned);
        // What didn't read a changed key has the same index as before.
        assert!(concerned || self.index == before || self.answer == now);
        assert!(self.index >= before, "the index went back");
        if now == self.answer {
            return None;
        }
        assert!(concerned, "an answer changed without any of its keys");
        self.answer = now.clone();
        Some(now)
    }

    fn run(&mut self, snapshot: &StoreSnapshot, counted: bool) -> T {
        let reader = snapshot.reader();
        let answer = (self.query)(&reader);
        let reads = reader.finish();
        self.index = snapshot.index_of(&reads);
        self.reads = reads;
        self.runs += usize::from(counted);
        answer
    }

    /// How often the query ran since the last call.
    fn woken(&mut self) -> usize {
        std::mem::take(&mut self.runs)
    }

    fn apply(&mut self, op: Op) -> Option<T> {
        apply(self.store, op);
        self.delivered()
    }
}

/// The addresses, instances and check states that a health query shows.
fn health(service: &'static str) -> impl Fn(&Reader<'_>) -> Vec<String> {
    move |reader| shown(&reader.instances(service))
}

/// As [`health`], over the mesh.
fn connect(service: &'static str) -> impl Fn(&Reader<'_>) -> Vec<String> {
    move |reader| shown(&reader.connect_instances(service))
}

fn shown(rows: &[crate::store::InstanceRow<'_>]) -> Vec<String> {
    rows.iter()
        .map(|row| {
            let checks: Vec<String> = row
                .checks
                .iter()
                .map(|c| format!(" {}={}{}", c.check_id, c.status, c.output))
                .collect();
            format!(
                "{}({}):{}{}",
                row.node.node,
                row.node.address,
                row.service.id,
                checks.concat()
            )
        })
        .collect()
}

fn take(changes: &crate::store::ChangeFeed) -> Changes {
    changes.take().unwrap()
}

fn problems(error: &StoreError) -> Vec<String> {
    error.to_string().lines().map(str::to_owned).collect()
}
