//! `book`: builds the book, whose pages are those of docs, with mdBook.

use std::process::Command;

use anyhow::Result;

use crate::build_kernels::stamp;
use crate::workspace::{root, run_shown, target_dir};

/// All that the book is made of.
const INPUTS: [&str; 5] =
    ["docs", "ARCHITECTURE.md", "xtask/book/Cargo.toml", "xtask/book/Cargo.lock", "xtask/book/src"];

/// Builds it.
///
/// # Errors
/// When a page is missing, in the book or in its table of contents.
pub fn run() -> Result<()> {
    let manifest = root().join("xtask/book/Cargo.toml");
    let mut command = Command::new("cargo");
    command.args(["run", "--quiet", "--locked", "--manifest-path"]).arg(manifest);
    run_shown(command.env("CARGO_TARGET_DIR", target_dir().join("book-tool")).current_dir(root()))
}

/// As [`run`], unless the same was built before in this clone.
///
/// # Errors
/// As [`run`].
pub fn run_in_ci() -> Result<()> {
    let folder = target_dir().join("book-tool");
    std::fs::create_dir_all(&folder)?;
    let built = stamp::check_once(&folder.join("checked"), || stamp::of_files(&INPUTS, "book"), run)?;
    if !built {
        println!("skipped: no page has changed since it was built (cargo xtask book builds it)");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_input_is_there() {
        assert!(INPUTS.iter().all(|input| root().join(input).exists()));
    }
}
