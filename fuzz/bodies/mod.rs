//! What the fuzz targets do with their bytes: one function each, which panics if a promise doesn't hold.
//!
//! The functions are plain Rust over the public API. cargo-fuzz drives them by coverage (`fuzz_targets/`); the normal test
//! command runs them over the corpus and over seeded mutations of it (`tests/fuzz_corpus.rs`), without any tool.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    dead_code,
    reason = "a target fails by panicking, and each uses one body"
)]

pub mod filters;
#[cfg(feature = "server")]
pub mod hcl;
pub mod records;
#[cfg(feature = "server")]
pub mod requests;
pub mod transactions;

mod choices;

/// What a target does with an input.
pub type Body = fn(&[u8]);

/// Every target by its name, which is that of its corpus too.
pub const TARGETS: &[(&str, Body)] = &[
    ("filters", filters::run),
    #[cfg(feature = "server")]
    ("hcl", hcl::run),
    ("records", records::run),
    #[cfg(feature = "server")]
    ("requests", requests::run),
    ("transactions", transactions::run),
];

/// A message for people: it says something, is bounded, and no byte of the input moves their cursor.
fn check_message(text: &str, input: usize) {
    assert!(!text.trim().is_empty(), "an empty message");
    let raw = text.chars().find(|c| c.is_control() && *c != '\n');
    assert_eq!(raw, None, "a raw control character in {text:?}");
    // Twenty problems, each with a shortened piece of the input, and the keys on the way to it.
    assert!(text.len() <= 65_536 + 64 * input, "{} bytes", text.len());
}
