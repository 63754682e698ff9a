//! Line tables: where the source stands that an instruction was compiled from, and the calls that it was
//! inlined into, as `.loc` or the comment that LLVM writes behind it tells them.
//!
//! ```text
//! .loc 2 12 22   // arch/thread.rs:12:22 @[ kernels/forward.rs:33:16 @[ kernels/forward.rs:115:17 ] ]
//! .loc 2 12 22, function_name $L__info_string0, inlined_at 1 33 16
//! ```

use crate::report::source::SourceLocation;
use std::collections::HashMap;

/// File number, line, column.
pub type Position = (u64, u32, u32);

/// One `.loc`.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Where the code stands.
    pub position: Position,
    /// The place of the call that it was inlined into, if the directive says so.
    pub inlined_at: Option<Position>,
    /// The comment behind it, as a range of the module's text.
    pub comment: Option<(u32, u32)>,
}

/// Every `.loc` of a module. Entry 0 stands for "no location".
#[derive(Clone, Debug)]
pub struct Locations {
    /// Paths by file number.
    pub files: HashMap<u64, String>,
    pub entries: Vec<Entry>,
    /// Where the code of a position was inlined, as far as some `.loc` said so.
    pub callers: HashMap<Position, Position>,
}

/// Deeper chains are cut.
const MAX_INLINING: usize = 64;

impl Locations {
    /// An empty table.
    pub fn new() -> Self {
        let none = Entry { position: (0, 0, 0), inlined_at: None, comment: None };
        Locations { files: HashMap::new(), entries: vec![none], callers: HashMap::new() }
    }

    /// The source location of an entry; `source` is the module's text.
    pub fn resolve(&self, index: u32, source: &str) -> Option<SourceLocation> {
        let entry = self.entries.get(index as usize).filter(|_| index != 0)?;
        if let Some((start, end)) = entry.comment
            && let Some(location) = source.get(start as usize..end as usize).and_then(parse_comment)
        {
            return Some(location);
        }
        let mut chain = vec![entry.position];
        let mut next = entry.inlined_at;
        while let Some(position) = next.filter(|_| chain.len() < MAX_INLINING) {
            chain.push(position);
            next = self.callers.get(&position).copied();
        }
        chain.into_iter().rev().fold(None, |caller, (file, line, column)| {
            let file = self.files.get(&file).cloned().unwrap_or_else(|| format!("file {file}"));
            Some(SourceLocation { file, line, column, inlined_at: caller.map(Box::new) })
        })
    }
}

fn parse_comment(comment: &str) -> Option<SourceLocation> {
    let comment = comment.trim_start_matches('/').trim();
    let places: Vec<&str> = comment.trim_end_matches([']', ' ']).split(" @[ ").collect();
    let mut location = None;
    for place in places.into_iter().rev().take(MAX_INLINING) {
        let (rest, column) = place.trim().rsplit_once(':')?;
        let (file, line) = rest.rsplit_once(':')?;
        let (line, column) = (line.parse().ok()?, column.parse().ok()?);
        let inlined_at = location.map(Box::new);
        location = Some(SourceLocation { file: file.to_string(), line, column, inlined_at });
    }
    location
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_gives_the_whole_chain() {
        let place = parse_comment("// a/b.rs:12:22 @[ c.rs:33:16 @[ d.rs:115:17 ] ]").unwrap();
        assert_eq!(place.to_string(), "a/b.rs:12:22");
        let outer = place.inlined_at.unwrap().inlined_at.unwrap();
        assert_eq!(outer.to_string(), "d.rs:115:17");
        assert_eq!(parse_comment("// nothing"), None);
    }
}
