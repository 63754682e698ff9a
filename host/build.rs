//! Writes two tables. That of compiled kernels, which `images/store.rs` includes: one entry per `*.pack` in
//! the artifacts folder, none when the folder is missing (kernels are then reported missing at run time). And
//! that of the functions of their source, which `trace/source.rs` includes: line tables have lines, no names.

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
    for (name, path) in packs(&artifacts) {
        println!("cargo::rerun-if-changed={}", path.display());
        writeln!(table, "    ({name:?}, include_bytes!({:?})),", path.display().to_string())
            .expect("writing to a string");
    }
    table.push_str("]\n");
    fs::write(out.join("packs_table.rs"), table).expect("OUT_DIR is writable");
    let source = manifest.join("../kernels-gpu/src");
    println!("cargo::rerun-if-changed={}", source.display());
    let mut table = String::from("&[\n");
    source_table(&source, &source, &mut table);
    table.push_str("]\n");
    fs::write(out.join("source_table.rs"), table).expect("OUT_DIR is writable");
}

/// For each file: the lines on which functions begin, with their names, and the lines of entries that call
/// products or multiply, with their text.
fn source_table(root: &Path, folder: &Path, table: &mut String) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            source_table(root, &path, table);
            continue;
        }
        let (Ok(text), Ok(name)) = (fs::read_to_string(&path), path.strip_prefix(root)) else {
            continue;
        };
        let is_entry = name.starts_with("kernels");
        let numbered = || text.lines().zip(1u32..).map(|(line, number)| (number, line.trim()));
        let functions: Vec<_> =
            numbered().filter_map(|(number, line)| Some((number, function(line)?))).collect();
        let is_telling = |line: &str| {
            is_entry
                && ["multiply_", "*=", "::start_", "KeyGradient::", "pack::"]
                    .iter()
                    .any(|part| line.contains(part))
        };
        let lines: Vec<_> = numbered().filter(|(_, line)| is_telling(line)).collect();
        let name = name.display().to_string().replace('\\', "/");
        writeln!(table, "    ({name:?}, &{functions:?}, &{lines:?}),").expect("writing to a string");
    }
}

/// The name of the function that a line declares.
fn function(line: &str) -> Option<&str> {
    let at = line.find("fn ")?;
    if !line[..at]
        .split_whitespace()
        .all(|word| word.chars().next().is_some_and(|c| c.is_ascii_lowercase() || c == '"'))
    {
        return None;
    }
    let rest = &line[at + 3..];
    let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_')?;
    Some(&rest[..end]).filter(|name| !name.is_empty())
}

/// File names and paths, sorted by name.
fn packs(folder: &Path) -> Vec<(String, PathBuf)> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut packs: Vec<(String, PathBuf)> = entries
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let name = path.file_name()?.to_str()?.to_owned();
            name.ends_with(".pack").then_some((name, path))
        })
        .collect();
    packs.sort();
    packs
}
