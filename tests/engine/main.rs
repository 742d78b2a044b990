//! The engine as a caller sees it, over the embedded store and certificate authority.

mod lifecycle;
mod world;
