//! Listening, and stopping.

use std::future::Future;
use std::io;
use std::sync::Arc;

use tokio::net::TcpListener;

use super::{HttpState, router};
use crate::server::tls::{Client, HttpConnections, Protocol, ServerTls, incoming};

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
    let signal = {
        let state = state.clone();
        async move {
            shutdown.await;
            state.stop();
        }
    };
    let overdue = async {
        state.stopping().await;
        tokio::time::sleep(state.config().stop_grace).await;
    };
    let app = router(&state).into_make_service_with_connect_info::<Client>();
    let address = listener.local_addr()?;
    let connections = incoming(listener, tls, Protocol::Http, state.connections().clone());
    let connections = HttpConnections::new(connections, address);
    tokio::select! {
        served = axum::serve(connections, app).with_graceful_shutdown(signal) => served,
        () = overdue => {
            tracing::warn!("HTTP connections are closed that didn't end in time");
            Ok(())
        }
    }
}
