//! The cluster of the application itself.

use prost::Message as _;

use crate::xds::BuildError;
use crate::xds::clusters::protocol_options;
use crate::xds::custom::{self, CustomCluster};
use crate::xds::endpoints;
use crate::xds::names::LOCAL_APP;
use crate::xds::proto::{cluster, core, millis, pipe, socket_address, uint32};

use super::Proxy;

/// The application's cluster, and what is odd about it: generated, or as the operator wrote it (xds.md 4.2.2).
///
/// # Errors
/// The application's address isn't an IP address; the operator's JSON can't be used.
pub(in crate::xds) fn local_app(
    proxy: &Proxy<'_>,
) -> Result<(CustomCluster, Option<String>), BuildError> {
    let text = &proxy.settings.local_cluster_json;
    if text.is_empty() {
        let generated = generated(proxy)?;
        let cluster = CustomCluster {
            name: LOCAL_APP.into(),
            // Its one map has one entry at most.
            bytes: generated.encode_to_vec(),
            assignment: None,
            composed: false,
        };
        return Ok((cluster, None));
    }
    let place = "Proxy.Config.envoy_local_cluster_json";
    let cluster = custom::cluster(text, None).map_err(|e| e.at(place))?;
    if cluster.assignment.is_some() {
        return Err(BuildError::new(
            "type EDS has no endpoints here; give them in load_assignment",
        )
        .at(place));
    }
    let unused = cluster.name != LOCAL_APP && proxy.settings.public_listener_json.is_empty();
    let odd = unused.then(|| {
        format!(
            "{place}: the cluster is called {:?}; nothing leads to it unless it is called {LOCAL_APP:?}",
            cluster.name
        )
    });
    Ok((cluster, odd))
}

fn generated(proxy: &Proxy<'_>) -> Result<cluster::Cluster, BuildError> {
    let config = &proxy.header.proxy;
    let address = if config.local_service_port == 0 && !config.local_service_socket_path.is_empty()
    {
        pipe(&config.local_service_socket_path, 0)?
    } else {
        socket_address(local_address(proxy), config.local_service_port)
            .map_err(|e| e.at("Proxy.LocalServiceAddress"))?
    };
    let mut local_app = application_cluster(proxy, LOCAL_APP, address);
    local_app.typed_extension_protocol_options = protocol_options(&proxy.settings.protocol);
    if proxy.settings.max_inbound_connections > 0 {
        let threshold = cluster::circuit_breakers::Thresholds {
            max_connections: uint32(proxy.settings.max_inbound_connections),
            ..Default::default()
        };
        local_app.circuit_breakers = Some(cluster::CircuitBreakers {
            thresholds: vec![threshold],
            ..Default::default()
        });
    }
    Ok(local_app)
}

/// Where the application listens. `localhost` is taken for what it always means; Envoy would refuse the name.
pub(super) fn local_address<'a>(proxy: &'a Proxy<'_>) -> &'a str {
    match proxy.header.proxy.local_service_address.as_str() {
        "" | "localhost" => "127.0.0.1",
        address => address,
    }
}

/// A cluster with one address, in plain text.
pub(super) fn application_cluster(
    proxy: &Proxy<'_>,
    name: &str,
    address: core::Address,
) -> cluster::Cluster {
    cluster::Cluster {
        name: name.to_owned(),
        connect_timeout: millis(proxy.settings.local_connect_timeout_ms),
        cluster_discovery_type: Some(cluster::cluster::ClusterDiscoveryType::Type(
            cluster::cluster::DiscoveryType::Static as i32,
        )),
        load_assignment: Some(endpoints::single_assignment(name, address)),
        ..Default::default()
    }
}
