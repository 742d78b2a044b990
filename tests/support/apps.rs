//! Applications to put behind proxies, and clients that count who answered.

use std::collections::BTreeMap;
use std::io::{self, BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use super::http::{self, read_exactly, read_headers, read_line};
use super::ports::free_address;

/// An application that runs until it is dropped; then its connections are cut.
pub struct App {
    name: String,
    address: String,
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

struct State {
    stop: AtomicBool,
    served: AtomicUsize,
    open: Mutex<Vec<TcpStream>>,
    held: Mutex<Held>,
    changed: Condvar,
    /// How many requests with a key have failed on purpose.
    failed: Mutex<BTreeMap<String, usize>>,
}

/// Requests that wait for their answers.
#[derive(Default)]
struct Held {
    waiting: usize,
    /// How often all that waited have been let go.
    releases: usize,
}

impl App {
    /// A TCP server that greets each connection with a line, its name, and then echoes.
    pub fn tcp(name: &str) -> Self {
        Self::tcp_on(name, &free_address())
    }

    /// [`App::tcp`] on a given `address:port`.
    pub fn tcp_on(name: &str, address: &str) -> Self {
        Self::start(name, address, |name, state, mut stream| {
            state.served.fetch_add(1, Ordering::SeqCst);
            stream.write_all(format!("{name}\n").as_bytes())?;
            let mut reader = stream.try_clone()?;
            io::copy(&mut reader, &mut stream).map(drop)
        })
    }

    /// An HTTP/1.1 server that answers every request with JSON: `name`, `method`, `path`, `headers` (names in lower case)
    /// and `body`. Headers of a request choose how:
    ///
    /// * `x-status`: this status.
    /// * `x-fail: NAME`: 503 if NAME is the application's.
    /// * `x-fail-first: KEY=N`: 503 for the first N requests with this key.
    /// * `x-answer: NAME=VALUE`: one more header.
    /// * `x-hold`: not before [`App::release`].
    /// * `upgrade: websocket`: 101, and then back whatever comes.
    pub fn http(name: &str) -> Self {
        Self::http_on(name, &free_address())
    }

    /// [`App::http`] on a given `address:port`.
    pub fn http_on(name: &str, address: &str) -> Self {
        Self::start(name, address, |name, state, stream| {
            let mut reader = BufReader::new(stream.try_clone()?);
            // Ends with the error of a closed connection.
            loop {
                answer(name, state, &mut reader, &stream)?;
            }
        })
    }

    /// An HTTP/2 server without TLS, which answers as [`App::http`] does. gRPC calls get that JSON as their message; where
    /// the status isn't 200 they end with status 14, unavailable.
    #[cfg(feature = "server")]
    pub fn http2(name: &str) -> Self {
        Self::start(name, &free_address(), |name, state, stream| {
            super::http2::serve(stream, |request| respond(name, state, request))
        })
    }

    /// An HTTP/1.1 server that answers every request with the same body.
    pub fn document(name: &str, body: String) -> Self {
        Self::start(name, &free_address(), move |_, state, mut stream| {
            let mut reader = BufReader::new(stream.try_clone()?);
            loop {
                read_line(&mut reader)?;
                read_headers(&mut reader)?;
                state.served.fetch_add(1, Ordering::SeqCst);
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
                stream.write_all((head + &body).as_bytes())?;
            }
        })
    }

    fn start(
        name: &str,
        address: &str,
        serve: impl Fn(&str, &State, TcpStream) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(address)
            .unwrap_or_else(|error| panic!("{name} on {address}: {error}"));
        let state = Arc::new(State {
            stop: AtomicBool::new(false),
            served: AtomicUsize::new(0),
            open: Mutex::default(),
            held: Mutex::default(),
            changed: Condvar::new(),
            failed: Mutex::default(),
        });
        let (shared, serve, owned_name) = (state.clone(), Arc::new(serve), name.to_owned());
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if shared.stop.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                let Ok(handle) = stream.try_clone() else {
                    continue;
                };
                shared.open.lock().unwrap().push(handle);
                let (shared, serve, name) = (shared.clone(), serve.clone(), owned_name.clone());
                std::thread::spawn(move || {
                    let end = stream.try_clone();
                    // Clients come and go as they like.
                    let _ = serve(&name, &shared, stream);
                    if let Ok(end) = end {
                        let _ = end.shutdown(Shutdown::Both);
                    }
                });
            }
        });
        Self {
            name: name.to_owned(),
            address: address.to_owned(),
            state,
            thread: Some(thread),
        }
    }

    /// Its name, as in its answers.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// `address:port`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.address
            .rsplit_once(':')
            .and_then(|(_, port)| port.parse().ok())
            .expect("an address has a port")
    }

    /// How many connections (TCP) or requests (HTTP) it has served.
    pub fn served(&self) -> usize {
        self.state.served.load(Ordering::SeqCst)
    }

    /// How many requests wait for their answers (`x-hold`).
    pub fn held(&self) -> usize {
        self.state.held.lock().unwrap().waiting
    }

    /// Answers the requests that wait for it.
    pub fn release(&self) {
        self.state.release();
    }
}

impl State {
    fn release(&self) {
        self.held.lock().unwrap().releases += 1;
        self.changed.notify_all();
    }

