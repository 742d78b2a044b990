//! The listener that the mesh reaches the application at (xds.md 4.2.3): mutual TLS, then access rules, then the
//! application.

use envoy_types::pb::envoy::extensions::filters::network::{
    connection_limit::v3::ConnectionLimit, tcp_proxy::v3 as tcp_proxy,
};

use crate::model::{Intention, JwtProvider, MeshConfig, RequestNormalization, is_http_like};
use crate::xds::custom::CustomListener;
use crate::xds::http::{self, ConnectionManager, Routes};
use crate::xds::names::{LOCAL_APP, PUBLIC_LISTENER};
use crate::xds::proto::{cluster, core, filter, listener, millis, uint32, uint64};
use crate::xds::rbac::{AccessRules, Layer, RuleSource};
use crate::xds::tls_context;
use crate::xds::{BuildError, jwt, rate_limit};

use triomphe::Arc;

use super::{ListenerResource, Proxy, at_port, exact_balance};

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
    pub listener: ListenerResource,
    /// Clusters that its filters need: where the keys of tokens are fetched from.
    pub clusters: Vec<cluster::Cluster>,
    /// What is wrong with access rules.
    pub problems: Vec<String>,
}

/// The public listener: generated, or as the operator wrote it with access rules and TLS put in.
///
/// # Errors
/// A setting that Envoy would refuse. Access rules never make an error: in doubt they deny.
pub(in crate::xds) fn public_listener(
    proxy: &Proxy<'_>,
    inbound: Inbound<'_>,
) -> Result<PublicListener, BuildError> {
    if let Some(name) = proxy.unsupported_required {
        // It may be what keeps callers out.
        return Err(BuildError::new(format!(
            "the extension {name:?} is Required, and extensions aren't supported"
        )));
    }
    let layer = if is_http_like(&proxy.settings.protocol) {
        Layer::Request
    } else {
        Layer::Connection
    };
    if proxy.settings.public_listener_json.is_empty() {
        generated(proxy, inbound, layer)
    } else {
        custom(proxy, inbound, layer).map_err(|e| e.at("Proxy.Config.envoy_public_listener_json"))
    }
}

/// What stands in front of the application.
struct Guard {
    rules: AccessRules,
    problems: Vec<String>,
    socket: core::TransportSocket,
}

impl Guard {
    fn new(proxy: &Proxy<'_>, inbound: Inbound<'_>, layer: Layer) -> Result<Self, BuildError> {
        let source = RuleSource {
            intentions: inbound.intentions,
            default_allow: proxy.header.intention_default_allow,
            trust_domain: inbound.trust_domain,
            jwt_providers: inbound.jwt_providers,
        };
        let (rules, problems) = AccessRules::new(source, layer);
        let incoming = inbound
            .mesh
            .and_then(|mesh| mesh.tls.as_ref()?.incoming.as_ref());
        let alpn = tls_context::alpn(&proxy.settings.protocol);
        let socket = tls_context::downstream(incoming, alpn, rules.callers())?;
        Ok(Self {
            rules,
            problems,
            socket,
        })
    }

    fn listener(self, listener: ListenerResource) -> PublicListener {
        let providers = self.rules.token_providers().values();
        PublicListener {
            listener,
            clusters: providers.filter_map(|p| p.cluster.clone()).collect(),
            problems: self.problems,
        }
    }
}

/// xds.md 4.2.3, the last paragraph.
fn custom(
    proxy: &Proxy<'_>,
    inbound: Inbound<'_>,
    layer: Layer,
) -> Result<PublicListener, BuildError> {
    let mut listener = CustomListener::read(&proxy.settings.public_listener_json)?;
    let http = listener.speaks_http();
    let guarded = if http { layer } else { Layer::Connection };
    let mut guard = Guard::new(proxy, inbound, guarded)?;
    match guarded {
        Layer::Request => {
            let mut filters: Vec<_> = jwt::filter(guard.rules.token_providers())
                .into_iter()
                .collect();
            filters.push(guard.rules.http_filter());
            listener.guard_requests(&filters, &guard.socket)?;
        }
        Layer::Connection => {
            if layer == Layer::Request {
                guard.problems.push(
                    "access rules see connections only: a filter chain of envoy_public_listener_json has no HTTP connection manager"
                        .to_owned(),
                );
            }
            listener.guard_connections(&guard.rules.network_filter(), &guard.socket)?;
        }
    }
    Ok(guard.listener(listener.built()?))
}

fn generated(
    proxy: &Proxy<'_>,
    inbound: Inbound<'_>,
    layer: Layer,
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
    let mut guard = Guard::new(proxy, inbound, layer)?;
    let mut filters = Vec::new();
    if layer == Layer::Connection {
        filters.push(guard.rules.network_filter());
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
        Layer::Request => http_filter(proxy, inbound.mesh, &mut guard)?,
    });
    built.message.filter_chains.push(listener::FilterChain {
        filters,
        transport_socket: Some(guard.socket.clone()),
        ..Default::default()
    });
    built.message.access_log.clone_from(&proxy.loggers.listener);
    if proxy.settings.exact_balance {
        built.message.connection_balance_config = Some(exact_balance());
    }
    Ok(guard.listener(built.encoded()))
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
    guard: &mut Guard,
) -> Result<listener::Filter, BuildError> {
    let mut action = http::to_cluster(LOCAL_APP);
    action.timeout = proxy.settings.local_request_timeout_ms.and_then(millis);
    action.idle_timeout = proxy.settings.local_idle_timeout_ms.and_then(millis);
    let (mut routes, problems) = proxy
        .rate_limits
        .map(|limits| rate_limit::routes(limits, &action))
        .unwrap_or_default();
    guard.problems.extend(problems);
    routes.push(http::route(http::prefix("/"), action));
    let routes = http::route_table(PUBLIC_LISTENER, PUBLIC_LISTENER, routes);
    let mesh_http = mesh.and_then(|mesh| mesh.http.as_ref());
    let configured = mesh_http
        .and_then(|http| http.incoming.as_ref())
        .and_then(|incoming| incoming.request_normalization.as_ref());
    let default = RequestNormalization::default();
    let protocol = proxy.settings.protocol.as_str();
    ConnectionManager {
        tokens: jwt::filter(guard.rules.token_providers()),
        access_rules: Some(guard.rules.http_filter()),
        rate_limits: proxy.rate_limits.map(rate_limit::filter),
        tracing: Some(proxy.tracing.clone()),
        forward_client_cert: protocol != "grpc"
            && !mesh_http.is_some_and(|http| http.sanitize_x_forwarded_client_cert),
        normalization: Some(configured.unwrap_or(&default)),
        max_request_headers_kb: proxy.settings.max_request_headers_kb,
        access_log: proxy.loggers.filter.clone(),
        ..ConnectionManager::new(protocol, PUBLIC_LISTENER, Routes::Inline(Box::new(routes)))
    }
    .filter()
}
