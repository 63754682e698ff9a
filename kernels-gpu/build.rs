//! With the feature `packs`: writes two tables, which `src/packs.rs` includes. That of compiled kernels: one
//! entry per `*.pack` in `artifacts`; that there are none is an error, since such a library would compile and
//! run nothing. And that of the functions of their source: line tables have lines, no names.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if env::var_os("CARGO_FEATURE_PACKS").is_none() {
        return;
    }
    let folder = |name: &str| PathBuf::from(env::var_os(name).expect("cargo sets it"));
    let (root, out) = (folder("CARGO_MANIFEST_DIR"), folder("OUT_DIR"));
    let (artifacts, source) = (root.join("artifacts"), root.join("src"));
    println!("cargo::rerun-if-changed={}", artifacts.display());
    println!("cargo::rerun-if-changed={}", source.display());
    let packs = packs(&artifacts);
    if let Some(fault) = fault(&packs) {
        println!(
            "cargo::error={}: {fault}; `cargo xtask build-kernels` writes them",
            artifacts.display()
        );
        return;
    }
    let mut table = String::from("&[\n");
    for (name, path) in packs {
        println!("cargo::rerun-if-changed={}", path.display());
        writeln!(table, "    ({name:?}, include_bytes!({:?})),", path.display().to_string())
            .expect("writing to a string");
    }
    table.push_str("]\n");
    fs::write(out.join("packs_table.rs"), table).expect("OUT_DIR is writable");
    let mut table = String::from("&[\n");
    source_table(&source, &source, &mut table);
    table.push_str("]\n");
    fs::write(out.join("source_table.rs"), table).expect("OUT_DIR is writable");
}

/// Why a library with these packs would have no kernels.
fn fault(packs: &[(String, PathBuf)]) -> Option<String> {
    if !packs.iter().any(|(name, _)| name.ends_with(".ptx.pack")) {
        return Some("expected packs of kernels (*.ptx.pack), got none".to_owned());
    }
    let is_empty = |path: &Path| fs::metadata(path).map_or(true, |found| found.len() == 0);
    let (name, _) = packs.iter().find(|(_, path)| is_empty(path))?;
    Some(format!("expected a pack of kernels in {name}, got an empty file"))
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
