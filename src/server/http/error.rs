//! How requests fail: a status and a text that says what is wrong and how to mend it.

use std::fmt::Display;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::ca::CaError;
use crate::embedded::EmbeddedError;
use crate::hcl::SyntaxErrors;
use crate::model::Problems;
use crate::store::StoreError;

/// A request that isn't answered as asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct HttpError {
    /// The status.
    pub status: StatusCode,
    /// What is wrong, one problem a line.
    pub message: String,
}

impl HttpError {
    /// An error with a status.
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
        }
    }

    /// 400: the request must be changed.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// 404: there is no such thing.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, message)
    }

    /// 500: not the client's fault.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }

    /// 400 with every problem of a record on a line of its own, with its line and column in the body.
    pub fn of_record(problems: &Problems) -> Self {
        let lines: Vec<String> = problems
            .errors
            .iter()
            .map(|problem| match problem.pos {
                Some(pos) => format!("{problem} (line {}, column {})", pos.line, pos.column),
                None => problem.to_string(),
            })
            .collect();
        Self::bad_request(lines.join("\n"))
    }

    /// Why a write of a single record, one operation, was refused.
    pub fn of_write(error: StoreError) -> Self {
        match error {
            StoreError::Refused(refusals) => Self::bad_request(lines(refusals.iter().map(|r| {
                let place = r.place.strip_prefix("Ops[0]").unwrap_or(&r.place);
                let place = place.strip_prefix('.').unwrap_or(place);
                match place.split_once('.') {
                    Some((_, inner)) => format!("{inner}: {}", r.problem),
                    None => r.problem.clone(),
                }
            }))),
            other => Self::of_transaction(other),
        }
    }

    /// Why a transaction was refused; problems name the operation.
    pub fn of_transaction(error: StoreError) -> Self {
        match error {
            refused @ StoreError::Refused(_) => Self::bad_request(refused.to_string()),
            StoreError::Inconsistent(problems) => Self::bad_request(lines(problems.iter())),
            other => Self::internal(other.to_string()),
        }
    }
}

fn lines<T: Display>(items: impl Iterator<Item = T>) -> String {
    let lines: Vec<String> = items.map(|item| item.to_string()).collect();
    lines.join("\n")
}

impl From<SyntaxErrors> for HttpError {
    fn from(errors: SyntaxErrors) -> Self {
        Self::bad_request(lines(errors.iter().map(|error| {
            let (pos, message) = (error.pos, &error.message);
            format!("{message} (line {}, column {})", pos.line, pos.column)
        })))
    }
}

impl From<CaError> for HttpError {
    fn from(error: CaError) -> Self {
        match error {
            CaError::Config(_)
            | CaError::Request { .. }
            | CaError::OwnRoot { .. }
            | CaError::CrossSigning { .. } => Self::bad_request(error.to_string()),
            _ => Self::internal(error.to_string()),
        }
    }
}

impl From<EmbeddedError> for HttpError {
    fn from(error: EmbeddedError) -> Self {
        match error {
            EmbeddedError::Ca(error) => error.into(),
            EmbeddedError::Store(error) => Self::of_write(error),
            other => Self::internal(other.to_string()),
        }
    }
}

impl HttpError {
    /// The answer to a request whose body isn't read: its connection can't be used again.
    pub fn unread(self) -> Response {
        let mut response = self.into_response();
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(header::CONNECTION, close);
        response
    }
}

impl IntoResponse for HttpError {
    fn into_response(self) -> Response {
        if self.status.is_server_error() {
            tracing::warn!(status = self.status.as_u16(), "{}", self.message);
        }
        let text = HeaderValue::from_static("text/plain; charset=utf-8");
        (self.status, [(header::CONTENT_TYPE, text)], self.message).into_response()
    }
}
