//! A scripted client that counts what the server may answer.

use std::collections::{BTreeMap, BTreeSet};

use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use envoy_types::pb::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use envoy_types::pb::google::rpc;
use proxycfg::server::ads::Protocol;
use proxycfg::xds::ResourceType;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Status, Streaming};

use crate::world::{DEADLINE, FENCE, World};

/// A response, read.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    pub kind: ResourceType,
    /// Contents by name.
    pub got: BTreeMap<String, String>,
    /// Of each resource in it (delta).
    pub versions: BTreeMap<String, String>,
    /// Of the whole response (state of the world).
    pub version: String,
    pub removed: Vec<String>,
    pub nonce: String,
}

impl Answer {
    /// `name@content` of everything in it, in order.
    pub fn contents(&self) -> Vec<&str> {
        self.got.values().map(String::as_str).collect()
    }
}

/// The two ends of a call.
struct Call<Q, A> {
    requests: mpsc::Sender<Q>,
    responses: Streaming<A>,
}

enum Stream {
    Delta(Call<DeltaDiscoveryRequest, DeltaDiscoveryResponse>),
    World(
        Call<DiscoveryRequest, DiscoveryResponse>,
        BTreeMap<ResourceType, Asked>,
    ),
}

/// What a request of the state of the world repeats.
#[derive(Default)]
struct Asked {
    names: BTreeSet<String>,
    nonce: String,
    version: String,
}

pub struct Client {
    stream: Stream,
    node: Option<Node>,
    asked: BTreeSet<ResourceType>,
    nonces: u32,
    answers: BTreeMap<ResourceType, usize>,
    causes: BTreeMap<ResourceType, usize>,
    start_updates: u64,
    updates: Box<dyn Fn() -> u64 + Send>,
}

pub fn node(id: &str) -> Node {
    Node {
        id: id.into(),
        cluster: "web".into(),
        user_agent_name: "envoy".into(),
        ..Node::default()
    }
}

pub fn request(kind: ResourceType) -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest {
        type_url: kind.url().into(),
        ..DeltaDiscoveryRequest::default()
    }
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}

impl Client {
    pub async fn connect(world: &World, protocol: Protocol, proxy: &str) -> Self {
        Self::try_connect(world, protocol, Some(node(proxy)), "")
            .await
            .unwrap()
    }

    /// Opens a stream; `node` goes with the first request.
    pub async fn try_connect(
        world: &World,
        protocol: Protocol,
        node: Option<Node>,
        token: &'static str,
    ) -> Result<Self, Status> {
        let endpoint = format!("http://{}", world.addr);
        let mut client = AggregatedDiscoveryServiceClient::connect(endpoint)
            .await
            .unwrap();
        let stream = match protocol {
            Protocol::Delta => {
                let (requests, call) = outgoing(token);
                let responses = client.delta_aggregated_resources(call).await?.into_inner();
                Stream::Delta(Call {
                    requests,
                    responses,
                })
            }
            Protocol::StateOfTheWorld => {
                let (requests, call) = outgoing(token);
                let responses = client.stream_aggregated_resources(call).await?.into_inner();
                let call = Call {
                    requests,
                    responses,
                };
                Stream::World(call, BTreeMap::new())
            }
        };
        let service = world.service.clone();
        let updates = move || service.metrics().updates.get();
        Ok(Self {
            stream,
            node,
            asked: BTreeSet::new(),
            nonces: 0,
            answers: BTreeMap::new(),
            causes: BTreeMap::new(),
            start_updates: updates(),
            updates: Box::new(updates),
        })
    }

    /// Sends a request, with the node if it is the first: as it is, or as the state of the world says the same.
    pub async fn send(&mut self, mut request: DeltaDiscoveryRequest) {
        request.node = self.node.take();
        if let Some(kind) = ResourceType::from_url(&request.type_url) {
            let first = self.asked.insert(kind);
            let names =
                request.resource_names_subscribe.len() + request.resource_names_unsubscribe.len();
            if first || names > 0 {
                *self.causes.entry(kind).or_default() += 1;
            }
        }
        // Fails if the server has ended the stream; the test sees that when it reads.
        match &mut self.stream {
            Stream::Delta(call) => drop(call.requests.send(request).await),
            Stream::World(call, asked) => {
                let request = in_whole(request, asked);
                drop(call.requests.send(request).await);
            }
        }
    }

