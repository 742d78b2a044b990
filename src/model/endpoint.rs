//! What proxies read of a service instance: an answer that leaves out the rest, so that writes which no proxy can see
//! wake none.

use smol_str::SmolStr;

use crate::hcl::Value;
use crate::model::check::{AggregatedStatus, HealthCheck};
use crate::model::decode::{Decode, Place, Problems, record, words};
use crate::model::node::Node;
use crate::model::service::ServiceInstance;

words! {
    /// The health of an instance over its node's checks and its own (store.md 1.5).
    pub enum EndpointHealth {
        /// All checks pass, or there are none.
        Passing = "passing",
        /// The worst check warns.
        Warning = "warning",
        /// A check is critical, or the node or instance is in maintenance.
        Critical = "critical",
    }
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

impl Endpoint {
    /// What proxies read of an instance on a node, with the checks of both (store.md 1.2, 1.5).
    pub fn of<'a>(
        node: &Node,
        instance: &ServiceInstance,
        checks: impl IntoIterator<Item = &'a HealthCheck>,
    ) -> Self {
        let (address, port) = instance.best_address(node, false);
        let (wan_address, wan_port) = instance.best_address(node, true);
        let weights = instance.weights.or_default();
        let weight = |w: i64| u32::try_from(w).unwrap_or(1);
        Self {
            node: SmolStr::from(&node.node),
            service_id: SmolStr::from(&instance.id),
            datacenter: SmolStr::from(&node.datacenter),
            address: address.into(),
            port,
            wan_address: wan_address.into(),
            wan_port,
            socket_path: SmolStr::from(&instance.socket_path),
            health: AggregatedStatus::of(checks).into(),
            weight_passing: weight(weights.passing),
            weight_warning: weight(weights.warning),
        }
    }
}

impl From<AggregatedStatus> for EndpointHealth {
    fn from(status: AggregatedStatus) -> Self {
        match status {
            AggregatedStatus::Passing => Self::Passing,
            AggregatedStatus::Warning => Self::Warning,
            AggregatedStatus::Critical | AggregatedStatus::Maintenance => Self::Critical,
        }
    }
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
        map.serialize_entry("Health", &self.health)?;
        map.serialize_entry("Weight", &self.weight_passing)?;
        map.serialize_entry("WarningWeight", &self.weight_warning)?;
        map.end()
    }
}

record! {
    /// An endpoint as it is written.
    pub struct EndpointRecord {
        /// See [`Endpoint::node`].
        node: SmolStr = "Node" always,
        /// See [`Endpoint::service_id`].
        service_id: SmolStr = "ServiceID" always,
        /// See [`Endpoint::datacenter`].
        datacenter: SmolStr = "Datacenter",
        /// See [`Endpoint::address`].
        address: SmolStr = "Address" always,
        /// See [`Endpoint::port`].
        port: u16 = "Port" always,
        /// See [`Endpoint::wan_address`]; if left out, the address.
        wan_address: SmolStr = "WANAddress",
        /// See [`Endpoint::wan_port`]; if left out, the port.
        wan_port: u16 = "WANPort",
        /// See [`Endpoint::socket_path`].
        socket_path: SmolStr = "SocketPath",
        /// See [`Endpoint::health`].
        health: EndpointHealth = "Health",
        /// See [`Endpoint::weight_passing`]; if left out, 1.
        weight: Option<u32> = "Weight",
        /// See [`Endpoint::weight_warning`]; if left out, 1.
        warning_weight: Option<u32> = "WarningWeight",
    }
}

