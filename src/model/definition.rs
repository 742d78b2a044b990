//! The agent form of a service: what files and `/v1/agent/service/register` hold (store.md 1.2, 1.4).

use std::collections::BTreeMap;

use crate::hcl::Value;
use crate::model::agent_check::AgentCheck;
use crate::model::decode::{Place, Problems, record};
use crate::model::ids::ServiceKind;
use crate::model::node::{Locality, TaggedAddress};
use crate::model::proxy::ProxyConfig;
use crate::model::rules;
use crate::model::service::{Connect, ServiceInstance, Weights};
use crate::model::sidecar;
use crate::model::validate::{self, Validate};

record! {
    /// A service as its owner writes it.
    pub struct ServiceDefinition {
        /// Kind.
        kind: ServiceKind = "Kind",
        /// Id; the name unless given.
        id: String = "ID",
        /// Service name.
        name: String = "Name",
        /// Labels.
        tags: Vec<String> = "Tags",
        /// Free labels with values.
        meta: BTreeMap<String, String> = "Meta",
        /// Port.
        port: u16 = "Port",
        /// Address; the node's unless given.
        address: String = "Address",
        /// Unix socket instead of a port.
        socket_path: String = "SocketPath",
        /// Addresses by tag.
        tagged_addresses: BTreeMap<String, TaggedAddress> = "TaggedAddresses",
        /// Load-balancing weights.
        weights: Option<Weights> = "Weights",
        /// Whether tags may be changed in the catalog.
        enable_tag_override: bool = "EnableTagOverride",
        /// The proxy block, of proxies and gateways.
        proxy: Option<ProxyConfig> = "Proxy",
        /// Mesh membership, and a sidecar to register with the service.
        connect: Option<ConnectDefinition> = "Connect",
        /// Region and zone.
        locality: Option<Locality> = "Locality",
        /// One check.
        check: Option<AgentCheck> = "Check",
        /// Several checks.
        checks: Vec<AgentCheck> = "Checks",
        /// Token that the service's data is fetched with.
        token: String = "Token",
        /// Namespace; only `default`.
        namespace: String = "Namespace",
        /// Partition; only `default`.
        partition: String = "Partition",
    }
}

record! {
    /// The `connect` block of a service.
    pub struct ConnectDefinition {
        /// Speaks the mesh protocol itself.
        native: bool = "Native",
        /// A sidecar to register with the service.
        sidecar_service: Option<Box<ServiceDefinition>> = "SidecarService",
    }
}

impl ServiceDefinition {
    /// Reads, checks and normalizes a definition from a document; the problems that come with it are warnings.
    ///
    /// # Errors
    /// All problems with their places, if there is an error among them.
    pub fn read(document: &Value) -> Result<(Self, Problems), Problems> {
        validate::read(document)
    }

    /// The id, which is the name unless it is given.
    #[must_use]
    pub fn effective_id(&self) -> &str {
        if self.id.is_empty() {
            &self.name
        } else {
            &self.id
        }
    }

    /// All checks: the single one, then the list.
    pub fn all_checks(&self) -> impl Iterator<Item = &AgentCheck> {
        self.check.iter().chain(&self.checks)
    }

    /// The nested sidecar, if there is one.
    #[must_use]
    pub fn sidecar(&self) -> Option<&Self> {
        self.connect.as_ref()?.sidecar_service.as_deref()
    }

    /// The instance that the catalog holds of this definition: without checks, token and nested sidecar.
    #[must_use]
    pub fn to_instance(&self) -> ServiceInstance {
        ServiceInstance {
            kind: self.kind,
            id: self.effective_id().to_owned(),
            service: self.name.clone(),
            tags: self.tags.clone(),
            meta: self.meta.clone(),
            port: self.port,
            address: self.address.clone(),
            socket_path: self.socket_path.clone(),
            tagged_addresses: self.tagged_addresses.clone(),
            weights: self.weights.clone().unwrap_or_default(),
            enable_tag_override: self.enable_tag_override,
            proxy: self.proxy.clone().unwrap_or_default(),
            connect: Connect {
                native: self.connect.as_ref().is_some_and(|c| c.native),
            },
            locality: self.locality.clone(),
            peer_name: String::new(),
            namespace: self.namespace.clone(),
            partition: self.partition.clone(),
        }
    }

