//! How the instance for a request is chosen, and what protects instances: balancing, limits, passive health checks.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use serde_json::{Value, json};

use crate::member::Member;
use crate::support::apps::{count_names, http_name};
use crate::support::envoy::Envoy;
use crate::support::http::{Client, Response};
use crate::support::{DEADLINE, wait_until};
use crate::traffic::{answered_by, from_now_on};
use crate::world::Mesh;

/// A caller `web` of an HTTP service `api` with two instances.
struct World {
    mesh: Mesh,
    instances: [Member; 2],
    web: Member,
    envoys: Vec<Envoy>,
}

impl World {
    fn start() -> Self {
        let mesh = Mesh::start();
        mesh.protocol("api", "http");
        let instances = ["api-1", "api-2"].map(|id| Member::http("api", id));
        let web = Member::tcp("web", "web-1").upstream("api");
        for member in instances.iter().chain([&web]) {
            mesh.register(member);
        }
        let envoys = instances.iter().chain([&web]);
        let envoys = envoys.map(|member| mesh.envoy(member)).collect();
        let world = Self {
            mesh,
            instances,
            web,
            envoys,
        };
        answered_by(&["api-1", "api-2"], || http_name(&world.address()));
        world
    }

    fn address(&self) -> String {
        self.web.address_of("api")
    }

    fn client(&self) -> Client {
        Client::new(&self.address())
    }

    /// Says how instances are chosen, and waits until web's Envoy has it.
    fn balance(&self, balancer: Value, policy: &Value) {
        // The timeout has no effect but to make the chain one that is configured.
        self.mesh.entry(json!({
            "Kind": "service-resolver", "Name": "api", "RequestTimeout": "1h", "LoadBalancer": balancer,
        }));
        self.cluster_has("/lb_policy", policy);
        let hashes = balancer["HashPolicies"].as_array().map_or(0, Vec::len);
        let envoy = self.web_envoy();
        wait_until("the route's hash policies", DEADLINE, || {
            let dump = envoy.admin_json("/config_dump?resource=dynamic_route_configs");
            let route =
                &dump["configs"][0]["route_config"]["virtual_hosts"][0]["routes"][0]["route"];
            let found = route["hash_policy"].as_array().map_or(0, Vec::len);
            if found == hashes && route["timeout"] == "3600s" {
                Ok(())
            } else {
                Err(dump.to_string())
            }
        });
    }

    /// Says how `web` treats its upstreams, and waits until something of its cluster of `api` is so.
    fn treat(&self, upstream: Value, pointer: &str, value: &Value) {
        self.mesh.entry(json!({
            "Kind": "service-defaults", "Name": "web", "UpstreamConfig": {"Defaults": upstream},
        }));
        self.cluster_has(pointer, value);
    }

    fn cluster_has(&self, pointer: &str, value: &Value) {
        let envoy = self.web_envoy();
        wait_until(&format!("{pointer} of the cluster"), DEADLINE, || {
            let dump = envoy.admin_json("/config_dump?resource=dynamic_active_clusters");
            let clusters = dump["configs"].as_array().into_iter().flatten();
            let mut of_api = clusters.map(|one| &one["cluster"]).filter(|one| {
                one["name"]
                    .as_str()
                    .is_some_and(|name| name.contains("api."))
            });
            let found = of_api.next().and_then(|one| one.pointer(pointer));
            if found.unwrap_or(&Value::Null) == value {
                Ok(())
            } else {
                Err(dump.to_string())
            }
        });
    }

    fn web_envoy(&self) -> &Envoy {
        &self.envoys[2]
    }

    fn assert_calm(&self) {
        let envoys: Vec<_> = self.envoys.iter().collect();
        self.mesh.assert_calm(&envoys);
    }
}

fn app(response: &Response) -> String {
    response.header("x-app").unwrap_or_default().to_owned()
}

