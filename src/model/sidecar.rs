//! What registering a service registers: the instance, its checks and, if `connect.sidecar_service` asks for one, its
//! sidecar (store.md 1.4, engine.md 4.2).
//!
//! A pure function: which ports are free is given, nothing is remembered. Who stores the result must ask and store under
//! one lock, or two services could get the same port.

use std::fmt;

use crate::model::agent_check::AgentCheck;
use crate::model::check::HealthCheck;
use crate::model::decode::{Place, Problems};
use crate::model::definition::ServiceDefinition;
use crate::model::duration::GoDuration;
use crate::model::ids::ServiceKind;
use crate::model::rules::SIDECAR_SUFFIX;
use crate::model::service::ServiceInstance;
use crate::model::validate;

/// A service of the local agent with all that is registered with it.
#[derive(Debug, Clone, PartialEq)]
pub struct LocalService {
    /// The instance.
    pub service: ServiceInstance,
    /// Its checks, each with node, id and the way to run it.
    pub checks: Vec<HealthCheck>,
    /// Token that its data is fetched with; may be empty.
    pub token: String,
}

/// A definition, expanded. Both services are registered together or not at all.
#[derive(Debug, Clone, PartialEq)]
pub struct Expanded {
    /// The service itself.
    pub service: LocalService,
    /// Its sidecar, if it asked for one; removed together with the service.
    pub sidecar: Option<LocalService>,
}

/// Ports that sidecars get when they name none, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SidecarPortRange {
    /// First port; 0 switches the assignment off.
    pub min: u16,
    /// Last port; 0 switches the assignment off.
    pub max: u16,
}

impl Default for SidecarPortRange {
    fn default() -> Self {
        Self {
            min: 21_000,
            max: 21_255,
        }
    }
}

impl SidecarPortRange {
    /// Whether a port lies in the range.
    #[must_use]
    pub const fn contains(self, port: u16) -> bool {
        self.min != 0 && self.min <= port && port <= self.max
    }

    /// The port that a sidecar already holds if it lies in the range and nobody else has taken it, else the lowest that
    /// is free.
    ///
    /// # Errors
    /// If the assignment is switched off, or no port is free.
    pub fn assign(self, held: Option<u16>, taken: impl Fn(u16) -> bool) -> Result<u16, PortError> {
        if self.min == 0 || self.max == 0 {
            return Err(PortError::Disabled);
        }
        let held = held.filter(|port| self.contains(*port) && !taken(*port));
        held.or_else(|| (self.min..=self.max).find(|port| !taken(*port)))
            .ok_or(PortError::Exhausted(self))
    }
}

impl fmt::Display for SidecarPortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}, {}]", self.min, self.max)
    }
}

/// Why a sidecar got no port.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PortError {
    /// All are taken.
    #[error(
        "no port provided for sidecar_service and none left in the configured range {0}; give one or widen the range"
    )]
    Exhausted(SidecarPortRange),
    /// None are assigned.
    #[error(
        "no port provided for sidecar_service and auto-assignment disabled in config; give one"
    )]
    Disabled,
}

/// What is known about ports when a definition is expanded.
#[derive(Clone, Copy)]
pub struct SidecarPorts<'a> {
    /// Where ports are taken from.
    pub range: SidecarPortRange,
    /// The port that this sidecar ([`ServiceDefinition::sidecar_id`]) is registered with now.
    pub held: Option<u16>,
    /// Whether another local service, one that is neither this nor its sidecar, uses a port.
    pub taken: &'a dyn Fn(u16) -> bool,
}

impl ServiceDefinition {
    /// The id of the sidecar that the definition asks for.
    #[must_use]
    pub fn sidecar_id(&self) -> Option<String> {
        self.sidecar()
            .map(|_| format!("{}{SIDECAR_SUFFIX}", self.effective_id()))
    }

    /// Works out what the definition registers on a node. The definition is checked first; warnings are those that
    /// [`ServiceDefinition::read`] has given.
    ///
    /// # Errors
    /// All problems of the definition, or that its sidecar got no port.
    pub fn expand(self, node: &str, ports: &SidecarPorts<'_>) -> Result<Expanded, Problems> {
        let (definition, _) = validate::accept(self)?;
        let mut service = definition.to_instance();
        service.weights = service.weights.or_default();
        let checks = AgentCheck::of_service(definition.all_checks(), node, &service);
        let sidecar = match definition.sidecar() {
            None => None,
            Some(nested) => Some(expand_sidecar(&definition, nested, node, ports)?),
        };
        Ok(Expanded {
            service: LocalService {
                service,
                checks,
                token: definition.token,
            },
            sidecar,
        })
    }
}

