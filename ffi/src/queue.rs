//! Completion queues: how hosts with an event loop or a garbage collector get snapshots, many at a time and on threads of
//! their own.
//!
//! A watch of a queue has a place in the queue's list when it has something new, at most one. What it gives is read when
//! the host polls, so a slow host gets the newest snapshots and the list is never longer than the watches. A file
//! descriptor tells event loops whether the list is empty.

use std::collections::VecDeque;
use std::fmt;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use crate::engine::{Engine, EngineHandle, deadline};
use crate::guard::{Code, ErrorHandle, Failure, Outcome, call, infallible};
use crate::handles::{self, Number, Pin, Reference};
use crate::maker::Maker;
use crate::memory;
use crate::registry::ProxyIdRef;
use crate::snapshot::{SnapshotHandle, SnapshotObject};
use crate::watch::{Watch, WatchHandle};

/// A completion queue. Made by `proxycfg_queue_new`, freed with `proxycfg_queue_free`. Usable from any number of threads at
/// the same time.
#[derive(Debug)]
pub struct QueueHandle(());

/// One new snapshot out of a queue.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Delivery {
    /// The tag that the watch was made with.
    pub tag: u64,
    /// The snapshot, to be released by the host. NULL means that the watch has ended, because the proxy's token is no
    /// longer valid or the engine was closed; nothing more comes, and the watch is still to be cancelled.
    pub snapshot: *const SnapshotHandle,
}

/// A queue and the watches that have something new.
pub(crate) struct Queue {
    engine: Weak<Engine>,
    maker: Arc<Maker>,
    ready: Mutex<Ready>,
    filled: Condvar,
    /// Held while a batch is read, so that the end of a watch can wait for it.
    reading: Mutex<()>,
    watches: Mutex<std::collections::HashSet<Number>>,
}

#[derive(Default)]
struct Ready {
    list: VecDeque<Arc<QueueWatch>>,
    closed: bool,
    waiting: usize,
    signal: Option<signal::Signal>,
}

/// A watch of a queue.
pub(crate) struct QueueWatch {
    tag: u64,
    /// Its handle.
    number: Number,
    /// The queue lets go of its watches when it is freed, so this isn't for ever.
    queue: Arc<Queue>,
    /// Taken out at the end.
    watch: Mutex<Option<proxycfg::Watch>>,
    /// It has a place in the list.
    listed: AtomicBool,
}

impl fmt::Debug for QueueWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueWatch")
            .field("tag", &self.tag)
            .finish_non_exhaustive()
    }
}

impl QueueWatch {
    /// Takes a place in the list; called whenever there may be something new.
    fn list(self: &Arc<Self>) {
        if self.listed.swap(true, Ordering::SeqCst) {
            return;
        }
        self.queue.push(self.clone());
    }

    /// What there is to deliver, if anything. `last` is the last one of the batch, which may be the same.
    fn next(&self, maker: &Arc<Maker>, last: &mut Option<Pin<SnapshotObject>>) -> Option<Delivery> {
        // Before the read: whatever comes after it takes a new place.
        self.listed.store(false, Ordering::SeqCst);
        let mut held = self.watch.lock();
        let snapshot = match held.as_mut()?.try_next() {
            Ok(Some(snapshot)) => {
                let same = last.as_ref().filter(|last| last.is_of(&snapshot));
                let reference = same.and_then(|last| Reference::again(last.number()));
                let reference = reference.unwrap_or_else(|| {
                    let reference = maker.wrap(snapshot);
                    *last = handles::find(reference.number());
                    reference
                });
                reference.into_handle()
            }
            Ok(None) => return None,
            Err(_ended) => {
                let ended = held.take();
                drop(held);
                drop(ended);
                std::ptr::null_mut()
            }
        };
        Some(Delivery {
            tag: self.tag,
            snapshot,
        })
    }

    /// Ends it: once this returns, no batch that is still to be read contains it.
    pub fn cancel(&self) {
        let watch = self.watch.lock().take();
        self.queue.watches.lock().remove(&self.number);
        drop(self.queue.reading.lock());
        drop(watch);
    }
}

impl Queue {
    fn push(&self, watch: Arc<QueueWatch>) {
        let mut ready = self.ready.lock();
        if ready.closed {
            return;
        }
        ready.list.push_back(watch);
        if ready.list.len() == 1
            && let Some(signal) = &ready.signal
        {
            signal.raise();
        }
        if ready.waiting > 0 {
            self.filled.notify_one();
        }
    }