    pub async fn subscribe(&mut self, kind: ResourceType, names: &[&str]) {
        self.send(DeltaDiscoveryRequest {
            resource_names_subscribe: owned(names),
            ..request(kind)
        })
        .await;
    }

    pub async fn unsubscribe(&mut self, kind: ResourceType, names: &[&str]) {
        self.send(DeltaDiscoveryRequest {
            resource_names_unsubscribe: owned(names),
            ..request(kind)
        })
        .await;
    }

    /// A first request after a reconnect.
    pub async fn resume(&mut self, kind: ResourceType, names: &[&str], held: &[(&str, &str)]) {
        let pairs = held
            .iter()
            .map(|(name, version)| (name.to_string(), version.to_string()));
        self.send(DeltaDiscoveryRequest {
            resource_names_subscribe: owned(names),
            initial_resource_versions: pairs.collect(),
            ..request(kind)
        })
        .await;
    }

    /// Has the version of a response on an earlier stream, which the first request will name (state of the world).
    pub fn remember(&mut self, answer: &Answer) {
        if let Stream::World(_, asked) = &mut self.stream {
            asked.entry(answer.kind).or_default().version = answer.version.clone();
        }
    }

    pub async fn ack(&mut self, answer: &Answer) {
        self.send(DeltaDiscoveryRequest {
            response_nonce: answer.nonce.clone(),
            ..request(answer.kind)
        })
        .await;
    }

    pub async fn nack(&mut self, answer: &Answer, message: &str) {
        let singly = answer.got.len() + answer.removed.len();
        if singly > 1 {
            *self.causes.entry(answer.kind).or_default() += singly;
        }
        self.send(DeltaDiscoveryRequest {
            response_nonce: answer.nonce.clone(),
            error_detail: Some(rpc::Status {
                code: Code::InvalidArgument as i32,
                message: message.into(),
                details: Vec::new(),
            }),
            ..request(answer.kind)
        })
        .await;
    }

    /// The next response, or how the stream ends.
    pub async fn next(&mut self) -> Result<Option<Answer>, Status> {
        let answer = tokio::time::timeout(DEADLINE, async {
            Ok::<_, Status>(match &mut self.stream {
                Stream::Delta(call) => call.responses.message().await?.map(read_delta),
                Stream::World(call, asked) => {
                    let message = call.responses.message().await?;
                    message.map(|message| read_world(message, asked))
                }
            })
        });
        let answer: Option<Answer> = answer.await.expect("an answer in time")?;
        if let Some(answer) = &answer {
            self.count(answer);
        }
        Ok(answer)
    }

    /// The next response, unacknowledged.
    pub async fn receive(&mut self) -> Answer {
        self.next().await.unwrap().expect("a response")
    }

    /// The next response, acknowledged; it has to be of this type.
    pub async fn take(&mut self, kind: ResourceType) -> Answer {
        let answer = self.receive().await;
        assert_eq!(answer.kind, kind, "{answer:?}");
        self.ack(&answer).await;
        answer
    }

    /// Takes a response that holds these contents, and these removals.
    pub async fn expect(&mut self, kind: ResourceType, contents: &[&str], removed: &[&str]) {
        let answer = self.take(kind).await;
        assert_eq!(answer.contents(), contents, "{answer:?}");
        assert_eq!(answer.removed, removed, "{answer:?}");
    }

    /// The status that the stream ends with.
    pub async fn ended(&mut self) -> Status {
        loop {
            match self.next().await {
                Ok(Some(_)) => {}
                Ok(None) => return Status::ok(""),
                Err(status) => return status,
            }
        }
    }

    /// Checks that the server has nothing more to say: asks for the fence, twice, because what else is due in one pass
    /// may come after it.
    pub async fn quiet(&mut self) {
        for _ in 0..2 {
            let secrets = match &self.stream {
                Stream::Delta(_) => None,
                Stream::World(_, asked) => asked.get(&ResourceType::Secret),
            };
            if secrets.is_some_and(|asked| asked.names.contains(FENCE)) {
                // A list of names doesn't say that one is asked for again.
                self.unsubscribe(ResourceType::Secret, &[FENCE]).await;
            }
            self.subscribe(ResourceType::Secret, &[FENCE]).await;
            self.expect(ResourceType::Secret, &["f"], &[]).await;
        }
    }

