//! The doors for frameworks of Rust.

use super::Door;
use anyhow::Result;

use crate::workspace::on_path;

/// How such a door is checked.
pub struct Plan {
    /// Features that are linted, and type-checked by that.
    linted: &'static str,
    /// Features that are tested.
    tested: &'static str,
    /// A feature that is linted only where this program is at hand.
    needs: Option<(&'static str, &'static str)>,
}

/// Candle compiles its kernels when it is built for CUDA.
pub const CANDLE: Plan = Plan { linted: "", tested: "", needs: Some(("cuda", "nvcc")) };

/// CubeCL looks for CUDA when it runs.
pub const BURN: Plan = Plan { linted: "flex,ndarray,cuda", tested: "flex,ndarray", needs: None };

/// Formats, lints and tests it.
///
/// # Errors
/// When one of these fails.
pub fn check(door: &Door, plan: &Plan) -> Result<()> {
    door.check_lock()?;
    door.cargo("fmt -- --check")?;
    let features =
        |names: &str| if names.is_empty() { String::new() } else { format!(" --features {names}") };
    let lint =
        |names| door.cargo(&format!("clippy --locked --all-targets{} -- -D warnings", features(names)));
    lint(plan.linted)?;
    match plan.needs {
        Some((feature, program)) if on_path(program).is_some() => lint(feature)?,
        Some((feature, program)) => {
            println!("skipped: {program} is not at hand, which its feature `{feature}` needs");
        }
        None => {}
    }
    door.cargo(&format!("test --locked{}", features(plan.tested)))
}
