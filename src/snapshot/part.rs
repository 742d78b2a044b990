//! Parts: shared values with an identity.

use std::fmt;
use std::num::NonZeroU64;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};

use triomphe::Arc;

/// The identity of a part: unique within the process and never used again, unlike an address (decision E9). Two parts
/// with equal ids are the same; two with different ids may still be equal in content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PartId(NonZeroU64);

impl PartId {
    fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        // Counting up from 1 doesn't come to 0 again within any process's life.
        let next = NonZeroU64::new(NEXT.fetch_add(1, Ordering::Relaxed));
        Self(next.unwrap_or(NonZeroU64::MAX))
    }
}

/// A value with an identity.
pub struct Part<T: ?Sized> {
    id: PartId,
    value: T,
}

/// A shared part.
pub type PartRef<T> = Arc<Part<T>>;

impl<T> Part<T> {
    /// A new part with an identity of its own.
    pub fn new(value: T) -> PartRef<T> {
        Arc::new(Self {
            id: PartId::next(),
            value,
        })
    }
}

impl<T: ?Sized> Part<T> {
    /// Whether the two are one part: what comparing their ids says, without a look at either.
    #[must_use]
    pub fn is_same(one: &Arc<Self>, other: &Arc<Self>) -> bool {
        Arc::ptr_eq(one, other)
    }

    /// The identity.
    #[must_use]
    pub const fn id(&self) -> PartId {
        self.id
    }
}

impl<T: ?Sized> Deref for Part<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> AsRef<T> for Part<T> {
    fn as_ref(&self) -> &T {
        &self.value
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Part<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}
