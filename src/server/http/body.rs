//! Bodies of requests: bounded, and read into records with every problem at its place.
//!
//! A body is received before anything is decided about its request, also if the request will be refused: otherwise the
//! connection would have to be closed, and a client that still sends might never see the answer.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body as Stream, Bytes, HttpBody as _};
use axum::extract::{FromRequest, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio_stream::StreamExt as _;

use super::HttpState;
use super::error::HttpError;
use crate::hcl::{Data, Value, parse_json};
use crate::model::Problems;

/// How much of a body that is too large is read and thrown away, so that the client comes to read the answer.
const MOST_DISCARDED: usize = 16 * 1024 * 1024;

/// How long it may take to throw a body away.
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
    let receiving = collect(body, config.max_body, !asks);
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
    let mut response = error.into_response();
    let close = HeaderValue::from_static("close");
    response.headers_mut().insert(header::CONNECTION, close);
    response
}

/// Reads and throws away a little of a body that nobody wants, so that a client which sends first comes to read the answer.
pub(super) async fn discard(body: Stream) {
    let reading = collect(body, 0, true);
    // Whatever became of it: the request has been refused, and the connection will be closed.
    let _ = tokio::time::timeout(DISCARD_TIME, reading).await;
}

/// The whole body, or what is wrong with it.
async fn collect(body: Stream, most: usize, discard: bool) -> Result<Bytes, HttpError> {
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
    if is_too_large(announced) && !discard {
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    let mut received = 0;
    let mut stream = body.into_data_stream();
    while let Some(chunk) = stream.next().await {
        let chunk = chunk
            .map_err(|error| HttpError::bad_request(format!("the body can't be read: {error}")))?;
        received += chunk.len();
        if is_too_large(announced.max(received as u64)) {
            bytes = Vec::new();
            if !discard || received > most.saturating_add(MOST_DISCARDED) {
                break;
            }
        } else {
            bytes.extend_from_slice(&chunk);
        }
    }
    if is_too_large(announced.max(received as u64)) {
        return Err(too_large());
    }
    Ok(bytes.into())
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
