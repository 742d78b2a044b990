//! A root that the operator brings.

use super::*;

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
