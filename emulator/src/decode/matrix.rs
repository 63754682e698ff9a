//! Matrix loads, stores and multiply-accumulates.

use super::{Builder, Result, Statement, UNSUPPORTED, with_rows};
use crate::error::ParseErrorKind;
use crate::isa::{
    FLAG_TRANSPOSE, FLAG_VARIANT, FLAG_WIDE_ADDRESS, Fragments, Instruction, MATRIX_GENERIC, MatrixOp,
    MatrixShape, MatrixType, Op, Rounding, VoltaShape,
};

/// Decodes the family.
pub fn decode<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    match s.name() {
        "mma" => match s.modifiers() {
            [first, ..] if *first == "sp" || first.starts_with("sp::") => multiply_sparse(s, b),
            [_, _, "m8n8k4", ..] if s.modifiers().contains(&"f16") => multiply_volta(s, b),
            _ => multiply(s, b),
        },
        "movmatrix" => move_transposed(s, b),
        _ => transfer(s, b),
    }
}

/// A list of the rows of a vector operand of so many registers of 32 bits.
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
    let rows = registers(s, b, index, length, bits, destination)?;
    Ok(b.list(&rows))
}

/// The rows of a vector operand of so many registers of so many bits.
pub fn registers<'a>(
    s: &Statement<'a>,
    b: &mut Builder<'a, '_>,
    index: usize,
    length: usize,
    bits: u32,
    destination: bool,
) -> Result<Vec<u32>> {
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
    Ok(rows)
}

/// The rounding of a modifier.
pub fn rounding(word: &str) -> Option<Rounding> {
    Some(match word {
        "rn" => Rounding::NearestEven,
        "rz" => Rounding::Zero,
        "rm" => Rounding::Down,
        "rp" => Rounding::Up,
        _ => return None,
    })
}

/// What `mma.sync.aligned.shape.row.col{.satfinite}.d.a.b.c{.op.popc}` multiplies.
fn shape(words: &[&str]) -> Option<MatrixShape> {
    use MatrixType::{B1, Bf16, E4m3, E5m2, F16, F32, F64, S4, S8, S32, Tf32, U4, U8};
    shape_of(words, |rows, k, a| match a {
        Bf16 | F16 => rows == 16 && matches!(k, 8 | 16),
        Tf32 => rows == 16 && matches!(k, 4 | 8),
        F64 => matches!((rows, k), (8, 4) | (16, 4 | 8 | 16)),
        S8 | U8 => matches!((rows, k), (8, 16) | (16, 16 | 32)),
        S4 | U4 => matches!((rows, k), (8, 32) | (16, 32 | 64)),
        B1 => matches!((rows, k), (8, 128) | (16, 128 | 256)),
        E4m3 | E5m2 => rows == 16 && matches!(k, 16 | 32),
        F32 | S32 => false,
    })
}