fn expand_sidecar(
    parent: &ServiceDefinition,
    nested: &ServiceDefinition,
    node: &str,
    ports: &SidecarPorts<'_>,
) -> Result<LocalService, Problems> {
    let mut service = instance(parent, nested);
    service.weights = service.weights.or_default();
    if service.port == 0 && service.socket_path.is_empty() {
        let of_its_own = |port: u16| {
            port == parent.port
                || service
                    .proxy
                    .upstreams
                    .iter()
                    .any(|u| u.local_bind_port == port)
                || service
                    .proxy
                    .expose
                    .paths
                    .iter()
                    .any(|p| p.listener_port == port)
        };
        let taken = |port: u16| (ports.taken)(port) || of_its_own(port);
        service.port = ports.range.assign(ports.held, taken).map_err(|why| {
            let mut problems = Problems::default();
            let at = Place::ROOT.key("Connect");
            let at = at.key("SidecarService");
            problems.error(&at.key("Port"), why.to_string());
            problems
        })?;
    }
    let has_checks = nested.all_checks().next().is_some();
    let checks = if has_checks {
        AgentCheck::of_service(nested.all_checks(), node, &service)
    } else {
        let defaults = default_checks(parent.effective_id(), &service);
        AgentCheck::of_service(&defaults, node, &service)
    };
    let token = if nested.token.is_empty() {
        parent.token.clone()
    } else {
        nested.token.clone()
    };
    Ok(LocalService {
        service,
        checks,
        token,
    })
}

/// The instance of a nested sidecar, with what it takes from its service; the port stays as it is.
pub(crate) fn instance(parent: &ServiceDefinition, nested: &ServiceDefinition) -> ServiceInstance {
    let mut sidecar = nested.to_instance();
    sidecar.id = format!("{}{SIDECAR_SUFFIX}", parent.effective_id());
    sidecar.namespace.clone_from(&parent.namespace);
    sidecar.partition.clone_from(&parent.partition);
    if sidecar.kind == ServiceKind::Typical {
        sidecar.kind = ServiceKind::ConnectProxy;
    }
    if sidecar.service.is_empty() {
        sidecar.service = format!("{}{SIDECAR_SUFFIX}", parent.name);
    }
    if sidecar.address.is_empty() {
        sidecar.address.clone_from(&parent.address);
    }
    if sidecar.tags.is_empty() {
        sidecar.tags.clone_from(&parent.tags);
    }
    if sidecar.meta.is_empty() {
        sidecar.meta.clone_from(&parent.meta);
    }
    if sidecar.locality.is_none() {
        sidecar.locality.clone_from(&parent.locality);
    }
    let proxy = &mut sidecar.proxy;
    if proxy.destination_service_name.is_empty() {
        proxy.destination_service_name.clone_from(&parent.name);
    }
    if proxy.destination_service_id.is_empty() {
        parent
            .effective_id()
            .clone_into(&mut proxy.destination_service_id);
    }
    let incomplete = proxy.local_service_address.is_empty() || proxy.local_service_port == 0;
    if proxy.local_service_socket_path.is_empty() && incomplete {
        if parent.socket_path.is_empty() {
            if proxy.local_service_address.is_empty() {
                "127.0.0.1".clone_into(&mut proxy.local_service_address);
            }
            if proxy.local_service_port == 0 {
                proxy.local_service_port = parent.port;
            }
        } else {
            proxy
                .local_service_socket_path
                .clone_from(&parent.socket_path);
        }
    }
    sidecar
}

/// A sidecar that defines no checks is checked for listening and takes over its service's state.
fn default_checks(parent_id: &str, sidecar: &ServiceInstance) -> Vec<AgentCheck> {
    let mut checks = Vec::new();
    if sidecar.port != 0 {
        let address = match sidecar.address.as_str() {
            "" => &sidecar.proxy.local_service_address,
            given => given,
        };
        let address = match address {
            "" => "127.0.0.1",
            given => given,
        };
        let tcp = match address.parse::<std::net::Ipv6Addr>() {
            Ok(v6) => format!("[{v6}]:{}", sidecar.port),
            Err(_) => format!("{address}:{}", sidecar.port),
        };
        checks.push(AgentCheck {
            name: "Connect Sidecar Listening".to_owned(),
            tcp,
            interval: GoDuration::from_secs(10),
            ..AgentCheck::default()
        });
    }
    checks.push(AgentCheck {
        name: format!("Connect Sidecar Aliasing {parent_id}"),
        alias_service: parent_id.to_owned(),
        ..AgentCheck::default()
    });
    checks
}
