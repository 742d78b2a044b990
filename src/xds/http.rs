//! HTTP connection managers (xds.md 4.2.3, 4.2.4): what listeners of HTTP services end in.

use envoy_types::pb::envoy::extensions::filters::http::{
    grpc_http1_bridge::v3 as grpc_http1_bridge, grpc_stats::v3 as grpc_stats,
    header_to_metadata::v3 as header_to_metadata, router::v3 as router,
};
use envoy_types::pb::envoy::r#type::v3::Percent;

use super::proto::{
    accesslog, ads_within, boolean, core, filter, hcm, http_filter, listener, matcher, regex,
    route, uint32,
};
use super::{BuildError, settings};
use crate::model::{RequestNormalization, is_http_like};
use hcm::http_connection_manager::Tracing;

/// Where a connection manager gets its routes from.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Routes {
    /// They stand in the listener.
    Inline(Box<route::RouteConfiguration>),
    /// Envoy asks for the route table of this name over this stream.
    Discovered(String),
}

/// What differs between connection managers.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ConnectionManager<'a> {
    /// `http`, `http2` or `grpc`.
    pub protocol: &'a str,
    /// Prefix of its statistics.
    pub stat_prefix: String,
    /// Its routes.
    pub routes: Routes,
    /// Finds the tokens that access rules ask for, if they do.
    pub tokens: Option<hcm::HttpFilter>,
    /// The rules of who may ask for what, if any.
    pub access_rules: Option<hcm::HttpFilter>,
    /// Limits how many requests are taken, if that is limited.
    pub rate_limits: Option<hcm::HttpFilter>,
    /// Tell the application who calls, in the header `x-forwarded-client-cert`.
    pub forward_client_cert: bool,
    /// How odd requests are read; only for inbound ones.
    pub normalization: Option<&'a RequestNormalization>,
    /// What is traced. Without it Envoy doesn't trace at all.
    pub tracing: Option<Tracing>,
    /// How long to wait for discovered routes, in milliseconds; `None` leaves it to Envoy.
    pub fetch_timeout_ms: Option<i64>,
    /// Most kilobytes of headers.
    pub max_request_headers_kb: Option<u32>,
    /// Its access log.
    pub access_log: Vec<accesslog::AccessLog>,
}

impl<'a> ConnectionManager<'a> {
    /// One with nothing but routes.
    pub(super) fn new(protocol: &'a str, stat_prefix: impl Into<String>, routes: Routes) -> Self {
        debug_assert!(is_http_like(protocol));
        Self {
            protocol,
            stat_prefix: stat_prefix.into(),
            routes,
            tokens: None,
            access_rules: None,
            rate_limits: None,
            forward_client_cert: false,
            normalization: None,
            tracing: Some(no_sampling()),
            fetch_timeout_ms: None,
            max_request_headers_kb: None,
            access_log: Vec::new(),
        }
    }

    /// The network filter.
    ///
    /// # Errors
    /// A mesh setting that Envoy would refuse.
    pub(super) fn filter(self) -> Result<listener::Filter, BuildError> {
        use hcm::http_connection_manager::{RouteSpecifier, UpgradeConfig};

        let http_filters = self.http_filters();
        let route_specifier = match self.routes {
            Routes::Inline(routes) => RouteSpecifier::RouteConfig(*routes),
            Routes::Discovered(route_config_name) => RouteSpecifier::Rds(hcm::Rds {
                config_source: ads_within(self.fetch_timeout_ms),
                route_config_name,
            }),
        };
        let mut manager = hcm::HttpConnectionManager {
            stat_prefix: self.stat_prefix,
            http_filters,
            access_log: self.access_log,
            max_request_headers_kb: self.max_request_headers_kb.and_then(uint32),
            route_specifier: Some(route_specifier),
            tracing: self.tracing,
            ..Default::default()
        };
        if matches!(self.protocol, "http2" | "grpc") {
            manager.http2_protocol_options = Some(core::Http2ProtocolOptions::default());
        }
        if self.protocol == "http" {
            manager.upgrade_configs.push(UpgradeConfig {
                upgrade_type: "websocket".to_owned(),
                ..Default::default()
            });
        }
        if self.forward_client_cert {
            forward_client_cert(&mut manager);
        }
        if let Some(normalization) = self.normalization {
            normalize(&mut manager, normalization)?;
        }
        Ok(filter(
            "envoy.filters.network.http_connection_manager",
            &manager,
        ))
    }

    fn http_filters(&self) -> Vec<hcm::HttpFilter> {
        let mut filters = Vec::new();
        if self.protocol == "grpc" {
            let all_methods = grpc_stats::filter_config::PerMethodStatSpecifier::StatsForAllMethods(
                envoy_types::pb::google::protobuf::BoolValue { value: true },
            );
            let stats = grpc_stats::FilterConfig {
                per_method_stat_specifier: Some(all_methods),
                ..Default::default()
            };
            filters.push(http_filter("envoy.filters.http.grpc_stats", &stats));
            filters.push(http_filter(
                "envoy.filters.http.grpc_http1_bridge",
                &grpc_http1_bridge::Config::default(),
            ));
        }
        filters.extend(self.tokens.clone());
        filters.extend(self.access_rules.clone());
        if self.forward_client_cert {
            filters.push(http_filter(
                "envoy.filters.http.header_to_metadata",
                &caller_metadata(),
            ));
        }
        filters.extend(self.rate_limits.clone());
        filters.push(http_filter(
            "envoy.filters.http.router",
            &router::Router::default(),
        ));
        filters
    }
}

