//! Rules of kinds.md 14.1 and store.md 6 that show only with the whole engine: what a sidecar asks for, and when it is ready.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use proxycfg::model::{CheckStatus, EntryKey, EntryKind, ExposedChecks, MeshGatewayMode, Upstream};
use proxycfg::snapshot::{ConfigSnapshot, KindSnapshot, Part};
use proxycfg::source::{Answer, ChainQuery, EndpointsQuery, Query, QueryError, StoreViews};
use proxycfg::store::Op;
use serde_json::json;

use crate::host::*;
use crate::world::*;

/// What the embedded views answer, through the feed; certificates too.
fn from_store(host: &Host, query: &Query) -> Result<Answer, QueryError> {
    let views = StoreViews {
        datacenter: "dc1".into(),
    };
    certificate_for(query).unwrap_or_else(|| views.answer(query, &host.store.snapshot().reader()))
}

/// A host whose feed is asked everything and answers from the store what `answered` says.
fn fed_host(answered: impl Fn(&Query) -> bool + Send + Sync + 'static) -> Host {
    let host = Host::with(|_| {}, |_| true);
    let store = host.store.clone();
    let views = StoreViews {
        datacenter: "dc1".into(),
    };
    host.feed().answer_with(move |_, query| {
        answered(query).then(|| {
            certificate_for(query)
                .unwrap_or_else(|| views.answer(query, &store.snapshot().reader()))
        })
    });
    host
}

fn upstream_to(name: &str, datacenter: &str, port: u16, mode: MeshGatewayMode) -> Upstream {
    let mut upstream = Upstream {
        destination_name: name.into(),
        datacenter: datacenter.into(),
        local_bind_port: port,
        ..Upstream::default()
    };
    upstream.mesh_gateway.mode = mode;
    upstream
}

#[test]
fn kinds_t1_t4_t5_a_sidecar_asks_for_exactly_what_it_needs() {
    let host = fed_host(|_| true);
    host.apply(vec![entry_op(
        json!({"Kind": "service-resolver", "Name": "api-dc2",
        "Redirect": {"Service": "api", "Datacenter": "dc2"}}),
    )]);
    let mut web = sidecar("web", &[]);
    web.proxy.upstreams = vec![
        upstream_to("api", "", 10002, MeshGatewayMode::Default),
        upstream_to("api-failover-remote", "dc2", 10003, MeshGatewayMode::Remote),
        upstream_to("api-failover-local", "dc2", 10004, MeshGatewayMode::Local),
        upstream_to("api-failover-direct", "dc2", 10005, MeshGatewayMode::None),
        upstream_to("api-dc2", "", 10006, MeshGatewayMode::Default),
    ];
    let id = proxy_id("web");
    host.register(&id, web);
    host.ready(&id);
    let chain = |service: &str, datacenter: &str, mode| {
        Query::Chain(ChainQuery {
            service: service.into(),
            datacenter: datacenter.into(),
            override_mesh_gateway: mode,
            ..ChainQuery::default()
        })
    };
    let endpoints = |service: &str, datacenter: &str| {
        Query::Endpoints(EndpointsQuery {
            service: service.into(),
            datacenter: datacenter.into(),
            ..EndpointsQuery::default()
        })
    };
    let mut expected = vec![
        Query::CaRoots,
        Query::Leaf {
            service: "web".into(),
        },
        Query::Intentions {
            service: "web".into(),
        },
        Query::Mesh,
        Query::JwtProviders,
        chain("api", "dc1", MeshGatewayMode::Default),
        chain("api-failover-remote", "dc2", MeshGatewayMode::Remote),
        chain("api-failover-local", "dc2", MeshGatewayMode::Local),
        chain("api-failover-direct", "dc2", MeshGatewayMode::None),
        chain("api-dc2", "dc1", MeshGatewayMode::Default),
        endpoints("api", "dc1"),
        endpoints("api-failover-remote", "dc2"),
        endpoints("api-failover-local", "dc2"),
        endpoints("api-failover-direct", "dc2"),
        endpoints("api", "dc2"),
    ];
    expected.sort();
    // Central configuration is asked for beside (decision E3).
    let asked = || {
        let mut asked: Vec<Query> = host
            .feed()
            .of(|query| !matches!(query, Query::ServiceConfig(_)))
            .into_iter()
            .map(|(_, subscribed)| subscribed.query)
            .collect();
        asked.sort();
        asked
    };
    eventually("all questions", || asked().len() >= expected.len());
    host.settle();
    assert_eq!(asked(), expected);
}

#[test]
fn kinds_t15_settings_of_an_upstream_reach_its_chain() {
    let host = fed_host(|_| true);
    let mut web = sidecar("web", &["db"]);
    web.proxy.upstreams[0].config = json!({"protocol": "HTTP", "connect_timeout_ms": "2500"})
        .as_object()
        .unwrap()
        .clone();
    let id = proxy_id("web");
    host.register(&id, web);
    host.ready(&id);
    let chains = || host.feed().of(|query| matches!(query, Query::Chain(_)));
    eventually("the chain's question", || !chains().is_empty());
    let [(_, subscribed)] = &chains()[..] else {
        panic!("one chain");
    };
    let Query::Chain(query) = &subscribed.query else {
        unreachable!()
    };
    assert_eq!(query.override_protocol, "http");
    assert_eq!(query.override_connect_timeout.to_string(), "2.5s");
}

