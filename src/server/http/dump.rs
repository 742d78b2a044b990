//! Where the Envoy resources of a proxy can be seen.

use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use crate::model::ProxyId;
use crate::server::MeshProvider;
use crate::snapshot::ConfigSnapshot;
use crate::xds::{Generator, Problem, ResourceType};

/// Makes the resources of proxies visible. Methods are called on threads that may block.
pub trait ResourceDump: Send + Sync + fmt::Debug + 'static {
    /// The resources of a proxy with its current snapshot, as a JSON array: of one type, or all. Private keys are
    /// redacted (decision C1).
    fn resources(
        &self,
        id: &ProxyId,
        snapshot: &ConfigSnapshot,
        kind: Option<ResourceType>,
    ) -> Value;

    /// What is wrong with the resources that the proxy's streams have.
    fn problems(&self, _id: &ProxyId) -> Vec<Problem> {
        Vec::new()
    }
}

/// Makes resources anew from the snapshot, without the last good form of what can't be built.
impl ResourceDump for Generator {
    fn resources(
        &self,
        _id: &ProxyId,
        snapshot: &ConfigSnapshot,
        kind: Option<ResourceType>,
    ) -> Value {
        Self::resources(self, snapshot, None).set.to_json(kind)
    }
}

/// As the generator alone, whose caches it shares with the streams, and with the problems of their resources.
#[derive(Debug)]
pub struct MeshDump {
    generator: Arc<Generator>,
    provider: Option<Arc<MeshProvider>>,
}

impl MeshDump {
    /// A dump with the generator and the provider of the xDS service.
    #[must_use]
    pub fn new(generator: Arc<Generator>, provider: Option<Arc<MeshProvider>>) -> Self {
        Self {
            generator,
            provider,
        }
    }
}

impl ResourceDump for MeshDump {
    fn resources(
        &self,
        id: &ProxyId,
        snapshot: &ConfigSnapshot,
        kind: Option<ResourceType>,
    ) -> Value {
        ResourceDump::resources(&*self.generator, id, snapshot, kind)
    }

    fn problems(&self, id: &ProxyId) -> Vec<Problem> {
        let provider = self.provider.as_ref();
        provider.map(|p| p.problems(id)).unwrap_or_default()
    }
}