/// Traces requests that come with a trace, and starts none.
pub(super) fn no_sampling() -> Tracing {
    Tracing {
        random_sampling: Some(Percent { value: 0.0 }),
        ..Default::default()
    }
}

fn forward_client_cert(manager: &mut hcm::HttpConnectionManager) {
    use hcm::http_connection_manager::{ForwardClientCertDetails, SetCurrentClientCertDetails};
    manager.forward_client_cert_details = ForwardClientCertDetails::AppendForward as i32;
    manager.set_current_client_cert_details = Some(SetCurrentClientCertDetails {
        subject: boolean(true),
        cert: true,
        chain: true,
        dns: true,
        uri: true,
        ..Default::default()
    });
}

fn normalize(
    manager: &mut hcm::HttpConnectionManager,
    settings: &RequestNormalization,
) -> Result<(), BuildError> {
    use core::http_protocol_options::HeadersWithUnderscoresAction;

    // Rules about paths mean little unless paths are normalized first.
    manager.normalize_path = boolean(!settings.insecure_disable_path_normalization);
    manager.merge_slashes = settings.merge_slashes;
    manager.path_with_escaped_slashes_action =
        settings::escaped_slashes(&settings.path_with_escaped_slashes_action)
            .map_err(BuildError::new)?;
    let underscores = settings.headers_with_underscores_action.as_str();
    if !underscores.is_empty() {
        let action = HeadersWithUnderscoresAction::from_str_name(underscores).ok_or_else(|| {
            BuildError::new(format!(
                "mesh HTTP.Incoming.RequestNormalization.HeadersWithUnderscoresAction: {underscores:?} is not one of ALLOW, REJECT_REQUEST, DROP_HEADER"
            ))
        })?;
        manager.common_http_protocol_options = Some(core::HttpProtocolOptions {
            headers_with_underscores_action: action as i32,
            ..Default::default()
        });
    }
    Ok(())
}

/// Takes the caller's identity apart for access logs and other filters.
fn caller_metadata() -> header_to_metadata::Config {
    const IDENTITY: &str =
        r".*URI=spiffe://([^/]+\.[^/]+)(?:/ap/([^/]+))?/ns/([^/]+)/dc/([^/]+)/svc/([^/;,]+).*";
    const KEYS: [&str; 5] = [
        "trust-domain",
        "partition",
        "namespace",
        "datacenter",
        "service",
    ];

    let rules = KEYS
        .iter()
        .enumerate()
        .map(|(place, key)| header_to_metadata::config::Rule {
            header: "x-forwarded-client-cert".to_owned(),
            on_header_present: Some(header_to_metadata::config::KeyValuePair {
                metadata_namespace: "consul".to_owned(),
                key: (*key).to_owned(),
                regex_value_rewrite: Some(matcher::RegexMatchAndSubstitute {
                    pattern: Some(regex(IDENTITY)),
                    substitution: format!("\\{}", place + 1),
                }),
                ..Default::default()
            }),
            ..Default::default()
        });
    header_to_metadata::Config {
        request_rules: rules.collect(),
        ..Default::default()
    }
}

/// A route table with one route to one cluster.
pub(super) fn single_route(
    name: &str,
    virtual_host: &str,
    matches: route::RouteMatch,
    action: route::RouteAction,
) -> route::RouteConfiguration {
    route_table(name, virtual_host, vec![route(matches, action)])
}

/// What happens to the requests that fit.
pub(super) fn route(matches: route::RouteMatch, action: route::RouteAction) -> route::Route {
    route::Route {
        r#match: Some(matches),
        action: Some(route::route::Action::Route(action)),
        ..Default::default()
    }
}

/// A route table with one virtual host for everything.
pub(super) fn route_table(
    name: &str,
    virtual_host: &str,
    routes: Vec<route::Route>,
) -> route::RouteConfiguration {
    route::RouteConfiguration {
        name: name.to_owned(),
        virtual_hosts: vec![route::VirtualHost {
            name: virtual_host.to_owned(),
            domains: vec!["*".to_owned()],
            routes,
            ..Default::default()
        }],
        ..Default::default()
    }
}

/// Fits every path that begins so.
pub(super) fn prefix(path: &str) -> route::RouteMatch {
    route::RouteMatch {
        path_specifier: Some(route::route_match::PathSpecifier::Prefix(path.to_owned())),
        ..Default::default()
    }
}

/// Leads to a cluster.
pub(super) fn to_cluster(cluster: &str) -> route::RouteAction {
    route::RouteAction {
        cluster_specifier: Some(route::route_action::ClusterSpecifier::Cluster(
            cluster.to_owned(),
        )),
        ..Default::default()
    }
}