/// Reads the form that it is written in, as a host gives it.
impl Decode for Endpoint {
    fn decode(value: &Value, at: &Place<'_>, problems: &mut Problems) -> Option<Self> {
        let read = EndpointRecord::decode(value, at, problems)?;
        if read.address.is_empty() && read.socket_path.is_empty() {
            problems.error(&at.key("Address"), "give an address or a SocketPath");
            return None;
        }
        let or =
            |text: SmolStr, other: &SmolStr| if text.is_empty() { other.clone() } else { text };
        Some(Self {
            wan_address: or(read.wan_address, &read.address),
            wan_port: if read.wan_port == 0 {
                read.port
            } else {
                read.wan_port
            },
            node: read.node,
            service_id: read.service_id,
            datacenter: read.datacenter,
            address: read.address,
            port: read.port,
            socket_path: read.socket_path,
            health: read.health,
            weight_passing: read.weight.unwrap_or(1),
            weight_warning: read.warning_weight.unwrap_or(1),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::check::CheckStatus;
    use crate::model::node::TaggedAddress;
    use crate::model::service::Weights;

    fn node() -> Node {
        Node {
            node: "n1".into(),
            address: "10.0.0.1".into(),
            datacenter: "dc1".into(),
            tagged_addresses: [("wan".to_owned(), "1.2.3.4".to_owned())].into(),
            ..Node::default()
        }
    }

    fn instance(passing: i64, warning: i64) -> ServiceInstance {
        ServiceInstance {
            id: "web1".into(),
            service: "web".into(),
            port: 8080,
            weights: Weights { passing, warning },
            ..ServiceInstance::default()
        }
    }

    #[test]
    fn store_33_invalid_weights_count_as_one() {
        for (passing, warning, wanted) in [
            (0, 0, (1, 1)),
            (0, 5, (1, 1)),
            (10, 0, (10, 0)),
            (65_535, 65_535, (65_535, 65_535)),
            (65_536, 1, (1, 1)),
            (5, -1, (1, 1)),
        ] {
            let endpoint = Endpoint::of(&node(), &instance(passing, warning), &[]);
            assert_eq!((endpoint.weight_passing, endpoint.weight_warning), wanted);
        }
    }

    #[test]
    fn store_35_best_address() {
        let (node, mut web) = (node(), instance(1, 1));
        let endpoint = Endpoint::of(&node, &web, &[]);
        assert_eq!(
            (endpoint.address.as_str(), endpoint.port),
            ("10.0.0.1", 8080)
        );
        assert_eq!(
            (endpoint.wan_address.as_str(), endpoint.wan_port),
            ("1.2.3.4", 8080)
        );
        web.tagged_addresses.insert(
            "wan".into(),
            TaggedAddress {
                address: "5.6.7.8".into(),
                port: 443,
            },
        );
        assert_eq!(web.best_address(&node, true), ("5.6.7.8", 443));
        assert_eq!(web.best_address(&node, false), ("10.0.0.1", 8080));
        web.tagged_addresses.get_mut("wan").unwrap().port = 0;
        assert_eq!(web.best_address(&node, true), ("5.6.7.8", 8080));
        web.tagged_addresses.clear();
        web.address = "10.9.9.9".into();
        assert_eq!(web.best_address(&node, true), ("10.9.9.9", 8080));
    }

    #[test]
    fn a_node_without_wan_address_is_reached_at_its_own() {
        let node = Node {
            tagged_addresses: [("wan".to_owned(), String::new())].into(),
            ..node()
        };
        assert_eq!(node.best_address(true), "10.0.0.1");
    }

    #[test]
    fn what_is_written_is_read_again() {
        let mut endpoint = Endpoint::of(&node(), &instance(3, 2), &[]);
        for _ in 0..2 {
            let json = serde_json::to_value(&endpoint).unwrap();
            let (read, _) =
                crate::model::decode_document::<Endpoint>(&Value::from_json(&json)).unwrap();
            assert_eq!(read, endpoint);
            endpoint.wan_address = endpoint.address.clone();
            endpoint.health = EndpointHealth::Critical;
        }
    }

    #[test]
    fn maintenance_is_unhealthy() {
        let check = HealthCheck {
            check_id: "_node_maintenance".into(),
            status: CheckStatus::Passing,
            ..HealthCheck::default()
        };
        let endpoint = Endpoint::of(&node(), &instance(1, 1), [&check]);
        assert_eq!(endpoint.health, EndpointHealth::Critical);
    }
}
