//! Has the crate know how much it was optimised: programs that wait for it may want to know.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let level = std::env::var("OPT_LEVEL").unwrap_or_default();
    println!("cargo::rustc-env=PTX_EMULATOR_OPT_LEVEL={level}");
}
