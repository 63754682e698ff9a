//! Reads line tables: `.file`, `.loc`, and the place of the comment in which LLVM writes the inlining chain.

use super::cursor::Cursor;
use super::lex::Kind;
use crate::error::ParseError;
use crate::module::locations::{Entry, Locations, Position};

impl Locations {
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
}

fn read_position(cursor: &mut Cursor<'_>) -> Result<Position, ParseError> {
    let file = cursor.unsigned("a file number")?;
    let line = cursor.unsigned("a line number")?;
    let column = cursor.unsigned("a column number")?;
    Ok((file, line as u32, column as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

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
