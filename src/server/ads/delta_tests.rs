//! Single scenarios of the delta protocol that are easier to read here than over a socket.

use envoy_types::pb::envoy::service::discovery::v3::DeltaDiscoveryRequest;
use envoy_types::pb::google::rpc;

use super::{AdsResponse, AdsStream, RequestError, RequestKind};
use crate::server::ads::{AdsLimits, Protocol};
use crate::xds::ResourceType::{Cluster, Endpoint, Listener};
use crate::xds::{Resource, ResourceSet, ResourceType};

fn set(index: u64, resources: &[(ResourceType, &str, &str)]) -> ResourceSet {
    let mut builder = ResourceSet::builder(index);
    for (kind, name, content) in resources {
        builder.insert(Resource::new(*kind, *name, content.as_bytes().to_vec()));
    }
    builder.build()
}

fn stream(resources: &[(ResourceType, &str, &str)]) -> AdsStream {
    let mut stream = AdsStream::new(Protocol::Delta, AdsLimits::default());
    stream.on_resources(set(1, resources));
    stream
}

fn request(kind: ResourceType, subscribe: &[&str], unsubscribe: &[&str]) -> DeltaDiscoveryRequest {
    let owned = |names: &[&str]| names.iter().map(ToString::to_string).collect();
    DeltaDiscoveryRequest {
        type_url: kind.url().into(),
        resource_names_subscribe: owned(subscribe),
        resource_names_unsubscribe: owned(unsubscribe),
        ..DeltaDiscoveryRequest::default()
    }
}

fn ask(stream: &mut AdsStream, kind: ResourceType, names: &[&str]) {
    stream.on_request(&request(kind, names, &[])).unwrap();
}

fn drop_name(stream: &mut AdsStream, kind: ResourceType, name: &str) {
    stream.on_request(&request(kind, &[], &[name])).unwrap();
}

fn answer(stream: &mut AdsStream, response: &AdsResponse, error: Option<&str>) -> RequestKind {
    let mut answer = request(response.kind, &[], &[]);
    answer.response_nonce = response.nonce.to_string();
    answer.error_detail = error.map(|message| rpc::Status {
        message: message.into(),
        ..rpc::Status::default()
    });
    stream.on_request(&answer).unwrap()
}

/// The contents of the next response.
fn next(stream: &mut AdsStream) -> (AdsResponse, Vec<String>) {
    let response = stream.next_response().expect("a response");
    let contents = response.resources.iter().map(|resource| {
        let content = std::str::from_utf8(resource.bytes()).unwrap();
        format!("{}@{content}", resource.name())
    });
    let contents = contents.collect();
    (response, contents)
}

fn silent(stream: &mut AdsStream) {
    let response = stream.next_response();
    assert!(response.is_none(), "{response:?}");
}

#[test]
fn xds_2_a_request_without_a_type_url_is_an_error() {
    let mut stream = stream(&[]);
    let error = stream.on_request(&DeltaDiscoveryRequest::default());
    assert_eq!(error, Err(RequestError::NoTypeUrl));
}

#[test]
fn xds_4_nothing_is_sent_before_there_are_resources() {
    let mut stream = AdsStream::new(Protocol::Delta, AdsLimits::default());
    for kind in ResourceType::ALL {
        ask(&mut stream, kind, &[]);
    }
    silent(&mut stream);
}

#[test]
fn xds_5_the_first_response_is_clusters_with_nonce_one() {
    let mut stream = AdsStream::new(Protocol::Delta, AdsLimits::default());
    for kind in [Listener, Endpoint, Cluster] {
        ask(&mut stream, kind, &[]);
    }
    stream.on_resources(set(
        1,
        &[
            (Cluster, "a", "1"),
            (Cluster, "b", "1"),
            (Listener, "l", "1"),
        ],
    ));
    let (response, contents) = next(&mut stream);
    assert_eq!(
        (response.kind, response.nonce.as_str()),
        (Cluster, "00000001")
    );
    assert_eq!(contents, ["a@1", "b@1"]);
}

#[test]
fn xds_6_listeners_wait_for_clusters_and_endpoints() {
    let mut stream = stream(&[
        (Cluster, "a", "1"),
        (Endpoint, "a", "1"),
        (Listener, "l", "1"),
    ]);
    ask(&mut stream, Cluster, &[]);
    ask(&mut stream, Endpoint, &["a"]);
    ask(&mut stream, Listener, &[]);
    let (cluster, _) = next(&mut stream);
    let (endpoint, _) = next(&mut stream);
    silent(&mut stream);
    answer(&mut stream, &cluster, None);
    silent(&mut stream);
    // A refusal ends the waiting as well: one refused type doesn't stop the others.
    answer(&mut stream, &endpoint, Some("bad"));
    assert_eq!(next(&mut stream).0.kind, Listener);
}

