//! What a chain is compiled for.

use smol_str::SmolStr;

use crate::chain::entries::ServiceKey;
use crate::chain::error::ChainError;
use crate::chain::names::DEFAULT;
use crate::model::{GoDuration, MeshGatewayMode};

/// A request to compile a chain (discovery-chain.md 2.1).
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct ChainRequest {
    /// The chain's own service. Required.
    pub service_name: SmolStr,
    /// Its namespace, and the one of targets that name none. Required.
    pub evaluate_in_namespace: SmolStr,
    /// Its partition, and the one of targets that name none. Required.
    pub evaluate_in_partition: SmolStr,
    /// The datacenter of targets that name none. Required.
    pub evaluate_in_datacenter: SmolStr,
    /// The end of every server name. Required.
    pub evaluate_in_trust_domain: SmolStr,
    /// Replaces the mesh gateway mode of all targets inside the mesh; the default overrides nothing.
    pub override_mesh_gateway: MeshGatewayMode,
    /// Replaces the protocol; one that isn't HTTP-like switches routers and splitters off. Empty overrides nothing.
    pub override_protocol: SmolStr,
    /// Replaces every connect timeout if it is more than 0.
    pub override_connect_timeout: GoDuration,
    /// Virtual addresses of the service given by the store, handed through.
    pub auto_virtual_ips: Vec<String>,
    /// Virtual addresses of the service given by an operator, handed through.
    pub manual_virtual_ips: Vec<String>,
}

impl ChainRequest {
    /// A request without overrides in the default namespace and partition.
    pub fn new(
        service_name: impl Into<SmolStr>,
        datacenter: impl Into<SmolStr>,
        trust_domain: impl Into<SmolStr>,
    ) -> Self {
        Self {
            service_name: service_name.into(),
            evaluate_in_namespace: SmolStr::new_static(DEFAULT),
            evaluate_in_partition: SmolStr::new_static(DEFAULT),
            evaluate_in_datacenter: datacenter.into(),
            evaluate_in_trust_domain: trust_domain.into(),
            ..Self::default()
        }
    }

    /// The key of the chain's own service.
    #[must_use]
    pub fn service_key(&self) -> ServiceKey {
        ServiceKey::new(
            &self.service_name,
            &self.evaluate_in_namespace,
            &self.evaluate_in_partition,
        )
    }

    /// Refuses a request that lacks something.
    pub(crate) fn check(&self) -> Result<(), ChainError> {
        let required = [
            ("serviceName", &self.service_name),
            ("evaluateInNamespace", &self.evaluate_in_namespace),
            ("evaluateInPartition", &self.evaluate_in_partition),
            ("evaluateInDatacenter", &self.evaluate_in_datacenter),
            ("evaluateInTrustDomain", &self.evaluate_in_trust_domain),
        ];
        match required.iter().find(|(_, value)| value.is_empty()) {
            Some((field, _)) => Err(ChainError::MissingInput { field }),
            None => Ok(()),
        }
    }
}
