//! The listener that the mesh reaches the application at (xds.md 4.2.3): mutual TLS, then access rules, then the
//! application.

use envoy_types::pb::envoy::extensions::filters::network::{
    connection_limit::v3::ConnectionLimit, tcp_proxy::v3 as tcp_proxy,
};

use crate::model::{Intention, JwtProvider, MeshConfig, RequestNormalization, is_http_like};
use crate::xds::http::{self, ConnectionManager, Routes};
use crate::xds::names::{LOCAL_APP, PUBLIC_LISTENER};
use crate::xds::proto::{cluster, core, filter, listener, millis, uint32, uint64};
use crate::xds::rbac::{AccessRules, Layer, RuleSource};
use crate::xds::tls_context;
use crate::xds::{BuildError, jwt};

use triomphe::Arc;

use super::{BuiltListener, Proxy, at_port, exact_balance};

const TCP_PROXY: &str = "envoy.filters.network.tcp_proxy";

/// What decides about inbound connections beside the proxy itself.
#[derive(Debug, Clone, Copy)]
pub(in crate::xds) struct Inbound<'a> {
    /// Who may call.
    pub intentions: &'a [Intention],
    /// The mesh entry.
    pub mesh: Option<&'a MeshConfig>,
    /// The mesh's trust domain.
    pub trust_domain: &'a str,
    /// Issuers of tokens.
    pub jwt_providers: &'a [Arc<JwtProvider>],
}

/// The public listener with what belongs to it.
#[derive(Debug)]
pub(in crate::xds) struct PublicListener {
    /// The listener.
    pub listener: BuiltListener,
    /// Clusters that its filters need: where the keys of tokens are fetched from.
    pub clusters: Vec<cluster::Cluster>,
    /// What is wrong with access rules.
    pub problems: Vec<String>,
}

/// The public listener.
///
/// # Errors
/// A setting that Envoy would refuse. Access rules never make an error: in doubt they deny.
pub(in crate::xds) fn public_listener(
    proxy: &Proxy<'_>,
    inbound: Inbound<'_>,
) -> Result<PublicListener, BuildError> {
    let port = match proxy.settings.bind_port {
        0 => proxy.header.port,
        port => port,
    };
    let mut built = at_port(
        PUBLIC_LISTENER,
        proxy.bind_address(),
        port,
        core::TrafficDirection::Inbound,
    )?;
    let protocol = proxy.settings.protocol.as_str();
    let layer = if is_http_like(protocol) {
        Layer::Request
    } else {
        Layer::Connection
    };
    let source = RuleSource {
        intentions: inbound.intentions,
        default_allow: proxy.header.intention_default_allow,
        trust_domain: inbound.trust_domain,
        jwt_providers: inbound.jwt_providers,
    };
    let (rules, problems) = AccessRules::new(source, layer);
    let mut filters = Vec::new();
    if layer == Layer::Connection {
        filters.push(rules.network_filter());
    }
    if proxy.settings.max_inbound_connections > 0 {
        let limit = ConnectionLimit {
            stat_prefix: "inbound_connection_limit".to_owned(),
            max_connections: uint64(proxy.settings.max_inbound_connections.into()),
            ..Default::default()
        };
        filters.push(filter("envoy.filters.network.connection_limit", &limit));
    }
    filters.push(match layer {
        Layer::Connection => {
            // Before the handshake nobody knows who calls: the application isn't reached until then.
            let mut tcp = tcp_proxy(PUBLIC_LISTENER, LOCAL_APP, proxy);
            tcp.set_upstream_connect_mode(tcp_proxy::UpstreamConnectMode::OnDownstreamTlsHandshake);
            tcp.max_early_data_bytes = uint32(0);
            filter(TCP_PROXY, &tcp)
        }
        Layer::Request => http_filter(proxy, inbound.mesh, &rules)?,
    });
    let incoming = inbound
        .mesh
        .and_then(|mesh| mesh.tls.as_ref()?.incoming.as_ref());
    built.message.filter_chains.push(listener::FilterChain {
        filters,
        transport_socket: Some(tls_context::downstream(
            incoming,
            tls_context::alpn(protocol),
            rules.callers(),
        )?),
        ..Default::default()
    });
    built.message.access_log.clone_from(&proxy.loggers.listener);
    if proxy.settings.exact_balance {
        built.message.connection_balance_config = Some(exact_balance());
    }
    let providers = rules.token_providers().values();
    Ok(PublicListener {
        listener: built,
        clusters: providers.filter_map(|p| p.cluster.clone()).collect(),
        problems,
    })
}

/// Hands connections on to a cluster.
pub(super) fn tcp_filter(stat_prefix: &str, cluster: &str, proxy: &Proxy<'_>) -> listener::Filter {
    filter(TCP_PROXY, &tcp_proxy(stat_prefix, cluster, proxy))
}

fn tcp_proxy(stat_prefix: &str, cluster: &str, proxy: &Proxy<'_>) -> tcp_proxy::TcpProxy {
    tcp_proxy::TcpProxy {
        stat_prefix: stat_prefix.to_owned(),
        cluster_specifier: Some(tcp_proxy::tcp_proxy::ClusterSpecifier::Cluster(
            cluster.to_owned(),
        )),
        access_log: proxy.loggers.filter.clone(),
        ..Default::default()
    }
}

fn http_filter(
    proxy: &Proxy<'_>,
    mesh: Option<&MeshConfig>,
    rules: &AccessRules,
) -> Result<listener::Filter, BuildError> {
    let mut action = http::to_cluster(LOCAL_APP);
    action.timeout = proxy.settings.local_request_timeout_ms.and_then(millis);
    action.idle_timeout = proxy.settings.local_idle_timeout_ms.and_then(millis);
    let routes = http::single_route(PUBLIC_LISTENER, PUBLIC_LISTENER, http::prefix("/"), action);
    let mesh_http = mesh.and_then(|mesh| mesh.http.as_ref());
    let configured = mesh_http
        .and_then(|http| http.incoming.as_ref())
        .and_then(|incoming| incoming.request_normalization.as_ref());
    let default = RequestNormalization::default();
    let protocol = proxy.settings.protocol.as_str();
    ConnectionManager {
        tokens: jwt::filter(rules.token_providers()),
        access_rules: Some(rules.http_filter()),
        forward_client_cert: protocol != "grpc"
            && !mesh_http.is_some_and(|http| http.sanitize_x_forwarded_client_cert),
        normalization: Some(configured.unwrap_or(&default)),
        max_request_headers_kb: proxy.settings.max_request_headers_kb,
        access_log: proxy.loggers.filter.clone(),
        ..ConnectionManager::new(protocol, PUBLIC_LISTENER, Routes::Inline(Box::new(routes)))
    }
    .filter()
}
