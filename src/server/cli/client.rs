//! Asking a running server over its HTTP API.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig, parse_pem};

use super::Failure;

/// Where the server is that a command asks.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct ServerArgs {
    /// The server's HTTP address: HOST:PORT or a URL. Without it CONSUL_HTTP_ADDR counts, then 127.0.0.1:8500.
    #[arg(long, value_name = "ADDR", env = "PROXYCFG_HTTP_ADDR")]
    pub http_addr: Option<String>,
    /// Token for the server.
    #[arg(
        long,
        value_name = "TOKEN",
        env = "CONSUL_HTTP_TOKEN",
        hide_env_values = true
    )]
    pub token: Option<String>,
    /// A file with the token.
    #[arg(
        long,
        value_name = "FILE",
        env = "CONSUL_HTTP_TOKEN_FILE",
        conflicts_with = "token"
    )]
    pub token_file: Option<PathBuf>,
    /// Certificates (PEM) of the authorities that the server's certificate may come from, for https.
    #[arg(long, value_name = "FILE", env = "CONSUL_CACERT")]
    pub ca_file: Option<PathBuf>,
    /// Certificate (PEM) to show to the server.
    #[arg(
        long,
        value_name = "FILE",
        env = "CONSUL_CLIENT_CERT",
        requires = "client_key"
    )]
    pub client_cert: Option<PathBuf>,
    /// The key of that certificate (PEM).
    #[arg(
        long,
        value_name = "FILE",
        env = "CONSUL_CLIENT_KEY",
        requires = "client_cert"
    )]
    pub client_key: Option<PathBuf>,
    /// Print JSON on one line, for other programs.
    #[arg(long)]
    pub json: bool,
}

/// The longest answer that is read.
const MAX_ANSWER: u64 = 1 << 30;

/// How long a server may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(5);

/// How long a server may take to answer, beyond the time it was asked to wait.
const ANSWER: Duration = Duration::from_secs(60);

/// A client of one server.
pub(super) struct Client {
    agent: ureq::Agent,
    base: String,
    token: Option<String>,
}

/// An answer.
pub(super) struct Answer {
    pub json: Value,
    /// `X-Consul-ContentHash`.
    pub hash: Option<String>,
}

/// The status and text of an answer that isn't the one hoped for.
pub(super) struct Refusal {
    pub status: u16,
    pub text: String,
}

impl Client {
    /// A client of the server that the arguments or the environment name.
    ///
    /// # Errors
    /// The address can't be one.
    pub fn new(args: &ServerArgs) -> Result<Self, Failure> {
        let from_environment = || std::env::var("CONSUL_HTTP_ADDR").ok();
        let address = args.http_addr.clone().or_else(from_environment);
        let address = address.filter(|a| !a.is_empty());
        let base = base_url(address.as_deref().unwrap_or("127.0.0.1:8500"))?;
        let agent = ureq::Agent::config_builder()
            .tls_config(args.tls()?)
            .http_status_as_error(false)
            .timeout_connect(Some(CONNECT))
            .proxy(None)
            .user_agent(concat!("proxycfg/", env!("CARGO_PKG_VERSION")))
            .build()
            .new_agent();
        let token = args.token()?;
        Ok(Self { agent, base, token })
    }

    /// Host of the server, without the port.
    pub fn host(&self) -> &str {
        let rest = self.base.split_once("://").map_or(&*self.base, |(_, r)| r);
        let authority = rest.split('/').next().unwrap_or(rest);
        match authority.rsplit_once(':') {
            Some((host, port)) if port.bytes().all(|c| c.is_ascii_digit()) => host,
            _ => authority,
        }
    }

    /// Where the server is.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Gets a path; its segments and the query's values are encoded here.
    ///
    /// # Errors
    /// There is no server, or it refuses.
    pub fn get(&self, path: &[&str], query: &[(&str, &str)]) -> Result<Answer, Failure> {
        self.get_within(path, query, ANSWER)?
            .map_err(|refusal| Failure::Failed(refusal.text))
    }

    /// Gets a path, and lets the caller judge a refusal.
    ///
    /// # Errors
    /// There is no server.
    pub fn try_get(
        &self,
        path: &[&str],
        query: &[(&str, &str)],
    ) -> Result<Result<Answer, Refusal>, Failure> {
        self.get_within(path, query, ANSWER)
    }

    /// Gets a path with a time limit of its own, for answers that the server waits with.
    ///
    /// # Errors
    /// There is no server.
    pub fn get_within(
        &self,
        path: &[&str],
        query: &[(&str, &str)],
        limit: Duration,
    ) -> Result<Result<Answer, Refusal>, Failure> {
        let mut url = format!("{}/v1", self.base);
        for segment in path {
            url.push('/');
            encode(segment, &mut url);
        }
        for (i, (key, value)) in query.iter().enumerate() {
            url.push(if i == 0 { '?' } else { '&' });
            encode(key, &mut url);
            url.push('=');
            encode(value, &mut url);
        }
        let mut request = self.agent.get(&url);
        if let Some(token) = &self.token {
            request = request.header("X-Consul-Token", token);
        }
        let request = request.config().timeout_global(Some(limit));
        let mut response = request.build().call().map_err(|e| self.unreachable(&e))?;
        let status = response.status().as_u16();
        let header = response.headers().get("X-Consul-ContentHash");
        let hash = header.and_then(|h| h.to_str().ok()).map(str::to_owned);
        let body = response.body_mut().with_config().limit(MAX_ANSWER);
        let body = body.read_to_vec().map_err(|e| self.unreachable(&e))?;
        if !(200..300).contains(&status) {
            let text = String::from_utf8_lossy(&body);
            let text = match text.trim() {
                "" => format!("{} answers with status {status}", self.base),
                text => text.to_owned(),
            };
            return Ok(Err(Refusal { status, text }));
        }
        let json = serde_json::from_slice(&body).map_err(|error| {
            Failure::Failed(format!(
                "{} doesn't answer with JSON ({error}); is it a proxycfg server?",
                self.base
            ))
        })?;
        Ok(Ok(Answer { json, hash }))
    }

