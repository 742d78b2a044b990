//! Gives the shared library its SONAME, so that programs linked with it ask for this ABI and not for a file name.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux") {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libproxycfg.so.0");
    }
}