    /// Ends the queue and its watches.
    pub fn close(&self) {
        let list = {
            let mut ready = self.ready.lock();
            ready.closed = true;
            if let Some(signal) = &ready.signal {
                // Whoever waits for the descriptor polls, and finds the end.
                signal.raise();
            }
            std::mem::take(&mut ready.list)
        };
        self.filled.notify_all();
        drop(list);
        let watches = std::mem::take(&mut *self.watches.lock());
        for number in watches {
            if let Ok(watch) = handles::take::<Watch>(number) {
                if let Some(engine) = self.engine.upgrade() {
                    engine.forget_watch(number);
                }
                watch.cancel();
            }
        }
    }

    /// Takes watches out of the list, up to `most`, and waits for one until the deadline.
    fn take(&self, most: usize, deadline: Option<Instant>) -> Outcome<Vec<Arc<QueueWatch>>> {
        let mut ready = self.ready.lock();
        loop {
            if ready.closed {
                return Err(Failure::new(Code::Closed, "the queue is freed"));
            }
            if !ready.list.is_empty() {
                break;
            }
            let Some(deadline) = deadline else {
                return Ok(Vec::new());
            };
            ready.waiting += 1;
            let timed_out = self.filled.wait_until(&mut ready, deadline).timed_out();
            ready.waiting -= 1;
            if timed_out && ready.list.is_empty() && !ready.closed {
                return Ok(Vec::new());
            }
        }
        let count = most.min(ready.list.len());
        let taken = ready.list.drain(..count).collect();
        if ready.list.is_empty() {
            if let Some(signal) = &ready.signal {
                signal.lower();
            }
        } else if ready.waiting > 0 {
            self.filled.notify_one();
        }
        Ok(taken)
    }

    fn poll(&self, places: &mut [MaybeUninit<Delivery>], timeout_ms: u64) -> Outcome<usize> {
        let until = (timeout_ms > 0).then(|| deadline(timeout_ms));
        loop {
            let taken = self.take(places.len(), until)?;
            if taken.is_empty() {
                return Ok(0);
            }
            let _reading = self.reading.lock();
            let (mut count, mut last) = (0, None);
            let deliveries = taken
                .iter()
                .filter_map(|watch| watch.next(&self.maker, &mut last));
            for (place, delivery) in places.iter_mut().zip(deliveries) {
                place.write(delivery);
                count += 1;
            }
            // What was taken may have come to nothing: a watch that was cancelled, or read already.
            if count > 0 {
                return Ok(count);
            }
        }
    }
}

/// Makes a completion queue. `queue` receives the handle.
// SAFETY: see `proxycfg_abi_version`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn proxycfg_queue_new(
    engine: *const EngineHandle,
    queue: *mut *mut QueueHandle,
    error: *mut *mut ErrorHandle,
) -> Code {
    call("proxycfg_queue_new", error, || {
        // SAFETY: the host gives NULL or a place for a pointer.
        let queue = unsafe { memory::needed_out(queue, "queue") }?;
        let engine = handles::get::<Engine, _>(engine)?;
        engine.check_open()?;
        let number = handles::put(Arc::new(Queue {
            engine: Arc::downgrade(&engine),
            maker: engine.maker.clone(),
            ready: Mutex::default(),
            filled: Condvar::new(),
            reading: Mutex::default(),
            watches: Mutex::default(),
        }));
        engine.adopt_queue(number);
        queue.set(number.handle());
        Ok(())
    })
}

/// Watches a proxy, registered or not, through a queue: its snapshot if it has one, and each new one, come out of
/// `proxycfg_queue_poll` with `tag`. `watch` receives the handle.
// SAFETY: see `proxycfg_abi_version`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn proxycfg_queue_watch(
    queue: *const QueueHandle,
    id: *const ProxyIdRef,
    tag: u64,
    watch: *mut *mut WatchHandle,
    error: *mut *mut ErrorHandle,
) -> Code {
    call("proxycfg_queue_watch", error, || {
        // SAFETY: the host gives NULL or a place for a pointer.
        let watch = unsafe { memory::needed_out(watch, "watch") }?;
        let queue = handles::get::<Queue, _>(queue)?;
        // SAFETY: the host gives NULL or an id.
        let id = unsafe { ProxyIdRef::read(id) }?;
        let closed = || Failure::new(Code::Closed, "the engine is freed");
        let engine = queue.engine.upgrade().ok_or_else(closed)?;
        engine.check_open()?;
        let (object, number) = Watch::prepare(&engine)?;
        queue.watches.lock().insert(number);
        if queue.ready.lock().closed {
            // Its end may have missed this watch.
            engine.forget_watch(number);
            drop(handles::take::<Watch>(number));
            return Err(Failure::new(Code::Closed, "the queue is freed"));
        }
        watch.set(number.handle());
        let queued = Arc::new(QueueWatch {
            tag,
            number,
            queue: Arc::clone(&queue),
            watch: Mutex::new(None),
            listed: AtomicBool::new(false),
        });
        let mut opened = engine.manager().watch(&id);
        let weak = Arc::downgrade(&queued);
        opened.set_waker(move || {
            if let Some(queued) = weak.upgrade() {
                queued.list();
            }
        });
        *queued.watch.lock() = Some(opened);
        object.open_queued(queued.clone());
        // There may be a snapshot already.
        queued.list();
        Ok(())
    })
}

