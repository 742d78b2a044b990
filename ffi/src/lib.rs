//! The C ABI of proxycfg: `include/proxycfg.h`, `libproxycfg.so`, `libproxycfg.a`.
//!
//! Everything that a C program sees is in this crate, and all code of the workspace that may be unsafe:
//!
//! | module | what |
//! |---|---|
//! | `memory` | every access to foreign memory: text, arrays, out pointers, sized structs |
//! | `handles` | everything that the host holds as numbers: stale and foreign ones are recognised, without a lock |
//! | `guard` | the boundary that no panic crosses; result codes and error objects |
//! | `foreign` | functions and data of the host, with the destructor that runs once and last |
//! | `engine`, `registry`, `watch`, `queue`, `snapshot`, `source`, `log`, `count` | the functions, by subject |
//! | `maker`, `pointer` | what snapshots share and cache; JSON pointers into encoded text |
//!
//! The comments of public items are written for the header's readers, so they speak of C. `cbindgen` makes the header from
//! them; a test fails if the committed header differs.

#![allow(
    unsafe_code,
    reason = "this crate is the boundary to C; nothing else in the workspace may be unsafe"
)]
#![allow(
    clippy::missing_safety_doc,
    reason = "what holds for all pointers stands once, at the top of the header; each function says what is particular"
)]
#![deny(clippy::undocumented_unsafe_blocks)]

mod count;
mod engine;
mod foreign;
mod guard;
mod handles;
mod log;
mod maker;
mod memory;
mod pointer;
mod queue;
mod registry;
mod snapshot;
mod source;
mod watch;

#[cfg(test)]
mod tests;

/// The version of the ABI: the major number of the library times 1,000,000, the minor number times 1,000, and the patch.
pub const PROXYCFG_ABI_VERSION: u32 = 1_000;

/// The version of the ABI that the library was built with. A host compares it with `PROXYCFG_ABI_VERSION` of the header
/// that it was compiled with. Callable from any thread, at any time.
// SAFETY: the name is unique among the libraries that hosts link, by its prefix; so for all functions below.
#[unsafe(no_mangle)]
pub extern "C" fn proxycfg_abi_version() -> u32 {
    PROXYCFG_ABI_VERSION
}
