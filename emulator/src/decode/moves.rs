//! Moves, packing and changes of address space.

use super::operand::type_bits;
use super::{Builder, Result, Statement, UNSUPPORTED, select, with_rows};
use crate::error::ParseErrorKind;
use crate::isa::{Instruction, IntegerOp, MoveOp, Op};
use crate::parse::operand::{Operand, Scalar};
use crate::space::Space;

/// Decodes the family.
pub fn decode<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    match s.name() {
        "cvta" => address_space(s, b),
        "isspacep" => is_space(s, b),
        _ if s.last() == "pred" => select::predicate(s, b),
        _ => scalar_or_vector(s, b),
    }
}

fn scalar_or_vector<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    let [ty] = s.modifiers() else { return Err(UNSUPPORTED) };
    let bits = type_bits(ty)?;
    s.expect_operands(2, 2)?;
    match (&s.operands[0], &s.operands[1]) {
        (Operand::Vector(elements), _) => unpack(s, b, bits, elements),
        (_, Operand::Vector(elements)) => pack(s, b, bits, elements),
        (_, Operand::Scalar(Scalar::Name("%clock" | "%clock64"))) => clock(s, b, bits),
        (_, Operand::Scalar(Scalar::Name("%globaltimer" | "%globaltimer_lo"))) => clock(s, b, bits),
        _ => {
            let op = match bits {
                16 | 32 => MoveOp::Bits32,
                64 => MoveOp::Bits64,
                128 => MoveOp::Bits128,
                _ => return Err(UNSUPPORTED),
            };
            let d = b.destination(s, 0, bits)?;
            let a = b.source(s, 1, bits)?;
            Ok(with_rows(Op::Move(op), d, &[a]))
        }
    }
}

fn clock<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>, bits: u32) -> Result<Instruction> {
    let op = match bits {
        32 => Op::Clock32,
        64 => Op::Clock64,
        _ => return Err(UNSUPPORTED),
    };
    Ok(with_rows(op, b.destination(s, 0, bits)?, &[]))
}

/// Bits of a vector's elements; at least one byte each.
fn element_bits(bits: u32, elements: &[Scalar<'_>]) -> Result<u32> {
    let each = bits / elements.len().max(1) as u32;
    if matches!(elements.len(), 2 | 4 | 8) && each >= 8 && each.is_power_of_two() {
        Ok(each)
    } else {
        Err(ParseErrorKind::Operand("a vector of the wrong length"))
    }
}

fn unpack<'a>(
    s: &Statement<'a>,
    b: &mut Builder<'a, '_>,
    bits: u32,
    elements: &[Scalar<'a>],
) -> Result<Instruction> {
    let each = element_bits(bits, elements)?;
    let mut rows = Vec::with_capacity(elements.len());
    for &element in elements {
        rows.push(b.destination_scalar(element, each)?);
    }
    let a = b.source(s, 1, bits)?;
    let d = b.list(&rows);
    let instruction = with_rows(Op::Move(MoveOp::Unpack), d, &[a, each / 8, bits / 8]);
    Ok(Instruction { count: elements.len() as u8, ..instruction })
}

fn pack<'a>(
    s: &Statement<'a>,
    b: &mut Builder<'a, '_>,
    bits: u32,
    elements: &[Scalar<'a>],
) -> Result<Instruction> {
    let each = element_bits(bits, elements)?;
    let mut rows = Vec::with_capacity(elements.len());
    for &element in elements {
        rows.push(b.source_scalar(element, each)?);
    }
    let d = b.destination(s, 0, bits)?;
    let a = b.list(&rows);
    let instruction = with_rows(Op::Move(MoveOp::Pack), d, &[a, each / 8, bits / 8]);
    Ok(Instruction { count: elements.len() as u8, ..instruction })
}

fn space(name: &str) -> Result<Space> {
    Ok(match name {
        "global" => Space::Global,
        "shared" | "shared::cta" => Space::Shared,
        "shared::cluster" => Space::Cluster,
        "local" => Space::Local,
        "param" | "param::entry" => Space::Param,
        "const" => Space::Const,
        _ => return Err(UNSUPPORTED),
    })
}

/// `cvta{.to}.space.u64 d, a;`
fn address_space<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    let (to_space, name) = match s.modifiers() {
        ["to", name, "u64"] => (true, name),
        [name, "u64"] => (false, name),
        _ => return Err(UNSUPPORTED),
    };
    let space = space(name)?;
    s.expect_operands(2, 2)?;
    let d = b.destination(s, 0, 64)?;
    let a = b.source(s, 1, 64)?;
    // Global and const windows begin at 0.
    if matches!(space, Space::Global | Space::Const) || space == Space::Param && to_space {
        return Ok(with_rows(Op::Move(MoveOp::Bits64), d, &[a]));
    }
    let window = b.constant(space.window(), true)?;
    if space == Space::Param {
        // An address that has 64 bits from the start is generic then, and one of 32 bits is not.
        return Ok(with_rows(Op::Integer64(IntegerOp::Or), d, &[a, window]));
    }
    let op = if to_space { MoveOp::FromGeneric } else { MoveOp::ToGeneric };
    Ok(with_rows(Op::Move(op), d, &[a, window]))
}

