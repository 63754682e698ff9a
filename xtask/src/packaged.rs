//! `cargo xtask packaged`: the published crates as a registry hands them out, and a program that uses them.
//!
//! Each crate is packaged, unpacked into a folder of its own, and found there by its version alone: nothing
//! of the workspace is beside it, no profile, no `.cargo/config.toml`, no CUDA toolkit. The program is the
//! first one of the README, with the dependency that the README gives; and it runs the library's tests of
//! machines with and without a GPU, here without `cust`.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::workspace::{output, root, run_shown, target_dir};

/// What is published, in the order of dependence.
const CRATES: [&str; 4] = ["kernels-gpu", "kernel-archive", "ptx-emulator", "finite-attention"];

/// Where `cust_raw` and its helpers look for a CUDA toolkit.
const TOOLKIT: [&str; 4] = ["CUDA_LIBRARY_PATH", "CUDA_PATH", "CUDA_ROOT", "CUDA_TOOLKIT_ROOT_DIR"];

/// Packages, unpacks, builds and runs.
///
/// # Errors
/// When a crate cannot be packaged, lacks something, or the program fails; and when a crate of kernels that
/// holds none compiles.
pub fn run() -> Result<()> {
    let folder = target_dir().join("packaged");
    let (crates, sources) = (folder.join("crates"), folder.join("sources"));
    for made in [&crates, &sources] {
        if made.exists() {
            fs::remove_dir_all(made).with_context(|| format!("cannot empty {}", made.display()))?;
        }
    }
    fs::create_dir_all(&sources)?;
    // All that the lock file names, so that what follows needs no network.
    run_shown(Command::new("cargo").args(["fetch", "--locked"]).current_dir(root()))?;
    let mut package = Command::new("cargo");
    // What is built from the packages is built below.
    package.args(["package", "--locked", "--offline", "--no-verify", "--allow-dirty", "--target-dir"]);
    package.arg(&crates);
    CRATES.iter().for_each(|name| {
        package.args(["--package", name]);
    });
    run_shown(package.current_dir(root()))?;
    let version = env!("CARGO_PKG_VERSION");
    for name in CRATES {
        let file = crates.join(format!("package/{name}-{version}.crate"));
        output(Command::new("tar").arg("-xzf").arg(&file).arg("-C").arg(&sources))?;
        for needed in ["LICENSE-MIT", "LICENSE-APACHE", "README.md"] {
            let path = sources.join(format!("{name}-{version}")).join(needed);
            ensure!(path.is_file(), "{name}: expected {needed} in the package, got none");
        }
    }
    // Outside of the workspace, whose settings cargo would find in the folders above.
    let consumer = std::env::temp_dir().join(format!("fattn-consumer-{}", std::process::id()));
    let done = write_consumer(&consumer, &sources, version).and_then(|()| {
        run_shown(&mut cargo(&consumer, &folder, &["test", "--quiet"]))?;
        run_shown(&mut cargo(&consumer, &folder, &["run", "--quiet"]))?;
        refuses_no_kernels(&consumer, &folder, &sources.join(format!("kernels-gpu-{version}")))
    });
    fs::remove_dir_all(&consumer).with_context(|| format!("cannot remove {}", consumer.display()))?;
    done
}

/// Cargo, in the package of the program.
fn cargo(consumer: &Path, folder: &Path, arguments: &[&str]) -> Command {
    let mut cargo = Command::new("cargo");
    cargo
        .current_dir(consumer)
        .args(arguments)
        .arg("--offline")
        .env("CARGO_TARGET_DIR", folder.join("build"));
    TOOLKIT.iter().for_each(|name| {
        cargo.env_remove(name);
    });
    cargo
}

/// The package of the program, which finds the crates in `sources`.
fn write_consumer(consumer: &Path, sources: &Path, version: &str) -> Result<()> {
    let readme = fs::read_to_string(root().join("README.md"))?;
    let program = first_program(&readme).context("README.md: expected a program in Rust, got none")?;
    let manifest = format!(
        "[package]\nname = \"consumer\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n\
         [features]\ncust = [] # never on\n\n\
         [dependencies]\nfinite-attention = {{ version = \"{version}\", default-features = false }}\n\n\
         [dev-dependencies]\nlibloading = \"0.8\"\n\n\
         [profile.dev]\ndebug = false\n\n[patch.crates-io]\n"
    );
    let patches = CRATES
        .map(|name| format!("{name} = {{ path = {:?} }}\n", sources.join(format!("{name}-{version}"))));
    fs::create_dir_all(consumer.join("src"))?;
    fs::create_dir_all(consumer.join("tests/support"))?;
    fs::write(consumer.join("Cargo.toml"), manifest + &patches.concat())?;
    fs::write(consumer.join("src/main.rs"), program)?;
    // The versions that everything else is tested with.
    fs::copy(root().join("Cargo.lock"), consumer.join("Cargo.lock"))?;
    for test in ["no_device.rs", "support/driver.c"] {
        fs::copy(root().join("host/tests").join(test), consumer.join("tests").join(test))?;
    }
    Ok(())
}

/// The first block of Rust in a page that has a `main`.
fn first_program(page: &str) -> Option<&str> {
    let blocks = page.split("\n```rust\n").skip(1).filter_map(|rest| rest.split_once("```"));
    blocks.map(|(block, _)| block).find(|block| block.contains("fn main()"))
}

/// A crate of kernels without kernels must not compile: programs would, and run nothing.
fn refuses_no_kernels(consumer: &Path, folder: &Path, kernels: &Path) -> Result<()> {
    let (artifacts, aside) = (kernels.join("artifacts"), kernels.join("aside"));
    fs::rename(&artifacts, &aside)?;
    let built = output(&mut cargo(consumer, folder, &["check", "--quiet", "--package", "kernels-gpu"]));
    fs::rename(&aside, &artifacts)?;
    let expected = "expected packs of kernels (*.ptx.pack), got none";
    match built {
        Ok(_) => bail!("kernels-gpu compiles without kernels: expected `{expected}`"),
        Err(error) if error.to_string().contains(expected) => Ok(()),
        Err(error) => Err(error.context(format!("expected `{expected}`"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_program_is_the_first_block_with_a_main() {
        let page = "# A\n\n```toml\nx\n```\n```rust\nlet a = 1;\n```\n\n```rust\nfn main() {}\n```\n";
        assert_eq!(first_program(page), Some("fn main() {}\n"));
        assert_eq!(first_program("# A\n"), None);
    }
}
