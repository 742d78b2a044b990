//! The boundary that no panic crosses, and how a failure reaches the host.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::handles::{self, Number, Reference};
use crate::memory::{self, Str};

/// How a call ended. The numbers never change; later versions may add some.
#[repr(i32)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Code {
    /// Done.
    #[default]
    Ok = 0,
    /// A pointer that must not be NULL is.
    NullPointer = 1,
    /// A text isn't UTF-8.
    InvalidUtf8 = 2,
    /// An argument makes no sense: a struct of an unknown size, an unknown number, JSON that can't be read.
    InvalidArgument = 3,
    /// A handle that was freed, or of another type. Nothing has been touched.
    InvalidHandle = 4,
    /// Records or a registration that break a rule; the message lists all problems. Nothing has been changed.
    Refused = 5,
    /// There is no such thing.
    NotFound = 6,
    /// Another source has registered the proxy.
    OtherSource = 7,
    /// The time is over.
    TimedOut = 8,
    /// The engine or the watch has ended.
    Closed = 9,
    /// A wait on a thread of the engine, from within a callback, could never end: return from the callback first.
    EngineThread = 10,
    /// A defect of the library was caught on its way to the host; the message says where.
    Panic = 11,
    /// The operating system refused something.
    System = 12,
}

/// Why a call failed: a code and a message for people. Made by the library, freed by the host with
/// `proxycfg_error_free`. Usable from any number of threads at the same time.
#[derive(Debug)]
pub struct ErrorHandle(());

/// What an error consists of.
#[derive(Debug)]
pub(crate) struct ErrorObject {
    code: Code,
    message: String,
}

/// A failure on its way to the host.
#[derive(Debug)]
pub(crate) struct Failure {
    pub code: Code,
    pub message: String,
}

impl Failure {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }

    pub fn argument(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidArgument, message)
    }
}

pub(crate) type Outcome<T> = Result<T, Failure>;

/// Runs the body of an exported function: whatever it comes to becomes a code, and an error object if the host wants one.
pub(crate) fn call(
    name: &'static str,
    error: *mut *mut ErrorHandle,
    body: impl FnOnce() -> Outcome<()>,
) -> Code {
    // SAFETY: the host gives NULL or a place for a pointer (the header says so).
    let error = unsafe { memory::out(error) };
    let failure = match caught(name, body) {
        Ok(Ok(())) => return Code::Ok,
        Ok(Err(failure)) => failure,
        Err(text) => Failure::new(
            Code::Panic,
            format!("{name}: internal error: {text}; this is a defect of the library"),
        ),
    };
    let code = failure.code;
    if let Some(error) = error {
        let object = Arc::new(ErrorObject {
            code,
            message: failure.message,
        });
        error.set(Reference::new(object).into_handle());
    }
    code
}

/// Runs the body of an exported function that can't fail: a panic gives the default.
pub(crate) fn infallible<T: Default>(name: &'static str, body: impl FnOnce() -> T) -> T {
    caught(name, body).unwrap_or_else(|text| {
        tracing::error!(function = name, panic = text, "internal error");
        T::default()
    })
}

fn caught<T>(name: &'static str, body: impl FnOnce() -> T) -> Result<T, String> {
    let end = catch_unwind(AssertUnwindSafe(|| {
        #[cfg(test)]
        probe::reached(name);
        #[cfg(not(test))]
        let _ = name;
        body()
    }));
    end.map_err(|panic| {
        let text = text_of(panic.as_ref());
        // The payload is dropped here; should that panic too, it is left where it is.
        if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
            std::mem::forget(second);
        }
        text
    })
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a panic without a text")
        .to_owned()
}

/// The code of an error. NULL, or one that was freed, gives `PROXYCFG_RESULT_OK`.
// SAFETY: see `proxycfg_abi_version`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn proxycfg_error_code(error: *const ErrorHandle) -> Code {
    infallible("proxycfg_error_code", || {
        handles::find::<ErrorObject>(Number::of(error)).map_or(Code::Ok, |error| error.code)
    })
}

/// The message of an error: what is wrong, where, and what to do. Valid as long as the error. NULL, or an error that
/// was freed, gives an empty text.
// SAFETY: see `proxycfg_abi_version`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn proxycfg_error_message(error: *const ErrorHandle) -> Str {
    infallible("proxycfg_error_message", || {
        let error = handles::find::<ErrorObject>(Number::of(error));
        error.map_or(Str::EMPTY, |error| Str::of(&error.message))
    })
}

/// Frees an error. NULL is fine; freeing one twice does nothing.
// SAFETY: see `proxycfg_abi_version`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn proxycfg_error_free(error: *mut ErrorHandle) {
    infallible("proxycfg_error_free", || {
        handles::release::<ErrorObject>(Number::of(error));
    });
}

/// Makes exported functions panic on demand, so that a test can see that each of them is guarded (FC-091).
#[cfg(test)]
pub(crate) mod probe {
    use std::cell::Cell;

    thread_local! {
        static AT: Cell<Option<&'static str>> = const { Cell::new(None) };
    }

    pub fn panic_in(name: Option<&'static str>) {
        AT.set(name);
    }

    pub fn reached(name: &'static str) {
        if AT.get() == Some(name) {
            AT.set(None);
            panic!("on demand");
        }
    }
}
