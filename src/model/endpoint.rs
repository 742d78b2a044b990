//! What proxies read of a service instance: an answer that leaves out the rest, so that writes which no proxy can see
//! wake none.

use smol_str::SmolStr;

/// The health of an instance over its node's checks and its own (store.md 1.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EndpointHealth {
    /// All checks pass, or there are none.
    Passing,
    /// The worst check warns.
    Warning,
    /// A check is critical, or the node or instance is in maintenance.
    Critical,
}

/// One reachable instance of a service.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// Node.
    pub node: SmolStr,
    /// Id of the instance that is dialled: of the sidecar, where there is one.
    pub service_id: SmolStr,
    /// Datacenter of the node.
    pub datacenter: SmolStr,
    /// Best address within the datacenter.
    pub address: SmolStr,
    /// Its port.
    pub port: u16,
    /// Best address from other datacenters.
    pub wan_address: SmolStr,
    /// Its port.
    pub wan_port: u16,
    /// Unix socket, if it listens on one.
    pub socket_path: SmolStr,
    /// Health over all checks.
    pub health: EndpointHealth,
    /// Weight while passing.
    pub weight_passing: u32,
    /// Weight while warning.
    pub weight_warning: u32,
}

impl serde::Serialize for Endpoint {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeMap as _;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("Node", &self.node)?;
        map.serialize_entry("ServiceID", &self.service_id)?;
        map.serialize_entry("Datacenter", &self.datacenter)?;
        map.serialize_entry("Address", &self.address)?;
        map.serialize_entry("Port", &self.port)?;
        if self.wan_address != self.address || self.wan_port != self.port {
            map.serialize_entry("WANAddress", &self.wan_address)?;
            map.serialize_entry("WANPort", &self.wan_port)?;
        }
        if !self.socket_path.is_empty() {
            map.serialize_entry("SocketPath", &self.socket_path)?;
        }
        let health = match self.health {
            EndpointHealth::Passing => "passing",
            EndpointHealth::Warning => "warning",
            EndpointHealth::Critical => "critical",
        };
        map.serialize_entry("Health", health)?;
        map.serialize_entry("Weight", &self.weight_passing)?;
        map.serialize_entry("WarningWeight", &self.weight_warning)?;
        map.end()
    }
}
