//! Bodies of requests: bounded, and read into records with every problem at its place.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;

use super::HttpState;
use super::error::HttpError;
use crate::hcl::{Value, parse_json};
use crate::model::Problems;

/// The body of a request, within the limit of [`HttpConfig::max_body`](super::HttpConfig::max_body).
#[derive(Debug)]
pub(super) struct Body(pub Bytes);

impl FromRequest<Arc<HttpState>> for Body {
    type Rejection = HttpError;

    async fn from_request(request: Request, state: &Arc<HttpState>) -> Result<Self, HttpError> {
        let config = state.config();
        // The limit itself is laid on all routes as a layer.
        let reading = Bytes::from_request(request, state);
        match tokio::time::timeout(config.body_timeout, reading).await {
            Ok(Ok(bytes)) => Ok(Self(bytes)),
            Ok(Err(refused)) if refused.status() == StatusCode::PAYLOAD_TOO_LARGE => {
                Err(HttpError::new(
                    StatusCode::PAYLOAD_TOO_LARGE,
                    format!(
                        "the body is larger than {} bytes, the most that is read; send less in one request",
                        config.max_body
                    ),
                ))
            }
            Ok(Err(refused)) => Err(HttpError::bad_request(format!(
                "the body can't be read: {}",
                refused.body_text()
            ))),
            Err(_) => Err(HttpError::new(
                StatusCode::REQUEST_TIMEOUT,
                format!("the body didn't arrive within {:?}", config.body_timeout),
            )),
        }
    }
}

impl Body {
    /// The body as a document.
    pub fn document(&self, wanted: &str) -> Result<Value, HttpError> {
        if self.0.iter().all(u8::is_ascii_whitespace) {
            return Err(HttpError::bad_request(format!(
                "the request has no body; send {wanted} as JSON"
            )));
        }
        Ok(parse_json(&self.0)?)
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
