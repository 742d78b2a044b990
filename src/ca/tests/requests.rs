//! Certificate signing requests that others bring.

use super::*;

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
