//! JSON web tokens (xds.md 4.4): the filter that verifies what requests carry.
//!
//! The filter `envoy.filters.http.jwt_authn` stands in front of the access rules and refuses nothing by itself. Of each
//! token that it finds valid it leaves the payload in the request's metadata, under a name of the token's provider; who
//! may do what with which payload is for the access rules to say. A provider that can't be built isn't part of the
//! filter, so that nobody ever has a token of it: rules that need one deny.

mod keys;

pub(super) use keys::unchecked;

use envoy_types::pb::envoy::extensions::filters::http::jwt_authn::v3 as jwt;
use prost::Message as _;
use smol_str::{SmolStr, format_smolstr};
use std::collections::BTreeMap;

use super::encode::Fields;
use super::http;
use super::proto::{cluster, hcm, http_filter_of};
use super::{BuildError, matchers};
use crate::model::{JwtLocation, JwtProvider};

/// The filter's name; also the namespace of the metadata that it writes.
pub(super) const FILTER: &str = "envoy.filters.http.jwt_authn";

/// A provider in Envoy's terms.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TokenProvider {
    /// What the filter is told.
    config: jwt::JwtProvider,
    /// The issuer that its tokens name; empty if any will do.
    pub issuer: SmolStr,
    /// Where its keys are fetched from.
    pub cluster: Option<cluster::Cluster>,
}

/// Where the payload of a provider's tokens stands in the metadata.
pub(super) fn payload_key(provider: &str) -> SmolStr {
    format_smolstr!("jwt_payload_{provider}")
}

impl TokenProvider {
    /// Reads a provider.
    ///
    /// # Errors
    /// Keys that can't be read, or a setting that Envoy would refuse.
    pub(super) fn new(provider: &JwtProvider) -> Result<Self, BuildError> {
        let source = keys::source(provider)?;
        let mut config = jwt::JwtProvider {
            issuer: provider.issuer.clone(),
            audiences: provider.audiences.clone(),
            payload_in_metadata: payload_key(&provider.name).to_string(),
            clock_skew_seconds: u32::try_from(provider.clock_skew_seconds).map_err(|_| {
                BuildError::new(format!(
                    "ClockSkewSeconds: {} is not between 0 and {}",
                    provider.clock_skew_seconds,
                    u32::MAX
                ))
            })?,
            jwks_source_specifier: Some(source.specifier),
            ..Default::default()
        };
        for (number, location) in provider.locations.iter().enumerate() {
            locate(&mut config, location).map_err(|e| e.at(&format!("Locations[{number}]")))?;
        }
        if let Some(forwarding) = &provider.forwarding {
            matchers::check_header_name(&forwarding.header_name)
                .map_err(|e| e.at("Forwarding.HeaderName"))?;
            config
                .forward_payload_header
                .clone_from(&forwarding.header_name);
            config.pad_forward_payload_header = forwarding.pad_forward_payload_header;
        }
        if let Some(cache) = &provider.cache_config {
            config.jwt_cache_config = Some(jwt::JwtCacheConfig {
                jwt_cache_size: cache.size,
                ..Default::default()
            });
        }
        Ok(Self {
            config,
            issuer: SmolStr::from(&provider.issuer),
            cluster: source.cluster,
        })
    }
}

/// Adds a place of requests where tokens are looked for. Without any, Envoy looks where most clients put them: in the
/// header `Authorization` and in the query parameter `access_token`.
fn locate(config: &mut jwt::JwtProvider, location: &JwtLocation) -> Result<(), BuildError> {
    let named = |name: &str| {
        if name.is_empty() {
            Err(BuildError::new("Name is needed"))
        } else {
            Ok(name.to_owned())
        }
    };
    if let Some(header) = &location.header {
        matchers::check_header_name(&header.name)?;
        if header.value_prefix.contains(['\0', '\r', '\n']) {
            return Err(BuildError::new("ValuePrefix has a line break or a zero"));
        }
        // Envoy has one setting for all places.
        config.forward |= header.forward;
        config.from_headers.push(jwt::JwtHeader {
            name: header.name.clone(),
            value_prefix: header.value_prefix.clone(),
        });
    }
    if let Some(parameter) = &location.query_param {
        config.from_params.push(named(&parameter.name)?);
    }
    if let Some(cookie) = &location.cookie {
        config.from_cookies.push(named(&cookie.name)?);
    }
    Ok(())
}

/// The filter that verifies tokens of these providers; none without providers. A request without a token, or with one
/// that isn't valid, goes on: the access rules decide about it.
pub(super) fn filter(providers: &BTreeMap<SmolStr, TokenProvider>) -> Option<hcm::HttpFilter> {
    let requirements: Vec<_> = providers.keys().map(|name| verify_if_there(name)).collect();
    let requirement = match requirements.len() {
        0 => return None,
        1 => requirements.into_iter().next()?,
        // All, not any: with "any", Envoy would look no further after the first valid token, and a rule about another
        // provider would miss its payload.
        _ => required(jwt::jwt_requirement::RequiresType::RequiresAll(
            jwt::JwtRequirementAndList { requirements },
        )),
    };
    let rule = jwt::RequirementRule {
        r#match: Some(http::prefix("/")),
        requirement_type: Some(jwt::requirement_rule::RequirementType::Requires(
            requirement,
        )),
    };
    let configs = providers
        .iter()
        .map(|(name, provider)| (name.as_str(), provider.config.encode_to_vec()));
    // `JwtAuthentication`, with its map in order (decision X2).
    let config = Fields::default()
        .map(1, configs)
        .bytes(2, &rule.encode_to_vec());
    Some(http_filter_of(
        FILTER,
        config.any::<jwt::JwtAuthentication>(),
    ))
}

fn verify_if_there(provider: &str) -> jwt::JwtRequirement {
    use jwt::jwt_requirement::RequiresType;
    let requirements = vec![
        required(RequiresType::ProviderName(provider.to_owned())),
        required(RequiresType::AllowMissingOrFailed(Default::default())),
    ];
    required(RequiresType::RequiresAny(jwt::JwtRequirementOrList {
        requirements,
    }))
}

fn required(of: jwt::jwt_requirement::RequiresType) -> jwt::JwtRequirement {
    jwt::JwtRequirement {
        requires_type: Some(of),
    }
}

#[cfg(test)]
mod tests;
