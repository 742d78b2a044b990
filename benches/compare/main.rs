//! Our side of `benches/compare/run`, which puts it next to other programs: does the work of one row, checks that it
//! happened, and prints what it cost as JSON lines, e.g. `{"ours":0.8,"metric":"p50","unit":"ms"}`. Needs the engine only.
//!
//! `cargo bench -p proxycfg --no-default-features --bench compare -- --row fan-out --proxies 1000`; without a row, all of them in small.
//!
//! Allocations are counted by an allocator of its own, which costs each a few nanoseconds.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a bench fails by panicking"
)]

#[path = "../support/chains.rs"]
#[allow(dead_code, reason = "other benches use the rest")]
mod chains;
mod core;
mod engine;
#[path = "../support/rig.rs"]
mod rig;
#[path = "../support/world.rs"]
mod world;

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;

use mimalloc::MiMalloc;
use world::Size;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    // Of each thread: one count for all would have the engine's threads wait for each other.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: everything is left to the allocator that the program has.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: as the caller promises.
        unsafe { MiMalloc.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { MiMalloc.dealloc(pointer, layout) }
    }
}

/// How many times this thread allocated memory so far.
fn allocations() -> u64 {
    ALLOCATIONS.get()
}

type Row = (&'static str, fn(&Size));

const ROWS: [Row; 9] = [
    ("handle", core::handle),
    ("next-snapshot", core::next_snapshot),
    ("gateway", core::next_snapshot),
    ("chain", core::chain),
    ("leaf", core::leaf),
    ("fan-out", engine::fan_out),
    ("herd", engine::herd),
    ("register", engine::register),
    ("memory", engine::memory),
];

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let text = |name: &str| {
        let at = args.iter().position(|arg| arg == name)?;
        args.get(at + 1).cloned()
    };
    let number =
        |name: &str, default: usize| text(name).map_or(default, |n| n.parse().expect("a number"));
    let wanted = text("--row");
    let small = wanted.is_none();
    let size = Size {
        proxies: number("--proxies", if small { 50 } else { 1_000 }),
        upstreams: number("--upstreams", if small { 5 } else { 10 }),
        endpoints: number("--endpoints", if small { 3 } else { 10 }),
        services: number("--services", if small { 20 } else { 1_000 }),
        splits: number("--splits", 10),
        rounds: number("--rounds", if small { 5 } else { 50 }),
    };
    let mut ran = 0;
    for (name, run) in ROWS {
        if wanted.as_deref().is_none_or(|wanted| wanted == name) {
            run(&size);
            ran += 1;
        }
    }
    assert!(ran > 0, "no row {wanted:?}");
}