/// Takes new snapshots out of a queue: at most `capacity`, each to be released by the host, into the array `deliveries`.
///
/// With none there, waits for one, at most `timeout_ms` milliseconds; 0 doesn't wait. `count` receives how many were
/// taken, 0 at the end of the time. Of each watch the newest snapshot comes, and none twice. Several threads may poll.
// SAFETY: see `proxycfg_abi_version`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn proxycfg_queue_poll(
    queue: *const QueueHandle,
    deliveries: *mut Delivery,
    capacity: usize,
    timeout_ms: u64,
    count: *mut usize,
    error: *mut *mut ErrorHandle,
) -> Code {
    call("proxycfg_queue_poll", error, || {
        // SAFETY: the host gives NULL or a place for a number.
        let count = unsafe { memory::needed_out(count, "count") }?;
        let queue = handles::get::<Queue, _>(queue)?;
        // SAFETY: the host gives NULL or an array of that capacity for writing.
        let places = unsafe { memory::places(deliveries, capacity, "deliveries") }?;
        if places.is_empty() {
            return Err(Failure::argument("capacity is 0: give room for a delivery"));
        }
        count.set(queue.poll(places, timeout_ms)?);
        Ok(())
    })
}

/// A file descriptor that is readable while the queue has something to deliver: for poll, epoll and the like. It belongs to
/// the queue and is closed with it: don't read or close it; duplicate it if an event loop outlives the queue. Linux only.
// SAFETY: see `proxycfg_abi_version`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn proxycfg_queue_fd(
    queue: *const QueueHandle,
    fd: *mut i32,
    error: *mut *mut ErrorHandle,
) -> Code {
    call("proxycfg_queue_fd", error, || {
        // SAFETY: the host gives NULL or a place for a number.
        let fd = unsafe { memory::needed_out(fd, "fd") }?;
        let queue = handles::get::<Queue, _>(queue)?;
        let mut ready = queue.ready.lock();
        if ready.closed {
            return Err(Failure::new(Code::Closed, "the queue is freed"));
        }
        if ready.signal.is_none() {
            let signal = signal::Signal::new()
                .map_err(|e| Failure::new(Code::System, format!("can't make an eventfd: {e}")))?;
            if !ready.list.is_empty() {
                signal.raise();
            }
            ready.signal = Some(signal);
        }
        if let Some(signal) = &ready.signal {
            fd.set(signal.fd());
        }
        Ok(())
    })
}

/// Frees a queue, and cancels its watches that haven't been cancelled; their handles become invalid. Polls that wait return
/// `PROXYCFG_RESULT_CLOSED`. NULL is fine; freeing one twice does nothing.
// SAFETY: see `proxycfg_abi_version`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn proxycfg_queue_free(queue: *mut QueueHandle) {
    infallible("proxycfg_queue_free", || {
        let number = Number::of(queue);
        let Ok(queue) = handles::take::<Queue>(number) else {
            return;
        };
        if let Some(engine) = queue.engine.upgrade() {
            engine.forget_queue(number);
        }
        queue.close();
    });
}

#[cfg(target_os = "linux")]
mod signal {
    //! An eventfd that is readable or not.

    use std::io;
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

    pub(super) struct Signal(OwnedFd);

    impl Signal {
        pub fn new() -> io::Result<Self> {
            // SAFETY: no memory is passed.
            let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            // SAFETY: a new descriptor, which nobody else has.
            Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
        }

        pub fn fd(&self) -> i32 {
            self.0.as_raw_fd()
        }

        /// Makes it readable. Writing 1 fails only past 2^64 - 2, which lowering between keeps away.
        pub fn raise(&self) {
            let one = 1u64;
            // SAFETY: eight bytes of a local are read.
            let written = unsafe { libc::write(self.fd(), (&raw const one).cast(), 8) };
            debug_assert_eq!(written, 8);
        }

        /// Makes it unreadable; it may be so already.
        pub fn lower(&self) {
            let mut count = 0u64;
            // SAFETY: eight bytes of a local are written.
            let _ = unsafe { libc::read(self.fd(), (&raw mut count).cast(), 8) };
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod signal {
    //! There is no eventfd here: hosts poll with a time.

    pub(super) struct Signal(std::convert::Infallible);

    impl Signal {
        pub fn new() -> std::io::Result<Self> {
            Err(std::io::ErrorKind::Unsupported.into())
        }

        pub fn fd(&self) -> i32 {
            match self.0 {}
        }

        pub fn raise(&self) {
            match self.0 {}
        }

        pub fn lower(&self) {
            match self.0 {}
        }
    }
}
