//! Matrix loads, stores and multiply-accumulates.

use super::{Builder, Result, Statement, UNSUPPORTED, with_rows};
use crate::error::ParseErrorKind;
use crate::isa::{FLAG_TRANSPOSE, FLAG_WIDE_ADDRESS, Instruction, MatrixOp, Op};

/// Decodes the family.
pub fn decode<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    match s.name() {
        "mma" => multiply(s, b),
        "movmatrix" => move_transposed(s, b),
        _ => transfer(s, b),
    }
}

/// The rows of a vector operand of known length.
pub fn rows<'a>(
    s: &Statement<'a>,
    b: &mut Builder<'a, '_>,
    index: usize,
    length: usize,
    destination: bool,
) -> Result<u32> {
    let elements = b.elements(s, index)?;
    if elements.len() != length {
        return Err(ParseErrorKind::Operand("a vector of the wrong length"));
    }
    let mut rows = Vec::with_capacity(length);
    for element in elements {
        rows.push(match destination {
            true => b.destination_scalar(element, 32)?,
            false => b.source_scalar(element, 32)?,
        });
    }
    Ok(b.list(&rows))
}

/// `mma.sync.aligned.shape.row.col.f32.a.b.f32 d, a, b, c;`
fn multiply<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    if s.last() == "s32" {
        return multiply_bytes(s, b);
    }
    let ["sync", "aligned", shape, "row", "col", "f32", a, bt, "f32"] = s.modifiers() else {
        return Err(UNSUPPORTED);
    };
    // Rows of A and B per lane.
    let (op, a_rows, b_rows) = match (*shape, *a, *bt) {
        ("m16n8k16", "bf16", "bf16") => (MatrixOp::M16N8K16Bf16, 4, 2),
        ("m16n8k16", "f16", "f16") => (MatrixOp::M16N8K16F16, 4, 2),
        ("m16n8k8", "bf16", "bf16") => (MatrixOp::M16N8K8Bf16, 2, 1),
        ("m16n8k8", "f16", "f16") => (MatrixOp::M16N8K8F16, 2, 1),
        ("m16n8k8", "tf32", "tf32") => (MatrixOp::M16N8K8Tf32, 4, 2),
        ("m16n8k4", "tf32", "tf32") => (MatrixOp::M16N8K4Tf32, 2, 1),
        _ => return Err(UNSUPPORTED),
    };
    s.expect_operands(4, 4)?;
    let d = rows(s, b, 0, 4, true)?;
    let lists = [rows(s, b, 1, a_rows, false)?, rows(s, b, 2, b_rows, false)?, rows(s, b, 3, 4, false)?];
    Ok(with_rows(Op::Matrix(op), d, &lists))
}

/// `mma.sync.aligned.shape.row.col{.satfinite}.s32.a.b.s32 d, a, b, c;`
fn multiply_bytes<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    let ["sync", "aligned", shape, "row", "col", rest @ ..] = s.modifiers() else {
        return Err(UNSUPPORTED);
    };
    let (is_clamped, rest) = match rest {
        ["satfinite", rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    let ["s32", left, right, "s32"] = rest else { return Err(UNSUPPORTED) };
    let (op, a_rows, b_rows, d_rows) = match *shape {
        "m16n8k32" => (MatrixOp::M16N8K32Bytes, 4, 2, 4),
        "m16n8k16" => (MatrixOp::M16N8K16Bytes, 2, 1, 4),
        "m8n8k16" => (MatrixOp::M8N8K16Bytes, 1, 1, 2),
        _ => return Err(UNSUPPORTED),
    };
    let is_signed = |ty: &str| match ty {
        "s8" => Ok(1),
        "u8" => Ok(0),
        _ => Err(UNSUPPORTED),
    };
    let immediate = is_signed(left)? | is_signed(right)? << 1 | i32::from(is_clamped) << 2;
    s.expect_operands(4, 4)?;
    let d = rows(s, b, 0, d_rows, true)?;
    let (x, y) = (rows(s, b, 1, a_rows, false)?, rows(s, b, 2, b_rows, false)?);
    let lists = [x, y, rows(s, b, 3, d_rows, false)?];
    Ok(Instruction { immediate, ..with_rows(Op::Matrix(op), d, &lists) })
}

/// `movmatrix.sync.aligned.m8n8.trans.b16 d, a;`
fn move_transposed<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    let ["sync", "aligned", "m8n8", "trans", "b16"] = s.modifiers() else {
        return Err(UNSUPPORTED);
    };
    s.expect_operands(2, 2)?;
    let d = b.destination(s, 0, 32)?;
    let a = b.source(s, 1, 32)?;
    Ok(with_rows(Op::Matrix(MatrixOp::MoveTransposed), d, &[a]))
}

/// `ldmatrix.sync.aligned.m8n8.xN{.trans}.shared.b16 d, [a];` and `stmatrix`. The three in the middle may
/// stand in any order.
fn transfer<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    let ["sync", "aligned", middle @ .., "shared" | "shared::cta", "b16"] = s.modifiers() else {
        return Err(UNSUPPORTED);
    };
    let (mut shapes, mut count, mut transpose) = (0, None, 0);
    for modifier in middle {
        match *modifier {
            "m8n8" => shapes += 1,
            "x1" if count.is_none() => count = Some(1),
            "x2" if count.is_none() => count = Some(2),
            "x4" if count.is_none() => count = Some(4),
            "trans" if transpose == 0 => transpose = FLAG_TRANSPOSE,
            _ => return Err(UNSUPPORTED),
        }
    }
    let (1, Some(count)) = (shapes, count) else { return Err(UNSUPPORTED) };
    s.expect_operands(2, 2)?;
    let load = s.name() == "ldmatrix";
    let (list, address) = if load { (0, 1) } else { (1, 0) };
    let op = if load { MatrixOp::LoadMatrix } else { MatrixOp::StoreMatrix };
    let d = rows(s, b, list, count, load)?;
    let (row, offset, wide) = b.address(s, address)?;
    let flags = transpose | if wide { FLAG_WIDE_ADDRESS } else { 0 };
    let instruction = with_rows(Op::Matrix(op), d, &[row]);
    Ok(Instruction { flags, count: count as u8, immediate: offset, ..instruction })
}
