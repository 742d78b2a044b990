//! TLS on the program's own ports: certificates from files, read again when they change, and connections of either kind.
//!
//! A listener is turned into a stream of [`Connection`]s, plain or encrypted, that both servers take. Each has its seat among
//! the [`Connections`] before its handshake; handshakes run beside each other, bounded in time, so that a client that connects
//! and says nothing holds up nobody.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::crypto::ring;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tracing::{debug, warn};

use super::access::Reloaded;
use super::connections::{Connections, Place, Watched};
use crate::clock::Clock;

/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Connections that wait to be taken.
const WAITING: usize = 64;

/// How long to wait after an accept that failed, for want of file handles in most cases.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// How often that is told.
const TELL_AGAIN: Duration = Duration::from_secs(10);

/// How long a peer may be silent before the machine's network asks whether it is still there, how often it asks, and how many
/// times it does so in vain. A peer that is gone without a word, with a request that waits, is noticed by this.
const ALIVE_AFTER: Duration = Duration::from_secs(60);
const ALIVE_EVERY: Duration = Duration::from_secs(10);
const ALIVE_TRIES: u32 = 3;

/// How many clients are told at a time that there is no place, and how long that may take.
const TURNED_AWAY: usize = 32;
const TURN_AWAY: Duration = Duration::from_secs(1);

/// What they are told.
const NO_PLACE: &str = "this server has as many connections as it takes (--max-http-connections), and all have requests; \
                        try again in 1 s, or elsewhere";

/// The files that TLS needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate, and those between it and its root, in PEM.
    pub cert: PathBuf,
    /// Its private key, in PEM.
    pub key: PathBuf,
    /// The authorities of clients' certificates, in PEM. With them, only clients with a certificate of theirs are let in.
    pub client_ca: Option<PathBuf>,
}

/// What each protocol's handshakes are answered with, kept up to date with the files.
#[derive(Debug)]
pub struct ServerTls(Reloaded<Configs>);

#[derive(Debug)]
struct Configs {
    http: Arc<ServerConfig>,
    xds: Arc<ServerConfig>,
}

/// Which server a connection is for: clients must agree on its protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1.
    Http,
    /// HTTP/2, for gRPC.
    Xds,
}

impl ServerTls {
    /// Reads the files, and follows them.
    ///
    /// # Errors
    /// A file can't be read or holds something else; the key isn't the certificate's.
    pub fn start(files: &TlsFiles, clock: Arc<dyn Clock>) -> Result<Self, String> {
        let mut paths = vec![files.cert.clone(), files.key.clone()];
        paths.extend(files.client_ca.clone());
        let named = files.clone();
        let load = move |contents: &[Vec<u8>]| Configs::read(&named, contents);
        Reloaded::start("the certificate of this server", paths, clock, load).map(Self)
    }

    /// The configuration for a connection that begins now.
    #[must_use]
    pub fn config(&self, protocol: Protocol) -> Arc<ServerConfig> {
        let configs = self.0.get();
        match protocol {
            Protocol::Http => configs.http.clone(),
            Protocol::Xds => configs.xds.clone(),
        }
    }
}

impl Configs {
    fn read(files: &TlsFiles, contents: &[Vec<u8>]) -> Result<Self, String> {
        let content = |n: usize| contents.get(n).map_or(&[][..], Vec::as_slice);
        let chain = certificates(content(0), &files.cert, "--tls-cert")?;
        let key = PrivateKeyDer::from_pem_slice(content(1)).map_err(|_| {
            let path = files.key.display();
            format!(
                "--tls-key {path}: there is no private key in it that can be read; give one in PEM"
            )
        })?;
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| format!("TLS can't be used: {error}"))?;
        let builder = match &files.client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(content(2), path, "--tls-client-ca")? {
                    roots
                        .add(certificate)
                        .map_err(|error| format!("--tls-client-ca {}: {error}", path.display()))?;
                }
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                let verifier = verifier
                    .build()
                    .map_err(|error| format!("--tls-client-ca {}: {error}", path.display()))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let config = builder.with_single_cert(chain, key).map_err(|error| {
            let (cert, key) = (files.cert.display(), files.key.display());
            format!("--tls-cert {cert} and --tls-key {key} can't be used together: {error}")
        })?;
        let speaking = |protocol: &[u8]| {
            let mut config = config.clone();
            config.alpn_protocols = vec![protocol.to_vec()];
            Arc::new(config)
        };
        Ok(Self {
            http: speaking(b"http/1.1"),
            xds: speaking(b"h2"),
        })
    }
}

