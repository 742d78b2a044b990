//! Handles: what the host holds in place of engines, watches, queues and sources.
//!
//! A handle looks like a pointer but is a number that names an entry of one table, and no number is ever used again. So a
//! handle that was freed, or of another type, is recognised instead of followed (FC-094), and an object that one thread
//! frees while another uses it lives until that call is over (FC-098). A look-up costs tens of nanoseconds, which these
//! objects' functions don't notice. Snapshots, errors and texts, which are many and whose functions are cheap, are plain
//! pointers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use parking_lot::RwLock;

use crate::engine::Engine;
use crate::guard::{Code, Failure, Outcome};
use crate::memory::null;
use crate::queue::Queue;
use crate::source::Source;
use crate::watch::Watch;

/// Something that has a handle.
#[derive(Clone)]
pub(crate) enum Object {
    Engine(Arc<Engine>),
    Watch(Arc<Watch>),
    Queue(Arc<Queue>),
    Source(Arc<Source>),
}

/// A type that handles stand for.
pub(crate) trait Kind: Sized {
    /// What an error calls it.
    const NAME: &'static str;
    fn wrap(this: Arc<Self>) -> Object;
    fn unwrap(object: &Object) -> Option<&Arc<Self>>;
}

macro_rules! kind {
    ($kind:ident, $name:literal) => {
        impl Kind for $kind {
            const NAME: &'static str = $name;
            fn wrap(this: Arc<Self>) -> Object {
                Object::$kind(this)
            }
            fn unwrap(object: &Object) -> Option<&Arc<Self>> {
                match object {
                    Object::$kind(this) => Some(this),
                    _ => None,
                }
            }
        }
    };
}

kind!(Engine, "engine");
kind!(Watch, "watch");
kind!(Queue, "queue");
kind!(Source, "source");

/// A handle's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Number(usize);

impl Number {
    /// The handle that the host gets. It points nowhere: following it faults instead of doing harm.
    pub fn handle<T>(self) -> *mut T {
        std::ptr::without_provenance_mut(self.0)
    }

    pub fn of<T>(handle: *const T) -> Self {
        Self(handle.addr())
    }
}

const SHARDS: usize = 16;

struct Table {
    shards: [RwLock<HashMap<usize, Object>>; SHARDS],
    next: AtomicUsize,
}

static TABLE: LazyLock<Table> = LazyLock::new(|| Table {
    shards: std::array::from_fn(|_| RwLock::default()),
    // Hosts with a garbage collector take numbers below a page for mistakes in pointers.
    next: AtomicUsize::new(4_097),
});

impl Table {
    fn shard(&self, number: Number) -> &RwLock<HashMap<usize, Object>> {
        // Numbers are odd, so that none is the address of anything.
        &self.shards[(number.0 >> 1) % SHARDS]
    }
}

/// Gives an object a handle.
pub(crate) fn put<T: Kind>(object: Arc<T>) -> Number {
    let number = Number(TABLE.next.fetch_add(2, Ordering::Relaxed));
    TABLE
        .shard(number)
        .write()
        .insert(number.0, T::wrap(object));
    number
}

/// The object of a handle.
pub(crate) fn get<T: Kind, H>(handle: *const H) -> Outcome<Arc<T>> {
    if handle.is_null() {
        return Err(null(T::NAME));
    }
    let number = Number::of(handle);
    let shard = TABLE.shard(number).read();
    shard
        .get(&number.0)
        .and_then(T::unwrap)
        .cloned()
        .ok_or_else(invalid::<T>)
}

/// Takes the handle back: from here on it is invalid. The object lives until the calls that use it are over.
pub(crate) fn take<T: Kind>(number: Number) -> Outcome<Arc<T>> {
    let mut shard = TABLE.shard(number).write();
    let found = shard.get(&number.0).and_then(T::unwrap).cloned();
    let object = found.ok_or_else(invalid::<T>)?;
    let entry = shard.remove(&number.0);
    drop(shard);
    // Dropped outside the lock; it isn't the last, since `object` is one.
    drop(entry);
    Ok(object)
}

fn invalid<T: Kind>() -> Failure {
    Failure::new(
        Code::InvalidHandle,
        format!(
            "not a live handle of the type {}: it was freed, or never was one",
            T::NAME
        ),
    )
}
