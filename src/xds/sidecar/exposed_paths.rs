//! Plain HTTP paths that are opened beside the mesh, for health checks and metrics (xds.md 4.2.6).

use std::collections::BTreeMap;

use smol_str::SmolStr;

use crate::model::ExposePath;
use crate::xds::clusters::protocol_options;
use crate::xds::http::{self, ConnectionManager, Routes};
use crate::xds::names::{self, LOCAL_APP};
use crate::xds::proto::{cluster, core, listener, route, socket_address};
use crate::xds::{BuildError, Problem};

use super::local_app::{application_cluster, local_address};
use super::{BuiltListener, ListenerResource, Proxy, at_port};

/// The listeners of all exposed paths, and the clusters of those on ports of their own. A path that can't be opened is
/// left out and told; its place in the list names it.
pub(in crate::xds) fn exposed_paths(
    proxy: &Proxy<'_>,
) -> (
    Vec<ListenerResource>,
    BTreeMap<SmolStr, cluster::Cluster>,
    Vec<Problem>,
) {
    let (mut listeners, mut clusters, mut problems) = (Vec::new(), BTreeMap::new(), Vec::new());
    for (number, path) in proxy.header.proxy.expose.paths.iter().enumerate() {
        match exposed_path(proxy, path) {
            Ok((listener, cluster)) => {
                listeners.push(listener.encoded());
                clusters.extend(cluster.map(|cluster| (SmolStr::from(&cluster.name), cluster)));
            }
            Err(error) => problems.push(Problem::new(
                format!("exposed path {}", path.path),
                error
                    .at(&format!("Proxy.Expose.Paths[{number}]"))
                    .to_string(),
            )),
        }
    }
    (listeners, clusters, problems)
}

fn exposed_path(
    proxy: &Proxy<'_>,
    path: &ExposePath,
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
    built.message.filter_chains.push(listener::FilterChain {
        filters: vec![manager.filter()?],
        ..Default::default()
    });
    built.message.access_log.clone_from(&proxy.loggers.listener);
    Ok((built, cluster))
}
