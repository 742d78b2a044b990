//! `jwt-provider` (store.md 3.16).

use std::collections::BTreeMap;

use crate::model::config_entry::EntryKind;
use crate::model::decode::{Place, Problems, record};
use crate::model::duration::GoDuration;
use crate::model::rules;
use crate::model::validate::Validate;

record! {
    /// A source of JSON web tokens.
    pub struct JwtProvider {
        /// Always `jwt-provider`.
        kind: String = "Kind" always,
        /// Name that intentions use.
        name: String = "Name" always,
        /// Keys that sign tokens.
        json_web_key_set: Option<Jwks> = "JSONWebKeySet",
        /// Issuer that tokens must name.
        issuer: String = "Issuer",
        /// Audiences, any of which tokens must name.
        audiences: Vec<String> = "Audiences",
        /// Where requests carry tokens.
        locations: Vec<JwtLocation> = "Locations",
        /// How tokens reach the application.
        forwarding: Option<JwtForwarding> = "Forwarding",
        /// Tolerance for expiry, in seconds; 30 unless given.
        clock_skew_seconds: i64 = "ClockSkewSeconds",
        /// Cache of verified tokens.
        cache_config: Option<JwtCacheConfig> = "CacheConfig",
        /// Free labels.
        meta: BTreeMap<String, String> = "Meta",
        /// Only `default`.
        namespace: String = "Namespace",
        /// Only `default`.
        partition: String = "Partition",
    }
    ignored ["CreateIndex", "ModifyIndex", "Hash"]
}

record! {
    /// Keys that sign tokens: exactly one of the two.
    pub struct Jwks {
        /// Given here.
        local: Option<LocalJwks> = "Local",
        /// Fetched.
        remote: Option<RemoteJwks> = "Remote",
    }
}

record! {
    /// Keys given here: exactly one of the two.
    pub struct LocalJwks {
        /// Base64 of the key set.
        jwks: String = "JWKS",
        /// File on Envoy's machine.
        filename: String = "Filename",
    }
}

record! {
    /// Keys to fetch.
    pub struct RemoteJwks {
        /// Address.
        uri: String = "URI",
        /// Time for the fetch, in milliseconds.
        request_timeout_ms: i64 = "RequestTimeoutMs",
        /// How long keys are kept.
        cache_duration: GoDuration = "CacheDuration",
        /// Don't wait for keys at start.
        fetch_asynchronously: bool = "FetchAsynchronously",
        /// Retries.
        retry_policy: Option<RetryPolicy> = "RetryPolicy",
        /// The cluster that keys are fetched from.
        jwks_cluster: Option<JwksCluster> = "JWKSCluster",
    }
}

record! {
    /// Retries of a fetch.
    pub struct RetryPolicy {
        /// How many.
        num_retries: i64 = "NumRetries",
        /// Waits between them.
        retry_policy_back_off: Option<RetryPolicyBackOff> = "RetryPolicyBackOff",
    }
}

record! {
    /// Waits between retries.
    pub struct RetryPolicyBackOff {
        /// First.
        base_interval: GoDuration = "BaseInterval",
        /// Longest.
        max_interval: GoDuration = "MaxInterval",
    }
}

record! {
    /// The cluster that keys are fetched from.
    pub struct JwksCluster {
        /// `STRICT_DNS` (default), `STATIC`, `LOGICAL_DNS`, `EDS` or `ORIGINAL_DST`.
        discovery_type: String = "DiscoveryType",
        /// Trust of its certificate.
        tls_certificates: Option<JwksTlsCertificates> = "TLSCertificates",
        /// Time to connect.
        connect_timeout: GoDuration = "ConnectTimeout",
    }
}

record! {
    /// Trust of a certificate: exactly one of the two.
    pub struct JwksTlsCertificates {
        /// A provider known to Envoy.
        ca_certificate_provider_instance: Option<JwksTlsProviderInstance> = "CaCertificateProviderInstance",
        /// Given roots.
        trusted_ca: Option<JwksTlsTrustedCa> = "TrustedCA",
    }
}

record! {
    /// A certificate provider known to Envoy.
    pub struct JwksTlsProviderInstance {
        /// Instance.
        instance_name: String = "InstanceName",
        /// Certificate.
        certificate_name: String = "CertificateName",
    }
}

record! {
    /// Given roots: exactly one of the four.
    pub struct JwksTlsTrustedCa {
        /// File on Envoy's machine.
        filename: String = "Filename",
        /// Environment variable of Envoy.
        environment_variable: String = "EnvironmentVariable",
        /// PEM text.
        inline_string: String = "InlineString",
        /// Base64 of PEM text.
        inline_bytes: String = "InlineBytes",
    }
}

