//! Video instructions. Parts of registers are chosen by a permutation of bytes that comes first.

use super::select::relation;
use super::{Builder, Result, Statement, UNSUPPORTED, with_rows};
use crate::error::ParseErrorKind;
use crate::isa::{Instruction, IntegerOp, Op, RareOp, VideoKind, VideoOp, VideoProduct, VideoRest};
use crate::parse::operand::{Operand, Scalar};
use crate::parse::scope::Class;

/// An operand without what chooses a part of it, that, and whether a minus stands before it.
struct Choice<'a> {
    scalar: Scalar<'a>,
    part: Option<&'a str>,
    negated: bool,
}

/// `%r1`, `%r1.b2`, `-%r1.h0`.
fn choice<'a>(s: &Statement<'a>, b: &Builder<'a, '_>, index: usize) -> Result<Choice<'a>> {
    let (scalar, negated) = match s.operands.get(index) {
        Some(&Operand::Scalar(scalar)) => (scalar, false),
        Some(&Operand::Minus(scalar)) => (scalar, true),
        _ => return Err(ParseErrorKind::Operand("operand of the wrong kind")),
    };
    if let Scalar::Name(name) = scalar
        && let Some((register, part)) = name.rsplit_once('.')
        && let Some(register) = b.scopes.register(register)
    {
        return Ok(Choice { scalar: Scalar::Register(register), part: Some(part), negated });
    }
    Ok(Choice { scalar, part: None, negated })
}

/// The digits behind a letter: as many as `count`, each below `limit`.
fn digits(part: &str, letter: char, count: usize, limit: u32) -> Result<Vec<u32>> {
    let wrong = ParseErrorKind::Operand("a part that a register does not have");
    let digits: Option<Vec<u32>> = part
        .strip_prefix(letter)
        .and_then(|text| text.chars().map(|digit| digit.to_digit(limit)).collect());
    match digits {
        Some(digits) if digits.len() == count => Ok(digits),
        _ => Err(wrong),
    }
}

/// The first byte of a single part, and how many it has.
fn single(part: &str) -> Result<(u32, u32)> {
    match digits(part, 'b', 1, 4) {
        Ok(byte) => Ok((byte[0], 1)),
        Err(_) => Ok((2 * digits(part, 'h', 1, 2)?[0], 2)),
    }
}

/// The bytes of a destination: of a single result its part, of several those that a mask has.
fn bytes_of(part: Option<&str>, lanes: u32) -> Result<u32> {
    let Some(part) = part else { return Ok(15) };
    if lanes == 1 {
        let (first, count) = single(part)?;
        return Ok(((1 << count) - 1) << first);
    }
    let (letter, of_lane) = if lanes == 2 { ('h', 3) } else { ('b', 1) };
    let lanes_of = digits(part, letter, part.len().saturating_sub(1), lanes)?;
    if lanes_of.is_empty() || lanes_of.windows(2).any(|pair| pair[0] <= pair[1]) {
        return Err(ParseErrorKind::Operand("a part that a register does not have"));
    }
    Ok(lanes_of.iter().fold(0, |bytes, lane| bytes | of_lane << (lane * 4 / lanes)))
}

/// A row with bytes of two others, by a selector as that of `prmt`.
fn permuted(b: &mut Builder<'_, '_>, [x, y]: [u32; 2], selector: u32) -> Result<u32> {
    let row = b.register(Class::Bits32)?.index;
    let selector = b.constant(selector.into(), false)?;
    b.emit_guarded(with_rows(Op::Integer32(IntegerOp::Permute), row, &[x, y, selector]));
    Ok(row)
}

/// The row of a single number, extended to 32 bits.
fn extended<'a>(b: &mut Builder<'a, '_>, from: &Choice<'a>, signed: bool) -> Result<u32> {
    let row = b.source_scalar(from.scalar, 32)?;
    let Some(part) = from.part else { return Ok(row) };
    let (first, count) = single(part)?;
    // Beyond the part the sign of its last byte, or a byte of the second operand, which is 0.
    let beyond = if signed { 8 | (first + count - 1) } else { 4 };
    let byte = |place: u32| if place < count { first + place } else { beyond };
    let selector = (0..4).fold(0, |selector, place| selector | byte(place) << (4 * place));
    let zero = b.constant(0, false)?;
    permuted(b, [row, zero], selector)
}

/// The row of several numbers, any of those of both sources.
fn gathered(
    b: &mut Builder<'_, '_>,
    [x, y]: [u32; 2],
    part: Option<&str>,
    lanes: u32,
) -> Result<Option<u32>> {
    let Some(part) = part else { return Ok(None) };
    let letter = if lanes == 2 { 'h' } else { 'b' };
    let digits = digits(part, letter, lanes as usize, 2 * lanes)?;
    let bytes = digits.iter().flat_map(|&lane| match lanes {
        2 => vec![2 * lane + 1, 2 * lane],
        _ => vec![lane],
    });
    let selector = bytes.fold(0, |selector, byte| selector << 4 | byte);
    permuted(b, [x, y], selector).map(Some)
}

fn signed(name: &str) -> Result<bool> {
    match name {
        "s32" => Ok(true),
        "u32" => Ok(false),
        _ => Err(UNSUPPORTED),
    }
}

