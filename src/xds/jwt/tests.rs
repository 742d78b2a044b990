use serde_json::{Value, json};

use crate::snapshot::Part;
use crate::xds::fixtures::*;
use crate::xds::{Generated, ResourceType};

const PUBLIC: &str = "public_listener:0.0.0.0:21000";

/// A service whose callers need tokens of these providers.
fn secured(providers: &[Value]) -> Fixture {
    let named: Vec<_> = providers
        .iter()
        .map(|p| json!({"Name": p["Name"]}))
        .collect();
    Fixture::web()
        .config(json!({"protocol": "http"}))
        .intentions(&[("api", json!("allow"))])
        .jwt_providers(providers)
        .jwt(&json!({"Providers": named}))
}

fn http_filter(generated: &Generated, name: &str) -> Option<Value> {
    let listener = shown(generated, ResourceType::Listener, PUBLIC);
    let filters = last_filter(&listener)["httpFilters"].as_array().unwrap();
    let found = filters.iter().find(|filter| filter["name"] == name);
    found.map(|filter| filter["typedConfig"].clone())
}

fn verifier(generated: &Generated) -> Value {
    http_filter(generated, super::FILTER).unwrap()
}

/// The one policy's only principal.
fn principal(generated: &Generated) -> Value {
    let rules = http_filter(generated, "envoy.filters.http.rbac").unwrap();
    rules["rules"]["policies"]["consul-intentions-layer4"]["principals"][0].clone()
}

fn metadata(path: &[&str], value: Value) -> Value {
    let path: Vec<_> = path.iter().map(|key| json!({"key": key})).collect();
    json!({"sourcedMetadata": {"metadataMatcher": {"filter": super::FILTER, "path": path, "value": value}}})
}

fn exact(text: &str) -> Value {
    json!({"stringMatch": {"exact": text}})
}

#[test]
fn xds_4_4_tokens_are_verified_in_front_of_the_rules() {
    let generated = secured(&[local_provider("okta")]).generate();
    assert_eq!(generated.problems, []);
    assert_consistent(&generated);
    let listener = shown(&generated, ResourceType::Listener, PUBLIC);
    let filters = last_filter(&listener)["httpFilters"].as_array().unwrap();
    let names: Vec<_> = filters
        .iter()
        .map(|f| f["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "envoy.filters.http.jwt_authn",
            "envoy.filters.http.rbac",
            "envoy.filters.http.header_to_metadata",
            "envoy.filters.http.router"
        ]
    );
    let mut verifier = verifier(&generated);
    let keys = verifier["providers"]["okta"]["localJwks"]["inlineString"].take();
    assert!(keys.as_str().unwrap().contains("P-256"));
    assert_eq!(
        verifier,
        json!({
            "@type": "type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication",
            "providers": {"okta": {
                "issuer": "okta-issuer", "localJwks": {"inlineString": null},
                "payloadInMetadata": "jwt_payload_okta", "clockSkewSeconds": 30,
            }},
            "rules": [{"match": {"prefix": "/"}, "requires": {"requiresAny": {"requirements": [
                {"providerName": "okta"}, {"allowMissingOrFailed": {}},
            ]}}}],
        })
    );
    let ids = principal(&generated)["andIds"]["ids"].clone();
    assert!(ids[0]["authenticated"].is_object(), "{ids}");
    assert_eq!(
        ids[1],
        metadata(&["jwt_payload_okta", "iss"], exact("okta-issuer"))
    );
}

#[test]
fn xds_4_4_without_tokens_nothing_is_verified() {
    let unused = Fixture::web()
        .config(json!({"protocol": "http"}))
        .intentions(&[("api", json!("allow"))])
        .jwt_providers(&[local_provider("okta")]);
    assert!(http_filter(&unused.generate(), super::FILTER).is_none());
    // Connections carry no tokens.
    let tcp = secured(&[local_provider("okta")]).config(json!({"protocol": "tcp"}));
    let generated = tcp.generate();
    assert_eq!(generated.problems.len(), 1, "{:?}", generated.problems);
    let listener = shown(&generated, ResourceType::Listener, PUBLIC);
    assert!(!listener.to_string().contains("jwt"));
}

#[test]
fn xds_4_4_where_tokens_are_and_where_they_go() {
    let mut provider = local_provider("okta");
    merge(
        &mut provider,
        json!({
            "Audiences": ["a", "b"], "ClockSkewSeconds": 7, "CacheConfig": {"Size": 100},
            "Forwarding": {"HeaderName": "x-token", "PadForwardPayloadHeader": true},
            "Locations": [
                {"Header": {"Name": "x-jwt", "ValuePrefix": "Token ", "Forward": true}},
                {"QueryParam": {"Name": "jwt"}}, {"Cookie": {"Name": "session"}}, {"Header": {"Name": "y"}},
            ],
        }),
    );
    let generated = secured(&[provider]).generate();
    assert_eq!(generated.problems, []);
    let mut built = verifier(&generated)["providers"]["okta"].clone();
    built["localJwks"].take();
    assert_eq!(
        built,
        json!({
            "issuer": "okta-issuer", "localJwks": null, "payloadInMetadata": "jwt_payload_okta",
            "audiences": ["a", "b"], "clockSkewSeconds": 7, "jwtCacheConfig": {"jwtCacheSize": 100},
            "forward": true, "forwardPayloadHeader": "x-token", "padForwardPayloadHeader": true,
            "fromHeaders": [{"name": "x-jwt", "valuePrefix": "Token "}, {"name": "y"}],
            "fromParams": ["jwt"], "fromCookies": ["session"],
        })
    );
}

