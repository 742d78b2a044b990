//! The gRPC service `envoy.service.discovery.v3.AggregatedDiscoveryService` (xds.md 1.1), and a way to serve it.
//!
//! The routing is written by hand rather than generated, because responses have a codec of their own
//! (the module `wire` says why).

use std::convert::Infallible;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;
use smol_str::SmolStr;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::Instant;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::codegen::{Body as HttpBody, StdError, http};
use tonic::server::{Grpc, NamedService, StreamingService};
use tonic::transport::Server;
use tonic::{Request, Response, Status, Streaming};
use tracing::debug;

use super::limits::AdsConfig;
use super::metrics::AdsMetrics;
use super::node::Caller;
use super::provider::ResourceProvider;
use super::status::{StreamRegistry, StreamStatus};
use super::stream::AdsResponse;
use super::stream_task::StreamTask;
use super::wire::{AdsCodec, Delta, StateOfTheWorld, Wire};
use crate::server::connections::{ConnectionLimits, Connections};
use crate::server::propagation::Propagation;
use crate::server::rate::TokenBucket;
use crate::server::tls::{self, ServerTls};

const NAME: &str = "envoy.service.discovery.v3.AggregatedDiscoveryService";
const DELTA: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";
const STATE_OF_THE_WORLD: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";

/// The metadata key of the token.
const TOKEN: &str = "x-consul-token";

/// Responses that may wait for the transport of one stream.
const RESPONSE_ROOM: usize = 1;

/// Watches that are started at a time.
const OPENING: usize = 4;

type BoxFuture<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

/// The xDS service. A clone is another handle to the same service.
#[derive(Debug, Clone)]
pub struct AdsService {
    shared: Arc<Shared>,
}

/// What all streams share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) provider: Arc<dyn ResourceProvider>,
    pub(super) config: AdsConfig,
    pub(super) metrics: AdsMetrics,
    pub(super) streams: Arc<StreamRegistry>,
    pub(super) stopping: watch::Sender<bool>,
    /// Measures how long changes take, if that is wanted.
    pub(super) times: Option<Arc<Propagation>>,
    /// Who may start a watch at a time: more threads wouldn't be faster, and starting them costs more than the watches.
    pub(super) opening: Semaphore,
    connections: Arc<Connections>,
    /// How many streams may come, and since when that is counted.
    coming: Option<Mutex<TokenBucket>>,
    started: Instant,
}

impl AdsService {
    /// A service that gets its resources from `provider`.
    #[must_use]
    pub fn new(provider: Arc<dyn ResourceProvider>, config: AdsConfig) -> Self {
        Self::measured(provider, config, None)
    }

    /// A service that takes note of how long changes take to be sent and acknowledged.
    #[must_use]
    pub fn measured(
        provider: Arc<dyn ResourceProvider>,
        config: AdsConfig,
        times: Option<Arc<Propagation>>,
    ) -> Self {
        let coming = config.max_stream_rate;
        let coming = coming.map(|rate| Mutex::new(TokenBucket::new(rate, Duration::ZERO)));
        let connections = Connections::new(ConnectionLimits {
            max: config.max_connections,
            head: config.idle_timeout,
            idle: config.idle_timeout,
            only_heads: false,
        });
        Self {
            shared: Arc::new(Shared {
                opening: Semaphore::new(OPENING),
                connections,
                coming,
                started: Instant::now(),
                provider,
                config,
                metrics: AdsMetrics::default(),
                streams: Arc::default(),
                stopping: watch::Sender::new(false),
                times,
            }),
        }
    }

    /// Its counters.
    #[must_use]
    pub fn metrics(&self) -> &AdsMetrics {
        &self.shared.metrics
    }

    /// Its settings.
    #[must_use]
    pub fn config(&self) -> &AdsConfig {
        &self.shared.config
    }

    /// The connections of clients.
    #[must_use]
    pub fn connections(&self) -> &Arc<Connections> {
        &self.shared.connections
    }

    /// All open streams, in the order in which they were opened.
    #[must_use]
    pub fn streams(&self) -> Vec<StreamStatus> {
        self.shared.streams.list()
    }

    /// How many streams are open.
    #[must_use]
    pub fn open_streams(&self) -> usize {
        self.shared.streams.len()
    }

    /// Ends all streams with Unavailable, and any that is opened from now on.
    pub fn stop(&self) {
        self.shared.stopping.send_replace(true);
    }

    fn check_rate(&self) -> Result<(), Status> {
        let Some(coming) = &self.shared.coming else {
            return Ok(());
        };
        let taken = coming.lock().take(self.shared.started.elapsed());
        taken.map_err(|wait| {
            self.refuse(format!(
                "more xDS streams than this server takes are being opened: try again in {} ms, or another server",
                wait.as_millis().max(1)
            ))
        })
    }

    fn refuse(&self, message: String) -> Status {
        self.shared.metrics.streams_refused.add_one();
        Status::resource_exhausted(message)
    }

