//! Where things are, and how other programs are run.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// The root of the workspace: the one that cargo runs this in, else the one that it was compiled from.
pub fn root() -> PathBuf {
    let compiled = || PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(compiled, PathBuf::from);
    manifest.parent().expect("xtask stands in the workspace").to_path_buf()
}

/// Cargo's target folder: `$CARGO_TARGET_DIR`, or `target` in the workspace.
pub fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// The first file of this name on `PATH`.
pub fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|file| file.is_file())
}

/// The command as one would type it.
pub fn shown(command: &Command) -> String {
    let quoted = |word: &OsStr| {
        let word = word.to_string_lossy();
        if word.contains([' ', '\'', '"', '>']) { format!("{word:?}") } else { word.into_owned() }
    };
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(quoted).collect::<Vec<_>>().join(" ")
}

/// Runs a command to its end and returns what it wrote to standard output and standard error.
///
/// # Errors
/// When it cannot be started or fails; the error holds the command and what it said.
pub fn output(command: &mut Command) -> Result<(String, String)> {
    let output = command.output().with_context(|| format!("cannot start `{}`", shown(command)))?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success() {
        bail!("{}{}\n`{}` failed ({})", stdout, stderr, shown(command), output.status);
    }
    Ok((stdout, stderr))
}

/// Prints a command, then runs it with this process's terminal.
///
/// # Errors
/// When it cannot be started or fails.
pub fn run_shown(command: &mut Command) -> Result<()> {
    eprintln!("+ {}", shown(command));
    let status = command.status().with_context(|| format!("cannot start `{}`", shown(command)))?;
    if !status.success() {
        bail!("`{}` failed ({status})", shown(command));
    }
    Ok(())
}
