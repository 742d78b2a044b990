//! Short names of Envoy's types, and the small messages that occur everywhere.

use std::net::IpAddr;

use envoy_types::pb::google::protobuf::{BoolValue, Duration, UInt32Value, UInt64Value};

pub(super) use envoy_types::pb::envoy::config::{
    accesslog::v3 as accesslog, cluster::v3 as cluster, core::v3 as core, endpoint::v3 as endpoint,
    listener::v3 as listener, rbac::v3 as rbac, route::v3 as route,
};
pub(super) use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3 as hcm;
pub(super) use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3 as tls;
pub(super) use envoy_types::pb::envoy::r#type::matcher::v3 as matcher;

use super::BuildError;
use super::encode::any;
use crate::model::GoDuration;

/// `value`, present even if it is zero.
pub(super) const fn uint32(value: u32) -> Option<UInt32Value> {
    Some(UInt32Value { value })
}

/// `value`, present even if it is zero.
pub(super) const fn uint64(value: u64) -> Option<UInt64Value> {
    Some(UInt64Value { value })
}

/// `value`, present even if it is false.
pub(super) const fn boolean(value: bool) -> Option<BoolValue> {
    Some(BoolValue { value })
}

/// A span of time; a negative one becomes zero.
pub(super) fn duration(span: GoDuration) -> Option<Duration> {
    let nanos = span.0.max(0);
    Some(Duration {
        seconds: nanos / 1_000_000_000,
        // The remainder is below 10^9 and fits.
        nanos: i32::try_from(nanos % 1_000_000_000).unwrap_or_default(),
    })
}

/// A number of milliseconds; a negative one becomes zero.
pub(super) fn millis(millis: i64) -> Option<Duration> {
    duration(GoDuration::from_millis(millis))
}

/// "Ask for it over this stream."
pub(super) fn ads() -> Option<core::ConfigSource> {
    ads_within(None)
}

/// "Ask for it over this stream, and go on without it after so many milliseconds": 0 means to wait for ever, `None` what
/// Envoy does by itself.
pub(super) fn ads_within(milliseconds: Option<i64>) -> Option<core::ConfigSource> {
    Some(core::ConfigSource {
        initial_fetch_timeout: milliseconds.and_then(millis),
        resource_api_version: core::ApiVersion::V3 as i32,
        config_source_specifier: Some(core::config_source::ConfigSourceSpecifier::Ads(
            core::AggregatedConfigSource {},
        )),
        ..Default::default()
    })
}

/// A TCP address. Envoy resolves no names here, so that anything but an IP address is refused.
pub(super) fn socket_address(address: &str, port: u16) -> Result<core::Address, BuildError> {
    if address.parse::<IpAddr>().is_err() {
        return Err(BuildError::new(format!(
            "{address:?} is not an IP address; Envoy takes no host names here"
        )));
    }
    Ok(core::Address {
        address: Some(core::address::Address::SocketAddress(core::SocketAddress {
            address: address.to_owned(),
            port_specifier: Some(core::socket_address::PortSpecifier::PortValue(u32::from(
                port,
            ))),
            ..Default::default()
        })),
    })
}

/// Longest path of a unix socket: `sockaddr_un` has room for 108 bytes with the final zero.
const LONGEST_SOCKET_PATH: usize = 107;

/// A unix socket. `mode` 0 leaves the mode to the operating system.
pub(super) fn pipe(path: &str, mode: u32) -> Result<core::Address, BuildError> {
    if path.len() > LONGEST_SOCKET_PATH {
        return Err(BuildError::new(format!(
            "the socket path {path:?} is longer than {LONGEST_SOCKET_PATH} bytes"
        )));
    }
    Ok(core::Address {
        address: Some(core::address::Address::Pipe(core::Pipe {
            path: path.to_owned(),
            mode,
        })),
    })
}

/// A network filter.
pub(super) fn filter<M: prost::Message + prost::Name>(name: &str, config: &M) -> listener::Filter {
    filter_of(name, any(config))
}

/// A network filter with an encoded configuration.
pub(super) fn filter_of(
    name: &str,
    config: envoy_types::pb::google::protobuf::Any,
) -> listener::Filter {
    listener::Filter {
        name: name.to_owned(),
        config_type: Some(listener::filter::ConfigType::TypedConfig(config)),
    }
}

/// An HTTP filter.
pub(super) fn http_filter<M: prost::Message + prost::Name>(
    name: &str,
    config: &M,
) -> hcm::HttpFilter {
    http_filter_of(name, any(config))
}

/// An HTTP filter with an encoded configuration.
pub(super) fn http_filter_of(
    name: &str,
    config: envoy_types::pb::google::protobuf::Any,
) -> hcm::HttpFilter {
    hcm::HttpFilter {
        name: name.to_owned(),
        config_type: Some(hcm::http_filter::ConfigType::TypedConfig(config)),
        ..Default::default()
    }
}

/// Matches one regular expression; whole text, in Envoy's reading.
pub(super) fn regex(pattern: impl Into<String>) -> matcher::RegexMatcher {
    matcher::RegexMatcher {
        regex: pattern.into(),
        engine_type: None,
    }
}

/// A string matcher.
pub(super) fn string_match(
    pattern: matcher::string_matcher::MatchPattern,
    ignore_case: bool,
) -> matcher::StringMatcher {
    matcher::StringMatcher {
        ignore_case,
        match_pattern: Some(pattern),
    }
}
