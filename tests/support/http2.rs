//! HTTP/2 without TLS, and gRPC on it: the serving side for [`super::apps`], and a client of one request per connection.

use std::collections::BTreeMap;
use std::io;
use std::net::TcpStream;
use std::time::Duration;

use hyper::body::Bytes;
use hyper::http::{self, HeaderMap};

use super::apps::{Reply, Request};

/// How long a request may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a server answered.
#[derive(Debug, Clone)]
pub struct Response {
    /// Status code.
    pub status: u16,
    /// Headers, and after them the trailers.
    pub headers: Vec<(String, String)>,
    /// Body; of a gRPC call its message.
    pub body: String,
}

impl Response {
    /// The first value of a header or trailer.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// A request with prior knowledge that the server speaks HTTP/2.
///
/// # Errors
/// The server can't be reached, doesn't answer within ten seconds, or doesn't speak HTTP/2.
pub fn request(
    address: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> io::Result<Response> {
    block_on(async {
        let asked = ask(address, method, path, headers, body);
        tokio::time::timeout(PATIENCE, asked)
            .await
            .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
    })
}

/// A gRPC call with a text as its message, which a real call wouldn't have: proxies don't look into it.
///
/// # Errors
/// As of [`request`]; the call's own status is in the answer's `grpc-status`.
pub fn call(
    address: &str,
    method: &str,
    headers: &[(&str, &str)],
    message: &str,
) -> io::Result<Response> {
    let mut all = vec![("content-type", "application/grpc"), ("te", "trailers")];
    all.extend(headers);
    let mut response = request(address, "POST", method, &all, &framed(message))?;
    if response.body.len() >= PREFIX {
        response.body.drain(..PREFIX);
    }
    Ok(response)
}

async fn ask(
    address: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> io::Result<Response> {
    let stream = tokio::net::TcpStream::connect(address).await?;
    let (mut sender, connection) = h2::client::handshake(stream)
        .await
        .map_err(io::Error::other)?;
    tokio::spawn(connection);
    let mut asked = http::Request::builder()
        .method(method)
        .uri(format!("http://{address}{path}"));
    for (name, value) in headers {
        asked = asked.header(*name, *value);
    }
    let asked = asked.body(()).map_err(io::Error::other)?;
    let (answer, mut stream) = sender
        .send_request(asked, body.is_empty())
        .map_err(io::Error::other)?;
    if !body.is_empty() {
        stream
            .send_data(Bytes::copy_from_slice(body), true)
            .map_err(io::Error::other)?;
    }
    let (head, mut body) = answer.await.map_err(io::Error::other)?.into_parts();
    let text = read_body(&mut body).await?;
    let mut headers = texts(&head.headers);
    if let Some(trailers) = body.trailers().await.map_err(io::Error::other)? {
        headers.extend(texts(&trailers));
    }
    Ok(Response {
        status: head.status.as_u16(),
        headers,
        body: text,
    })
}

/// Serves one connection until it ends. Requests are answered on threads of their own, so that one may wait.
///
/// # Errors
/// The connection breaks, or doesn't speak HTTP/2.
pub(super) fn serve(
    stream: TcpStream,
    respond: impl Fn(Request) -> Reply + Sync,
) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    let (asked, questions) = std::sync::mpsc::channel::<Question>();
    std::thread::scope(|scope| {
        let respond = &respond;
        scope.spawn(move || {
            std::thread::scope(|requests| {
                for (request, answer) in questions {
                    requests.spawn(move || {
                        // The caller may have gone in the meantime.
                        let _ = answer.send(respond(request));
                    });
                }
            });
        });
        block_on(async {
            let stream = tokio::net::TcpStream::from_std(stream)?;
            let mut connection = h2::server::handshake(stream)
                .await
                .map_err(io::Error::other)?;
            while let Some(accepted) = connection.accept().await {
                let (request, answer) = accepted.map_err(io::Error::other)?;
                tokio::spawn(one(request, answer, asked.clone()));
            }
            drop(asked);
            Ok(())
        })
    })
}

type Question = (Request, tokio::sync::oneshot::Sender<Reply>);

async fn one(
    request: http::Request<h2::RecvStream>,
    mut answer: h2::server::SendResponse<Bytes>,
    asked: std::sync::mpsc::Sender<Question>,
) -> io::Result<()> {
    let (head, mut body) = request.into_parts();
    let headers: BTreeMap<String, String> = texts(&head.headers).into_iter().collect();
    let grpc = headers
        .get("content-type")
        .is_some_and(|kind| kind.starts_with("application/grpc"));
    let path = head.uri.path_and_query().map(ToString::to_string);
    let request = Request {
        method: head.method.to_string(),
        path: path.unwrap_or_default(),
        headers,
        body: read_body(&mut body).await?,
    };
    let (send, receive) = tokio::sync::oneshot::channel();
    asked
        .send((request, send))
        .map_err(|_| io::Error::other("the application is gone"))?;
    let reply = receive.await.map_err(io::Error::other)?;
    let mut head = http::Response::builder();
    for (name, value) in &reply.headers {
        if name != "content-type" {
            head = head.header(name, value);
        }
    }
    let head = match (grpc, reply.status) {
        (true, _) => head.header("content-type", "application/grpc"),
        (false, status) => head
            .status(status)
            .header("content-type", "application/json"),
    };
    // A call that fails has nothing but headers.
    if grpc && reply.status != 200 {
        let head = head.header("grpc-status", "14").body(());
        let head = head.map_err(io::Error::other)?;
        answer.send_response(head, true).map_err(io::Error::other)?;
        return Ok(());
    }
    let head = head.body(()).map_err(io::Error::other)?;
    let mut stream = answer
        .send_response(head, false)
        .map_err(io::Error::other)?;
    if !grpc {
        stream
            .send_data(reply.body.into(), true)
            .map_err(io::Error::other)?;
        return Ok(());
    }
    stream
        .send_data(framed(&reply.body).into(), false)
        .map_err(io::Error::other)?;
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
    stream.send_trailers(trailers).map_err(io::Error::other)
}

/// Length of what stands before a gRPC message.
const PREFIX: usize = 5;

/// A gRPC message: not compressed, its length, itself.
fn framed(message: &str) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap();
    let mut framed = vec![0];
    framed.extend(length.to_be_bytes());
    framed.extend(message.as_bytes());
    framed
}

fn texts(headers: &HeaderMap) -> Vec<(String, String)> {
    let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let all = headers.iter();
    all.map(|(name, value)| (name.to_string(), text(value)))
        .collect()
}

async fn read_body(body: &mut h2::RecvStream) -> io::Result<String> {
    let mut bytes = Vec::new();
    while let Some(chunk) = body.data().await {
        let chunk = chunk.map_err(io::Error::other)?;
        body.flow_control()
            .release_capacity(chunk.len())
            .map_err(io::Error::other)?;
        bytes.extend(chunk);
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn block_on<T>(what: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(what)
}
