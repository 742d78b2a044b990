//! Paths of an application's own checks that its sidecar opens (store.md 4.11, xds.md 4.2.6).

use std::collections::BTreeSet;

use crate::model::check::{CheckDefinition, HealthCheck};
use crate::model::decode::record;
use crate::model::http_address::HttpAddress;
use crate::model::proxy::ExposePath;
use crate::model::service::ServiceInstance;

record! {
    /// The paths of an instance's HTTP and gRPC checks.
    pub struct ExposedChecks {
        /// The paths, by id of their check.
        paths: Vec<ExposePath> = "Paths",
        /// The address that checks are run from, beside the loopback one; empty if it isn't known.
        agent_address: String = "AgentAddress",
        /// Checks that can't be exposed, and why.
        complaints: Vec<String> = "Complaints",
    }
}

/// The ports that checks get which have none of their own: as many as there are sidecar ports.
const FIRST_PORT: u16 = 21500;
const PORTS: u16 = 256;

/// The path that the gRPC health service answers at.
const GRPC_HEALTH: &str = "/grpc.health.v1.Health/Check";

impl ExposedChecks {
    /// The exposed checks of `instance`, which is one of `services`, the instances on its node; `checks` are all checks
    /// there.
    ///
    /// A check keeps the port that its agent gave it (`ExposedPort`). For others a port is chosen by the check's id, so
    /// that it stays as long as no other check at the same address wants it.
    #[must_use]
    pub fn of(
        instance: &ServiceInstance,
        agent_address: &str,
        services: &[&ServiceInstance],
        checks: &[&HealthCheck],
    ) -> Self {
        let together: Vec<_> = services
            .iter()
            .filter(|other| other.address == instance.address)
            .collect();
        let mut checks: Vec<_> = checks
            .iter()
            .filter(|check| !check.definition.http.is_empty() || !check.definition.grpc.is_empty())
            .filter(|check| {
                together
                    .iter()
                    .any(|other| other.id.eq_ignore_ascii_case(&check.service_id))
            })
            .collect();
        checks.sort_by_key(|check| (&check.service_id, &check.check_id));
        let mut taken: BTreeSet<u16> = checks.iter().map(|check| check.exposed_port).collect();
        for other in together {
            taken.insert(other.port);
            taken.extend(
                other
                    .proxy
                    .expose
                    .paths
                    .iter()
                    .map(|path| path.listener_port),
            );
        }
        let mut exposed = Self {
            agent_address: agent_address.to_owned(),
            ..Self::default()
        };
        for check in checks {
            let port = match check.exposed_port {
                0 => choose(check, &taken),
                given => Some(given),
            };
            taken.extend(port);
            if check.service_id.eq_ignore_ascii_case(&instance.id) {
                match path(&check.definition, port) {
                    Ok(path) => exposed.paths.push(path),
                    Err(why) => exposed
                        .complaints
                        .push(format!("check {} can't be exposed: {why}", check.check_id)),
                }
            }
        }
        exposed
    }
}

