//! The program `proxycfg`: see `proxycfg --help`.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    proxycfg::server::cli::main()
}
