//! What changed between two snapshots of a proxy, by comparing part ids: the cost follows the number of parts, not
//! their size.

use serde::ser::{Serialize, SerializeMap as _, Serializer};
use smol_str::SmolStr;

use super::{
    ConfigSnapshot, ConnectProxySnapshot, KindSnapshot, PartId, SharedSidecar, UpstreamEntry,
    UpstreamTarget,
};
use crate::model::UpstreamId;

/// One difference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SnapshotChange {
    /// Identity, address or settings of the proxy itself.
    Header,
    /// Trust roots.
    Roots,
    /// The certificate.
    Leaf,
    /// Who may call.
    Intentions,
    /// Settings of the mesh.
    Mesh,
    /// Token providers.
    JwtProviders,
    /// The application's own checks that are opened.
    ExposedChecks,
    /// An upstream that wasn't there.
    UpstreamAdded(UpstreamId),
    /// An upstream that is gone.
    UpstreamRemoved(UpstreamId),
    /// Where and how the proxy listens for an upstream.
    UpstreamDefinition(UpstreamId),
    /// Settings or chain of an upstream.
    UpstreamChain(UpstreamId),
    /// The instances of a target of an upstream.
    UpstreamEndpoints(UpstreamId, SmolStr),
}

/// All differences, in a fixed order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SnapshotDiff {
    /// The differences.
    pub changes: Vec<SnapshotChange>,
}

impl SnapshotDiff {
    /// Whether the two are the same.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }
}

/// An object with `Change`, and `Upstream` and `Target` where the change is about one.
impl Serialize for SnapshotChange {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (change, upstream, target) = match self {
            Self::Header => ("header", None, None),
            Self::Roots => ("roots", None, None),
            Self::Leaf => ("leaf", None, None),
            Self::Intentions => ("intentions", None, None),
            Self::Mesh => ("mesh", None, None),
            Self::JwtProviders => ("jwt-providers", None, None),
            Self::ExposedChecks => ("exposed-checks", None, None),
            Self::UpstreamAdded(id) => ("upstream-added", Some(id), None),
            Self::UpstreamRemoved(id) => ("upstream-removed", Some(id), None),
            Self::UpstreamDefinition(id) => ("upstream-definition", Some(id), None),
            Self::UpstreamChain(id) => ("upstream-chain", Some(id), None),
            Self::UpstreamEndpoints(id, target) => ("upstream-endpoints", Some(id), Some(target)),
        };
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("Change", change)?;
        if let Some(upstream) = upstream {
            map.serialize_entry("Upstream", upstream)?;
        }
        if let Some(target) = target {
            map.serialize_entry("Target", target)?;
        }
        map.end()
    }
}

impl ConfigSnapshot {
    /// What changed from `self` to `newer`.
    #[must_use]
    pub fn diff(&self, newer: &Self) -> SnapshotDiff {
        let mut changes = Vec::new();
        if self.header.id() != newer.header.id() {
            changes.push(SnapshotChange::Header);
        }
        match (&self.kind, &newer.kind) {
            (KindSnapshot::ConnectProxy(a), KindSnapshot::ConnectProxy(b)) => {
                sidecar(a, b, &mut changes)
            }
        }
        SnapshotDiff { changes }
    }
}

fn sidecar(
    old: &ConnectProxySnapshot,
    new: &ConnectProxySnapshot,
    changes: &mut Vec<SnapshotChange>,
) {
    if old.exposed_checks().id() != new.exposed_checks().id() {
        changes.push(SnapshotChange::ExposedChecks);
    }
    if !triomphe::Arc::ptr_eq(&old.shared, &new.shared) {
        shared(&old.shared, &new.shared, changes);
    }
}

/// The differences in what sidecars share.
pub(super) fn shared(old: &SharedSidecar, new: &SharedSidecar, changes: &mut Vec<SnapshotChange>) {
    if old.roots.id() != new.roots.id() {
        changes.push(SnapshotChange::Roots);
    }
    if old.leaf.id() != new.leaf.id() {
        changes.push(SnapshotChange::Leaf);
    }
    if old.intentions.id() != new.intentions.id() {
        changes.push(SnapshotChange::Intentions);
    }
    if old.mesh.id() != new.mesh.id() {
        changes.push(SnapshotChange::Mesh);
    }
    if old.jwt_providers.id() != new.jwt_providers.id() {
        changes.push(SnapshotChange::JwtProviders);
    }
    if !old.upstreams.is_same(&new.upstreams) {
        for (old, new) in old.upstreams.stretches(&new.upstreams) {
            upstreams(old.iter(), new.iter(), changes);
        }
    }
}

/// Merges two lists that are sorted by upstream id.
fn upstreams<'a>(
    old: impl Iterator<Item = &'a UpstreamEntry>,
    new: impl Iterator<Item = &'a UpstreamEntry>,
    changes: &mut Vec<SnapshotChange>,
) {
    let (mut old, mut new) = (old.peekable(), new.peekable());
    loop {
        match (old.peek(), new.peek()) {
            (None, None) => return,
            (Some(a), b) if b.is_none_or(|b| a.id() < b.id()) => {
                changes.push(SnapshotChange::UpstreamRemoved(a.id().clone()));
                old.next();
            }
            (a, Some(b)) if a.is_none_or(|a| b.id() < a.id()) => {
                changes.push(SnapshotChange::UpstreamAdded(b.id().clone()));
                new.next();
            }
            (Some(a), Some(b)) => {
                if a.definition.id() != b.definition.id() {
                    changes.push(SnapshotChange::UpstreamDefinition(a.id().clone()));
                }
                targets(
                    a.id(),
                    a.target.as_deref().map(|p| &**p),
                    b.target.as_deref().map(|p| &**p),
                    changes,
                );
                old.next();
                new.next();
            }
            // The guards above cover a list that ended.
            (Some(_), None) | (None, Some(_)) => return,
        }
    }
}

fn targets(
    id: &UpstreamId,
    old: Option<&UpstreamTarget>,
    new: Option<&UpstreamTarget>,
    changes: &mut Vec<SnapshotChange>,
) {
    let (Some(old), Some(new)) = (old, new) else {
        if old.is_some() != new.is_some() {
            changes.push(SnapshotChange::UpstreamChain(id.clone()));
        }
        return;
    };
    if old.chain.id() != new.chain.id() || old.settings.id() != new.settings.id() {
        changes.push(SnapshotChange::UpstreamChain(id.clone()));
    }
    let part = |of: &UpstreamTarget, target: &str| -> Option<PartId> {
        of.endpoints_of(target).map(|p| p.id())
    };
    for entry in &new.endpoints {
        if entry.endpoints.as_ref().map(|p| p.id()) != part(old, &entry.target) {
            changes.push(SnapshotChange::UpstreamEndpoints(
                id.clone(),
                entry.target.clone(),
            ));
        }
    }
}
