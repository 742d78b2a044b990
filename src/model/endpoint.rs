//! What proxies read of a service instance: an answer that leaves out the rest, so that writes which no proxy can see
//! wake none.

use smol_str::SmolStr;

use crate::model::check::{AggregatedStatus, HealthCheck};
use crate::model::node::Node;
use crate::model::service::ServiceInstance;

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
