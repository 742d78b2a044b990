//! What a leaf certificate is asked for (store.md 4.2, "Leaf request").

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use smol_str::SmolStr;

use super::{DEFAULT_TENANCY, SpiffeId};

/// A normalised request for a leaf certificate. Equal requests share one certificate, so this is also the key under
/// which a certificate is kept.
///
/// Built with [`LeafRequest::for_service`] and its siblings, or from loose fields with [`LeafRequest::from_fields`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeafRequest {
    subject: LeafSubject,
    datacenter: SmolStr,
    dns_san: Vec<SmolStr>,
    ip_san: Vec<IpAddr>,
}

/// Whom a leaf certificate is to identify.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LeafSubject {
    /// A service, also an ingress, API or terminating gateway (they act in the name of services).
    Service {
        /// The service's name.
        name: SmolStr,
        /// Its namespace.
        namespace: SmolStr,
        /// Its partition.
        partition: SmolStr,
    },
    /// The mesh gateways of a datacenter.
    MeshGateway {
        /// Their partition.
        partition: SmolStr,
    },
    /// A client agent.
    Agent {
        /// The agent's id.
        id: SmolStr,
        /// Its partition.
        partition: SmolStr,
    },
    /// A server.
    Server,
}

/// The fields of a request as they come from outside; an empty one counts as not given.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LeafRequestFields {
    /// Name of a service.
    pub service: SmolStr,
    /// Id of an agent.
    pub agent: SmolStr,
    /// A kind of gateway: only `mesh-gateway` has certificates of its own.
    pub kind: SmolStr,
    /// Whether it is for a server.
    pub server: bool,
    /// The datacenter; empty means the local one.
    pub datacenter: SmolStr,
    /// The namespace; empty means `default`.
    pub namespace: SmolStr,
    /// The partition; empty means `default`.
    pub partition: SmolStr,
    /// DNS names to put into the certificate.
    pub dns_san: Vec<SmolStr>,
    /// IP addresses to put into the certificate.
    pub ip_san: Vec<IpAddr>,
}

/// Why a request for a leaf can't be met by anybody.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LeafRequestError {
    /// None, or more than one, of the four ways to name the subject.
    #[error(
        "a leaf request needs exactly one of Service, Agent, Kind and Server, but it has {}",
        describe_given(given)
    )]
    Subject {
        /// The fields that were given.
        given: Vec<&'static str>,
    },
    /// A kind without certificates of its own.
    #[error(
        "no leaf certificate for Kind {kind:?}: only mesh-gateway has one; other gateways ask by Service"
    )]
    Kind {
        /// The kind asked for.
        kind: SmolStr,
    },
    /// A server without a datacenter.
    #[error("a leaf request for a server needs a Datacenter")]
    ServerDatacenter,
}

fn describe_given(given: &[&str]) -> String {
    if given.is_empty() {
        "none".into()
    } else {
        given.join(" and ")
    }
}

impl LeafRequest {
    /// A request for a service in the default namespace and partition of the local datacenter.
    #[must_use]
    pub fn for_service(name: impl Into<SmolStr>) -> Self {
        Self::new(LeafSubject::Service {
            name: name.into(),
            namespace: SmolStr::new_static(DEFAULT_TENANCY),
            partition: SmolStr::new_static(DEFAULT_TENANCY),
        })
    }

    /// A request for the mesh gateways of the local datacenter, default partition.
    #[must_use]
    pub fn for_mesh_gateway() -> Self {
        Self::new(LeafSubject::MeshGateway {
            partition: SmolStr::new_static(DEFAULT_TENANCY),
        })
    }

    /// A request for a client agent of the local datacenter, default partition.
    #[must_use]
    pub fn for_agent(id: impl Into<SmolStr>) -> Self {
        Self::new(LeafSubject::Agent {
            id: id.into(),
            partition: SmolStr::new_static(DEFAULT_TENANCY),
        })
    }

    /// A request for a server of `datacenter`.
    #[must_use]
    pub fn for_server(datacenter: impl Into<SmolStr>) -> Self {
        Self {
            datacenter: datacenter.into(),
            ..Self::new(LeafSubject::Server)
        }
    }

    fn new(subject: LeafSubject) -> Self {
        Self {
            subject,
            datacenter: SmolStr::default(),
            dns_san: Vec::new(),
            ip_san: Vec::new(),
        }
    }

