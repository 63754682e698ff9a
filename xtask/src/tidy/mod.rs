//! `tidy`: the rules of the tree that no compiler knows. `ARCHITECTURE.md` says why; each rule's name
//! stands there.

mod code;
mod imports;
mod invariants;
mod layers;
mod links;
mod names;
mod programs;
mod text;

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::workspace::{output, root};

/// A file of the tree.
pub struct File {
    /// Path relative to the root, with `/`.
    pub path: String,
    /// Its text.
    pub text: String,
    /// For Rust, the text with comments and literals blanked out, line for line; otherwise the text.
    pub code: String,
}

impl File {
    fn new(path: &str, text: String) -> File {
        let code = if path.ends_with(".rs") { code::only(&text) } else { text.clone() };
        File { path: path.to_owned(), text, code }
    }

    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// `path:line: text`, for line indices that count from zero.
    fn at(&self, line: usize, text: &str) -> String {
        format!("{}:{}: {text}", self.path, line + 1)
    }
}

/// A rule: its name and what finds violations, a line each.
type Rule = (&'static str, fn(&[File]) -> Vec<String>);

/// All rules. Each name must stand in `ARCHITECTURE.md`.
const RULES: &[Rule] = &[
    ("layers", layers::layers),
    ("emulator-layers", layers::emulator_layers),
    ("crates", layers::crates),
    ("oracle", layers::oracle),
    ("asm", layers::asm),
    ("length", text::length),
    ("docs", text::docs),
    ("ignored", text::ignored),
    ("leftovers", text::leftovers),
    ("paths", text::machine_paths),
    ("invariants", invariants::invariants),
    ("names", names::names),
    ("links", links::links),
    ("programs", programs::programs),
];

/// Checks every rule on every file that git knows or would add.
///
/// # Errors
/// When git cannot list the files or a rule is broken; the error lists where.
pub fn run() -> Result<()> {
    let files = files()?;
    let mut broken = Vec::new();
    for (name, check) in RULES {
        broken.extend(check(&files).into_iter().map(|line| format!("{line} [{name}]")));
    }
    if !broken.is_empty() {
        bail!("the tree is not tidy\n{}", broken.join("\n"));
    }
    println!("tidy: {} rules hold in {} files", RULES.len(), files.len());
    Ok(())
}

fn files() -> Result<Vec<File>> {
    let root = root();
    let list = ["ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate"];
    let (names, _) = output(Command::new("git").current_dir(&root).args(list))?;
    let mut files = Vec::new();
    for name in names.split('\0').filter(|name| !name.is_empty()) {
        let path = root.join(name);
        // Deleted but not yet committed.
        if !path.is_file() {
            continue;
        }
        let bytes = fs::read(&path).with_context(|| format!("cannot read {name}"))?;
        // What is not text has no lines to check.
        if let Ok(text) = String::from_utf8(bytes) {
            files.push(File::new(name, text));
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_rules_are_unique() {
        for (i, (name, _)) in RULES.iter().enumerate() {
            assert!(RULES[..i].iter().all(|(other, _)| other != name), "{name}");
        }
    }
}
