//! Leaves: identities, names, serial numbers.

use super::*;

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
