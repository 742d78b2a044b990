//! Queries and answers as JSON: how a host program is asked, and how it answers.

use serde::ser::{Serialize, SerializeMap as _, Serializer};
use smol_str::SmolStr;
use triomphe::Arc;

use crate::hcl::{self, Data, Value};
use crate::model::chain::{ChainNodeType, CompiledChain};
use crate::model::decode::{Decode, Place, Problems, decode_document, words};
use crate::model::{
    CaRoots, Endpoint, ExposedChecks, Intention, IssuedCert, JwtProvider, MeshConfig,
    ResolvedServiceConfig, ServiceInstance, Validate, read_at,
};
use crate::snapshot::Part;

use super::{Answer, Query};

words! {
    /// The kinds of query, by the names that they have in JSON.
    pub enum QueryKind {
        /// [`Query::CaRoots`].
        CaRoots = "ca-roots",
        /// [`Query::Leaf`].
        Leaf = "leaf",
        /// [`Query::Intentions`].
        Intentions = "intentions",
        /// [`Query::Mesh`].
        Mesh = "mesh",
        /// [`Query::JwtProviders`].
        JwtProviders = "jwt-providers",
        /// [`Query::Chain`].
        Chain = "chain",
        /// [`Query::Endpoints`].
        Endpoints = "endpoints",
        /// [`Query::ServiceConfig`].
        ServiceConfig = "service-config",
        /// [`Query::ServiceRecord`].
        ServiceRecord = "service-record",
        /// [`Query::ExposedChecks`].
        ExposedChecks = "exposed-checks",
    }
}

impl QueryKind {
    /// All kinds.
    pub const ALL: [Self; 10] = [
        Self::CaRoots,
        Self::Leaf,
        Self::Intentions,
        Self::Mesh,
        Self::JwtProviders,
        Self::Chain,
        Self::Endpoints,
        Self::ServiceConfig,
        Self::ServiceRecord,
        Self::ExposedChecks,
    ];
}

impl Query {
    /// Its kind.
    #[must_use]
    pub const fn kind(&self) -> QueryKind {
        match self {
            Self::CaRoots => QueryKind::CaRoots,
            Self::Leaf { .. } => QueryKind::Leaf,
            Self::Intentions { .. } => QueryKind::Intentions,
            Self::Mesh => QueryKind::Mesh,
            Self::JwtProviders => QueryKind::JwtProviders,
            Self::Chain(_) => QueryKind::Chain,
            Self::Endpoints(_) => QueryKind::Endpoints,
            Self::ServiceConfig(_) => QueryKind::ServiceConfig,
            Self::ServiceRecord { .. } => QueryKind::ServiceRecord,
            Self::ExposedChecks { .. } => QueryKind::ExposedChecks,
        }
    }
}

/// An object with `Kind` and what the query names; what isn't set is left out.
impl Serialize for Query {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("Kind", &self.kind())?;
        let mut text = |key: &str, value: &str| match value {
            "" => Ok(()),
            value => map.serialize_entry(key, value),
        };
        match self {
            Self::CaRoots | Self::Mesh | Self::JwtProviders => {}
            Self::Leaf { service } | Self::Intentions { service } => text("Service", service)?,
            Self::Chain(query) => {
                text("Service", &query.service)?;
                text("Datacenter", &query.datacenter)?;
                text("OverrideMeshGateway", query.override_mesh_gateway.as_str())?;
                text("OverrideProtocol", &query.override_protocol)?;
                if query.override_connect_timeout != Default::default() {
                    text(
                        "OverrideConnectTimeout",
                        &query.override_connect_timeout.to_string(),
                    )?;
                }
            }
            Self::Endpoints(query) => {
                text("Service", &query.service)?;
                text("Filter", &query.filter)?;
                text("Datacenter", &query.datacenter)?;
                text("Peer", &query.peer)?;
            }
            Self::ServiceConfig(query) => {
                text("Service", &query.service)?;
                text("Mode", query.mode.as_str())?;
                text("MeshGateway", query.mesh_gateway.as_str())?;
                let upstreams: Vec<_> = query.upstreams.iter().map(named).collect();
                map.serialize_entry("Upstreams", &upstreams)?;
            }
            Self::ServiceRecord { node, service_id } | Self::ExposedChecks { node, service_id } => {
                text("Node", node)?;
                text("ServiceID", service_id)?;
            }
        }
        map.end()
    }
}

