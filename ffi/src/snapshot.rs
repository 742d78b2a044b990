//! Snapshots as the host holds them.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use proxycfg::SnapshotRef;
use proxycfg::xds::{Generated, ResourceType};

use crate::guard::{Code, ErrorHandle, Failure, Outcome, call, infallible};
use crate::handles::{self, Label, Number, Pin};
use crate::maker::{LastResources, Maker};
use crate::memory::{self, Bytes, Nothing, Str, TextHandle, TextObject};
use crate::pointer;
use crate::registry::{ProxyIdRef, ProxyKind};

/// A snapshot: everything that one proxy needs, at one store index. Immutable, counted by references, usable from any
/// number of threads at the same time. It stays valid until the last reference is released, also after its engine is
/// freed. Releasing more often than retaining takes a reference away from somebody else, for whom the handle is then
/// invalid.
#[derive(Debug)]
pub struct SnapshotHandle(());

/// What a snapshot consists of.
pub(crate) struct SnapshotObject {
    snapshot: SnapshotRef,
    maker: Arc<Maker>,
    last: Arc<LastResources>,
    json: OnceLock<Result<Box<str>, String>>,
    /// Where subtrees that were asked for are in the text.
    found: Mutex<HashMap<Box<str>, Range<usize>, RandomState>>,
    resources: OnceLock<Resources>,
}

/// The resources of a snapshot, and the lists of them that the host reads.
struct Resources {
    generated: Generated,
    lists: [Vec<Resource>; ResourceType::COUNT],
}

// SAFETY: the pointers in the lists point into resources that `generated` holds and nobody changes.
unsafe impl Send for Resources {}
// SAFETY: as above.
unsafe impl Sync for Resources {}

/// One Envoy resource.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Resource {
    /// Its name, unique within its type.
    pub name: Str,
    /// Its version: the SHA-256 of the bytes in lower-case hexadecimal.
    pub version: Str,
    /// The message, serialized: the value of an `Any` of the type. Those of a secret hold a private key.
    pub bytes: Bytes,
}

/// How many subtrees' places are remembered.
const REMEMBERED: usize = 256;

impl SnapshotObject {
    pub fn new(snapshot: SnapshotRef, maker: Arc<Maker>, last: Arc<LastResources>) -> Self {
        Self {
            snapshot,
            maker,
            last,
            json: OnceLock::new(),
            found: Mutex::default(),
            resources: OnceLock::new(),
        }
    }

    /// What can be read by the handle alone.
    pub fn note(&self, label: &Label) {
        label
            .index
            .store(self.snapshot.store_index, Ordering::Release);
        let kind = ProxyKind::from(self.snapshot.proxy_kind()) as i32;
        label.kind.store(kind, Ordering::Release);
    }

    pub fn is_of(&self, snapshot: &SnapshotRef) -> bool {
        triomphe::Arc::ptr_eq(&self.snapshot, snapshot)
    }

    fn json(&self) -> Outcome<&str> {
        let encoded = self.json.get_or_init(|| {
            let text = serde_json::to_string(&*self.snapshot);
            text.map(String::into_boxed_str).map_err(|e| e.to_string())
        });
        match encoded {
            Ok(text) => Ok(text),
            Err(error) => Err(Failure::new(Code::Panic, error.as_str())),
        }
    }

    fn subtree(&self, pointer: &str) -> Outcome<&str> {
        let json = self.json()?;
        if pointer.is_empty() {
            return Ok(json);
        }
        if !pointer.starts_with('/') {
            return Err(Failure::argument(format!(
                "pointer: {pointer:?} must begin with '/', such as \"/Roots/TrustDomain\""
            )));
        }
        let known = self.found.lock().get(pointer).cloned();
        if let Some(text) = known.and_then(|place| json.get(place)) {
            return Ok(text);
        }
        let place = pointer::find(json, pointer);
        let Some((place, text)) = place.and_then(|place| Some((place.clone(), json.get(place)?)))
        else {
            return Err(Failure::new(
                Code::NotFound,
                format!("the snapshot has nothing at {pointer:?}"),
            ));
        };
        let mut found = self.found.lock();
        if found.len() < REMEMBERED {
            found.insert(pointer.into(), place);
        }
        Ok(text)
    }

