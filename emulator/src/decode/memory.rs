//! Loads, stores and asynchronous copies.

use super::operand::type_bits;
use super::{Builder, Result, Statement, UNSUPPORTED, with_rows};
use crate::error::ParseErrorKind;
use crate::isa::{
    AsyncCopyOp, FLAG_ACQUIRE, FLAG_BLOCK, FLAG_NEGATE_SOURCE, FLAG_OPTIONAL, FLAG_READ_ONLY,
    FLAG_RELEASE, FLAG_SATURATE, FLAG_STRONG, FLAG_WIDE_ADDRESS, IN_CLUSTER, Instruction, Op,
};
use crate::parse::operand::{Operand, Scalar};
use crate::parse::scope::Class;
use crate::space::Space;

/// The state space of a modifier.
pub fn space(name: &str) -> Option<Space> {
    Some(match name {
        "global" => Space::Global,
        "shared" | "shared::cta" => Space::Shared,
        "shared::cluster" => Space::Cluster,
        "local" => Space::Local,
        "param" | "param::entry" => Space::Param,
        "const" => Space::Const,
        _ => return None,
    })
}

/// Modifiers that change no value: order, scope, caching.
fn is_hint(name: &str) -> bool {
    matches!(
        name,
        "volatile"
            | "relaxed"
            | "acquire"
            | "release"
            | "weak"
            | "mmio"
            | "nc"
            | "cta"
            | "cluster"
            | "gpu"
            | "sys"
    ) || is_cache_hint(name)
}

fn is_cache_hint(name: &str) -> bool {
    matches!(name, "ca" | "cg" | "cs" | "lu" | "cv" | "wb" | "wt")
        || name.starts_with("L1::")
        || matches!(name, "L2::64B" | "L2::128B" | "L2::256B" | "L2::evict_last" | "L2::evict_first")
        || matches!(name, "L2::evict_normal" | CACHE_POLICY)
}

/// The modifier behind which a cache policy is the last operand.
pub const CACHE_POLICY: &str = "L2::cache_hint";

/// The operands without the cache policy, which the emulator has no use for.
pub fn operands_before_policy<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<usize> {
    let count = s.operands.len();
    if !s.modifiers().contains(&CACHE_POLICY) {
        return Ok(count);
    }
    let last = count.checked_sub(1).ok_or(ParseErrorKind::Operand("wrong number of operands"))?;
    b.source(s, last, 64)?;
    Ok(last)
}

/// Checks the number of operands but the cache policy.
fn expect_operands<'a>(
    s: &Statement<'a>,
    b: &mut Builder<'a, '_>,
    least: usize,
    most: usize,
) -> Result<usize> {
    let count = operands_before_policy(s, b)?;
    if (least..=most).contains(&count) {
        return Ok(count);
    }
    Err(ParseErrorKind::Operand("wrong number of operands"))
}

/// `ld` and `st`.
pub fn access<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    let (mut place, mut vector) = (Space::Generic, 1);
    let (mut order, mut scope) = (0, 0);
    for modifier in s.middle() {
        order |= match *modifier {
            "volatile" | "relaxed" | "mmio" => FLAG_STRONG,
            "acquire" => FLAG_STRONG | FLAG_ACQUIRE,
            "release" => FLAG_STRONG | FLAG_RELEASE,
            "cta" => FLAG_BLOCK,
            "cluster" => {
                scope = IN_CLUSTER;
                0
            }
            "nc" => FLAG_READ_ONLY,
            _ => 0,
        };
        match *modifier {
            "v2" => vector = 2,
            "v4" => vector = 4,
            "v8" => vector = 8,
            name => match space(name) {
                Some(space) => place = space,
                None if is_hint(name) => {}
                None => return Err(UNSUPPORTED),
            },
        }
    }
    expect_operands(s, b, 2, 2)?;
    let bits = type_bits(s.last())?;
    if bits * vector > 256 {
        return Err(UNSUPPORTED);
    }
    let load = s.name() != "st";
    let (values, address) = if load { (0, 1) } else { (1, 0) };
    if b.is_argument(s, address) {
        place = Space::Local;
    }
    let elements = b.elements(s, values)?;
    if elements.len() != vector as usize {
        return Err(ParseErrorKind::Operand("a vector of the wrong length"));
    }
    let signed = s.last().starts_with('s') && bits < 64;
    let mut rows = Vec::with_capacity(elements.len());
    let mut wide_registers = 0;
    for &element in &elements {
        let (row, wide) = value_row(b, element, bits, load)?;
        wide_registers += u32::from(wide);
        rows.push(row);
    }
    // One width for all: the instruction says once whether its registers are wide.
    if wide_registers != 0 && wide_registers != vector {
        return Err(UNSUPPORTED);
    }
    let op = if load { Op::Load(place) } else { Op::Store(place) };
    let list = b.list(&rows);
    let mut instruction = with_rows(op, list, &[0, bits / 8]);
    (instruction.flags, instruction.e) = (order, scope);
    if place == Space::Param
        && let Some(offset) = b.parameter_address(s, address)
    {
        instruction.immediate =
            i32::try_from(offset).map_err(|_| ParseErrorKind::Limit("an address offset"))?;
        instruction.flags |= FLAG_OPTIONAL;
    } else {
        let (row, offset, wide) = b.address(s, address)?;
        instruction.a = row;
        instruction.immediate = offset;
        instruction.flags |= if wide { FLAG_WIDE_ADDRESS } else { 0 };
    }
    // A saturate flag on a load means: extend the sign. `c`: the registers are 64 bits wide.
    instruction.flags |= if signed && load { FLAG_SATURATE } else { 0 };
    instruction.c = u32::from(wide_registers != 0);
    Ok(Instruction { count: vector as u8, ..instruction })
}