fn named((peer, name): &(SmolStr, SmolStr)) -> serde_json::Value {
    if peer.is_empty() {
        serde_json::json!({ "Name": name })
    } else {
        serde_json::json!({ "Name": name, "Peer": peer })
    }
}

impl Answer {
    /// Reads the answer to a query, in the form that snapshots show it in; a certificate with its private key. `null` says
    /// that there is none, where that is an answer: of the mesh settings and of a registration.
    ///
    /// # Errors
    /// All problems, one a line, each with its place.
    pub fn from_json(query: &Query, json: &[u8]) -> Result<Self, String> {
        match query {
            Query::CaRoots => {
                let roots: CaRoots = serde_json::from_slice(json).map_err(|e| e.to_string())?;
                roots.validate().map_err(|e| e.to_string())?;
                Ok(Self::CaRoots(Part::new(roots)))
            }
            Query::Leaf { .. } => serde_json::from_slice::<IssuedCert>(json)
                .map(|certificate| Self::Leaf(Part::new(certificate)))
                .map_err(|e| e.to_string()),
            Query::Intentions { .. } => {
                let mut intentions: Vec<Intention> = plain(json)?;
                intentions.sort_by_key(|intention| std::cmp::Reverse(intention.precedence));
                Ok(Self::Intentions(Part::new(intentions)))
            }
            Query::Mesh => optional::<MeshConfig>(json).map(|mesh| Self::Mesh(Part::new(mesh))),
            Query::JwtProviders => {
                let mut providers: Vec<JwtProvider> = checked_list(json)?;
                providers.sort_by(|a, b| a.name.cmp(&b.name));
                let providers = providers.into_iter().map(Arc::new).collect();
                Ok(Self::JwtProviders(Part::new(providers)))
            }
            Query::Chain(_) => {
                let chain: CompiledChain = plain(json)?;
                check_chain(&chain)?;
                Ok(Self::Chain(Part::new(chain)))
            }
            Query::Endpoints(_) => {
                let mut endpoints: Vec<Endpoint> = plain(json)?;
                endpoints.sort_by(|a, b| (&a.node, &a.service_id).cmp(&(&b.node, &b.service_id)));
                Ok(Self::Endpoints(Part::new(endpoints)))
            }
            Query::ServiceConfig(_) => {
                let mut config: ResolvedServiceConfig = plain(json)?;
                config
                    .upstream_configs
                    .sort_by(|a, b| (&a.peer, &a.name).cmp(&(&b.peer, &b.name)));
                Ok(Self::ServiceConfig(Part::new(config)))
            }
            Query::ServiceRecord { .. } => {
                let record = optional::<ServiceInstance>(json)?;
                Ok(Self::ServiceRecord(Part::new(record.map(Arc::new))))
            }
            Query::ExposedChecks { .. } => {
                plain::<ExposedChecks>(json).map(|checks| Self::ExposedChecks(Part::new(checks)))
            }
        }
    }
}

fn parse(json: &[u8]) -> Result<Value, String> {
    hcl::parse_json(json).map_err(|e| e.to_string())
}

/// A record without rules of its own.
fn plain<T: Decode>(json: &[u8]) -> Result<T, String> {
    decode_document(&parse(json)?)
        .map(|(record, _)| record)
        .map_err(|problems| problems.text())
}

/// A record with rules, or `null`.
fn optional<T: Decode + Validate>(json: &[u8]) -> Result<Option<T>, String> {
    let document = parse(json)?;
    if document.data == Data::Null {
        return Ok(None);
    }
    let (record, _) = crate::model::read(&document).map_err(|problems| problems.text())?;
    Ok(Some(record))
}

/// A list of records with rules.
fn checked_list<T: Decode + Validate>(json: &[u8]) -> Result<Vec<T>, String> {
    let document = parse(json)?;
    let Data::List(items) = &document.data else {
        return Err("must be a list".to_owned());
    };
    let mut problems = Problems::default();
    let read = items
        .iter()
        .enumerate()
        .filter_map(|(i, item)| read_at(item, &Place::ROOT.index(i), &mut problems))
        .collect();
    if problems.is_ok() {
        return Ok(read);
    }
    problems.locate(&document);
    Err(problems.text())
}

