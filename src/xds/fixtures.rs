//! Hand-built snapshots for tests.

use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Value, json};
use smol_str::SmolStr;
use triomphe::Arc;

use super::{Generated, Resource, ResourceSet, ResourceType, resource_to_json};
use crate::model::chain::CompiledChain;
use crate::model::{
    CaRoots, Decode, Endpoint, EndpointHealth, ExposedChecks, Intention, IssuedCert, JwtProvider,
    MeshConfig, PrivateKey, ProxyId, ServiceKind, Upstream, decode_document,
};
use crate::snapshot::{
    ConfigSnapshot, ConnectProxySnapshot, Header, KindSnapshot, Part, PartRef, SharedSidecar,
    TargetEndpoints, UpstreamEntry, UpstreamSettings, UpstreamTarget,
};

pub(super) const TD: &str = "11111111-2222-3333-4444-555555555555.consul";
/// The trust domain inside a regular expression.
pub(super) const TD_PATTERN: &str = r"11111111-2222-3333-4444-555555555555\.consul";

/// Reads a record from its JSON.
pub(super) fn read<T: Decode>(json: &Value) -> T {
    decode_document(&crate::hcl::Value::from_json(json))
        .unwrap_or_else(|p| panic!("{}", p.text()))
        .0
}

/// A sidecar's snapshot in the making.
#[derive(Clone)]
pub(super) struct Fixture {
    pub header: PartRef<Header>,
    pub roots: PartRef<CaRoots>,
    pub leaf: PartRef<IssuedCert>,
    pub intentions: PartRef<Vec<Intention>>,
    pub mesh: PartRef<Option<MeshConfig>>,
    pub jwt_providers: PartRef<Vec<Arc<JwtProvider>>>,
    pub exposed_checks: PartRef<ExposedChecks>,
    pub upstreams: Vec<UpstreamEntry>,
}

impl Fixture {
    /// The sidecar of `web` (xds.md Part 6) without upstreams, with default deny.
    pub(super) fn web() -> Self {
        Self {
            header: Part::new(header(
                "web-sidecar-proxy",
                json!({
                    "DestinationServiceName": "web", "LocalServicePort": 3000,
                }),
            )),
            roots: Part::new(roots(&["A"])),
            leaf: Part::new(leaf("web", 1)),
            intentions: Part::new(Vec::new()),
            mesh: Part::new(None),
            jwt_providers: Part::new(Vec::new()),
            exposed_checks: Part::new(ExposedChecks::default()),
            upstreams: Vec::new(),
        }
    }

    /// With another proxy block.
    pub(super) fn proxy(mut self, change: impl FnOnce(&mut Header)) -> Self {
        let mut header = (**self.header).clone();
        change(&mut header);
        self.header = Part::new(header);
        self
    }

    /// With free settings.
    pub(super) fn config(self, config: Value) -> Self {
        self.proxy(|header| header.proxy.config = config.as_object().unwrap().clone())
    }

    /// With intentions: source, and `allow`, `deny` or permissions.
    pub(super) fn intentions(mut self, intentions: &[(&str, Value)]) -> Self {
        self.intentions = Part::new(
            intentions
                .iter()
                .map(|(source, what)| intention(source, what))
                .collect(),
        );
        self
    }

    /// With a mesh entry.
    pub(super) fn mesh(mut self, mesh: Value) -> Self {
        let mut mesh = mesh;
        mesh["Kind"] = "mesh".into();
        self.mesh = Part::new(Some(read(&mesh)));
        self
    }

    /// With issuers of tokens.
    pub(super) fn jwt_providers(mut self, providers: &[Value]) -> Self {
        self.jwt_providers = Part::new(providers.iter().map(jwt_provider).collect());
        self
    }

    /// With a token that all callers need.
    pub(super) fn jwt(mut self, jwt: &Value) -> Self {
        let mut intentions = (**self.intentions).clone();
        for intention in &mut intentions {
            intention.jwt = Some(read(jwt));
        }
        self.intentions = Part::new(intentions);
        self
    }

    /// With one more upstream; `instances` by target id, in the chain's order if there is one target.
    pub(super) fn upstream(
        mut self,
        definition: Value,
        chain: CompiledChain,
        instances: &[Endpoint],
    ) -> Self {
        let instances = Part::new(instances.to_vec());
        let endpoints = chain
            .targets
            .keys()
            .map(|target| TargetEndpoints {
                target: target.into(),
                endpoints: Some(instances.clone()),
            })
            .collect();
        let definition: Upstream = read(&definition);
        let (settings, complaints) = UpstreamSettings::read(&definition);
        assert!(complaints.is_empty(), "{complaints:?}");
        let target = Part::new(UpstreamTarget {
            settings: Part::new(settings),
            chain: Part::new(chain),
            endpoints,
        });
        self.upstreams.push(UpstreamEntry {
            definition: Part::new(definition.into()),
            target: Some(target),
        });
        self.upstreams.sort_by(|a, b| a.id().cmp(b.id()));
        self
    }

