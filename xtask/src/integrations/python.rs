//! The door for Python: its wheel is built, installed into an environment of its own, and tested from there.

use super::Door;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::workspace::{on_path, output, run_shown};

/// Formats, lints, builds the wheel, installs it into an environment of its own and runs its tests.
///
/// # Errors
/// When one of these fails, or there is no Python.
pub fn check(door: &Door, with_torch: bool) -> Result<()> {
    if on_path("python3").is_none() {
        bail!("python3 is not at hand: the Python package needs it");
    }
    let (folder, target) = (door.folder(), door.target());
    door.check_lock()?;
    door.cargo("fmt -- --check")?;
    door.cargo("clippy --locked -- -D warnings")?;
    let environment = environment(door, with_torch)?;
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

/// An environment with what the tests need.
fn environment(door: &Door, with_torch: bool) -> Result<PathBuf> {
    let environment = door.target().join("environment");
    if !environment.join("bin/python").exists() {
        run_shown(Command::new("python3").args(["-m", "venv"]).arg(&environment))?;
    }
    let mut install = pip(&environment);
    let file = door.folder().join("requirements-test.txt");
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
