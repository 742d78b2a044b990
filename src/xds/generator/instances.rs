//! The short way for a change of instances: nothing but endpoint assignments differs.

use triomphe::Arc;

use super::shared::{Hold, SharedCluster};
use super::{Generated, Generator, Memory};
use crate::snapshot::{ConfigSnapshot, ConnectProxySnapshot, KindSnapshot, PartId, UpstreamList};
use crate::xds::ResourceType;

/// The parts that a sidecar's resources are made from, upstreams aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Frame([PartId; 7]);

impl Frame {
    pub(super) fn of(snapshot: &ConfigSnapshot, sidecar: &ConnectProxySnapshot) -> Self {
        Self([
            snapshot.header.id(),
            snapshot.roots().id(),
            sidecar.leaf.id(),
            sidecar.intentions.id(),
            sidecar.mesh.id(),
            sidecar.jwt_providers.id(),
            sidecar.exposed_checks().id(),
        ])
    }
}

/// An endpoint assignment, and where its instances come from.
#[derive(Debug, Clone)]
pub(super) struct Assigned {
    /// The clusters of a chain, and which of them it is for.
    pub clusters: Arc<[SharedCluster]>,
    pub cluster: usize,
    /// The upstream whose instances it has.
    pub upstream: usize,
    #[allow(dead_code, reason = "holding it keeps it in its cache")]
    pub hold: Hold,
}

impl Generator {
    /// The resources, if nothing has changed since the previous ones but instances, and nothing is to be told.
    pub(super) fn instances(
        &self,
        snapshot: &ConfigSnapshot,
        previous: &Generated,
    ) -> Option<Generated> {
        let KindSnapshot::ConnectProxy(sidecar) = &snapshot.kind;
        let memory = &previous.memory;
        if !previous.problems.is_empty() || memory.frame != Some(Frame::of(snapshot, sidecar)) {
            return None;
        }
        let changed = changed(memory.upstreams.as_ref()?, &sidecar.upstreams)?;
        let mut assignments = memory.assignments.clone();
        let mut fresh = Vec::with_capacity(changed.len());
        for assigned in &mut assignments {
            if !changed.contains(&assigned.upstream) {
                continue;
            }
            let cluster = assigned.clusters.get(assigned.cluster)?;
            let assignment = cluster.assignment.as_ref()?;
            let target = sidecar.upstreams.get(assigned.upstream)?.target.as_ref()?;
            let instances = target.endpoints_of(&assignment.target);
            let datacenter = &snapshot.header.datacenter;
            let (resource, problems, hold) =
                self.shared.assignment(assignment, instances, datacenter);
            if !problems.is_empty() {
                return None;
            }
            assigned.hold = hold;
            fresh.push(resource);
        }
        let set = previous
            .set
            .with(snapshot.store_index, ResourceType::Endpoint, fresh)?;
        Some(Generated {
            set,
            problems: Vec::new(),
            memory: Memory {
                own: memory.own.clone(),
                frame: memory.frame,
                upstreams: Some(sidecar.upstreams.clone()),
                assignments,
            },
        })
    }
}

/// The upstreams whose instances may differ; nothing if anything else does.
fn changed(old: &UpstreamList, new: &UpstreamList) -> Option<Vec<usize>> {
    let mut changed = Vec::new();
    if old.len() != new.len() {
        return None;
    }
    for (at, old, new) in old.pairs(new) {
        if old.definition.id() != new.definition.id() {
            return None;
        }
        match (&old.target, &new.target) {
            (None, None) => {}
            (Some(old), Some(new)) if old.id() == new.id() => {}
            (Some(old), Some(new))
                if old.settings.id() == new.settings.id() && old.chain.id() == new.chain.id() =>
            {
                changed.push(at);
            }
            _ => return None,
        }
    }
    Some(changed)
}
