//! Where a provider's keys come from (xds.md 4.2.2, 4.4): the provider itself, a file on Envoy's machine, or a server,
//! which then is a cluster.

use base64::Engine as _;
use envoy_types::pb::envoy::extensions::filters::http::jwt_authn::v3 as jwt;

use crate::model::{HttpAddress, JwksTlsTrustedCa, JwtProvider, LocalJwks, RemoteJwks};
use crate::xds::clusters::DEFAULT_CONNECT_TIMEOUT;
use crate::xds::encode::any;
use crate::xds::proto::{cluster, core, duration, matcher, millis, string_match, tls, uint32};
use crate::xds::{BuildError, endpoints, names};

/// A source of keys.
pub(super) struct Source {
    pub specifier: jwt::jwt_provider::JwksSourceSpecifier,
    pub cluster: Option<cluster::Cluster>,
}

/// Time for a fetch unless one is given, in milliseconds.
const DEFAULT_REQUEST_TIMEOUT_MS: i64 = 5000;

/// Envoy's wait before the first retry, in nanoseconds.
const DEFAULT_BACK_OFF: i64 = 1_000_000_000;

/// The source of a provider's keys.
///
/// # Errors
/// There is none, or it can't be used.
pub(super) fn source(provider: &JwtProvider) -> Result<Source, BuildError> {
    let set = provider.json_web_key_set.as_ref();
    match set.map(|set| (&set.local, &set.remote)) {
        Some((Some(keys), None)) => {
            let keys = local(keys).map_err(|e| e.at("JSONWebKeySet.Local"))?;
            Ok(Source {
                specifier: jwt::jwt_provider::JwksSourceSpecifier::LocalJwks(keys),
                cluster: None,
            })
        }
        Some((None, Some(keys))) => {
            remote(&provider.name, keys).map_err(|e| e.at("JSONWebKeySet.Remote"))
        }
        _ => Err(BuildError::new(
            "JSONWebKeySet needs exactly one of Local, Remote",
        )),
    }
}

fn local(keys: &LocalJwks) -> Result<core::DataSource, BuildError> {
    if keys.jwks.is_empty() {
        if keys.filename.is_empty() {
            return Err(BuildError::new("exactly one of JWKS, Filename is needed"));
        }
        return Ok(data(core::data_source::Specifier::Filename(
            keys.filename.clone(),
        )));
    }
    let bytes = base64::engine::general_purpose::STANDARD
        .decode(&keys.jwks)
        .map_err(|why| BuildError::new(format!("JWKS is not base64: {why}")))?;
    let text =
        String::from_utf8(bytes).map_err(|_| BuildError::new("JWKS is not the base64 of text"))?;
    // Envoy takes anything, and then finds no token valid.
    let is_key_set = serde_json::from_str::<serde_json::Value>(&text)
        .is_ok_and(|json| json.get("keys").is_some_and(serde_json::Value::is_array));
    if !is_key_set {
        return Err(BuildError::new(
            "JWKS is not the base64 of a key set, {\"keys\": [...]}",
        ));
    }
    Ok(data(core::data_source::Specifier::InlineString(text)))
}

fn data(specifier: core::data_source::Specifier) -> core::DataSource {
    core::DataSource {
        specifier: Some(specifier),
        ..Default::default()
    }
}

