//! Where the source stands that was compiled to PTX.

use serde::Serialize;
use std::fmt;

/// A place in the source that was compiled to PTX.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct SourceLocation {
    /// Path as the compiler wrote it.
    pub file: String,
    /// Line, from 1.
    pub line: u32,
    /// Column, from 1; 0 if unknown.
    pub column: u32,
    /// The place of the call that this code was inlined into.
    pub inlined_at: Option<Box<SourceLocation>>,
}

impl SourceLocation {
    /// A line for a place and one for each call that it was inlined into.
    pub(crate) fn write_chain(mut place: Option<&Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut word = "at";
        while let Some(found) = place {
            write!(f, "\n  {word} {found}")?;
            place = found.inlined_at.as_deref();
            word = "inlined at";
        }
        Ok(())
    }
}

impl fmt::Display for SourceLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}
