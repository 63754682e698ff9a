//! The Rust that the kernels were compiled from, by file and line.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// A place in the Rust source that an instruction was compiled from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Path from the root of the workspace.
    pub file: String,
    /// Line, from 1.
    pub line: u32,
}

impl Place {
    /// `path/file.rs:line:column`, or without a column, as for what was merged from several; `None` for anything
    /// else.
    pub fn parse(text: &str) -> Option<Self> {
        let (rest, last) = text.trim().rsplit_once(':')?;
        let last: u32 = last.parse().ok()?;
        match rest.rsplit_once(':').and_then(|(file, line)| Some((file, line.parse().ok()?))) {
            Some((file, line)) => Some(Place { file: file.to_owned(), line }),
            None => Some(Place { file: rest.to_owned(), line: last }),
        }
    }

    /// The line without its indentation; empty where there is none, as in the standard library.
    pub fn text(&self) -> String {
        self.with_text(str::to_owned)
    }

    /// What `read` makes of [`Place::text`].
    fn with_text<T>(&self, read: impl FnOnce(&str) -> T) -> T {
        let lines = lines(&self.file);
        read(lines.get((self.line as usize).wrapping_sub(1)).map_or("", String::as_str))
    }
}

/// The lines of a file without their indentation; none where there is no file. Each is read once.
fn lines(file: &str) -> Arc<[String]> {
    static FILES: OnceLock<Mutex<HashMap<String, Arc<[String]>>>> = OnceLock::new();
    let mut files = FILES.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(lines) = files.get(file) {
        return lines.clone();
    }
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let text = std::fs::read_to_string(format!("{root}/{file}")).unwrap_or_default();
    let lines: Arc<[String]> = text.lines().map(|line| line.trim().to_owned()).collect();
    files.insert(file.to_owned(), lines.clone());
    lines
}

/// The chain in the comment of a `.loc`: the place itself, then the calls that it was inlined into.
pub fn chain(comment: &str) -> Vec<Place> {
    comment.split("@[").filter_map(|piece| Place::parse(piece.trim_end_matches([']', ' ']))).collect()
}

/// Whether a chain goes through source lines that hold these texts, each `file.rs: text` or just `text`.
pub fn goes_through(chain: &[Place], texts: &[&str]) -> bool {
    texts.iter().all(|wanted| {
        let (file, text) = wanted.split_once(".rs: ").unwrap_or(("", wanted));
        let is_of = |place: &Place| {
            file.is_empty() || place.file.strip_suffix(".rs").is_some_and(|path| path.ends_with(file))
        };
        chain.iter().any(|place| is_of(place) && place.with_text(|line| line.contains(text)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_of_inlined_calls() {
        let chain = chain("a/b.rs:12:5 @[ c.rs:3:1 @[ d.rs:7:9 ] ]");
        let place = |file: &str, line| Place { file: file.to_owned(), line };
        assert_eq!(chain, [place("a/b.rs", 12), place("c.rs", 3), place("d.rs", 7)]);
        assert_eq!(Place::parse("a/b.rs:7"), Some(place("a/b.rs", 7)));
        assert_eq!(Place::parse("no place"), None);
    }
}
