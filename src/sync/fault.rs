//! Fault points: places where a test has the engine fail, block or panic as what is called there could.
//!
//! Each hop asks [`hit`] whether it is to fail. Without the feature `failpoints` the answer is a constant, so that nothing of
//! it is left in the program. With it, whoever has [`install`]ed an injector decides: it may panic, block, or have the hop fail
//! with the hop's own error. The points stand inside the guards that hold such failures off, never under a lock.

/// Where a fault can be injected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Point {
    /// The evaluation of a view, after it has read: fails as the query's error.
    View,
    /// The build of a part of a proxy's snapshot: can panic or block.
    Part,
    /// Before a snapshot is handed to the watchers: can block.
    Publish,
    /// The call of a waker: can panic or block.
    Waker,
    /// The call of a watch callback: can panic or block.
    Callback,
    /// A call into a feed: can panic or block; a panic is the query's error.
    Subscribe,
    /// Answers of a feed: can be late (block), or come twice.
    Answer,
    /// The signing of a leaf certificate: fails as signing does.
    Sign,
    /// A group of commits in the store's back end: fails as a full disk does, can panic or block.
    Persist,
    /// A pass that brings local state into catalog and engine: can panic or block.
    LocalSync,
    /// A look of the catalog source at a proxy's records: can panic or block.
    CatalogSource,
    /// The generation of Envoy resources: can panic or block.
    Generate,
}

/// Whether the hop is to fail. Constantly false without the feature `failpoints`.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
#[must_use]
pub const fn hit(_point: Point) -> bool {
    false
}

#[cfg(feature = "failpoints")]
pub use on::{Installed, hit, install};

#[cfg(feature = "failpoints")]
mod on {
    use std::sync::Arc;

    use parking_lot::RwLock;

    use super::Point;

    type Injector = Arc<dyn Fn(Point) -> bool + Send + Sync>;

    /// One for the process, as what fails in reality is.
    static INJECTOR: RwLock<Option<Injector>> = RwLock::new(None);

    /// Whether the hop is to fail. Runs the injector, with no lock held.
    #[must_use]
    pub fn hit(point: Point) -> bool {
        let injector = INJECTOR.read().clone();
        injector.is_some_and(|injector| injector(point))
    }

    /// Has `injector` decide at every point of the process until the result is dropped, in place of one before it.
    #[must_use = "faults end when this is dropped"]
    pub fn install(injector: impl Fn(Point) -> bool + Send + Sync + 'static) -> Installed {
        *INJECTOR.write() = Some(Arc::new(injector));
        Installed(())
    }

    /// Faults are on as long as this lives. A call of the injector that has begun ends later.
    #[derive(Debug)]
    pub struct Installed(());

    impl Drop for Installed {
        fn drop(&mut self) {
            let injector = INJECTOR.write().take();
            drop(injector);
        }
    }
}

#[cfg(all(test, not(feature = "failpoints")))]
mod tests {
    use super::*;

    #[test]
    fn faults_are_off_by_default() {
        const OFF: bool = hit(Point::Persist);
        assert!(!OFF);
    }
}
