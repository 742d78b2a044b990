//! HCL 1 and JSON, read into one tree of values in which every node knows its line and column.

mod tree;

pub use tree::{Data, Member, Pos, Value};