    fn resources(&self) -> &Resources {
        self.resources.get_or_init(|| {
            let generated = self.maker.resources(&self.snapshot, &self.last);
            let list = |kind| {
                let resources = generated.set.of(kind).iter();
                resources
                    .map(|resource| Resource {
                        name: Str::of(resource.name()),
                        version: Str::of(resource.version()),
                        bytes: Bytes {
                            data: resource.bytes().as_ptr(),
                            len: resource.bytes().len(),
                        },
                    })
                    .collect()
            };
            let mut lists: [Vec<Resource>; ResourceType::COUNT] = Default::default();
            for kind in ResourceType::ALL {
                if let Some(place) = lists.get_mut(kind.slot()) {
                    *place = list(kind);
                }
            }
            Resources { generated, lists }
        })
    }
}

impl fmt::Debug for SnapshotObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SnapshotObject")
            .field("proxy", self.snapshot.proxy_id())
            .field("store_index", &self.snapshot.store_index)
            .finish_non_exhaustive()
    }
}

fn read(snapshot: *const SnapshotHandle) -> Outcome<Pin<SnapshotObject>> {
    handles::get(snapshot)
}

/// What was noted of a snapshot; `None` if the handle isn't one of a live snapshot.
fn noted<R>(snapshot: *const SnapshotHandle, read: impl FnOnce(&Label) -> R) -> Option<R> {
    handles::noted::<SnapshotObject, R>(Number::of(snapshot), read)
}

/// The whole JSON, if it has been encoded and asked for before.
fn encoded(label: &Label) -> Option<Str> {
    let data = label.text.load(Ordering::Acquire);
    let len = label.len.load(Ordering::Acquire);
    (!data.is_null()).then_some(Str {
        data: data.cast_const().cast(),
        len,
    })
}

/// Notes the whole JSON, which stays where it is as long as the snapshot.
fn remember(label: &Label, text: Str) {
    label.len.store(text.len, Ordering::Release);
    let data = text.data.cast_mut().cast();
    label.text.store(data, Ordering::Release);
}

/// Adds a reference, to be released with `proxycfg_snapshot_release`, and returns the snapshot. NULL gives NULL, and so does
/// a handle whose last reference was released.
// SAFETY: see `proxycfg_abi_version`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn proxycfg_snapshot_retain(
    snapshot: *const SnapshotHandle,
) -> *const SnapshotHandle {
    let counted = infallible("proxycfg_snapshot_retain", || {
        handles::retain::<SnapshotObject>(Number::of(snapshot))
    });
    if counted { snapshot } else { std::ptr::null() }
}

/// Gives a reference back. NULL is fine; releasing a handle whose last reference was released does nothing.
// SAFETY: see `proxycfg_abi_version`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn proxycfg_snapshot_release(snapshot: *const SnapshotHandle) {
    infallible("proxycfg_snapshot_release", || {
        handles::release::<SnapshotObject>(Number::of(snapshot));
    });
}

/// The store index that every part of the snapshot was read at. NULL or an invalid handle gives 0.
// SAFETY: see `proxycfg_abi_version`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn proxycfg_snapshot_index(snapshot: *const SnapshotHandle) -> u64 {
    infallible("proxycfg_snapshot_index", || {
        noted(snapshot, |label| label.index.load(Ordering::Acquire)).unwrap_or_default()
    })
}

/// The proxy that the snapshot is for. The texts belong to the snapshot. NULL or an invalid handle gives an empty id.
// SAFETY: see `proxycfg_abi_version`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn proxycfg_snapshot_proxy_id(snapshot: *const SnapshotHandle) -> ProxyIdRef {
    infallible("proxycfg_snapshot_proxy_id", || {
        let snapshot = handles::find::<SnapshotObject>(Number::of(snapshot));
        snapshot.map(|snapshot| ProxyIdRef::of(snapshot.snapshot.proxy_id()))
    })
    .unwrap_or(ProxyIdRef::NOTHING)
}

/// The kind of the proxy. NULL or an invalid handle gives `PROXYCFG_PROXY_KIND_NONE`.
// SAFETY: see `proxycfg_abi_version`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn proxycfg_snapshot_kind(snapshot: *const SnapshotHandle) -> ProxyKind {
    infallible("proxycfg_snapshot_kind", || {
        let kind = noted(snapshot, |label| label.kind.load(Ordering::Acquire));
        kind.and_then(ProxyKind::of_number).unwrap_or_default()
    })
}