record! {
    /// Where requests carry tokens: exactly one of the three.
    pub struct JwtLocation {
        /// In a header.
        header: Option<JwtLocationHeader> = "Header",
        /// In a query parameter.
        query_param: Option<JwtLocationQueryParam> = "QueryParam",
        /// In a cookie.
        cookie: Option<JwtLocationCookie> = "Cookie",
    }
}

record! {
    /// A token in a header.
    pub struct JwtLocationHeader {
        /// Header.
        name: String = "Name",
        /// What stands before the token.
        value_prefix: String = "ValuePrefix",
        /// Leave the header in the request.
        forward: bool = "Forward",
    }
}

record! {
    /// A token in a query parameter.
    pub struct JwtLocationQueryParam {
        /// Parameter.
        name: String = "Name",
    }
}

record! {
    /// A token in a cookie.
    pub struct JwtLocationCookie {
        /// Cookie.
        name: String = "Name",
    }
}

record! {
    /// How tokens reach the application.
    pub struct JwtForwarding {
        /// Header that gets the token's payload.
        header_name: String = "HeaderName",
        /// Pad its base64.
        pad_forward_payload_header: bool = "PadForwardPayloadHeader",
    }
}

record! {
    /// Cache of verified tokens.
    pub struct JwtCacheConfig {
        /// Entries.
        size: u32 = "Size",
    }
}

/// Members of a key that nobody but its owner may know (RFC 7518, 6.2.2, 6.3.2 and 6.4.1).
const SECRET_KEY_MEMBERS: [&str; 8] = ["d", "p", "q", "dp", "dq", "qi", "oth", "k"];

/// Whether a text is a JSON web key set with a secret or private key in it (decision C1).
#[must_use]
pub fn has_secret_web_keys(text: &str) -> bool {
    if !text.contains("\"keys\"") {
        return false;
    }
    let json = serde_json::from_str::<serde_json::Value>(text).unwrap_or_default();
    let keys = json.get("keys").and_then(serde_json::Value::as_array);
    keys.into_iter().flatten().any(|key| {
        SECRET_KEY_MEMBERS
            .iter()
            .any(|member| key.get(member).is_some())
    })
}

impl JwtProvider {
    /// The provider without secret and private keys, to be shown (decision C1).
    #[must_use]
    pub fn without_secrets(&self) -> Self {
        use base64::Engine as _;
        let mut shown = self.clone();
        let set = shown.json_web_key_set.as_mut();
        if let Some(local) = set.and_then(|set| set.local.as_mut()) {
            let text = base64::engine::general_purpose::STANDARD.decode(&local.jwks);
            let text = text.ok().and_then(|bytes| String::from_utf8(bytes).ok());
            if text.is_some_and(|text| has_secret_web_keys(&text)) {
                "<redacted>".clone_into(&mut local.jwks);
            }
        }
        shown
    }
}

/// Tolerance for expiry unless one is given, in seconds.
pub const DEFAULT_CLOCK_SKEW_SECONDS: i64 = 30;

const DISCOVERY_TYPES: [&str; 6] = [
    "",
    "STRICT_DNS",
    "STATIC",
    "LOGICAL_DNS",
    "EDS",
    "ORIGINAL_DST",
];

impl Validate for JwtProvider {
    /// store.md 3.16.
    fn validate(&self, at: &Place<'_>, problems: &mut Problems) {
        rules::mesh_name("provider name", &self.name, &at.key("Name"), problems);
        rules::meta(&self.meta, &at.key("Meta"), problems);
        rules::natural(
            self.clock_skew_seconds,
            &at.key("ClockSkewSeconds"),
            problems,
        );
        let keys = at.key("JSONWebKeySet");
        let set = self.json_web_key_set.as_ref();
        exactly_one(
            &[
                ("Local", set.is_some_and(|s| s.local.is_some())),
                ("Remote", set.is_some_and(|s| s.remote.is_some())),
            ],
            &keys,
            problems,
        );
        if let Some(local) = set.and_then(|s| s.local.as_ref()) {
            local.validate(&keys.key("Local"), problems);
        }
        if let Some(remote) = set.and_then(|s| s.remote.as_ref()) {
            remote.validate(&keys.key("Remote"), problems);
        }
        let locations = at.key("Locations");
        for (i, location) in self.locations.iter().enumerate() {
            location.validate(&locations.index(i), problems);
        }
        if let Some(forwarding) = &self.forwarding
            && rules::is_blank(&forwarding.header_name)
        {
            problems.error(
                &at.key("Forwarding").key("HeaderName"),
                "forwarding needs a header name",
            );
        }
    }

    fn enterprise_only(&self, at: &Place<'_>, problems: &mut Problems) {
        rules::only_default(&self.namespace, &self.partition, at, problems);
    }

