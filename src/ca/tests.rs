//! Tests of the authority. Chains are judged by an independent verifier (webpki). `testdata` holds a root whose key is
//! public knowledge.

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

#[test]
fn store_123_leaf_of_a_service() {
    let clock = Arc::new(TestClock::new());
    let ca = authority(&clock);
    let leaf = ca.issue(&LeafRequest::for_service("web")).unwrap();
    let uri = format!("spiffe://{}/ns/default/dc/dc1/svc/web", ca.trust_domain());
    assert_eq!(leaf.identity.to_string(), uri);
    assert_eq!(names(&leaf), (vec![uri], vec![], vec![]));
    assert_eq!(leaf.valid_after, clock.now() - Duration::from_secs(60));
    assert_eq!(leaf.valid_before, clock.now() + 72 * HOUR);

    let der = &ders(&leaf.cert_pem)[0];
    let certificate = parse_certificate(der).unwrap();
    let validity = certificate.validity();
    let seconds = |at: SystemTime| at.duration_since(UNIX_EPOCH).unwrap().as_secs();
    assert_eq!(
        validity.not_before.timestamp().unsigned_abs(),
        seconds(leaf.valid_after)
    );
    assert_eq!(
        validity.not_after.timestamp().unsigned_abs(),
        seconds(leaf.valid_before)
    );
    assert!(!certificate.basic_constraints().unwrap().unwrap().value.ca);
    let usage = certificate.key_usage().unwrap().unwrap().value;
    assert!(usage.digital_signature() && usage.key_encipherment());
    assert!(usage.data_encipherment() && usage.key_agreement() && !usage.key_cert_sign());
    let extended = certificate.extended_key_usage().unwrap().unwrap().value;
    assert!(extended.client_auth && extended.server_auth && !extended.any);
    let names_extension = certificate.subject_alternative_name().unwrap().unwrap();
    assert!(names_extension.critical && certificate.subject().iter().next().is_none());

    let roots = ca.roots();
    roots.validate().unwrap();
    let root = roots.active().unwrap();
    assert_eq!(leaf.authority_key_id, root.signing_key_id);
    assert!(verifies(&leaf.cert_pem, root, clock.now()));
    assert!(!verifies(&leaf.cert_pem, root, clock.now() + 73 * HOUR));
    // The key belongs to the certificate.
    let key = KeyPair::from_pem(leaf.private_key.expose_pem()).unwrap();
    assert_eq!(
        certificate.public_key().subject_public_key.data.as_ref(),
        rcgen::PublicKeyData::der_bytes(&key)
    );
}

#[test]
fn store_123_serial_numbers_go_up() {
    let clock = Arc::new(TestClock::new());
    let ca = authority(&clock);
    let request = LeafRequest::for_service("web");
    let indexes: Vec<u64> = (0..300)
        .map(|_| ca.issue(&request).unwrap().create_index)
        .collect();
    assert!(indexes.windows(2).all(|pair| pair[0] < pair[1]));
    let leaf = ca.issue(&request).unwrap();
    let der = &ders(&leaf.cert_pem)[0];
    let certificate = parse_certificate(der).unwrap();
    assert_eq!(
        certificate.tbs_certificate.raw_serial_as_string(),
        leaf.serial_number.as_str()
    );
}

