//! Multiplications by a warpgroup: `wgmma`.

use super::{Builder, Result, Statement, UNSUPPORTED, with_rows};
use crate::error::ParseErrorKind;
use crate::isa::{
    FLAG_NEGATE_SOURCE, FLAG_OPTIONAL, Instruction, MatrixType, Op, WGMMA_K, WgmmaOp, WgmmaShape,
};
use crate::parse::operand::Operand;

/// Decodes the family.
pub fn decode<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    match s.modifiers() {
        ["fence", "sync", "aligned"] => group(s, WgmmaOp::Fence),
        ["commit_group", "sync", "aligned"] => group(s, WgmmaOp::Commit),
        ["wait_group", "sync", "aligned"] => {
            s.expect_operands(1, 1)?;
            let immediate = b.immediate(s, 0)?.max(0);
            Ok(Instruction { immediate, ..Instruction::new(Op::Wgmma(WgmmaOp::Wait)) })
        }
        ["mma_async", "sync", "aligned", shape, rest @ ..] => multiply(s, b, shape, rest, false),
        ["mma_async", "sp", "sync", "aligned", shape, rest @ ..] => multiply(s, b, shape, rest, true),
        _ => Err(UNSUPPORTED),
    }
}

fn group(s: &Statement<'_>, op: WgmmaOp) -> Result<Instruction> {
    s.expect_operands(0, 0)?;
    Ok(Instruction::new(Op::Wgmma(op)))
}

/// Columns of B, and of A.
fn sizes(shape: &str) -> Result<(u32, usize)> {
    let (n, k) = shape.strip_prefix("m64n").and_then(|rest| rest.split_once('k')).ok_or(UNSUPPORTED)?;
    match (n.parse(), k.parse()) {
        (Ok(n @ 8..=256), Ok(k)) if n % 8 == 0 => Ok((n, k)),
        _ => Err(UNSUPPORTED),
    }
}

/// Types of D, A and B, and whether sums are clamped.
fn types(words: &[&str]) -> Option<([MatrixType; 3], bool)> {
    use MatrixType::{B1, Bf16, E4m3, E5m2, F16, F32, S8, S32, Tf32, U8};
    let (clamps, words) = match words {
        ["satfinite", rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    let ([d, a, b], pops) = match words {
        [d, a, b] => ([d, a, b], false),
        [d, a, b, "and", "popc"] => ([d, a, b], true),
        _ => return None,
    };
    let [d, a, b] = [MatrixType::of_name(d)?, MatrixType::of_name(a)?, MatrixType::of_name(b)?];
    let is_there = matches!(
        (d, a, b),
        (F32, Bf16, Bf16)
            | (F32 | F16, F16, F16)
            | (F32, Tf32, Tf32)
            | (F32 | F16, E4m3 | E5m2, E4m3 | E5m2)
            | (S32, S8 | U8, S8 | U8)
            | (S32, B1, B1)
    );
    let is_there = is_there && pops == (a == B1) && (!clamps || matches!(a, S8 | U8));
    is_there.then_some(([d, a, b], clamps))
}

/// 1 or -1; whether it is -1.
fn negates<'a>(s: &Statement<'a>, b: &Builder<'a, '_>, index: usize) -> Result<bool> {
    match b.immediate(s, index)? {
        1 => Ok(false),
        -1 => Ok(true),
        _ => Err(ParseErrorKind::Operand("a scale is 1 or -1")),
    }
}

fn transposes<'a>(s: &Statement<'a>, b: &Builder<'a, '_>, index: usize) -> Result<bool> {
    match b.immediate(s, index)? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(ParseErrorKind::Operand("a transposition is 0 or 1")),
    }
}

/// Which lanes of the four of a row have metadata of a sparse A.
fn selector<'a>(s: &Statement<'a>, b: &Builder<'a, '_>, a: MatrixType) -> Result<u8> {
    let selector = b.immediate(s, 4)?;
    if !(0..if a.bits() == 8 { 1 } else { 2 }).contains(&selector) {
        return Err(ParseErrorKind::Operand("a sparsity selector that the shape does not have"));
    }
    Ok(selector as u8)
}

/// `d, a, b{, metadata, selector}, scale-d{, scale-a, scale-b{{, transpose-a}, transpose-b}};` Integers have
/// no scales, and only 16-bit types can be transposed: B, and A in shared memory. Metadata is of a sparse A.
fn multiply<'a>(
    s: &Statement<'a>,
    b: &mut Builder<'a, '_>,
    shape: &str,
    words: &[&str],
    is_sparse: bool,
) -> Result<Instruction> {
    let (columns, k) = sizes(shape)?;
    let ([d, a, bt], clamps) = types(words).ok_or(UNSUPPORTED)?;
    let in_registers = matches!(s.operands.get(1), Some(Operand::Vector(_)));
    let (is_integer, turns) = (d == MatrixType::S32, a.bits() == 16);
    let transposes_a = turns && !in_registers;
    let scale = 3 + if is_sparse { 2 } else { 0 };
    let count =
        scale + 1 + if is_integer { 0 } else { 2 } + usize::from(turns) + usize::from(transposes_a);
    s.expect_operands(count, count)?;
    let mut shape = WgmmaShape {
        columns,
        a,
        b: bt,
        d,
        clamps,
        negate: !is_integer && negates(s, b, scale + 1)? != negates(s, b, scale + 2)?,
        transpose_a: false,
        transpose_b: false,
        selector: if is_sparse { Some(selector(s, b, a)?) } else { None },
    };
    // Bits are not sparse.
    if shape.k() != k || is_sparse && a == MatrixType::B1 {
        return Err(UNSUPPORTED);
    }
    shape.transpose_a = transposes_a && transposes(s, b, scale + 3)?;
    shape.transpose_b = turns && transposes(s, b, count - 1)?;
    let mut rows = super::matrix::registers(s, b, 0, shape.accumulators(), 32, true)?;
    if is_sparse {
        rows.push(b.source(s, 3, 32)?);
    }
    let accumulators = b.list(&rows);
    let left = if in_registers {
        super::matrix::rows(s, b, 1, WGMMA_K / 4, false)?
    } else {
        b.source(s, 1, 64)?
    };
    let right = b.source(s, 2, 64)?;
    let (scale, negated) = b.predicate_source(s, scale)?;
    let instruction =
        with_rows(Op::Wgmma(WgmmaOp::Multiply), accumulators, &[left, right, scale, shape.encode()]);
    let flags =
        if in_registers { FLAG_OPTIONAL } else { 0 } | if negated { FLAG_NEGATE_SOURCE } else { 0 };
    Ok(Instruction { flags, ..instruction })
}
