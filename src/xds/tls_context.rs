//! TLS contexts of listeners and clusters (xds.md 3.3, 3.4).
//!
//! Certificates are named, not included: `leaf` and `roots` are secrets that Envoy asks for over the same stream
//! (decision X1). So a cluster is the same for all proxies, and a renewal touches one secret.

use super::BuildError;
use super::encode::any;
use super::names::{LEAF_SECRET, ROOTS_SECRET};
use super::proto::{ads, boolean, core, matcher, string_match, tls};
use crate::model::{MeshDirectionalTls, SpiffeId};

/// The transport socket of a cluster whose instances must present one of `identities`.
pub(super) fn upstream(
    params: Option<&MeshDirectionalTls>,
    identities: &[SpiffeId],
    sni: &str,
) -> Result<core::TransportSocket, BuildError> {
    let exact = |identity: &SpiffeId| {
        let identity = matcher::string_matcher::MatchPattern::Exact(identity.to_string());
        string_match(identity, false)
    };
    let combined = combined(identities.iter().map(exact));
    let common = common(
        params,
        tls::common_tls_context::ValidationContextType::CombinedValidationContext(combined),
    )
    .map_err(|e| e.at("mesh TLS.Outgoing"))?;
    let context = tls::UpstreamTlsContext {
        common_tls_context: Some(common),
        sni: sni.to_owned(),
        ..Default::default()
    };
    Ok(socket(any(&context)))
}

/// The transport socket of a listener that takes part in the mesh: callers must present a certificate that one of the
/// roots signed, and have one of the identities `callers` if there are any. Beyond that who may call is for RBAC to say.
pub(super) fn downstream(
    params: Option<&MeshDirectionalTls>,
    alpn: &[&str],
    callers: &[matcher::StringMatcher],
) -> Result<core::TransportSocket, BuildError> {
    use tls::common_tls_context::ValidationContextType;

    let validation = if callers.is_empty() {
        ValidationContextType::ValidationContextSdsSecretConfig(secret(ROOTS_SECRET))
    } else {
        ValidationContextType::CombinedValidationContext(combined(callers.iter().cloned()))
    };
    let mut common = common(params, validation).map_err(|e| e.at("mesh TLS.Incoming"))?;
    common.alpn_protocols = alpn.iter().map(|&protocol| protocol.to_owned()).collect();
    let context = tls::DownstreamTlsContext {
        common_tls_context: Some(common),
        require_client_certificate: boolean(true),
        ..Default::default()
    };
    Ok(socket(any(&context)))
}

/// The protocols that a listener offers (xds.md 3.4).
pub(super) fn alpn(protocol: &str) -> &'static [&'static str] {
    match protocol {
        "http" => &["http/1.1"],
        "http2" | "grpc" => &["h2", "http/1.1"],
        _ => &[],
    }
}

/// One of the roots must have signed the certificate, and one of the matchers must fit its identity.
fn combined(
    identities: impl Iterator<Item = matcher::StringMatcher>,
) -> tls::common_tls_context::CombinedCertificateValidationContext {
    let sans = identities.map(|identity| tls::SubjectAltNameMatcher {
        san_type: tls::subject_alt_name_matcher::SanType::Uri as i32,
        matcher: Some(identity),
        ..Default::default()
    });
    tls::common_tls_context::CombinedCertificateValidationContext {
        default_validation_context: Some(tls::CertificateValidationContext {
            match_typed_subject_alt_names: sans.collect(),
            ..Default::default()
        }),
        validation_context_sds_secret_config: Some(secret(ROOTS_SECRET)),
        ..Default::default()
    }
}

fn common(
    params: Option<&MeshDirectionalTls>,
    validation: tls::common_tls_context::ValidationContextType,
) -> Result<tls::CommonTlsContext, BuildError> {
    Ok(tls::CommonTlsContext {
        tls_params: Some(params.map_or_else(|| Ok(tls::TlsParameters::default()), parameters)?),
        tls_certificate_sds_secret_configs: vec![secret(LEAF_SECRET)],
        validation_context_type: Some(validation),
        ..Default::default()
    })
}

fn secret(name: &str) -> tls::SdsSecretConfig {
    tls::SdsSecretConfig {
        name: name.to_owned(),
        sds_config: ads(),
    }
}

fn socket(config: envoy_types::pb::google::protobuf::Any) -> core::TransportSocket {
    core::TransportSocket {
        name: "tls".to_owned(),
        config_type: Some(core::transport_socket::ConfigType::TypedConfig(config)),
    }
}