/// The snapshot as JSON, or the part that a JSON pointer names (`/Roots/TrustDomain`; empty: the whole). It is encoded once
/// and belongs to the snapshot. Private keys are left out. `PROXYCFG_RESULT_NOT_FOUND` if there is nothing at the pointer.
// SAFETY: see `proxycfg_abi_version`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn proxycfg_snapshot_json(
    snapshot: *const SnapshotHandle,
    pointer: Str,
    json: *mut Str,
    error: *mut *mut ErrorHandle,
) -> Code {
    call("proxycfg_snapshot_json", error, || {
        // SAFETY: the host gives NULL or a place for a text.
        let json = unsafe { memory::needed_out(json, "json") }?;
        if pointer.len == 0
            && let Some(text) = noted(snapshot, encoded).flatten()
        {
            json.set(text);
            return Ok(());
        }
        // SAFETY: the host gives a text.
        let pointer = unsafe { memory::text(pointer, "pointer") }?;
        let snapshot = read(snapshot)?;
        let text = Str::of(snapshot.subtree(pointer)?);
        if pointer.is_empty() {
            remember(snapshot.label(), text);
        }
        json.set(text);
        Ok(())
    })
}

/// What changed from one snapshot of a proxy to a newer one, as a JSON list of objects with `Change` (`header`, `roots`,
/// `leaf`, `intentions`, `upstream-added`, `upstream-endpoints` ...), and `Upstream` and `Target` where the change is about
/// one. The cost follows what changed. Free `diff` with `proxycfg_text_free`.
// SAFETY: see `proxycfg_abi_version`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn proxycfg_snapshot_diff(
    older: *const SnapshotHandle,
    newer: *const SnapshotHandle,
    diff: *mut *mut TextHandle,
    error: *mut *mut ErrorHandle,
) -> Code {
    call("proxycfg_snapshot_diff", error, || {
        // SAFETY: the host gives NULL or a place for a pointer.
        let diff = unsafe { memory::needed_out(diff, "diff") }?;
        let (older, newer) = (read(older)?, read(newer)?);
        let changes = older.snapshot.diff(&newer.snapshot).changes;
        let text = serde_json::to_string(&changes)
            .map_err(|e| Failure::new(Code::Panic, e.to_string()))?;
        diff.set(TextObject::give(text));
        Ok(())
    })
}

/// The Envoy resources of one type, sorted by name. They are made once and belong to the snapshot.
///
/// `type_url` is the type as xDS names it, such as `type.googleapis.com/envoy.config.cluster.v3.Cluster`; there are
/// clusters, endpoints (`ClusterLoadAssignment`), listeners, routes (`RouteConfiguration`) and secrets. `resources` receives
/// the first of an array of `count`.
// SAFETY: see `proxycfg_abi_version`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn proxycfg_snapshot_resources(
    snapshot: *const SnapshotHandle,
    type_url: Str,
    resources: *mut *const Resource,
    count: *mut usize,
    error: *mut *mut ErrorHandle,
) -> Code {
    call("proxycfg_snapshot_resources", error, || {
        // SAFETY: the host gives NULL or places for a pointer and a number.
        let (resources, count) = unsafe {
            (
                memory::needed_out(resources, "resources"),
                memory::needed_out(count, "count"),
            )
        };
        let (resources, count) = (resources?, count?);
        let snapshot = read(snapshot)?;
        // SAFETY: the host gives a text.
        let type_url = unsafe { memory::text(type_url, "type_url") }?;
        let Some(kind) = ResourceType::from_url(type_url) else {
            return Err(Failure::argument(format!(
                "type_url: {type_url:?} is not one of {}",
                ResourceType::ALL.map(ResourceType::url).join(", ")
            )));
        };
        let list = snapshot.resources().lists.get(kind.slot());
        let list = list.map(Vec::as_slice).unwrap_or_default();
        resources.set(list.as_ptr());
        count.set(list.len());
        Ok(())
    })
}

/// What couldn't be turned into Envoy resources as it is configured, and what was done instead, as a JSON list of texts.
/// Free `problems` with `proxycfg_text_free`.
// SAFETY: see `proxycfg_abi_version`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn proxycfg_snapshot_problems(
    snapshot: *const SnapshotHandle,
    problems: *mut *mut TextHandle,
    error: *mut *mut ErrorHandle,
) -> Code {
    call("proxycfg_snapshot_problems", error, || {
        // SAFETY: the host gives NULL or a place for a pointer.
        let problems = unsafe { memory::needed_out(problems, "problems") }?;
        let snapshot = read(snapshot)?;
        let found = snapshot.resources().generated.problems.iter();
        let texts: Vec<String> = found
            .map(|problem| format!("{}: {}", problem.resource, problem.message))
            .collect();
        problems.set(TextObject::give(serde_json::Value::from(texts).to_string()));
        Ok(())
    })
}
