//! Watches that call a function of the host.

use std::ffi::c_void;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use proxycfg::{CallbackWatch, WatchEvent};

use crate::engine::{Engine, EngineHandle};
use crate::foreign::{Destructor, UserData};
use crate::guard::{Code, ErrorHandle, Outcome, call};
use crate::handles::{self, Number};
use crate::maker::Maker;
use crate::memory::{self, null};
use crate::queue::QueueWatch;
use crate::registry::ProxyIdRef;
use crate::snapshot::SnapshotHandle;

/// A watch on a proxy. Made by `proxycfg_watch` or `proxycfg_queue_watch`, freed with `proxycfg_watch_cancel`. Usable from
/// any number of threads at the same time.
#[derive(Debug)]
pub struct WatchHandle(());

/// Called with each new snapshot of a proxy.
///
/// `snapshot` is lent for the call; to keep it, retain it. NULL means that the watch has ended, because the proxy's
/// token is no longer valid or the engine is being closed; nothing more comes. Calls of one watch come one at a time, on threads of the engine, with no lock
/// held; a call may use every function of this library. A slow callback gets only the newest snapshot. It must not
/// throw or longjmp: a C++ exception ends the process, a longjmp leaves the library broken.
pub type SnapshotCallback =
    Option<unsafe extern "C" fn(user_data: *mut c_void, snapshot: *const SnapshotHandle)>;

/// A watch of either sort.
#[derive(Debug)]
pub(crate) struct Watch {
    state: Mutex<State>,
    engine: Weak<Engine>,
}

#[derive(Debug)]
enum State {
    /// It has a handle, but isn't on yet.
    Opening,
    Called {
        _watch: CallbackWatch,
    },
    Queued(Arc<QueueWatch>),
    Cancelled,
}

impl Watch {
    /// A watch with a handle, to be opened. The handle comes first, so that the host knows it when the first call comes.
    pub fn prepare(engine: &Arc<Engine>) -> Outcome<(Arc<Self>, Number)> {
        let watch = Arc::new(Self {
            state: Mutex::new(State::Opening),
            engine: Arc::downgrade(engine),
        });
        let number = handles::put(watch.clone());
        engine.adopt_watch(number);
        // Either this sees that the engine ends, or its end sees the watch.
        if let Err(closed) = engine.check_open() {
            engine.forget_watch(number);
            // The engine's end may have taken it already.
            drop(handles::take::<Self>(number));
            return Err(closed);
        }
        Ok((watch, number))
    }

    pub fn open_queued(&self, queued: Arc<QueueWatch>) {
        self.open(State::Queued(queued));
    }

    fn open(&self, opened: State) {
        let mut state = self.state.lock();
        let spare = if matches!(*state, State::Opening) {
            *state = opened;
            None
        } else {
            // Cancelled by the first call of the callback already.
            Some(opened)
        };
        drop(state);
        end(spare);
    }

    /// Ends it; waits for a call that is under way, unless on a thread of the engine.
    pub fn cancel(&self) {
        let state = std::mem::replace(&mut *self.state.lock(), State::Cancelled);
        end(Some(state));
    }
}

/// Dropping a callback's watch cancels it.
fn end(state: Option<State>) {
    if let Some(State::Queued(queued)) = state {
        queued.cancel();
    }
}

/// A callback with its user data.
struct Callback {
    function: unsafe extern "C" fn(*mut c_void, *const SnapshotHandle),
    user_data: UserData,
    maker: Arc<Maker>,
}

impl Callback {
    fn call(&self, event: WatchEvent) {
        let snapshot = match event {
            WatchEvent::Snapshot(snapshot) => Some(self.maker.wrap(snapshot)),
            WatchEvent::Ended => None,
        };
        let lent = snapshot
            .as_ref()
            .map_or(std::ptr::null_mut(), |snapshot| snapshot.number().handle());
        // SAFETY: the host gave this function to be called so; the snapshot lives until after the call.
        unsafe { (self.function)(self.user_data.pointer(), lent) };
    }
}

/// Watches a proxy, registered or not: `callback` is called with its snapshot if it has one, and with each new one.
///
/// `destructor` (may be NULL) is called with `user_data` exactly once, after the last call; if this function fails it isn't
/// called. `watch` receives the handle before the first call.
// SAFETY: see `proxycfg_abi_version`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn proxycfg_watch(
    engine: *const EngineHandle,
    id: *const ProxyIdRef,
    callback: SnapshotCallback,
    user_data: *mut c_void,
    destructor: Destructor,
    watch: *mut *mut WatchHandle,
    error: *mut *mut ErrorHandle,
) -> Code {
    let mut held = Some(UserData::new(user_data, destructor));
    let code = call("proxycfg_watch", error, || {
        // SAFETY: the host gives NULL or a place for a pointer.
        let watch = unsafe { memory::needed_out(watch, "watch") }?;
        let engine = handles::get::<Engine, _>(engine)?;
        engine.check_open()?;
        // SAFETY: the host gives NULL or an id.
        let id = unsafe { ProxyIdRef::read(id) }?;
        let function = callback.ok_or_else(|| null("callback"))?;
        let (object, number) = Watch::prepare(&engine)?;
        let Some(user_data) = held.take() else {
            return Ok(());
        };
        watch.set(number.handle());
        let callback = Callback {
            function,
            user_data,
            maker: engine.maker.clone(),
        };
        let opened = engine
            .manager()
            .watch_with(&id, move |event| callback.call(event));
        object.open(State::Called { _watch: opened });
        Ok(())
    });
    if let Some(user_data) = held {
        user_data.give_back();
    }
    code
}

/// Ends a watch and frees its handle.
///
/// After this returns no call of its callback runs or will run, its destructor has run, and no queue delivers anything of
/// it. Called from a callback of the engine it doesn't wait: the destructor marks the end then. A watch that was
/// cancelled before, or whose engine was freed, is `PROXYCFG_RESULT_INVALID_HANDLE`.
// SAFETY: see `proxycfg_abi_version`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn proxycfg_watch_cancel(
    watch: *mut WatchHandle,
    error: *mut *mut ErrorHandle,
) -> Code {
    call("proxycfg_watch_cancel", error, || cancel(watch))
}

fn cancel(watch: *mut WatchHandle) -> Outcome<()> {
    if watch.is_null() {
        return Err(null("watch"));
    }
    let number = Number::of(watch);
    let watch = handles::take::<Watch>(number)?;
    if let Some(engine) = watch.engine.upgrade() {
        engine.forget_watch(number);
    }
    watch.cancel();
    Ok(())
}
