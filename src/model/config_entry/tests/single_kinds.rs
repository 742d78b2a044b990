//! Rules of single kinds, other than intentions.

use serde_json::{Value as Json, json};

use super::{bad, good};
use crate::model::config_entry::ConfigEntry;
use crate::model::validate::Validate;

#[test]
fn fc_059_invalid_regular_expressions() {
    for pattern in ["*.foo.bar", "a(b", "(?=x)", "\\"] {
        bad(
            json!({"Kind": "service-router", "Name": "web", "Routes": [{"Match": {"HTTP": {"PathRegex": pattern}}, "Destination": {"Service": "a"}}]}),
            &[
                "Routes[0].Match.HTTP.PathRegex: ",
                "is not a valid regular expression",
            ],
        );
        bad(
            json!({"Kind": "service-router", "Name": "web", "Routes": [{"Match": {"HTTP": {"Header": [{"Name": "x", "Regex": pattern}]}}}]}),
            &["Header[0].Regex: "],
        );
        bad(
            json!({"Kind": "service-router", "Name": "web", "Routes": [{"Match": {"HTTP": {"QueryParam": [{"Name": "x", "Regex": pattern}]}}}]}),
            &["QueryParam[0].Regex: "],
        );
        bad(
            json!({"Kind": "service-intentions", "Name": "web", "Sources": [{"Name": "a", "Permissions": [{"Action": "allow", "HTTP": {"PathRegex": pattern}}]}]}),
            &["Sources[0].Permissions[0].HTTP.PathRegex: "],
        );
        bad(
            json!({"Kind": "service-intentions", "Name": "web", "Sources": [{"Name": "a", "Permissions": [{"Action": "allow", "HTTP": {"Header": [{"Name": "x", "Regex": pattern}]}}]}]}),
            &["HTTP.Header[0].Regex: "],
        );
        bad(
            json!({"Kind": "service-defaults", "Name": "web", "RateLimits": {"InstanceLevel": {"Routes": [{"PathRegex": pattern}]}}}),
            &["RateLimits.InstanceLevel.Routes[0].PathRegex: "],
        );
    }
}

#[test]
fn fc_061_splitter_sum() {
    let splits = |weights: &[f64]| {
        let splits: Vec<_> = weights
            .iter()
            .enumerate()
            .map(|(i, w)| json!({"Weight": w, "Service": format!("s{i}")}))
            .collect();
        json!({"Kind": "service-splitter", "Name": "web", "Splits": splits})
    };
    for weights in [
        &[50.0, 50.0][..],
        &[33.33, 33.33, 33.34],
        &[99.99, 0.01],
        &[99.999, 0.001],
        &[100.0],
        &[100.0, 0.0],
    ] {
        good(splits(weights));
    }
    for weights in [
        &[50.0][..],
        &[33.33, 33.33, 33.33],
        &[100.01],
        &[-10.0, 110.0],
        &[],
        &[1e300, -1e300],
    ] {
        bad(splits(weights), &["Splits"]);
    }
    bad(
        splits(&[-10.0, 110.0]),
        &["Splits[0].Weight: a weight must not be negative"],
    );
    bad(
        splits(&[33.33, 33.33, 33.33]),
        &["add up to 99.99, not to 100"],
    );
    bad(
        json!({"Kind": "service-splitter", "Name": "web", "Splits": [{"Weight": 50}, {"Weight": 50, "Service": "WEB"}]}),
        &["leads to the same place as split 0"],
    );
}

#[test]
fn store_135_splits() {
    let split = |weights: [f64; 2]| json!({"Kind": "service-splitter", "Name": "web", "Splits": [{"Weight": weights[0], "Service": "a"}, {"Weight": weights[1], "Service": "b"}]});
    good(split([33.33, 66.67]));
    bad(split([50.0, 49.0]), &["add up to 99.00"]);
}

#[test]
fn store_137_resolver() {
    bad(
        json!({"Kind": "service-resolver", "Name": "web", "Redirect": {"Service": "a"}, "Failover": {"*": {"Service": "b"}}}),
        &["exclude each other"],
    );
    bad(
        json!({"Kind": "service-resolver", "Name": "web", "DefaultSubset": "v1"}),
        &["DefaultSubset: "],
    );
    bad(
        json!({"Kind": "service-resolver", "Name": "web", "Subsets": {"v1": {"Filter": "a =="}}}),
        &["Subsets.v1.Filter: "],
    );
    good(
        json!({"Kind": "service-resolver", "Name": "web", "Subsets": {"v1": {"Filter": "Service.Meta.version == v1"}}, "DefaultSubset": "v1"}),
    );
}

