//! The integration tests of a package are one program: a file that it does not name would never run.

use super::File;

/// Every file of a package's `tests`, and every folder of it with a `main.rs`, is a module of
/// `tests/main.rs`.
pub fn programs(files: &[File]) -> Vec<String> {
    let mut broken = Vec::new();
    for main in files.iter().filter(|file| is_program(&file.path)) {
        let folder = main.path.trim_end_matches("main.rs");
        let within = |file: &File| file.path.strip_prefix(folder).map(str::to_owned);
        for name in files.iter().filter_map(within).filter(|name| name != "main.rs") {
            let is_module = name.ends_with(".rs") && !name.contains('/') || name.ends_with("/main.rs");
            if is_module && !main.text.contains(&format!("#[path = \"{name}\"]\nmod ")) {
                broken.push(main.at(0, &format!("does not name `{name}`, which never runs")));
            }
        }
    }
    broken
}

/// Whether a file is `<package>/tests/main.rs`.
fn is_program(path: &str) -> bool {
    path.strip_suffix("/tests/main.rs").is_some_and(|package| !package.contains('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_no_program_names_is_found() {
        let file = |path: &str, text: &str| File::new(path, text.to_owned());
        let main = "#[path = \"a.rs\"]\nmod a;\n#[path = \"b/main.rs\"]\nmod b;\n";
        let mut files = vec![
            file("host/tests/main.rs", main),
            file("host/tests/a.rs", ""),
            file("host/tests/b/main.rs", "mod c;"),
            file("host/tests/b/c.rs", ""),
            file("host/tests/common/mod.rs", ""),
            file("tests/tests/x.rs", ""),
        ];
        assert_eq!(programs(&files), Vec::<String>::new());
        files.push(file("host/tests/lost.rs", ""));
        files.push(file("host/tests/far/main.rs", ""));
        let lost = |name| format!("host/tests/main.rs:1: does not name `{name}`, which never runs");
        assert_eq!(programs(&files), [lost("lost.rs"), lost("far/main.rs")]);
    }
}
