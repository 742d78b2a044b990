//! The one primitive that carries values between threads: a cell that holds the latest value and wakes whoever waits.
//!
//! Every hop of the engine is level-triggered: a slow reader skips intermediate values and never holds up a writer.

mod latest;
pub mod primitive;

pub use latest::{Latest, Read, WakerId};
