//! What was built and compared before, in this clone or as the tree records it, so that CI need not do it
//! twice.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use super::compiler::Compiler;
use super::hex;
use super::ptxas::Ptxas;
use crate::workspace::{root, target_dir};

/// All that the outcome of a check depends on: kernels, what they are compared with, and what builds, packs
/// and compares them.
const INPUTS: [&str; 7] = [
    "kernels-gpu/src",
    "kernels-gpu/artifacts",
    "kernels-gpu/pins",
    "xtask/src/build_kernels",
    "xtask/src/workspace.rs",
    "archive/src",
    "Cargo.lock",
];

/// The stamp of the build that the committed artifacts come from.
const RECORD: &str = "kernels-gpu/built";

/// Where the stamps of checks that have passed are kept, a line each.
pub fn path() -> PathBuf {
    target_dir().join("kernels/checked")
}

/// The stamp of a check with programs of these versions: a hash of every file that it reads, and of the
/// versions.
///
/// # Errors
/// When a file cannot be read.
pub fn of(compiler: &Compiler, ptxas: Option<&Ptxas>) -> Result<String> {
    let Compiler { version, llvm, .. } = compiler;
    let ptxas = ptxas.map(|ptxas| ptxas.full_version.as_str());
    of_files(&INPUTS, &format!("{version}\n{llvm}\n{ptxas:?}"))
}

/// Whether the tree records that this build has been made.
pub fn is_recorded(stamp: &str) -> bool {
    fs::read_to_string(root().join(RECORD)).is_ok_and(|recorded| recorded.trim_end() == stamp)
}

/// Records in the tree that this build has been made.
///
/// # Errors
/// When the file cannot be written.
pub fn record(stamp: &str) -> Result<()> {
    fs::write(root().join(RECORD), format!("{stamp}\n"))
        .with_context(|| format!("cannot write {RECORD}"))
}

/// A hash of files and folders, by their names in the tree, and of some words.
///
/// # Errors
/// When a file cannot be read.
pub fn of_files(inputs: &[&str], words: &str) -> Result<String> {
    let mut hash = Sha256::new();
    hash.update(format!("{words}\n"));
    for input in inputs {
        add(&root().join(input), input, &mut hash)?;
    }
    Ok(hex(&hash.finalize()))
}

/// Adds a folder, or a file, with its name.
fn add(path: &Path, name: &str, hash: &mut Sha256) -> Result<()> {
    if path.is_dir() {
        let entries = fs::read_dir(path).with_context(|| format!("cannot list {}", path.display()))?;
        let mut names = entries
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect::<Result<Vec<_>>>()?;
        names.sort();
        return names
            .iter()
            .try_for_each(|entry| add(&path.join(entry), &format!("{name}/{entry}"), hash));
    }
    let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    hash.update(format!("{name} {}\n", bytes.len()));
    hash.update(bytes);
    Ok(())
}

/// Runs a check, unless one with the stamp of now is in the file `kept`; returns whether it ran. One that
/// passes is written down there if the stamp is the same after it: what changes while it runs, it may or may
/// not have seen.
///
/// # Errors
/// Those of the check and of the stamp, and when the file cannot be written.
pub fn check_once(
    kept: &Path,
    stamp: impl Fn() -> Result<String>,
    check: impl FnOnce() -> Result<()>,
) -> Result<bool> {
    let before = stamp()?;
    let known = fs::read_to_string(kept).unwrap_or_default();
    if known.lines().any(|line| line == before) {
        println!("the same was built and compared before: {}", kept.display());
        return Ok(false);
    }
    check()?;
    if stamp()? != before {
        println!("what the check depends on changed meanwhile: it is not written down as passed");
        return Ok(true);
    }
    fs::write(kept, format!("{known}{before}\n"))
        .with_context(|| format!("cannot write {}", kept.display()))?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn every_input_is_there() {
        let missing: Vec<_> = INPUTS.into_iter().filter(|input| !root().join(input).exists()).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn a_check_is_kept_if_it_passed_and_nothing_changed_meanwhile() {
        let kept = std::env::temp_dir().join(format!("xtask-checked-{}", std::process::id()));
        let _ = fs::remove_file(&kept);
        let (stamp, checks) = (Cell::new(0), Cell::new(0));
        let once = |passes: bool, changes: bool| {
            let before = checks.get();
            let done = check_once(
                &kept,
                || Ok(stamp.get().to_string()),
                || {
                    checks.set(before + 1);
                    stamp.set(stamp.get() + i32::from(changes));
                    anyhow::ensure!(passes, "no");
                    Ok(())
                },
            );
            assert_eq!(done.ok(), passes.then_some(checks.get() > before));
            checks.get() > before
        };
        assert!(once(false, false));
        assert!(once(true, true));
        stamp.set(0);
        assert!(once(true, false), "a check during which something changed is not kept");
        assert!(!once(true, false), "one that passed is");
        stamp.set(5);
        assert!(once(true, false));
        fs::remove_file(&kept).unwrap();
    }

    #[test]
    fn a_stamp_changes_with_names_and_contents_of_files() {
        let dir = std::env::temp_dir().join(format!("xtask-stamp-{}", std::process::id()));
        let stamp_of = |files: &[(&str, &str)]| {
            let _ = fs::remove_dir_all(&dir);
            fs::create_dir_all(dir.join("folder")).unwrap();
            files.iter().for_each(|(name, text)| fs::write(dir.join(name), text).unwrap());
            let mut hash = Sha256::new();
            add(&dir, "dir", &mut hash).unwrap();
            hex(&hash.finalize())
        };
        let base = stamp_of(&[("a", "1"), ("folder/b", "2")]);
        assert_eq!(stamp_of(&[("folder/b", "2"), ("a", "1")]), base);
        assert_ne!(stamp_of(&[("a", "1"), ("folder/b", "3")]), base);
        assert_ne!(stamp_of(&[("a", "1"), ("folder/c", "2")]), base);
        assert_ne!(stamp_of(&[("a", "1")]), base);
        fs::remove_dir_all(&dir).unwrap();
    }
}
