//! Compiles the interpreter of random calls, which is a C test of the C ABI.

#[cfg(not(feature = "calls"))]
fn main() {}

#[cfg(feature = "calls")]
fn main() {
    let source = "../ffi/tests/c/random.c";
    println!("cargo:rerun-if-changed={source}");
    println!("cargo:rerun-if-changed=../ffi/tests/c/check.h");
    println!("cargo:rerun-if-changed=../include/proxycfg.h");
    let mut build = cc::Build::new();
    build
        .file(source)
        .std("c11")
        .include("../include")
        .define("RANDOM_NO_MAIN", None);
    if std::env::var("CARGO_ENCODED_RUSTFLAGS").is_ok_and(|flags| flags.contains("sanitizer=address")) {
        build.flag("-fsanitize=address");
    }
    build.compile("random_calls");
}
