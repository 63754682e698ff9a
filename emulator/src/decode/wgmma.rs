//! Multiplications by a warpgroup: `wgmma`.

use super::{Builder, Result, Statement, UNSUPPORTED, with_rows};
use crate::error::ParseErrorKind;
use crate::isa::{
    FLAG_NEGATE_SOURCE, FLAG_OPTIONAL, Instruction, Op, WGMMA_K, WgmmaOp, WgmmaShape, WgmmaType,
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
        ["mma_async", "sync", "aligned", shape, "f32", a, bt] if a == bt => multiply(s, b, shape, a),
        _ => Err(UNSUPPORTED),
    }
}

fn group(s: &Statement<'_>, op: WgmmaOp) -> Result<Instruction> {
    s.expect_operands(0, 0)?;
    Ok(Instruction::new(Op::Wgmma(op)))
}

fn columns(shape: &str) -> Result<u32> {
    let n = shape.strip_prefix("m64n").and_then(|rest| rest.strip_suffix("k16"));
    match n.and_then(|n| n.parse().ok()) {
        Some(n @ 8..=256) if n % 8 == 0 => Ok(n),
        _ => Err(UNSUPPORTED),
    }
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

/// `d, a, b, scale-d, scale-a, scale-b{, transpose-a}, transpose-b;` A from registers is never
/// transposed.
fn multiply<'a>(
    s: &Statement<'a>,
    b: &mut Builder<'a, '_>,
    shape: &str,
    ty: &str,
) -> Result<Instruction> {
    let columns = columns(shape)?;
    let ty = match ty {
        "bf16" => WgmmaType::Bf16,
        "f16" => WgmmaType::F16,
        _ => return Err(UNSUPPORTED),
    };
    let in_registers = matches!(s.operands.get(1), Some(Operand::Vector(_)));
    let count = if in_registers { 7 } else { 8 };
    s.expect_operands(count, count)?;
    let accumulators = super::matrix::rows(s, b, 0, columns as usize / 2, true)?;
    let left = if in_registers {
        super::matrix::rows(s, b, 1, WGMMA_K / 4, false)?
    } else {
        b.source(s, 1, 64)?
    };
    let right = b.source(s, 2, 64)?;
    let (scale, negated) = b.predicate_source(s, 3)?;
    let shape = WgmmaShape {
        columns,
        ty,
        negate: negates(s, b, 4)? != negates(s, b, 5)?,
        transpose_a: !in_registers && transposes(s, b, 6)?,
        transpose_b: transposes(s, b, count - 1)?,
    };
    let instruction =
        with_rows(Op::Wgmma(WgmmaOp::Multiply), accumulators, &[left, right, scale, shape.encode()]);
    let flags =
        if in_registers { FLAG_OPTIONAL } else { 0 } | if negated { FLAG_NEGATE_SOURCE } else { 0 };
    Ok(Instruction { flags, ..instruction })
}
