//! The listener that the application dials to reach an upstream (xds.md 4.2.4).

use smol_str::SmolStr;

use crate::model::chain::CompiledChain;
use crate::model::{Upstream, UpstreamId, is_http_like};
use crate::snapshot::UpstreamSettings;
use crate::xds::custom::CustomListener;
use crate::xds::http::{self, ConnectionManager, Routes};
use crate::xds::proto::{core, listener};
use crate::xds::{BuildError, clusters, names, routes, settings};

use super::public_listener::tcp_filter;
use super::{ListenerResource, Proxy, at_port, at_socket, exact_balance};

/// Where the traffic of an upstream's listener goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::xds) enum Routing {
    /// All of it to one cluster.
    Cluster(SmolStr),
    /// By request, after the route table that is called like the upstream.
    Table,
}

impl Routing {
    /// The routing of a chain; `None` while its only cluster is awaited.
    ///
    /// # Errors
    /// A TCP chain that chooses by request.
    pub(in crate::xds) fn of(chain: &CompiledChain) -> Result<Option<Self>, BuildError> {
        if is_http_like(&chain.protocol) && !chain.default {
            return Ok(Some(Self::Table));
        }
        Ok(routes::only_cluster(chain)?.map(Self::Cluster))
    }
}

/// The listener of an upstream, and what can't be honoured.
///
/// # Errors
/// A setting that Envoy would refuse.
pub(in crate::xds) fn upstream_listener(
    proxy: &Proxy<'_>,
    id: &UpstreamId,
    definition: &Upstream,
    chain: &CompiledChain,
    upstream: &UpstreamSettings,
    routing: &Routing,
) -> Result<(ListenerResource, Vec<String>), BuildError> {
    let mut complaints = Vec::new();
    if !chain.default {
        for (key, json) in [
            ("envoy_listener_json", &upstream.envoy_listener_json),
            ("envoy_cluster_json", &upstream.envoy_cluster_json),
        ] {
            if !json.trim().is_empty() {
                complaints.push(format!(
                    "{key} is ignored: the service has a router, splitter or resolver, which decides instead"
                ));
            }
        }
    }
    if chain.default && !upstream.envoy_listener_json.trim().is_empty() {
        let custom = CustomListener::read(upstream.envoy_listener_json.trim())
            .and_then(|listener| listener.built())
            .map_err(|e| e.at("envoy_listener_json"))?;
        return Ok((custom, complaints));
    }
    let name = id.to_string();
    let direction = core::TrafficDirection::Outbound;
    let mut built = if definition.local_bind_port != 0 {
        at_port(
            &name,
            definition.bind_address(),
            definition.local_bind_port,
            direction,
        )
        .map_err(|e| e.at("LocalBindAddress"))?
    } else {
        let mode = socket_mode(&definition.local_bind_socket_mode)?;
        at_socket(&name, &definition.local_bind_socket_path, mode, direction)
            .map_err(|e| e.at("LocalBindSocketPath"))?
    };
    let filter = filter(proxy, &name, chain, upstream, routing, &mut built.routes)?;
    built.message.filter_chains.push(listener::FilterChain {
        filters: vec![filter],
        ..Default::default()
    });
    built.message.access_log.clone_from(&proxy.loggers.listener);
    match settings::exact_balance(&upstream.balance_outbound_connections) {
        Ok(true) => built.message.connection_balance_config = Some(exact_balance()),
        Ok(false) => {}
        Err(wanted) => complaints.push(format!(
            "balance_outbound_connections: {:?} {wanted}",
            upstream.balance_outbound_connections
        )),
    }
    Ok((built.encoded(), complaints))
}

fn filter(
    proxy: &Proxy<'_>,
    name: &str,
    chain: &CompiledChain,
    upstream: &UpstreamSettings,
    routing: &Routing,
    named_routes: &mut Vec<SmolStr>,
) -> Result<listener::Filter, BuildError> {
    let filter_name = names::chain_filter(chain);
    let stat_prefix = names::upstream_stat_prefix(&filter_name);
    let protocol = match routing {
        // A table is about requests, whatever the upstream's own settings say.
        Routing::Table => chain.protocol.as_str(),
        Routing::Cluster(_) => clusters::effective_protocol(chain, upstream),
    };
    let routes = match routing {
        Routing::Cluster(cluster) if !is_http_like(protocol) => {
            return Ok(tcp_filter(&stat_prefix, cluster, proxy));
        }
        Routing::Cluster(cluster) => {
            let action = http::to_cluster(cluster);
            Routes::Inline(Box::new(http::single_route(
                name,
                &filter_name,
                http::prefix("/"),
                action,
            )))
        }
        Routing::Table => {
            named_routes.push(name.into());
            Routes::Discovered(name.to_owned())
        }
    };
    ConnectionManager {
        access_log: proxy.loggers.filter.clone(),
        tracing: Some(proxy.tracing.clone()),
        fetch_timeout_ms: proxy.settings.fetch_timeout_ms,
        ..ConnectionManager::new(protocol, stat_prefix, routes)
    }
    .filter()
}

/// The mode of a socket, in octal; empty leaves it to the operating system.
fn socket_mode(text: &str) -> Result<u32, BuildError> {
    match text {
        "" => Ok(0),
        _ => u32::from_str_radix(text, 8)
            .ok()
            .filter(|mode| *mode <= 0o777)
            .ok_or_else(|| {
                BuildError::new(format!(
                    "LocalBindSocketMode: {text:?} is not an octal mode like \"0600\""
                ))
            }),
    }
}
