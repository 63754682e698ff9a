//! Memory barriers in shared memory: `mbarrier`.

use super::{Builder, Result, Statement, UNSUPPORTED, with_rows};
use crate::isa::{
    FLAG_BLOCK, FLAG_GENERIC, FLAG_OPTIONAL, FLAG_RELAXED, FLAG_WIDE_ADDRESS, IN_CLUSTER, Instruction,
    IntegerOp, LATER, MbarrierOp, OF_CLUSTER, Op, ROW_SINK,
};
use crate::parse::operand::{Operand, Scalar};
use crate::parse::scope::Class;
use crate::space::Space;

/// Decodes the family.
pub fn decode<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    let (mut flags, mut e) = (FLAG_GENERIC, 0);
    let mut words = Vec::with_capacity(4);
    for &modifier in s.modifiers() {
        match modifier {
            "shared" | "shared::cta" => flags &= !FLAG_GENERIC,
            "shared::cluster" => {
                flags &= !FLAG_GENERIC;
                e |= OF_CLUSTER;
            }
            "relaxed" => flags |= FLAG_RELAXED,
            "cta" => flags |= FLAG_BLOCK,
            "cluster" => e |= IN_CLUSTER,
            "release" | "acquire" => {}
            word => words.push(word),
        }
    }
    let mut instruction = match words[..] {
        ["init", "b64"] => operation(s, b, MbarrierOp::Init, 0, Some(32))?,
        ["inval", "b64"] => operation(s, b, MbarrierOp::Invalidate, 0, None)?,
        ["expect_tx", "b64"] => operation(s, b, MbarrierOp::Expect, 0, Some(32))?,
        ["complete_tx", "b64"] => operation(s, b, MbarrierOp::Complete, 0, Some(32))?,
        ["arrive", "b64"] | ["arrive", "noComplete", "b64"] => arrival(s, b, MbarrierOp::Arrive)?,
        ["arrive_drop", "b64"] | ["arrive_drop", "noComplete", "b64"] => {
            arrival(s, b, MbarrierOp::ArriveDrop)?
        }
        ["pending_count", "b64"] => return pending_count(s, b),
        ["arrive", "expect_tx", "b64"] => arrival(s, b, MbarrierOp::ArriveExpect)?,
        ["arrive_drop", "expect_tx", "b64"] => arrival(s, b, MbarrierOp::ArriveDropExpect)?,
        ["test_wait", "b64"] => poll(s, b, MbarrierOp::TestState)?,
        ["try_wait", "b64"] => poll(s, b, MbarrierOp::TryState)?,
        ["test_wait", "parity", "b64"] => poll(s, b, MbarrierOp::TestParity)?,
        ["try_wait", "parity", "b64"] => poll(s, b, MbarrierOp::TryParity)?,
        _ => return Err(UNSUPPORTED),
    };
    instruction.flags |= flags;
    instruction.e = e;
    Ok(instruction)
}

/// `mbarrier.pending_count.b64 d, state;`: 20 bits of the token.
fn pending_count<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    s.expect_operands(2, 2)?;
    let d = b.destination(s, 0, 32)?;
    let token = b.source(s, 1, 64)?;
    let upper = b.register(Class::Bits64)?.index;
    let shift = b.constant(32, false)?;
    b.emit(with_rows(Op::Integer64(IntegerOp::ShiftRightUnsigned), upper, &[token, shift]));
    let word = b.register(Class::Bits32)?.index;
    b.emit(with_rows(Op::ConvertU64ToU32, word, &[upper]));
    let mask = b.constant(0xf_ffff, false)?;
    Ok(with_rows(Op::Integer32(IntegerOp::And), d, &[word, mask]))
}