#[test]
fn store_124_other_identities_and_their_names() {
    let clock = Arc::new(TestClock::new());
    let ca = authority(&clock);
    let td = ca.trust_domain();
    let ip = "10.0.0.1".parse().unwrap();

    let gateway = LeafRequest::for_mesh_gateway()
        .with_dns_san(["gw.local"])
        .with_ip_san([ip]);
    assert_eq!(
        names(&ca.issue(&gateway).unwrap()),
        (
            vec![format!("spiffe://{td}/gateway/mesh/dc/dc1")],
            vec!["gw.local".into()],
            vec![]
        )
    );
    let agent = LeafRequest::for_agent("n1").with_ip_san([ip]);
    let (uris, dns, ips) = names(&ca.issue(&agent).unwrap());
    assert_eq!(uris, [format!("spiffe://{td}/agent/client/dc/dc1/id/n1")]);
    assert_eq!(dns, ["localhost"]);
    assert_eq!(ips.len(), 3);
    let server = LeafRequest::for_server("dc1");
    assert_eq!(
        names(&ca.issue(&server).unwrap()),
        (
            vec![format!("spiffe://{td}/agent/server/dc/dc1")],
            vec![format!("server.dc1.peering.{td}")],
            vec![]
        )
    );
    assert!(matches!(
        ca.issue(&LeafRequest::for_server("dc2")),
        Err(CaError::OtherDatacenter { .. })
    ));
}

#[test]
fn store_133_names_of_the_certificate() {
    let clock = Arc::new(TestClock::new());
    let ca = authority(&clock);
    let request = LeafRequest::for_service("web").with_dns_san(["a:8080", "a", "b"]);
    assert_eq!(names(&ca.issue(&request).unwrap()).1, ["a", "b"]);
    let odd = LeafRequest::for_service("web").with_dns_san(["ä"]);
    assert!(matches!(ca.issue(&odd), Err(CaError::Request { .. })));
}

#[test]
fn the_roots_record_describes_the_certificate() {
    let clock = Arc::new(TestClock::new());
    let ca = authority(&clock);
    let roots = ca.roots();
    let root = roots.active().unwrap();
    let der = pem_to_der(&root.root_cert, "CERTIFICATE").unwrap();
    assert_eq!(root.id, root_id(&der));
    assert_eq!(root.id.len(), 20 * 3 - 1);
    let certificate = parse_certificate(&der).unwrap();
    let key_id = certificate
        .iter_extensions()
        .find_map(|extension| match extension.parsed_extension() {
            ParsedExtension::SubjectKeyIdentifier(id) => Some(format!("{id:x}")),
            _ => None,
        })
        .unwrap();
    assert_eq!(root.signing_key_id.as_str(), key_id);
    assert_eq!(root.not_after, clock.now() + 87600 * HOUR);
    assert_eq!(
        (root.private_key_type.as_str(), root.private_key_bits),
        ("ec", 256)
    );
    assert_eq!(root.serial_number, 1);
    assert_eq!(
        *ca.trust_domain(),
        format!("{}.consul", root.external_trust_domain)
    );
    assert_eq!(ca.trust_domain().to_lowercase(), ca.trust_domain().as_str());
}

#[test]
fn store_127_rotation_bridges_to_the_old_root() {
    let clock = Arc::new(TestClock::new());
    let ca = authority(&clock);
    let old_roots = ca.roots();
    let old_leaf = ca.issue(&LeafRequest::for_service("web")).unwrap();
    clock.advance(HOUR);
    let roots = ca.rotate().unwrap();
    roots.validate().unwrap();
    assert_eq!(roots, ca.roots());
    let [old, new] = roots.roots.as_slice() else {
        panic!("two roots");
    };
    assert_eq!(old.id, old_roots.active_root_id);
    assert!(!old.active && new.active);
    assert_eq!(old.rotated_out_at, Some(clock.now()));
    assert_eq!(roots.trust_domain, old_roots.trust_domain);

    // The bridge is the new root's key and name, signed by the old root.
    let bridge_der = pem_to_der(&new.intermediate_certs[0], "CERTIFICATE").unwrap();
    let bridge = parse_certificate(&bridge_der).unwrap();
    let new_der = pem_to_der(&new.root_cert, "CERTIFICATE").unwrap();
    let new_root = parse_certificate(&new_der).unwrap();
    let old_der = pem_to_der(&old.root_cert, "CERTIFICATE").unwrap();
    let old_root = parse_certificate(&old_der).unwrap();
    assert_eq!(bridge.subject().as_raw(), new_root.subject().as_raw());
    assert_eq!(bridge.issuer().as_raw(), old_root.subject().as_raw());
    bridge
        .verify_signature(Some(old_root.public_key()))
        .unwrap();

    let leaf = ca.issue(&LeafRequest::for_service("web")).unwrap();
    assert_eq!(ders(&leaf.cert_pem).len(), 2);
    assert!(
        verifies(&leaf.cert_pem, old, clock.now()),
        "by the old root"
    );
    assert!(
        verifies(&leaf.cert_pem, new, clock.now()),
        "by the new root"
    );
    assert!(verifies(&old_leaf.cert_pem, old, clock.now()));
    assert!(!verifies(&old_leaf.cert_pem, new, clock.now()));
}

