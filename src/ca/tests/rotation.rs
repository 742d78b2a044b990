//! Roots: what is told of them, rotation, pruning.

use super::*;

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
