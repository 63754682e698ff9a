//! The doors for frameworks of Rust.

use super::Door;
use std::process::Command;

use anyhow::Result;

use crate::workspace::{on_path, run_shown};

/// How such a door is checked.
pub struct Plan {
    /// Features that are linted, and type-checked by that.
    linted: &'static str,
    /// What the environment has meanwhile.
    environment: &'static [(&'static str, &'static str)],
    /// Features that are tested.
    tested: &'static str,
    /// A feature that is linted only where this program is at hand.
    needs: Option<(&'static str, &'static str)>,
    /// An example that trains, and fails if nothing is learnt; with options that make it short.
    example: Option<(&'static str, &'static [&'static str])>,
}

/// Candle compiles its kernels when it is built for CUDA.
pub const CANDLE: Plan =
    Plan { linted: "", environment: &[], tested: "", needs: Some(("cuda", "nvcc")), example: None };

/// CubeCL downloads a compiler that it links, unless documentation alone is made: types need no linking.
pub const BURN: Plan = Plan {
    linted: "flex,ndarray,cuda",
    environment: &[("DOCS_RS", "1")],
    tested: "flex,ndarray",
    needs: None,
    example: Some(("train_tiny", &["--steps", "25"])),
};

/// Formats, lints and tests it.
///
/// # Errors
/// When one of these fails.
pub fn check(door: &Door, plan: &Plan) -> Result<()> {
    door.check_lock()?;
    door.cargo("fmt -- --check")?;
    lint(door, plan.linted, plan.environment)?;
    match plan.needs {
        Some((feature, program)) if on_path(program).is_some() => lint(door, feature, &[])?,
        Some((feature, program)) => {
            println!(
                "skipped: {program} is not at hand, which the feature `{feature}` needs to be linted"
            );
        }
        None => {}
    }
    let mut test = Command::new("cargo");
    test.args(["test", "--locked", "--features", plan.tested]).env("CARGO_TARGET_DIR", door.target());
    run_shown(test.current_dir(door.folder()))?;
    let Some((name, options)) = plan.example else { return Ok(()) };
    let mut example = Command::new("cargo");
    example.args(["run", "--locked", "--features", plan.tested, "--example", name, "--"]).args(options);
    example.arg("--svg").arg(door.target().join(format!("{name}.svg")));
    run_shown(example.env("CARGO_TARGET_DIR", door.target()).current_dir(door.folder()))
}

fn lint(door: &Door, features: &str, environment: &[(&str, &str)]) -> Result<()> {
    let mut clippy = Command::new("cargo");
    clippy.args(["clippy", "--locked", "--all-targets", "--features", features, "--", "-D", "warnings"]);
    clippy.env("CARGO_TARGET_DIR", door.target()).envs(environment.iter().copied());
    run_shown(clippy.current_dir(door.folder()))
}
