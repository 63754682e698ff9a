//! Line tables: `.file`, `.loc`, and the inlining chain that LLVM writes in the comment behind a
//! `.loc`.
//!
//! ```text
//! .loc 2 12 22   // arch/thread.rs:12:22 @[ kernels/forward.rs:33:16 @[ kernels/forward.rs:115:17 ] ]
//! .loc 2 12 22, function_name $L__info_string0, inlined_at 1 33 16
//! ```

use super::cursor::Cursor;
use super::lex::Kind;
use crate::error::ParseError;
use crate::report::source::SourceLocation;
use std::collections::HashMap;

/// File number, line, column.
type Position = (u64, u32, u32);

#[derive(Clone, Debug)]
struct Entry {
    position: Position,
    inlined_at: Option<Position>,
    comment: Option<(u32, u32)>,
}

/// Every `.loc` of a module. Entry 0 stands for "no location".
#[derive(Clone, Debug)]
pub struct Locations {
    files: HashMap<u64, String>,
    entries: Vec<Entry>,
    /// Where the code of a position was inlined, as far as some `.loc` said so.
    callers: HashMap<Position, Position>,
}

/// Deeper chains are cut.
const MAX_INLINING: usize = 64;

impl Locations {
    pub fn new() -> Self {
        let none = Entry { position: (0, 0, 0), inlined_at: None, comment: None };
        Locations { files: HashMap::new(), entries: vec![none], callers: HashMap::new() }
    }

    /// Reads a `.file` directive, the cursor behind its name.
    pub fn read_file(&mut self, cursor: &mut Cursor<'_>) -> Result<(), ParseError> {
        let number = cursor.unsigned("a file number")?;
        if cursor.peek().kind != Kind::Text {
            return Err(cursor.expected("a file name"));
        }
        let token = cursor.next();
        self.files.insert(number, cursor.text(token).trim_matches('"').to_string());
        if cursor.peek().line == token.line {
            cursor.skip_line();
        }
        Ok(())
    }

    /// Reads a `.loc` directive, the cursor behind its name; the index of the new entry.
    pub fn read_location(&mut self, cursor: &mut Cursor<'_>) -> Result<u32, ParseError> {
        let line = cursor.peek().line;
        let position = read_position(cursor)?;
        let mut entry = Entry { position, inlined_at: None, comment: None };
        while cursor.peek().line == line {
            let token = cursor.next();
            match token.kind {
                Kind::End => break,
                Kind::LocationComment => entry.comment = Some((token.start, token.end)),
                Kind::Word if cursor.text(token) == "inlined_at" => {
                    let caller = read_position(cursor)?;
                    self.callers.insert(position, caller);
                    entry.inlined_at = Some(caller);
                }
                _ => {}
            }
        }
        self.entries.push(entry);
        Ok(self.entries.len() as u32 - 1)
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

fn read_position(cursor: &mut Cursor<'_>) -> Result<Position, ParseError> {
    let file = cursor.unsigned("a file number")?;
    let line = cursor.unsigned("a line number")?;
    let column = cursor.unsigned("a column number")?;
    Ok((file, line as u32, column as u32))
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

    #[test]
    fn inlined_at_is_followed_through_the_tables() {
        let source = ".file 1 \"x.rs\"\n.loc 1 9 9\n.loc 1 5 6, function_name $s, inlined_at 1 9 9\n\
                      .loc 1 1 2, function_name $s, inlined_at 1 5 6\n";
        let mut cursor = Cursor::new(source);
        let mut locations = Locations::new();
        let mut last = 0;
        while cursor.peek().kind != Kind::End {
            match cursor.word("a directive").unwrap() {
                ".file" => locations.read_file(&mut cursor).unwrap(),
                _ => last = locations.read_location(&mut cursor).unwrap(),
            }
        }
        let place = locations.resolve(last, source).unwrap();
        assert_eq!(place.to_string(), "x.rs:1:2");
        assert_eq!(place.inlined_at.as_ref().unwrap().line, 5);
        assert_eq!(place.inlined_at.unwrap().inlined_at.unwrap().line, 9);
        assert_eq!(locations.resolve(0, source), None);
    }
}
