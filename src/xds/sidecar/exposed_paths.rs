//! Plain HTTP paths that are opened beside the mesh, for health checks and metrics (xds.md 4.2.6).

use std::collections::BTreeMap;
use std::net::IpAddr;

use smol_str::SmolStr;

use crate::model::{ExposePath, ExposedChecks};
use crate::xds::clusters::protocol_options;
use crate::xds::http::{self, ConnectionManager, Routes};
use crate::xds::names::{self, LOCAL_APP};
use crate::xds::proto::{cluster, core, listener, route, socket_address, uint32};
use crate::xds::{BuildError, Problem};

use super::local_app::{application_cluster, local_address};
use super::{BuiltListener, ListenerResource, Proxy, at_port};

/// The listeners of all exposed paths, and the clusters of those on ports of their own. A path that can't be opened is
/// left out and told; its place in the list names it.
pub(in crate::xds) fn exposed_paths(
    proxy: &Proxy<'_>,
    checks: &ExposedChecks,
) -> (
    Vec<ListenerResource>,
    BTreeMap<SmolStr, cluster::Cluster>,
    Vec<Problem>,
) {
    let (mut listeners, mut clusters, mut problems) = (Vec::new(), BTreeMap::new(), Vec::new());
    let about = |text: &String| Problem::new("exposed checks", text.as_str());
    problems.extend(checks.complaints.iter().map(about));
    let paths = proxy.header.proxy.expose.paths.iter().enumerate();
    let paths =
        paths.map(|(number, path)| (format!("Proxy.Expose.Paths[{number}]"), path, Vec::new()));
    let callers = checkers(proxy, checks);
    let of_checks = checks.paths.iter();
    let of_checks = of_checks.map(|path| ("Proxy.Expose.Checks".to_owned(), path, callers.clone()));
    for (place, path, callers) in paths.chain(of_checks) {
        match exposed_path(proxy, path, callers) {
            Ok((listener, cluster)) => {
                listeners.push(listener.encoded());
                clusters.extend(cluster.map(|cluster| (SmolStr::from(&cluster.name), cluster)));
            }
            Err(error) => problems.push(Problem::new(
                format!("exposed path {}", path.path),
                error.at(&place).to_string(),
            )),
        }
    }
    (listeners, clusters, problems)
}

/// From where checks come: the agent's machine. Envoy refuses an IPv6 range on a machine without IPv6, and one that binds
/// to an IPv4 address has no IPv6 callers.
fn checkers(proxy: &Proxy<'_>, checks: &ExposedChecks) -> Vec<core::CidrRange> {
    let range = |address: &str, length| core::CidrRange {
        address_prefix: address.to_owned(),
        prefix_len: uint32(length),
    };
    let mut ranges = vec![range("127.0.0.1", 8)];
    match checks.agent_address.parse() {
        Ok(IpAddr::V4(_)) => ranges.push(range(&checks.agent_address, 32)),
        Ok(IpAddr::V6(_)) => ranges.push(range(&checks.agent_address, 128)),
        // A name: checks through it come from somewhere else than loopback only if they are run elsewhere.
        Err(_) => {}
    }
    if proxy
        .bind_address()
        .parse()
        .is_ok_and(|ip: IpAddr| ip.is_ipv6())
    {
        ranges.push(range("::1", 128));
    }
    ranges
}

/// `callers`: who may come; empty means everybody.
fn exposed_path(
    proxy: &Proxy<'_>,
    path: &ExposePath,
    callers: Vec<core::CidrRange>,
) -> Result<(BuiltListener, Option<cluster::Cluster>), BuildError> {
    if !path.path.starts_with('/') {
        return Err(BuildError::new(format!(
            "Path {:?} must begin with /",
            path.path
        )));
    }
    let protocol = match path.protocol.as_str() {
        "" | "http" => "http",
        "http2" => "http2",
        other => {
            return Err(BuildError::new(format!(
                "Protocol {other:?} is not one of http, http2"
            )));
        }
    };
    let own_port =
        path.local_path_port != 0 && path.local_path_port != proxy.header.proxy.local_service_port;
    let cluster = own_port
        .then(|| {
            let address = socket_address(local_address(proxy), path.local_path_port)?;
            let name = names::exposed_cluster(path.local_path_port);
            let mut cluster = application_cluster(proxy, &name, address);
            cluster.typed_extension_protocol_options = protocol_options(protocol);
            Ok::<_, BuildError>(cluster)
        })
        .transpose()?;
    let stripped = names::stripped_path(&path.path);
    let mut built = at_port(
        &format!("exposed_path_{stripped}"),
        proxy.bind_address(),
        path.listener_port,
        core::TrafficDirection::Inbound,
    )
    .map_err(|e| e.at("ListenerPort"))?;
    let name = format!("exposed_path_filter_{stripped}_{}", path.listener_port);
    let exact = route::RouteMatch {
        path_specifier: Some(route::route_match::PathSpecifier::Path(path.path.clone())),
        ..Default::default()
    };
    let action = http::to_cluster(cluster.as_ref().map_or(LOCAL_APP, |cluster| &cluster.name));
    let routes = Routes::Inline(Box::new(http::single_route(&name, &name, exact, action)));
    let manager = ConnectionManager {
        tracing: None,
        access_log: proxy.loggers.filter.clone(),
        ..ConnectionManager::new(protocol, name, routes)
    };
    let only = listener::FilterChainMatch {
        source_prefix_ranges: callers,
        ..Default::default()
    };
    built.message.filter_chains.push(listener::FilterChain {
        filter_chain_match: (!only.source_prefix_ranges.is_empty()).then_some(only),
        filters: vec![manager.filter()?],
        ..Default::default()
    });
    built.message.access_log.clone_from(&proxy.loggers.listener);
    Ok((built, cluster))
}
