//! Reads of the store that wait for something newer (store.md 2.4), and calls that may block a thread.
//!
//! A read runs on the runtime's pool for blocking work, so that a long answer holds up neither other requests nor xDS
//! streams. While it waits it is a waker in the store and a timer, nothing more: no thread, and no snapshot, so that old
//! states of the store can go. When a key that it has read changes, it runs again. It ends with the answer that it has
//! when its time is over or the server stops, and without one when the client hangs up.

use std::sync::Arc;

use axum::response::Response;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::HttpState;
use super::answer::{Content, Writer};
use super::error::HttpError;
use super::params::Params;
use crate::store::{BlockingQuery, Found, Reader, Reads, Store};

/// What one run of a query came to.
struct Run {
    content: Content,
    /// The query's index.
    index: u64,
    /// Of the snapshot that was read.
    store_index: u64,
    restored_at: u64,
    reads: Reads,
}

/// Answers a query on the store, waiting as the request says.
pub(super) async fn read<Q>(
    state: &HttpState,
    params: &Params,
    query: Q,
) -> Result<Response, HttpError>
where
    Q: Fn(&Reader<'_>, Writer) -> Result<Content, HttpError> + Send + Sync + 'static,
{
    let blocking = params.blocking(state)?;
    let writer = params.writer();
    let store = state.store();
    // An index that the store hasn't reached is from a life that is over: the client has to begin anew.
    let known = blocking.index <= store.snapshot().index().max(1);
    let mut rule = BlockingQuery::new(if known { blocking.index } else { 0 });
    let query = Arc::new(query);
    let deadline = Instant::now() + blocking.wait;
    let mut last: Option<Content> = None;
    loop {
        let (store, again) = (store.clone(), query.clone());
        let run = off_thread(move || run(&store, writer, &*again)).await?;
        let found = match &run.content {
            Content::NotFound(_) => Found::No,
            content if last.as_ref() == Some(content) => Found::Same,
            _ => Found::Yes,
        };
        if rule.answers(run.index, run.restored_at, found)
            || !changed(state, run.reads, run.store_index, deadline).await
        {
            return Ok(run.content.at(run.index));
        }
        last = Some(run.content);
    }
}

fn run<Q>(store: &Store, writer: Writer, query: &Q) -> Result<Run, HttpError>
where
    Q: Fn(&Reader<'_>, Writer) -> Result<Content, HttpError>,
{
    let snapshot = store.snapshot();
    let reader = snapshot.reader();
    let content = query(&reader, writer)?;
    let reads = reader.finish();
    Ok(Run {
        content,
        index: snapshot.index_of(&reads),
        store_index: snapshot.index(),
        restored_at: snapshot.restored_at(),
        reads,
    })
}

/// Waits until something that was read at a store index has changed. False if the time was over first, or the server
/// stops.
pub(super) async fn changed(
    state: &HttpState,
    reads: Reads,
    store_index: u64,
    deadline: Instant,
) -> bool {
    let (wake, woken) = oneshot::channel();
    let waker = Box::new(move || {
        // Nobody listens if the client has hung up.
        let _ = wake.send(());
    });
    let _wait = state.store().wait_until_changed(reads, store_index, waker);
    tokio::select! {
        woken = woken => woken.is_ok(),
        () = tokio::time::sleep_until(deadline) => false,
        () = state.stopping() => false,
    }
}

/// Runs something that may block or takes long, on a thread that may.
pub(super) async fn off_thread<T, W>(work: W) -> Result<T, HttpError>
where
    T: Send + 'static,
    W: FnOnce() -> Result<T, HttpError> + Send + 'static,
{
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => {
            tracing::error!(%error, "a request failed");
            Err(HttpError::internal(
                "the request failed because of a fault in the server; its log has more",
            ))
        }
    }
}
