//! Tests of the authority. Chains are judged by an independent verifier (webpki). `testdata` holds a root whose key is
//! public knowledge.

mod configuration;
mod leaves;
mod own_root;
mod requests;
mod rotation;
mod state;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};
use rustls_pki_types::{CertificateDer, UnixTime};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::FromDer;

use super::root::{parse_certificate, pem_to_der, root_id};
use super::*;
use crate::clock::{Clock, TestClock};
use crate::model::{CaConfig, CaRoot, CaRoots, IssuedCert, LeafRequest, PrivateKey};

const HOUR: Duration = Duration::from_secs(3600);

fn authority(clock: &Arc<TestClock>) -> Authority {
    authority_with(clock, CaConfig::default())
}

fn authority_with(clock: &Arc<TestClock>, config: CaConfig) -> Authority {
    Authority::bootstrap(clock.clone(), "dc1", config).unwrap()
}

fn ders(pem: &str) -> Vec<Vec<u8>> {
    x509_parser::pem::Pem::iter_from_buffer(pem.as_bytes())
        .map(|block| block.unwrap().contents)
        .collect()
}

/// Whether a verifier that trusts `root` alone accepts the chain, as a server's and as a client's.
pub(super) fn verifies(chain_pem: &str, root: &CaRoot, now: SystemTime) -> bool {
    let chain: Vec<CertificateDer<'_>> = ders(chain_pem)
        .into_iter()
        .map(CertificateDer::from)
        .collect();
    let root_der = CertificateDer::from(pem_to_der(&root.root_cert, "CERTIFICATE").unwrap());
    let anchor = webpki::anchor_from_trusted_cert(&root_der).unwrap();
    let leaf = webpki::EndEntityCert::try_from(&chain[0]).unwrap();
    let time = UnixTime::since_unix_epoch(now.duration_since(UNIX_EPOCH).unwrap());
    let algorithms = [
        webpki::ring::ECDSA_P256_SHA256,
        webpki::ring::ECDSA_P384_SHA384,
        webpki::ring::ECDSA_P256_SHA384,
        webpki::ring::ECDSA_P384_SHA256,
        webpki::ring::RSA_PKCS1_2048_8192_SHA256,
    ];
    [
        webpki::KeyUsage::server_auth(),
        webpki::KeyUsage::client_auth(),
    ]
    .into_iter()
    .all(|usage| {
        leaf.verify_for_usage(
            &algorithms,
            std::slice::from_ref(&anchor),
            &chain[1..],
            time,
            usage,
            None,
            None,
        )
        .is_ok()
    })
}

/// URI, DNS and IP names of a leaf.
fn names(leaf: &IssuedCert) -> (Vec<String>, Vec<String>, Vec<String>) {
    let der = &ders(&leaf.cert_pem)[0];
    let certificate = parse_certificate(der).unwrap();
    let (mut uris, mut dns, mut ips) = (vec![], vec![], vec![]);
    for name in &certificate
        .subject_alternative_name()
        .unwrap()
        .unwrap()
        .value
        .general_names
    {
        match name {
            GeneralName::URI(uri) => uris.push((*uri).to_owned()),
            GeneralName::DNSName(name) => dns.push((*name).to_owned()),
            GeneralName::IPAddress(bytes) => ips.push(format!("{bytes:?}")),
            other => panic!("unexpected name {other}"),
        }
    }
    (uris, dns, ips)
}

/// An own root: certificate and key. `path_length` limits what it may sign.
fn own_root(clock: &TestClock, path_length: Option<u8>) -> (String, PrivateKey) {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::OrganizationName, "Example");
    params
        .distinguished_name
        .push(DnType::CommonName, "Own Root");
    params.not_before = time::OffsetDateTime::from(clock.now());
    params.not_after = time::OffsetDateTime::from(clock.now() + 1000 * HOUR);
    params.is_ca = rcgen::IsCa::Ca(match path_length {
        Some(length) => rcgen::BasicConstraints::Constrained(length),
        None => rcgen::BasicConstraints::Unconstrained,
    });
    let key = KeyPair::generate().unwrap();
    let pem = params.self_signed(&key).unwrap().pem();
    (pem, PrivateKey::from_pem(key.serialize_pem()))
}

fn own_config(root: &(String, PrivateKey)) -> CaConfig {
    CaConfig {
        root_cert: Some(root.0.clone()),
        private_key: Some(root.1.clone()),
        ..CaConfig::default()
    }
}

fn restart(ca: &Authority, clock: &Arc<TestClock>) -> Authority {
    let bytes = ca.export_state().to_bytes().unwrap();
    Authority::from_state(clock.clone(), CaState::from_bytes(&bytes).unwrap()).unwrap()
}
