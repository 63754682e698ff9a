//! Who may use whom.

use super::File;

/// The layers of `kernels-gpu/src` and their ranks: a layer uses those of lower rank, and itself.
const LAYERS: &[(&str, u32)] = &[
    ("abi", 0),
    ("geometry", 0),
    ("arch", 1),
    ("tile", 2),
    ("pipeline", 3),
    ("attention", 4),
    ("kernels", 5),
];

const OURS: &[&str] = &["kernels_gpu", "ptx_emulator", "finite_attention", "xtask"];

/// `abi, geometry <- arch <- tile <- pipeline <- attention <- kernels`: imports only to the left.
pub fn layers(files: &[File]) -> Vec<String> {
    let mut broken = Vec::new();
    for file in files.iter().filter(|file| file.is_rust()) {
        let Some(path) = file.path.strip_prefix("kernels-gpu/src/") else { continue };
        let own = path.split(['/', '.']).next().unwrap_or_default();
        let Some(rank) = rank(own) else {
            if path != "lib.rs" {
                broken.push(file.at(0, "stands in no layer"));
            }
            continue;
        };
        let is_top = path.ends_with("/mod.rs") || !path.contains('/');
        for (line, used) in paths(&file.code, "crate::") {
            if self::rank(&used).is_some_and(|used| used > rank) {
                broken.push(file.at(line, &format!("`{own}` uses `{used}`, which is above it")));
            }
        }
        for (line, used) in paths(&file.code, "super::") {
            // From a layer's top, and two levels up from below it, `super` is the crate.
            if used == "super" || (is_top && self::rank(&used).is_some_and(|used| used > rank)) {
                broken.push(file.at(line, &format!("`super::{used}`: write the path from `crate`")));
            }
        }
    }
    broken
}

fn rank(layer: &str) -> Option<u32> {
    LAYERS.iter().find(|(name, _)| *name == layer).map(|(_, rank)| *rank)
}

/// `ptx-emulator` uses none of our crates; the host uses of `kernels_gpu` what is plain integer Rust.
pub fn crates(files: &[File]) -> Vec<String> {
    let mut broken = Vec::new();
    for file in files {
        if file.path.starts_with("emulator/") && (file.is_rust() || file.path.ends_with("Cargo.toml")) {
            for (line, text) in file.code.lines().enumerate() {
                let is_ours =
                    |name: &&&str| **name != "ptx_emulator" && text.replace('-', "_").contains(**name);
                if let Some(name) = OURS.iter().find(is_ours) {
                    broken.push(file.at(
                        line,
                        &format!("the emulator uses `{name}`: it knows PTX and nothing of ours"),
                    ));
                }
            }
        }
        if file.path.starts_with("host/") && file.is_rust() {
            for (line, used) in paths(&file.code, "kernels_gpu::") {
                if used != "abi" && used != "geometry" && !used.starts_with("for_each_") {
                    broken.push(
                        file.at(
                            line,
                            &format!("the host uses `kernels_gpu::{used}`, not abi or geometry"),
                        ),
                    );
                }
            }
        }
    }
    broken
}

/// The reference shares no code with what it judges.
pub fn oracle(files: &[File]) -> Vec<String> {
    let mut broken = Vec::new();
    for file in files.iter().filter(|file| file.path.starts_with("host/src/reference")) {
        for (line, text) in file.code.lines().enumerate() {
            if let Some(name) = OURS.iter().find(|name| text.contains(**name)) {
                broken.push(file.at(line, &format!("the reference uses `{name}`")));
            }
        }
        for (line, used) in paths(&file.code, "crate::") {
            if !["reference", "problem", "error"].contains(&used.as_str()) {
                broken.push(file.at(line, &format!("the reference uses `crate::{used}`")));
            }
        }
    }
    broken
}

/// Inline assembly and intrinsics: in `kernels-gpu/src/arch`, and in the host's trampolines to the CUDA
/// driver.
pub fn asm(files: &[File]) -> Vec<String> {
    const HOMES: &[&str] = &["kernels-gpu/src/arch/", "host/src/driver/cuda/", "xtask/fixtures/"];
    const WORDS: &[&str] = &["asm!", "core::arch", "core::intrinsics", "std::arch"];
    let mut broken = Vec::new();
    for file in files.iter().filter(|file| file.is_rust()) {
        if HOMES.iter().any(|home| file.path.starts_with(home)) {
            continue;
        }
        for (line, text) in file.code.lines().enumerate() {
            if let Some(word) = WORDS.iter().find(|word| text.contains(**word)) {
                broken.push(file.at(line, &format!("`{word}` outside the arch layer")));
            }
        }
    }
    broken
}