fn parameters(from: &MeshDirectionalTls) -> Result<tls::TlsParameters, BuildError> {
    use tls::tls_parameters::TlsProtocol;

    let version = |text: &str| {
        Ok(match text {
            "" | "TLS_AUTO" => TlsProtocol::TlsAuto,
            "TLSv1_0" => TlsProtocol::TlSv10,
            "TLSv1_1" => TlsProtocol::TlSv11,
            "TLSv1_2" => TlsProtocol::TlSv12,
            "TLSv1_3" => TlsProtocol::TlSv13,
            other => {
                return Err(BuildError::new(format!(
                    "{other:?} is not one of TLS_AUTO, TLSv1_0, TLSv1_1, TLSv1_2, TLSv1_3"
                )));
            }
        })
    };
    let minimum = version(&from.tls_min_version).map_err(|e| e.at("TLSMinVersion"))?;
    let maximum = version(&from.tls_max_version).map_err(|e| e.at("TLSMaxVersion"))?;
    if maximum != TlsProtocol::TlsAuto && maximum < minimum {
        return Err(BuildError::new(format!(
            "TLSMaxVersion {} is below TLSMinVersion {}",
            from.tls_max_version, from.tls_min_version
        )));
    }
    if minimum == TlsProtocol::TlSv13 && !from.cipher_suites.is_empty() {
        return Err(BuildError::new(
            "CipherSuites have no effect with TLSMinVersion TLSv1_3: leave one of them out",
        ));
    }
    let suites = from.cipher_suites.iter().map(|suite| cipher_suite(suite));
    Ok(tls::TlsParameters {
        tls_minimum_protocol_version: minimum as i32,
        tls_maximum_protocol_version: maximum as i32,
        cipher_suites: suites.collect::<Result<_, _>>()?,
        ..Default::default()
    })
}

/// Suites by their registered names, and what Envoy calls them.
const CIPHER_SUITES: &[(&str, &str)] = &[
    (
        "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
        "ECDHE-ECDSA-AES128-GCM-SHA256",
    ),
    (
        "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
        "ECDHE-ECDSA-AES256-GCM-SHA384",
    ),
    (
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
        "ECDHE-ECDSA-CHACHA20-POLY1305",
    ),
    (
        "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
        "ECDHE-ECDSA-AES128-SHA",
    ),
    (
        "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
        "ECDHE-ECDSA-AES256-SHA",
    ),
    (
        "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
        "ECDHE-RSA-AES128-GCM-SHA256",
    ),
    (
        "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
        "ECDHE-RSA-AES256-GCM-SHA384",
    ),
    (
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
        "ECDHE-RSA-CHACHA20-POLY1305",
    ),
    ("TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA", "ECDHE-RSA-AES128-SHA"),
    ("TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA", "ECDHE-RSA-AES256-SHA"),
    ("TLS_RSA_WITH_AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
    ("TLS_RSA_WITH_AES_256_GCM_SHA384", "AES256-GCM-SHA384"),
    ("TLS_RSA_WITH_AES_128_CBC_SHA", "AES128-SHA"),
    ("TLS_RSA_WITH_AES_256_CBC_SHA", "AES256-SHA"),
];

/// Takes both spellings.
fn cipher_suite(name: &str) -> Result<String, BuildError> {
    CIPHER_SUITES
        .iter()
        .find(|(registered, envoys)| *registered == name || *envoys == name)
        .map(|(_, envoys)| (*envoys).to_owned())
        .ok_or_else(|| {
            let known: Vec<_> = CIPHER_SUITES
                .iter()
                .map(|(registered, _)| *registered)
                .collect();
            BuildError::new(format!(
                "CipherSuites: {name:?} is not one of {}",
                known.join(", ")
            ))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(min: &str, max: &str, suites: &[&str]) -> MeshDirectionalTls {
        MeshDirectionalTls {
            tls_min_version: min.into(),
            tls_max_version: max.into(),
            cipher_suites: suites.iter().map(|&s| s.into()).collect(),
        }
    }

    #[test]
    fn xds_59_cipher_suites_with_tls_1_3_are_an_error() {
        let suites = ["TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"];
        for min in ["", "TLS_AUTO", "TLSv1_0", "TLSv1_1", "TLSv1_2"] {
            let built = parameters(&params(min, "", &suites)).unwrap();
            assert_eq!(built.cipher_suites, ["ECDHE-ECDSA-AES128-GCM-SHA256"]);
        }
        let error = parameters(&params("TLSv1_3", "", &suites)).unwrap_err();
        assert!(error.to_string().contains("TLSv1_3"), "{error}");
        assert!(downstream(Some(&params("TLSv1_3", "", &suites)), &[], &[]).is_err());
    }

    #[test]
    fn xds_3_4_unknown_versions_and_suites_are_errors() {
        assert!(parameters(&params("TLSv1_4", "", &[])).is_err());
        assert!(parameters(&params("TLSv1_3", "TLSv1_2", &[])).is_err());
        assert!(parameters(&params("", "", &["NULL"])).is_err());
        assert!(parameters(&params("TLSv1_2", "TLSv1_3", &[])).is_ok());
    }

    #[test]
    fn xds_55_http2_offers_h2() {
        assert_eq!(alpn("grpc"), ["h2", "http/1.1"]);
        assert_eq!(alpn("http"), ["http/1.1"]);
        assert!(alpn("tcp").is_empty());
    }
}