    /// All of the normalization but the id, which a nested sidecar must not have.
    fn normalize_nested(&mut self) {
        if let Some(proxy) = &mut self.proxy {
            proxy.normalize();
        }
        rules::clear_default(&mut self.namespace);
        rules::clear_default(&mut self.partition);
        for check in self.check.iter_mut().chain(&mut self.checks) {
            check.normalize();
        }
        let nested = self
            .connect
            .as_mut()
            .and_then(|c| c.sidecar_service.as_mut());
        if let Some(nested) = nested {
            nested.normalize_nested();
        }
    }

    fn check_checks(&self, at: &Place<'_>, problems: &mut Problems) {
        if let Some(check) = &self.check {
            check.validate(&at.key("Check"), problems);
        }
        let checks = at.key("Checks");
        for (i, check) in self.checks.iter().enumerate() {
            check.validate(&checks.index(i), problems);
            let id = check.given_id();
            let twin = self
                .check
                .iter()
                .chain(&self.checks[..i])
                .any(|c| !id.is_empty() && c.given_id() == id);
            if twin {
                problems.error(
                    &checks.index(i),
                    format!("the check id {} is given twice", rules::shown(id)),
                );
            }
        }
    }

    fn check_sidecar(&self, at: &Place<'_>, problems: &mut Problems) {
        let Some(nested) = self.sidecar() else { return };
        let at = at.key("Connect");
        let at = at.key("SidecarService");
        if self.kind.is_gateway() {
            problems.error(&at, format!("a {} can't have a sidecar", self.kind));
            return;
        }
        if !nested.id.is_empty() {
            problems.error(
                &at.key("ID"),
                "the id of a nested sidecar is made from its service's; remove it",
            );
        }
        if nested.sidecar().is_some() {
            problems.error(
                &at.key("Connect").key("SidecarService"),
                "a nested sidecar can't have a sidecar",
            );
        }
        if !matches!(
            nested.kind,
            ServiceKind::Typical | ServiceKind::ConnectProxy
        ) {
            problems.error(
                &at.key("Kind"),
                format!(
                    "a sidecar is a \"connect-proxy\", not a \"{}\"",
                    nested.kind
                ),
            );
            return;
        }
        // What is wrong with the service's own name is said of the service, not again of its sidecar.
        let mut name = Problems::default();
        rules::mesh_name("", &self.name, &at, &mut name);
        let parent = if name.is_ok() {
            self.clone()
        } else {
            Self {
                name: "service".to_owned(),
                ..self.clone()
            }
        };
        sidecar::instance(&parent, nested).check("Name", nested.port == 0, &at, problems);
        nested.check_checks(&at, problems);
    }
}

impl Validate for ServiceDefinition {
    /// store.md 1.2 and 1.4.
    fn validate(&self, at: &Place<'_>, problems: &mut Problems) {
        self.to_instance().check("Name", false, at, problems);
        self.check_checks(at, problems);
        self.check_sidecar(at, problems);
    }

    fn enterprise_only(&self, at: &Place<'_>, problems: &mut Problems) {
        self.to_instance().enterprise_only(at, problems);
        if let Some(check) = &self.check {
            check.enterprise_only(&at.key("Check"), problems);
        }
        let checks = at.key("Checks");
        for (i, check) in self.checks.iter().enumerate() {
            check.enterprise_only(&checks.index(i), problems);
        }
        if let Some(nested) = self.sidecar() {
            let at = at.key("Connect");
            nested.enterprise_only(&at.key("SidecarService"), problems);
        }
    }

    /// Fills in the id, and brings the proxy block to its canonical form. Weights stay as they are: absent ones are
    /// told from given ones, and become 1 and 1 in the instance.
    fn normalize(&mut self) {
        self.normalize_nested();
        if self.id.is_empty() {
            self.id.clone_from(&self.name);
        }
    }
}
