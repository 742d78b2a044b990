//! Answers: JSON with Consul's headers.

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::ser::PrettyFormatter;

use super::error::HttpError;
use crate::model::Problems;

const INDEX: HeaderName = HeaderName::from_static("x-consul-index");
const KNOWN_LEADER: HeaderName = HeaderName::from_static("x-consul-knownleader");
const LAST_CONTACT: HeaderName = HeaderName::from_static("x-consul-lastcontact");
const CONTENT_HASH: HeaderName = HeaderName::from_static("x-consul-contenthash");
const WARNING: HeaderName = HeaderName::from_static("x-proxycfg-warning");

/// How answers are written.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Writer {
    /// With line breaks and indentation.
    pub pretty: bool,
}

impl Writer {
    /// The JSON text of a value.
    pub fn json<T: Serialize + ?Sized>(self, value: &T) -> Result<Content, HttpError> {
        let mut text = Vec::new();
        let written = if self.pretty {
            let format = PrettyFormatter::with_indent(b"    ");
            let mut serializer = serde_json::Serializer::with_formatter(&mut text, format);
            let written = value.serialize(&mut serializer);
            text.push(b'\n');
            written
        } else {
            serde_json::to_writer(&mut text, value)
        };
        match written {
            Ok(()) => Ok(Content::Json(text)),
            Err(error) => Err(HttpError::internal(format!(
                "the answer can't be written as JSON: {error}"
            ))),
        }
    }
}

/// What a read found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Content {
    /// An answer.
    Json(Vec<u8>),
    /// Certificates.
    Pem(String),
    /// There is no such thing; the text says what.
    NotFound(String),
}

impl Content {
    /// The response at an HTTP index.
    pub fn at(self, index: u64) -> Response {
        let response = match self {
            Self::Json(text) => json(text),
            Self::Pem(text) => {
                let kind = HeaderValue::from_static("application/pem-certificate-chain");
                ([(header::CONTENT_TYPE, kind)], text).into_response()
            }
            Self::NotFound(message) => HttpError::not_found(message).into_response(),
        };
        with_index(response, index)
    }
}

fn json(text: Vec<u8>) -> Response {
    let kind = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

/// Adds the headers that tell a client how current an answer is. The index is never 0.
pub(super) fn with_index(mut response: Response, index: u64) -> Response {
    let headers = response.headers_mut();
    headers.insert(INDEX, HeaderValue::from(index.max(1)));
    headers.insert(KNOWN_LEADER, HeaderValue::from_static("true"));
    headers.insert(LAST_CONTACT, HeaderValue::from_static("0"));
    response
}

/// Adds the header by whose value a client can wait for other content.
pub(super) fn with_hash(mut response: Response, hash: &str) -> Response {
    if let Ok(value) = HeaderValue::from_str(hash) {
        response.headers_mut().insert(CONTENT_HASH, value);
    }
    response
}

/// How a write ended: what the body says, at which store index, and what the author should know.
#[derive(Debug)]
pub(super) struct Written {
    /// The body; `Null` for none.
    pub body: serde_json::Value,
    /// The store index afterwards.
    pub index: u64,
    /// What was accepted but looks like a mistake.
    pub warnings: Problems,
}

impl Written {
    /// A write that is only to be confirmed.
    pub fn done(body: impl Into<serde_json::Value>, index: u64) -> Self {
        Self {
            body: body.into(),
            index,
            warnings: Problems::default(),
        }
    }

    /// The response, with each warning in a header of its own.
    pub fn response(self, writer: Writer) -> Result<Response, HttpError> {
        let mut response = match self.body {
            serde_json::Value::Null => StatusCode::OK.into_response(),
            body => writer.json(&body)?.at(self.index),
        };
        for warning in &self.warnings.warnings {
            let text: String = warning
                .to_string()
                .chars()
                .map(|c| {
                    if c == ' ' || c.is_ascii_graphic() {
                        c
                    } else {
                        '?'
                    }
                })
                .take(1024)
                .collect();
            if let Ok(value) = HeaderValue::from_str(&text) {
                response.headers_mut().append(WARNING, value);
            }
        }
        Ok(response)
    }
}