#[test]
fn instances_are_chosen_by_policy_and_by_hash() {
    let world = World::start();
    policies(&world);

    let header = json!([{"Field": "header", "FieldValue": "x-user"}]);
    let ring = json!({"MinimumRingSize": 64, "MaximumRingSize": 1024});
    world.balance(
        json!({"Policy": "ring_hash", "RingHashConfig": ring, "HashPolicies": header}),
        &json!(&json!("RING_HASH")),
    );
    sticky(&world, |client, user| client.get("/", &[("x-user", user)]));
    world.balance(
        json!({"Policy": "maglev", "HashPolicies": [{"Field": "query_parameter", "FieldValue": "user"}]}),
        &json!(&json!("MAGLEV")),
    );
    sticky(&world, |client, user| {
        client.get(&format!("/?user={user}"), &[])
    });
    cookies(&world);
    // One caller, one instance.
    world.balance(
        json!({"Policy": "ring_hash", "HashPolicies": [{"SourceIP": true}]}),
        &json!(&json!("RING_HASH")),
    );
    let counts = count_names(20, || http_name(&world.address()));
    assert_eq!(counts.len(), 1, "{counts:?}");
    // The first that there is decides: the header before the caller.
    world.balance(
        json!({"Policy": "maglev", "HashPolicies": [
            {"Field": "header", "FieldValue": "x-user", "Terminal": true}, {"SourceIP": true},
        ]}),
        &json!(&json!("MAGLEV")),
    );
    sticky(&world, |client, user| client.get("/", &[("x-user", user)]));
    let counts = count_names(20, || http_name(&world.address()));
    assert_eq!(counts.len(), 1, "{counts:?}");
    world.assert_calm();
}

fn policies(world: &World) {
    let count = || count_names(40, || http_name(&world.address()));
    // What is a field's default isn't shown.
    world.balance(json!({"Policy": "round_robin"}), &Value::Null);
    let expected: BTreeMap<String, usize> = [("api-1".into(), 20), ("api-2".into(), 20)].into();
    assert_eq!(count(), expected);
    world.balance(json!({"Policy": "random"}), &json!("RANDOM"));
    assert!(count().keys().eq(["api-1", "api-2"].iter()));
    let choices = json!({"ChoiceCount": 10});
    world.balance(
        json!({"Policy": "least_request", "LeastRequestConfig": choices}),
        &json!(&json!("LEAST_REQUEST")),
    );
    world.cluster_has("/least_request_lb_config/choice_count", &json!(10));
    // One of the instances is busy, so the other one gets the rest.
    let busy = {
        let mut client = world.client();
        std::thread::spawn(move || app(&client.get("/", &[("x-hold", "")]).unwrap()))
    };
    let held = || world.instances.iter().map(|member| member.app.held());
    wait_until("one waits", DEADLINE, || match held().sum() {
        1 => Ok(()),
        waiting => Err(format!("{waiting} wait")),
    });
    let counts = count();
    world
        .instances
        .iter()
        .for_each(|member| member.app.release());
    let busy = busy.join().unwrap();
    assert_eq!(counts.len(), 1, "{counts:?}");
    assert!(!counts.contains_key(&busy), "{busy}: {counts:?}");
}

/// Who asks as the same user always lands at the same instance; not all users at the same.
fn sticky(world: &World, ask: impl Fn(&mut Client, &str) -> io::Result<Response>) {
    let mut client = world.client();
    let mut instances = BTreeSet::new();
    for number in 0..30 {
        let user = format!("user-{number}");
        let first = app(&ask(&mut client, &user).unwrap());
        for _ in 0..5 {
            assert_eq!(app(&ask(&mut client, &user).unwrap()), first, "{user}");
        }
        instances.insert(first);
    }
    assert!(
        instances.iter().eq(["api-1", "api-2"].iter()),
        "{instances:?}"
    );
}

