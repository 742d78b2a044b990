//! Tests of the compiler as a whole.

mod graph;
mod properties;
mod vectors;