#[test]
fn an_aggregate_replaces_a_cluster_after_its_members_have_their_endpoints() {
    let plain = [
        (Cluster, "db", "plain"),
        (Endpoint, "db", "1"),
        (Listener, "l", "1"),
    ];
    let members = [
        (Cluster, "m0", "1"),
        (Cluster, "m1", "1"),
        (Endpoint, "m0", "1"),
        (Endpoint, "m1", "1"),
    ];
    let aggregate = |index, content: &str| {
        let mut builder = ResourceSet::builder(index);
        for (kind, name, content) in members {
            builder.insert(Resource::new(kind, name, content.as_bytes().to_vec()));
        }
        let content = content.as_bytes().to_vec();
        builder.insert(Resource::new(Cluster, "db", content).composed());
        builder.insert(Resource::new(Listener, "l", b"2".to_vec()));
        builder.build()
    };
    let mut stream = stream(&plain);
    ask(&mut stream, Cluster, &[]);
    ask(&mut stream, Endpoint, &["db"]);
    ask(&mut stream, Listener, &[]);
    for _ in 0..3 {
        let (response, _) = next(&mut stream);
        answer(&mut stream, &response, None);
    }

    stream.on_resources(aggregate(2, "aggregate"));
    let (response, contents) = next(&mut stream);
    assert_eq!(contents, ["m0@1", "m1@1"]);
    silent(&mut stream);
    ask(&mut stream, Endpoint, &["m0", "m1"]);
    let (endpoints, contents) = next(&mut stream);
    assert_eq!((endpoints.kind, contents.len()), (Endpoint, 2));
    answer(&mut stream, &response, None);
    silent(&mut stream);
    answer(&mut stream, &endpoints, None);
    let (response, contents) = next(&mut stream);
    assert_eq!(
        (response.kind, contents),
        (Cluster, vec!["db@aggregate".to_owned()])
    );
    silent(&mut stream);
    answer(&mut stream, &response, None);
    assert_eq!(next(&mut stream).0.kind, Listener);

    // A new one, which nothing uses yet, goes with all others.
    let mut fresh = AdsStream::new(Protocol::Delta, AdsLimits::default());
    fresh.on_resources(aggregate(2, "aggregate"));
    ask(&mut fresh, Cluster, &[]);
    assert_eq!(next(&mut fresh).1, ["db@aggregate", "m0@1", "m1@1"]);
}

#[test]
fn xds_12_an_unknown_nonce_changes_nothing() {
    let mut stream = stream(&[(Cluster, "a", "1")]);
    ask(&mut stream, Cluster, &[]);
    let (mut response, _) = next(&mut stream);
    let nonce = std::mem::replace(&mut response.nonce, "zzz".into());
    assert_eq!(
        answer(&mut stream, &response, None),
        RequestKind::Stale(Cluster)
    );
    assert!(stream.status()[0].waiting_for_answer);
    response.nonce = nonce;
    assert_eq!(
        answer(&mut stream, &response, None),
        RequestKind::Ack(Cluster)
    );
    assert_eq!(stream.status()[0].synced_index, None);
    silent(&mut stream);
    assert_eq!(stream.status()[0].synced_index, Some(1));
}

#[test]
fn row_14_the_client_may_have_taken_part_of_what_it_refused() {
    let mut stream = stream(&[(Cluster, "a", "1"), (Cluster, "b", "1")]);
    ask(&mut stream, Cluster, &[]);
    let (both, _) = next(&mut stream);
    answer(&mut stream, &both, None);
    stream.on_resources(set(2, &[(Cluster, "a", "2"), (Cluster, "b", "bad")]));
    let (both, contents) = next(&mut stream);
    assert_eq!(contents, ["a@2", "b@bad"]);
    answer(&mut stream, &both, Some("b is bad"));
    assert!(stream.status()[0].retrying_singly);
    // Going back to what it acknowledged before has to be sent: it may hold a@2 by now. Together, for it is no suspect.
    stream.on_resources(set(3, &[(Cluster, "a", "1"), (Cluster, "b", "1")]));
    let (both, contents) = next(&mut stream);
    assert_eq!(contents, ["a@1", "b@1"]);
    answer(&mut stream, &both, None);
    silent(&mut stream);
    assert!(!stream.status()[0].retrying_singly);
}