#[test]
fn kinds_t2_a_sidecar_is_ready_with_the_last_mandatory_answer_and_not_before() {
    let mandatory: [fn(&Query) -> bool; 6] = [
        |q| matches!(q, Query::CaRoots),
        |q| matches!(q, Query::Leaf { .. }),
        |q| matches!(q, Query::Intentions { .. }),
        |q| matches!(q, Query::Mesh),
        |q| matches!(q, Query::JwtProviders),
        |q| matches!(q, Query::ServiceConfig(_)),
    ];
    for last in mandatory {
        let host = fed_host(move |query| !last(query));
        let id = proxy_id("web");
        host.register(&id, sidecar("web", &["db"]));
        eventually("its question", || !host.feed().of(last).is_empty());
        host.settle();
        let mut watch = host.manager.watch(&id);
        let [(_, waiting)] = &host.feed().of(last)[..] else {
            panic!("one subscription");
        };
        let query = &waiting.query;
        assert!(watch.try_next().unwrap().is_none(), "without {query}");
        assert!(!host.manager.status(&id).unwrap().ready, "without {query}");
        let answer = |query: &Query| from_store(&host, query);
        host.feed().send(last, answer);
        // What central configuration says is needed to ask for the rest.
        next(&mut watch);
    }
}

#[test]
fn store_4_11_checks_that_a_sidecar_opens_are_not_waited_for() {
    let is_checks = |query: &Query| matches!(query, Query::ExposedChecks { .. });
    let host = fed_host(move |query| !is_checks(query));
    let id = proxy_id("web");
    let exposed = |snapshot: &ConfigSnapshot| {
        let KindSnapshot::ConnectProxy(sidecar) = &snapshot.kind;
        sidecar.exposed_checks().paths.len()
    };
    let mut web = sidecar("web", &[]);
    web.proxy.destination_service_id = "web-1".into();
    host.register(&id, web.clone());
    host.ready(&id);
    assert_eq!(host.feed().of(is_checks).len(), 0);

    web.proxy.expose.checks = true;
    host.register(&id, web.clone());
    eventually("the question for checks", || {
        host.feed().of(is_checks).len() == 1
    });
    host.settle();
    assert_eq!(exposed(&host.ready(&id)), 0);
    let mut watch = host.manager.watch(&id);
    next(&mut watch);
    let mut checks = ExposedChecks::default();
    checks.paths.resize_with(2, Default::default);
    let answer = Answer::ExposedChecks(Part::new(checks));
    host.feed().send(is_checks, |_| Ok(answer.clone()));
    assert_eq!(exposed(&next(&mut watch)), 2);

    web.proxy.expose.checks = false;
    host.register(&id, web);
    eventually("checks are closed", || exposed(&host.ready(&id)) == 0);
}

#[test]
fn kinds_t3_chains_and_endpoints_are_not_waited_for() {
    let host = fed_host(|query| !matches!(query, Query::Chain(_)));
    let id = proxy_id("web");
    host.register(&id, sidecar("web", &["db"]));
    assert!(upstream(&host.ready(&id), "db").target.is_none());

    let host = fed_host(|query| !matches!(query, Query::Endpoints(_)));
    host.register(&id, sidecar("web", &["db"]));
    let watch = host.manager.watch(&id);
    eventually("the chain", || {
        watch
            .current()
            .is_some_and(|snapshot| upstream(&snapshot, "db").target.is_some())
    });
    let target = upstream(&watch.current().unwrap(), "db").target.clone();
    assert!(target.unwrap().endpoints[0].endpoints.is_none());
}

#[test]
fn kinds_t8_an_empty_list_of_instances_is_an_answer() {
    let world = World::new();
    world.instance("db", 1);
    world.instance("db", 2);
    let id = proxy_id("web");
    world.register(&id, sidecar("web", &["db"]));
    assert_eq!(addresses(&world.ready(&id), "db").len(), 2);
    world.remove_instance("db", 1);
    world.remove_instance("db", 2);
    let target = upstream(&world.ready(&id), "db").target.clone().unwrap();
    let known = target.endpoints_of("db.default.default.dc1");
    assert_eq!(known.map(|endpoints| endpoints.len()), Some(0));
}

#[test]
fn kinds_t23_the_mesh_entry_comes_and_goes() {
    let world = World::new();
    let id = proxy_id("web");
    world.register(&id, sidecar("web", &[]));
    assert!(world.ready(&id).mesh().is_none());
    world.entry(json!({"Kind": "mesh", "Name": "mesh", "ValidateClusters": true}));
    assert!(world.ready(&id).mesh().unwrap().validate_clusters);
    world.apply(vec![Op::DeleteConfig {
        key: EntryKey::new(EntryKind::Mesh, "mesh"),
        cas: None,
    }]);
    assert!(world.ready(&id).mesh().is_none());
}

