//! `mesh` (store.md 3.9).

use std::collections::BTreeMap;

use crate::model::decode::record;

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