    /// With another chain or other instances of one upstream.
    pub(super) fn retarget(
        mut self,
        upstream: &str,
        change: impl FnOnce(&mut UpstreamTarget),
    ) -> Self {
        let entry = self
            .upstreams
            .iter_mut()
            .find(|entry| entry.id().name == upstream)
            .unwrap();
        let old = entry.target.as_ref().unwrap();
        let mut new = UpstreamTarget {
            settings: old.settings.clone(),
            chain: old.chain.clone(),
            endpoints: old.endpoints.clone(),
        };
        change(&mut new);
        entry.target = Some(Part::new(new));
        self
    }

    pub(super) fn snapshot(&self) -> ConfigSnapshot {
        ConfigSnapshot {
            store_index: 7,
            header: self.header.clone(),
            kind: KindSnapshot::ConnectProxy(ConnectProxySnapshot {
                shared: Arc::new(SharedSidecar {
                    roots: self.roots.clone(),
                    leaf: self.leaf.clone(),
                    intentions: self.intentions.clone(),
                    mesh: self.mesh.clone(),
                    jwt_providers: self.jwt_providers.clone(),
                    upstreams: self.upstreams.iter().cloned().collect(),
                }),
                exposed_checks: Some(self.exposed_checks.clone()),
            }),
        }
    }

    /// The resources, from scratch.
    pub(super) fn generate(&self) -> Generated {
        super::Generator::new().resources(&self.snapshot(), None)
    }
}

pub(super) fn header(id: &str, proxy: Value) -> Header {
    Header {
        proxy_id: ProxyId::new(id, "n1"),
        kind: ServiceKind::ConnectProxy,
        service: id.into(),
        address: SmolStr::default(),
        port: 21000,
        service_meta: Default::default(),
        tagged_addresses: Default::default(),
        locality: None,
        proxy: read(&proxy),
        datacenter: "dc1".into(),
        intention_default_allow: false,
    }
}

pub(super) fn pem(label: &str, text: &str) -> String {
    format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n")
}

pub(super) fn roots(names: &[&str]) -> CaRoots {
    let roots: Vec<_> = names
        .iter()
        .map(|name| {
            json!({
                "ID": name, "SigningKeyID": "", "RootCert": pem("CERTIFICATE", name), "Active": *name == names[0],
                "NotBefore": "2020-01-01T00:00:00Z", "NotAfter": "2040-01-01T00:00:00Z",
            })
        })
        .collect();
    serde_json::from_value(json!({"ActiveRootID": names[0], "TrustDomain": TD, "Roots": roots}))
        .unwrap()
}

pub(super) fn leaf(service: &str, serial: u64) -> IssuedCert {
    IssuedCert {
        serial_number: serial.to_string().into(),
        cert_pem: pem("CERTIFICATE", &format!("LEAF{serial}")),
        private_key: PrivateKey::from_pem(pem("EC PRIVATE KEY", &format!("KEY{serial}"))),
        identity: format!("spiffe://{TD}/ns/default/dc/dc1/svc/{service}")
            .parse()
            .unwrap(),
        authority_key_id: SmolStr::default(),
        valid_after: UNIX_EPOCH,
        valid_before: UNIX_EPOCH + Duration::from_secs(3600),
        create_index: serial,
        modify_index: serial,
    }
}

/// An intention of `source` towards `web`; `source` may be followed by `->` and another destination.
pub(super) fn intention(source: &str, what: &Value) -> Intention {
    let (source, destination) = source.split_once("->").unwrap_or((source, "web"));
    let mut json = json!({
        "SourceName": source, "SourceNS": "default", "DestinationName": destination, "DestinationNS": "default",
        "Precedence": precedence(source, destination),
    });
    match what {
        Value::String(action) => json["Action"] = action.as_str().into(),
        permissions => json["Permissions"] = permissions.clone(),
    }
    read(&json)
}

/// A token provider; the clock skew is the default of its normal form.
pub(super) fn jwt_provider(json: &Value) -> Arc<JwtProvider> {
    let mut json = json.clone();
    json["Kind"] = "jwt-provider".into();
    let mut provider: JwtProvider = read(&json);
    crate::model::Validate::normalize(&mut provider);
    Arc::new(provider)
}

/// Base64 of a key set.
pub(super) fn key_set() -> String {
    use base64::Engine as _;
    let keys = json!({"keys": [{
        "kty": "EC", "crv": "P-256", "kid": "1", "alg": "ES256",
        "x": "MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4",
        "y": "4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM",
    }]});
    base64::engine::general_purpose::STANDARD.encode(keys.to_string())
}

