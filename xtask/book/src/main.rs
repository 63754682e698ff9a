//! Builds the book: `cargo xtask book` calls it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use mdbook_driver::MDBook;
use mdbook_driver::book::BookItem;

fn main() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let book = MDBook::load(root.join("docs/book"))?;
    let docs = root.join("docs");
    let listed: BTreeSet<PathBuf> = book.iter().filter_map(page).collect();
    let mut written = BTreeSet::new();
    pages(&docs, &docs, &mut written)?;
    let missing: Vec<_> = written.difference(&listed).collect();
    ensure!(missing.is_empty(), "docs/SUMMARY.md: expected every page of docs, got none of {missing:?}");
    let folder = book.build_dir_for("html");
    book.build()?;
    for page in &listed {
        let html = folder.join(page.with_extension("html"));
        let is_there = html.is_file() || html.with_file_name("index.html").is_file();
        ensure!(is_there, "{}: expected it in the book, got no {}", page.display(), html.display());
    }
    println!("{} pages: {}", listed.len(), folder.join("index.html").display());
    Ok(())
}

/// The file of a page, relative to docs.
fn page(item: &BookItem) -> Option<PathBuf> {
    match item {
        BookItem::Chapter(chapter) => chapter.source_path.clone(),
        _ => None,
    }
}

/// All pages below a folder but the table of contents.
fn pages(docs: &Path, folder: &Path, found: &mut BTreeSet<PathBuf>) -> Result<()> {
    let entries = folder.read_dir().with_context(|| format!("cannot list {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            pages(docs, &path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "md") {
            let name = path.strip_prefix(docs)?.to_owned();
            if name != Path::new("SUMMARY.md") {
                found.insert(name);
            }
        }
    }
    Ok(())
}
