//! HTTP checks: one request on a connection of its own, redirects followed.

use std::pin::pin;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;

use crate::model::{CheckDefinition, CheckStatus};

use super::connect::{Tls, connect, describe, describe_chain, host_of};
use super::probe::Outcome;

/// How much of an answer's body is kept.
const BODY_LIMIT: usize = 4096;
/// How many redirects are followed.
const MAX_REDIRECTS: usize = 10;

/// An HTTP request to make.
#[derive(Debug, Clone)]
pub(super) struct HttpProbe {
    /// As the definition writes it but for a password, for the output.
    url: String,
    uri: Uri,
    method: Method,
    headers: HeaderMap,
    body: Bytes,
    server_name: String,
    skip_verify: bool,
}

impl HttpProbe {
    /// Reads the HTTP part of a definition.
    pub(super) fn of(definition: &CheckDefinition) -> Result<Self, String> {
        let url = &definition.http;
        let uri: Uri = url
            .parse()
            .map_err(|error| format!("HTTP {:?} is not a URL: {error}", without_password(url)))?;
        if !matches!(uri.scheme_str(), Some("http" | "https"))
            || uri.host().is_none_or(str::is_empty)
        {
            return Err(format!(
                "HTTP {:?} is not a URL that starts with http:// or https:// and names a host",
                without_password(url)
            ));
        }
        let method = match definition.method.as_str() {
            "" => Method::GET,
            text => Method::from_bytes(text.to_uppercase().as_bytes())
                .map_err(|_| format!("Method {text:?} is not an HTTP method"))?,
        };
        let mut headers = HeaderMap::new();
        for (name, values) in &definition.header {
            let key: HeaderName = name
                .parse()
                .map_err(|_| format!("Header {name:?} is not a header's name"))?;
            for value in values {
                let value = HeaderValue::from_str(value).map_err(|_| {
                    format!("Header {name:?} has a value that can't be sent: {value:?}")
                })?;
                headers.append(key.clone(), value);
            }
        }
        let agent = HeaderValue::from_static(concat!(
            "proxycfg/",
            env!("CARGO_PKG_VERSION"),
            " (health check)"
        ));
        headers.entry(header::USER_AGENT).or_insert(agent);
        headers
            .entry(header::ACCEPT)
            .or_insert(HeaderValue::from_static("text/plain, text/*, */*"));
        Ok(Self {
            url: without_password(url),
            uri,
            method,
            headers,
            body: Bytes::from(definition.body.clone()),
            server_name: definition.tls_server_name.clone(),
            skip_verify: definition.tls_skip_verify,
        })
    }

    /// `HTTP GET http://...`: how every output starts.
    pub(super) fn label(&self) -> String {
        format!("HTTP {} {}", self.method, self.url)
    }

    /// Makes the request: 2xx passes, 429 warns, all else is critical.
    pub(super) async fn run(&self) -> Outcome {
        let (status, body) = match self.follow().await {
            Ok(answer) => answer,
            Err(error) => return (CheckStatus::Critical, format!("{}: {error}", self.label())),
        };
        let result = match status {
            status if status.is_success() => CheckStatus::Passing,
            StatusCode::TOO_MANY_REQUESTS => CheckStatus::Warning,
            _ => CheckStatus::Critical,
        };
        let reason = status
            .canonical_reason()
            .map(|reason| format!(" {reason}"))
            .unwrap_or_default();
        (
            result,
            format!(
                "{}: {}{reason} Output: {body}",
                self.label(),
                status.as_u16()
            ),
        )
    }

    async fn follow(&self) -> Result<(StatusCode, String), String> {
        let mut uri = self.uri.clone();
        let mut method = self.method.clone();
        let mut body = self.body.clone();
        let mut headers = self.headers.clone();
        for _ in 0..=MAX_REDIRECTS {
            let answer = self
                .exchange(&uri, &method, headers.clone(), body.clone())
                .await?;
            let Some(location) = answer.location else {
                return Ok((answer.status, answer.body));
            };
            let next = resolve(&uri, &location)
                .ok_or_else(|| format!("redirected to {location:?}, which is not a URL"))?;
            if next.authority() != uri.authority() {
                // What was meant for one host must not reach another.
                headers.remove(header::HOST);
                headers.remove(header::AUTHORIZATION);
                headers.remove(header::COOKIE);
            }
            uri = next;
            let keeps_method = matches!(
                answer.status,
                StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT
            );
            if !keeps_method && method != Method::GET && method != Method::HEAD {
                method = Method::GET;
                body = Bytes::new();
                headers.remove(header::CONTENT_TYPE);
                headers.remove(header::CONTENT_LENGTH);
            }
        }
        Err(format!("stopped after {MAX_REDIRECTS} redirects"))
    }