/// `isspacep.space p, a;`
fn is_space<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    let [name] = s.modifiers() else { return Err(UNSUPPORTED) };
    let space = space(name)?;
    s.expect_operands(2, 2)?;
    let (first, _) = b.destination_pair(s, 0)?;
    let d = b.predicate_destination(first)?;
    let a = b.source(s, 1, 64)?;
    if space == Space::Const {
        return Ok(with_rows(Op::IsConstant, d, &[a]));
    }
    if space == Space::Shared {
        return Ok(with_rows(Op::IsOwnShared, d, &[a]));
    }
    let number = (space.window() >> crate::space::WINDOW_SHIFT) as i32;
    Ok(Instruction { immediate: number, ..with_rows(Op::Move(MoveOp::IsSpace), d, &[a]) })
}

/// `mapa{.shared::cluster}.type d, a, b;`
pub fn map_address<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    let bits = match s.modifiers() {
        ["shared::cluster", "u32"] => 32,
        ["shared::cluster", "u64"] | ["u64"] => 64,
        _ => return Err(UNSUPPORTED),
    };
    s.expect_operands(3, 3)?;
    let d = b.destination(s, 0, bits)?;
    let sources = [b.source(s, 1, bits)?, b.source(s, 2, 32)?];
    Ok(Instruction { count: (bits / 32) as u8, ..with_rows(Op::MapAddress, d, &sources) })
}

/// `getctarank{.shared::cluster}.type d, a;`
pub fn block_rank<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    let bits = match s.modifiers() {
        ["shared::cluster", "u32"] => 32,
        ["shared::cluster", "u64"] | ["u64"] => 64,
        _ => return Err(UNSUPPORTED),
    };
    s.expect_operands(2, 2)?;
    let d = b.destination(s, 0, 32)?;
    let a = b.source(s, 1, bits)?;
    Ok(Instruction { count: (bits / 32) as u8, ..with_rows(Op::BlockRank, d, &[a]) })
}

/// `alloca.type d, size{, alignment};`, `stacksave.type d;` and `stackrestore.type a;`
pub fn stack<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    let bits = match s.modifiers() {
        ["u32"] => 32,
        ["u64"] => 64,
        _ => return Err(UNSUPPORTED),
    };
    let mut instruction = match s.name() {
        "alloca" => {
            s.expect_operands(2, 3)?;
            let align = if s.operands.len() == 3 { b.immediate(s, 2)? } else { 8 };
            if !(1..=1 << 16).contains(&align) || align.count_ones() != 1 {
                return Err(ParseErrorKind::Operand("an alignment is a power of two up to 65536"));
            }
            let d = b.destination(s, 0, bits)?;
            let sources = [b.source(s, 1, bits)?];
            Instruction { immediate: align, ..with_rows(Op::StackAllocate, d, &sources) }
        }
        "stacksave" => {
            s.expect_operands(1, 1)?;
            with_rows(Op::StackSave, b.destination(s, 0, bits)?, &[])
        }
        _ => {
            s.expect_operands(1, 1)?;
            with_rows(Op::StackRestore, 0, &[b.source(s, 0, bits)?])
        }
    };
    b.need_stack();
    instruction.count = (bits / 32) as u8;
    Ok(instruction)
}

/// `createpolicy`: caches are not modelled, and neither are policies.
pub fn cache_policy<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    match s.modifiers() {
        ["fractional", .., "b64"] => s.expect_operands(1, 2)?,
        ["range", .., "b64"] => s.expect_operands(4, 4)?,
        ["cvt", "L2", "b64"] => s.expect_operands(2, 2)?,
        _ => return Err(UNSUPPORTED),
    }
    let d = b.destination(s, 0, 64)?;
    let nothing = b.constant(0, true)?;
    Ok(with_rows(Op::Move(MoveOp::Bits64), d, &[nothing]))
}
