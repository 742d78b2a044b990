//! What the library has to say, for the host's log.
//!
//! Records are put into a queue of limited length and given to the host on a thread of their own, so that no thread of the
//! engine ever waits for a log, and none is called with a lock held. What doesn't fit is counted and told.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread::{self, JoinHandle};

use parking_lot::{Condvar, Mutex};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record as Values};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::foreign::{Destructor, UserData};
use crate::guard::{Code, ErrorHandle, Failure, Outcome, call};
use crate::memory::Str;

/// How important a record is.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogLevel {
    /// Something has failed that shouldn't.
    Error = 1,
    /// Something needs attention.
    Warn = 2,
    /// What happens.
    Info = 3,
    /// Details.
    Debug = 4,
    /// Everything.
    Trace = 5,
}

/// Called with a record: a `proxycfg_log_level`, the part of the library that it comes from, and a line of text. Both
/// texts are lent for the call. Calls come one at a time, on a thread of their own. It must not throw or longjmp.
pub type LogCallback =
    Option<unsafe extern "C" fn(user_data: *mut c_void, level: i32, target: Str, message: Str)>;

/// Records that wait for the host.
const ROOM: usize = 4_096;

/// The highest level that the host wants, 0 for none.
static WANTED: AtomicU8 = AtomicU8::new(0);
static SINK: Mutex<Option<Arc<Sink>>> = Mutex::new(None);
/// Held while the callback is being replaced.
static CHANGING: Mutex<Option<JoinHandle<()>>> = Mutex::new(None);

struct Entry {
    level: LogLevel,
    target: &'static str,
    message: String,
}

/// The way to one callback.
#[derive(Default)]
struct Sink {
    state: Mutex<State>,
    filled: Condvar,
}

#[derive(Default)]
struct State {
    entries: VecDeque<Entry>,
    missed: u64,
    closed: bool,
}

impl Sink {
    fn put(&self, entry: Entry) {
        let mut state = self.state.lock();
        if state.entries.len() >= ROOM {
            state.missed += 1;
            return;
        }
        state.entries.push_back(entry);
        drop(state);
        self.filled.notify_one();
    }

    fn close(&self) {
        self.state.lock().closed = true;
        self.filled.notify_one();
    }

    /// Gives records to the host until the sink is closed and empty.
    fn run(
        &self,
        callback: unsafe extern "C" fn(*mut c_void, i32, Str, Str),
        user_data: &UserData,
    ) {
        loop {
            let entry = {
                let mut state = self.state.lock();
                loop {
                    if state.missed > 0 {
                        let missed = std::mem::take(&mut state.missed);
                        state.entries.push_back(Entry {
                            level: LogLevel::Warn,
                            target: "proxycfg::log",
                            message: format!("{missed} records were left out: the log is slow"),
                        });
                    }
                    if let Some(entry) = state.entries.pop_front() {
                        break entry;
                    }
                    if state.closed {
                        return;
                    }
                    self.filled.wait(&mut state);
                }
            };
            // SAFETY: the host gave this function to be called so; the texts live until after the call.
            unsafe {
                callback(
                    user_data.pointer(),
                    entry.level as i32,
                    Str::of(entry.target),
                    Str::of(&entry.message),
                );
            }
        }
    }
}

