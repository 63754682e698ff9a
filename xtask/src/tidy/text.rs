//! Rules about single files.

use super::File;

const MOST_LINES: usize = 500;
const WIDEST: usize = 110;
/// In tests, where lines of PTX and whole messages stand.
const WIDEST_IN_TESTS: usize = 160;

/// Files that a person can hold in mind: at most 500 lines of Rust, none wider than 110 characters (160 in
/// tests).
pub fn length(files: &[File]) -> Vec<String> {
    let mut broken = Vec::new();
    for file in files.iter().filter(|file| file.is_rust()) {
        let lines = file.text.lines().count();
        if lines > MOST_LINES {
            broken.push(
                file.at(MOST_LINES, &format!("{lines} lines, {MOST_LINES} at most: it is two files")),
            );
        }
        let widest = if file.path.contains("tests/") { WIDEST_IN_TESTS } else { WIDEST };
        for (line, text) in file.text.lines().enumerate() {
            let width = text.chars().count();
            if width > widest {
                broken.push(file.at(line, &format!("{width} characters wide, {widest} at most")));
            }
        }
    }
    broken
}

/// Every source file says in its first line what it is for.
pub fn docs(files: &[File]) -> Vec<String> {
    let is_undocumented = |file: &&File| file.is_rust() && !file.text.starts_with("//!");
    files.iter().filter(is_undocumented).map(|file| file.at(0, "does not start with `//!`")).collect()
}

/// A test that is not run says why.
pub fn ignored(files: &[File]) -> Vec<String> {
    find(files, &["#[ignore]"], "a reason is missing: write `#[ignore = \"...\"]`")
}

/// What is left from writing.
pub fn leftovers(files: &[File]) -> Vec<String> {
    find(files, &["todo!", "unimplemented!", "dbg!"], "left in")
}

/// Searches code, not comments and literals.
fn find(files: &[File], words: &[&str], fault: &str) -> Vec<String> {
    let mut broken = Vec::new();
    for file in files.iter().filter(|file| file.is_rust()) {
        for (line, text) in file.code.lines().enumerate() {
            if let Some(word) = words.iter().find(|word| text.contains(**word)) {
                broken.push(file.at(line, &format!("`{word}`: {fault}")));
            }
        }
    }
    broken
}

/// No file names a folder of the machine that it was written on.
pub fn machine_paths(files: &[File]) -> Vec<String> {
    let mut broken = Vec::new();
    for file in files {
        for (line, text) in file.text.lines().enumerate() {
            // In pieces, so that this file does not break its own rule.
            for folder in ["work", "tmp", "home", "root", "Users"].map(|name| format!("/{name}/")) {
                let is_absolute = |at: usize| {
                    !text[..at].ends_with(|c: char| c.is_alphanumeric() || "._-}~*".contains(c))
                };
                if text.match_indices(&folder).any(|(at, _)| is_absolute(at)) {
                    broken.push(file.at(line, &format!("a path of one machine: {folder}")));
                }
            }
        }
    }
    broken
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> [File; 1] {
        [File::new("host/src/x.rs", text.to_owned())]
    }

    #[test]
    fn long_files_and_lines_are_found() {
        assert_eq!(length(&file(&"x\n".repeat(500))), Vec::<String>::new());
        assert_eq!(length(&file(&"x\n".repeat(501))).len(), 1);
        assert_eq!(length(&file(&"é".repeat(110))), Vec::<String>::new());
        assert_eq!(length(&file(&"é".repeat(111))).len(), 1);
        let test = |width| [File::new("emulator/tests/x.rs", "é".repeat(width))];
        assert_eq!(length(&test(160)), Vec::<String>::new());
        assert_eq!(length(&test(161)).len(), 1);
    }

    #[test]
    fn a_file_without_a_first_line_of_prose_is_found() {
        assert_eq!(docs(&file("//! What it is for.\n")), Vec::<String>::new());
        assert_eq!(docs(&file("use std::fs;\n")).len(), 1);
    }

    #[test]
    fn tests_are_ignored_for_a_reason() {
        assert_eq!(ignored(&file("#[ignore = \"needs a device\"]")), Vec::<String>::new());
        assert_eq!(ignored(&file("#[ignore]\nfn f() {}")).len(), 1);
    }

    #[test]
    fn leftovers_are_found_in_code_only() {
        assert_eq!(leftovers(&file("fn f() { todo!() }\nfn g() { dbg!(1); }")).len(), 2);
        assert_eq!(leftovers(&file("// todo!() is refused\nlet x = \"todo!\";")), Vec::<String>::new());
    }

    #[test]
    fn paths_of_a_machine_are_found_and_relative_ones_are_not() {
        let root = format!("//! see /{}/x", "home");
        assert_eq!(machine_paths(&file(&root)).len(), 1);
        let fine = "//! /usr/bin/rustc, target/tmp/x, ~/src/y, docs/home/z";
        assert_eq!(machine_paths(&file(fine)), Vec::<String>::new());
    }
}
