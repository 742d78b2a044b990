//! The program `proxycfg`: see `proxycfg --help`.
#![forbid(unsafe_code)]

/// Snapshots and resources are made on one thread and let go of on another, which this allocator is better at than the system's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    proxycfg::server::cli::main()
}
