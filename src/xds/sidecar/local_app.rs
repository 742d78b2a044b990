//! The cluster of the application itself.

use crate::xds::BuildError;
use crate::xds::clusters::protocol_options;
use crate::xds::endpoints;
use crate::xds::names::LOCAL_APP;
use crate::xds::proto::{cluster, core, millis, pipe, socket_address, uint32};

use super::Proxy;

/// `local_app` (xds.md 4.2.2).
///
/// # Errors
/// The application's address isn't an IP address.
pub(in crate::xds) fn local_app(proxy: &Proxy<'_>) -> Result<cluster::Cluster, BuildError> {
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
