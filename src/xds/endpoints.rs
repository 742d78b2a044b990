//! Endpoint assignments (xds.md 4.2.7).
//!
//! Every instance stays in the list; one that must get no traffic is marked unhealthy. An assignment without instances
//! still has its one, empty group: Envoy waits for the assignment of each cluster, and must not wait for ever
//! (decision X4).

use super::proto::{core, endpoint, pipe, socket_address, uint32};
use super::{BuildError, Problem};
use crate::model::{Endpoint, EndpointHealth};

/// Largest weight that Envoy accepts.
const LARGEST_WEIGHT: u32 = 128;

/// In percent, what the healthy instances of a failover's member are taken to bear. Of itself Envoy sends a part of the
/// traffic on as soon as 29 percent of the instances have failed; a failover is for when all of them have.
const UNTIL_ALL_FAIL: u32 = 100_000;

/// What decides about an assignment beside its instances.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms<'a> {
    /// Instances that warn count as failing.
    pub only_passing: bool,
    /// It is a member of a failover (see [`UNTIL_ALL_FAIL`]).
    pub failover: bool,
    /// The proxy's own datacenter: instances elsewhere are dialled at their wide-area address.
    pub datacenter: &'a str,
}

/// The assignment of a cluster. Instances that Envoy would refuse are left out and told: one of them would make it refuse
/// all the others.
pub(super) fn assignment(
    cluster: &str,
    instances: &[Endpoint],
    terms: Terms<'_>,
) -> (endpoint::ClusterLoadAssignment, Vec<Problem>) {
    let mut problems = Vec::new();
    let mut endpoints = Vec::with_capacity(instances.len());
    for instance in instances {
        match address(instance, terms.datacenter) {
            Ok(address) => endpoints.push(lb_endpoint(instance, address, terms.only_passing)),
            Err(error) => problems.push(Problem::new(
                cluster,
                format!(
                    "instance {} on node {} is left out: {error}",
                    instance.service_id, instance.node
                ),
            )),
        }
    }
    let mut assignment = group(cluster, endpoints);
    if terms.failover {
        assignment.policy = Some(endpoint::cluster_load_assignment::Policy {
            overprovisioning_factor: uint32(UNTIL_ALL_FAIL),
            ..Default::default()
        });
    }
    (assignment, problems)
}

/// An assignment with one group.
pub(super) fn group(
    cluster: &str,
    endpoints: Vec<endpoint::LbEndpoint>,
) -> endpoint::ClusterLoadAssignment {
    endpoint::ClusterLoadAssignment {
        cluster_name: cluster.to_owned(),
        endpoints: vec![endpoint::LocalityLbEndpoints {
            lb_endpoints: endpoints,
            ..Default::default()
        }],
        ..Default::default()
    }
}

/// The one endpoint of the application, without health and weight.
pub(super) fn local(address: core::Address) -> endpoint::LbEndpoint {
    endpoint::LbEndpoint {
        host_identifier: Some(endpoint::lb_endpoint::HostIdentifier::Endpoint(
            endpoint::Endpoint {
                address: Some(address),
                ..Default::default()
            },
        )),
        ..Default::default()
    }
}

/// The assignment of a cluster with one address that stands in the cluster itself.
pub(super) fn single_assignment(
    cluster: &str,
    address: core::Address,
) -> endpoint::ClusterLoadAssignment {
    group(cluster, vec![local(address)])
}

fn lb_endpoint(
    instance: &Endpoint,
    address: core::Address,
    only_passing: bool,
) -> endpoint::LbEndpoint {
    let (healthy, weight) = health_and_weight(instance, only_passing);
    let status = if healthy {
        core::HealthStatus::Healthy
    } else {
        core::HealthStatus::Unhealthy
    };
    endpoint::LbEndpoint {
        health_status: status as i32,
        load_balancing_weight: uint32(weight),
        ..local(address)
    }
}

/// xds.md 4.2.7, must-hold 40.
fn health_and_weight(instance: &Endpoint, only_passing: bool) -> (bool, u32) {
    let healthy = match instance.health {
        EndpointHealth::Passing => true,
        EndpointHealth::Warning => !only_passing,
        EndpointHealth::Critical => false,
    };
    let weight = match instance.health {
        EndpointHealth::Warning => instance.weight_warning,
        EndpointHealth::Passing | EndpointHealth::Critical => instance.weight_passing,
    };
    if weight == 0 {
        (false, 1)
    } else {
        (healthy, weight.min(LARGEST_WEIGHT))
    }
}

