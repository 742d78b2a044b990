//! What carries values between threads, a cell that holds the latest value and wakes whoever waits; and threads that run
//! until they are told to stop; and fault points.
//!
//! Every hop of the engine is level-triggered: a slow reader skips intermediate values and never holds up a writer.

mod background;
pub mod fault;
mod latest;
pub mod primitive;

pub use background::Background;
pub use latest::{Latest, Read, WakerId};
