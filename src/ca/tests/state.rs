//! State kept over a restart, and what is shown of keys.

use super::*;

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
