//! The list of proxies: what the engine knows of each, joined with the xDS streams that ask for it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use smol_str::SmolStr;

use crate::engine::ProxyStatus;
use crate::model::{NameKey, ServiceKind};
use crate::server::ads::{StreamPhase, StreamStatus, TypeStatus};
use crate::xds::Problem;

/// What a proxy waits for that nobody has registered.
const UNREGISTERED: &str = "registration: nobody has registered this id";

/// Node and id, which match without regard to case.
type Key = (NameKey, NameKey);

/// The proxies that are registered or watched, then the ids that streams ask for beside them. Streams that name no node
/// mean `own_node`.
pub(super) fn list(
    statuses: &[ProxyStatus],
    streams: Vec<StreamStatus>,
    own_node: &SmolStr,
    problems: impl Fn(&ProxyStatus) -> Vec<Problem>,
) -> Vec<Value> {
    let mut by_proxy: BTreeMap<Key, Vec<StreamStatus>> = BTreeMap::new();
    for stream in streams {
        if let Some(node) = &stream.node {
            let on = node.node_name.as_ref().unwrap_or(own_node);
            let key = (NameKey::new(on), NameKey::new(&node.id));
            by_proxy.entry(key).or_default().push(stream);
        }
    }
    let mut known: BTreeSet<Key> = BTreeSet::new();
    let mut list = Vec::new();
    for status in statuses {
        let (node, id) = (&status.id.node, &status.id.service_id);
        let key = (NameKey::new(node), NameKey::new(id));
        let streams = by_proxy.get(&key).map_or(&[][..], Vec::as_slice);
        list.push(proxy(status, streams, &problems(status)));
        known.insert(key);
    }
    let strangers = by_proxy.iter().filter(|(key, _)| !known.contains(key));
    list.extend(strangers.map(|(_, streams)| stranger(streams, own_node)));
    list
}

fn proxy(status: &ProxyStatus, streams: &[StreamStatus], problems: &[Problem]) -> Value {
    let text = |issue: &crate::proxy::Issue| match &issue.error {
        Some(error) => format!("{}: {error}", issue.subject),
        None => issue.subject.clone(),
    };
    let (blocking, other): (Vec<_>, Vec<_>) = status.issues.iter().partition(|i| i.blocks);
    let mut waiting: Vec<String> = blocking.into_iter().map(text).collect();
    if status.source.is_none() {
        waiting.insert(0, UNREGISTERED.to_owned());
    }
    let mut errors: Vec<String> = other.into_iter().map(text).collect();
    errors.extend(status.fault.iter().map(|fault| format!("fault: {fault}")));
    errors.extend(status.ended.iter().map(|why| format!("ended: {why}")));
    let resource = |problem: &Problem| format!("{}: {}", problem.resource, problem.message);
    errors.extend(problems.iter().map(resource));
    json!({
        "ID": status.id.service_id,
        "Node": status.id.node,
        "Kind": status.kind.map_or("", ServiceKind::as_str),
        "Source": status.source.as_ref().map_or("", |source| source.0.as_str()),
        "Ready": status.ready,
        "WaitingFor": waiting,
        "Errors": errors,
        "Index": status.store_index,
        "Watchers": status.watchers,
        "Streams": streams.iter().map(stream).collect::<Vec<_>>(),
    })
}

/// An id that is asked for and not even watched, in the client's spelling.
fn stranger(streams: &[StreamStatus], own_node: &SmolStr) -> Value {
    let node = streams.iter().find_map(|stream| stream.node.as_ref());
    let on = node.and_then(|node| node.node_name.as_ref());
    json!({
        "ID": node.map(|node| node.id.as_str()).unwrap_or_default(),
        "Node": on.unwrap_or(own_node),
        "Kind": "",
        "Source": "",
        "Ready": false,
        "WaitingFor": [UNREGISTERED],
        "Errors": [],
        "Index": 0,
        "Watchers": 0,
        "Streams": streams.iter().map(stream).collect::<Vec<_>>(),
    })
}

fn stream(stream: &StreamStatus) -> Value {
    let version = stream.node.as_ref().and_then(|node| node.envoy_version);
    json!({
        "ID": stream.id,
        "Protocol": stream.protocol.name(),
        "Peer": stream.peer.map(|peer| peer.to_string()).unwrap_or_default(),
        "Phase": match stream.phase {
            StreamPhase::WaitingForNode => "waiting for its first request",
            StreamPhase::WaitingForResources => "waiting for resources",
            StreamPhase::Running => "running",
        },
        "EnvoyVersion": version.map(|version| version.to_string()).unwrap_or_default(),
        "Index": stream.index.unwrap_or(0),
        "Types": stream.types.iter().map(stream_type).collect::<Vec<_>>(),
    })
}

