//! `ARCHITECTURE.md` leads through the tree by the names of its files: each must be there.

use super::File;

/// What the names of files that have text end with.
const EXTENSIONS: [&str; 6] = [".rs", ".md", ".json", ".toml", ".py", ".h"];

/// Every file that `ARCHITECTURE.md` names exists, by its path or the end of it.
pub fn names(files: &[File]) -> Vec<String> {
    let Some(page) = files.iter().find(|file| file.path == "ARCHITECTURE.md") else {
        return vec!["ARCHITECTURE.md: missing".to_owned()];
    };
    let mut broken = Vec::new();
    for (line, text) in page.text.lines().enumerate() {
        for name in text.split(|c: char| !is_part_of_a_name(c)).map(|word| word.trim_end_matches('.')) {
            let is_file = EXTENSIONS.iter().any(|end| name.len() > end.len() && name.ends_with(end));
            if is_file && !files.iter().any(|file| is_end_of(name, &file.path)) {
                broken.push(page.at(line, &format!("no file `{name}`")));
            }
        }
    }
    broken
}

fn is_part_of_a_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_-./".contains(c)
}

/// Whether `name` is a path, or the last components of one.
fn is_end_of(name: &str, path: &str) -> bool {
    path.strip_suffix(name).is_some_and(|before| before.is_empty() || before.ends_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(page: &str) -> Vec<String> {
        let file = |path: &str, text: &str| File::new(path, text.to_owned());
        names(&[file("ARCHITECTURE.md", page), file("host/src/plan.rs", ""), file("README.md", "")])
    }

    #[test]
    fn names_of_files_that_exist_are_whole_components_of_a_path() {
        assert_eq!(check("see `README.md`, `host/src/plan.rs` and src/plan.rs."), Vec::<String>::new());
        assert_eq!(check("a rule (`.rs`), 1.96.0, e.g. this"), Vec::<String>::new());
        assert_eq!(check("\n`lan.rs`"), ["ARCHITECTURE.md:2: no file `lan.rs`"]);
        assert_eq!(check("`host/plan.rs` and `plan/forward.rs`").len(), 2);
    }

    #[test]
    fn a_tree_without_the_page_is_refused() {
        assert_eq!(names(&[]).len(), 1);
    }
}
