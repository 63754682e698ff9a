//! Pages lead to each other: what a link names must be there, and the heading in it.

use super::File;
use crate::workspace::root;

/// Every link in Markdown to something in the tree leads to a file or a folder that exists and, where it
/// names a heading, to one that the page has.
pub fn links(files: &[File]) -> Vec<String> {
    let is_there = |path: &str| root().join(path).exists();
    // A page that stands elsewhere, too, leads on from where it is written.
    let is_page = |file: &File| file.path.ends_with(".md") && !root().join(&file.path).is_symlink();
    broken(files, &is_page, &is_there)
}

fn broken(
    files: &[File],
    is_page: &dyn Fn(&File) -> bool,
    is_there: &dyn Fn(&str) -> bool,
) -> Vec<String> {
    let mut broken = Vec::new();
    for page in files.iter().filter(|file| is_page(file)) {
        for (line, target) in targets(&page.text) {
            if let Err(what) = check(files, page, target, is_there) {
                broken.push(page.at(line, &format!("link to `{target}`: {what}")));
            }
        }
    }
    broken
}

fn check(
    files: &[File],
    page: &File,
    target: &str,
    is_there: &dyn Fn(&str) -> bool,
) -> Result<(), &'static str> {
    if target.contains("://") || target.starts_with("mailto:") {
        return Ok(());
    }
    let (name, heading) = match target.split_once('#') {
        Some((name, heading)) => (name, Some(heading)),
        None => (target, None),
    };
    let path = if name.is_empty() { Some(page.path.clone()) } else { resolved(&page.path, name) };
    let Some(path) = path.filter(|path| is_there(path)) else { return Err("no such file") };
    let Some(heading) = heading else { return Ok(()) };
    let Some(other) = files.iter().find(|file| file.path == path) else { return Err("no such page") };
    if headings(&other.text).any(|slug| slug == heading) { Ok(()) } else { Err("no such heading") }
}

/// A path relative to the root, of a name in a page; none above the root.
fn resolved(page: &str, name: &str) -> Option<String> {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in name.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// Lines that are not in a block of code, with their places.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    text.lines().enumerate().filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        !in_code && !is_fence
    })
}

/// What links and images name, and in which lines.
fn targets(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (line, text) in prose(text) {
        // What stands between backquotes is code.
        for part in text.split('`').step_by(2) {
            // A label that ends in code is cut in two: `]` is then the first character.
            let mut rest = part;
            while let Some((_, behind)) = rest.split_once("](") {
                let Some((target, behind)) = behind.split_once(')') else { break };
                found.push((line, target));
                rest = behind;
            }
        }
    }
    found
}

/// The names of headings, as pages are linked to: lower case, without punctuation, spaces as hyphens.
fn headings(text: &str) -> impl Iterator<Item = String> {
    prose(text).filter_map(|(_, line)| {
        let title = line.trim_start_matches('#');
        if title.len() == line.len() || !title.starts_with(' ') {
            return None;
        }
        let kept = title.trim().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        Some(kept.collect::<String>().to_lowercase().replace(' ', "-"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(page: &str) -> Vec<String> {
        let other = "# A heading: of `two`, 3 parts\n```sh\n# no heading\n```\n";
        let files = [("docs/page.md", page), ("docs/other.md", other), ("README.md", "# Top\n")]
            .map(|(path, text)| File::new(path, text.to_owned()));
        let names = ["docs/page.md", "docs/other.md", "docs/figures", "README.md"];
        broken(&files, &|file| file.path.ends_with(".md"), &|path| names.contains(&path))
    }

    #[test]
    fn links_that_lead_somewhere_are_tidy() {
        let page = "# Here\n[a](other.md), [`b`](other.md#a-heading-of-two-3-parts) and\n\
                    ![c](figures) [d](../README.md#top) [e](#here) [f](https://example.org/x#y)\n\
                    `[g](nowhere.md)`\n```\n[h](nowhere.md)\n```\n";
        assert_eq!(check(page), Vec::<String>::new());
    }

    #[test]
    fn links_to_nothing_are_found() {
        assert_eq!(check("x\n[a](nowhere.md)"), ["docs/page.md:2: link to `nowhere.md`: no such file"]);
        assert_eq!(
            check("[a](other.md#no-heading)"),
            ["docs/page.md:1: link to `other.md#no-heading`: no such heading"]
        );
        assert_eq!(check("[a](#there)"), ["docs/page.md:1: link to `#there`: no such heading"]);
        assert_eq!(
            check("[a](../../above.md)"),
            ["docs/page.md:1: link to `../../above.md`: no such file"]
        );
        assert_eq!(check("[a](other.md) [`b`](nowhere.md)").len(), 1);
    }
}