#[test]
fn two_rotations_in_a_row_still_bridge_to_the_first_root() {
    let clock = Arc::new(TestClock::new());
    let ca = authority(&clock);
    let first = ca.roots().active().unwrap().clone();
    ca.rotate().unwrap();
    ca.rotate().unwrap();
    let leaf = ca.issue(&LeafRequest::for_service("web")).unwrap();
    for root in std::iter::once(&first).chain(&ca.roots().roots) {
        assert!(verifies(&leaf.cert_pem, root, clock.now()), "{}", root.id);
    }
    // An expired bridge is left out of chains.
    clock.advance(8761 * HOUR);
    let leaf = ca.issue(&LeafRequest::for_service("web")).unwrap();
    assert_eq!(ders(&leaf.cert_pem).len(), 1);
    assert!(verifies(
        &leaf.cert_pem,
        ca.roots().active().unwrap(),
        clock.now()
    ));
}

#[test]
fn store_128_old_roots_are_pruned_after_two_leaf_lifetimes() {
    let clock = Arc::new(TestClock::new());
    let ca = authority(&clock);
    ca.rotate().unwrap();
    let key = ca.active_signing_key_id();
    clock.advance(144 * HOUR);
    assert_eq!(ca.prune(), None);
    clock.advance(Duration::from_secs(1));
    let roots = ca.prune().unwrap();
    roots.validate().unwrap();
    assert_eq!(roots.roots.len(), 1);
    assert_eq!(ca.active_signing_key_id(), key);
    assert_eq!(ca.prune(), None);
}

#[test]
fn store_129_what_the_authority_returns_is_valid() {
    let clock = Arc::new(TestClock::new());
    let ca = authority(&clock);
    for _ in 0..3 {
        let mut roots = ca.rotate().unwrap();
        roots.validate().unwrap();
        roots.roots[0].active = true;
        assert!(roots.validate().is_err());
    }
}

fn request_pem(names: Vec<SanType>) -> String {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.subject_alt_names = names;
    let key = KeyPair::generate().unwrap();
    params.serialize_request(&key).unwrap().pem().unwrap()
}

fn uri(text: impl Into<String>) -> SanType {
    SanType::URI(text.into().try_into().unwrap())
}

