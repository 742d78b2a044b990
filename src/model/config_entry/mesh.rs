//! `mesh` (store.md 3.9).

use std::collections::BTreeMap;

use crate::model::config_entry::EntryKind;
use crate::model::decode::{Place, Problems, record};
use crate::model::rules;
use crate::model::validate::Validate;

record! {
    /// Settings of the whole mesh; its one name is `mesh`.
    pub struct MeshConfig {
        /// Always `mesh`.
        kind: String = "Kind" always,
        /// Transparent proxies.
        transparent_proxy: MeshTransparentProxy = "TransparentProxy",
        /// Whether permissive mutual TLS may be switched on.
        allow_enabling_permissive_mutual_tls: bool = "AllowEnablingPermissiveMutualTLS",
        /// Whether Envoy checks that routes name clusters it has.
        validate_clusters: bool = "ValidateClusters",
        /// TLS parameters.
        tls: Option<MeshTls> = "TLS",
        /// HTTP.
        http: Option<MeshHttp> = "HTTP",
        /// Peering.
        peering: Option<MeshPeering> = "Peering",
        /// Free labels.
        meta: BTreeMap<String, String> = "Meta",
        /// Only `default`.
        namespace: String = "Namespace",
        /// Only `default`.
        partition: String = "Partition",
    }
    ignored ["CreateIndex", "ModifyIndex", "Hash", "Name"]
}

record! {
    /// Transparent proxies.
    pub struct MeshTransparentProxy {
        /// Refuse traffic to what isn't in the mesh.
        mesh_destinations_only: bool = "MeshDestinationsOnly",
    }
}

record! {
    /// TLS parameters by direction.
    pub struct MeshTls {
        /// Of connections that proxies accept.
        incoming: Option<MeshDirectionalTls> = "Incoming",
        /// Of connections that proxies make.
        outgoing: Option<MeshDirectionalTls> = "Outgoing",
    }
}

record! {
    /// TLS parameters.
    pub struct MeshDirectionalTls {
        /// `TLS_AUTO`, `TLSv1_0` ... `TLSv1_3`.
        tls_min_version: String = "TLSMinVersion",
        /// `TLS_AUTO`, `TLSv1_0` ... `TLSv1_3`.
        tls_max_version: String = "TLSMaxVersion",
        /// Cipher suites, for versions below 1.3.
        cipher_suites: Vec<String> = "CipherSuites",
    }
}

record! {
    /// HTTP settings.
    pub struct MeshHttp {
        /// Don't forward the caller's certificate to applications.
        sanitize_x_forwarded_client_cert: bool = "SanitizeXForwardedClientCert",
        /// Inbound HTTP.
        incoming: Option<MeshDirectionalHttp> = "Incoming",
    }
}

record! {
    /// HTTP settings of a direction.
    pub struct MeshDirectionalHttp {
        /// Request normalization.
        request_normalization: Option<RequestNormalization> = "RequestNormalization",
    }
}

record! {
    /// Request normalization.
    pub struct RequestNormalization {
        /// Leave paths as they are: makes path rules easy to evade.
        insecure_disable_path_normalization: bool = "InsecureDisablePathNormalization",
        /// Merge adjacent slashes.
        merge_slashes: bool = "MergeSlashes",
        /// What to do with escaped slashes.
        path_with_escaped_slashes_action: String = "PathWithEscapedSlashesAction",
        /// What to do with headers that have underscores.
        headers_with_underscores_action: String = "HeadersWithUnderscoresAction",
    }
}

record! {
    /// Peering.
    pub struct MeshPeering {
        /// Peer through mesh gateways.
        peer_through_mesh_gateways: bool = "PeerThroughMeshGateways",
    }
}

const TLS_VERSIONS: [&str; 6] = ["", "TLS_AUTO", "TLSv1_0", "TLSv1_1", "TLSv1_2", "TLSv1_3"];

const CIPHER_SUITES: [&str; 10] = [
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
];

const SLASH_ACTIONS: [&str; 6] = [
    "",
    "IMPLEMENTATION_SPECIFIC_DEFAULT",
    "KEEP_UNCHANGED",
    "REJECT_REQUEST",
    "UNESCAPE_AND_REDIRECT",
    "UNESCAPE_AND_FORWARD",
];

const UNDERSCORE_ACTIONS: [&str; 4] = ["", "ALLOW", "REJECT_REQUEST", "DROP_HEADER"];

impl Validate for MeshConfig {
    /// store.md 3.9 and the TLS rules of 3.7.
    fn validate(&self, at: &Place<'_>, problems: &mut Problems) {
        rules::meta(&self.meta, &at.key("Meta"), problems);
        if let Some(tls) = &self.tls {
            let at = at.key("TLS");
            for (key, direction) in [("Incoming", &tls.incoming), ("Outgoing", &tls.outgoing)] {
                if let Some(direction) = direction {
                    direction.validate(&at.key(key), problems);
                }
            }
        }
        let normalization = self
            .http
            .as_ref()
            .and_then(|h| h.incoming.as_ref())
            .and_then(|i| i.request_normalization.as_ref());
        if let Some(normalization) = normalization {
            let at = at.key("HTTP");
            let at = at.key("Incoming");
            let at = at.key("RequestNormalization");
            rules::one_of(
                &normalization.path_with_escaped_slashes_action,
                &SLASH_ACTIONS,
                &at.key("PathWithEscapedSlashesAction"),
                problems,
            );
            rules::one_of(
                &normalization.headers_with_underscores_action,
                &UNDERSCORE_ACTIONS,
                &at.key("HeadersWithUnderscoresAction"),
                problems,
            );
        }
    }

    fn enterprise_only(&self, at: &Place<'_>, problems: &mut Problems) {
        rules::only_default(&self.namespace, &self.partition, at, problems);
    }

    fn normalize(&mut self) {
        self.kind = EntryKind::Mesh.to_string();
        rules::clear_default(&mut self.namespace);
        rules::clear_default(&mut self.partition);
    }
}

impl MeshDirectionalTls {
    fn validate(&self, at: &Place<'_>, problems: &mut Problems) {
        let (min, max) = (&self.tls_min_version, &self.tls_max_version);
        rules::one_of(min, &TLS_VERSIONS, &at.key("TLSMinVersion"), problems);
        rules::one_of(max, &TLS_VERSIONS, &at.key("TLSMaxVersion"), problems);
        let rank = |version: &str| {
            TLS_VERSIONS
                .iter()
                .position(|v| *v == version)
                .filter(|rank| *rank >= 2)
        };
        if let (Some(low), Some(high)) = (rank(min), rank(max))
            && high < low
        {
            problems.error(
                &at.key("TLSMaxVersion"),
                format!("{max} is below TLSMinVersion {min}"),
            );
        }
        let suites = at.key("CipherSuites");
        if !self.cipher_suites.is_empty() && min == "TLSv1_3" {
            problems.error(
                &suites,
                "cipher suites can't be chosen when TLSMinVersion is TLSv1_3",
            );
        }
        for (i, suite) in self.cipher_suites.iter().enumerate() {
            rules::one_of(suite, &CIPHER_SUITES, &suites.index(i), problems);
        }
    }
}