    /// Checks that nothing more comes, and that the server never answered without a cause.
    pub async fn finish(mut self) {
        self.quiet().await;
        let updates = usize::try_from((self.updates)() - self.start_updates).unwrap();
        for (kind, answers) in &self.answers {
            // A change of one type may take two responses: what is new, and later what is gone.
            let causes = self.causes.get(kind).copied().unwrap_or(0) + 2 * updates;
            assert!(
                *answers <= causes,
                "{kind}: {answers} answers for {causes} causes"
            );
        }
    }

    fn count(&mut self, answer: &Answer) {
        let kind = answer.kind;
        assert!(self.asked.contains(&kind), "{kind} was never asked for");
        self.nonces += 1;
        assert_eq!(answer.nonce, format!("{:08x}", self.nonces));
        *self.answers.entry(kind).or_default() += 1;
    }
}

fn outgoing<Q: Send + 'static>(
    token: &'static str,
) -> (mpsc::Sender<Q>, Request<ReceiverStream<Q>>) {
    let (requests, outgoing) = mpsc::channel(64);
    let mut call = Request::new(ReceiverStream::new(outgoing));
    if !token.is_empty() {
        call.metadata_mut()
            .insert("x-consul-token", token.parse().unwrap());
    }
    (requests, call)
}

/// What a request of changes is in the state of the world.
fn in_whole(
    request: DeltaDiscoveryRequest,
    asked: &mut BTreeMap<ResourceType, Asked>,
) -> DiscoveryRequest {
    let mut whole = DiscoveryRequest {
        node: request.node,
        type_url: request.type_url,
        response_nonce: request.response_nonce,
        error_detail: request.error_detail,
        ..DiscoveryRequest::default()
    };
    let Some(kind) = ResourceType::from_url(&whole.type_url) else {
        return whole;
    };
    let asked = asked.entry(kind).or_default();
    for name in &request.resource_names_unsubscribe {
        asked.names.remove(name);
    }
    asked.names.extend(request.resource_names_subscribe);
    whole.resource_names = asked.names.iter().cloned().collect();
    if whole.response_nonce.is_empty() {
        whole.response_nonce = asked.nonce.clone();
    }
    whole.version_info = asked.version.clone();
    whole
}

fn read_delta(message: DeltaDiscoveryResponse) -> Answer {
    let kind = ResourceType::from_url(&message.type_url).expect("a known type");
    let mut answer = Answer {
        kind,
        got: BTreeMap::new(),
        versions: BTreeMap::new(),
        version: String::new(),
        removed: message.removed_resources,
        nonce: message.nonce,
    };
    for resource in message.resources {
        let any = resource.resource.expect("a resource with content");
        assert_eq!(any.type_url, kind.url());
        assert_eq!(resource.version.len(), 64);
        let content = String::from_utf8(any.value).unwrap();
        answer.got.insert(resource.name.clone(), content);
        answer.versions.insert(resource.name, resource.version);
    }
    answer
}

/// Names stand before the `@` of each content.
fn read_world(message: DiscoveryResponse, asked: &mut BTreeMap<ResourceType, Asked>) -> Answer {
    let kind = ResourceType::from_url(&message.type_url).expect("a known type");
    assert_eq!(message.version_info.len(), 64);
    let asked = asked.entry(kind).or_default();
    asked.nonce = message.nonce.clone();
    asked.version = message.version_info.clone();
    let contents = message.resources.into_iter().map(|any| {
        assert_eq!(any.type_url, kind.url());
        let content = String::from_utf8(any.value).unwrap();
        let name = content.split('@').next().unwrap().to_owned();
        (name, content)
    });
    Answer {
        kind,
        got: contents.collect(),
        versions: BTreeMap::new(),
        version: message.version_info,
        removed: Vec::new(),
        nonce: message.nonce,
    }
}