/// Refuses a chain with loose ends: the core relies on a well-formed graph without cycles.
fn check_chain(chain: &CompiledChain) -> Result<(), String> {
    let mut problems = Vec::new();
    if !chain.nodes.contains_key(chain.start_node.as_str()) {
        problems.push(format!(
            "StartNode: there is no node {:?}",
            chain.start_node
        ));
    }
    for (key, node) in &chain.nodes {
        for next in next_nodes(node) {
            if !chain.nodes.contains_key(next) {
                problems.push(format!("Nodes.{key}: there is no node {next:?}"));
            }
        }
        let resolver = node.resolver.as_ref();
        if (node.kind == ChainNodeType::Resolver) != resolver.is_some() {
            problems.push(format!(
                "Nodes.{key}: a node has a Resolver if its type is \"resolver\", and only then"
            ));
        }
        let targets = resolver.into_iter().flat_map(|resolver| {
            let failover = resolver.failover.iter().flat_map(|f| &f.targets);
            std::iter::once(&resolver.target).chain(failover)
        });
        for target in targets {
            if !chain.targets.contains_key(target.as_str()) {
                problems.push(format!("Nodes.{key}: there is no target {target:?}"));
            }
        }
    }
    for (key, target) in &chain.targets {
        if target.id != *key {
            problems.push(format!("Targets.{key}.ID: must be the target's key"));
        }
    }
    if problems.is_empty() && has_cycle(chain) {
        problems.push("Nodes: they lead back to themselves".to_owned());
    }
    if problems.is_empty() {
        Ok(())
    } else {
        Err(problems.join("\n"))
    }
}

fn next_nodes(node: &crate::model::chain::ChainNode) -> impl Iterator<Item = &str> {
    let routes = node.routes.iter().map(|route| route.next_node.as_str());
    let splits = node.splits.iter().map(|split| split.next_node.as_str());
    routes.chain(splits)
}

/// Whether the nodes of a chain lead back to one of them: takes away nodes that nothing leads to until none is left.
fn has_cycle(chain: &CompiledChain) -> bool {
    let mut before: std::collections::BTreeMap<&str, usize> =
        chain.nodes.keys().map(|key| (key.as_str(), 0)).collect();
    for next in chain.nodes.values().flat_map(|node| next_nodes(node)) {
        if let Some(count) = before.get_mut(next) {
            *count += 1;
        }
    }
    let mut free: Vec<&str> = before
        .iter()
        .filter(|(_, count)| **count == 0)
        .map(|(key, _)| *key)
        .collect();
    let mut taken = 0;
    while let Some(key) = free.pop() {
        taken += 1;
        for next in chain
            .nodes
            .get(key)
            .into_iter()
            .flat_map(|node| next_nodes(node))
        {
            if let Some(count) = before.get_mut(next) {
                *count -= 1;
                if *count == 0 {
                    free.push(next);
                }
            }
        }
    }
    taken < chain.nodes.len()
}

#[cfg(test)]
mod tests {
    use super::super::{ChainQuery, EndpointsQuery, ServiceConfigQuery};
    use super::*;
    use crate::chain::{self, ChainRequest, EntrySet};
    use crate::model::{PrivateKey, SpiffeId};
    use serde_json::json;
    use std::time::{Duration, SystemTime};

    fn leaf() -> IssuedCert {
        IssuedCert {
            serial_number: "1".into(),
            cert_pem: "CERT".into(),
            private_key: PrivateKey::from_pem("KEY"),
            identity: SpiffeId::Service {
                trust_domain: "td.consul".into(),
                partition: "default".into(),
                namespace: "default".into(),
                datacenter: "dc1".into(),
                service: "web".into(),
            },
            authority_key_id: SmolStr::default(),
            valid_after: SystemTime::UNIX_EPOCH,
            valid_before: SystemTime::UNIX_EPOCH + Duration::from_secs(60),
            create_index: 1,
            modify_index: 1,
        }
    }