#[test]
fn row_14_an_addition_that_was_refused_among_others_is_removed_when_it_goes() {
    let mut stream = stream(&[(Cluster, "a", "1"), (Cluster, "b", "1")]);
    ask(&mut stream, Cluster, &[]);
    let (both, _) = next(&mut stream);
    answer(&mut stream, &both, Some("one is bad"));
    stream.on_resources(set(2, &[(Cluster, "b", "1")]));
    let (alone, contents) = next(&mut stream);
    assert_eq!(contents, ["b@1"]);
    answer(&mut stream, &alone, None);
    let (removal, contents) = next(&mut stream);
    assert!(contents.is_empty());
    assert_eq!(removal.removed, ["a"]);
}

#[test]
fn row_14_a_refused_removal_is_not_repeated_and_counts_until_the_resource_returns() {
    let mut stream = stream(&[(Listener, "l", "1")]);
    ask(&mut stream, Listener, &[]);
    let (first, _) = next(&mut stream);
    answer(&mut stream, &first, None);
    stream.on_resources(set(2, &[]));
    let (removal, _) = next(&mut stream);
    answer(&mut stream, &removal, Some("won't"));
    silent(&mut stream);
    stream.on_resources(set(3, &[(Listener, "l", "2")]));
    let (back, contents) = next(&mut stream);
    assert_eq!(contents, ["l@2"]);
    answer(&mut stream, &back, None);
    stream.on_resources(set(4, &[]));
    assert_eq!(next(&mut stream).0.removed, ["l"]);
}

#[test]
fn fc_015_a_refused_child_is_sent_when_its_old_content_returns() {
    let mut stream = stream(&[(Cluster, "c", "1"), (Endpoint, "c", "1")]);
    ask(&mut stream, Cluster, &[]);
    ask(&mut stream, Endpoint, &["c"]);
    for _ in 0..2 {
        let (response, _) = next(&mut stream);
        answer(&mut stream, &response, None);
    }
    // The new cluster makes the client forget its endpoints, and it refuses the new ones.
    stream.on_resources(set(2, &[(Cluster, "c", "2"), (Endpoint, "c", "bad")]));
    let (cluster, _) = next(&mut stream);
    answer(&mut stream, &cluster, None);
    let (endpoint, contents) = next(&mut stream);
    assert_eq!(contents, ["c@bad"]);
    answer(&mut stream, &endpoint, Some("bad"));
    silent(&mut stream);
    stream.on_resources(set(3, &[(Cluster, "c", "2"), (Endpoint, "c", "1")]));
    assert_eq!(next(&mut stream).1, ["c@1"]);
}

#[test]
fn fc_015_endpoints_listed_by_a_reconnecting_client_are_forgotten_with_a_cluster_on_its_way() {
    let resources = [(Cluster, "c", "2"), (Endpoint, "c", "1")];
    let mut stream = stream(&resources);
    let version = |name| {
        let resources = set(1, &resources);
        resources.get(Endpoint, name).unwrap().version().to_string()
    };
    ask(&mut stream, Cluster, &[]);
    assert_eq!(next(&mut stream).1, ["c@2"]);
    let mut resume = request(Endpoint, &["c"], &[]);
    resume
        .initial_resource_versions
        .insert("c".into(), version("c"));
    stream.on_request(&resume).unwrap();
    assert_eq!(next(&mut stream).1, ["c@1"]);
}

#[test]
fn fc_021_what_was_on_its_way_while_the_client_changed_its_mind_is_removed_if_it_is_gone() {
    let mut stream = stream(&[(Endpoint, "a", "1")]);
    ask(&mut stream, Endpoint, &["a"]);
    let (response, _) = next(&mut stream);
    drop_name(&mut stream, Endpoint, "a");
    ask(&mut stream, Endpoint, &["a"]);
    stream.on_resources(set(2, &[]));
    answer(&mut stream, &response, None);
    // It may have got the resource after it asked again.
    assert_eq!(next(&mut stream).0.removed, ["a"]);
}

#[test]
fn a_name_in_both_lists_stays_subscribed_and_is_sent_again() {
    let mut stream = stream(&[(Endpoint, "a", "1")]);
    ask(&mut stream, Endpoint, &["a"]);
    let (response, _) = next(&mut stream);
    answer(&mut stream, &response, None);
    stream
        .on_request(&request(Endpoint, &["a"], &["a"]))
        .unwrap();
    assert_eq!(next(&mut stream).1, ["a@1"]);
}

#[test]
fn a_request_over_a_limit_changes_nothing() {
    let mut stream = AdsStream::new(
        Protocol::Delta,
        AdsLimits {
            max_names: 1,
            ..AdsLimits::default()
        },
    );
    let error = stream.on_request(&request(Endpoint, &["a", "b"], &[]));
    assert!(matches!(error, Err(RequestError::TooManyNames { .. })));
    assert!(stream.status().is_empty());
}