#[test]
fn xds_4_4_claims_and_several_providers() {
    let mut fixture = secured(&[local_provider("okta"), local_provider("auth0")]);
    fixture = fixture.jwt(&json!({"Providers": [
        {"Name": "Okta", "VerifyClaims": [{"Path": ["perms", "role"], "Value": "admin"}]}, {"Name": "auth0"},
    ]}));
    let generated = fixture.generate();
    assert_eq!(generated.problems, []);
    let requires = verifier(&generated)["rules"][0]["requires"].clone();
    let all = requires["requiresAll"]["requirements"].as_array().unwrap();
    assert_eq!(all.len(), 2);
    assert_eq!(
        principal(&generated)["andIds"]["ids"][1],
        json!({"orIds": {"ids": [
            {"andIds": {"ids": [
                metadata(&["jwt_payload_okta", "iss"], exact("okta-issuer")),
                metadata(&["jwt_payload_okta", "perms", "role"], exact("admin")),
            ]}},
            metadata(&["jwt_payload_auth0", "iss"], exact("auth0-issuer")),
        ]}})
    );
    // Without an issuer any valid token will do.
    let mut provider = local_provider("okta");
    provider["Issuer"] = "".into();
    assert_eq!(
        principal(&secured(&[provider]).generate())["andIds"]["ids"][1],
        metadata(&["jwt_payload_okta"], json!({"presentMatch": true}))
    );
}

fn remote_provider(name: &str, uri: &str, cluster: Value) -> Value {
    json!({
        "Name": name, "Issuer": format!("{name}-issuer"),
        "JSONWebKeySet": {"Remote": {"URI": uri, "JWKSCluster": cluster}},
    })
}

#[test]
fn xds_4_2_2_keys_are_fetched_from_a_cluster() {
    let mut provider = remote_provider(
        "okta",
        "https://keys.example.com/jwks",
        json!({"ConnectTimeout": "3s", "TLSCertificates": {"TrustedCA": {"InlineString": pem("CERTIFICATE", "CA")}}}),
    );
    merge(
        &mut provider["JSONWebKeySet"]["Remote"],
        json!({
            "RequestTimeoutMs": 1500, "CacheDuration": "30m", "FetchAsynchronously": true,
            "RetryPolicy": {"NumRetries": 2, "RetryPolicyBackOff": {"BaseInterval": "1s", "MaxInterval": "5s"}},
        }),
    );
    let plain = remote_provider(
        "plain",
        "http://10.1.2.3:8080/jwks",
        json!({"DiscoveryType": "STATIC"}),
    );
    let generated = secured(&[
        provider,
        plain,
        remote_provider("v6", "http://[::1]/", json!({})),
    ])
    .generate();
    assert_eq!(generated.problems, []);
    assert_consistent(&generated);
    assert_eq!(
        verifier(&generated)["providers"]["okta"]["remoteJwks"],
        json!({
            "httpUri": {"uri": "https://keys.example.com/jwks", "cluster": "jwks_cluster_okta", "timeout": "1.500s"},
            "cacheDuration": "1800s", "asyncFetch": {"fastListener": true},
            "retryPolicy": {"numRetries": 2, "retryBackOff": {"baseInterval": "1s", "maxInterval": "5s"}},
        })
    );
    let mut cluster = shown(&generated, ResourceType::Cluster, "jwks_cluster_okta");
    let tls = cluster["transportSocket"]["typedConfig"].take();
    let at = |address: &str, port: u16| json!([{"lbEndpoints": [{"endpoint": {"address": {"socketAddress": {"address": address, "portValue": port}}}}]}]);
    assert_eq!(cluster["type"], "STRICT_DNS");
    assert_eq!(cluster["connectTimeout"], "3s");
    assert_eq!(
        cluster["loadAssignment"]["endpoints"],
        at("keys.example.com", 443)
    );
    assert_eq!(tls["sni"], "keys.example.com");
    assert_eq!(
        tls["commonTlsContext"]["validationContext"],
        json!({
            "trustedCa": {"inlineString": pem("CERTIFICATE", "CA")},
            "matchTypedSubjectAltNames": [{"sanType": "DNS", "matcher": {"exact": "keys.example.com"}}],
        })
    );
    let cluster = shown(&generated, ResourceType::Cluster, "jwks_cluster_plain");
    assert_eq!(cluster["loadAssignment"]["endpoints"], at("10.1.2.3", 8080));
    assert_eq!(cluster["type"].as_str().unwrap_or("STATIC"), "STATIC");
    assert!(cluster.get("transportSocket").is_none());
    let cluster = shown(&generated, ResourceType::Cluster, "jwks_cluster_v6");
    assert_eq!(cluster["loadAssignment"]["endpoints"], at("::1", 80));
    assert_eq!(
        verifier(&generated)["providers"]["v6"]["remoteJwks"],
        json!({
            "httpUri": {"uri": "http://[::1]/", "cluster": "jwks_cluster_v6", "timeout": "5s"}, "asyncFetch": {},
        })
    );
}