#[test]
fn store_131_requests_are_checked() {
    let clock = Arc::new(TestClock::new());
    let ca = authority(&clock);
    let td = ca.trust_domain();
    let web = format!("spiffe://{td}/ns/default/dc/dc1/svc/web");
    let refused = |names, part: &str| {
        let error = ca.sign_request(&request_pem(names)).unwrap_err();
        assert!(matches!(error, CaError::Request { .. }), "{error}");
        assert!(error.to_string().contains(part), "{error}");
    };
    refused(vec![], "0 URIs");
    refused(vec![uri(&web), uri(format!("{web}2"))], "2 URIs");
    refused(
        vec![uri(&web), SanType::Rfc822Name("a@b.c".try_into().unwrap())],
        "e-mail",
    );
    refused(
        vec![uri("spiffe://other.consul/ns/default/dc/dc1/svc/web")],
        "trust domain",
    );
    refused(
        vec![uri("spiffe://other.consul/agent/server/dc/dc1")],
        "trust domain",
    );
    refused(
        vec![uri(format!("spiffe://{td}/ns/default/dc/dc2/svc/web"))],
        "dc2",
    );
    refused(vec![uri(format!("spiffe://{td}"))], "authority");
    refused(vec![uri(format!("spiffe://{td}/some/thing"))], "none of");
    assert!(ca.sign_request("nonsense").is_err());

    let names = vec![
        uri(&web),
        SanType::DnsName("web.local".try_into().unwrap()),
        SanType::IpAddress("10.0.0.1".parse().unwrap()),
    ];
    let signed = ca.sign_request(&request_pem(names)).unwrap();
    assert_eq!(signed.identity.to_string(), web);
    let root = ca.roots().active().unwrap().clone();
    assert!(verifies(&signed.cert_pem, &root, clock.now()));
    let upper = web.replace(td.as_str(), &td.to_uppercase());
    assert!(ca.sign_request(&request_pem(vec![uri(upper)])).is_ok());

    // An agent may not know the trust domain yet: its identity is moved into ours.
    let agent = "spiffe://unknown.consul/agent/client/dc/dc1/id/n1";
    let signed = ca.sign_request(&request_pem(vec![uri(agent)])).unwrap();
    assert_eq!(
        signed.identity.to_string(),
        format!("spiffe://{td}/agent/client/dc/dc1/id/n1")
    );
}

#[test]
fn store_131_a_forged_request_is_refused() {
    let clock = Arc::new(TestClock::new());
    let ca = authority(&clock);
    let web = format!("spiffe://{}/ns/default/dc/dc1/svc/web", ca.trust_domain());
    let der = pem_to_der(&request_pem(vec![uri(&web)]), "CERTIFICATE REQUEST").unwrap();
    let sign = |der: &[u8]| {
        let text = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, der);
        ca.sign_request(&format!(
            "-----BEGIN CERTIFICATE REQUEST-----\n{text}\n-----END CERTIFICATE REQUEST-----\n"
        ))
    };
    assert!(sign(&der).is_ok());
    let (_, parsed) = X509CertificationRequest::from_der(&der).unwrap();
    let signed_part = parsed.certification_request_info.raw;
    let start = der
        .windows(signed_part.len())
        .position(|window| window == signed_part);
    let signed = start.unwrap()..start.unwrap() + signed_part.len();
    for place in 0..der.len() {
        let mut forged = der.clone();
        forged[place] ^= 1;
        let result = sign(&forged);
        assert!(result.is_err() || !signed.contains(&place), "byte {place}");
        assert!(sign(&der[..place]).is_err());
    }
    let name = der.windows(3).position(|window| window == b"web").unwrap();
    let mut forged = der;
    forged[name] = b'x';
    let error = sign(&forged).unwrap_err();
    assert!(error.to_string().contains("signature"), "{error}");
}

#[test]
fn store_132_a_bad_configuration_changes_nothing() {
    let clock = Arc::new(TestClock::new());
    let ca = authority(&clock);
    let short = CaConfig {
        leaf_cert_ttl: HOUR / 2,
        ..CaConfig::default()
    };
    let before = ca.export_state();
    assert!(matches!(
        ca.update_config(short.clone()),
        Err(CaError::Config(_))
    ));
    assert_eq!(ca.export_state(), before);
    assert!(Authority::bootstrap(clock, "dc1", short).is_err());
}

#[test]
fn fc_076_an_expired_root_signs_nothing_until_rotated() {
    let clock = Arc::new(TestClock::new());
    let ca = authority(&clock);
    clock.advance(87601 * HOUR);
    let request = LeafRequest::for_service("web");
    let error = ca.issue(&request).unwrap_err();
    assert!(matches!(error, CaError::RootExpired { .. }));
    assert!(error.to_string().contains("rotate"), "{error}");
    // No signature of an expired root is worth having, so that rotating needs no force.
    let roots = ca.rotate().unwrap();
    assert!(roots.active().unwrap().intermediate_certs.is_empty());
    let leaf = ca.issue(&request).unwrap();
    assert!(verifies(
        &leaf.cert_pem,
        roots.active().unwrap(),
        clock.now()
    ));
    assert_eq!(
        ca.prune().unwrap().roots.len(),
        1,
        "the expired root is forgotten"
    );
}

