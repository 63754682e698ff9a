//! `cargo xtask mutate`: takes every barrier, wait, arrival, fence and guard out of some kernels, one at a
//! time, and writes down which of these edits show.

use std::process::Command;

use anyhow::Result;

use crate::workspace::{root, run_shown};

/// Which kernels.
#[derive(clap::Args)]
pub struct Args {
    /// Kernels; those of docs/mutations.md by default, which is then written.
    kernels: Vec<String>,
}

/// Runs `tests/src/bin/mutate.rs`, which holds the kernels, the emulator and the cases.
///
/// # Errors
/// When an edit shows in nothing and nobody has said why.
pub fn run(args: &Args) -> Result<()> {
    let mut command = Command::new("cargo");
    command.current_dir(root()).args(["run", "--quiet", "--package", "finite-attention-tests"]);
    command.args(["--bin", "mutate", "--"]);
    if args.kernels.is_empty() {
        command.args(["--write", "docs/mutations.md"]);
    }
    run_shown(command.args(&args.kernels))
}