fn certificates(
    pem: &[u8],
    path: &std::path::Path,
    flag: &str,
) -> Result<Vec<CertificateDer<'static>>, String> {
    let path = path.display();
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let read = read.map_err(|error| format!("{flag} {path}: is not PEM: {error}"))?;
    if read.is_empty() {
        return Err(format!(
            "{flag} {path}: there is no certificate in it; give one in PEM"
        ));
    }
    Ok(read)
}

/// A connection of a client, within the limits of [`Connections`].
#[derive(Debug)]
pub struct Connection(Kind);

#[derive(Debug)]
enum Kind {
    Plain(Watched<TcpStream>),
    /// Encrypted, and the client identified if that is asked for.
    Tls(Box<TlsStream<Watched<TcpStream>>>),
}

impl Connection {
    fn watched(&self) -> &Watched<TcpStream> {
        match &self.0 {
            Kind::Plain(watched) => watched,
            Kind::Tls(tls) => tls.get_ref().0,
        }
    }

    /// The client's address, if it is still known, and where its requests are counted.
    #[must_use]
    pub fn client(&self) -> Client {
        Client {
            address: self.watched().stream().peer_addr().ok(),
            place: self.watched().place().clone(),
        }
    }
}

/// Who has a connection, for what is above it.
#[derive(Debug, Clone)]
pub struct Client {
    /// Its address, if it is known.
    pub address: Option<SocketAddr>,
    /// Where its requests are counted.
    pub place: Place,
}

/// Accepts connections until the receiver is dropped. What is sent has its handshake behind it.
pub fn incoming(
    listener: TcpListener,
    tls: Option<Arc<ServerTls>>,
    protocol: Protocol,
    connections: Arc<Connections>,
) -> mpsc::Receiver<Connection> {
    let (send, receive) = mpsc::channel(WAITING);
    let acceptor = Acceptor {
        tls,
        protocol,
        connections,
        turned_away: Arc::new(Semaphore::new(TURNED_AWAY)),
        told: None,
        send,
    };
    tokio::spawn(acceptor.run(listener));
    receive
}

struct Acceptor {
    tls: Option<Arc<ServerTls>>,
    protocol: Protocol,
    connections: Arc<Connections>,
    turned_away: Arc<Semaphore>,
    /// When something was told that may happen all the time.
    told: Option<Instant>,
    send: mpsc::Sender<Connection>,
}

impl Acceptor {
    async fn run(mut self, listener: TcpListener) {
        loop {
            let accepted = tokio::select! {
                () = self.send.closed() => return,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((tcp, _)) => self.take(tcp).await,
                Err(error) if is_of_client(&error) => {}
                Err(error) => {
                    // For want of file handles, in most cases: a connection that isn't needed has one.
                    self.connections.make_room();
                    if self.may_tell() {
                        warn!(%error, "can't accept a connection; trying again");
                    }
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                }
            }
        }
    }

    fn may_tell(&mut self) -> bool {
        let now = Instant::now();
        let may = self.told.is_none_or(|told| now - told >= TELL_AGAIN);
        if may {
            self.told = Some(now);
        }
        may
    }

    async fn take(&mut self, tcp: TcpStream) {
        if let Err(error) = set_up(&tcp) {
            // The client is gone already.
            debug!(%error, "a connection can't be set up");
            return;
        }
        let Some(seat) = self.connections.enter() else {
            if self.may_tell() {
                warn!(
                    protocol = ?self.protocol,
                    connections = self.connections.limits().max,
                    "connections are refused: there are as many as may be, and all have requests"
                );
            }
            self.turn_away(tcp);
            return;
        };
        let tcp = Watched::new(tcp, seat);
        let Some(tls) = &self.tls else {
            // Fails if the server has stopped.
            let _ = self.send.send(Connection(Kind::Plain(tcp))).await;
            return;
        };
        let acceptor = TlsAcceptor::from(tls.config(self.protocol));
        let send = self.send.clone();
        tokio::spawn(async move {
            match tokio::time::timeout(HANDSHAKE, acceptor.accept(tcp)).await {
                Ok(Ok(stream)) => {
                    // Fails if the server has stopped.
                    let _ = send.send(Connection(Kind::Tls(Box::new(stream)))).await;
                }
                Ok(Err(error)) => debug!(%error, "a TLS handshake failed"),
                Err(_) => debug!("a TLS handshake took too long"),
            }
        });
    }