#[test]
fn xds_4_2_2_an_unchecked_server_of_keys_is_told() {
    let provider = remote_provider("okta", "https://keys.example.com/", json!({}));
    let generated = secured(&[provider]).generate();
    assert_eq!(generated.problems.len(), 1);
    let message = &generated.problems[0].message;
    assert!(
        message.contains("okta") && message.contains("TrustedCA"),
        "{message}"
    );
    assert!(http_filter(&generated, super::FILTER).is_some());
}

#[test]
fn x3_a_broken_provider_denies_and_leaves_the_others() {
    let good = local_provider("good");
    let broken = |change: Value| {
        let mut provider = local_provider("bad");
        merge(&mut provider, change);
        provider
    };
    let not_keys = |text: &str| {
        use base64::Engine as _;
        json!({"JSONWebKeySet": {"Local": {"JWKS": base64::engine::general_purpose::STANDARD.encode(text)}}})
    };
    let remote = |uri: &str, cluster: Value| json!({"JSONWebKeySet": remote_provider("bad", uri, cluster)["JSONWebKeySet"]});
    let instance =
        json!({"TLSCertificates": {"CaCertificateProviderInstance": {"InstanceName": "x"}}});
    for bad in [
        json!({"Name": "other"}),
        broken(json!({"JSONWebKeySet": null})),
        broken(json!({"JSONWebKeySet": {"Local": {"JWKS": "%"}}})),
        broken(json!({"JSONWebKeySet": {"Local": {}}})),
        broken(not_keys("{}")),
        broken(not_keys("keys")),
        broken(json!({"ClockSkewSeconds": -1})),
        broken(json!({"Locations": [{"Header": {"Name": "x y"}}]})),
        broken(json!({"Forwarding": {"HeaderName": ""}})),
        broken(remote("ftp://x/", json!({}))),
        broken(remote("http://:80/", json!({}))),
        broken(remote("http://x:0/", json!({}))),
        broken(remote("http://x/", json!({"DiscoveryType": "STATIC"}))),
        broken(remote("http://x/", json!({"DiscoveryType": "EDS"}))),
        broken(remote("https://x/", instance)),
        broken(remote("https://x/", json!({"TLSCertificates": {}}))),
    ] {
        let only_bad = json!({"Providers": [{"Name": "bad"}]});
        let fixture = secured(&[good.clone(), bad.clone()]);
        let generated = fixture.clone().jwt(&only_bad).generate();
        assert_eq!(
            generated.problems.len(),
            1,
            "{bad} {:?}",
            generated.problems
        );
        assert!(
            generated.problems[0].message.contains("denies everything"),
            "{:?}",
            generated.problems
        );
        assert!(http_filter(&generated, super::FILTER).is_none());
        assert_eq!(principal(&generated), Value::Null, "{bad}");

        // A token of the other provider still counts.
        let either = json!({"Providers": [{"Name": "bad"}, {"Name": "good"}]});
        let generated = fixture.jwt(&either).generate();
        assert_eq!(generated.problems.len(), 1, "{:?}", generated.problems);
        assert_eq!(
            principal(&generated)["andIds"]["ids"][1],
            metadata(&["jwt_payload_good", "iss"], exact("good-issuer"))
        );
    }
    let none = secured(&[good]).jwt(&json!({"Providers": []})).generate();
    assert_eq!((principal(&none), none.problems.len()), (Value::Null, 1));
}

#[test]
fn xds_4_4_a_provider_that_changes_changes_the_listener() {
    let generator = crate::xds::Generator::new();
    let fixture = secured(&[local_provider("okta")]);
    let first = generator.resources(&fixture.snapshot(), None);
    let mut changed = local_provider("okta");
    changed["Issuer"] = "new".into();
    let mut fixture = fixture.jwt_providers(&[changed]);
    let second = generator.resources(&fixture.snapshot(), Some(&first));
    assert_eq!(
        principal(&second)["andIds"]["ids"][1],
        metadata(&["jwt_payload_okta", "iss"], exact("new"))
    );
    fixture.jwt_providers = Part::new(Vec::new());
    let third = generator.resources(&fixture.snapshot(), Some(&second));
    assert_eq!((principal(&third), third.problems.len()), (Value::Null, 1));
}