/// The names that follow `prefix` in the code, with the index of the line: `use crate::{tile, arch::x}`
/// names two.
fn paths(code: &str, prefix: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (start, _) in code.match_indices(prefix) {
        let is_inside_a_name = code[..start].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        if is_inside_a_name {
            continue;
        }
        let line = code[..start].matches('\n').count();
        let rest = &code[start + prefix.len()..];
        match rest.strip_prefix('{') {
            None => found.push((line, name(rest))),
            Some(group) => found.extend(group_names(group).into_iter().map(|name| (line, name))),
        }
    }
    found
}

/// The identifier that text starts with.
fn name(text: &str) -> String {
    text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

/// First segments of the members of a `{...}` group whose opening brace is already gone.
fn group_names(group: &str) -> Vec<String> {
    let (mut depth, mut start, mut names) = (1, 0, Vec::new());
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if (c == ',' && depth == 1) || depth == 0 {
            names.push(name(&group[start..at]));
            start = at + 1;
        }
        if depth == 0 {
            break;
        }
    }
    names.retain(|name| !name.is_empty());
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> [File; 1] {
        [File::new(path, text.to_owned())]
    }

    #[test]
    fn imports_to_the_left_are_fine() {
        let text = "use crate::{abi::Dtype, arch::{warp, barrier}};\n\
                    // use crate::kernels::x\nuse super::fragment;";
        assert_eq!(layers(&file("kernels-gpu/src/tile/mma.rs", text)), Vec::<String>::new());
    }

    #[test]
    fn imports_to_the_right_are_found() {
        let kernels = [
            ("arch/warp.rs", "use crate::tile::X;"),
            ("tile/mod.rs", "fn f() { crate::attention::softmax::g() }"),
            ("pipeline/ring.rs", "use crate::{abi, tile::X,\n  kernels};"),
            ("arch/mod.rs", "use super::tile;"),
            ("arch/warp.rs", "use super::super::tile;"),
            ("abi.rs", "use crate::arch;"),
            ("helpers.rs", ""),
        ];
        for (path, text) in kernels {
            assert_eq!(
                layers(&file(&format!("kernels-gpu/src/{path}"), text)).len(),
                1,
                "{path}: {text}"
            );
        }
    }

    #[test]
    fn the_emulator_and_the_host_keep_their_distance() {
        assert_eq!(crates(&file("emulator/src/lib.rs", "use kernels_gpu::abi;")).len(), 1);
        assert_eq!(crates(&file("emulator/Cargo.toml", "kernels-gpu.workspace = true")).len(), 1);
        assert_eq!(
            crates(&file("emulator/tests/a.rs", "use ptx_emulator::Module;")),
            Vec::<String>::new()
        );
        assert_eq!(crates(&file("host/src/plan.rs", "use kernels_gpu::{abi, tile::X};")).len(), 1);
        assert_eq!(
            crates(&file("host/src/plan.rs", "use kernels_gpu::{abi, geometry};")),
            Vec::<String>::new()
        );
    }

    #[test]
    fn the_reference_is_alone() {
        assert_eq!(
            oracle(&file("host/src/reference/exact.rs", "use crate::problem::Mask;")),
            Vec::<String>::new()
        );
        assert_eq!(oracle(&file("host/src/reference/exact.rs", "use crate::plan::Plan;")).len(), 1);
        assert_eq!(oracle(&file("host/src/reference/mod.rs", "use kernels_gpu::geometry;")).len(), 1);
    }

    #[test]
    fn assembly_stays_at_the_bottom() {
        assert_eq!(asm(&file("kernels-gpu/src/arch/warp.rs", "asm!(\"\")")), Vec::<String>::new());
        assert_eq!(asm(&file("kernels-gpu/src/tile/mma.rs", "core::arch::asm!(\"\")")).len(), 1);
        assert_eq!(
            asm(&file("kernels-gpu/src/tile/mma.rs", "// asm!(\"\") is not for us")),
            Vec::<String>::new()
        );
    }
}
