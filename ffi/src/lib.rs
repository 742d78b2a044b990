//! The C ABI of proxycfg: `include/proxycfg.h`, `libproxycfg.so`, `libproxycfg.a`.
//!
//! So far it answers which version of the ABI it is. The rest of the interface follows the conventions of
//! ARCHITECTURE.md, "C ABI".

#![allow(
    unsafe_code,
    reason = "this crate is the boundary to C; nothing else in the workspace may be unsafe"
)]

/// The version of the ABI: the major number of the library times 1,000,000, the minor number times 1,000, and the patch.
pub const PROXYCFG_ABI_VERSION: u32 = 1_000;

/// The version of the ABI that the library was built with. A host compares it with `PROXYCFG_ABI_VERSION` of the header
/// that it was compiled with. Callable from any thread, at any time.
// SAFETY: the name is unique among the libraries that hosts link, by its prefix.
#[unsafe(no_mangle)]
pub extern "C" fn proxycfg_abi_version() -> u32 {
    PROXYCFG_ABI_VERSION
}
