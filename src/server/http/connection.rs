//! Tells a connection that it has a request, from its head to the last byte of the answer.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use hyper::body::{Frame, SizeHint};

use crate::server::connections::RequestGuard;
use crate::server::tls::Client;

/// Counts a request on its connection.
pub(super) async fn occupy(request: Request, next: Next) -> Response {
    let Some(client) = request.extensions().get::<Client>() else {
        return next.run(request).await;
    };
    let guard = client.place.request();
    let response = next.run(request).await;
    response.map(|body| {
        Body::new(Occupying {
            body,
            _guard: guard,
        })
    })
}

/// The body of an answer; the transport drops it when all of it is written.
#[derive(Debug)]
struct Occupying {
    body: Body,
    _guard: RequestGuard,
}

impl HttpBody for Occupying {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