#[test]
fn store_138_proxy_defaults_name() {
    bad(
        json!({"Kind": "proxy-defaults", "Name": "x"}),
        &["the one name \"global\""],
    );
    assert_eq!(
        good(json!({"Kind": "proxy-defaults", "Name": ""})).name(),
        "global"
    );
    assert_eq!(
        good(json!({"Kind": "proxy-defaults"})).key().to_string(),
        "proxy-defaults/global"
    );
}

#[test]
fn store_139_service_defaults() {
    let destination =
        |d: Json| json!({"Kind": "service-defaults", "Name": "ext", "Destination": d});
    bad(
        json!({"Kind": "service-defaults", "Name": "*"}),
        &["Name: \"*\""],
    );
    bad(
        json!({"Kind": "service-defaults", "Name": "web", "Destination": {"Addresses": ["1.2.3.4"], "Port": 443}, "UpstreamConfig": {}}),
        &["exclude each other"],
    );
    bad(
        destination(json!({"Addresses": ["*.a.com"], "Port": 443})),
        &["Addresses[0]: ", "'*'"],
    );
    bad(
        destination(json!({"Addresses": ["a.com"], "Port": 0})),
        &["Port: "],
    );
    bad(
        destination(json!({"Addresses": ["a.com", "A.com"], "Port": 1})),
        &["Addresses[1]: ", "given twice"],
    );
    bad(
        destination(json!({"Addresses": [], "Port": 1})),
        &["at least one address"],
    );
    bad(
        destination(json!({"Addresses": ["a b"], "Port": 1})),
        &["neither an IP address nor a DNS name"],
    );
    good(destination(
        json!({"Addresses": ["a.com", "10.0.0.1", "::1"], "Port": 443}),
    ));
}

#[test]
fn store_3_2_upstream_config() {
    let upstreams =
        |u: Json| json!({"Kind": "service-defaults", "Name": "web", "UpstreamConfig": u});
    bad(
        upstreams(json!({"Overrides": [{}, {"Name": "*"}, {"Name": "a", "Namespace": "*"}]})),
        &[
            "Overrides[0].Name: ",
            "Overrides[1].Name: ",
            "Overrides[2].Namespace: ",
        ],
    );
    bad(
        upstreams(json!({"Defaults": {"Name": "a", "Namespace": "b", "Partition": "c"}})),
        &[
            "Defaults.Name: ",
            "Defaults.Namespace: ",
            "Defaults.Partition: ",
        ],
    );
    bad(
        upstreams(
            json!({"Defaults": {"Limits": {"MaxConnections": -1}, "PassiveHealthCheck": {"Interval": "-1s", "BaseEjectionTime": "-1s",
        "MaxEjectionPercent": 101, "EnforcingConsecutive5xx": 101}, "BalanceOutboundConnections": "x"}}),
        ),
        &[
            "Limits.MaxConnections: ",
            "PassiveHealthCheck.Interval: ",
            "BaseEjectionTime: ",
            "MaxEjectionPercent: ",
            "EnforcingConsecutive5xx: ",
            "BalanceOutboundConnections: ",
        ],
    );
    let ConfigEntry::ServiceDefaults(read) = good(upstreams(
        json!({"Defaults": {"Protocol": "HTTP", "ConnectTimeoutMs": -5, "Limits": {"MaxConnections": 0}}}),
    )) else {
        panic!("another kind");
    };
    let defaults = read.upstream_config.unwrap().defaults.unwrap();
    assert_eq!(
        (defaults.protocol.as_str(), defaults.connect_timeout_ms),
        ("http", 0)
    );
    assert_eq!(defaults.limits.unwrap().max_connections, Some(0));
}

#[test]
fn store_12_equal_after_normalization() {
    let upper = good(
        json!({"Kind": "Service-Defaults", "Name": "web", "Protocol": "HTTP", "Expose": {"Paths": [{"Path": "/m", "ListenerPort": 1, "LocalPathPort": 2}]}}),
    );
    let lower = good(
        json!({"Kind": "service-defaults", "Name": "web", "Protocol": "http", "Expose": {"Paths": [{"Path": "/m", "ListenerPort": 1, "LocalPathPort": 2, "Protocol": "HTTP"}]}}),
    );
    assert_eq!(upper, lower);
    let mut again = upper.clone();
    again.normalize();
    assert_eq!(again, upper);
}

