//! What random tests share: records, and the oracle *incremental equals from scratch*: each live snapshot equals the one
//! that a fresh engine computes from the final store. Store indexes and certificates are masked.

use std::collections::BTreeMap;

use proxycfg::model::{ProxyId, ServiceInstance};
use proxycfg::store::Image;
use serde_json::{Value, json};

use crate::world::*;

pub const SERVICES: [&str; 4] = ["api", "cache", "db", "web"];

/// Proxies by number: two replicas of each service.
pub const PROXIES: usize = 2 * SERVICES.len();

/// The id of a proxy by number.
pub fn id_of(proxy: usize) -> ProxyId {
    let replica = ["", "-2"][proxy / SERVICES.len() % 2];
    proxy_id(&format!("{}{replica}", SERVICES[proxy % SERVICES.len()]))
}

/// Lists of upstreams that replicas often have in common.
pub const USUAL: [u8; 3] = [0b0100, 0b0110, 0b1111];

pub fn service_defaults(service: &str, variant: u8) -> Value {
    let mut entry = json!({"Kind": "service-defaults", "Name": service});
    let more = match variant {
        0 => json!({"Protocol": "tcp"}),
        1 => json!({"Protocol": "http"}),
        2 => json!({"Protocol": "http", "MaxInboundConnections": 7}),
        3 => json!({"UpstreamConfig": {"Defaults": {"ConnectTimeoutMs": 2000}}}),
        _ => json!({"UpstreamConfig": {"Overrides": [
            {"Name": "db", "Limits": {"MaxConnections": 3}, "MeshGateway": {"Mode": "local"}}]}}),
    };
    merge(&mut entry, more);
    entry
}

pub fn resolver(service: &str, variant: u8) -> Value {
    let mut entry = json!({"Kind": "service-resolver", "Name": service});
    let more = match variant {
        0 => json!({"ConnectTimeout": "3s"}),
        1 => json!({"ConnectTimeout": "5s", "RequestTimeout": "9s"}),
        2 => json!({"DefaultSubset": "v1", "Subsets": {
            "v1": {"Filter": "Service.Meta.version == v1"}, "v2": {"Filter": "Service.Meta.version == v2"}}}),
        3 => {
            json!({"DefaultSubset": "v2", "Subsets": {"v2": {"Filter": "Service.Meta.version == v2"}}})
        }
        4 => json!({"Redirect": {"Service": "db"}}),
        5 => json!({"Redirect": {"Service": "cache"}}),
        6 => json!({"Failover": {"*": {"Service": "cache"}}}),
        _ => json!({"Redirect": {"Service": "db", "Datacenter": "dc2"}}),
    };
    merge(&mut entry, more);
    entry
}

pub fn merge(entry: &mut Value, more: Value) {
    if let (Some(entry), Value::Object(more)) = (entry.as_object_mut(), more) {
        entry.extend(more);
    }
}

pub fn intentions(service: &str, variant: u8) -> Value {
    let sources = match variant {
        0 => json!([{"Name": "web", "Action": "allow"}]),
        1 => json!([{"Name": "*", "Action": "deny"}, {"Name": "api", "Action": "allow"}]),
        _ => json!([{"Name": "cache", "Action": "deny"}]),
    };
    json!({"Kind": "service-intentions", "Name": service, "Sources": sources})
}

/// A sidecar of proxy `proxy`'s service, with the upstreams of the bits.
pub fn definition(proxy: usize, upstreams: u8, variant: u8) -> ServiceInstance {
    let names: Vec<&str> = SERVICES
        .iter()
        .enumerate()
        .filter(|(n, _)| upstreams & (1 << n) != 0)
        .map(|(_, name)| *name)
        .collect();
    let mut instance = sidecar(SERVICES[proxy % SERVICES.len()], &names);
    instance.proxy.destination_service_id = id_of(proxy).service_id.to_string();
    for upstream in &mut instance.proxy.upstreams {
        match variant {
            0 => {}
            1 => {
                upstream
                    .config
                    .insert("connect_timeout_ms".into(), json!(1_500));
            }
            _ => upstream.local_bind_port += 100,
        }
    }
    instance
}

/// Registered proxies with what they were registered with.
pub type Registered = BTreeMap<ProxyId, (ServiceInstance, bool)>;

pub fn register(world: &World, id: &ProxyId, instance: &ServiceInstance, token: bool) {
    let mut options = options(instance.clone());
    options.token = if token { "token" } else { "" }.into();
    world.manager().register(id, options).unwrap();
}

/// The snapshots of all registered proxies once each has one and all has settled.
pub fn snapshots(world: &World, registered: &Registered) -> BTreeMap<ProxyId, Value> {
    for id in registered.keys() {
        // A generation of a new token waits for its certificate while the old snapshot is served.
        eventually("readiness", || {
            world
                .manager()
                .status(id)
                .is_some_and(|status| status.ready)
        });
    }
    registered
        .keys()
        .map(|id| (id.clone(), masked(world.ready(id).to_json())))
        .collect()
}

pub fn masked(mut json: Value) -> Value {
    fn walk(value: &mut Value) {
        match value {
            Value::Object(map) => {
                map.retain(|key, _| {
                    !matches!(
                        key.as_str(),
                        "Index" | "CreateIndex" | "ModifyIndex" | "Leaf"
                    )
                });
                map.values_mut().for_each(walk);
            }
            Value::Array(list) => list.iter_mut().for_each(walk),
            _ => {}
        }
    }
    walk(&mut json);
    json
}

pub fn fresh(image: &Image, registered: &Registered) -> BTreeMap<ProxyId, Value> {
    let world = World::new();
    world.store().restore(image).unwrap();
    for (id, (instance, token)) in registered {
        register(&world, id, instance, *token);
    }
    snapshots(&world, registered)
}

pub fn same(what: &str, a: &BTreeMap<ProxyId, Value>, b: &BTreeMap<ProxyId, Value>) {
    fn differences(at: &str, a: &Value, b: &Value, found: &mut Vec<String>) {
        match (a, b) {
            (Value::Object(x), Value::Object(y)) => {
                let keys: std::collections::BTreeSet<_> = x.keys().chain(y.keys()).collect();
                for key in keys {
                    let of = |map: &serde_json::Map<String, Value>| {
                        map.get(key).cloned().unwrap_or_default()
                    };
                    differences(&format!("{at}/{key}"), &of(x), &of(y), found);
                }
            }
            _ if a == b => {}
            _ => found.push(format!("{at}: {a} and {b}")),
        }
    }
    for (id, left) in a {
        let mut found = Vec::new();
        differences("", left, &b[id], &mut found);
        assert!(found.is_empty(), "{what}: {id}: {found:#?}");
    }
}