fn remote(provider: &str, keys: &RemoteJwks) -> Result<Source, BuildError> {
    let server = HttpAddress::parse(&keys.uri).ok_or_else(|| {
        BuildError::new(format!(
            "URI: {:?} is not an http:// or https:// address with a host",
            keys.uri
        ))
    })?;
    let name = names::jwks_cluster(provider);
    let timeout = match keys.request_timeout_ms {
        ..=0 => DEFAULT_REQUEST_TIMEOUT_MS,
        timeout => timeout,
    };
    let mut remote = jwt::RemoteJwks {
        http_uri: Some(core::HttpUri {
            uri: keys.uri.clone(),
            timeout: millis(timeout),
            http_upstream_type: Some(core::http_uri::HttpUpstreamType::Cluster(name.to_string())),
        }),
        // Fetched before they are needed, and again before they are too old.
        async_fetch: Some(jwt::JwksAsyncFetch {
            fast_listener: keys.fetch_asynchronously,
            ..Default::default()
        }),
        ..Default::default()
    };
    if keys.cache_duration.0 > 0 {
        remote.cache_duration = duration(keys.cache_duration);
    }
    if let Some(retry) = &keys.retry_policy {
        let retries = u32::try_from(retry.num_retries).map_err(|_| {
            BuildError::new(format!(
                "RetryPolicy.NumRetries: {} is not between 0 and {}",
                retry.num_retries,
                u32::MAX
            ))
        })?;
        let waits = retry.retry_policy_back_off.as_ref();
        remote.retry_policy = Some(core::RetryPolicy {
            num_retries: uint32(retries),
            retry_back_off: waits.and_then(|waits| {
                back_off(waits.base_interval.0.max(0), waits.max_interval.0.max(0))
            }),
            ..Default::default()
        });
    }
    Ok(Source {
        specifier: jwt::jwt_provider::JwksSourceSpecifier::RemoteJwks(remote),
        cluster: Some(cluster(&name, &server, keys)?),
    })
}

/// Waits in nanoseconds; 0 means that it isn't given.
fn back_off(base: i64, longest: i64) -> Option<core::BackoffStrategy> {
    let base = match (base, longest) {
        (0, 0) => return None,
        (0, longest) => DEFAULT_BACK_OFF.min(longest),
        (base, _) => base,
    };
    let span = |nanos| duration(crate::model::GoDuration(nanos));
    Some(core::BackoffStrategy {
        base_interval: span(base),
        max_interval: if longest == 0 { None } else { span(longest) },
    })
}

/// The cluster `jwks_cluster_<provider>` (xds.md 4.2.2).
fn cluster(
    name: &str,
    server: &HttpAddress,
    keys: &RemoteJwks,
) -> Result<cluster::Cluster, BuildError> {
    use cluster::cluster::DiscoveryType;

    let config = keys.jwks_cluster.as_ref();
    let discovery = match config.map_or("", |config| config.discovery_type.as_str()) {
        "" | "STRICT_DNS" => DiscoveryType::StrictDns,
        "LOGICAL_DNS" => DiscoveryType::LogicalDns,
        "STATIC" if server.is_ip() => DiscoveryType::Static,
        "STATIC" => {
            return Err(BuildError::new(format!(
                "JWKSCluster.DiscoveryType STATIC needs an IP address in URI, not {:?}",
                server.host
            )));
        }
        other => {
            return Err(BuildError::new(format!(
                "JWKSCluster.DiscoveryType {other:?}: nothing would tell Envoy where the keys are; use STRICT_DNS, LOGICAL_DNS or STATIC"
            )));
        }
    };
    let timeout = match config.map_or(0, |config| config.connect_timeout.0) {
        ..=0 => DEFAULT_CONNECT_TIMEOUT,
        nanos => crate::model::GoDuration(nanos),
    };
    let address = core::SocketAddress {
        address: server.host.clone(),
        port_specifier: Some(core::socket_address::PortSpecifier::PortValue(
            server.port.into(),
        )),
        ..Default::default()
    };
    let address = core::Address {
        address: Some(core::address::Address::SocketAddress(address)),
    };
    let socket = if server.tls {
        Some(transport_socket(server, keys)?)
    } else {
        None
    };
    Ok(cluster::Cluster {
        name: name.to_owned(),
        connect_timeout: duration(timeout),
        cluster_discovery_type: Some(cluster::cluster::ClusterDiscoveryType::Type(
            discovery as i32,
        )),
        load_assignment: Some(endpoints::single_assignment(name, address)),
        transport_socket: socket,
        ..Default::default()
    })
}

