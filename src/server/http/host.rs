//! Which names requests may be for, where whoever reaches the port may do anything: on a loopback address without tokens.
//!
//! A page that a browser on the same machine shows can have its own name lead to this address ("DNS rebinding"), and then ask
//! here what it likes. The browser says in `Host` whom the page takes this for.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::Response;

use super::HttpState;
use super::error::HttpError;

/// Refuses requests for a name that isn't this machine's own, if [`HttpConfig::local_hosts_only`] says so.
///
/// [`HttpConfig::local_hosts_only`]: super::HttpConfig::local_hosts_only
pub(super) async fn check(
    State(state): State<Arc<HttpState>>,
    request: Request,
    next: Next,
) -> Response {
    if !state.config().local_hosts_only {
        return next.run(request).await;
    }
    match foreign(request.uri(), request.headers()) {
        None => next.run(request).await,
        Some(host) => {
            let text = format!(
                "host {host:?} is no name of this machine: ask for localhost or 127.0.0.1, or start the server with --tokens or --insecure \
                 to have it answer to other names"
            );
            HttpError::new(StatusCode::FORBIDDEN, text).unread()
        }
    }
}

/// The host that a request is for, if it is a name that somebody elsewhere may lead here. That is neither an address, nor
/// `localhost`, nor a name without a dot, which only this machine or its own network gives. No browser leaves the host out.
fn foreign(uri: &Uri, headers: &HeaderMap) -> Option<String> {
    let given = match uri.authority() {
        Some(authority) => authority.as_str().to_owned(),
        None => String::from_utf8_lossy(headers.get(header::HOST)?.as_bytes()).into_owned(),
    };
    let Ok(authority) = given.parse::<Authority>() else {
        return Some(given);
    };
    let host = authority.host().to_ascii_lowercase();
    let known = match host.strip_prefix('[') {
        Some(inner) => inner.trim_end_matches(']').parse::<Ipv6Addr>().is_ok(),
        None => {
            let name = host.trim_end_matches('.');
            let local = !name.contains('.') || name.ends_with(".localhost");
            local && !name.is_empty() || name.parse::<Ipv4Addr>().is_ok()
        }
    };
    (!known).then_some(given)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn refused(host: &str) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_str(host).unwrap());
        foreign(&Uri::from_static("/v1/agent/self"), &headers).is_some()
    }

    #[test]
    fn c2_addresses_and_local_names_are_this_machines_and_names_in_a_domain_arent() {
        for own in [
            "localhost",
            "localhost:8500",
            "LocalHost.:8500",
            "mesh.localhost",
            "proxycfg:8500",
            "127.0.0.1",
            "127.0.0.1:8500",
            "10.0.0.1:8500",
            "[::1]:8500",
            "[::1]",
        ] {
            assert!(!refused(own), "{own}");
        }
        for foreign in [
            "evil.example",
            "evil.example:8500",
            "localhost.evil.example",
            "not.localhosts",
            "127.0.0.1.evil.example",
            "127.0.0.1:8500@evil.example",
            "[evil.example]:8500",
            "[evil]:8500",
            "::1",
            "[::1",
            "",
        ] {
            assert!(refused(foreign), "{foreign}");
        }
    }

    #[test]
    fn the_address_in_the_first_line_counts_before_the_header() {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_static("localhost"));
        let uri = Uri::from_static("http://evil.example/v1/agent/self");
        assert_eq!(foreign(&uri, &headers).as_deref(), Some("evil.example"));
        assert_eq!(foreign(&Uri::from_static("/"), &HeaderMap::new()), None);
    }
}
