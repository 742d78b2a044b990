//! What can only be tested from within: panics on demand, and the pointer code under miri.

use std::collections::BTreeSet;
use std::ptr::{null, null_mut};

use crate::count::*;
use crate::engine::*;
use crate::guard::*;
use crate::log::*;
use crate::memory::*;
use crate::queue::*;
use crate::registry::*;
use crate::snapshot::*;
use crate::source::*;
use crate::watch::*;

fn text_of(error: *mut ErrorHandle) -> String {
    // SAFETY: an error that a call gave, or NULL.
    let message = unsafe { proxycfg_error_message(error) };
    // SAFETY: the error lives.
    unsafe { text(message, "message") }.unwrap().to_owned()
}

fn done(code: Code, error: *mut ErrorHandle) {
    assert_eq!(code, Code::Ok, "{}", text_of(error));
}

/// How a function shows that it panicked: by its result and an error, or by its default.
type Run = fn(&Things) -> Shown;

#[derive(Debug, PartialEq)]
enum Shown {
    Code(Code, String),
    Default,
}

/// Live things to call functions with.
struct Things {
    engine: *mut EngineHandle,
    queue: *mut QueueHandle,
    source: *mut SourceHandle,
    snapshot: *const SnapshotHandle,
    id: ProxyIdRef,
}

fn empty() -> Str {
    Str::EMPTY
}

/// An option of a C function type may be NULL; these are never called.
unsafe extern "C" fn on_snapshot(_: *mut std::ffi::c_void, _: *const SnapshotHandle) {}
unsafe extern "C" fn on_query(_: *mut std::ffi::c_void, _: *const SourceQuery) {}
unsafe extern "C" fn on_end(_: *mut std::ffi::c_void, _: u64) {}
unsafe extern "C" fn on_log(_: *mut std::ffi::c_void, _: i32, _: Str, _: Str) {}

macro_rules! fallible {
    ($t:ident, $function:ident ( $($argument:expr),* )) => {{
        fn run($t: &Things) -> Shown {
            let _ = $t;
            let mut error = null_mut();
            // SAFETY: live handles, and places of this frame.
            let code = unsafe { $function($($argument,)* &mut error) };
            let message = text_of(error);
            // SAFETY: given by the call above.
            unsafe { proxycfg_error_free(error) };
            Shown::Code(code, message)
        }
        (stringify!($function), run as Run)
    }};
}

macro_rules! infallible {
    ($t:ident, $function:ident ( $($argument:expr),* ), $default:pat) => {{
        fn run($t: &Things) -> Shown {
            let _ = $t;
            // SAFETY: live objects.
            #[allow(unused_unsafe, reason = "some of the functions are safe")]
            let result = unsafe { $function($($argument),*) };
            assert!(matches!(result, $default));
            Shown::Default
        }
        (stringify!($function), run as Run)
    }};
}

