//! `integrations`: builds and tests the doors for other frameworks, which are workspaces of their own.

mod python;
mod rust;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::build_kernels::stamp;
use crate::workspace::{on_path, output, root, run_shown, target_dir};

/// Build and test the doors for other frameworks: Python, burn and candle.
#[derive(clap::Args)]
pub struct Args {
    /// Also when the same has passed before.
    #[arg(long)]
    force: bool,
    /// This door alone.
    #[arg(long, value_name = "DOOR", value_parser = DOORS.map(|door| door.name))]
    only: Option<String>,
    /// Install PyTorch from its registry (3 GB with what it needs), so that its doors are tested, too.
    #[arg(long)]
    torch: bool,
}

/// The door for one framework.
struct Door {
    /// Also the name of its folder in `integrations`.
    name: &'static str,
    /// What it is made of, in its folder.
    inputs: &'static [&'static str],
    /// What checks it, beside this file.
    checked_by: &'static str,
    /// That it has passed is kept in the tree: it takes too long to build for every machine that sees the
    /// tree for the first time.
    is_recorded: bool,
    check: fn(&Door, with_torch: bool) -> Result<()>,
}

/// What has passed, of doors that are recorded: a line each, of the name and a hash of all that the outcome
/// depends on.
const RECORD: &str = "integrations/passed";

const DOORS: [Door; 3] = [
    Door {
        name: "python",
        inputs: &[
            "Cargo.toml",
            "Cargo.lock",
            "pyproject.toml",
            "requirements-test.txt",
            "src",
            "python",
            "tests",
            "examples",
        ],
        checked_by: "integrations/python.rs",
        is_recorded: false,
        check: python::check,
    },
    Door {
        name: "candle",
        inputs: &["Cargo.toml", "Cargo.lock", "src", "tests"],
        checked_by: "integrations/rust.rs",
        is_recorded: true,
        check: |door, _| rust::check(door, &rust::CANDLE),
    },
    Door {
        name: "burn",
        inputs: &["Cargo.toml", "Cargo.lock", "src", "tests", "examples"],
        checked_by: "integrations/rust.rs",
        is_recorded: true,
        check: |door, _| rust::check(door, &rust::BURN),
    },
];

/// What of the library doors call: its public interface, not what is behind it, which has tests of its own.
const LIBRARY: [&str; 12] = [
    "host/Cargo.toml",
    "host/src/lib.rs",
    "host/src/attention.rs",
    "host/src/attention",
    "host/src/buffer.rs",
    "host/src/device.rs",
    "host/src/error.rs",
    "host/src/msda.rs",
    "host/src/problem.rs",
    "host/src/problem",
    "host/src/training",
    "xtask/src/integrations.rs",
];

/// Runs all of them, or one.
///
/// # Errors
/// When one cannot be built, or a test of it fails.
pub fn run(args: &Args) -> Result<()> {
    let wanted = |door: &&Door| args.only.as_ref().is_none_or(|only| only == door.name);
    for door in DOORS.iter().filter(wanted) {
        println!("-- {}", door.name);
        if args.force { (door.check)(door, args.torch) } else { door.check_once(args.torch) }
            .with_context(|| format!("the door for {}", door.name))?;
        if door.is_recorded {
            door.record()?;
        }
    }
    Ok(())
}

/// As [`run`], of all doors that can be built here: what is skipped is said, with the reason.
///
/// # Errors
/// As [`run`].
pub fn run_in_ci() -> Result<()> {
    for door in &DOORS {
        println!("-- {}", door.name);
        if door.name == "python" && on_path("python3").is_none() {
            println!("skipped: python3 is not at hand");
            continue;
        }
        if door.is_recorded && door.recorded()? == Some(door.hash("")?) {
            println!(
                "skipped: {RECORD} says that it has passed as it is, with the library's public interface as \
                 that is (cargo xtask integrations --force --only {} runs it)",
                door.name
            );
            continue;
        }
        door.check_once(false).with_context(|| format!("the door for {}", door.name))?;
    }
    Ok(())
}

impl Door {
    fn folder(&self) -> PathBuf {
        root().join("integrations").join(self.name)
    }

    /// Where it is built.
    fn target(&self) -> PathBuf {
        target_dir().join(self.name)
    }

    /// All that the outcome of its tests depends on, by paths in the tree.
    fn inputs(&self) -> Vec<String> {
        let own = self.inputs.iter().map(|input| format!("integrations/{}/{input}", self.name));
        let check = format!("xtask/src/{}", self.checked_by);
        own.chain(LIBRARY.map(str::to_owned)).chain([check]).collect()
    }

    /// Checks it, unless the same has passed before in this clone.
    fn check_once(&self, with_torch: bool) -> Result<()> {
        let kept = self.target().join("checked");
        std::fs::create_dir_all(self.target())?;
        let stamp = || self.hash(&format!("torch: {with_torch}"));
        if !stamp::check_once(&kept, stamp, || (self.check)(self, with_torch))? {
            println!(
                "skipped: neither its files nor the library's public interface have changed since it passed \
                 (cargo xtask integrations --force --only {} runs it)",
                self.name
            );
        }
        Ok(())
    }

    /// A hash of all that the outcome of its tests depends on, and of some words.
    fn hash(&self, words: &str) -> Result<String> {
        let inputs = self.inputs();
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        stamp::of_files(&inputs, words)
    }

    /// The hash with which it passed last, as the tree has it.
    fn recorded(&self) -> Result<Option<String>> {
        let record = fs::read_to_string(root().join(RECORD)).with_context(|| format!("no {RECORD}"))?;
        let of_this = record.lines().find_map(|line| line.strip_prefix(self.name)?.strip_prefix(' '));
        Ok(of_this.map(str::to_owned))
    }

    /// Writes into the tree that it has passed as it is.
    fn record(&self) -> Result<()> {
        let mut lines = Vec::new();
        for door in DOORS.iter().filter(|door| door.is_recorded) {
            let hash = if door.name == self.name { Some(door.hash("")?) } else { door.recorded()? };
            lines.extend(hash.map(|hash| format!("{} {hash}\n", door.name)));
        }
        fs::write(root().join(RECORD), lines.concat()).with_context(|| format!("cannot write {RECORD}"))
    }

    /// The lock file knows the dependencies that the library has now.
    fn check_lock(&self) -> Result<()> {
        let mut command = Command::new("cargo");
        let arguments = ["metadata", "--locked", "--format-version", "1"];
        output(command.args(arguments).current_dir(self.folder())).map(|_| ()).with_context(|| {
            let name = self.name;
            format!("integrations/{name}/Cargo.lock is not up to date; there: cargo update --workspace")
        })
    }

    fn cargo(&self, line: &str) -> Result<()> {
        cargo(&self.folder(), &self.target(), line)
    }
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
        let inputs = DOORS.iter().flat_map(Door::inputs);
        let missing: Vec<_> = inputs.filter(|input| !root().join(input).exists()).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn every_door_is_checked() {
        let folders = std::fs::read_dir(root().join("integrations")).unwrap();
        let names = folders.map(|entry| entry.unwrap());
        let mut found: Vec<_> = names
            .filter(|entry| entry.path().is_dir())
            .map(|entry| entry.file_name().into_string().unwrap())
            .collect();
        let mut checked: Vec<_> = DOORS.iter().map(|door| door.name.to_owned()).collect();
        found.sort();
        checked.sort();
        assert_eq!(found, checked);
    }
}
