//! Writes the table of compiled kernels that `images.rs` includes: one entry per `*.ptx.gz` in the
//! artifacts folder, none when the folder is missing (kernels are then reported missing at run time).

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    let manifest =
        PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let artifacts = manifest.join("../kernels-gpu/artifacts");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={}", artifacts.display());
    let mut table = String::from("&[\n");
    for (name, path) in images(&artifacts) {
        println!("cargo::rerun-if-changed={}", path.display());
        writeln!(table, "    ({name:?}, include_bytes!({:?})),", path.display().to_string())
            .expect("writing to a string");
    }
    table.push_str("]\n");
    fs::write(out.join("images_table.rs"), table).expect("OUT_DIR is writable");
}

/// Kernel names and paths, sorted by name.
fn images(folder: &Path) -> Vec<(String, PathBuf)> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut images: Vec<(String, PathBuf)> = entries
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let name = path.file_name()?.to_str()?.strip_suffix(".ptx.gz")?.to_owned();
            Some((name, path))
        })
        .collect();
    images.sort();
    images
}