    /// Starts a stream.
    fn open<W: Wire>(
        &self,
        request: Request<Streaming<W::Request>>,
    ) -> Result<Response<ReceiverStream<Result<AdsResponse, Status>>>, Status> {
        let client = request.extensions().get::<tls::Client>();
        let occupied = client.map(|client| client.place.request());
        let caller = caller_of(&request)?;
        self.check_rate()?;
        self.shared.provider.resolve_token(&caller)?;
        let (responses, stream) = mpsc::channel(RESPONSE_ROOM);
        let shared = self.shared.clone();
        let Some(task) = StreamTask::new(shared.clone(), caller, W::PROTOCOL) else {
            let most = shared.config.max_streams;
            return Err(self.refuse(format!(
                "this server has {most} xDS streams open, the most that it takes: try another one"
            )));
        };
        shared.metrics.streams_opened.add_one();
        let run = tokio::spawn(task.run::<W>(request.into_inner(), responses.clone()));
        tokio::spawn(async move {
            // The watch is released by now, whatever the client does with the status.
            let end = match run.await {
                Ok(end) => end,
                Err(error) => Err(Status::internal(format!(
                    "the stream's task failed: {error}"
                ))),
            };
            drop(occupied);
            shared.metrics.streams_closed.add_one();
            if let Err(status) = end {
                debug!(code = ?status.code(), message = status.message(), "xDS stream ended");
                shared.metrics.streams_failed.add_one();
                // Fails if the client is gone: then there is nobody to tell.
                let _ = responses.send(Err(status)).await;
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

fn caller_of<T>(request: &Request<T>) -> Result<Caller, Status> {
    let token = match request.metadata().get(TOKEN) {
        None => SmolStr::default(),
        Some(value) => value.to_str().map(SmolStr::new).map_err(|_| {
            Status::invalid_argument(format!("metadata {TOKEN} isn't printable ASCII"))
        })?,
    };
    Ok(Caller {
        token,
        peer: match request.extensions().get::<tls::Client>() {
            Some(client) => client.address,
            None => request.remote_addr(),
        },
    })
}

/// The method of one form.
struct Method<W> {
    service: AdsService,
    form: PhantomData<W>,
}

impl<W: Wire> Method<W> {
    async fn answer<B>(service: AdsService, request: http::Request<B>) -> http::Response<Body>
    where
        B: HttpBody + Send + 'static,
        B::Error: Into<StdError> + Send + 'static,
    {
        let limit = service.config().limits.max_request_len;
        let mut grpc = Grpc::new(AdsCodec::<W>::new()).max_decoding_message_size(limit);
        let form = PhantomData::<W>;
        grpc.streaming(Self { service, form }, request).await
    }
}

impl<W: Wire> StreamingService<W::Request> for Method<W> {
    type Response = AdsResponse;
    type ResponseStream = ReceiverStream<Result<AdsResponse, Status>>;
    type Future = BoxFuture<Response<Self::ResponseStream>, Status>;

    fn call(&mut self, request: Request<Streaming<W::Request>>) -> Self::Future {
        let answer = self.service.open::<W>(request);
        Box::pin(std::future::ready(answer))
    }
}

/// [`AdsService`] as something a tonic server or an axum router can route to.
#[derive(Debug, Clone)]
pub struct AdsServer {
    service: AdsService,
}

impl AdsServer {
    /// Makes a service routable.
    #[must_use]
    pub fn new(service: AdsService) -> Self {
        Self { service }
    }
}

impl NamedService for AdsServer {
    const NAME: &'static str = NAME;
}

impl<B> tonic::codegen::Service<http::Request<B>> for AdsServer
where
    B: HttpBody + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let service = self.service.clone();
        match request.uri().path() {
            DELTA => Box::pin(async move { Ok(Method::<Delta>::answer(service, request).await) }),
            STATE_OF_THE_WORLD => {
                Box::pin(
                    async move { Ok(Method::<StateOfTheWorld>::answer(service, request).await) },
                )
            }
            path => refuse(&format!("no such method: {path}")),
        }
    }
}

fn refuse(message: &str) -> BoxFuture<http::Response<Body>, Infallible> {
    let response = Status::unimplemented(message).into_http();
    Box::pin(std::future::ready(Ok(response)))
}

/// Why serving ended.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The listening socket couldn't be used.
    #[error("xDS listener: {0}")]
    Listener(#[from] std::io::Error),
    /// The transport failed.
    #[error("xDS server: {0}")]
    Transport(#[from] tonic::transport::Error),
}

/// Serves on `listener`, encrypted if `tls` is given, until `shutdown` is done; then ends all streams, and waits for the
/// connections to close, at most [`AdsConfig::stop_grace`].
///
/// # Errors
/// If the listener or the transport fails.
pub async fn serve(
    listener: TcpListener,
    tls: Option<Arc<ServerTls>>,
    service: AdsService,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), ServeError> {
    let config = service.config();
    let mut server = Server::builder()
        .http2_keepalive_interval(Some(config.keepalive_interval))
        .http2_keepalive_timeout(Some(config.keepalive_timeout))
        .max_concurrent_streams(config.max_streams_per_connection);
    let connections = service.connections().clone();
    let incoming = tls::incoming(listener, tls, tls::Protocol::Xds, connections);
    let incoming = ReceiverStream::new(incoming).map(Ok::<_, std::io::Error>);
    let mut stopped = service.shared.stopping.subscribe();
    let signal = {
        let service = service.clone();
        async move {
            shutdown.await;
            service.stop();
        }
    };
    let grace = service.config().stop_grace;
    let overdue = async move {
        // The sender lives in the service that the server holds.
        let _ = stopped.wait_for(|stopped| *stopped).await;
        tokio::time::sleep(grace).await;
    };
    let serving = server
        .add_service(AdsServer::new(service))
        .serve_with_incoming_shutdown(incoming, signal);
    tokio::select! {
        served = serving => Ok(served?),
        () = overdue => Ok(()),
    }
}