    /// Asks for DNS names: each is cut at its first `:`; empty and repeated ones are dropped, first order kept. A
    /// server has no names but its own.
    #[must_use]
    pub fn with_dns_san<S: Into<SmolStr>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        if self.subject != LeafSubject::Server {
            let names = names.into_iter().map(|name| {
                let name: SmolStr = name.into();
                match name.split_once(':') {
                    Some((host, _)) => SmolStr::from(host),
                    None => name,
                }
            });
            self.dns_san = distinct(names.filter(|name| !name.is_empty()));
        }
        self
    }

    /// Asks for IP addresses; repeated ones are dropped. They are part of the key of every subject but a server, and
    /// land in the certificate of an agent only.
    #[must_use]
    pub fn with_ip_san(mut self, addresses: impl IntoIterator<Item = IpAddr>) -> Self {
        if self.subject != LeafSubject::Server {
            self.ip_san = distinct(addresses.into_iter());
        }
        self
    }

    /// Checks and normalises a request that came from outside.
    ///
    /// # Errors
    /// Not exactly one subject, a kind that has no certificate, a server without datacenter.
    pub fn from_fields(fields: LeafRequestFields) -> Result<Self, LeafRequestError> {
        let given: Vec<&'static str> = [
            ("Service", !fields.service.is_empty()),
            ("Agent", !fields.agent.is_empty()),
            ("Kind", !fields.kind.is_empty()),
            ("Server", fields.server),
        ]
        .into_iter()
        .filter_map(|(name, is_given)| is_given.then_some(name))
        .collect();
        let partition = or_default(fields.partition);
        let subject = match given.as_slice() {
            ["Service"] => LeafSubject::Service {
                name: fields.service,
                namespace: or_default(fields.namespace),
                partition,
            },
            ["Agent"] => LeafSubject::Agent {
                id: fields.agent,
                partition,
            },
            ["Kind"] if fields.kind == "mesh-gateway" => LeafSubject::MeshGateway { partition },
            ["Kind"] => return Err(LeafRequestError::Kind { kind: fields.kind }),
            ["Server"] if fields.datacenter.is_empty() => {
                return Err(LeafRequestError::ServerDatacenter);
            }
            ["Server"] => LeafSubject::Server,
            _ => return Err(LeafRequestError::Subject { given }),
        };
        let request = Self {
            datacenter: fields.datacenter,
            ..Self::new(subject)
        };
        Ok(request
            .with_dns_san(fields.dns_san)
            .with_ip_san(fields.ip_san))
    }

    /// Whom the certificate is to identify.
    #[must_use]
    pub fn subject(&self) -> &LeafSubject {
        &self.subject
    }

    /// The datacenter asked for; empty means the local one.
    #[must_use]
    pub fn datacenter(&self) -> &SmolStr {
        &self.datacenter
    }

    /// The requested DNS names, normalised.
    #[must_use]
    pub fn dns_san(&self) -> &[SmolStr] {
        &self.dns_san
    }

    /// The requested IP addresses, normalised.
    #[must_use]
    pub fn ip_san(&self) -> &[IpAddr] {
        &self.ip_san
    }

    /// The identity that the certificate gets from an authority of `trust_domain` in `datacenter`.
    #[must_use]
    pub fn identity(&self, trust_domain: &SmolStr, datacenter: &SmolStr) -> SpiffeId {
        let trust_domain = trust_domain.clone();
        let datacenter = datacenter.clone();
        match self.subject.clone() {
            LeafSubject::Service {
                name,
                namespace,
                partition,
            } => SpiffeId::Service {
                trust_domain,
                partition,
                namespace,
                datacenter,
                service: name,
            },
            LeafSubject::MeshGateway { partition } => SpiffeId::MeshGateway {
                trust_domain,
                partition,
                datacenter,
            },
            LeafSubject::Agent { id, partition } => SpiffeId::Agent {
                trust_domain,
                partition,
                datacenter,
                agent: id,
            },
            LeafSubject::Server => SpiffeId::Server {
                trust_domain,
                datacenter,
            },
        }
    }

    /// The DNS names of the certificate (table "SANs" of store.md 4.2).
    #[must_use]
    pub fn certificate_dns_names(
        &self,
        trust_domain: &SmolStr,
        datacenter: &SmolStr,
    ) -> Vec<SmolStr> {
        let own = match &self.subject {
            LeafSubject::Agent { .. } => Some(SmolStr::new_static("localhost")),
            LeafSubject::Server => Some(smol_str::format_smolstr!(
                "server.{datacenter}.peering.{trust_domain}"
            )),
            LeafSubject::Service { .. } | LeafSubject::MeshGateway { .. } => None,
        };
        distinct(own.into_iter().chain(self.dns_san.iter().cloned()))
    }

    /// The IP addresses of the certificate (table "SANs" of store.md 4.2).
    #[must_use]
    pub fn certificate_ip_addresses(&self) -> Vec<IpAddr> {
        match &self.subject {
            LeafSubject::Agent { .. } => {
                let loopback = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
                distinct(loopback.into_iter().chain(self.ip_san.iter().copied()))
            }
            LeafSubject::Service { .. } | LeafSubject::MeshGateway { .. } | LeafSubject::Server => {
                Vec::new()
            }
        }
    }
}