    async fn exchange(
        &self,
        uri: &Uri,
        method: &Method,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Answer, String> {
        let secure = uri.scheme_str() == Some("https");
        let authority = uri.authority().ok_or("the URL names no host")?;
        let (user, host) = match authority.as_str().rsplit_once('@') {
            Some((user, host)) => (Some(user), host),
            None => (None, authority.as_str()),
        };
        let address = match authority.port_u16() {
            Some(_) => host.to_owned(),
            None => format!(
                "{}:{}",
                host.trim_end_matches(':'),
                if secure { 443 } else { 80 }
            ),
        };
        let tls = secure.then(|| Tls {
            server_name: if self.server_name.is_empty() {
                host_of(&address).to_owned()
            } else {
                self.server_name.clone()
            },
            skip_verify: self.skip_verify,
            alpn: &[b"http/1.1"],
        });
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method.clone();
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        *request.uri_mut() = path
            .parse()
            .map_err(|error| format!("{path:?} is not a path: {error}"))?;
        *request.headers_mut() = headers;
        if !request.headers().contains_key(header::HOST) {
            let value =
                HeaderValue::from_str(host).map_err(|_| format!("{host:?} is not a host"))?;
            request.headers_mut().insert(header::HOST, value);
        }
        if let Some(user) = user
            && !request.headers().contains_key(header::AUTHORIZATION)
        {
            let basic = format!("Basic {}", BASE64_STANDARD.encode(percent_decode(user)));
            let mut value = HeaderValue::from_str(&basic).map_err(|error| error.to_string())?;
            value.set_sensitive(true);
            request.headers_mut().insert(header::AUTHORIZATION, value);
        }
        request
            .headers_mut()
            .insert(header::CONNECTION, HeaderValue::from_static("close"));

        let stream = connect(&address, tls.as_ref())
            .await
            .map_err(|error| describe(&error))?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| describe_chain(&error))?;
        let mut exchange = pin!(async {
            let response = sender
                .send_request(request)
                .await
                .map_err(|error| describe_chain(&error))?;
            read(response).await
        });
        tokio::select! {
            biased;
            answer = &mut exchange => answer,
            // The connection may end before the answer was read; what is buffered can still be read.
            _ = connection => exchange.await,
        }
    }
}

struct Answer {
    status: StatusCode,
    /// Where to go on, if the answer is a redirect.
    location: Option<String>,
    body: String,
}

async fn read(response: Response<Incoming>) -> Result<Answer, String> {
    let (head, mut body) = response.into_parts();
    let redirects = matches!(head.status.as_u16(), 301 | 302 | 303 | 307 | 308);
    let location = head
        .headers
        .get(header::LOCATION)
        .and_then(|value| value.to_str().ok())
        .map(str::to_owned);
    let mut bytes = Vec::new();
    while bytes.len() <= BODY_LIMIT {
        match body.frame().await {
            Some(Ok(frame)) => {
                bytes.extend_from_slice(frame.data_ref().map_or(&[], |data| data.as_ref()))
            }
            Some(Err(error)) => {
                return Err(format!(
                    "{} and then {}",
                    head.status,
                    describe_chain(&error)
                ));
            }
            None => break,
        }
    }
    Ok(Answer {
        status: head.status,
        location: location.filter(|_| redirects),
        body: cut(&bytes),
    })
}

/// Text of at most [`BODY_LIMIT`] bytes; more is cut off, and the cut is shown.
pub(super) fn cut(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    if text.len() <= BODY_LIMIT {
        return text.into_owned();
    }
    format!(
        "{}... (cut after {BODY_LIMIT} bytes)",
        &text[..text.floor_char_boundary(BODY_LIMIT)]
    )
}

