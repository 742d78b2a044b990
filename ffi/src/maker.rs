//! What the snapshots of an engine share: one object a snapshot, however many watches give it, so that its JSON and its
//! resources are encoded once; and the last resources of each proxy, which the next build upon.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use proxycfg::xds::{Generated, Generator};
use proxycfg::{ConfigSnapshot, ProxyId, SnapshotRef};

use crate::handles::{self, Number, Reference};
use crate::snapshot::SnapshotObject;

/// Makes the objects that the host holds for snapshots.
#[derive(Debug, Default)]
pub(crate) struct Maker {
    generator: Generator,
    proxies: Mutex<Proxies>,
}

#[derive(Debug, Default)]
struct Proxies {
    known: HashMap<ProxyId, Known, RandomState>,
    /// How many there may be before those without a snapshot are looked for.
    sweep_at: usize,
}

#[derive(Debug)]
struct Known {
    /// The handle of the newest snapshot; stale once the host has released it.
    newest: Number,
    last: Arc<LastResources>,
}

/// The resources of a proxy's newest snapshot that was asked for them.
#[derive(Debug, Default)]
pub(crate) struct LastResources(Mutex<Option<Generated>>);

/// Fewer aren't worth looking for those that are gone.
const FEW: usize = 64;

impl Maker {
    /// A reference for the host to the object of a snapshot.
    pub fn wrap(self: &Arc<Self>, snapshot: SnapshotRef) -> Reference<SnapshotObject> {
        let id = snapshot.proxy_id();
        let mut proxies = self.proxies.lock();
        let last = match proxies.known.get(id) {
            None => Arc::default(),
            Some(known) => {
                // Pinned meanwhile, so that it is the one that was compared.
                if let Some(object) = handles::find::<SnapshotObject>(known.newest)
                    && object.is_of(&snapshot)
                    && let Some(reference) = Reference::again(known.newest)
                {
                    return reference;
                }
                known.last.clone()
            }
        };
        if proxies.known.len() >= proxies.sweep_at {
            let live = |known: &Known| handles::find::<SnapshotObject>(known.newest).is_some();
            proxies.known.retain(|_, known| live(known));
            proxies.sweep_at = FEW.max(proxies.known.len() * 2);
        }
        let id = id.clone();
        let object = SnapshotObject::new(snapshot, self.clone(), last.clone());
        let reference = Reference::new(Arc::new(object));
        let known = Known {
            newest: reference.number(),
            last,
        };
        let old = proxies.known.insert(id, known);
        drop(proxies);
        drop(old);
        reference
    }

    /// The Envoy resources of a snapshot, built upon the last ones of its proxy.
    pub fn resources(&self, snapshot: &ConfigSnapshot, last: &LastResources) -> Generated {
        // Held while they are made, so that whoever asks at the same time builds upon them.
        let mut last = last.0.lock();
        let newer = last
            .as_ref()
            .is_some_and(|last| last.set.index() > snapshot.store_index);
        if newer {
            return self.generator.resources(snapshot, None);
        }
        let generated = self.generator.resources(snapshot, last.as_ref());
        *last = Some(generated.clone());
        generated
    }
}