fn or_default(tenancy: SmolStr) -> SmolStr {
    if tenancy.is_empty() {
        SmolStr::new_static(DEFAULT_TENANCY)
    } else {
        tenancy
    }
}

/// The items without repetitions, each at its first place.
fn distinct<T: Ord + Clone>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut seen = BTreeSet::new();
    items.filter(|item| seen.insert(item.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(service: &str, kind: &str) -> LeafRequestFields {
        LeafRequestFields {
            service: service.into(),
            kind: kind.into(),
            ..LeafRequestFields::default()
        }
    }

    #[test]
    fn store_125_exactly_one_known_subject() {
        let both = LeafRequest::from_fields(fields("web", "mesh-gateway"));
        assert_eq!(
            both,
            Err(LeafRequestError::Subject {
                given: vec!["Service", "Kind"]
            })
        );
        let none = LeafRequest::from_fields(fields("", ""));
        assert_eq!(none, Err(LeafRequestError::Subject { given: vec![] }));
        assert!(none.unwrap_err().to_string().ends_with("but it has none"));
        assert!(matches!(
            LeafRequest::from_fields(fields("", "ingress-gateway")),
            Err(LeafRequestError::Kind { .. })
        ));
        let server = LeafRequestFields {
            server: true,
            ..LeafRequestFields::default()
        };
        assert_eq!(
            LeafRequest::from_fields(server.clone()),
            Err(LeafRequestError::ServerDatacenter)
        );
        assert_eq!(
            LeafRequest::from_fields(LeafRequestFields {
                datacenter: "dc1".into(),
                dns_san: vec!["ignored".into()],
                ..server
            }),
            Ok(LeafRequest::for_server("dc1"))
        );
        assert_eq!(
            LeafRequest::from_fields(fields("web", "")),
            Ok(LeafRequest::for_service("web"))
        );
        assert_eq!(
            LeafRequest::from_fields(fields("", "mesh-gateway")),
            Ok(LeafRequest::for_mesh_gateway())
        );
    }

    #[test]
    fn store_133_dns_names_are_cut_and_distinct() {
        let request = LeafRequest::for_service("web").with_dns_san(["a:8080", "a", "", ":1", "b"]);
        assert_eq!(request.dns_san(), ["a", "b"]);
    }

    #[test]
    fn store_134_equal_requests_are_one_key() {
        let plain = LeafRequest::for_service("web");
        assert_eq!(plain, plain.clone().with_dns_san([""; 1]));
        assert_ne!(plain, plain.clone().with_dns_san(["a"]));
        assert_eq!(
            plain.clone().with_dns_san(["a:1"]),
            plain.with_dns_san(["a:2"])
        );
    }

    #[test]
    fn an_agent_is_reachable_by_loopback() {
        let request = LeafRequest::for_agent("n1")
            .with_dns_san(["n1.local", "localhost"])
            .with_ip_san(["10.0.0.1".parse().unwrap(), "127.0.0.1".parse().unwrap()]);
        let names = request.certificate_dns_names(&"c.consul".into(), &"dc1".into());
        assert_eq!(names, ["localhost", "n1.local"]);
        let addresses: Vec<String> = request
            .certificate_ip_addresses()
            .iter()
            .map(IpAddr::to_string)
            .collect();
        assert_eq!(addresses, ["127.0.0.1", "::1", "10.0.0.1"]);
    }
}
