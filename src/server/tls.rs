//! TLS on the program's own ports: certificates from files, read again when they change, and connections of either kind.
//!
//! A listener is turned into a stream of [`Connection`]s, plain or encrypted, that both servers take. Handshakes run beside
//! each other, bounded in number and time, so that a client that connects and says nothing holds up nobody.

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
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tracing::{debug, warn};

use super::access::Reloaded;
use crate::clock::Clock;

/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Handshakes under way at once.
const HANDSHAKES: usize = 256;

/// Connections that wait to be taken.
const WAITING: usize = 64;

/// How long to wait after an accept that failed, for want of file handles in most cases.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

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

/// A connection of a client.
#[derive(Debug)]
pub enum Connection {
    /// Not encrypted.
    Plain(TcpStream),
    /// Encrypted, and the client identified if that is asked for.
    Tls(Box<TlsStream<TcpStream>>),
}

impl Connection {
    /// The client's address, if it is still known.
    #[must_use]
    pub fn peer(&self) -> Option<SocketAddr> {
        let tcp = match self {
            Self::Plain(tcp) => tcp,
            Self::Tls(tls) => tls.get_ref().0,
        };
        tcp.peer_addr().ok()
    }
}

/// Accepts connections until the receiver is dropped. What is sent has its handshake behind it.
pub fn incoming(
    listener: TcpListener,
    tls: Option<Arc<ServerTls>>,
    protocol: Protocol,
) -> mpsc::Receiver<Connection> {
    let (send, receive) = mpsc::channel(WAITING);
    tokio::spawn(accept(listener, tls, protocol, send));
    receive
}

async fn accept(
    listener: TcpListener,
    tls: Option<Arc<ServerTls>>,
    protocol: Protocol,
    send: mpsc::Sender<Connection>,
) {
    let handshakes = Arc::new(Semaphore::new(HANDSHAKES));
    loop {
        let accepted = tokio::select! {
            () = send.closed() => return,
            accepted = listener.accept() => accepted,
        };
        let tcp = match accepted {
            Ok((tcp, _)) => tcp,
            Err(error) if is_of_client(&error) => continue,
            Err(error) => {
                warn!(%error, "can't accept a connection; trying again");
                tokio::time::sleep(ACCEPT_AGAIN).await;
                continue;
            }
        };
        if let Err(error) = tcp.set_nodelay(true) {
            // The client is gone already.
            debug!(%error, "a connection can't be set up");
            continue;
        }
        let Some(tls) = &tls else {
            if send.send(Connection::Plain(tcp)).await.is_err() {
                return;
            }
            continue;
        };
        let Ok(permit) = handshakes.clone().acquire_owned().await else {
            return;
        };
        let acceptor = TlsAcceptor::from(tls.config(protocol));
        let send = send.clone();
        tokio::spawn(async move {
            let handshake = tokio::time::timeout(HANDSHAKE, acceptor.accept(tcp)).await;
            drop(permit);
            match handshake {
                Ok(Ok(stream)) => {
                    // Fails if the server has stopped.
                    let _ = send.send(Connection::Tls(Box::new(stream))).await;
                }
                Ok(Err(error)) => debug!(%error, "a TLS handshake failed"),
                Err(_) => debug!("a TLS handshake took too long"),
            }
        });
    }
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
        match $self.get_mut() {
            Connection::Plain($stream) => $body,
            Connection::Tls($stream) => $body,
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

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, stream => Pin::new(stream).poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, stream => Pin::new(stream).poll_shutdown(context))
    }
}

impl tonic::transport::server::Connected for Connection {
    type ConnectInfo = tonic::transport::server::TcpConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        let tcp = match self {
            Self::Plain(tcp) => tcp,
            Self::Tls(tls) => tls.get_ref().0,
        };
        tcp.connect_info()
    }
}

/// Connections as axum takes them.
#[derive(Debug)]
pub struct HttpConnections {
    incoming: mpsc::Receiver<Connection>,
    address: SocketAddr,
}

impl HttpConnections {
    /// `address` is the listener's.
    #[must_use]
    pub fn new(incoming: mpsc::Receiver<Connection>, address: SocketAddr) -> Self {
        Self { incoming, address }
    }
}

impl axum::serve::Listener for HttpConnections {
    type Io = Connection;
    type Addr = Option<SocketAddr>;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        match self.incoming.recv().await {
            Some(connection) => {
                let peer = connection.peer();
                (connection, peer)
            }
            // The acceptor lives as long as this end; should it not, there is nothing more to accept.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        Ok(Some(self.address))
    }
}

#[cfg(test)]
mod tests {
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
}