fn stream_type(of: &TypeStatus) -> Value {
    let quarantined = of
        .quarantined
        .iter()
        .map(|q| json!({"Name": q.name, "Version": q.version, "Reason": q.reason}));
    json!({
        "Type": of.kind.name(),
        "Wildcard": of.wildcard,
        "Names": of.names,
        "Held": of.held,
        "WaitingForAnswer": of.waiting_for_answer,
        "AckedIndex": of.synced_index.unwrap_or(0),
        "LastRefusal": of.last_refusal.as_deref().unwrap_or_default(),
        "Quarantined": quarantined.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ProxyId, ProxySource};
    use crate::proxy::Issue;
    use crate::server::ads::{ClientNode, EnvoyVersion, Protocol, Quarantined};
    use crate::xds::ResourceType;

    fn node(id: &str, on: Option<&str>) -> ClientNode {
        ClientNode {
            id: id.into(),
            node_name: on.map(Into::into),
            cluster: SmolStr::default(),
            namespace: None,
            partition: None,
            envoy_version: Some(EnvoyVersion::new(1, 34, 1)),
        }
    }

    fn asks(number: u64, id: &str, on: Option<&str>) -> StreamStatus {
        StreamStatus {
            id: number,
            protocol: Protocol::StateOfTheWorld,
            peer: Some(([127, 0, 0, 1], 4000).into()),
            node: Some(node(id, on)),
            phase: StreamPhase::Running,
            index: Some(7),
            types: vec![TypeStatus {
                kind: ResourceType::Cluster,
                wildcard: true,
                names: 0,
                held: 3,
                waiting_for_answer: false,
                retrying_singly: false,
                synced_index: Some(6),
                last_refusal: Some("no good".into()),
                quarantined: vec![Quarantined {
                    name: "db".into(),
                    version: "v1".into(),
                    reason: "no good".into(),
                }],
            }],
        }
    }

    fn status(id: &str, source: Option<ProxySource>) -> ProxyStatus {
        let issue = |subject: &str, error: Option<&str>, blocks| Issue {
            subject: subject.into(),
            error: error.map(Into::into),
            blocks,
        };
        ProxyStatus {
            id: ProxyId::new(id, "n1"),
            kind: Some(ServiceKind::ConnectProxy),
            source,
            ready: false,
            issues: vec![
                issue("certificate of web", Some("no CA"), true),
                issue("endpoints of db", None, true),
                issue("setting x", Some("not a number"), false),
            ],
            store_index: 6,
            watchers: 1,
            ended: None,
            fault: Some("index out of bounds".into()),
        }
    }

    #[test]
    fn streams_are_joined_to_their_proxies_and_strangers_listed() {
        let statuses = [
            status("web-proxy", Some(ProxySource::LOCAL)),
            status("watched", None),
        ];
        let no_node = StreamStatus {
            node: None,
            ..asks(4, "", None)
        };
        let streams = vec![
            asks(1, "WEB-proxy", None),
            asks(2, "web-proxy", Some("N1")),
            asks(3, "Web-Proxy", Some("n2")),
            no_node,
        ];
        let problem = || Vec::new();
        let list = list(&statuses, streams, &"n1".into(), |_| problem());
        let shown: Vec<_> = list
            .iter()
            .map(|p| {
                (
                    p["ID"].as_str().unwrap(),
                    p["Node"].as_str().unwrap(),
                    p["Streams"].as_array().unwrap().len(),
                )
            })
            .collect();
        assert_eq!(
            shown,
            [
                ("web-proxy", "n1", 2),
                ("watched", "n1", 0),
                ("Web-Proxy", "n2", 1)
            ]
        );
        assert_eq!(
            list[0]["WaitingFor"],
            json!(["certificate of web: no CA", "endpoints of db"])
        );
        assert_eq!(
            list[0]["Errors"],
            json!(["setting x: not a number", "fault: index out of bounds"])
        );
        assert_eq!(list[1]["WaitingFor"][0], UNREGISTERED);
        assert_eq!(list[2]["WaitingFor"], json!([UNREGISTERED]));
    }

    #[test]
    fn a_stream_shows_what_was_acknowledged_and_refused() {
        assert_eq!(
            stream(&asks(1, "web-proxy", None)),
            json!({
                "ID": 1, "Protocol": "sotw", "Peer": "127.0.0.1:4000", "Phase": "running", "EnvoyVersion": "1.34.1", "Index": 7,
                "Types": [{
                    "Type": "cluster", "Wildcard": true, "Names": 0, "Held": 3, "WaitingForAnswer": false,
                    "AckedIndex": 6, "LastRefusal": "no good",
                    "Quarantined": [{"Name": "db", "Version": "v1", "Reason": "no good"}],
                }],
            })
        );
    }
}
