//! `jwt-provider` (store.md 3.16).

use std::collections::BTreeMap;

use crate::model::decode::record;
use crate::model::duration::GoDuration;

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