/// Has a function called with what the library logs, up to `level` (a `proxycfg_log_level`), for the whole process. A second
/// one replaces the first; NULL ends logging.
///
/// `destructor` (may be NULL) is called with `user_data` exactly once, after the last call; if this function fails it isn't
/// called. When this returns, the function before it has been called for the last time, unless this is called from it.
// SAFETY: see `proxycfg_abi_version`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn proxycfg_log_set(
    callback: LogCallback,
    user_data: *mut c_void,
    destructor: Destructor,
    level: i32,
    error: *mut *mut ErrorHandle,
) -> Code {
    let mut held = Some(UserData::new(user_data, destructor));
    let code = call("proxycfg_log_set", error, || {
        let Some(callback) = callback else {
            replace(None, 0, None);
            // There is no last call to wait for: the data, if there is any, is done with.
            drop(held.take());
            return Ok(());
        };
        let wanted = u8::try_from(level).ok().filter(|l| (1..=5).contains(l));
        let wanted = wanted
            .ok_or_else(|| Failure::argument(format!("level: {level} is no proxycfg_log_level")))?;
        install()?;
        let Some(user_data) = held.take() else {
            return Ok(());
        };
        let sink = Arc::new(Sink::default());
        let (run, pending) = (sink.clone(), Arc::new(Mutex::new(Some(user_data))));
        let given = pending.clone();
        let started = thread::Builder::new()
            .name("proxycfg-log".to_owned())
            .spawn(move || {
                let user_data = given.lock().take();
                if let Some(user_data) = user_data {
                    run.run(callback, &user_data);
                }
            });
        match started {
            Ok(thread) => {
                replace(Some(sink), wanted, Some(thread));
                Ok(())
            }
            Err(error) => {
                held = pending.lock().take();
                Err(Failure::new(
                    Code::System,
                    format!("can't start a thread: {error}"),
                ))
            }
        }
    });
    if let Some(user_data) = held {
        user_data.give_back();
    }
    code
}

/// Puts a sink in place of the last one, and waits until that has given its last record.
fn replace(sink: Option<Arc<Sink>>, wanted: u8, thread: Option<JoinHandle<()>>) {
    let old = {
        // The two change together; waiting is outside the lock, since the old callback may replace itself.
        let mut changing = CHANGING.lock();
        let old = std::mem::replace(&mut *SINK.lock(), sink);
        if let Some(old) = old {
            old.close();
        }
        WANTED.store(wanted, Ordering::SeqCst);
        tracing::callsite::rebuild_interest_cache();
        std::mem::replace(&mut *changing, thread)
    };
    if let Some(old) = old
        && old.thread().id() != thread::current().id()
        && old.join().is_err()
    {
        tracing::error!("the thread of the log has panicked");
    }
}

/// Makes this library's records go here, once for the process.
fn install() -> Outcome<()> {
    static INSTALLED: Mutex<bool> = Mutex::new(false);
    let mut installed = INSTALLED.lock();
    if !*installed {
        tracing::subscriber::set_global_default(Bridge).map_err(|e| {
            Failure::new(
                Code::System,
                format!("the program has a log of its own for this library: {e}"),
            )
        })?;
        *installed = true;
    }
    Ok(())
}

/// Takes the library's records.
struct Bridge;

fn level_of(level: Level) -> LogLevel {
    match level {
        Level::ERROR => LogLevel::Error,
        Level::WARN => LogLevel::Warn,
        Level::INFO => LogLevel::Info,
        Level::DEBUG => LogLevel::Debug,
        Level::TRACE => LogLevel::Trace,
    }
}

impl Subscriber for Bridge {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event()
            && level_of(*metadata.level()) as i32 <= i32::from(WANTED.load(Ordering::Relaxed))
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(match WANTED.load(Ordering::Relaxed) {
            0 => LevelFilter::OFF,
            1 => LevelFilter::ERROR,
            2 => LevelFilter::WARN,
            3 => LevelFilter::INFO,
            4 => LevelFilter::DEBUG,
            _ => LevelFilter::TRACE,
        })
    }

    fn event(&self, event: &Event<'_>) {
        let sink = SINK.lock().clone();
        if let Some(sink) = sink {
            let mut line = Line::default();
            event.record(&mut line);
            sink.put(Entry {
                level: level_of(*event.metadata().level()),
                target: event.metadata().target(),
                message: line.text(),
            });
        }
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Values<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// The message, then the fields.
#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Line {
    fn text(mut self) -> String {
        self.message.push_str(&self.fields);
        self.message
    }
}

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.message.push_str(value);
        } else {
            self.record_debug(field, &value);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing into a text doesn't fail.
        let _ = if field.name() == "message" {
            write!(self.message, "{value:?}")
        } else {
            write!(self.fields, " {}={value:?}", field.name())
        };
    }
}
