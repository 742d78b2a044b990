//! Changes of the configuration.

use super::*;

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