/// A caller without the cookie gets one, and with it stays where it is.
fn cookies(world: &World) {
    let policy = json!({"Field": "cookie", "FieldValue": "seat", "CookieConfig": {"TTL": "1h", "Path": "/"}});
    world.balance(
        json!({"Policy": "maglev", "HashPolicies": [policy, {"Field": "header", "FieldValue": "x-none"}]}),
        &json!(&json!("MAGLEV")),
    );
    let mut instances = BTreeSet::new();
    wait_until("both get somebody", DEADLINE, || {
        // Envoy makes the cookie out of the connection's addresses.
        let mut client = world.client();
        let first = client.get("/", &[]).unwrap();
        let cookie = first.header("set-cookie").unwrap().to_owned();
        assert!(cookie.contains("Max-Age=3600"), "{cookie}");
        let pair = cookie.split(';').next().unwrap();
        assert!(pair.starts_with("seat="), "{cookie}");
        for _ in 0..5 {
            let again = client.get("/", &[("cookie", pair)]).unwrap();
            assert_eq!(app(&again), app(&first));
            assert_eq!(again.header("set-cookie"), None);
        }
        instances.insert(app(&first));
        if instances.len() == 2 {
            Ok(())
        } else {
            Err(format!("{instances:?}"))
        }
    });
}

#[test]
fn limits_hold_and_failing_instances_are_passed_over() {
    let world = World::start();
    limits(&world);
    passive_health_check(&world);
    world.assert_calm();
}

fn limits(world: &World) {
    world.treat(
        json!({"Limits": {"MaxConcurrentRequests": 1}}),
        "/circuit_breakers/thresholds/0/max_requests",
        &json!(1),
    );
    let held = {
        let mut client = world.client();
        std::thread::spawn(move || client.get("/", &[("x-hold", "")]).unwrap().status)
    };
    let waiting = || world.instances.iter().map(|m| m.app.held()).sum::<usize>();
    wait_until("one waits", DEADLINE, || match waiting() {
        1 => Ok(()),
        waiting => Err(format!("{waiting} wait")),
    });
    let mut client = world.client();
    for _ in 0..3 {
        let response = client.get("/", &[]).unwrap();
        assert_eq!(response.status, 503, "{response:?}");
        assert_eq!(response.header("x-envoy-overloaded"), Some("true"));
    }
    assert_eq!(waiting(), 1);
    world
        .instances
        .iter()
        .for_each(|member| member.app.release());
    assert_eq!(held.join().unwrap(), 200);
    from_now_on("200", || Ok(client.get("/", &[])?.status.to_string()));

    // None at all.
    world.treat(
        json!({"Limits": {"MaxPendingRequests": 0}}),
        "/circuit_breakers/thresholds/0/max_pending_requests",
        &json!(0),
    );
    from_now_on("503", || {
        Ok(world.client().get("/", &[])?.status.to_string())
    });
    world.treat(json!({}), "/circuit_breakers", &json!({}));
    from_now_on("200", || Ok(client.get("/", &[])?.status.to_string()));
}

fn passive_health_check(world: &World) {
    let check = json!({
        "Interval": "200ms", "MaxFailures": 3, "EnforcingConsecutive5xx": 100, "MaxEjectionPercent": 50,
        "BaseEjectionTime": "2s",
    });
    world.treat(
        json!({"PassiveHealthCheck": check}),
        "/outlier_detection/consecutive_5xx",
        &json!(3),
    );
    answered_by(&["api-1", "api-2"], || http_name(&world.address()));
    let envoy = world.web_envoy();
    let ejected = || {
        let stats = envoy.stats("^cluster\\..*api\\..*outlier_detection.ejections_active$");
        stats.values().sum::<u64>()
    };
    assert_eq!(ejected(), 0);
    let mut client = world.client();
    let mut failures = 0;
    wait_until("ejected", DEADLINE, || {
        let response = client.get("/", &[("x-fail", "api-2")]).unwrap();
        failures += usize::from(response.status == 503);
        if ejected() == 1 {
            Ok(())
        } else {
            Err(format!("{failures} failures"))
        }
    });
    assert_eq!(failures, 3);
    let counts = count_names(10, || http_name(&world.address()));
    assert!(counts.keys().eq(["api-1"].iter()), "{counts:?}");
    // It is given another chance.
    answered_by(&["api-1", "api-2"], || http_name(&world.address()));
}
