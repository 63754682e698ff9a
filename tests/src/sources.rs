//! The Rust that the kernels were compiled from, by file and line.

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock, PoisonError};

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
        static FILES: OnceLock<Mutex<HashMap<String, Vec<String>>>> = OnceLock::new();
        let mut files = FILES.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
        let lines = files.entry(self.file.clone()).or_insert_with(|| {
            let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
            let text = std::fs::read_to_string(format!("{root}/{}", self.file)).unwrap_or_default();
            text.lines().map(|line| line.trim().to_owned()).collect()
        });
        lines.get((self.line as usize).wrapping_sub(1)).cloned().unwrap_or_default()
    }
}

/// The chain in the comment of a `.loc`: the place itself, then the calls that it was inlined into.
pub fn chain(comment: &str) -> Vec<Place> {
    comment.split("@[").filter_map(|piece| Place::parse(piece.trim_end_matches([']', ' ']))).collect()
}

/// Whether a chain goes through source lines that hold these texts, each `file.rs: text` or just `text`.
pub fn goes_through(chain: &[Place], texts: &[&str]) -> bool {
    texts.iter().all(|wanted| {
        let (file, text) = wanted.split_once(".rs: ").unwrap_or(("", wanted));
        let file = if file.is_empty() { String::new() } else { format!("{file}.rs") };
        chain.iter().any(|place| place.file.ends_with(&file) && place.text().contains(text))
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