/// A free port, the same for the same check if it is free.
fn choose(check: &HealthCheck, taken: &BTreeSet<u16>) -> Option<u16> {
    // FNV-1a: it must not differ between runs and machines.
    let bytes = check
        .service_id
        .bytes()
        .chain([b'/'])
        .chain(check.check_id.bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    // Below 256.
    let first = u16::from(hash.to_le_bytes()[0]);
    (0..PORTS)
        .map(|step| FIRST_PORT + (first + step) % PORTS)
        .find(|port| !taken.contains(port))
}

fn path(definition: &CheckDefinition, port: Option<u16>) -> Result<ExposePath, String> {
    let listener_port = port.ok_or_else(|| {
        format!(
            "no port from {FIRST_PORT} to {} is left at its address",
            FIRST_PORT + PORTS - 1
        )
    })?;
    let (path, local_path_port, protocol) = if definition.http.is_empty() {
        let address = definition.grpc.split('/').next().unwrap_or_default();
        let port = address
            .rsplit_once(':')
            .and_then(|(_, port)| port.parse().ok())
            .filter(|port| *port != 0)
            .ok_or_else(|| format!("GRPC {:?} has no port", definition.grpc))?;
        if definition.grpc_use_tls {
            return Err(
                "it is about TLS, which the sidecar doesn't speak with the application".to_owned(),
            );
        }
        (GRPC_HEALTH.to_owned(), port, "http2")
    } else {
        let address = HttpAddress::parse(&definition.http)
            .ok_or_else(|| format!("HTTP {:?} is not an address with a host", definition.http))?;
        if address.tls {
            return Err(
                "it is about TLS, which the sidecar doesn't speak with the application".to_owned(),
            );
        }
        (address.path, address.port, "http")
    };
    Ok(ExposePath {
        listener_port,
        path,
        local_path_port,
        protocol: protocol.to_owned(),
        parsed_from_check: true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(id: &str, address: &str) -> ServiceInstance {
        ServiceInstance {
            id: id.into(),
            address: address.into(),
            port: 8080,
            ..Default::default()
        }
    }

    fn http(service: &str, id: &str, url: &str) -> HealthCheck {
        let mut check = HealthCheck {
            check_id: id.into(),
            service_id: service.into(),
            ..Default::default()
        };
        check.definition.http = url.into();
        check
    }

    #[test]
    fn xds_4_2_6_paths_and_ports_of_checks() {
        let web = instance("web", "");
        let mut grpc = http("web", "b", "");
        grpc.definition.grpc = "127.0.0.1:9090/svc".into();
        grpc.exposed_port = 21777;
        let mut plain = http("web", "t", "");
        plain.definition.tcp = "127.0.0.1:1".into();
        let checks = [
            http("Web", "a", "http://localhost:8080/health?full=1"),
            grpc,
            plain,
            http("web", "s", "https://localhost/"),
            http("api", "a", "http://localhost:1/"),
        ];
        let checks: Vec<_> = checks.iter().collect();
        let exposed = ExposedChecks::of(&web, "10.0.0.1", &[&web], &checks);
        let shown: Vec<_> = exposed
            .paths
            .iter()
            .map(|p| {
                (
                    p.path.as_str(),
                    p.local_path_port,
                    p.protocol.as_str(),
                    p.parsed_from_check,
                )
            })
            .collect();
        assert_eq!(
            shown,
            [
                ("/health", 8080, "http", true),
                (GRPC_HEALTH, 9090, "http2", true)
            ]
        );
        assert!((21500..21756).contains(&exposed.paths[0].listener_port));
        assert_eq!(exposed.paths[1].listener_port, 21777);
        assert_eq!(exposed.complaints.len(), 1, "{:?}", exposed.complaints);
        assert!(exposed.complaints[0].contains("check s"));
    }

    #[test]
    fn no_two_checks_at_one_address_get_the_same_port() {
        let services: Vec<_> = (0..100).map(|n| instance(&format!("s{n}"), "")).collect();
        let services: Vec<_> = services.iter().collect();
        let checks: Vec<_> = (0..100)
            .flat_map(|n| ["a", "b"].map(|id| http(&format!("s{n}"), id, "http://x/")))
            .collect();
        let checks: Vec<_> = checks.iter().collect();
        let ports: BTreeSet<_> = services
            .iter()
            .flat_map(|s| ExposedChecks::of(s, "", &services, &checks).paths)
            .map(|path| path.listener_port)
            .collect();
        assert_eq!(ports.len(), 200);
        // Elsewhere all ports are free.
        let lone = instance("s7", "10.0.0.7");
        let alone = ExposedChecks::of(&lone, "", &[&lone], &checks);
        let again = ExposedChecks::of(&lone, "", &[&lone], &checks[..16]);
        assert_eq!(alone, again);
    }
}