/// The same; `has` says of rows, columns and type of A whether there are such.
fn shape_of(words: &[&str], has: impl Fn(usize, usize, MatrixType) -> bool) -> Option<MatrixShape> {
    let ["sync", "aligned", shape, "row", "col", rest @ ..] = words else { return None };
    let (clamps, rest) = match rest {
        ["satfinite", rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    let (round, rest) = match rest {
        [first, rest @ ..] if rounding(first).is_some() => (rounding(first), rest),
        [rest @ .., last] if rounding(last).is_some() => (rounding(last), rest),
        rest => (None, rest),
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
    let fit = matches!(
        (a, b, d),
        (Bf16, Bf16, F32)
            | (F16, F16, F32 | F16)
            | (Tf32, Tf32, F32)
            | (F64, F64, F64)
            | (S8 | U8, S8 | U8, S32)
            | (S4 | U4, S4 | U4, S32)
            | (B1, B1, S32)
            | (E4m3 | E5m2, E4m3 | E5m2, F32 | F16)
    );
    let is_there = fit && has(rows, k, a) && (round.is_none() || a == F64);
    let clamps_well = !clamps || matches!(a, S8 | U8 | S4 | U4);
    let is_there = is_there && Some(d) == c && combines == (a == B1) && clamps_well;
    let rounding = round.unwrap_or(Rounding::NearestEven);
    is_there.then_some(MatrixShape { rows, k, a, b, d, clamps, xors, rounding })
}

/// The operation that multiplies this, and its immediate.
pub fn operation(shape: MatrixShape) -> (MatrixOp, i32) {
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
    (op, immediate)
}

/// `mma.sync.aligned…  d, a, b, c;`
fn multiply<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    let shape = shape(s.modifiers()).ok_or(UNSUPPORTED)?;
    let (op, immediate) = operation(shape);
    s.expect_operands(4, 4)?;
    let Fragments { a: of_a, b: of_b, d: of_d, value_rows, .. } = shape.fragments();
    let bits = 32 * value_rows;
    let d = rows_of(s, b, 0, of_d, bits, true)?;
    let (x, y) = (rows_of(s, b, 1, of_a, bits, false)?, rows_of(s, b, 2, of_b, bits, false)?);
    let lists = [x, y, rows_of(s, b, 3, of_d, bits, false)?];
    Ok(Instruction { immediate, ..with_rows(Op::Matrix(op), d, &lists) })
}

/// `mma.sp{::ordered_metadata}.sync.aligned…  d, a, b, c, metadata, selector;`
fn multiply_sparse<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    let flags = match s.modifiers()[0] {
        "sp" => 0,
        "sp::ordered_metadata" => FLAG_VARIANT,
        _ => return Err(UNSUPPORTED),
    };
    use MatrixType::{B1, Bf16, E4m3, E5m2, F16, F64, S4, S8, Tf32, U4, U8};
    let shape = shape_of(&s.modifiers()[1..], |rows, k, a| {
        let halves = match a {
            Bf16 | F16 => [16, 32],
            Tf32 => [8, 16],
            S8 | U8 => [32, 64],
            S4 | U4 => [64, 128],
            E4m3 | E5m2 => [64; 2],
            F64 | B1 | MatrixType::F32 | MatrixType::S32 => return false,
        };
        rows == 16 && halves.contains(&k)
    });
    // Bytes have no sums in f16, though without `.sp` they do.
    let shape = shape.filter(|shape| !(shape.d == F16 && matches!(shape.a, E4m3 | E5m2)));
    let shape = shape.ok_or(UNSUPPORTED)?;
    s.expect_operands(6, 6)?;
    let Fragments { a: of_a, b: of_b, d: of_d, .. } = shape.fragments();
    let d = rows(s, b, 0, of_d, true)?;
    let x = [rows(s, b, 1, of_a / 2, false)?, rows(s, b, 2, of_b, false)?, rows(s, b, 3, of_d, false)?];
    let metadata = b.source(s, 4, 32)?;
    let instruction = Instruction {
        flags,
        immediate: shape.encode(),
        ..with_rows(Op::Matrix(MatrixOp::MultiplySparse), d, &[x[0], x[1], x[2], metadata])
    };
    // Which lanes of the four of a row have metadata.
    let choices = match (shape.a, shape.k * shape.a.bits()) {
        (Bf16 | F16, 256) | (Tf32, 256) => 4,
        (Bf16 | F16 | Tf32, _) | (_, 256) => 2,
        _ => 1,
    };
    let selector = b.immediate(s, 5)?;
    if !(0..choices).contains(&selector) {
        return Err(ParseErrorKind::Operand("a sparsity selector that the shape does not have"));
    }
    Ok(Instruction { count: selector as u8, ..instruction })
}

/// `mma.sync.aligned.m8n8k4.layout.layout.d.f16.f16.c  d, a, b, c;`
fn multiply_volta<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    let [
        "sync",
        "aligned",
        "m8n8k4",
        la @ ("row" | "col"),
        lb @ ("row" | "col"),
        d @ ("f16" | "f32"),
        "f16",
        "f16",
        c @ ("f16" | "f32"),
    ] = s.modifiers()
    else {
        return Err(UNSUPPORTED);
    };
    let shape = VoltaShape {
        a_by_columns: *la == "col",
        b_by_columns: *lb == "col",
        adds_singles: *c == "f32",
        gives_singles: *d == "f32",
    };
    if shape.adds_singles && !shape.gives_singles {
        return Err(UNSUPPORTED);
    }
    s.expect_operands(4, 4)?;
    let d = rows(s, b, 0, shape.results(), true)?;
    let a = rows(s, b, 1, VoltaShape::FACTOR, false)?;
    let lists = [a, rows(s, b, 2, VoltaShape::FACTOR, false)?, rows(s, b, 3, shape.sums(), false)?];
    let op = Op::Matrix(MatrixOp::MultiplyVolta);
    Ok(Instruction { immediate: shape.encode(), ..with_rows(op, d, &lists) })
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

/// `ldmatrix.sync.aligned.m8n8.xN{.trans}{.shared}.b16 d, [a];` and `stmatrix`. The three in the middle may
/// stand in any order.
fn transfer<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    let (middle, e) = match s.modifiers() {
        ["sync", "aligned", middle @ .., "shared" | "shared::cta", "b16"] => (middle, 0),
        ["sync", "aligned", middle @ .., "b16"] => (middle, MATRIX_GENERIC),
        _ => return Err(UNSUPPORTED),
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
    Ok(Instruction { flags, count: count as u8, immediate: offset, e, ..instruction })
}