/// The URL that `location` means on a page at `base` (RFC 3986 section 5, without dot segments).
fn resolve(base: &Uri, location: &str) -> Option<Uri> {
    let location = location.split('#').next().unwrap_or_default();
    let scheme = base.scheme_str()?;
    let authority = base.authority()?;
    let whole = if location.starts_with("http://") || location.starts_with("https://") {
        location.to_owned()
    } else if location.starts_with("//") {
        format!("{scheme}:{location}")
    } else if location.starts_with('/') {
        format!("{scheme}://{authority}{location}")
    } else if location.starts_with('?') {
        format!("{scheme}://{authority}{}{location}", base.path())
    } else {
        let folder = base
            .path()
            .rsplit_once('/')
            .map_or("", |(folder, _)| folder);
        format!("{scheme}://{authority}{folder}/{location}")
    };
    whole
        .parse::<Uri>()
        .ok()
        .filter(|uri| uri.host().is_some_and(|host| !host.is_empty()))
}

/// A URL whose password, if any, is replaced: outputs are shown to everybody.
fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        return url.to_owned();
    };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, tail) = rest.split_at(end);
    match authority.rsplit_once('@') {
        Some((user, host)) => match user.split_once(':') {
            Some((name, _)) => format!("{scheme}://{name}:xxxxx@{host}{tail}"),
            None => url.to_owned(),
        },
        None => url.to_owned(),
    }
}

fn percent_decode(text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let escaped = (first == b'%')
            .then(|| tail.get(..2))
            .flatten()
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match escaped {
            Some(byte) => {
                out.push(byte);
                rest = &tail[2..];
            }
            None => {
                out.push(first);
                rest = tail;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_resolve() {
        let base: Uri = "http://a:81/x/y?q".parse().unwrap();
        for (location, want) in [
            ("https://b/z", "https://b/z"),
            ("//b/z", "http://b/z"),
            ("/z?k=1#part", "http://a:81/z?k=1"),
            ("z", "http://a:81/x/z"),
            ("?k", "http://a:81/x/y?k"),
        ] {
            assert_eq!(
                resolve(&base, location).unwrap().to_string(),
                want,
                "{location}"
            );
        }
        assert_eq!(resolve(&base, "http://"), None);
    }

    #[test]
    fn bad_definitions_are_named() {
        for (definition, word) in [
            (
                CheckDefinition {
                    http: "ftp://a/".into(),
                    ..Default::default()
                },
                "http://",
            ),
            (
                CheckDefinition {
                    http: "/health".into(),
                    ..Default::default()
                },
                "http://",
            ),
            (
                CheckDefinition {
                    http: "http://a/ b".into(),
                    ..Default::default()
                },
                "URL",
            ),
            (
                CheckDefinition {
                    http: "http://a/".into(),
                    method: "G T".into(),
                    ..Default::default()
                },
                "Method",
            ),
            (
                CheckDefinition {
                    http: "http://a/".into(),
                    header: [("a b".to_owned(), vec![String::new()])].into(),
                    ..Default::default()
                },
                "Header",
            ),
        ] {
            let error = HttpProbe::of(&definition).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn passwords_are_not_shown() {
        for (url, want) in [
            ("http://u:p@a:1/x@y:z", "http://u:xxxxx@a:1/x@y:z"),
            ("http://u@a/", "http://u@a/"),
            ("https://a:1/p?q=b:c@d", "https://a:1/p?q=b:c@d"),
        ] {
            assert_eq!(without_password(url), want);
        }
    }

    #[test]
    fn long_bodies_are_cut_between_characters() {
        let text = "\u{fc}".repeat(BODY_LIMIT);
        let short = cut(text.as_bytes());
        assert!(short.starts_with("\u{fc}\u{fc}") && short.ends_with("... (cut after 4096 bytes)"));
        assert_eq!(cut(b"ok\xff"), "ok\u{fffd}");
        assert_eq!(percent_decode("a%3Ab%zz%"), b"a:b%zz%");
    }
}
