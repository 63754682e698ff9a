//! Memory barriers in shared memory: `mbarrier`.

use super::{Builder, Result, Statement, UNSUPPORTED, with_rows};
use crate::isa::{
    FLAG_GENERIC, FLAG_OPTIONAL, FLAG_RELAXED, FLAG_WIDE_ADDRESS, Instruction, MbarrierOp, Op, ROW_SINK,
};
use crate::parse::operand::{Operand, Scalar};

/// Decodes the family.
pub fn decode<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    let mut flags = FLAG_GENERIC;
    let mut words = Vec::with_capacity(4);
    for &modifier in s.modifiers() {
        match modifier {
            "shared" | "shared::cta" | "shared::cluster" => flags &= !FLAG_GENERIC,
            "relaxed" => flags |= FLAG_RELAXED,
            // The scope is the block, whatever it says: a cluster has one.
            "release" | "acquire" | "cta" | "cluster" => {}
            word => words.push(word),
        }
    }
    let mut instruction = match words[..] {
        ["init", "b64"] => operation(s, b, MbarrierOp::Init, 0, Some(32))?,
        ["inval", "b64"] => operation(s, b, MbarrierOp::Invalidate, 0, None)?,
        ["expect_tx", "b64"] => operation(s, b, MbarrierOp::Expect, 0, Some(32))?,
        ["complete_tx", "b64"] => operation(s, b, MbarrierOp::Complete, 0, Some(32))?,
        ["arrive", "b64"] => arrival(s, b, MbarrierOp::Arrive)?,
        ["arrive_drop", "b64"] => arrival(s, b, MbarrierOp::ArriveDrop)?,
        ["arrive", "expect_tx", "b64"] => arrival(s, b, MbarrierOp::ArriveExpect)?,
        ["test_wait", "b64"] => poll(s, b, MbarrierOp::TestState)?,
        ["try_wait", "b64"] => poll(s, b, MbarrierOp::TryState)?,
        ["test_wait", "parity", "b64"] => poll(s, b, MbarrierOp::TestParity)?,
        ["try_wait", "parity", "b64"] => poll(s, b, MbarrierOp::TryParity)?,
        _ => return Err(UNSUPPORTED),
    };
    instruction.flags |= flags;
    Ok(instruction)
}

/// `[address]` at operand `first`, and perhaps a value of so many bits behind it.
fn operation<'a>(
    s: &Statement<'a>,
    b: &mut Builder<'a, '_>,
    op: MbarrierOp,
    first: usize,
    bits: Option<u32>,
) -> Result<Instruction> {
    let operands = first + 1 + usize::from(bits.is_some());
    s.expect_operands(operands, operands)?;
    let (address, offset, wide) = b.address(s, first)?;
    let mut instruction = with_rows(Op::Mbarrier(op), ROW_SINK, &[address]);
    instruction.immediate = offset;
    instruction.flags |= if wide { FLAG_WIDE_ADDRESS } else { 0 };
    if let Some(bits) = bits {
        instruction.b = b.source(s, first + 1, bits)?;
        instruction.flags |= FLAG_OPTIONAL;
    }
    Ok(instruction)
}

/// `mbarrier.arrive{.expect_tx} state, [address]{, count};` The state may be `_`.
fn arrival<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>, op: MbarrierOp) -> Result<Instruction> {
    let with_value = s.operands.len() == 3;
    if op == MbarrierOp::ArriveExpect && !with_value {
        return Err(UNSUPPORTED);
    }
    let instruction = operation(s, b, op, 1, with_value.then_some(32))?;
    Ok(Instruction { d: b.destination(s, 0, 64)?, ..instruction })
}

/// `mbarrier.test_wait{.parity} p, [address], state;` The time limit of `try_wait` is of no interest.
fn poll<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>, op: MbarrierOp) -> Result<Instruction> {
    let tries = matches!(op, MbarrierOp::TryState | MbarrierOp::TryParity);
    s.expect_operands(3, 3 + usize::from(tries))?;
    let (address, offset, wide) = b.address(s, 1)?;
    let bits = if matches!(op, MbarrierOp::TestState | MbarrierOp::TryState) { 64 } else { 32 };
    let value = b.source(s, 2, bits)?;
    let d = match s.operands.first() {
        Some(&Operand::Scalar(scalar @ (Scalar::Register(_) | Scalar::Sink))) => {
            b.predicate_destination(scalar)?
        }
        _ => return Err(UNSUPPORTED),
    };
    let instruction = with_rows(Op::Mbarrier(op), d, &[address, value]);
    let flags = FLAG_OPTIONAL | if wide { FLAG_WIDE_ADDRESS } else { 0 };
    Ok(Instruction { flags, immediate: offset, ..instruction })
}