#[test]
fn store_14_one_check_is_computed_once_for_a_hundred_proxies() {
    let world = World::new();
    world.instance("db", 1);
    let ids: Vec<_> = (0..100).map(|n| proxy_id(&format!("web-{n}"))).collect();
    for (n, id) in ids.iter().enumerate() {
        let mut web = sidecar("web", &["db"]);
        web.id = format!("web-{n}-sidecar-proxy");
        world.register(id, web);
    }
    let mut watches: Vec<_> = ids.iter().map(|id| world.manager().watch(id)).collect();
    for (id, watch) in ids.iter().zip(&mut watches) {
        world.ready(id);
        while watch.try_next().unwrap().is_some() {}
    }
    let before = world.manager().counts();
    world.check("db", 1, CheckStatus::Critical);
    for watch in &mut watches {
        assert_eq!(addresses(&next(watch), "db"), ["10.0.0.2:21000 Critical"]);
    }
    world.settle();
    let after = world.manager().counts();
    assert_eq!(after.answers_computed - before.answers_computed, 1);
    assert_eq!(after.published - before.published, 100);
}

#[test]
fn store_15_every_proxy_ends_with_the_last_of_a_thousand_writes() {
    let world = World::new();
    world.instance("db", 1);
    let id = proxy_id("web");
    world.register(&id, sidecar("web", &["db"]));
    world.ready(&id);
    let mut watch = world.manager().watch(&id);
    next(&mut watch);
    let before = world.manager().counts().published;
    for n in 0..1000 {
        let status = [CheckStatus::Warning, CheckStatus::Critical][n % 2];
        world.check("db", 1, status);
    }
    world.check("db", 1, CheckStatus::Warning);
    world.settle();
    assert_eq!(
        addresses(&next(&mut watch), "db"),
        ["10.0.0.2:21000 Warning"]
    );
    assert!(watch.try_next().unwrap().is_none());
    assert!(world.manager().counts().published - before <= 1001);
}

#[test]
fn fc_056_another_datacenter_that_fails_holds_up_nothing() {
    let host = Host::with(
        |_| {},
        |q| matches!(q, Query::Endpoints(e) if e.datacenter == "dc2"),
    );
    let far = |query: &Query| matches!(query, Query::Endpoints(e) if e.datacenter == "dc2");
    host.feed().answer_with(|_, query| {
        Some(certificate_for(query).unwrap_or_else(|| Err(QueryError::new("no path to dc2"))))
    });
    host.apply(vec![entry_op(
        json!({"Kind": "service-resolver", "Name": "db",
        "Failover": {"*": {"Datacenters": ["dc2"]}}}),
    )]);
    host.apply(instance_ops("db", 1));
    let id = proxy_id("web");
    host.register(&id, sidecar("web", &["db"]));
    host.ready(&id);
    let watch = host.manager.watch(&id);
    let count = |datacenter: &str| {
        let snapshot = watch.current()?;
        let target = upstream(&snapshot, "db").target.clone()?;
        let endpoints = target.endpoints_of(&format!("db.default.default.{datacenter}"))?;
        Some(endpoints.len())
    };
    eventually("what is near", || count("dc1") == Some(1));
    assert_eq!(count("dc2"), None);
    let one = || {
        let views = StoreViews {
            datacenter: "dc1".into(),
        };
        let near = Query::Endpoints(EndpointsQuery {
            service: "db".into(),
            ..EndpointsQuery::default()
        });
        views.answer(&near, &host.store.snapshot().reader())
    };
    host.feed().send(far, |_| one());
    eventually("what is far", || count("dc2") == Some(1));
    host.feed()
        .send(far, |_| Err(QueryError::new("no path to dc2")));
    eventually("the error shows", || {
        !host.manager.status(&id).unwrap().issues.is_empty()
    });
    // The last known ones stay, and what is near goes on.
    host.apply(instance_ops("db", 2));
    eventually("a change that is near", || count("dc1") == Some(2));
    assert_eq!(count("dc2"), Some(1));
}

#[test]
fn fc_077_nothing_is_handed_out_before_the_certificate_is_there() {
    let host = Host::new();
    let late = Arc::new(AtomicBool::new(true));
    let gate = late.clone();
    host.feed().answer_with(move |_, query| {
        if gate.load(Ordering::SeqCst) {
            None
        } else {
            certificate_for(query)
        }
    });
    let id = proxy_id("web");
    host.register(&id, sidecar("web", &["db"]));
    let mut watch = host.manager.watch(&id);
    for n in 1..=5 {
        host.apply(instance_ops("db", n));
        host.apply(vec![entry_op(
            json!({"Kind": "service-intentions", "Name": "web",
            "Sources": [{"Name": format!("caller-{n}"), "Action": "allow"}]}),
        )]);
        host.settle();
        assert!(watch.try_next().unwrap().is_none());
    }
    late.store(false, Ordering::SeqCst);
    eventually("the subscription", || !host.feed().of(is_leaf).is_empty());
    host.feed().send(is_leaf, |q| certificate_for(q).unwrap());
    let first = next(&mut watch);
    assert_eq!(addresses(&first, "db").len(), 5, "the first is complete");
    assert!(first.leaf().is_some());
}