    /// Says that there is no place, if that can be said without much ado; else just hangs up.
    fn turn_away(&self, mut tcp: TcpStream) {
        if self.tls.is_some() || self.protocol != Protocol::Http {
            return;
        }
        let Ok(permit) = self.turned_away.clone().try_acquire_owned() else {
            return;
        };
        tokio::spawn(async move {
            let answer = format!(
                "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\n\
                 Content-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\n\r\n{NO_PLACE}",
                NO_PLACE.len()
            );
            let told = async {
                tcp.write_all(answer.as_bytes()).await?;
                tcp.shutdown().await?;
                // Were its request unread, hanging up would take the answer back.
                while tcp.read(&mut [0; 4096]).await? > 0 {}
                io::Result::Ok(())
            };
            // Whatever became of it: there is nothing more to do for this client.
            let _ = tokio::time::timeout(TURN_AWAY, told).await;
            drop(permit);
        });
    }
}

/// Small answers go out at once, and peers that are gone are noticed.
fn set_up(tcp: &TcpStream) -> io::Result<()> {
    tcp.set_nodelay(true)?;
    let alive = socket2::TcpKeepalive::new()
        .with_time(ALIVE_AFTER)
        .with_interval(ALIVE_EVERY)
        .with_retries(ALIVE_TRIES);
    socket2::SockRef::from(tcp).set_tcp_keepalive(&alive)
}

/// Whether it is the connection that failed, not the listener.
fn is_of_client(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
    )
}

macro_rules! each {
    ($self:expr, $stream:ident => $body:expr) => {
        match &mut $self.get_mut().0 {
            Kind::Plain($stream) => $body,
            Kind::Tls($stream) => $body,
        }
    };
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        each!(self, stream => Pin::new(stream).poll_read(context, buffer))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        each!(self, stream => Pin::new(stream).poll_write(context, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        each!(self, stream => Pin::new(stream).poll_write_vectored(context, buffers))
    }

    fn is_write_vectored(&self) -> bool {
        match &self.0 {
            Kind::Plain(stream) => stream.is_write_vectored(),
            Kind::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, stream => Pin::new(stream).poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, stream => Pin::new(stream).poll_shutdown(context))
    }
}

impl tonic::transport::server::Connected for Connection {
    type ConnectInfo = Client;

    fn connect_info(&self) -> Client {
        self.client()
    }
}

#[cfg(test)]
mod tests {
    use super::super::connections::ConnectionLimits;
    use super::*;
    use crate::clock::TestClock;

    fn write(folder: &std::path::Path, name: &str, content: &str) -> PathBuf {
        let path = folder.join(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    #[test]
    fn c2_files_that_hold_something_else_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let own = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let other = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let cert = write(folder.path(), "cert.pem", &own.cert.pem());
        let key = write(folder.path(), "key.pem", &own.signing_key.serialize_pem());
        let other_key = write(
            folder.path(),
            "other.pem",
            &other.signing_key.serialize_pem(),
        );
        let empty = write(folder.path(), "empty.pem", "");
        let missing = folder.path().join("missing.pem");
        let start = |cert: &PathBuf, key: &PathBuf, client_ca: Option<&PathBuf>| {
            let files = TlsFiles {
                cert: cert.clone(),
                key: key.clone(),
                client_ca: client_ca.cloned(),
            };
            ServerTls::start(&files, Arc::new(TestClock::new())).map(drop)
        };
        assert_eq!(start(&cert, &key, None), Ok(()));
        assert_eq!(start(&cert, &key, Some(&cert)), Ok(()));
        for (result, wanted) in [
            (start(&missing, &key, None), "missing.pem"),
            (start(&empty, &key, None), "--tls-cert"),
            (start(&cert, &empty, None), "--tls-key"),
            (start(&cert, &cert, None), "no private key"),
            (start(&cert, &other_key, None), "can't be used together"),
            (start(&cert, &key, Some(&empty)), "--tls-client-ca"),
        ] {
            let error = result.unwrap_err();
            assert!(error.contains(wanted), "{wanted}: {error}");
        }
    }

    #[tokio::test]
    async fn accepted_sockets_send_at_once_and_notice_peers_that_are_gone() {
        let limits = ConnectionLimits {
            max: 1,
            head: HANDSHAKE,
            idle: HANDSHAKE,
            only_heads: true,
        };
        for protocol in [Protocol::Http, Protocol::Xds] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let connections = Connections::new(limits.clone());
            let mut incoming = incoming(listener, None, protocol, connections);
            let _client = TcpStream::connect(address).await.unwrap();
            let connection = incoming.recv().await.unwrap();
            let tcp = connection.watched().stream();
            assert!(tcp.nodelay().unwrap());
            let socket = socket2::SockRef::from(tcp);
            assert!(socket.keepalive().unwrap());
            assert_eq!(socket.tcp_keepalive_time().unwrap(), ALIVE_AFTER);
        }
    }
}