    fn hold(&self) {
        let mut held = self.held.lock().unwrap();
        held.waiting += 1;
        let before = held.releases;
        let stays = |held: &mut Held| held.releases == before && !self.stop.load(Ordering::SeqCst);
        held = self.changed.wait_while(held, stays).unwrap();
        held.waiting -= 1;
    }

    /// Whether a request that says `KEY=N` is one of the first N.
    fn fails_first(&self, rule: &str) -> bool {
        let (key, times) = rule.split_once('=').unwrap_or((rule, "1"));
        let mut failed = self.failed.lock().unwrap();
        let count = failed.entry(key.to_owned()).or_default();
        let fails = *count < times.parse().unwrap_or(1);
        *count += usize::from(fails);
        fails
    }
}

impl Drop for App {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::SeqCst);
        self.state.release();
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(&self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        for stream in self.state.open.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn answer(
    name: &str,
    state: &State,
    reader: &mut BufReader<TcpStream>,
    mut stream: &TcpStream,
) -> io::Result<()> {
    let line = read_line(reader)?;
    let mut words = line.split(' ');
    let (method, path) = (
        words.next().unwrap_or_default(),
        words.next().unwrap_or_default(),
    );
    let headers: BTreeMap<String, String> = read_headers(reader)?.into_iter().collect();
    let mut body = Vec::new();
    if let Some(length) = headers
        .get("content-length")
        .and_then(|length| length.parse().ok())
    {
        read_exactly(reader, length, &mut body)?;
    }
    if headers.get("upgrade").map(String::as_str) == Some("websocket") {
        state.served.fetch_add(1, Ordering::SeqCst);
        stream.write_all(
            b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
        )?;
        io::copy(reader, &mut stream)?;
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let reply = respond(
        name,
        state,
        Request {
            method: method.to_owned(),
            path: path.to_owned(),
            headers,
            body: String::from_utf8_lossy(&body).into_owned(),
        },
    );
    let mut head = format!("HTTP/1.1 {} {name}\r\n", reply.status);
    for (name, value) in &reply.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str(&format!("content-length: {}\r\n\r\n", reply.body.len()));
    if method != "HEAD" {
        head.push_str(&reply.body);
    }
    stream.write_all(head.as_bytes())
}

/// What an HTTP application is asked.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// Method.
    pub method: String,
    /// Path with query.
    pub path: String,
    /// Headers, names in lower case.
    pub headers: BTreeMap<String, String>,
    /// Body.
    pub body: String,
}

/// What an HTTP application answers.
#[derive(Debug, Clone)]
pub struct Reply {
    /// Status.
    pub status: u16,
    /// Headers but the body's length.
    pub headers: Vec<(String, String)>,
    /// Body.
    pub body: String,
}

/// The answer of an HTTP application.
fn respond(name: &str, state: &State, request: Request) -> Reply {
    state.served.fetch_add(1, Ordering::SeqCst);
    let said = |name: &str| request.headers.get(name).map(String::as_str);
    if said("x-hold").is_some() {
        state.hold();
    }
    let fails = said("x-fail") == Some(name)
        || said("x-fail-first").is_some_and(|rule| state.fails_first(rule));
    let status = match said("x-status").and_then(|status| status.parse().ok()) {
        _ if fails => 503,
        status => status.unwrap_or(200),
    };
    let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let mut headers = vec![
        header("content-type", "application/json"),
        header("x-app", name),
    ];
    if let Some((name, value)) = said("x-answer").and_then(|answer| answer.split_once('=')) {
        headers.push(header(name, value));
    }
    let text = serde_json::json!({
        "name": name,
        "method": request.method,
        "path": request.path,
        "headers": request.headers,
        "body": request.body,
    });
    Reply {
        status,
        headers,
        body: text.to_string(),
    }
}

/// Connects to an [`App::tcp`], possibly through proxies: who greeted. Also checks that a line comes back.
///
/// # Errors
/// No connection, no greeting within five seconds, or no echo.
pub fn tcp_name(address: &str) -> io::Result<String> {
    let target = address
        .to_socket_addrs()?
        .next()
        .ok_or_else(|| io::Error::other("no address"))?;
    let patience = Duration::from_secs(5);
    let stream = TcpStream::connect_timeout(&target, patience)?;
    stream.set_read_timeout(Some(patience))?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let name = read_line(&mut reader)?;
    (&stream).write_all(b"echo this\n")?;
    let echo = read_line(&mut reader)?;
    if echo == "echo this" {
        Ok(name)
    } else {
        Err(io::Error::other(format!("{name} echoed {echo:?}")))
    }
}

/// Asks an [`App::http`], possibly through proxies: who answered. Statuses other than 200 are errors.
///
/// # Errors
/// No answer, or none of an [`App::http`].
pub fn http_name(address: &str) -> io::Result<String> {
    let response = http::get(address, "/")?;
    match response.header("x-app") {
        Some(name) if response.status == 200 => Ok(name.to_owned()),
        _ => Err(io::Error::other(format!(
            "answered {}: {}",
            response.status, response.body
        ))),
    }
}

/// Asks `times` times, with [`tcp_name`] or [`http_name`]: how often each answered. Failures count under `"error: ..."`.
pub fn count_names(
    times: usize,
    mut ask: impl FnMut() -> io::Result<String>,
) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for _ in 0..times {
        let name = ask().unwrap_or_else(|error| format!("error: {error}"));
        *counts.entry(name).or_default() += 1;
    }
    counts
}