    fn unreachable(&self, error: &ureq::Error) -> Failure {
        let why = match error {
            ureq::Error::Io(error) if error.kind() == ErrorKind::ConnectionRefused => {
                "connection refused".to_owned()
            }
            other => other.to_string(),
        };
        Failure::Failed(format!(
            "no server answers at {} ({why}); start one with `proxycfg serve`, or give its address with --http-addr",
            self.base
        ))
    }
}

impl ServerArgs {
    /// The token to send, if there is one.
    ///
    /// # Errors
    /// Its file can't be read, or it can't be sent.
    pub fn token(&self) -> Result<Option<String>, Failure> {
        let token = match (&self.token, &self.token_file) {
            (Some(token), _) => token.clone(),
            (None, Some(path)) => {
                String::from_utf8(read_file(path, "--token-file")?).map_err(|_| {
                    Failure::BadInput(format!("--token-file {}: isn't text", path.display()))
                })?
            }
            (None, None) => return Ok(None),
        };
        let token = token.trim();
        if token.chars().any(|c| !c.is_ascii_graphic()) {
            return Err(Failure::BadInput(
                "the token holds characters that can't be sent; it must be printable ASCII without spaces".to_owned(),
            ));
        }
        Ok(Some(token.to_owned()).filter(|token| !token.is_empty()))
    }

    fn tls(&self) -> Result<TlsConfig, Failure> {
        let mut config = TlsConfig::builder();
        if let Some(path) = &self.ca_file {
            let roots = certificates(path, "--ca-file")?;
            config = config.root_certs(RootCerts::new_with_certs(&roots));
        }
        if let (Some(cert), Some(key)) = (&self.client_cert, &self.client_key) {
            let chain = certificates(cert, "--client-cert")?;
            let pem = read_file(key, "--client-key")?;
            let private = PrivateKey::from_pem(&pem).map_err(|_| {
                let key = key.display();
                Failure::BadInput(format!(
                    "--client-key {key}: there is no private key in it that can be read; give one in PEM"
                ))
            })?;
            config = config.client_cert(Some(ClientCert::new_with_certs(&chain, private)));
        }
        Ok(config.build())
    }
}

pub(super) fn read_file(path: &Path, flag: &str) -> Result<Vec<u8>, Failure> {
    std::fs::read(path)
        .map_err(|error| Failure::BadInput(format!("{flag} {}: {error}", path.display())))
}

fn certificates(path: &Path, flag: &str) -> Result<Vec<Certificate<'static>>, Failure> {
    let pem = read_file(path, flag)?;
    let found: Vec<_> = parse_pem(&pem)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    if found.is_empty() {
        return Err(Failure::BadInput(format!(
            "{flag} {}: there is no certificate in it; give one in PEM",
            path.display()
        )));
    }
    Ok(found)
}

fn base_url(address: &str) -> Result<String, Failure> {
    let refuse = |why: &str| {
        Err(Failure::BadInput(format!(
            "--http-addr {address:?}: {why}; give HOST:PORT or http://HOST:PORT"
        )))
    };
    let (scheme, rest) = address.split_once("://").unwrap_or(("http", address));
    if !matches!(scheme, "http" | "https") {
        return refuse("only http and https can be used");
    }
    let rest = rest.trim_end_matches('/');
    if rest.is_empty() || rest.contains([' ', '?', '#', '@']) || rest.starts_with(':') {
        return refuse("is not an address");
    }
    Ok(format!("{scheme}://{rest}"))
}

/// Percent-encodes whatever has a meaning in a URL.
fn encode(text: &str, into: &mut String) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            into.push(char::from(byte));
        } else {
            into.push_str(&format!("%{byte:02X}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_completed() {
        let base = |address| base_url(address).map_err(|e| e.to_string());
        assert_eq!(base("127.0.0.1:8500").unwrap(), "http://127.0.0.1:8500");
        assert_eq!(base("https://c.example/").unwrap(), "https://c.example");
        for bad in ["unix:///run/x", "", "http://", ":8500", "a b"] {
            let message = base(bad).unwrap_err();
            assert!(message.contains("give HOST:PORT"), "{message}");
        }
    }

    #[test]
    fn a_path_segment_keeps_its_bounds() {
        let mut url = String::new();
        encode("a/b c?é", &mut url);
        assert_eq!(url, "a%2Fb%20c%3F%C3%A9");
    }

    #[test]
    fn the_host_is_that_of_the_address() {
        for (address, host) in [
            ("127.0.0.1:8500", "127.0.0.1"),
            ("http://[::1]:8500", "[::1]"),
            ("https://c.example", "c.example"),
        ] {
            let args = ServerArgs {
                http_addr: Some(address.to_owned()),
                token: None,
                token_file: None,
                ca_file: None,
                client_cert: None,
                client_key: None,
                json: false,
            };
            assert_eq!(Client::new(&args).unwrap().host(), host);
        }
    }
}