#[test]
fn store_3_9_mesh() {
    let tls = |t: Json| json!({"Kind": "mesh", "TLS": {"Incoming": t}});
    bad(
        tls(json!({"TLSMinVersion": "TLSv1_3", "TLSMaxVersion": "TLSv1_2"})),
        &["TLS.Incoming.TLSMaxVersion: "],
    );
    bad(
        tls(json!({"TLSMinVersion": "1.2"})),
        &["TLS.Incoming.TLSMinVersion: "],
    );
    bad(
        tls(
            json!({"TLSMinVersion": "TLSv1_3", "CipherSuites": ["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"]}),
        ),
        &["CipherSuites: "],
    );
    bad(
        tls(json!({"CipherSuites": ["ROT13"]})),
        &["CipherSuites[0]: "],
    );
    good(tls(
        json!({"TLSMinVersion": "TLS_AUTO", "TLSMaxVersion": "TLSv1_2", "CipherSuites": ["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"]}),
    ));
    bad(
        json!({"Kind": "mesh", "HTTP": {"Incoming": {"RequestNormalization": {"PathWithEscapedSlashesAction": "x", "HeadersWithUnderscoresAction": "y"}}}}),
        &[
            "PathWithEscapedSlashesAction: ",
            "HeadersWithUnderscoresAction: ",
        ],
    );
    assert_eq!(good(json!({"Kind": "mesh"})).key().to_string(), "mesh/mesh");
}

#[test]
fn store_3_16_jwt_provider() {
    let provider =
        |set: Json| json!({"Kind": "jwt-provider", "Name": "okta", "JSONWebKeySet": set});
    bad(
        json!({"Kind": "jwt-provider", "Name": "okta"}),
        &["JSONWebKeySet: needs exactly one of Local, Remote"],
    );
    bad(
        provider(json!({"Local": {"JWKS": "e30=", "Filename": "x"}})),
        &["Local: needs exactly one"],
    );
    bad(
        provider(json!({"Local": {"JWKS": "{}"}})),
        &["Local.JWKS: is not base64"],
    );
    bad(
        provider(json!({"Remote": {"URI": "no uri"}})),
        &["Remote.URI: "],
    );
    bad(
        provider(
            json!({"Remote": {"URI": "https://a.b/c", "RetryPolicy": {"RetryPolicyBackOff": {"BaseInterval": "2s", "MaxInterval": "1s"}},
        "JWKSCluster": {"DiscoveryType": "x", "TLSCertificates": {}}}}),
        ),
        &[
            "MaxInterval: ",
            "DiscoveryType: ",
            "TLSCertificates: needs exactly one",
        ],
    );
    bad(
        provider(
            json!({"Remote": {"URI": "https://a.b/c", "JWKSCluster": {"TLSCertificates": {"TrustedCA": {"Filename": "x", "InlineString": "y"}}}}}),
        ),
        &["TrustedCA: needs exactly one"],
    );
    bad(
        json!({"Kind": "jwt-provider", "Name": "", "JSONWebKeySet": {"Local": {"JWKS": "e30="}}, "Locations": [{}, {"Header": {}}], "Forwarding": {}}),
        &[
            "Name: ",
            "Locations[0]: ",
            "Locations[1].Header.Name: ",
            "Forwarding.HeaderName: ",
        ],
    );
    let ConfigEntry::JwtProvider(read) =
        good(provider(json!({"Remote": {"URI": "https://a.b:8443/c"}})))
    else {
        panic!("another kind");
    };
    assert_eq!(read.clock_skew_seconds, 30);
}

#[test]
fn access_logs_and_extensions() {
    let logs = |l: Json| json!({"Kind": "proxy-defaults", "AccessLogs": l});
    bad(logs(json!({"Type": "syslog"})), &["AccessLogs.Type: "]);
    bad(logs(json!({"Type": "file"})), &["AccessLogs.Path: "]);
    bad(logs(json!({"Path": "/x"})), &["AccessLogs.Path: "]);
    bad(
        logs(json!({"JSONFormat": "{}", "TextFormat": "x"})),
        &["exclude each other"],
    );
    bad(
        logs(json!({"JSONFormat": "{"})),
        &["AccessLogs.JSONFormat: "],
    );
    good(logs(
        json!({"Enabled": true, "Type": "file", "Path": "/x", "JSONFormat": "{\"a\": \"%B%\"}"}),
    ));
    bad(
        json!({"Kind": "proxy-defaults", "EnvoyExtensions": [{"Arguments": {}}]}),
        &["EnvoyExtensions[0].Name: "],
    );
    bad(
        json!({"Kind": "proxy-defaults", "MutualTLSMode": "lax"}),
        &["MutualTLSMode: "],
    );
    bad(
        json!({"Kind": "proxy-defaults", "Config": {"protocol": {}}}),
        &["Config.protocol: "],
    );
}
