//! Random sequences of calls through the C ABI: the bytes choose the calls and their arguments.
#![no_main]

use libfuzzer_sys::fuzz_target;
// For its symbols.
use proxycfg_ffi as _;

unsafe extern "C" {
    fn random_calls(bytes: *const u8, size: usize) -> i32;
}

fuzz_target!(|data: &[u8]| {
    // SAFETY: the bytes live until the call returns.
    unsafe { random_calls(data.as_ptr(), data.len()) };
});