    fn normalize(&mut self) {
        self.kind = EntryKind::JwtProvider.to_string();
        rules::clear_default(&mut self.namespace);
        rules::clear_default(&mut self.partition);
        if self.clock_skew_seconds == 0 {
            self.clock_skew_seconds = DEFAULT_CLOCK_SKEW_SECONDS;
        }
    }
}

impl LocalJwks {
    fn validate(&self, at: &Place<'_>, problems: &mut Problems) {
        exactly_one(
            &[
                ("JWKS", !self.jwks.is_empty()),
                ("Filename", !self.filename.is_empty()),
            ],
            at,
            problems,
        );
        base64(&self.jwks, &at.key("JWKS"), problems);
    }
}

impl RemoteJwks {
    fn validate(&self, at: &Place<'_>, problems: &mut Problems) {
        if self.uri.is_empty() {
            problems.error(&at.key("URI"), "a remote key set needs a URI");
        } else {
            rules::http_url(&self.uri, &at.key("URI"), problems);
        }
        rules::natural(
            self.request_timeout_ms,
            &at.key("RequestTimeoutMs"),
            problems,
        );
        rules::not_negative(self.cache_duration, &at.key("CacheDuration"), problems);
        if let Some(retry) = &self.retry_policy {
            let at = at.key("RetryPolicy");
            rules::natural(retry.num_retries, &at.key("NumRetries"), problems);
            if let Some(wait) = &retry.retry_policy_back_off {
                let at = at.key("RetryPolicyBackOff");
                rules::not_negative(wait.base_interval, &at.key("BaseInterval"), problems);
                rules::not_negative(wait.max_interval, &at.key("MaxInterval"), problems);
                if !wait.max_interval.is_zero() && wait.max_interval < wait.base_interval {
                    problems.error(&at.key("MaxInterval"), "must not be below BaseInterval");
                }
            }
        }
        if let Some(cluster) = &self.jwks_cluster {
            cluster.validate(&at.key("JWKSCluster"), problems);
        }
    }
}

impl JwksCluster {
    fn validate(&self, at: &Place<'_>, problems: &mut Problems) {
        rules::one_of(
            &self.discovery_type,
            &DISCOVERY_TYPES,
            &at.key("DiscoveryType"),
            problems,
        );
        rules::not_negative(self.connect_timeout, &at.key("ConnectTimeout"), problems);
        let Some(tls) = &self.tls_certificates else {
            return;
        };
        let at = at.key("TLSCertificates");
        let instance = &tls.ca_certificate_provider_instance;
        exactly_one(
            &[
                ("CaCertificateProviderInstance", instance.is_some()),
                ("TrustedCA", tls.trusted_ca.is_some()),
            ],
            &at,
            problems,
        );
        if let Some(trusted) = &tls.trusted_ca {
            let at = at.key("TrustedCA");
            exactly_one(
                &[
                    ("Filename", !trusted.filename.is_empty()),
                    (
                        "EnvironmentVariable",
                        !trusted.environment_variable.is_empty(),
                    ),
                    ("InlineString", !trusted.inline_string.is_empty()),
                    ("InlineBytes", !trusted.inline_bytes.is_empty()),
                ],
                &at,
                problems,
            );
            base64(&trusted.inline_bytes, &at.key("InlineBytes"), problems);
        }
    }
}

impl JwtLocation {
    fn validate(&self, at: &Place<'_>, problems: &mut Problems) {
        exactly_one(
            &[
                ("Header", self.header.is_some()),
                ("QueryParam", self.query_param.is_some()),
                ("Cookie", self.cookie.is_some()),
            ],
            at,
            problems,
        );
        let names = [
            ("Header", self.header.as_ref().map(|l| &l.name)),
            ("QueryParam", self.query_param.as_ref().map(|l| &l.name)),
            ("Cookie", self.cookie.as_ref().map(|l| &l.name)),
        ];
        for (key, name) in names {
            if name.is_some_and(|n| rules::is_blank(n)) {
                problems.error(&at.key(key).key("Name"), "a location needs a Name");
            }
        }
    }
}

fn exactly_one(given: &[(&str, bool)], at: &Place<'_>, problems: &mut Problems) {
    if given.iter().filter(|(_, g)| *g).count() != 1 {
        let names = given.iter().map(|(n, _)| *n).collect::<Vec<_>>();
        problems.error(at, format!("needs exactly one of {}", names.join(", ")));
    }
}

fn base64(text: &str, at: &Place<'_>, problems: &mut Problems) {
    use base64::Engine as _;
    if let Err(why) = base64::engine::general_purpose::STANDARD.decode(text) {
        problems.error(at, format!("is not base64: {why}"));
    }
}
