//! Names the shared library: programs that are linked with it look for this name.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Raised when a program that was compiled before does not run any more: not by what is new.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libfinite_attention.so.0");
}
