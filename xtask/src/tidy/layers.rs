//! Who may use whom.

use super::{File, imports};

/// The layers of `kernels-gpu/src` and their ranks: a layer uses those of lower rank, and itself.
const LAYERS: &[(&str, u32)] = &[
    ("abi", 0),
    ("geometry", 0),
    ("packs", 0),
    ("arch", 1),
    ("tile", 2),
    ("pipeline", 3),
    ("attention", 4),
    ("msda", 4),
    ("kernels", 5),
];

const OURS: &[&str] = &["kernels_gpu", "kernel_archive", "ptx_emulator", "finite_attention", "xtask"];

/// `abi, geometry <- arch <- tile <- pipeline <- attention, msda <- kernels`: imports only to the left.
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
        for (line, used) in names(&file.code, "crate") {
            if self::rank(&used).is_some_and(|used| used > rank) {
                broken.push(file.at(line, &format!("`{own}` uses `{used}`, which is above it")));
            }
        }
        for (line, used) in names(&file.code, "super") {
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

/// The layers of `emulator/src`, each with those right below it: a layer uses these, what they may use, and
/// itself. What reads a module (`parse` to `assemble`) and what runs it (`memory`, `exec`) use nothing of
/// each other.
const EMULATOR: &[Layer] = &[
    ("space", &[]),
    ("region", &[]),
    ("tensor_map", &[]),
    ("unaligned", &[]),
    ("shadow", &["unaligned"]),
    ("isa", &["space"]),
    ("options", &["region"]),
    ("report", &["space"]),
    ("error", &["space", "region"]),
    ("module", &["isa", "report", "error"]),
    ("parse", &["module"]),
    ("decode", &["parse"]),
    ("assemble", &["decode"]),
    ("memory", &["module", "shadow"]),
    ("exec", &["memory", "options", "tensor_map"]),
    ("survey", &["report", "options"]),
];

/// The same, of `emulator/src/exec`.
const EXEC: &[Layer] = &[
    ("values", &[]),
    ("state", &["values"]),
    ("check", &["state"]),
    ("actors", &["check"]),
    ("ops", &["actors"]),
    ("step", &["ops"]),
    ("launch", &["step"]),
];

/// A layer, and those right below it, which stand before it in their list.
type Layer = (&'static str, &'static [&'static str]);

/// In the emulator imports go down only: from one layer to those below it, and in `exec` likewise.
pub fn emulator_layers(files: &[File]) -> Vec<String> {
    let mut broken = Vec::new();
    for file in files.iter().filter(|file| file.is_rust()) {
        let Some(path) = file.path.strip_prefix("emulator/src/") else { continue };
        let path = path.trim_end_matches(".rs");
        let module: Vec<&str> = path.trim_end_matches("/mod").split('/').collect();
        match module[..] {
            // The crate's root, and tests that run all of it, are above the layers.
            [own] if own == "lib" || own.ends_with("_tests") => continue,
            ["exec", _, ..] => broken.extend(goes_down(file, &module, "exec", EXEC)),
            _ => {}
        }
        broken.extend(goes_down(file, &module, "", EMULATOR));
    }
    broken
}

/// What a file of a module uses that is not below its layer. The layers are the modules in `parent`; "" is
/// the root of the crate.
fn goes_down(file: &File, module: &[&str], parent: &str, layers: &[Layer]) -> Vec<String> {
    let depth = usize::from(!parent.is_empty());
    let own = module[depth];
    if layers.iter().all(|(name, _)| *name != own) {
        return vec![file.at(0, "stands in no layer")];
    }
    let mut broken = Vec::new();
    for path in imports::reached(&file.code, module) {
        if depth == 1 && path.segments.first().is_none_or(|first| first != parent) {
            continue;
        }
        let used = path.segments.get(depth).map_or("", String::as_str);
        if layers.iter().all(|(name, _)| *name != used) {
            let text = format!("`{}` is in no layer: write the path from one", path.segments.join("::"));
            broken.push(file.at(path.line, &text));
        } else if !is_at_or_below(layers, used, own) {
            broken.push(file.at(path.line, &format!("`{own}` uses `{used}`, which is not below it")));
        }
    }
    broken
}

/// Whether `used` is a layer that `own` may use.
fn is_at_or_below(layers: &[Layer], used: &str, own: &str) -> bool {
    let below = layers.iter().find(|(name, _)| *name == own).map_or(&[][..], |(_, below)| below);
    used == own || below.iter().any(|below| is_at_or_below(layers, used, below))
}

/// `ptx-emulator` and `kernel-archive` use none of our crates; the host uses of `kernels_gpu` what is plain
/// integer Rust.
pub fn crates(files: &[File]) -> Vec<String> {
    let mut broken = Vec::new();
    for file in files {
        for (folder, own, what) in [
            ("emulator/", "ptx_emulator", "the emulator uses `{}`: it knows PTX and nothing of ours"),
            ("archive/", "kernel_archive", "the archive uses `{}`: it knows nothing of ours"),
        ] {
            if !file.path.starts_with(folder) || !(file.is_rust() || file.path.ends_with("Cargo.toml")) {
                continue;
            }
            for (line, text) in file.code.lines().enumerate() {
                let is_ours = |name: &&&str| **name != own && text.replace('-', "_").contains(**name);
                if let Some(name) = OURS.iter().find(is_ours) {
                    broken.push(file.at(line, &what.replace("{}", name)));
                }
            }
        }
        if file.path.starts_with("host/") && file.is_rust() {
            for (line, used) in names(&file.code, "kernels_gpu") {
                if !["abi", "geometry", "packs"].contains(&used.as_str())
                    && !used.starts_with("for_each_")
                {
                    broken.push(file.at(
                        line,
                        &format!("the host uses `kernels_gpu::{used}`, not abi, geometry or packs"),
                    ));
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
        for (line, used) in names(&file.code, "crate") {
            if !["reference", "problem", "error"].contains(&used.as_str()) {
                broken.push(file.at(line, &format!("the reference uses `crate::{used}`")));
            }
        }
    }
    broken
}

/// Inline assembly and intrinsics: in `kernels-gpu/src/arch`, in the host's trampolines to the CUDA driver,
/// and in the emulator's products with vectors of 512 bits.
pub fn asm(files: &[File]) -> Vec<String> {
    const HOMES: &[&str] = &[
        "kernels-gpu/src/arch/",
        "host/src/driver/cuda/",
        "emulator/src/exec/actors/wgmma/wide.rs",
        "emulator/src/exec/ops/matrix_wide.rs",
        "xtask/fixtures/",
    ];
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

/// The names that follow `first::` in the code, with the index of the line: `use crate::{tile, arch::x}`
/// names two.
fn names(code: &str, first: &str) -> Vec<(usize, String)> {
    let found = imports::paths(code, first).into_iter();
    found.filter_map(|path| Some((path.line, path.segments.into_iter().nth(1)?))).collect()
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
    fn layers_of_the_emulator_stand_above_what_they_use() {
        for layers in [EMULATOR, EXEC] {
            for (place, (name, below)) in layers.iter().enumerate() {
                let stands = |wanted: &str| layers[..place].iter().any(|(name, _)| *name == wanted);
                assert!(!stands(name), "{name} stands twice");
                assert!(below.iter().all(|below| stands(below)), "{name}: {below:?}");
            }
        }
    }

    #[test]
    fn imports_downwards_in_the_emulator_are_fine() {
        let fine = [
            (
                "exec/step/mod.rs",
                "use crate::exec::{ops, state::warp::{State, Warp}};\nuse crate::isa::Op;",
            ),
            ("exec/step/trace.rs", "use super::{Next, Runner};\nmod tests { use super::*; }"),
            (
                "exec/actors/wgmma/trace.rs",
                "use super::multiply::Left;\nuse super::super::super::check::x;",
            ),
            ("exec/mod.rs", "pub use launch::grid::launch;\n// use crate::decode;"),
            ("assemble/body.rs", "use crate::isa::{self, allocate};\nuse crate::decode;"),
            ("region.rs", "mod tests { use super::Region; }"),
            ("lib.rs", "pub use exec::launch;"),
            ("allocate_tests.rs", "use crate::{Launch, launch, assemble::module::parse};"),
        ];
        for (path, text) in fine {
            assert_eq!(
                emulator_layers(&file(&format!("emulator/src/{path}"), text)),
                Vec::<String>::new(),
                "{path}: {text}"
            );
        }
    }

    #[test]
    fn imports_upwards_in_the_emulator_are_found() {
        let broken = [
            ("isa/operands.rs", "use crate::decode::atomic::AtomicType;"),
            ("memory/global.rs", "use super::super::exec;"),
            // Neither below the other.
            ("exec/ops/atomic.rs", "use crate::decode::atomic::AtomicType;"),
            ("isa/op.rs", "use crate::shadow::State;"),
            ("exec/state/warp.rs", "use crate::exec::check::{race, window};"),
            ("exec/check/trace.rs", "use crate::exec::{state::context::Stop, step::Runner};"),
            ("exec/ops/mod.rs", "use super::launch;"),
            ("exec/actors/wgmma/mod.rs", "fn f() { super::super::ops::half::run() }"),
            // Through the re-exports of the root, or as a whole.
            ("isa/op.rs", "use crate::Space;"),
            ("exec/state/chain.rs", "use crate::exec::launch_dependent;"),
            ("exec/values/half.rs", "use crate::exec;"),
            ("helpers.rs", ""),
            ("exec/helpers.rs", ""),
        ];
        for (path, text) in broken {
            let found = emulator_layers(&file(&format!("emulator/src/{path}"), text));
            assert!(!found.is_empty(), "{path}: {text}");
        }
        let two =
            emulator_layers(&file("emulator/src/isa/op.rs", "\nuse crate::{exec, space, parse::lex};"));
        assert_eq!(
            two,
            ["exec", "parse"].map(|used| {
                format!("emulator/src/isa/op.rs:2: `isa` uses `{used}`, which is not below it")
            })
        );
    }

    #[test]
    fn the_emulator_and_the_host_keep_their_distance() {
        assert_eq!(crates(&file("emulator/src/lib.rs", "use kernels_gpu::abi;")).len(), 1);
        assert_eq!(crates(&file("emulator/Cargo.toml", "kernels-gpu.workspace = true")).len(), 1);
        assert_eq!(crates(&file("archive/src/text.rs", "use kernels_gpu::abi::Marker;")).len(), 1);
        assert_eq!(
            crates(&file("archive/Cargo.toml", "name = \"kernel-archive\"")),
            Vec::<String>::new()
        );
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