/// With roots to trust, the server must have a certificate for its name that one of them signed. Without, it isn't
/// checked at all, which [`unchecked`] tells.
fn transport_socket(
    server: &HttpAddress,
    keys: &RemoteJwks,
) -> Result<core::TransportSocket, BuildError> {
    use tls::common_tls_context::ValidationContextType;

    let place = "JWKSCluster.TLSCertificates";
    let trust = keys
        .jwks_cluster
        .as_ref()
        .and_then(|cluster| cluster.tls_certificates.as_ref());
    let validation = match trust {
        None => None,
        Some(trust) if trust.ca_certificate_provider_instance.is_some() => {
            // Envoy ignores it, and would trust any certificate.
            return Err(BuildError::new(
                "CaCertificateProviderInstance has no effect in Envoy; use TrustedCA",
            )
            .at(place));
        }
        Some(trust) => {
            let trusted = trust.trusted_ca.as_ref().map(trusted_ca);
            let trusted = trusted.unwrap_or_else(|| Err(BuildError::new("TrustedCA is needed")));
            let san_type = if server.is_ip() {
                tls::subject_alt_name_matcher::SanType::IpAddress
            } else {
                tls::subject_alt_name_matcher::SanType::Dns
            };
            let exact = matcher::string_matcher::MatchPattern::Exact(server.host.clone());
            Some(tls::CertificateValidationContext {
                trusted_ca: Some(trusted.map_err(|e| e.at(place))?),
                match_typed_subject_alt_names: vec![tls::SubjectAltNameMatcher {
                    san_type: san_type as i32,
                    matcher: Some(string_match(exact, false)),
                    ..Default::default()
                }],
                ..Default::default()
            })
        }
    };
    let context = tls::UpstreamTlsContext {
        common_tls_context: Some(tls::CommonTlsContext {
            validation_context_type: validation.map(ValidationContextType::ValidationContext),
            ..Default::default()
        }),
        sni: if server.is_ip() {
            String::new()
        } else {
            server.host.clone()
        },
        ..Default::default()
    };
    Ok(core::TransportSocket {
        name: "tls".to_owned(),
        config_type: Some(core::transport_socket::ConfigType::TypedConfig(any(
            &context,
        ))),
    })
}

fn trusted_ca(from: &JwksTlsTrustedCa) -> Result<core::DataSource, BuildError> {
    use core::data_source::Specifier;
    Ok(data(if !from.filename.is_empty() {
        Specifier::Filename(from.filename.clone())
    } else if !from.environment_variable.is_empty() {
        Specifier::EnvironmentVariable(from.environment_variable.clone())
    } else if !from.inline_string.is_empty() {
        Specifier::InlineString(from.inline_string.clone())
    } else if !from.inline_bytes.is_empty() {
        let bytes = base64::engine::general_purpose::STANDARD
            .decode(&from.inline_bytes)
            .map_err(|why| BuildError::new(format!("InlineBytes is not base64: {why}")))?;
        Specifier::InlineBytes(bytes)
    } else {
        return Err(BuildError::new("TrustedCA is empty"));
    }))
}

/// What an operator should know of a provider whose keys are fetched from a server that anybody could pose as.
pub(in crate::xds) fn unchecked(provider: &JwtProvider) -> Option<String> {
    let remote = provider.json_web_key_set.as_ref()?.remote.as_ref()?;
    let cluster = remote.jwks_cluster.as_ref();
    let trusts = cluster.is_some_and(|cluster| cluster.tls_certificates.is_some());
    (remote.uri.starts_with("https://") && !trusts).then(|| {
        "its keys are fetched from a server whose certificate isn't checked: give JSONWebKeySet.Remote.JWKSCluster.TLSCertificates.TrustedCA".to_owned()
    })
}