    #[test]
    fn queries_say_what_they_name() {
        for (query, wanted) in [
            (Query::CaRoots, json!({"Kind": "ca-roots"})),
            (
                Query::Leaf {
                    service: "web".into(),
                },
                json!({"Kind": "leaf", "Service": "web"}),
            ),
            (
                Query::Endpoints(EndpointsQuery {
                    service: "db".into(),
                    datacenter: "dc1".into(),
                    ..Default::default()
                }),
                json!({"Kind": "endpoints", "Service": "db", "Datacenter": "dc1"}),
            ),
            (
                Query::ServiceConfig(ServiceConfigQuery {
                    service: "web".into(),
                    upstreams: vec![(SmolStr::default(), "db".into()), ("p".into(), "x".into())],
                    ..Default::default()
                }),
                json!({"Kind": "service-config", "Service": "web",
                    "Upstreams": [{"Name": "db"}, {"Name": "x", "Peer": "p"}]}),
            ),
        ] {
            assert_eq!(serde_json::to_value(&query).unwrap(), wanted);
            assert_eq!(
                QueryKind::from_text(query.kind().as_str()),
                Some(query.kind())
            );
        }
    }

    #[test]
    fn answers_are_read_in_the_form_that_they_are_shown_in() {
        let request = ChainRequest::new("db", "dc1", "td.consul");
        let compiled = chain::compile(&request, &EntrySet::default()).unwrap();
        let chain_query = Query::Chain(ChainQuery::default());
        let json = serde_json::to_vec(&compiled).unwrap();
        match Answer::from_json(&chain_query, &json).unwrap() {
            Answer::Chain(chain) => assert_eq!(**chain, compiled),
            other => panic!("{other:?}"),
        }

        let leaf_query = Query::Leaf {
            service: "web".into(),
        };
        let json = leaf().to_json_with_private_key().unwrap().to_string();
        match Answer::from_json(&leaf_query, json.as_bytes()).unwrap() {
            Answer::Leaf(read) => assert_eq!(**read, leaf()),
            other => panic!("{other:?}"),
        }

        let config = ResolvedServiceConfig::default();
        let json = serde_json::to_vec(&config).unwrap();
        match Answer::from_json(&Query::ServiceConfig(Default::default()), &json).unwrap() {
            Answer::ServiceConfig(read) => assert_eq!(**read, config),
            other => panic!("{other:?}"),
        }

        let record = Query::ServiceRecord {
            node: "n".into(),
            service_id: "s".into(),
        };
        for query in [Query::Mesh, record] {
            assert!(Answer::from_json(&query, b"null").is_ok(), "{query}");
        }
        let endpoints = br#"[{"Node":"n2","ServiceID":"a","Address":"1.1.1.1","Port":1},
            {"Node":"n1","ServiceID":"a","Address":"1.1.1.2","Port":2,"Health":"critical"}]"#;
        match Answer::from_json(&Query::Endpoints(Default::default()), endpoints).unwrap() {
            Answer::Endpoints(read) => assert_eq!(read[0].node, "n1"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_bad_answer_is_refused_with_its_place() {
        let loose = json!({"ServiceName": "db", "StartNode": "resolver:a", "Nodes": {
            "resolver:a": {"Type": "resolver", "Name": "a", "Resolver": {"Target": "gone"}}}});
        let ring = json!({"StartNode": "s:a", "Nodes": {
            "s:a": {"Type": "splitter", "Name": "a",
                "Splits": [{"Definition": {}, "Weight": 100, "NextNode": "s:b"}]},
            "s:b": {"Type": "splitter", "Name": "b",
                "Splits": [{"Definition": {}, "Weight": 100, "NextNode": "s:a"}]}}});
        for (query, json, wanted) in [
            (
                Query::Chain(Default::default()),
                loose.to_string(),
                "there is no target \"gone\"",
            ),
            (
                Query::Chain(Default::default()),
                ring.to_string(),
                "lead back",
            ),
            (
                Query::Chain(Default::default()),
                "{}".to_owned(),
                "StartNode",
            ),
            (Query::CaRoots, "{}".to_owned(), "ActiveRootID"),
            (
                Query::Endpoints(Default::default()),
                "[{\"Port\": 99999}]".to_owned(),
                "[0].Port",
            ),
            (
                Query::JwtProviders,
                "[{\"Nam\": 1}]".to_owned(),
                "did you mean Name?",
            ),
            (Query::Mesh, "[".to_owned(), ""),
        ] {
            let problem = Answer::from_json(&query, json.as_bytes()).unwrap_err();
            assert!(problem.contains(wanted), "{query}: {problem}");
        }
    }
}
