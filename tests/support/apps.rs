//! Applications to put behind proxies, and clients that count who answered.

use std::collections::BTreeMap;
use std::io::{self, BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
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
    /// and `body`. The header `x-status` of a request chooses the answer's status.
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
}

impl Drop for App {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::SeqCst);
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
    state.served.fetch_add(1, Ordering::SeqCst);
    let status: u16 = headers
        .get("x-status")
        .and_then(|status| status.parse().ok())
        .unwrap_or(200);
    let text = serde_json::json!({
        "name": name,
        "method": method,
        "path": path,
        "headers": headers,
        "body": String::from_utf8_lossy(&body),
    })
    .to_string();
    let head = format!(
        "HTTP/1.1 {status} {name}\r\nContent-Type: application/json\r\nx-app: {name}\r\nContent-Length: {}\r\n\r\n",
        text.len()
    );
    let text = if method == "HEAD" {
        String::new()
    } else {
        text
    };
    stream.write_all((head + &text).as_bytes())
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
