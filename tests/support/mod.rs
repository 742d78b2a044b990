//! What tests with real Envoys share: an Envoy ([`envoy`]), applications to put behind it ([`apps`]), ports ([`ports`]).
//!
//! Use it with `mod support;`.
#![allow(dead_code, reason = "each test program uses its own share of this")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that can't go on panics"
)]

pub mod apps;
pub mod envoy;
pub mod http;
#[cfg(feature = "server")]
pub mod http2;
pub mod ports;

use std::time::{Duration, Instant};

/// How long tests wait for what should take a moment.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// Asks again and again until there is an answer.
///
/// # Panics
/// There is none within `deadline`; the message names `what` and the last reason.
pub fn wait_until<T>(
    what: &str,
    deadline: Duration,
    mut ask: impl FnMut() -> Result<T, String>,
) -> T {
    let end = Instant::now() + deadline;
    loop {
        match ask() {
            Ok(answer) => return answer,
            Err(reason) if Instant::now() >= end => {
                panic!("{what}: not within {deadline:?}: {reason}")
            }
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}
