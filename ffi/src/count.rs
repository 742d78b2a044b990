//! How many handles there are: what a host looks at that searches for a leak.

use crate::guard::infallible;
use crate::handles;

/// The kinds of handle.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandleKind {
    /// `proxycfg_engine`.
    Engine = 1,
    /// `proxycfg_watch_handle`.
    Watch = 2,
    /// `proxycfg_queue`.
    Queue = 3,
    /// `proxycfg_source`.
    Source = 4,
    /// `proxycfg_snapshot`.
    Snapshot = 5,
    /// `proxycfg_error`.
    Error = 6,
    /// `proxycfg_text`.
    Text = 7,
}

/// How many handles of a kind, a `proxycfg_handle_kind`, are live in this process: for finding leaks, since what a host
/// forgets to free isn't lost to the library and so to no leak checker. A snapshot counts once, however many references
/// there are. 0 for an unknown kind.
// SAFETY: see `proxycfg_abi_version`.
#[unsafe(no_mangle)]
pub extern "C" fn proxycfg_live_handles(kind: i32) -> usize {
    infallible("proxycfg_live_handles", || {
        let kind = usize::try_from(kind).ok();
        kind.and_then(handles::live).unwrap_or_default()
    })
}