fn functions() -> Vec<(&'static str, Run)> {
    vec![
        fallible!(t, proxycfg_engine_new(null(), &mut { null_mut() })),
        fallible!(t, proxycfg_engine_close(t.engine, 0, null_mut())),
        fallible!(t, proxycfg_engine_apply(t.engine, empty(), null_mut())),
        fallible!(t, proxycfg_engine_wait_index(t.engine, 0, 0)),
        fallible!(
            t,
            proxycfg_engine_wait_ready(t.engine, &t.id, 0, null_mut())
        ),
        fallible!(t, proxycfg_register(t.engine, null(), null_mut())),
        fallible!(t, proxycfg_deregister(t.engine, &t.id, empty())),
        fallible!(t, proxycfg_list(t.engine, empty(), &mut { null_mut() })),
        fallible!(t, proxycfg_status(t.engine, &t.id, &mut { null_mut() })),
        fallible!(
            t,
            proxycfg_watch(t.engine, &t.id, Some(on_snapshot), null_mut(), None, &mut {
                null_mut()
            })
        ),
        fallible!(t, proxycfg_watch_cancel(null_mut())),
        fallible!(t, proxycfg_queue_new(t.engine, &mut { null_mut() })),
        fallible!(
            t,
            proxycfg_queue_watch(t.queue, &t.id, 0, &mut { null_mut() })
        ),
        fallible!(
            t,
            proxycfg_queue_poll(t.queue, null_mut(), 0, 0, &mut { 0 })
        ),
        fallible!(t, proxycfg_queue_fd(t.queue, &mut { 0 })),
        fallible!(
            t,
            proxycfg_source_new(null(), null_mut(), None, &mut { null_mut() })
        ),
        fallible!(t, proxycfg_source_answer(t.source, 0, empty())),
        fallible!(t, proxycfg_source_answer_batch(t.source, null(), 0)),
        fallible!(t, proxycfg_source_error(t.source, 0, empty(), 0)),
        fallible!(
            t,
            proxycfg_snapshot_json(t.snapshot, empty(), &mut { Str::EMPTY })
        ),
        fallible!(
            t,
            proxycfg_snapshot_diff(t.snapshot, t.snapshot, &mut { null_mut() })
        ),
        fallible!(
            t,
            proxycfg_snapshot_resources(t.snapshot, empty(), &mut { null() }, &mut { 0 })
        ),
        fallible!(
            t,
            proxycfg_snapshot_problems(t.snapshot, &mut { null_mut() })
        ),
        fallible!(t, proxycfg_log_set(Some(on_log), null_mut(), None, 1)),
        infallible!(t, proxycfg_engine_free(t.engine), ()),
        infallible!(t, proxycfg_queue_free(t.queue), ()),
        infallible!(t, proxycfg_source_free(t.source), ()),
        infallible!(t, proxycfg_snapshot_index(t.snapshot), 0),
        infallible!(t, proxycfg_snapshot_kind(t.snapshot), ProxyKind::None),
        infallible!(
            t,
            proxycfg_snapshot_proxy_id(t.snapshot),
            ProxyIdRef {
                id: Str { len: 0, .. },
                ..
            }
        ),
        infallible!(t, proxycfg_live_handles(HandleKind::Engine as i32), 0),
        infallible!(t, proxycfg_error_code(an_error()), Code::Ok),
        infallible!(t, proxycfg_error_message(an_error()), Str { len: 0, .. }),
        infallible!(
            t,
            proxycfg_text_content(TextObject::give("x".to_owned())),
            Str { len: 0, .. }
        ),
        infallible!(t, proxycfg_error_free(an_error()), ()),
        infallible!(t, proxycfg_text_free(TextObject::give("x".to_owned())), ()),
    ]
}

/// An error, which leaks if it isn't freed.
fn an_error() -> *mut ErrorHandle {
    let mut error = null_mut();
    // SAFETY: a place of this frame.
    unsafe { proxycfg_watch_cancel(null_mut(), &mut error) };
    error
}

fn things() -> Things {
    let mut things = Things {
        engine: null_mut(),
        queue: null_mut(),
        source: null_mut(),
        snapshot: null(),
        id: ProxyIdRef {
            id: Str::of("p"),
            node: Str::of("n"),
            token: Str::EMPTY,
        },
    };
    let mut error = null_mut();
    let functions = SourceFunctions {
        size: size_of::<SourceFunctions>(),
        subscribe: Some(on_query),
        unsubscribe: Some(on_end),
        refresh: None,
    };
    let definition = r#"{"Kind": "connect-proxy", "Service": "web-proxy", "Port": 1, "Proxy": {"DestinationServiceName": "web"}}"#;
    let registration = RegistrationOptions {
        size: size_of::<RegistrationOptions>(),
        id: things.id,
        source: Str::EMPTY,
        definition: Str::of(definition),
        kind: 0,
        flags: 0,
    };
    // SAFETY: places of this frame, live handles.
    unsafe {
        done(
            proxycfg_engine_new(null(), &mut things.engine, &mut error),
            error,
        );
        done(
            proxycfg_queue_new(things.engine, &mut things.queue, &mut error),
            error,
        );
        done(
            proxycfg_source_new(&functions, null_mut(), None, &mut things.source, &mut error),
            error,
        );
        done(
            proxycfg_register(things.engine, &registration, null_mut(), &mut error),
            error,
        );
        done(
            proxycfg_engine_wait_ready(
                things.engine,
                &things.id,
                60_000,
                &mut things.snapshot,
                &mut error,
            ),
            error,
        );
    }
    things
}

/// The names in the list of symbols, which a test compares with the header and the library.
fn exported() -> BTreeSet<&'static str> {
    include_str!("../symbols.txt").lines().collect()
}

