//! Operands of an instruction.

use super::cursor::Cursor;
use super::lex::Kind;
use super::number::{self, Number};
use super::scope::{Register, Scopes};
use crate::error::{ParseError, ParseErrorKind};

/// An operand without structure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalar<'a> {
    /// A declared register.
    Register(Register),
    /// An integer literal, two's complement.
    Integer(u64),
    /// The bits of an f32 literal.
    Single(u32),
    /// The bits of an f64 literal.
    Double(u64),
    /// A special register, variable, parameter or label.
    Name(&'a str),
    /// A variable plus a constant.
    NamePlus(&'a str, i64),
    /// `_`: the result is not wanted.
    Sink,
}

/// An operand.
#[derive(Clone, Debug, PartialEq)]
pub enum Operand<'a> {
    /// A value or a place for one.
    Scalar(Scalar<'a>),
    /// `!p`.
    Negated(Scalar<'a>),
    /// `-a`, of a register.
    Minus(Scalar<'a>),
    /// `p|q`.
    Pair(Scalar<'a>, Scalar<'a>),
    /// `{a, b}`.
    Vector(Vec<Scalar<'a>>),
    /// `[a+8]`.
    Address(Scalar<'a>, i64),
    /// `[map, {x, y}]`.
    Tensor(Scalar<'a>, Vec<Scalar<'a>>),
}

/// Vectors are never longer in PTX.
const MAX_VECTOR: usize = 256;

/// Reads one operand.
pub fn read<'a>(cursor: &mut Cursor<'a>, scopes: &Scopes<'a>) -> Result<Operand<'a>, ParseError> {
    if cursor.accept(b'!') {
        return Ok(Operand::Negated(scalar(cursor, scopes)?));
    }
    if cursor.is_mark(b'-') && cursor.peek_ahead(1).kind == Kind::Word {
        cursor.next();
        return Ok(Operand::Minus(scalar(cursor, scopes)?));
    }
    if cursor.is_mark(b'{') {
        return Ok(Operand::Vector(vector(cursor, scopes)?));
    }
    if cursor.accept(b'[') {
        return address(cursor, scopes);
    }
    let first = scalar(cursor, scopes)?;
    if cursor.accept(b'|') {
        return Ok(Operand::Pair(first, scalar(cursor, scopes)?));
    }
    if let Scalar::Name(name) = first
        && let Some(offset) = offset(cursor)?
    {
        return Ok(Operand::Scalar(Scalar::NamePlus(name, offset)));
    }
    Ok(Operand::Scalar(first))
}

fn vector<'a>(cursor: &mut Cursor<'a>, scopes: &Scopes<'a>) -> Result<Vec<Scalar<'a>>, ParseError> {
    cursor.expect(b'{', "{")?;
    let mut elements = Vec::with_capacity(4);
    while !cursor.accept(b'}') {
        if !elements.is_empty() {
            cursor.expect(b',', ", or }")?;
        }
        if elements.len() == MAX_VECTOR {
            return Err(cursor.error_here(ParseErrorKind::Limit("the length of a vector")));
        }
        elements.push(scalar(cursor, scopes)?);
    }
    Ok(elements)
}

fn address<'a>(cursor: &mut Cursor<'a>, scopes: &Scopes<'a>) -> Result<Operand<'a>, ParseError> {
    let base = scalar(cursor, scopes)?;
    if cursor.accept(b',') {
        let coordinates = vector(cursor, scopes)?;
        cursor.expect(b']', "]")?;
        return Ok(Operand::Tensor(base, coordinates));
    }
    let offset = offset(cursor)?.unwrap_or(0);
    cursor.expect(b']', "]")?;
    Ok(Operand::Address(base, offset))
}

/// `+8`, `-8` or `+-8`, if one is here.
fn offset(cursor: &mut Cursor<'_>) -> Result<Option<i64>, ParseError> {
    let plus = cursor.accept(b'+');
    let minus = cursor.accept(b'-');
    if !plus && !minus {
        return Ok(None);
    }
    let value = cursor.unsigned("an offset")? as i64;
    Ok(Some(if minus { value.wrapping_neg() } else { value }))
}

fn scalar<'a>(cursor: &mut Cursor<'a>, scopes: &Scopes<'a>) -> Result<Scalar<'a>, ParseError> {
    let negative = cursor.accept(b'-');
    let token = cursor.peek();
    let text = cursor.text(token);
    let value = match token.kind {
        Kind::Number => match number::parse(text) {
            Some(Number::Integer(value)) if negative => Scalar::Integer(value.wrapping_neg()),
            Some(Number::Integer(value)) => Scalar::Integer(value),
            Some(Number::Single(bits)) => Scalar::Single(bits ^ u32::from(negative) << 31),
            Some(Number::Double(bits)) => Scalar::Double(bits ^ u64::from(negative) << 63),
            None => return Err(cursor.expected("a number")),
        },
        Kind::Word if negative => return Err(cursor.expected("a number")),
        Kind::Word if text == "_" => Scalar::Sink,
        Kind::Word if text == "WARP_SZ" => Scalar::Integer(32),
        Kind::Word => scopes.register(text).map_or(Scalar::Name(text), Scalar::Register),
        _ => return Err(cursor.expected("an operand")),
    };
    cursor.next();
    Ok(value)
}