/// A provider with keys of its own.
pub(super) fn local_provider(name: &str) -> Value {
    json!({
        "Name": name, "Issuer": format!("{name}-issuer"), "JSONWebKeySet": {"Local": {"JWKS": key_set()}},
    })
}

fn precedence(source: &str, destination: &str) -> u32 {
    match (destination == "*", source == "*") {
        (false, false) => 9,
        (false, true) => 8,
        (true, false) => 6,
        (true, true) => 5,
    }
}

/// A chain target, as the compiler makes them.
pub(super) fn target(service: &str, subset: &str, datacenter: &str) -> Value {
    let dot = |text: &str| {
        if text.is_empty() {
            String::new()
        } else {
            format!("{text}.")
        }
    };
    let name = format!(
        "{}{service}.default.{datacenter}.internal.{TD}",
        dot(subset)
    );
    json!({
        "ID": format!("{}{service}.default.default.{datacenter}", dot(subset)),
        "Service": service, "ServiceSubset": subset, "Namespace": "default", "Partition": "default",
        "Datacenter": datacenter, "SNI": name, "Name": name,
    })
}

/// A resolver node.
pub(super) fn resolver(target: &str, more: Value) -> Value {
    let mut resolver = json!({"ConnectTimeout": "5s", "Target": target});
    merge(&mut resolver, more);
    json!({"Type": "resolver", "Name": target, "Resolver": resolver})
}

/// A chain from its start node, nodes and targets.
pub(super) fn chain(
    service: &str,
    protocol: &str,
    start: &str,
    nodes: Value,
    targets: &[Value],
) -> CompiledChain {
    let targets: serde_json::Map<_, _> = targets
        .iter()
        .map(|t| (t["ID"].as_str().unwrap().to_owned(), t.clone()))
        .collect();
    read(&json!({
        "ServiceName": service, "Namespace": "default", "Partition": "default", "Datacenter": "dc1",
        "Protocol": protocol, "StartNode": start, "Nodes": nodes, "Targets": targets,
    }))
}

/// The chain of a service that nothing is configured for.
pub(super) fn default_chain(service: &str, protocol: &str) -> CompiledChain {
    let id = format!("{service}.default.default.dc1");
    let node = format!("resolver:{id}");
    let mut chain = chain(
        service,
        protocol,
        &node,
        json!({ node.as_str(): resolver(&id, json!({"Default": true})) }),
        &[target(service, "", "dc1")],
    );
    chain.default = true;
    chain
}

pub(super) fn endpoint(address: &str, health: EndpointHealth) -> Endpoint {
    Endpoint {
        node: "n1".into(),
        service_id: address.into(),
        datacenter: "dc1".into(),
        address: address.into(),
        port: 21001,
        wan_address: "".into(),
        wan_port: 0,
        socket_path: "".into(),
        health,
        weight_passing: 1,
        weight_warning: 1,
    }
}

/// An upstream definition with a port.
pub(super) fn definition(name: &str, port: u16) -> Value {
    json!({"DestinationName": name, "LocalBindPort": port})
}

pub(super) fn merge(into: &mut Value, more: Value) {
    for (key, value) in more.as_object().unwrap() {
        into[key] = value.clone();
    }
}

pub(super) fn names(set: &ResourceSet, kind: ResourceType) -> Vec<String> {
    set.of(kind)
        .iter()
        .map(|resource| resource.name().to_string())
        .collect()
}

/// A resource as JSON; panics if there is none.
pub(super) fn shown(generated: &Generated, kind: ResourceType, name: &str) -> Value {
    let resource = generated.set.get(kind, name).unwrap_or_else(|| {
        panic!(
            "no {kind} {name:?} in {:?}; {:?}",
            names(&generated.set, kind),
            generated.problems
        )
    });
    json_of(resource)
}

pub(super) fn json_of(resource: &Resource) -> Value {
    resource_to_json(resource).unwrap()
}

/// The names of a listener's network filters, in order.
pub(super) fn filters(listener: &Value) -> Vec<String> {
    let filters = listener["filterChains"][0]["filters"].as_array().unwrap();
    filters
        .iter()
        .map(|filter| filter["name"].as_str().unwrap().to_owned())
        .collect()
}

/// The configuration of the last network filter.
pub(super) fn last_filter(listener: &Value) -> &Value {
    let filters = listener["filterChains"][0]["filters"].as_array().unwrap();
    &filters.last().unwrap()["typedConfig"]
}

