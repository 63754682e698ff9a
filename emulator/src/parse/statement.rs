//! Instructions as they stand in the text.

use super::cursor::Cursor;
use super::lex::{Kind, Token};
use super::operand::{self, Operand, Scalar};
use super::scope::Scopes;
use crate::error::{ParseError, ParseErrorKind};

/// An instruction has fewer operands in PTX.
const MAX_OPERANDS: usize = 16;
/// Results and arguments of a call.
const MAX_ARGUMENTS: usize = 255;

/// An instruction as it stands in the text.
#[derive(Debug)]
pub struct Statement<'a> {
    /// The opcode, split at its dots.
    parts: Vec<&'a str>,
    /// Operands in order.
    pub operands: Vec<Operand<'a>>,
    /// Number of the guard predicate, and whether it is negated.
    pub guard: Option<(u32, bool)>,
    /// What a `call` calls: its operands are the results, and behind them the arguments.
    pub call: Option<Call<'a>>,
}

/// What is called.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// A function's name, or a register with its address.
    pub target: Scalar<'a>,
    /// Results among the operands.
    pub results: usize,
}

impl<'a> Statement<'a> {
    /// A statement without operands.
    pub fn new(opcode: &'a str, guard: Option<(u32, bool)>) -> Self {
        let operands = Vec::with_capacity(4);
        Statement { parts: opcode.split('.').collect(), operands, guard, call: None }
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
        if self.name() == "call" {
            return self.read_call(cursor, scopes);
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

    /// `call {(result),} target {, (arguments)} {, prototype};` The last token before the `;`.
    fn read_call(&mut self, cursor: &mut Cursor<'a>, scopes: &Scopes<'a>) -> Result<Token, ParseError> {
        self.read_group(cursor, scopes)?;
        let results = self.operands.len();
        if results != 0 {
            cursor.expect(b',', ",")?;
        }
        let Operand::Scalar(target) = operand::read(cursor, scopes)? else {
            return Err(cursor.expected("a function"));
        };
        if cursor.accept(b',') {
            self.read_group(cursor, scopes)?;
            if cursor.peek().kind == Kind::Word {
                cursor.next(); // a prototype alone
            } else if cursor.accept(b',') {
                cursor.word("a prototype")?;
            }
        }
        let last = cursor.behind();
        cursor.expect(b';', ";")?;
        self.call = Some(Call { target, results });
        Ok(last)
    }

    /// `(a, b)`, if it is here.
    fn read_group(&mut self, cursor: &mut Cursor<'a>, scopes: &Scopes<'a>) -> Result<(), ParseError> {
        if !cursor.accept(b'(') || cursor.accept(b')') {
            return Ok(());
        }
        loop {
            if self.operands.len() == MAX_ARGUMENTS {
                return Err(cursor.error_here(ParseErrorKind::Limit("the number of arguments")));
            }
            self.operands.push(operand::read(cursor, scopes)?);
            if !cursor.accept(b',') {
                return cursor.expect(b')', ") or ,");
            }
        }
    }
}