#[test]
fn a_configuration_with_the_same_root_rotates_nothing() {
    let clock = Arc::new(TestClock::new());
    let ca = authority(&clock);
    let roots = ca.roots();
    let config = CaConfig {
        leaf_cert_ttl: 2 * HOUR,
        csr_max_per_second: 1.0,
        ..CaConfig::default()
    };
    assert_eq!(
        ca.update_config(config.clone()).unwrap(),
        CaChange::ConfigOnly
    );
    assert_eq!(ca.roots(), roots);
    assert_eq!(ca.config(), config);
    let leaf = ca.issue(&LeafRequest::for_service("web")).unwrap();
    assert_eq!(leaf.valid_before, clock.now() + 2 * HOUR);
}

#[test]
fn another_kind_of_key_rotates() {
    let clock = Arc::new(TestClock::new());
    let ca = authority(&clock);
    let old = ca.roots().active().unwrap().clone();
    let config = CaConfig {
        private_key_bits: 384,
        ..CaConfig::default()
    };
    let CaChange::Rotated(roots) = ca.update_config(config).unwrap() else {
        panic!("rotated");
    };
    assert_eq!(roots.active().unwrap().private_key_bits, 384);
    let leaf = ca.issue(&LeafRequest::for_service("web")).unwrap();
    assert!(verifies(&leaf.cert_pem, &old, clock.now()));
    assert!(verifies(
        &leaf.cert_pem,
        roots.active().unwrap(),
        clock.now()
    ));
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

#[test]
fn an_own_root_is_used_and_bridged() {
    let clock = Arc::new(TestClock::new());
    let ca = authority(&clock);
    let generated = ca.roots().active().unwrap().clone();
    let own = own_root(&clock, None);
    let CaChange::Rotated(roots) = ca.update_config(own_config(&own)).unwrap() else {
        panic!("rotated");
    };
    let active = roots.active().unwrap();
    assert_eq!(active.root_cert, own.0);
    let leaf = ca.issue(&LeafRequest::for_service("web")).unwrap();
    assert!(verifies(&leaf.cert_pem, active, clock.now()));
    assert!(verifies(&leaf.cert_pem, &generated, clock.now()));

    assert_eq!(
        ca.update_config(own_config(&own)).unwrap(),
        CaChange::ConfigOnly
    );
    assert!(matches!(ca.rotate(), Err(CaError::OwnRoot { .. })));
    // Back to a generated root, then to the own one, which is still known as an old root.
    ca.update_config(CaConfig::default()).unwrap();
    ca.update_config(own_config(&own)).unwrap();
    let roots = ca.roots();
    roots.validate().unwrap();
    assert_eq!(roots.active_root_id, active.id);
}

#[test]
fn an_own_root_that_does_not_fit_is_refused() {
    let clock = Arc::new(TestClock::new());
    let (one, two) = (own_root(&clock, None), own_root(&clock, None));
    let refused = |config: CaConfig, part: &str| {
        let error = Authority::bootstrap(clock.clone(), "dc1", config).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    };
    refused(own_config(&(one.0.clone(), two.1)), "another key");
    let leaf = authority(&clock)
        .issue(&LeafRequest::for_service("web"))
        .unwrap();
    refused(own_config(&(leaf.cert_pem, leaf.private_key)), "authority");
    refused(own_config(&("text".into(), one.1.clone())), "PEM");
    refused(
        own_config(&(one.0.clone(), PrivateKey::from_pem("text"))),
        "PEM",
    );
    clock.advance(1001 * HOUR);
    refused(own_config(&one), "expired");
}

#[test]
fn a_root_that_may_not_sign_authorities_needs_force_to_be_replaced() {
    let clock = Arc::new(TestClock::new());
    let ca = authority_with(&clock, own_config(&own_root(&clock, Some(0))));
    let before = ca.export_state();
    assert!(matches!(
        ca.update_config(CaConfig::default()),
        Err(CaError::CrossSigning { .. })
    ));
    assert_eq!(ca.roots().roots.len(), 1);
    assert_eq!(ca.export_state(), before);
    let forced = CaConfig {
        force_without_cross_signing: true,
        ..CaConfig::default()
    };
    let CaChange::Rotated(roots) = ca.update_config(forced).unwrap() else {
        panic!("rotated");
    };
    assert!(roots.active().unwrap().intermediate_certs.is_empty());
}

#[test]
fn an_ec_key_in_sec_1_form_is_read() {
    let clock = Arc::new(TestClock::new());
    let (_, key) = own_root(&clock, None);
    let der = pem_to_der(key.expose_pem(), "PRIVATE KEY").unwrap();
    // The SEC 1 form is the content of the last octet string: after version, algorithm and four bytes of header.
    let sec1 = &der[3 + 3 + 21 + 2..];
    assert_eq!(sec1[0], 0x30);
    let text = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, sec1);
    let pem = format!("-----BEGIN EC PRIVATE KEY-----\n{text}\n-----END EC PRIVATE KEY-----\n");
    let config = |key: &str| CaConfig {
        private_key: Some(PrivateKey::from_pem(key)),
        ..CaConfig::default()
    };
    let from_sec1 = authority_with(&clock, config(&pem));
    let from_pkcs8 = authority_with(&clock, config(key.expose_pem()));
    assert_eq!(
        from_sec1.active_signing_key_id(),
        from_pkcs8.active_signing_key_id()
    );
}

