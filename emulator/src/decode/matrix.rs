//! Matrix loads, stores and multiply-accumulates.

use super::{Builder, Result, Statement, UNSUPPORTED, with_rows};
use crate::error::ParseErrorKind;
use crate::isa::{
    FLAG_TRANSPOSE, FLAG_WIDE_ADDRESS, Fragments, Instruction, MatrixOp, MatrixShape, MatrixType, Op,
};

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
    rows_of(s, b, index, length, 32, destination)
}

/// The same of registers of so many bits.
fn rows_of<'a>(
    s: &Statement<'a>,
    b: &mut Builder<'a, '_>,
    index: usize,
    length: usize,
    bits: u32,
    destination: bool,
) -> Result<u32> {
    let elements = b.elements(s, index)?;
    if elements.len() != length {
        return Err(ParseErrorKind::Operand("a vector of the wrong length"));
    }
    let mut rows = Vec::with_capacity(length);
    for element in elements {
        rows.push(match destination {
            true => b.destination_scalar(element, bits)?,
            false => b.source_scalar(element, bits)?,
        });
    }
    Ok(b.list(&rows))
}

/// What `mma.sync.aligned.shape.row.col{.satfinite}.d.a.b.c{.op.popc}` multiplies.
fn shape(words: &[&str]) -> Option<MatrixShape> {
    let ["sync", "aligned", shape, "row", "col", rest @ ..] = words else { return None };
    let (clamps, rest) = match rest {
        ["satfinite", rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    let (types, xors, combines) = match rest {
        [d, a, b, c] => ([*d, *a, *b, *c], false, false),
        [d, a, b, c, op @ ("xor" | "and"), "popc"] => ([*d, *a, *b, *c], *op == "xor", true),
        _ => return None,
    };
    let [d, a, b, c] = types.map(MatrixType::of_name);
    let (d, a, b) = (d?, a?, b?);
    let (rows, k) = match shape.split_once("n8k")? {
        ("m8", k) => (8, k.parse().ok()?),
        ("m16", k) => (16, k.parse().ok()?),
        _ => return None,
    };
    use MatrixType::{B1, Bf16, E4m3, E5m2, F16, F32, F64, S4, S8, S32, Tf32, U4, U8};
    let is_there = match (a, b, d) {
        (Bf16, Bf16, F32) | (F16, F16, F32 | F16) => rows == 16 && matches!(k, 8 | 16),
        (Tf32, Tf32, F32) => rows == 16 && matches!(k, 4 | 8),
        (F64, F64, F64) => matches!((rows, k), (8, 4) | (16, 4 | 8 | 16)),
        (S8 | U8, S8 | U8, S32) => matches!((rows, k), (8, 16) | (16, 16 | 32)),
        (S4 | U4, S4 | U4, S32) => matches!((rows, k), (8, 32) | (16, 32 | 64)),
        (B1, B1, S32) => matches!((rows, k), (8, 128) | (16, 128 | 256)),
        (E4m3 | E5m2, E4m3 | E5m2, F32 | F16) => rows == 16 && matches!(k, 16 | 32),
        _ => false,
    };
    let clamps_well = !clamps || matches!(a, S8 | U8 | S4 | U4);
    let is_there = is_there && Some(d) == c && combines == (a == B1) && clamps_well;
    is_there.then_some(MatrixShape { rows, k, a, b, d, clamps, xors })
}

/// `mma.sync.aligned…  d, a, b, c;`
fn multiply<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    let shape = shape(s.modifiers()).ok_or(UNSUPPORTED)?;
    let MatrixShape { rows: m, k, a: ty, b: bt, d: result, clamps, .. } = shape;
    let mut immediate = 0;
    let op = match (m, k, ty, result) {
        (16, 16, MatrixType::Bf16, MatrixType::F32) => MatrixOp::M16N8K16Bf16,
        (16, 16, MatrixType::F16, MatrixType::F32) => MatrixOp::M16N8K16F16,
        (16, 8, MatrixType::Bf16, MatrixType::F32) => MatrixOp::M16N8K8Bf16,
        (16, 8, MatrixType::F16, MatrixType::F32) => MatrixOp::M16N8K8F16,
        (16, 8, MatrixType::Tf32, _) => MatrixOp::M16N8K8Tf32,
        (16, 4, MatrixType::Tf32, _) => MatrixOp::M16N8K4Tf32,
        (_, _, MatrixType::S8 | MatrixType::U8, _) => {
            let is_signed = |ty: MatrixType| i32::from(ty == MatrixType::S8);
            immediate = is_signed(ty) | is_signed(bt) << 1 | i32::from(clamps) << 2;
            match (m, k) {
                (16, 32) => MatrixOp::M16N8K32Bytes,
                (16, _) => MatrixOp::M16N8K16Bytes,
                _ => MatrixOp::M8N8K16Bytes,
            }
        }
        _ => {
            immediate = shape.encode();
            MatrixOp::Multiply
        }
    };
    s.expect_operands(4, 4)?;
    let Fragments { a: of_a, b: of_b, d: of_d, value_rows, .. } = shape.fragments();
    let bits = 32 * value_rows;
    let d = rows_of(s, b, 0, of_d, bits, true)?;
    let (x, y) = (rows_of(s, b, 1, of_a, bits, false)?, rows_of(s, b, 2, of_b, bits, false)?);
    let lists = [x, y, rows_of(s, b, 3, of_d, bits, false)?];
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
