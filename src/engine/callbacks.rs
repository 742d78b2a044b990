//! The pools that call out of the engine: one for watch callbacks, one for feeds.
//!
//! Threads are started when a job finds none idle, up to a cap, and end when idle for a while. A job that blocks holds one
//! thread; past the cap, jobs wait. Workers and the step loop never run a job.

use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

type Job = Box<dyn FnOnce() + Send>;

thread_local! {
    static ENGINE_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Marks the present thread as one of an engine's: waits on it return an error instead of a deadlock.
pub(super) fn mark_engine_thread() {
    ENGINE_THREAD.set(true);
}

/// Whether the present thread is one of an engine's.
pub(super) fn on_engine_thread() -> bool {
    ENGINE_THREAD.get()
}

/// What becomes of jobs that haven't begun when a pool is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rest {
    /// They are dropped.
    Dropped,
    /// They are done first.
    Done,
}

/// An elastic pool of threads.
#[derive(Clone)]
pub(super) struct CallbackPool(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    work: Condvar,
    ended: Condvar,
    cap: usize,
    idle_time: Duration,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    idle: usize,
    threads: usize,
    closed: bool,
    spawned: u64,
}

impl CallbackPool {
    pub fn new(cap: usize, idle_time: Duration) -> Self {
        Self(Arc::new(Inner {
            state: Mutex::default(),
            work: Condvar::new(),
            ended: Condvar::new(),
            cap: cap.max(1),
            idle_time,
        }))
    }

    /// Runs a job soon. Once the pool is closed it is dropped without running, and `false` returned.
    pub fn spawn(&self, job: impl FnOnce() + Send + 'static) -> bool {
        let mut state = self.0.state.lock();
        if state.closed {
            return false;
        }
        state.jobs.push_back(Box::new(job));
        if state.idle >= state.jobs.len() {
            self.0.work.notify_one();
        } else if state.threads < self.0.cap {
            state.threads += 1;
            state.spawned += 1;
            let name = format!("proxycfg-call-{}", state.spawned);
            drop(state);
            let inner = self.0.clone();
            let started = std::thread::Builder::new()
                .name(name)
                .spawn(move || inner.work());
            if let Err(error) = started {
                // The job stays queued: a thread that is busy now takes it.
                self.0.state.lock().threads -= 1;
                tracing::error!(%error, "can't start a callback thread");
            }
        } else {
            self.0.work.notify_one();
        }
        true
    }

    /// Threads alive.
    pub fn threads(&self) -> usize {
        self.0.state.lock().threads
    }

    /// Takes no more jobs, and waits until the deadline for the threads. Returns how many are stuck. Doesn't wait on an
    /// engine thread.
    pub fn close(&self, deadline: Instant, rest: Rest) -> usize {
        let mut state = self.0.state.lock();
        state.closed = true;
        let dropped = match rest {
            Rest::Dropped => std::mem::take(&mut state.jobs),
            Rest::Done => VecDeque::new(),
        };
        self.0.work.notify_all();
        parking_lot::MutexGuard::unlocked(&mut state, || drop(dropped));
        if on_engine_thread() {
            return state.threads;
        }
        while state.threads > 0 {
            if self.0.ended.wait_until(&mut state, deadline).timed_out() {
                break;
            }
        }
        state.threads
    }
}

impl Inner {
    fn work(self: Arc<Self>) {
        mark_engine_thread();
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                if let Err(panic) = catch_unwind(AssertUnwindSafe(job)) {
                    tracing::error!(
                        panic = super::panic_text(panic.as_ref()),
                        "a callback panicked"
                    );
                }
                state = self.state.lock();
                continue;
            }
            if state.closed {
                break;
            }
            state.idle += 1;
            let timed_out = self.work.wait_for(&mut state, self.idle_time).timed_out();
            state.idle -= 1;
            if timed_out && state.jobs.is_empty() {
                break;
            }
        }
        state.threads -= 1;
        drop(state);
        self.ended.notify_all();
    }
}

/// Jobs that run one after another, in order, on the pool.
pub(super) struct Serial {
    pool: CallbackPool,
    jobs: Mutex<(VecDeque<Job>, bool)>,
}

impl std::fmt::Debug for Serial {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Serial")
    }
}

impl Serial {
    pub fn new(pool: CallbackPool) -> Arc<Self> {
        Arc::new(Self {
            pool,
            jobs: Mutex::default(),
        })
    }

    /// Runs a job after all given before; never, once the pool is closed.
    pub fn spawn(self: &Arc<Self>, job: impl FnOnce() + Send + 'static) {
        let start = {
            let mut jobs = self.jobs.lock();
            jobs.0.push_back(Box::new(job));
            !std::mem::replace(&mut jobs.1, true)
        };
        if start {
            let this = self.clone();
            if !self.pool.spawn(move || this.drain()) {
                // Jobs hold what holds them: kept, they would never be freed.
                let dropped = std::mem::take(&mut *self.jobs.lock());
                drop(dropped);
            }
        }
    }

    fn drain(&self) {
        loop {
            let job = {
                let mut jobs = self.jobs.lock();
                match jobs.0.pop_front() {
                    Some(job) => job,
                    None => {
                        jobs.1 = false;
                        return;
                    }
                }
            };
            if let Err(panic) = catch_unwind(AssertUnwindSafe(job)) {
                tracing::error!(panic = super::panic_text(panic.as_ref()), "a feed panicked");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_blocked_job_holds_only_its_own_thread() {
        let pool = CallbackPool::new(4, Duration::from_secs(5));
        let (release, blocked) = mpsc::channel::<()>();
        pool.spawn(move || {
            let _ = blocked.recv();
        });
        let (done, finished) = mpsc::channel();
        pool.spawn(move || done.send(()).unwrap());
        finished.recv_timeout(Duration::from_secs(10)).unwrap();
        drop(release);
        assert_eq!(
            pool.close(Instant::now() + Duration::from_secs(10), Rest::Done),
            0
        );
    }

    #[test]
    fn close_reports_what_is_stuck() {
        let pool = CallbackPool::new(4, Duration::from_secs(5));
        let (release, blocked) = mpsc::channel::<()>();
        let (begun, started) = mpsc::channel();
        pool.spawn(move || {
            begun.send(()).unwrap();
            let _ = blocked.recv();
        });
        started.recv().unwrap();
        assert_eq!(pool.close(Instant::now(), Rest::Dropped), 1);
        drop(release);
        assert_eq!(
            pool.close(Instant::now() + Duration::from_secs(10), Rest::Done),
            0
        );
    }

    #[test]
    fn jobs_that_a_closed_pool_refuses_are_freed() {
        let pool = CallbackPool::new(1, Duration::from_secs(5));
        pool.close(Instant::now() + Duration::from_secs(10), Rest::Done);
        let serial = Serial::new(pool);
        let held = serial.clone();
        serial.spawn(move || drop(held));
        assert_eq!(Arc::strong_count(&serial), 1);
    }

    #[test]
    fn serial_jobs_keep_their_order() {
        let pool = CallbackPool::new(8, Duration::from_secs(5));
        let serial = Serial::new(pool.clone());
        let (send, receive) = mpsc::channel();
        for n in 0..1_000 {
            let send = send.clone();
            serial.spawn(move || send.send(n).unwrap());
        }
        drop(send);
        assert!(receive.iter().eq(0..1_000));
        pool.close(Instant::now() + Duration::from_secs(10), Rest::Done);
    }
}