/// The row of a loaded or stored value. Registers may be wider than the access.
fn value_row<'a>(
    b: &mut Builder<'a, '_>,
    element: crate::parse::operand::Scalar<'a>,
    bits: u32,
    load: bool,
) -> Result<(u32, bool)> {
    use crate::parse::operand::Scalar;
    use crate::parse::scope::Class;
    if let Scalar::Register(register) = element
        && register.class == Class::Bits64
        && bits < 64
    {
        return Ok((register.index, true));
    }
    let row = if load { b.destination_scalar(element, bits)? } else { b.source_scalar(element, bits)? };
    Ok((row, false))
}

/// `cp.async` and its groups.
pub fn async_copy<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    match s.modifiers() {
        ["async", "commit_group"] => {
            s.expect_operands(0, 0)?;
            Ok(Instruction::new(Op::AsyncCopy(AsyncCopyOp::Commit)))
        }
        ["async", "wait_all"] => {
            s.expect_operands(0, 0)?;
            Ok(Instruction::new(Op::AsyncCopy(AsyncCopyOp::WaitAll)))
        }
        ["async", "wait_group"] => {
            s.expect_operands(1, 1)?;
            let groups = b.immediate(s, 0)?.max(0);
            let op = Op::AsyncCopy(AsyncCopyOp::WaitGroup);
            Ok(Instruction { immediate: groups, ..Instruction::new(op) })
        }
        ["async", "mbarrier", "arrive", rest @ ..] => super::mbarrier::arrive_copies(s, b, rest),
        ["async", "ca" | "cg", "shared" | "shared::cta", "global", hints @ ..]
            if hints.iter().all(|hint| is_cache_hint(hint)) =>
        {
            copy(s, b)
        }
        _ => Err(UNSUPPORTED),
    }
}

fn copy<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    let operands = expect_operands(s, b, 3, 4)?;
    let bytes = b.immediate(s, 2)?;
    if !matches!(bytes, 4 | 8 | 16) || (bytes != 16 && s.modifiers()[1] == "cg") {
        return Err(ParseErrorKind::Operand("cp.async copies 4, 8 or 16 bytes, .cg only 16"));
    }
    let (shared, shared_offset, shared_wide) = b.address(s, 0)?;
    let (global, global_offset, global_wide) = b.address(s, 1)?;
    if !global_wide {
        return Err(ParseErrorKind::Operand("operand of the wrong width"));
    }
    let mut instruction = with_rows(Op::AsyncCopy(AsyncCopyOp::Copy), 0, &[shared, global]);
    instruction.flags |= if shared_wide { FLAG_WIDE_ADDRESS } else { 0 };
    if operands == 4 {
        instruction.c = match b.predicate_source(s, 3) {
            // Whether to ignore the source: none of its bytes are read.
            Ok((p, negated))
                if matches!(
                    s.operands[3],
                    Operand::Scalar(Scalar::Register(_)) | Operand::Negated(_)
                ) =>
            {
                let row = b.register(Class::Bits32)?.index;
                let sources = [b.constant(0, false)?, b.constant(bytes as u64, false)?, p];
                let flags = if negated { FLAG_NEGATE_SOURCE } else { 0 };
                b.emit(Instruction { flags, ..with_rows(Op::Select32, row, &sources) });
                row
            }
            _ => b.source(s, 3, 32)?,
        };
        instruction.flags |= FLAG_OPTIONAL;
    }
    instruction.immediate = shared_offset;
    instruction.e = global_offset as u32;
    Ok(Instruction { count: bytes as u8, ..instruction })
}

/// Prefetches and cache hints have no effect that the emulator models.
pub fn hint(s: &Statement<'_>) -> Result<Instruction> {
    match s.modifiers() {
        ["global" | "local", level] if level.starts_with('L') => Ok(Instruction::new(Op::Nop)),
        ["global", "L2::evict_normal" | "L2::evict_last", _] => Ok(Instruction::new(Op::Nop)),
        ["tensormap"] | ["param" | "const" | "param::entry", "tensormap"] => {
            Ok(Instruction::new(Op::Nop))
        }
        [level] if level.starts_with('L') => Ok(Instruction::new(Op::Nop)),
        _ => Err(UNSUPPORTED),
    }
}