/// `cp.async.mbarrier.arrive{.noinc}{.shared}.b64 [address];`
pub fn arrive_copies<'a>(
    s: &Statement<'a>,
    b: &mut Builder<'a, '_>,
    words: &[&str],
) -> Result<Instruction> {
    let (noinc, words) = match words {
        ["noinc", rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    let generic = match words {
        ["b64"] => FLAG_GENERIC,
        ["shared" | "shared::cta", "b64"] => 0,
        _ => return Err(UNSUPPORTED),
    };
    let mut instruction = operation(s, b, MbarrierOp::ArriveCopies, 0, None)?;
    if noinc {
        instruction.flags |= FLAG_OPTIONAL;
        instruction.b = b.constant(1, false)?;
    }
    instruction.flags |= generic;
    Ok(instruction)
}

/// The space of both addresses of `st.async` and `red.async`.
pub fn asynchronous_space(s: &Statement<'_>) -> Space {
    if s.modifiers().contains(&"shared::cluster") { Space::Cluster } else { Space::Generic }
}

/// `st.async{.weak}{.shared::cluster}.mbarrier::complete_tx::bytes{.vector}.type [a], value, [barrier];` It
/// stores at once, and then counts the bytes as arrived.
pub fn store<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    let space = asynchronous_space(s);
    let is_said = |word: &&str| matches!(*word, "weak" | "shared::cluster");
    let words: Vec<&str> = s.modifiers().iter().copied().filter(|word| !is_said(word)).collect();
    let (length, ty) = match words[..] {
        ["async", "mbarrier::complete_tx::bytes", ty] => (1, ty),
        ["async", "mbarrier::complete_tx::bytes", "v2", ty] => (2, ty),
        ["async", "mbarrier::complete_tx::bytes", "v4", ty] => (4, ty),
        _ => return Err(UNSUPPORTED),
    };
    let bits = match ty {
        "b32" | "u32" | "s32" | "f32" => 32,
        "b64" | "u64" | "s64" | "f64" => 64,
        _ => return Err(UNSUPPORTED),
    };
    s.expect_operands(3, 3)?;
    let elements = b.elements(s, 1)?;
    if elements.len() != length {
        return Err(crate::error::ParseErrorKind::Operand("a vector of the wrong length"));
    }
    let rows = elements
        .into_iter()
        .map(|element| b.source_scalar(element, bits))
        .collect::<Result<Vec<_>>>()?;
    let list = b.list(&rows);
    let (address, offset, wide) = b.address(s, 0)?;
    let flags = if wide { FLAG_WIDE_ADDRESS } else { 0 };
    let instruction = with_rows(Op::Store(space), list, &[address, bits / 8, 0, LATER]);
    b.emit_guarded(Instruction { flags, count: length as u8, immediate: offset, ..instruction });
    complete(s, b, 2, (bits / 8 * length as u32, LATER))
}

/// `red.async.relaxed.cluster{.shared::cluster}.mbarrier::complete_tx::bytes.op.type [a], value,
/// [barrier];` It happens at once, and then counts the bytes as arrived.
pub fn reduce<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    let (instruction, bits) = super::atomic::asynchronous(s, b)?;
    b.emit_guarded(instruction);
    complete(s, b, 2, (bits / 8, 0))
}

/// Bytes arrive at the barrier that an operand names.
fn complete<'a>(
    s: &Statement<'a>,
    b: &mut Builder<'a, '_>,
    operand: usize,
    (bytes, later): (u32, u32),
) -> Result<Instruction> {
    let (barrier, offset, wide) = b.address(s, operand)?;
    let bytes = b.constant(u64::from(bytes), false)?;
    let instruction = with_rows(Op::Mbarrier(MbarrierOp::CompleteStore), ROW_SINK, &[barrier, bytes]);
    let flags = FLAG_OPTIONAL | if wide { FLAG_WIDE_ADDRESS } else { 0 };
    let (generic, of_cluster) = match asynchronous_space(s) {
        Space::Generic => (FLAG_GENERIC, 0),
        _ => (0, OF_CLUSTER),
    };
    Ok(Instruction { flags: flags | generic, immediate: offset, e: of_cluster | later, ..instruction })
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
    if matches!(op, MbarrierOp::ArriveExpect | MbarrierOp::ArriveDropExpect) && !with_value {
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