fn address(instance: &Endpoint, datacenter: &str) -> Result<core::Address, BuildError> {
    if !instance.socket_path.is_empty() {
        return pipe(&instance.socket_path, 0);
    }
    if instance.datacenter == datacenter || instance.wan_address.is_empty() {
        socket_address(&instance.address, instance.port)
    } else {
        socket_address(&instance.wan_address, instance.wan_port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(health: EndpointHealth, passing: u32, warning: u32) -> Endpoint {
        Endpoint {
            node: "n1".into(),
            service_id: "db-1".into(),
            datacenter: "dc1".into(),
            address: "10.0.0.5".into(),
            port: 21001,
            wan_address: "198.18.0.5".into(),
            wan_port: 443,
            socket_path: "".into(),
            health,
            weight_passing: passing,
            weight_warning: warning,
        }
    }

    #[test]
    fn xds_40_fc_017_health_and_weight() {
        use EndpointHealth::{Critical, Passing, Warning};
        for (health, passing, warning, only_passing, healthy, weight) in [
            (Passing, 1, 1, false, true, 1),
            (Passing, 10, 2, false, true, 10),
            (Warning, 10, 2, false, true, 2),
            (Warning, 10, 0, false, false, 1),
            (Warning, 10, 2, true, false, 2),
            (Passing, 300, 1, true, true, 128),
            (Passing, 0, 1, false, false, 1),
            (Critical, 7, 2, false, false, 7),
            (Critical, 300, 2, false, false, 128),
        ] {
            let instance = instance(health, passing, warning);
            assert_eq!(
                health_and_weight(&instance, only_passing),
                (healthy, weight),
                "{instance:?} {only_passing}"
            );
        }
    }

    #[test]
    fn xds_4_2_7_other_datacenters_are_dialled_at_the_wan_address() {
        let local = instance(EndpointHealth::Passing, 1, 1);
        let mut remote = local.clone();
        remote.datacenter = "dc2".into();
        let mut without = remote.clone();
        without.wan_address = "".into();
        let mut socket = local.clone();
        socket.socket_path = "/run/db.sock".into();
        let expect = |instance: &Endpoint, wanted: core::Address| {
            assert_eq!(address(instance, "dc1").unwrap(), wanted);
        };
        expect(&local, socket_address("10.0.0.5", 21001).unwrap());
        expect(&remote, socket_address("198.18.0.5", 443).unwrap());
        expect(&without, socket_address("10.0.0.5", 21001).unwrap());
        expect(&socket, pipe("/run/db.sock", 0).unwrap());
    }

    #[test]
    fn x3_an_instance_with_a_host_name_does_not_spoil_the_others() {
        let good = instance(EndpointHealth::Passing, 1, 1);
        let mut named = good.clone();
        named.address = "db.example.com".into();
        named.service_id = "db-2".into();
        let terms = Terms {
            only_passing: false,
            failover: false,
            datacenter: "dc1",
        };
        let (assignment, problems) = assignment("db", &[good, named], terms);
        assert_eq!(assignment.endpoints[0].lb_endpoints.len(), 1);
        assert_eq!(problems.len(), 1);
        assert!(problems[0].message.contains("db-2"), "{problems:?}");
    }

    #[test]
    fn a_failover_waits_until_the_last_instance_fails() {
        let instances = [instance(EndpointHealth::Passing, 1, 1)];
        let factor = |failover| {
            let terms = Terms {
                only_passing: false,
                failover,
                datacenter: "dc1",
            };
            let policy = assignment("db", &instances, terms).0.policy;
            policy.and_then(|policy| policy.overprovisioning_factor)
        };
        assert_eq!(factor(true), uint32(100_000));
        assert_eq!(factor(false), None);
    }

    #[test]
    fn xds_18_an_empty_assignment_has_one_empty_group() {
        let terms = Terms {
            only_passing: false,
            failover: false,
            datacenter: "dc1",
        };
        let (assignment, problems) = assignment("db", &[], terms);
        assert_eq!(assignment.cluster_name, "db");
        assert_eq!(assignment.endpoints.len(), 1);
        assert!(assignment.endpoints[0].lb_endpoints.is_empty());
        assert!(problems.is_empty());
    }
}
