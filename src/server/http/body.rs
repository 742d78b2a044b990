//! Bodies of requests: bounded, and read into records with every problem at its place.
//!
//! A body is received before anything is decided about its request, also if the request will be refused: otherwise the
//! connection would have to be closed, and a client that still sends might never see the answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::{Body as Stream, Bytes, HttpBody as _};
use axum::extract::{FromRequest, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio_stream::StreamExt as _;

use super::error::HttpError;
use super::{HttpConfig, HttpState};
use crate::hcl::{Data, Value, parse_json};
use crate::model::Problems;

/// How much of a body that is too large is read and thrown away, so that the client comes to read the answer.
const MOST_DISCARDED: usize = 16 * 1024 * 1024;

/// How long it may take to throw a body away, or the next part of one.
const DISCARD_TIME: Duration = Duration::from_secs(1);

/// The body of a request, within the limit of [`HttpConfig::max_body`](super::HttpConfig::max_body).
#[derive(Debug)]
pub(super) struct Body(pub Bytes);

/// Receives the body of a request before its handler runs.
pub(super) async fn receive(
    State(state): State<Arc<HttpState>>,
    request: Request,
    next: Next,
) -> Response {
    let (parts, body) = request.into_parts();
    if body.is_end_stream() {
        return next.run(Request::from_parts(parts, body)).await;
    }
    let config = state.config();
    // Whoever asks first whether to send doesn't have to be listened to.
    let asks = parts.headers.contains_key(header::EXPECT);
    let mut taken = state.bodies.take_nothing();
    let receiving = collect(body, config.max_body, !asks, Some(&mut taken));
    let error = match tokio::time::timeout(config.body_timeout, receiving).await {
        Ok(Ok(bytes)) => {
            let request = Request::from_parts(parts, Stream::from(bytes));
            return next.run(request).await;
        }
        Ok(Err(error)) => error,
        Err(_) => HttpError::new(
            StatusCode::REQUEST_TIMEOUT,
            format!("the body didn't arrive within {:?}", config.body_timeout),
        ),
    };
    let full = error.status == StatusCode::TOO_MANY_REQUESTS;
    let mut response = error.into_response();
    if full {
        let soon = HeaderValue::from_static("1");
        response.headers_mut().insert(header::RETRY_AFTER, soon);
    }
    let close = HeaderValue::from_static("close");
    response.headers_mut().insert(header::CONNECTION, close);
    response
}

/// Reads and throws away a little of a body that nobody wants, so that a client which sends first comes to read the answer.
pub(super) async fn discard(body: Stream) {
    let reading = collect(body, 0, true, None);
    // Whatever became of it: the request has been refused, and the connection will be closed.
    let _ = tokio::time::timeout(DISCARD_TIME, reading).await;
}

/// The room that the bodies of all requests share: [`HttpConfig::max_bodies`](super::HttpConfig::max_bodies).
#[derive(Debug)]
pub(super) struct Room {
    most: usize,
    taken: AtomicUsize,
}

/// What one body takes of it.
#[derive(Debug)]
struct Taken<'a> {
    room: &'a Room,
    bytes: usize,
}

impl Room {
    /// One body always has room.
    pub fn new(config: &HttpConfig) -> Self {
        Self {
            most: config.max_bodies.max(config.max_body),
            taken: AtomicUsize::new(0),
        }
    }

    fn take_nothing(&self) -> Taken<'_> {
        Taken {
            room: self,
            bytes: 0,
        }
    }
}

impl Taken<'_> {
    fn take(&mut self, bytes: usize) -> Result<(), HttpError> {
        let Room { most, taken } = self.room;
        let before = taken.fetch_add(bytes, Ordering::SeqCst);
        self.bytes += bytes;
        if before + bytes <= *most {
            return Ok(());
        }
        taken.fetch_sub(std::mem::take(&mut self.bytes), Ordering::SeqCst);
        Err(HttpError::new(
            StatusCode::TOO_MANY_REQUESTS,
            format!(
                "the bodies of all requests are larger than {most} bytes together, the most that is held at a time \
                 (--max-http-bodies); try again in 1 s"
            ),
        ))
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.room.taken.fetch_sub(self.bytes, Ordering::SeqCst);
    }
}

/// The whole body, or what is wrong with it.
async fn collect(
    body: Stream,
    most: usize,
    discard: bool,
    mut taken: Option<&mut Taken<'_>>,
) -> Result<Bytes, HttpError> {
    let announced = body.size_hint().lower();
    let too_large = || {
        HttpError::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!(
                "the body is larger than {most} bytes, the most that is read (--max-http-body); send less in one request"
            ),
        )
    };
    let is_too_large = |size: u64| size > most as u64;
    let mut refused = is_too_large(announced).then(too_large);
    let mut bytes = Vec::new();
    let mut received = 0;
    let mut stream = body.into_data_stream();
    // What is refused goes on being read for a while, and thrown away.
    while refused.is_none() || (discard && received <= most.saturating_add(MOST_DISCARDED)) {
        let next = match refused {
            None => stream.next().await,
            // Who has stopped sending is answered.
            Some(_) => match tokio::time::timeout(DISCARD_TIME, stream.next()).await {
                Ok(next) => next,
                Err(_) => break,
            },
        };
        let Some(chunk) = next else {
            break;
        };
        let chunk = chunk
            .map_err(|error| HttpError::bad_request(format!("the body can't be read: {error}")))?;
        received += chunk.len();
        if refused.is_some() {
            continue;
        }
        if is_too_large(received as u64) {
            refused = Some(too_large());
        } else if let Some(taken) = &mut taken {
            refused = taken.take(chunk.len()).err();
        }
        if refused.is_none() {
            bytes.extend_from_slice(&chunk);
        } else {
            bytes = Vec::new();
        }
    }
    match refused {
        Some(error) => Err(error),
        None => Ok(bytes.into()),
    }
}

impl FromRequest<Arc<HttpState>> for Body {
    type Rejection = HttpError;

    async fn from_request(request: Request, state: &Arc<HttpState>) -> Result<Self, HttpError> {
        match Bytes::from_request(request, state).await {
            Ok(bytes) => Ok(Self(bytes)),
            Err(refused) => Err(HttpError::bad_request(format!(
                "the body can't be read: {}",
                refused.body_text()
            ))),
        }
    }
}

impl Body {
    /// The body as a document, which must be an object.
    pub fn document(&self, wanted: &str) -> Result<Value, HttpError> {
        if self.0.iter().all(u8::is_ascii_whitespace) {
            return Err(HttpError::bad_request(format!(
                "the request has no body; send {wanted} as JSON"
            )));
        }
        let document = parse_json(&self.0)?;
        if matches!(document.data, Data::Object(_)) {
            Ok(document)
        } else {
            Err(HttpError::bad_request(format!(
                "the body must be an object, {wanted}, not {} (line {}, column {})",
                document.kind(),
                document.pos.line,
                document.pos.column
            )))
        }
    }

    /// The body as a record; the problems that come with it are warnings.
    pub fn record<T>(
        &self,
        wanted: &str,
        read: impl FnOnce(&Value) -> Result<(T, Problems), Problems>,
    ) -> Result<(T, Problems), HttpError> {
        let document = self.document(wanted)?;
        read(&document).map_err(|problems| HttpError::of_record(&problems))
    }
}
