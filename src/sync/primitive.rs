//! The locks that the rest of the crate builds on: parking_lot's, or loom's when its model checker drives the tests.

#[cfg(not(loom))]
pub use parking_lot::{Condvar, Mutex, MutexGuard};

#[cfg(loom)]
pub use model::{Condvar, Mutex, MutexGuard};

#[cfg(loom)]
mod model {
    //! loom's locks behind parking_lot's interface. Poisoning can't happen: a panic ends the model.

    use std::ops::{Deref, DerefMut};
    use std::time::Instant;

    /// A mutex.
    #[derive(Debug, Default)]
    pub struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        /// A new mutex.
        pub fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        /// Locks it.
        pub fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard(Some(unpoisoned(self.0.lock())))
        }
    }

    /// A locked mutex. Holds loom's guard except while a condition variable has it.
    #[derive(Debug)]
    pub struct MutexGuard<'a, T>(Option<loom::sync::MutexGuard<'a, T>>);

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            match &self.0 {
                Some(guard) => guard,
                None => unreachable!("the guard is back when the wait is over"),
            }
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            match &mut self.0 {
                Some(guard) => guard,
                None => unreachable!("the guard is back when the wait is over"),
            }
        }
    }

    /// A condition variable.
    #[derive(Debug, Default)]
    pub struct Condvar(loom::sync::Condvar);

    /// How a wait with a deadline ended: in the model there is no time, so never by the deadline.
    #[derive(Debug)]
    pub struct WaitTimeoutResult;

    impl WaitTimeoutResult {
        /// Whether the deadline passed.
        pub fn timed_out(&self) -> bool {
            false
        }
    }

    impl Condvar {
        /// A new condition variable.
        pub fn new() -> Self {
            Self(loom::sync::Condvar::new())
        }

        /// Waits to be woken.
        pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            if let Some(held) = guard.0.take() {
                guard.0 = Some(unpoisoned(self.0.wait(held)));
            }
        }

        /// Waits to be woken.
        pub fn wait_until<T>(
            &self,
            guard: &mut MutexGuard<'_, T>,
            _deadline: Instant,
        ) -> WaitTimeoutResult {
            self.wait(guard);
            WaitTimeoutResult
        }

        /// Wakes all waiters.
        pub fn notify_all(&self) {
            self.0.notify_all();
        }
    }

    fn unpoisoned<G>(result: std::sync::LockResult<G>) -> G {
        result.unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