/// `vadd.d.a.b{.sat}{.add|.min|.max} d{.part}, a{.part}, b{.part}{, c};`, `vadd2` and `vadd4` with masks and
/// choices, and the like.
pub fn decode<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    let (name, lanes) = match s.name().strip_suffix(['2', '4']) {
        Some(name) => (name, u32::from(s.name().as_bytes()[s.name().len() - 1] - b'0')),
        None => (s.name(), 1),
    };
    let (signs, rest) = match (name, s.modifiers()) {
        ("vset", [a, b, rest @ ..]) => ([false, signed(a)?, signed(b)?], rest),
        (_, [d, a, b, rest @ ..]) => ([signed(d)?, signed(a)?, signed(b)?], rest),
        _ => return Err(UNSUPPORTED),
    };
    let (saturates, rest) = match rest {
        ["sat", rest @ ..] if name != "vset" => (true, rest),
        rest => (false, rest),
    };
    let (kind, rest) = match (name, rest) {
        ("vadd", rest) => (VideoKind::Add, rest),
        ("vsub", rest) => (VideoKind::Sub, rest),
        ("vabsdiff", rest) => (VideoKind::AbsoluteDifference, rest),
        ("vmin", rest) => (VideoKind::Min, rest),
        ("vmax", rest) => (VideoKind::Max, rest),
        ("vavrg", rest) => (VideoKind::Average, rest),
        ("vset", [_, rest @ ..]) => (VideoKind::Set, rest),
        // Numbers of bits are not signed.
        ("vshl" | "vshr", _) if signs[2] => return Err(UNSUPPORTED),
        ("vshl", ["clamp", rest @ ..]) => (VideoKind::ShiftLeftClamp, rest),
        ("vshl", ["wrap", rest @ ..]) => (VideoKind::ShiftLeftWrap, rest),
        ("vshr", ["clamp", rest @ ..]) => (VideoKind::ShiftRightClamp, rest),
        ("vshr", ["wrap", rest @ ..]) => (VideoKind::ShiftRightWrap, rest),
        _ => return Err(UNSUPPORTED),
    };
    let relation = match kind {
        VideoKind::Set => match s.modifiers()[2] {
            name @ ("eq" | "ne" | "lt" | "le" | "gt" | "ge") => relation(name, false)? as u8,
            _ => return Err(UNSUPPORTED),
        },
        _ => 0,
    };
    let rest = match rest {
        [] => VideoRest::Merge,
        ["add"] if lanes == 1 || !saturates => VideoRest::Add,
        ["min"] if lanes == 1 => VideoRest::Min,
        ["max"] if lanes == 1 => VideoRest::Max,
        _ => return Err(UNSUPPORTED),
    };
    let to = choice(s, b, 0)?;
    let bytes = bytes_of(to.part, lanes)?;
    // A single result is merged, or goes into an operation with `c`.
    if lanes == 1 && to.part.is_some() && rest != VideoRest::Merge {
        return Err(UNSUPPORTED);
    }
    let has_c = lanes != 1 || rest != VideoRest::Merge || to.part.is_some();
    s.expect_operands(3 + usize::from(has_c), 3 + usize::from(has_c))?;
    let d = b.destination_scalar(to.scalar, 32)?;
    let from = [choice(s, b, 1)?, choice(s, b, 2)?];
    if to.negated || from.iter().any(|choice| choice.negated) {
        return Err(UNSUPPORTED);
    }
    let [x, y] = if lanes == 1 {
        [extended(b, &from[0], signs[1])?, extended(b, &from[1], signs[2])?]
    } else {
        let rows = [b.source_scalar(from[0].scalar, 32)?, b.source_scalar(from[1].scalar, 32)?];
        let [first, second] =
            [gathered(b, rows, from[0].part, lanes)?, gathered(b, rows, from[1].part, lanes)?];
        [first.unwrap_or(rows[0]), second.unwrap_or(rows[1])]
    };
    let c = if has_c { b.source(s, 3, 32)? } else { x };
    let op = VideoOp { kind, relation, lanes, signed: signs, saturates, rest, bytes };
    Ok(Instruction { immediate: op.encode(), ..with_rows(Op::Rare(RareOp::Video), d, &[x, y, c]) })
}

/// `vmad.d.a.b{.po}{.sat}{.shr7|.shr15} d, {-}a{.part}, {-}b{.part}, {-}c;`
pub fn multiply_add<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    let [result, x, y, rest @ ..] = s.modifiers() else { return Err(UNSUPPORTED) };
    signed(result)?; // which changes nothing
    let signs = [signed(x)?, signed(y)?];
    let (plus_one, rest) = if let ["po", rest @ ..] = rest { (true, rest) } else { (false, rest) };
    let (saturates, rest) = if let ["sat", rest @ ..] = rest { (true, rest) } else { (false, rest) };
    let scale = match rest {
        [] => 0,
        ["shr7"] => 7,
        ["shr15"] => 15,
        _ => return Err(UNSUPPORTED),
    };
    s.expect_operands(4, 4)?;
    let d = b.destination(s, 0, 32)?;
    let [x, y, c] = [choice(s, b, 1)?, choice(s, b, 2)?, choice(s, b, 3)?];
    let negated = [x.negated != y.negated, c.negated];
    // Of the product and `c`, one may be negated, and none where 1 is added.
    let too_many = negated == [true, true] || plus_one && (x.negated || y.negated || c.negated);
    if c.part.is_some() || too_many {
        return Err(UNSUPPORTED);
    }
    let sources =
        [extended(b, &x, signs[0])?, extended(b, &y, signs[1])?, b.source_scalar(c.scalar, 32)?];
    let op = VideoProduct { signed: signs, negated, plus_one, saturates, scale };
    let rows = with_rows(Op::Rare(RareOp::VideoMultiplyAdd), d, &sources);
    Ok(Instruction { immediate: op.encode(), ..rows })
}
