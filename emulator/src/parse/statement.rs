//! Instructions as they stand in the text.

use super::cursor::Cursor;
use super::lex::{Kind, Token};
use super::operand::{self, Operand};
use super::scope::Scopes;
use crate::error::{ParseError, ParseErrorKind};

/// An instruction has fewer operands in PTX.
const MAX_OPERANDS: usize = 16;

/// An instruction as it stands in the text.
#[derive(Debug)]
pub struct Statement<'a> {
    /// The opcode, split at its dots.
    parts: Vec<&'a str>,
    /// Operands in order.
    pub operands: Vec<Operand<'a>>,
    /// Number of the guard predicate, and whether it is negated.
    pub guard: Option<(u32, bool)>,
}

impl<'a> Statement<'a> {
    /// A statement without operands.
    pub fn new(opcode: &'a str, guard: Option<(u32, bool)>) -> Self {
        Statement { parts: opcode.split('.').collect(), operands: Vec::with_capacity(4), guard }
    }

    /// The opcode without its modifiers.
    pub fn name(&self) -> &'a str {
        self.parts[0]
    }

    /// Everything behind the first dot.
    pub fn modifiers(&self) -> &[&'a str] {
        &self.parts[1..]
    }

    /// The last modifier: in most families, the type.
    pub fn last(&self) -> &'a str {
        self.parts[self.parts.len() - 1]
    }

    /// The modifiers between the opcode and the type.
    pub fn middle(&self) -> &[&'a str] {
        &self.parts[1..self.parts.len().max(2) - 1]
    }

    /// Checks the number of operands.
    pub fn expect_operands(&self, least: usize, most: usize) -> Result<(), ParseErrorKind> {
        if (least..=most).contains(&self.operands.len()) {
            Ok(())
        } else {
            Err(ParseErrorKind::Operand("wrong number of operands"))
        }
    }

    /// Reads operands up to the `;`; the last token before it.
    pub fn read_operands(
        &mut self,
        cursor: &mut Cursor<'a>,
        scopes: &Scopes<'a>,
    ) -> Result<Token, ParseError> {
        // Calls have a syntax of their own: `call (result), f, (arguments);`
        if self.name() == "call" {
            let mut last = cursor.peek();
            while !matches!(cursor.peek().kind, Kind::Mark(b';' | b'}') | Kind::End) {
                last = cursor.next();
            }
            cursor.expect(b';', ";")?;
            return Ok(last);
        }
        let mut last = cursor.behind();
        if cursor.accept(b';') {
            return Ok(last);
        }
        loop {
            if self.operands.len() == MAX_OPERANDS {
                return Err(cursor.error_here(ParseErrorKind::Limit("the number of operands")));
            }
            self.operands.push(operand::read(cursor, scopes)?);
            last = cursor.behind();
            if !cursor.accept(b',') {
                cursor.expect(b';', "; or ,")?;
                return Ok(last);
            }
        }
    }
}
