//! Which writes are refused, and which answers a write can change (store.md 3.18, 5, 6).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use super::*;
use crate::ca::Authority;
use crate::clock::TestClock;
use crate::model::{
    CaConfig, CheckStatus, ConfigEntry, EntryKey, EntryKind, ExposedChecks, HealthCheck, Node,
    ProxyMode, ServiceInstance, ServiceKind, decode_document,
};
use crate::store::{MemoryBackend, Op, Register, Store, Transaction, WaitHandle};

fn store() -> Store {
    Store::new(Box::new(MemoryBackend), Arc::new(ChainCheck)).unwrap()
}

fn write(entry: Value) -> Op {
    let entry: ConfigEntry = decode_document(&crate::hcl::Value::from_json(&entry))
        .unwrap_or_else(|problems| panic!("{}", problems.text()))
        .0;
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

fn accept(store: &Store, op: Op) {
    store.apply(Transaction::of(op)).unwrap();
}

/// The text of a refusal; the store stays as it was.
fn refuse(store: &Store, op: Op) -> String {
    let before = store.snapshot().index();
    let text = store.apply(Transaction::of(op)).unwrap_err().to_string();
    assert_eq!(store.snapshot().index(), before);
    text
}

fn protocol(service: &str, protocol: &str) -> Op {
    write(json!({"Kind": "service-defaults", "Name": service, "Protocol": protocol}))
}

#[test]
fn store_54_permissions_need_an_http_service() {
    let store = store();
    let permissions = || {
        write(
            json!({"Kind": "service-intentions", "Name": "api", "Sources": [
            {"Name": "web", "Permissions": [{"Action": "allow", "HTTP": {"PathPrefix": "/"}}]}]}),
        )
    };
    let text = refuse(&store, permissions());
    assert!(text.contains("\"api\"") && text.contains("tcp"), "{text}");
    accept(&store, protocol("api", "http"));
    accept(&store, permissions());
    let text = refuse(&store, delete(EntryKind::ServiceDefaults, "api"));
    assert!(text.contains("\"api\""), "{text}");
    accept(&store, delete(EntryKind::ServiceIntentions, "api"));
    accept(&store, delete(EntryKind::ServiceDefaults, "api"));
}

#[test]
fn store_56_token_providers_must_exist() {
    let store = store();
    let intentions = || {
        write(json!({"Kind": "service-intentions", "Name": "api",
            "Sources": [{"Name": "web", "Action": "allow"}], "JWT": {"Providers": [{"Name": "okta"}]}}))
    };
    accept(&store, protocol("api", "http"));
    let text = refuse(&store, intentions());
    assert!(
        text.contains("service-intentions/api: there is no jwt-provider \"okta\""),
        "{text}"
    );
    accept(
        &store,
        write(json!({"Kind": "jwt-provider", "Name": "okta",
            "JSONWebKeySet": {"Local": {"JWKS": "e30="}}})),
    );
    accept(&store, intentions());
}

#[test]
fn fc_046_store_136_a_protocol_that_a_chain_needs_stays() {
    let store = store();
    let defaults = |protocol| {
        write(json!({"Kind": "proxy-defaults", "Name": "global", "Config": {"protocol": protocol}}))
    };
    let router = || {
        write(json!({"Kind": "service-router", "Name": "api", "Routes": [
            {"Match": {"HTTP": {"PathPrefix": "/t"}}, "Destination": {"Service": "t"}}]}))
    };
    let text = refuse(&store, router());
    assert!(text.contains("\"api\""), "{text}");
    accept(&store, defaults("http"));
    accept(&store, router());
    let before = store.snapshot().index();
    accept(&store, defaults("http"));
    assert_eq!(store.snapshot().index(), before, "the same again");
    for op in [defaults("tcp"), delete(EntryKind::ProxyDefaults, "global")] {
        let text = refuse(&store, op);
        assert!(text.contains("\"api\""), "{text}");
    }
}

#[test]
fn store_140_permissive_only_where_the_mesh_allows_it() {
    for kind in ["service-defaults", "proxy-defaults"] {
        let store = store();
        let name = if kind == "proxy-defaults" {
            "global"
        } else {
            "web"
        };
        let permissive = |meta: &str| {
            write(
                json!({"Kind": kind, "Name": name, "MutualTLSMode": "permissive", "Meta": {"m": meta}}),
            )
        };
        let mesh = |allow: bool| {
            write(
                json!({"Kind": "mesh", "Name": "mesh", "AllowEnablingPermissiveMutualTLS": allow}),
            )
        };
        let text = refuse(&store, permissive("1"));
        assert!(
            text.contains(&format!("{kind}/{name}"))
                && text.contains("AllowEnablingPermissiveMutualTLS"),
            "{text}"
        );
        accept(&store, mesh(true));
        accept(&store, permissive("1"));
        // What is permissive already may be written again.
        accept(&store, mesh(false));
        accept(&store, permissive("1"));
        accept(&store, permissive("2"));
        accept(
            &store,
            write(json!({"Kind": kind, "Name": name, "MutualTLSMode": "strict"})),
        );
        refuse(&store, permissive("3"));
    }
}

fn register(node: &str, service: Option<ServiceInstance>, checks: Vec<HealthCheck>) -> Op {
    Op::Register(Box::new(Register {
        node: Node {
            node: node.into(),
            address: "10.0.0.1".into(),
            datacenter: "dc1".into(),
            ..Node::default()
        },
        service,
        checks,
        ..Register::default()
    }))
}

fn service(name: &str) -> ServiceInstance {
    ServiceInstance {
        service: name.into(),
        port: 8080,
        ..ServiceInstance::default()
    }
}

fn sidecar(of: &str, port: u16) -> ServiceInstance {
    let mut sidecar = service(&format!("{of}-sidecar-proxy"));
    sidecar.kind = ServiceKind::ConnectProxy;
    sidecar.port = port;
    sidecar.proxy.destination_service_name = of.into();
    sidecar
}

fn check(node: &str, service_id: &str, status: CheckStatus) -> Op {
    Op::SetCheck(Box::new(HealthCheck {
        node: node.into(),
        check_id: format!("check-of-{service_id}"),
        service_id: service_id.into(),
        status,
        ..HealthCheck::default()
    }))
}

/// Queries with a name each, and what they answer.
struct Asked<'s> {
    store: &'s Store,
    views: StoreViews,
    queries: Vec<(&'static str, Query)>,
    answers: BTreeMap<&'static str, Option<Answer>>,
}

/// What a write did: the queries whose reads it touched, and those of them whose answer differs.
type Effect = (BTreeSet<&'static str>, BTreeSet<&'static str>);

impl<'s> Asked<'s> {
    fn new(store: &'s Store, queries: Vec<(&'static str, Query)>) -> Self {
        let views = StoreViews {
            datacenter: "dc1".into(),
        };
        let mut asked = Self {
            store,
            views,
            queries,
            answers: BTreeMap::new(),
        };
        asked.effect_of(Vec::new());
        asked
    }

    fn effect_of(&mut self, ops: Vec<Op>) -> Effect {
        let snapshot = self.store.snapshot();
        let mut waits: Vec<(&'static str, Arc<AtomicBool>, WaitHandle)> = Vec::new();
        for (name, query) in &self.queries {
            let reader = snapshot.reader();
            let _ = self.views.answer(query, &reader);
            let touched = Arc::new(AtomicBool::new(false));
            let flag = touched.clone();
            let handle = self.store.wait_until_changed(
                reader.finish(),
                snapshot.index(),
                Box::new(move || flag.store(true, Ordering::SeqCst)),
            );
            waits.push((name, touched, handle));
        }
        if !ops.is_empty() {
            assert!(self.store.apply(Transaction::from(ops)).unwrap().changed);
        }
        let touched = waits
            .iter()
            .filter(|(_, touched, _)| touched.load(Ordering::SeqCst))
            .map(|(name, ..)| *name)
            .collect();
        let snapshot = self.store.snapshot();
        let reader = snapshot.reader();
        let mut changed = BTreeSet::new();
        for (name, query) in &self.queries {
            let new = self.views.answer(query, &reader).ok();
            let old = self.answers.insert(name, new.clone());
            let same = match (old.flatten(), new) {
                (Some(old), Some(new)) => old.same_content(&new),
                (None, None) => true,
                _ => false,
            };
            if !same {
                changed.insert(*name);
            }
        }
        (touched, changed)
    }
}

#[test]
fn store_150_a_write_touches_only_the_answers_of_its_row() {
    let store = store();
    let authority =
        Authority::bootstrap(Arc::new(TestClock::new()), "dc1", CaConfig::default()).unwrap();
    let roots = |authority: &Authority| Op::SetCaRoots {
        roots: Box::new(authority.roots()),
        cas: None,
    };
    accept(&store, roots(&authority));
    for (node, name) in [("n1", "web"), ("n2", "db"), ("n3", "cache")] {
        accept(&store, register(node, Some(service(name)), vec![]));
        accept(&store, register(node, Some(sidecar(name, 21000)), vec![]));
    }
    let chain = |service: &str| {
        Query::Chain(ChainQuery {
            service: service.into(),
            datacenter: "dc1".into(),
            ..ChainQuery::default()
        })
    };
    let endpoints = |service: &str| {
        Query::Endpoints(EndpointsQuery {
            service: service.into(),
            datacenter: "dc1".into(),
            ..EndpointsQuery::default()
        })
    };
    let config = |service: &str, upstreams: &[&str]| {
        Query::ServiceConfig(ServiceConfigQuery {
            service: service.into(),
            mode: ProxyMode::Inherit,
            upstreams: upstreams.iter().map(|u| ("".into(), (*u).into())).collect(),
            ..ServiceConfigQuery::default()
        })
    };
    let intentions = |service: &str| Query::Intentions {
        service: service.into(),
    };
    let mut asked = Asked::new(
        &store,
        vec![
            ("roots", Query::CaRoots),
            ("mesh", Query::Mesh),
            ("providers", Query::JwtProviders),
            ("intentions db", intentions("db")),
            ("intentions web", intentions("web")),
            ("chain db", chain("db")),
            ("chain cache", chain("cache")),
            ("endpoints db", endpoints("db")),
            ("endpoints cache", endpoints("cache")),
            ("config web", config("web", &["db"])),
            ("config cache", config("cache", &[])),
            (
                "record",
                Query::ServiceRecord {
                    node: "n1".into(),
                    service_id: "web-sidecar-proxy".into(),
                },
            ),
        ],
    );
    let mut moved = Node {
        node: "n2".into(),
        address: "10.9.9.9".into(),
        datacenter: "dc1".into(),
        ..Node::default()
    };
    moved.meta.insert("rack".into(), "1".into());
    let node = Op::Register(Box::new(Register {
        node: moved,
        ..Register::default()
    }));
    let both_chains = ["chain cache", "chain db"];
    // A write, and the rows that it may touch, the changed ones first: a number says how many of them change.
    let rows: Vec<(&str, Op, usize, Vec<&str>)> = vec![
        ("node", node, 1, vec!["endpoints db"]),
        (
            "instance",
            register("n9", Some(service("db")), vec![]),
            0,
            vec![],
        ),
        (
            "sidecar",
            register("n9", Some(sidecar("db", 21000)), vec![]),
            1,
            vec!["endpoints db"],
        ),
        (
            "the proxy's own record",
            register("n1", Some(sidecar("web", 21009)), vec![]),
            1,
            vec!["record"],
        ),
        (
            "service check",
            check("n9", "db-sidecar-proxy", CheckStatus::Critical),
            1,
            vec!["endpoints db"],
        ),
        (
            "node check",
            check("n9", "", CheckStatus::Critical),
            0,
            vec!["endpoints db"],
        ),
        (
            "node check on the proxy's own node",
            check("n1", "", CheckStatus::Critical),
            0,
            vec![],
        ),
        (
            "another service",
            register("n4", Some(sidecar("other", 1)), vec![]),
            0,
            vec![],
        ),
        (
            "proxy-defaults",
            write(
                json!({"Kind": "proxy-defaults", "Name": "global", "Config": {"protocol": "http"}}),
            ),
            4,
            vec![both_chains[0], both_chains[1], "config web", "config cache"],
        ),
        (
            "service-defaults of an upstream",
            write(json!({"Kind": "service-defaults", "Name": "db", "Protocol": "grpc"})),
            2,
            vec!["chain db", "config web"],
        ),
        (
            "service-defaults of the service itself",
            write(json!({"Kind": "service-defaults", "Name": "web", "MaxInboundConnections": 7})),
            1,
            vec!["config web"],
        ),
        (
            "resolver",
            write(json!({"Kind": "service-resolver", "Name": "db", "ConnectTimeout": "3s"})),
            1,
            vec!["chain db"],
        ),
        (
            "splitter",
            write(
                json!({"Kind": "service-splitter", "Name": "cache", "Splits": [{"Weight": 100.0}]}),
            ),
            1,
            vec!["chain cache"],
        ),
        (
            "router of a service that nobody asks about",
            write(json!({"Kind": "service-router", "Name": "other"})),
            0,
            vec![],
        ),
        (
            "intentions",
            write(
                json!({"Kind": "service-intentions", "Name": "db", "Sources": [{"Name": "web", "Action": "allow"}]}),
            ),
            1,
            vec!["intentions db"],
        ),
        (
            "intentions of all",
            write(
                json!({"Kind": "service-intentions", "Name": "*", "Sources": [{"Name": "*", "Action": "deny"}]}),
            ),
            2,
            vec!["intentions db", "intentions web"],
        ),
        (
            "mesh",
            write(json!({"Kind": "mesh", "Name": "mesh"})),
            1,
            vec!["mesh"],
        ),
        (
            "provider",
            write(
                json!({"Kind": "jwt-provider", "Name": "okta", "JSONWebKeySet": {"Local": {"JWKS": "e30="}}}),
            ),
            1,
            vec!["providers"],
        ),
        (
            "roots",
            {
                authority.rotate().unwrap();
                roots(&authority)
            },
            1,
            vec!["roots", both_chains[0], both_chains[1]],
        ),
    ];
    for (what, op, count, allowed) in rows {
        let (touched, changed) = asked.effect_of(vec![op]);
        let expected: BTreeSet<&str> = allowed[..count].iter().copied().collect();
        let allowed: BTreeSet<&str> = allowed.into_iter().collect();
        assert_eq!(changed, expected, "{what}");
        assert!(touched.is_subset(&allowed), "{what}: {touched:?}");
        assert!(touched.is_superset(&changed), "{what}: {touched:?}");
    }
}

#[test]
fn store_4_11_checks_of_an_instance_that_a_sidecar_opens() {
    let store = store();
    let query = Query::ExposedChecks {
        node: "n1".into(),
        service_id: "web".into(),
    };
    let views = StoreViews {
        datacenter: "dc1".into(),
    };
    let ask = || match views.answer(&query, &store.snapshot().reader()) {
        Ok(Answer::ExposedChecks(checks)) => (**checks).clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(ask(), ExposedChecks::default());
    let http = |status| HealthCheck {
        node: "n1".into(),
        check_id: "http".into(),
        service_id: "web".into(),
        status,
        definition: crate::model::CheckDefinition {
            http: "http://localhost:8080/health".into(),
            ..Default::default()
        },
        ..HealthCheck::default()
    };
    accept(
        &store,
        register(
            "n1",
            Some(service("web")),
            vec![http(CheckStatus::Critical)],
        ),
    );
    let exposed = ask();
    assert_eq!(exposed.paths.len(), 1);
    assert_eq!(exposed.paths[0].path, "/health");
    assert_eq!(exposed.complaints, [""; 0]);
    // How it goes doesn't matter.
    accept(
        &store,
        register("n1", Some(service("web")), vec![http(CheckStatus::Passing)]),
    );
    assert_eq!(ask(), exposed);
}

#[test]
fn what_a_store_can_not_answer_is_an_error_that_says_so() {
    let store = store();
    let views = StoreViews {
        datacenter: "dc1".into(),
    };
    let snapshot = store.snapshot();
    let ask = |query: &Query| {
        let answer = views.answer(query, &snapshot.reader());
        answer.map(drop).unwrap_err().to_string()
    };
    let endpoints = |filter: &str, datacenter: &str, peer: &str| {
        Query::Endpoints(EndpointsQuery {
            service: "db".into(),
            filter: filter.into(),
            datacenter: datacenter.into(),
            peer: peer.into(),
        })
    };
    assert!(ask(&endpoints("", "dc2", "")).contains("\"dc2\""));
    assert!(ask(&endpoints("", "", "east")).contains("\"east\""));
    assert!(ask(&endpoints("Service.Nope == 1", "dc1", "")).contains("Nope"));
    let chain = ChainQuery {
        service: "db".into(),
        ..ChainQuery::default()
    };
    assert!(ask(&Query::Chain(chain)).contains("trust domain"));
    assert!(ask(&Query::CaRoots).contains("CA"));
}
