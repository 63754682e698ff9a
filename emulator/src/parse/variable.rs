//! Declarations of variables and parameters.

use super::cursor::Cursor;
use super::lex::Kind;
use super::number::{self, Number};
use crate::error::{ParseError, ParseErrorKind};

/// A declared variable or parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct Declaration<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its alignment in bytes, a power of two.
    pub align: u32,
    /// Bytes of an element.
    pub element: u32,
    /// Elements; `None` for `name[]`.
    pub count: Option<u32>,
    /// Initial values of the first elements.
    pub values: Vec<Value<'a>>,
}

/// An initial value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// The bits of an element.
    Bits(u64),
    /// The address of a variable plus a constant.
    Address(&'a str, i64),
}

/// Larger variables are refused: the emulator would have to allocate them.
const MAX_BYTES: u64 = 1 << 30;
const MAX_ALIGN: u64 = 1 << 16;

impl Declaration<'_> {
    /// Bytes of the variable; 0 for `name[]`.
    pub fn bytes(&self) -> u32 {
        self.element * self.count.unwrap_or(0)
    }
}

fn element_bytes(name: &str) -> Option<u32> {
    Some(match name {
        ".b8" | ".u8" | ".s8" => 1,
        ".b16" | ".u16" | ".s16" | ".f16" | ".bf16" => 2,
        ".b32" | ".u32" | ".s32" | ".f32" | ".f16x2" | ".bf16x2" => 4,
        ".b64" | ".u64" | ".s64" | ".f64" => 8,
        ".b128" => 16,
        _ => return None,
    })
}

/// Reads a declaration, the cursor behind the state space.
pub fn read<'a>(cursor: &mut Cursor<'a>) -> Result<Declaration<'a>, ParseError> {
    let (mut align, mut element, mut vector) = (None, None, 1);
    let name = loop {
        match cursor.word("a type or a name")? {
            ".align" => align = Some(read_align(cursor)?),
            ".ptr" => read_pointer_attributes(cursor)?,
            ".v2" => vector = 2,
            ".v4" => vector = 4,
            word if word.starts_with('.') => {
                let bytes = element_bytes(word).ok_or_else(|| cursor.expected("a type"))?;
                element = Some(bytes);
            }
            name => break name,
        }
    };
    let element = element.ok_or_else(|| cursor.expected("a type"))?;
    let count = read_dimensions(cursor)?.map(|count| count * vector);
    if count.unwrap_or(0) * u64::from(element) > MAX_BYTES {
        return Err(cursor.error_here(ParseErrorKind::Limit("the size of a variable")));
    }
    let mut values = Vec::new();
    if cursor.accept(b'=') {
        read_values(cursor, &mut values)?;
    }
    let align = align.unwrap_or(element * vector as u32);
    Ok(Declaration { name, align, element, count: count.map(|count| count as u32), values })
}

fn read_align(cursor: &mut Cursor<'_>) -> Result<u32, ParseError> {
    let align = cursor.unsigned("an alignment")?;
    if align.is_power_of_two() && align <= MAX_ALIGN {
        Ok(align as u32)
    } else {
        Err(cursor.error_here(ParseErrorKind::Limit("the alignment of a variable")))
    }
}

/// `.ptr .global .align 8`: what the parameter points to, which the emulator need not know.
fn read_pointer_attributes(cursor: &mut Cursor<'_>) -> Result<(), ParseError> {
    if matches!(cursor.text(cursor.peek()), ".global" | ".shared" | ".local" | ".const") {
        cursor.next();
    }
    if cursor.text(cursor.peek()) == ".align" {
        cursor.next();
        read_align(cursor)?;
    }
    Ok(())
}

/// `[4][8]` or `[]`; without brackets there is one element.
fn read_dimensions(cursor: &mut Cursor<'_>) -> Result<Option<u64>, ParseError> {
    let mut count = Some(1u64);
    while cursor.accept(b'[') {
        if cursor.accept(b']') {
            count = None;
            continue;
        }
        let length = cursor.unsigned("a length")?;
        count = count.map(|count| count.saturating_mul(length).min(2 * MAX_BYTES));
        cursor.expect(b']', "]")?;
    }
    Ok(count)
}

fn read_values<'a>(cursor: &mut Cursor<'a>, values: &mut Vec<Value<'a>>) -> Result<(), ParseError> {
    let mut depth = 0usize;
    loop {
        if cursor.accept(b'{') {
            depth += 1;
        } else if cursor.accept(b'}') {
            depth = depth.checked_sub(1).ok_or_else(|| cursor.expected("a value"))?;
        } else if !cursor.accept(b',') {
            values.push(read_value(cursor)?);
        }
        if depth == 0 {
            return Ok(());
        }
    }
}

fn read_value<'a>(cursor: &mut Cursor<'a>) -> Result<Value<'a>, ParseError> {
    let negative = cursor.accept(b'-');
    let token = cursor.peek();
    match token.kind {
        Kind::Number => {
            let value = match number::parse(cursor.text(token)) {
                Some(Number::Integer(value)) if negative => value.wrapping_neg(),
                Some(Number::Integer(value)) => value,
                Some(Number::Single(bits)) => u64::from(bits) ^ u64::from(negative) << 31,
                Some(Number::Double(bits)) => bits ^ u64::from(negative) << 63,
                None => return Err(cursor.expected("a number")),
            };
            cursor.next();
            Ok(Value::Bits(value))
        }
        Kind::Word => {
            let mut name = cursor.word("a variable")?;
            if name == "generic" && cursor.accept(b'(') {
                name = cursor.word("a variable")?;
                cursor.expect(b')', ")")?;
            }
            let plus = cursor.accept(b'+');
            let minus = !plus && cursor.accept(b'-');
            let offset = if plus || minus { cursor.unsigned("an offset")? as i64 } else { 0 };
            Ok(Value::Address(name, if minus { offset.wrapping_neg() } else { offset }))
        }
        _ => Err(cursor.expected("a value")),
    }
}
