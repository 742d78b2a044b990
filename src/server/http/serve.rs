//! Listening, and stopping.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tower::ServiceExt as _;
use tracing::debug;

use super::{HttpState, router};
use crate::server::tls::{Connection, Protocol, ServerTls, incoming};

/// Most header lines of a request.
const MOST_HEADERS: usize = 100;

/// Serves the API, encrypted if `tls` is given, until `shutdown` ends. Waiting reads then end with the answer they have, and
/// connections are given [`HttpConfig::stop_grace`](super::HttpConfig::stop_grace) to close.
///
/// # Errors
/// The listener fails.
pub async fn serve(
    listener: TcpListener,
    tls: Option<Arc<ServerTls>>,
    state: Arc<HttpState>,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let app = router(&state);
    let mut connections = incoming(listener, tls, Protocol::Http, state.connections().clone());
    // Each connection holds a receiver.
    let open = watch::Sender::new(());
    let mut shutdown = pin!(shutdown);
    loop {
        let connection = tokio::select! {
            () = &mut shutdown => break,
            connection = connections.recv() => connection,
        };
        let Some(connection) = connection else {
            return Err(io::Error::other("no more connections are accepted"));
        };
        let answering = answer(connection, app.clone(), state.clone(), open.subscribe());
        tokio::spawn(answering);
    }
    drop(connections);
    state.stop();
    let grace = state.config().stop_grace;
    if tokio::time::timeout(grace, open.closed()).await.is_err() {
        tracing::warn!("HTTP connections are closed that didn't end in time");
    }
    Ok(())
}

/// Answers the requests of one connection.
async fn answer(
    connection: Connection,
    app: Router,
    state: Arc<HttpState>,
    _open: watch::Receiver<()>,
) {
    let client = connection.client();
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let mut request: Request = request.map(Body::new);
        request.extensions_mut().insert(client.clone());
        app.clone().oneshot(request)
    });
    let mut serving = pin!(
        http1::Builder::new()
            .max_headers(MOST_HEADERS)
            .max_buf_size(state.config().max_header)
            .serve_connection(TokioIo::new(connection), service)
    );
    let ended = tokio::select! {
        ended = serving.as_mut() => ended,
        () = state.stopping() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = ended {
        debug!(%error, "an HTTP connection ended");
    }
}
