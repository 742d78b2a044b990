//! Certificates for tests, and a server that uses them.

use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair,
};

use crate::program::{Ended, Server, run, write};

pub const WEB: &str = "web-web-web-web-web";
pub const DB: &str = "db-db-db-db-db-db-db";
pub const OPS: &str = "ops-ops-ops-ops-ops-ops";

pub const TOKENS: &str = r#"
tokens = [
  { name = "web", secret = "web-web-web-web-web", watch = ["web"] },
  { name = "db", secret = "db-db-db-db-db-db-db", watch = ["db"] },
  { name = "ops", secret = "ops-ops-ops-ops-ops-ops", operator = true },
]
"#;

/// Two services with sidecars.
pub const MESH: &str = "services = [\n\
    { name = \"web\" port = 8080 connect { sidecar_service { port = 21500 proxy { upstreams = [{ destination_name = \"db\" local_bind_port = 21501 }] } } } },\n\
    { name = \"db\" port = 8081 connect { sidecar_service { port = 21502 } } },\n\
    ]\n";

fn name(common: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common);
    name
}

/// An authority.
pub struct Authority {
    params: CertificateParams,
    key: KeyPair,
    pub pem: String,
}

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.distinguished_name = name("authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { params, key, pem }
    }

    /// A certificate for this machine, and its key.
    pub fn issue(&self) -> (String, String) {
        let issuer = Issuer::from_params(&self.params, &self.key);
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        params.distinguished_name = name("127.0.0.1");
        let certificate = params.signed_by(&key, &issuer).unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    /// Writes a certificate of a name, its key, and this authority's.
    pub fn write(&self, folder: &Path, name: &str) {
        let (certificate, key) = self.issue();
        write(folder, &format!("{name}.pem"), &certificate);
        write(folder, &format!("{name}-key.pem"), &key);
        write(folder, &format!("{name}-ca.pem"), &self.pem);
    }
}

/// A folder with the certificates of a server and of a client, by different authorities, the tokens and a mesh.
pub fn folder() -> tempfile::TempDir {
    let folder = crate::program::folder(&[("mesh/mesh.hcl", MESH), ("tokens.hcl", TOKENS)]);
    Authority::new().write(folder.path(), "server");
    Authority::new().write(folder.path(), "client");
    Authority::new().write(folder.path(), "stranger");
    folder
}

/// A server with certificates and tokens.
pub fn server(folder: &Path, more: &[&str]) -> Server {
    let args = [
        "--config",
        "mesh",
        "--tls-cert",
        "server.pem",
        "--tls-key",
        "server-key.pem",
        "--tls-client-ca",
        "client-ca.pem",
        "--tokens",
        "tokens.hcl",
    ];
    Server::start(folder, &[&args, more].concat())
}

/// Runs a client command with a certificate of `client`, trusting the authority of `server`.
pub fn ask(
    folder: &Path,
    server: &Server,
    trusted: &str,
    client: Option<&str>,
    token: Option<&str>,
    command: &[&str],
) -> Ended {
    let address = format!("https://{}", server.http);
    let (cert, key) = client.map_or_else(Default::default, |name| {
        (format!("{name}.pem"), format!("{name}-key.pem"))
    });
    let mut args = command.to_vec();
    args.extend(["--http-addr", &address, "--ca-file", trusted]);
    if client.is_some() {
        args.extend(["--client-cert", &cert, "--client-key", &key]);
    }
    if let Some(token) = token {
        args.extend(["--token", token]);
    }
    run(folder, &args)
}
