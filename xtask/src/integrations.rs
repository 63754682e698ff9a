//! `integrations`: builds and tests the doors for other frameworks, which are workspaces of their own.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::build_kernels::stamp;
use crate::workspace::{on_path, output, root, run_shown, target_dir};

/// Build and test the doors for other frameworks: the Python package.
#[derive(clap::Args)]
pub struct Args {
    /// Also when the same has passed before.
    #[arg(long)]
    force: bool,
    /// Install PyTorch from its registry (3 GB with what it needs), so that its doors are tested, too.
    #[arg(long)]
    torch: bool,
}

/// Where the Python package is.
const PYTHON: &str = "integrations/python";

/// What the package is made of, and what of the library it calls: its public interface, not what is behind
/// it, which has tests of its own.
const PYTHON_INPUTS: [&str; 18] = [
    "integrations/python/Cargo.toml",
    "integrations/python/Cargo.lock",
    "integrations/python/pyproject.toml",
    "integrations/python/requirements-test.txt",
    "integrations/python/src",
    "integrations/python/python",
    "integrations/python/tests",
    "integrations/python/examples",
    "host/Cargo.toml",
    "host/src/lib.rs",
    "host/src/attention.rs",
    "host/src/attention",
    "host/src/buffer.rs",
    "host/src/error.rs",
    "host/src/problem.rs",
    "host/src/problem",
    "host/src/training",
    "xtask/src/integrations.rs",
];

/// Runs all of them.
///
/// # Errors
/// When one cannot be built, or a test of it fails.
pub fn run(args: &Args) -> Result<()> {
    if args.force { python(args.torch) } else { check_once(args.torch) }
}

/// As [`run`], unless the same has passed before in this clone.
///
/// # Errors
/// As [`run`].
pub fn check_once(with_torch: bool) -> Result<()> {
    let kept = target_dir().join("python/checked");
    std::fs::create_dir_all(target_dir().join("python"))?;
    let words = format!("torch: {with_torch}");
    let stamp = || stamp::of_files(&PYTHON_INPUTS, &words);
    stamp::check_once(&kept, stamp, || python(with_torch)).map(|_| ())
}

/// Formats, lints, builds the wheel, installs it into an environment of its own and runs its tests.
fn python(with_torch: bool) -> Result<()> {
    if on_path("python3").is_none() {
        bail!("python3 is not at hand: the Python package needs it");
    }
    let (folder, target) = (root().join(PYTHON), target_dir().join("python"));
    check_lock(&folder)?;
    cargo(&folder, &target, "fmt -- --check")?;
    cargo(&folder, &target, "clippy --locked -- -D warnings")?;
    let environment = environment(&target, with_torch)?;
    let wheels = target.join("wheels");
    if wheels.exists() {
        std::fs::remove_dir_all(&wheels).context("cannot empty the folder of the wheel")?;
    }
    let mut build = Command::new(environment.join("bin/maturin"));
    build.args(["build", "--release", "--locked", "--out"]).arg(&wheels);
    // Called by its path, maturin does not see the environment that it is in.
    build.env("VIRTUAL_ENV", &environment).env("CARGO_TARGET_DIR", &target);
    run_shown(build.current_dir(&folder))?;
    let mut install = pip(&environment);
    install.args(["install", "--quiet", "--no-deps", "--force-reinstall", "--find-links"]).arg(&wheels);
    run_shown(install.args(["--no-index", "finite-attention"]))?;
    let mut test = Command::new(environment.join("bin/python"));
    // Not in the folder of the package, whose sources would be imported instead of what is installed.
    test.args(["-B", "-m", "pytest", "-q", "-ra", "-p", "no:cacheprovider"]).arg(folder.join("tests"));
    run_shown(test.current_dir(&target))
}

/// The lock file of the package knows the dependencies that the library has now.
fn check_lock(folder: &Path) -> Result<()> {
    let mut command = Command::new("cargo");
    command.args(["metadata", "--locked", "--format-version", "1"]).current_dir(folder);
    output(&mut command).map(|_| ()).with_context(|| {
        format!("{PYTHON}/Cargo.lock is not up to date; there: cargo update --workspace")
    })
}

/// An environment with what the tests need.
fn environment(target: &Path, with_torch: bool) -> Result<PathBuf> {
    let environment = target.join("environment");
    if !environment.join("bin/python").exists() {
        run_shown(Command::new("python3").args(["-m", "venv"]).arg(&environment))?;
    }
    let mut install = pip(&environment);
    let file = root().join(PYTHON).join("requirements-test.txt");
    install.args(["install", "--quiet", "--requirement"]).arg(file);
    if with_torch {
        install.arg("torch");
    }
    run_shown(&mut install)?;
    let imports = ["-c", "import torch"];
    if output(Command::new(environment.join("bin/python")).args(imports)).is_err() {
        println!(
            "PyTorch is not installed: its doors are not tested (cargo xtask integrations --torch)"
        );
    }
    Ok(environment)
}

fn pip(environment: &Path) -> Command {
    let mut command = Command::new(environment.join("bin/python"));
    command.args(["-m", "pip", "--disable-pip-version-check"]);
    command
}

fn cargo(folder: &Path, target: &Path, line: &str) -> Result<()> {
    let mut command = Command::new("cargo");
    command.args(line.split(' ')).env("CARGO_TARGET_DIR", target);
    run_shown(command.current_dir(folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_input_is_there() {
        let missing: Vec<_> =
            PYTHON_INPUTS.into_iter().filter(|input| !root().join(input).exists()).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}
