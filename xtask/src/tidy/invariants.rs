//! `ARCHITECTURE.md` states invariants; each says what checks it.

use super::{File, RULES};

const HEADING: &str = "## Invariants";

/// Every item under `## Invariants` ends with `(checked by ...)`, and every rule of tidy stands in one.
pub fn invariants(files: &[File]) -> Vec<String> {
    let Some(file) = files.iter().find(|file| file.path == "ARCHITECTURE.md") else {
        return vec!["ARCHITECTURE.md: missing".to_owned()];
    };
    let mut broken = Vec::new();
    let section = file.text.split_once(&format!("\n{HEADING}\n")).map_or("", |(_, rest)| rest);
    let section = section.split_once("\n## ").map_or(section, |(section, _)| section);
    let items: Vec<&str> = section.split("\n- ").skip(1).collect();
    if items.is_empty() {
        broken.push(format!("{}: no items under `{HEADING}`", file.path));
    }
    for item in &items {
        let first = item.lines().next().unwrap_or_default();
        let Some((_, checks)) = item.rsplit_once("(checked by ") else {
            broken.push(format!("{}: no `(checked by ...)` in `{first}`", file.path));
            continue;
        };
        for rule in checks.split('`').filter_map(|word| word.strip_prefix("tidy: ")) {
            if !RULES.iter().any(|(name, _)| *name == rule) {
                broken.push(format!("{}: tidy has no rule `{rule}`: `{first}`", file.path));
            }
        }
    }
    for (name, _) in RULES {
        if !items.iter().any(|item| item.contains(&format!("`tidy: {name}`"))) {
            broken.push(format!("{}: no invariant names `tidy: {name}`", file.path));
        }
    }
    broken
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Vec<String> {
        invariants(&[File::new("ARCHITECTURE.md", text.to_owned())])
    }

    fn complete() -> String {
        let items: String =
            RULES.iter().map(|(name, _)| format!("- x (checked by `tidy: {name}`)\n")).collect();
        format!("# Map\n\n{HEADING}\n\n{items}\n## More\n\n- not an invariant\n")
    }

    #[test]
    fn every_invariant_names_its_check_and_every_rule_is_named() {
        assert_eq!(check(&complete()), Vec::<String>::new());
        assert_eq!(check(&complete().replace(" (checked by `tidy: asm`)", "")).len(), 2);
        assert_eq!(check(&complete().replace("tidy: asm", "tidy: gone")).len(), 2);
    }

    #[test]
    fn a_document_without_invariants_is_refused() {
        assert_eq!(check("# Map\n").len(), 1 + RULES.len());
        assert_eq!(invariants(&[]).len(), 1);
    }
}
