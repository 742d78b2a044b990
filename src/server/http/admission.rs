//! How many requests are taken on: at a time, and each second. Others are told to come later, before their bodies are
//! kept.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::HttpBody as _;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use parking_lot::Mutex;

use super::error::HttpError;
use super::{HttpConfig, HttpState, body};
use crate::server::rate::{Rate, TokenBucket};

/// Looked at when there is too much of everything, so it is never refused.
const METRICS: &str = "/metrics";

/// Counts requests against the limits of [`HttpConfig`].
#[derive(Debug)]
pub(super) struct Admission {
    most: usize,
    now: AtomicUsize,
    requests: Option<Mutex<TokenBucket>>,
    writes: Option<Mutex<TokenBucket>>,
}

/// Why a request isn't taken on, and when to come again.
struct Refused {
    why: String,
    after: Duration,
}

/// A request that is being answered; counts down also if the client hangs up.
struct Place(Arc<HttpState>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.admission.now.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Admission {
    /// `now` is a monotonic time.
    pub fn new(config: &HttpConfig, now: Duration) -> Self {
        let bucket = |rate: Option<Rate>| rate.map(|rate| Mutex::new(TokenBucket::new(rate, now)));
        Self {
            most: config.max_requests,
            now: AtomicUsize::new(0),
            requests: bucket(config.max_request_rate),
            writes: bucket(config.max_write_rate),
        }
    }
}

impl HttpState {
    fn admit(self: &Arc<Self>, method: &Method) -> Result<Place, Refused> {
        let admission = &self.admission;
        let now = self.embedded().manager.clock().monotonic();
        let writes = !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
        let buckets = [
            ("requests", &admission.requests),
            ("writes", if writes { &admission.writes } else { &None }),
        ];
        for (what, bucket) in buckets {
            if let Some(bucket) = bucket
                && let Err(after) = bucket.lock().take(now)
            {
                let why = format!("more {what} come than this server takes each second");
                return Err(Refused { why, after });
            }
        }
        let before = admission.now.fetch_add(1, Ordering::SeqCst);
        let place = Place(self.clone());
        if before < admission.most {
            return Ok(place);
        }
        Err(Refused {
            why: format!(
                "this server is answering {} requests, the most that it takes at a time",
                admission.most
            ),
            after: Duration::from_secs(1),
        })
    }
}

/// Lets a request on, or refuses it with 429.
pub(super) async fn admit(
    State(state): State<Arc<HttpState>>,
    request: Request,
    next: Next,
) -> Response {
    if request.uri().path() == METRICS {
        return next.run(request).await;
    }
    let refused = match state.admit(request.method()) {
        Ok(_place) => return next.run(request).await,
        Err(refused) => refused,
    };
    let seconds = refused.after.as_secs_f64().ceil().max(1.0);
    let message = format!("{}; try again in {seconds} s", refused.why);
    let unread = !request.body().is_end_stream();
    if unread {
        body::discard(request.into_body()).await;
    }
    let mut response = HttpError::new(StatusCode::TOO_MANY_REQUESTS, message).into_response();
    let headers = response.headers_mut();
    if let Ok(value) = HeaderValue::from_str(&seconds.to_string()) {
        headers.insert(header::RETRY_AFTER, value);
    }
    if unread {
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}