#[test]
fn an_own_rsa_root_signs_and_is_bridged() {
    let clock = Arc::new(TestClock::new());
    let own = (
        include_str!("testdata/rsa_root.pem").to_owned(),
        PrivateKey::from_pem(include_str!("testdata/rsa_root_for_tests_only.key")),
    );
    let ca = authority_with(&clock, own_config(&own));
    let root = ca.roots().active().unwrap().clone();
    assert_eq!(
        (root.private_key_type.as_str(), root.private_key_bits),
        ("rsa", 2048)
    );
    for ca in [&ca, &restart(&ca, &clock)] {
        let leaf = ca.issue(&LeafRequest::for_service("web")).unwrap();
        assert!(verifies(&leaf.cert_pem, &root, clock.now()));
    }
    ca.update_config(CaConfig::default()).unwrap();
    let leaf = ca.issue(&LeafRequest::for_service("web")).unwrap();
    assert!(verifies(&leaf.cert_pem, &root, clock.now()));
}

#[test]
fn an_own_key_without_certificate_gets_one_and_may_be_renewed() {
    let clock = Arc::new(TestClock::new());
    let config = CaConfig {
        private_key: Some(own_root(&clock, None).1),
        ..CaConfig::default()
    };
    let ca = authority_with(&clock, config);
    let old = ca.roots().active().unwrap().clone();
    let leaf = ca.issue(&LeafRequest::for_service("web")).unwrap();
    clock.advance(HOUR);
    let roots = ca.rotate().unwrap();
    roots.validate().unwrap();
    let new = roots.active().unwrap();
    assert_eq!(new.signing_key_id, old.signing_key_id);
    assert!(new.not_after > old.not_after && new.intermediate_certs.is_empty());
    assert!(
        verifies(&leaf.cert_pem, new, clock.now()),
        "the same key: the same trust"
    );
}

fn restart(ca: &Authority, clock: &Arc<TestClock>) -> Authority {
    let bytes = ca.export_state().to_bytes().unwrap();
    Authority::from_state(clock.clone(), CaState::from_bytes(&bytes).unwrap()).unwrap()
}