#[test]
#[cfg_attr(miri, ignore = "starts an engine")]
fn fc_091_no_panic_leaves_an_exported_function() {
    let things = things();
    let functions = functions();
    let tried: BTreeSet<&str> = functions.iter().map(|(name, _)| *name).collect();
    let untried: Vec<&str> = exported().difference(&tried).copied().collect();
    // The one is a constant; the others are tried below, since their defaults are pointers.
    assert_eq!(
        untried,
        [
            "proxycfg_abi_version",
            "proxycfg_snapshot_release",
            "proxycfg_snapshot_retain"
        ]
    );
    for (name, run) in functions {
        probe::panic_in(Some(name));
        let shown = run(&things);
        match shown {
            Shown::Code(code, message) => {
                assert_eq!(code, Code::Panic, "{name}");
                assert!(
                    message.contains(name) && message.contains("on demand"),
                    "{message}"
                );
            }
            Shown::Default => {}
        }
        probe::panic_in(None);
    }
    // SAFETY: a live snapshot.
    unsafe {
        probe::panic_in(Some("proxycfg_snapshot_retain"));
        assert!(proxycfg_snapshot_retain(things.snapshot).is_null());
        probe::panic_in(Some("proxycfg_snapshot_release"));
        proxycfg_snapshot_release(things.snapshot);
    }
    // All is as usable as before.
    let mut error = null_mut();
    let mut json = Str::EMPTY;
    // SAFETY: live handles, places of this frame.
    unsafe {
        assert!(proxycfg_snapshot_index(things.snapshot) > 0);
        done(
            proxycfg_snapshot_json(things.snapshot, Str::EMPTY, &mut json, &mut error),
            error,
        );
        proxycfg_snapshot_release(things.snapshot);
        proxycfg_queue_free(things.queue);
        proxycfg_engine_free(things.engine);
        proxycfg_source_free(things.source);
    }
}

#[test]
fn texts_and_errors_go_out_and_come_back() {
    let made = TextObject::give("ä text".to_owned());
    // SAFETY: made above, freed once.
    unsafe {
        assert_eq!(text(proxycfg_text_content(made), "text").unwrap(), "ä text");
        proxycfg_text_free(made);
    }
    let error = an_error();
    // SAFETY: made above, freed once.
    unsafe {
        assert_eq!(proxycfg_error_code(error), Code::NullPointer);
        assert_eq!(text_of(error), "watch is NULL");
        proxycfg_error_free(error);
    }
}

#[test]
fn structs_grow() {
    #[repr(C)]
    #[derive(Debug, Clone, Copy, PartialEq)]
    struct Version2 {
        size: usize,
        old: u32,
        new: u32,
    }
    #[repr(C)]
    struct Version3 {
        known: Version2,
        newer: u64,
    }
    let base = Version2 {
        size: 0,
        old: 7,
        new: 9,
    };
    let read = |given: *const Version2| {
        // SAFETY: numbers only, of the size that they say.
        unsafe { sized(given, base, 12, "struct") }
    };
    let mut given = Version2 {
        size: 16,
        old: 1,
        new: 2,
    };
    assert_eq!(read(&given).unwrap(), given);
    given.size = 12;
    let older = read(&given).unwrap();
    assert_eq!((older.old, older.new), (1, 9));
    for size in [0, 8, 11, 5_000] {
        given.size = size;
        assert_eq!(read(&given).unwrap_err().code, Code::InvalidArgument);
    }
    let mut newer = Version3 {
        known: Version2 {
            size: 24,
            old: 1,
            new: 2,
        },
        newer: 0,
    };
    assert!(read((&raw const newer).cast()).is_ok());
    newer.newer = 1;
    assert!(read((&raw const newer).cast()).is_err());
    assert_eq!(read(null()).unwrap_err().code, Code::NullPointer);
}

#[test]
fn places_are_cleared_and_arrays_checked() {
    let mut number = 7_u64;
    // SAFETY: a place of this frame.
    assert!(unsafe { out(&mut number) }.is_some());
    assert_eq!(number, 0);
    // SAFETY: NULL is allowed.
    assert!(unsafe { out::<u64>(null_mut()) }.is_none());
    let numbers = [1_u32, 2, 3];
    // SAFETY: an array of this frame; the others aren't followed.
    unsafe {
        assert_eq!(array(numbers.as_ptr(), 3, "a").unwrap(), numbers);
        assert!(array::<u32>(null(), 0, "a").unwrap().is_empty());
        assert!(array::<u32>(null(), 1, "a").is_err());
        assert!(array(numbers.as_ptr(), usize::MAX, "a").is_err());
        assert!(array(numbers.as_ptr().byte_add(1), 1, "a").is_err());
    }
}