/// Every cluster that is referred to names a generated one, every EDS cluster has an assignment and the other way round,
/// and every route table that is referred to exists.
pub(super) fn assert_consistent(generated: &Generated) {
    let set = &generated.set;
    let clusters = names(set, ResourceType::Cluster);
    let eds: Vec<_> = set
        .of(ResourceType::Cluster)
        .iter()
        .filter(|cluster| json_of(cluster)["type"] == "EDS")
        .map(|cluster| cluster.name().to_string())
        .collect();
    assert_eq!(eds, names(set, ResourceType::Endpoint));
    for kind in [
        ResourceType::Listener,
        ResourceType::Route,
        ResourceType::Cluster,
    ] {
        for resource in set.of(kind) {
            for name in mentioned(&json_of(resource)) {
                assert!(
                    clusters.contains(&name),
                    "{} mentions {name}, {clusters:?}",
                    resource.name()
                );
            }
        }
    }
    let routes = names(set, ResourceType::Route);
    for listener in set.of(ResourceType::Listener) {
        for route in listener.children() {
            assert!(routes.contains(&route.to_string()), "{route}");
        }
    }
}

/// All clusters that some JSON mentions.
fn mentioned(json: &Value) -> Vec<String> {
    let mut found = Vec::new();
    match json {
        Value::Object(members) => {
            for (key, value) in members {
                match (key.as_str(), value) {
                    ("cluster", Value::String(name)) => found.push(name.clone()),
                    ("weightedClusters", legs) => {
                        found.extend(
                            legs["clusters"]
                                .as_array()
                                .unwrap()
                                .iter()
                                .map(|l| l["name"].as_str().unwrap().to_owned()),
                        );
                    }
                    ("clusters", Value::Array(names)) => {
                        found.extend(names.iter().filter_map(|n| n.as_str().map(str::to_owned)));
                    }
                    _ => found.extend(mentioned(value)),
                }
            }
        }
        Value::Array(items) => found.extend(items.iter().flat_map(mentioned)),
        _ => {}
    }
    found
}

pub(super) fn db() -> Vec<Endpoint> {
    vec![
        endpoint("10.0.0.5", EndpointHealth::Passing),
        endpoint("10.0.0.6", EndpointHealth::Critical),
    ]
}

pub(super) fn example() -> Fixture {
    Fixture::web()
        .intentions(&[("api", json!("allow"))])
        .upstream(definition("db", 5432), default_chain("db", "tcp"), &db())
}

/// One snapshot with most of what there is, built anew at each call.
pub(super) fn everything() -> Fixture {
    let split = json!({
        "router:web": {"Type": "router", "Name": "shop.default.default", "Routes": [
            {"Definition": {"Match": {"HTTP": {"PathPrefix": "/a", "Methods": ["GET", "PUT"]}}, "Destination": {
                "RequestHeaders": {"Add": {"a": "1", "b": "2", "c": "3"}, "Set": {"x": "1", "y": "2"}},
            }}, "NextNode": "splitter:shop"},
            {"Definition": {}, "NextNode": "resolver:v1"},
        ]},
        "splitter:shop": {"Type": "splitter", "Name": "shop", "Splits": [
            {"Definition": {}, "Weight": 95.5, "NextNode": "resolver:v1"},
            {"Definition": {}, "Weight": 4.5, "NextNode": "resolver:v2"},
        ]},
        "resolver:v1": resolver("v1.shop.default.default.dc1", json!({})),
        "resolver:v2": resolver("v2.shop.default.default.dc1", json!({"Failover": {
            "Targets": ["v1.shop.default.default.dc1"],
        }})),
    });
    let targets = [target("shop", "v1", "dc1"), target("shop", "v2", "dc1")];
    let sources: Vec<_> = ('a'..='m')
        .map(|c| (c.to_string(), permissions(c)))
        .collect();
    let mut intentions: Vec<_> = sources
        .iter()
        .map(|(name, what)| (name.as_str(), what.clone()))
        .collect();
    intentions.extend([("y", json!("allow")), ("*", json!("deny"))]);
    example()
        .upstream(definition("shop", 5434), chain("shop", "http", "router:web", split, &targets), &db())
        .upstream(definition("grpc", 5435), default_chain("grpc", "grpc"), &db())
        .intentions(&intentions)
        .mesh(json!({"TLS": {"Outgoing": {"TLSMinVersion": "TLSv1_2"}}}))
        .config(json!({"protocol": "http", "max_inbound_connections": 5}))
        .proxy(|header| {
            header.proxy.access_logs = read(&json!({"Enabled": true}));
            header.proxy.expose = read(&json!({"Paths": [
                {"Path": "/metrics", "ListenerPort": 21500, "LocalPathPort": 9000},
                {"Path": "/health", "ListenerPort": 21501, "LocalPathPort": 3000, "Protocol": "http2"},
            ]}));
        })
}

fn permissions(name: char) -> Value {
    json!([
        {"Action": "deny", "HTTP": {"PathExact": format!("/{name}")}},
        {"Action": "allow", "HTTP": {"PathPrefix": "/", "Header": [{"Name": "x", "Present": true}]}},
    ])
}