#[test]
fn r2_state_survives_a_restart() {
    let clock = Arc::new(TestClock::new());
    let ca = authority(&clock);
    let old_root = ca.roots().active().unwrap().clone();
    let before = ca.issue(&LeafRequest::for_service("web")).unwrap();
    ca.rotate().unwrap();
    let again = restart(&ca, &clock);
    assert_eq!(again.roots(), ca.roots());
    assert_eq!(again.config(), ca.config());
    assert_eq!(again.trust_domain(), ca.trust_domain());
    let after = again.issue(&LeafRequest::for_service("web")).unwrap();
    assert!(verifies(&after.cert_pem, &old_root, clock.now()));
    assert!(before.create_index < after.create_index);
    assert!(
        restart(&again, &clock)
            .issue(&LeafRequest::for_service("web"))
            .unwrap()
            .create_index
            > after.create_index
    );

    clock.advance(145 * HOUR);
    assert_eq!(
        restart(&again, &clock)
            .prune()
            .map(|roots: CaRoots| roots.roots.len()),
        Some(1)
    );

    let own = authority_with(&clock, own_config(&own_root(&clock, None)));
    assert_eq!(restart(&own, &clock).config(), own.config());
}

#[test]
fn r2_state_that_contradicts_itself_is_refused() {
    let clock = Arc::new(TestClock::new());
    let ca = authority(&clock);
    ca.rotate().unwrap();
    let json: serde_json::Value =
        serde_json::from_slice(&ca.export_state().to_bytes().unwrap()).unwrap();
    let refused = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut changed = json.clone();
        change(&mut changed);
        let state = CaState::from_bytes(changed.to_string().as_bytes());
        let result = state.and_then(|state| Authority::from_state(clock.clone(), state));
        assert!(result.is_err());
    };
    refused(&|json| json["Version"] = 2.into());
    refused(&|json| json["Roots"] = serde_json::json!([]));
    refused(&|json| json["Roots"][0]["Root"]["Active"] = true.into());
    refused(&|json| json["Roots"][1]["Root"]["ID"] = "aa".into());
    refused(&|json| json["ActiveKey"] = "no key".into());
    refused(&|json| {
        let other = authority(&clock).export_state();
        json["ActiveKey"] = other.active_key.expose_pem().into();
    });
}

#[test]
fn c1_no_private_key_is_shown() {
    let clock = Arc::new(TestClock::new());
    let own = own_root(&clock, None);
    let ca = authority_with(&clock, own_config(&own));
    let leaf = ca.issue(&LeafRequest::for_service("web")).unwrap();
    let state = ca.export_state();
    // The secret number of a P-256 key, in the forms that a careless text could have: PEM lines, numbers, hex digits.
    // (The third PEM line is the public half.)
    let mut secrets = Vec::new();
    for key in [&own.1, &leaf.private_key] {
        let body = key.expose_pem().lines().skip(1).take(2);
        secrets.extend(body.map(str::to_owned));
        let der = pem_to_der(key.expose_pem(), "PRIVATE KEY").unwrap();
        let number = &der[36..68];
        secrets.push(format!("{number:?}").trim_matches(['[', ']']).to_owned());
        secrets.push(number.iter().map(|byte| format!("{byte:02x}")).collect());
    }
    let shown = [
        format!("{ca:?}"),
        format!("{:?}", ca.config()),
        format!("{state:?}"),
        format!("{leaf:#?}"),
        format!("{:?}", ca.roots()),
        serde_json::to_string(&leaf).unwrap(),
        serde_json::to_string(&ca.config()).unwrap(),
        serde_json::to_string(&ca.roots()).unwrap(),
        format!("{:?}", CaState::from_bytes(b"{\"ActiveKey\": \"secret\"}")),
    ];
    for text in &shown {
        for secret in &secrets {
            assert!(!text.contains(secret.as_str()), "{text}");
        }
    }
    let saved = String::from_utf8(state.to_bytes().unwrap()).unwrap();
    assert!(saved.contains(&secrets[0]) && saved.contains(&secrets[1]));
}
