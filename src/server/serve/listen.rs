//! Where the program listens, and how it is protected there (decision C2).

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;

use tokio::net::TcpSocket;

use super::error::ServeError;
use crate::clock::Clock;
use crate::server::access::{AllowAll, Authorizer, TokenFile};
use crate::server::tls::{ServerTls, TlsFiles};

/// How both ports are protected.
#[derive(Debug, Clone, Default)]
pub struct Protection {
    /// The server's certificate (PEM); with it everything is encrypted.
    pub tls_cert: Option<PathBuf>,
    /// Its key (PEM).
    pub tls_key: Option<PathBuf>,
    /// The authorities of clients' certificates (PEM): clients without such a certificate are turned away.
    pub tls_client_ca: Option<PathBuf>,
    /// The file of tokens, see [`TokenFile`].
    pub tokens: Option<PathBuf>,
    /// Listen on addresses that other machines reach, whatever the protection.
    pub insecure: bool,
}

impl Protection {
    /// The files of TLS, if it is asked for.
    ///
    /// # Errors
    /// Some are missing.
    fn tls_files(&self) -> Result<Option<TlsFiles>, ServeError> {
        match (&self.tls_cert, &self.tls_key, &self.tls_client_ca) {
            (Some(cert), Some(key), client_ca) => Ok(Some(TlsFiles {
                cert: cert.clone(),
                key: key.clone(),
                client_ca: client_ca.clone(),
            })),
            (None, None, None) => Ok(None),
            _ => Err(ServeError::BadInput(
                "TLS needs a certificate and its key: give both --tls-cert and --tls-key"
                    .to_owned(),
            )),
        }
    }

    /// Refuses an address that other machines reach, unless strangers are kept out there: whoever reaches a port may read
    /// certificates with their keys, and change everything.
    ///
    /// # Errors
    /// The protection isn't enough for the address.
    pub(super) fn check(&self, address: SocketAddr, flag: &str) -> Result<(), ServeError> {
        let encrypted = self.tls_files()?.is_some();
        let known = self.knows_callers();
        if self.insecure || address.ip().is_loopback() || (encrypted && known) {
            return Ok(());
        }
        let lacks = match (encrypted, known) {
            (false, false) => "connections are neither encrypted nor authenticated",
            (false, true) => {
                "connections are not encrypted, so that tokens and keys can be read on the way"
            }
            _ => "whoever connects is let in",
        };
        Err(ServeError::BadInput(format!(
            "{flag} {address}: other machines may reach this address, and {lacks}; give --tls-cert and --tls-key with \
             --tls-client-ca or --tokens, listen on 127.0.0.1, or add --insecure if the network is trusted"
        )))
    }

    /// Whether pages in browsers on this machine are to be kept out of an address: strangers don't reach it otherwise, but
    /// whoever does is let in.
    pub(super) fn keeps_pages_out(&self, address: SocketAddr) -> bool {
        address.ip().is_loopback() && !self.knows_callers() && !self.insecure
    }

    /// Whether callers have to show who they are.
    fn knows_callers(&self) -> bool {
        self.tls_client_ca.is_some() || self.tokens.is_some()
    }

    /// Reads the files, and follows them.
    ///
    /// # Errors
    /// One can't be used.
    pub(super) fn start(&self, clock: &Arc<dyn Clock>) -> Result<Guard, ServeError> {
        let tls = match self.tls_files()? {
            None => None,
            Some(files) => {
                let tls = ServerTls::start(&files, clock.clone()).map_err(ServeError::BadInput)?;
                Some(Arc::new(tls))
            }
        };
        let authorizer: Arc<dyn Authorizer> = match &self.tokens {
            None => Arc::new(AllowAll::default()),
            Some(path) => {
                let tokens = TokenFile::start(path.clone(), clock.clone())
                    .map_err(|error| ServeError::BadInput(format!("--tokens: {error}")))?;
                Arc::new(tokens)
            }
        };
        Ok(Guard { tls, authorizer })
    }
}

/// What protects the ports.
#[derive(Debug, Clone)]
pub(super) struct Guard {
    pub tls: Option<Arc<ServerTls>>,
    pub authorizer: Arc<dyn Authorizer>,
}

/// A bound listener and its address.
pub(super) type Bound = (TcpListener, SocketAddr);

/// Connections that may wait to be accepted, unless the system allows fewer. When all Envoys of a server come back at once,
/// those beyond would try again only after a second.
const BACKLOG: u32 = 4096;

/// To be called in the context of the network's runtime.
pub(super) fn bind(address: SocketAddr, flag: &str) -> Result<Bound, ServeError> {
    let listen = || {
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        // A port that a server before has used is free at once.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)?.into_std()
    };
    let listener = listen().map_err(|error: std::io::Error| {
        ServeError::Failed(match error.kind() {
            ErrorKind::AddrInUse => format!(
                "{flag} {address}: the port is in use; stop the program that listens there, or choose another with {flag}"
            ),
            ErrorKind::AddrNotAvailable => format!(
                "{flag} {address}: this machine doesn't have the address; choose another with {flag}"
            ),
            _ => format!("{flag} {address}: can't listen: {error}"),
        })
    })?;
    let address = listener
        .local_addr()
        .map_err(|error| ServeError::Failed(format!("can't prepare a listener: {error}")))?;
    Ok((listener, address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c2_other_machines_need_encryption_and_an_identity() {
        let file = |name: &str| Some(PathBuf::from(name));
        let tls = Protection {
            tls_cert: file("cert"),
            tls_key: file("key"),
            ..Protection::default()
        };
        let open: SocketAddr = "0.0.0.0:8502".parse().unwrap();
        let own: SocketAddr = "127.0.0.1:8502".parse().unwrap();
        let refused = |protection: &Protection, address| {
            protection
                .check(address, "--xds-addr")
                .err()
                .map(|e| e.to_string())
        };
        for good in [
            Protection {
                tls_client_ca: file("ca"),
                ..tls.clone()
            },
            Protection {
                tokens: file("tokens"),
                ..tls.clone()
            },
            Protection {
                insecure: true,
                ..Protection::default()
            },
        ] {
            assert_eq!(refused(&good, open), None, "{good:?}");
        }
        assert_eq!(refused(&Protection::default(), own), None);
        let tokens_alone = Protection {
            tokens: file("tokens"),
            ..Protection::default()
        };
        for (bad, why) in [
            (Protection::default(), "neither encrypted nor authenticated"),
            (tokens_alone, "not encrypted"),
            (tls.clone(), "whoever connects is let in"),
        ] {
            let text = refused(&bad, open).unwrap();
            assert!(text.contains(why) && text.contains("--insecure"), "{text}");
        }
        let half = Protection {
            tls_key: None,
            ..tls
        };
        assert!(refused(&half, own).unwrap().contains("--tls-key"));
    }
}
