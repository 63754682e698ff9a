//! Atomic read-modify-write operations.

use super::mbarrier::asynchronous_space;
use super::memory::{CACHE_POLICY, operands_before_policy, space};
use super::operand::type_bits;
use super::{Builder, Result, Statement, UNSUPPORTED, with_rows};
use crate::error::ParseErrorKind;
use crate::isa::{
    ATOMIC_SPACES, AtomicOp, AtomicType, FLAG_ACQUIRE, FLAG_BLOCK, FLAG_OPTIONAL, FLAG_RELEASE,
    FLAG_STRONG, FLAG_WIDE_ADDRESS, IN_CLUSTER, Instruction, Op, ROW_SINK,
};
use crate::space::Space;

fn atomic_type(name: &str) -> Result<AtomicType> {
    Ok(match name {
        "b16" => AtomicType::B16,
        "b32" => AtomicType::B32,
        "u32" => AtomicType::U32,
        "s32" => AtomicType::S32,
        "b64" => AtomicType::B64,
        "u64" => AtomicType::U64,
        "s64" => AtomicType::S64,
        "f16" => AtomicType::F16,
        "bf16" => AtomicType::Bf16,
        "f16x2" => AtomicType::F16x2,
        "bf16x2" => AtomicType::Bf16x2,
        "f32" => AtomicType::F32,
        "f64" => AtomicType::F64,
        "b128" => AtomicType::B128,
        _ => return Err(UNSUPPORTED),
    })
}

fn operation(name: &str) -> Option<AtomicOp> {
    Some(match name {
        "add" => AtomicOp::Add,
        "exch" => AtomicOp::Exchange,
        "cas" => AtomicOp::CompareExchange,
        "min" => AtomicOp::Min,
        "max" => AtomicOp::Max,
        "and" => AtomicOp::And,
        "or" => AtomicOp::Or,
        "xor" => AtomicOp::Xor,
        "inc" => AtomicOp::Increment,
        "dec" => AtomicOp::Decrement,
        _ => return None,
    })
}

/// Which operations PTX has for a type, alone or in a vector.
fn exists(op: AtomicOp, ty: AtomicType, vector: usize) -> bool {
    use AtomicType::{B16, B32, B64, B128, Bf16, Bf16x2, F16, F16x2, F32, S32, S64, U32, U64};
    if vector > 1 {
        let elements = match ty {
            F32 => 4,
            F16x2 | Bf16x2 => 4,
            F16 | Bf16 => 8,
            _ => return false,
        };
        let is_there = op == AtomicOp::Add || ty != F32 && matches!(op, AtomicOp::Min | AtomicOp::Max);
        return is_there && vector <= elements;
    }
    match op {
        AtomicOp::Add => !matches!(ty, B16 | B32 | B64 | B128),
        AtomicOp::Exchange => matches!(ty, B32 | B64 | B128),
        AtomicOp::CompareExchange => matches!(ty, B16 | B32 | B64 | B128),
        AtomicOp::Min | AtomicOp::Max => matches!(ty, U32 | S32 | U64 | S64),
        AtomicOp::And | AtomicOp::Or | AtomicOp::Xor => matches!(ty, B32 | B64),
        AtomicOp::Increment | AtomicOp::Decrement => ty == U32,
    }
}

/// What `red.async` changes, and how many bits that are.
pub fn asynchronous<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<(Instruction, u32)> {
    let (mut op, mut typed) = (None, None);
    for modifier in &s.modifiers()[1..] {
        match *modifier {
            "relaxed" | "cluster" | "shared::cluster" | "mbarrier::complete_tx::bytes" => {}
            name if op.is_none() => op = Some(operation(name).ok_or(UNSUPPORTED)?),
            name if typed.is_none() => typed = Some((atomic_type(name)?, type_bits(name)?)),
            _ => return Err(UNSUPPORTED),
        }
    }
    let (Some(op), Some((ty, bits))) = (op, typed) else { return Err(UNSUPPORTED) };
    let is_integer = matches!(ty, AtomicType::U32 | AtomicType::S32);
    let is_integer =
        is_integer || op == AtomicOp::Add && matches!(ty, AtomicType::U64 | AtomicType::S64);
    let is_bits = matches!(op, AtomicOp::And | AtomicOp::Or | AtomicOp::Xor) && ty == AtomicType::B32;
    if !(exists(op, ty, 1) && (is_integer || is_bits)) {
        return Err(UNSUPPORTED);
    }
    s.expect_operands(3, 3)?;
    let (address, offset, wide) = b.address(s, 0)?;
    let operand = b.source(s, 1, bits)?;
    let number =
        ATOMIC_SPACES.iter().position(|&space| space == asynchronous_space(s)).unwrap_or(0) as u32;
    let rows = [address, operand, operand, number | IN_CLUSTER];
    let flags = FLAG_STRONG | if wide { FLAG_WIDE_ADDRESS } else { 0 };
    let instruction = with_rows(Op::Atomic(op), ROW_SINK, &rows);
    Ok((Instruction { flags, count: ty as u8, immediate: offset, ..instruction }, bits))
}

/// Decodes `atom` and `red`. Modifiers stand in more than one order.
pub fn decode<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    let (mut place, mut op, mut vector, mut typed) = (Space::Generic, None, 1, None);
    let (mut order, mut scope) = (FLAG_STRONG, 0);
    for modifier in s.modifiers() {
        match *modifier {
            "acquire" => order |= FLAG_ACQUIRE,
            "release" => order |= FLAG_RELEASE,
            "acq_rel" => order |= FLAG_ACQUIRE | FLAG_RELEASE,
            "cta" => order |= FLAG_BLOCK,
            "cluster" => scope = IN_CLUSTER,
            "relaxed" | "gpu" | "sys" | "noftz" | CACHE_POLICY => {}
            "v2" => vector = 2,
            "v4" => vector = 4,
            "v8" => vector = 8,
            name => match (space(name), operation(name)) {
                (Some(space @ (Space::Global | Space::Shared | Space::Cluster)), _) => place = space,
                (_, Some(operation)) => op = Some(operation),
                _ if typed.is_none() => typed = Some((atomic_type(name)?, type_bits(name)?)),
                _ => return Err(UNSUPPORTED),
            },
        }
    }
    let (Some(op), Some((ty, bits))) = (op, typed) else { return Err(UNSUPPORTED) };
    if !exists(op, ty, vector) || vector > 1 && matches!(place, Space::Shared | Space::Cluster) {
        return Err(UNSUPPORTED);
    }
    let returns = s.name() == "atom";
    let (first, sources) = (usize::from(returns), 1 + usize::from(op == AtomicOp::CompareExchange));
    if operands_before_policy(s, b)? != first + 1 + sources {
        return Err(ParseErrorKind::Operand("wrong number of operands"));
    }
    let (address, offset, wide) = b.address(s, first)?;
    let number = ATOMIC_SPACES.iter().position(|&space| space == place).unwrap_or(0) as u32 | scope;
    let flags = order | if wide { FLAG_WIDE_ADDRESS } else { 0 };
    if vector > 1 {
        // A list of rows with the operands, and behind them the results; the third one says how many.
        let mut rows = Vec::with_capacity(2 * vector);
        for (operand, is_result) in [(first + 1, false), (0, true)] {
            if is_result && !returns {
                continue;
            }
            let elements = b.elements(s, operand)?;
            if elements.len() != vector {
                return Err(ParseErrorKind::Operand("a vector of the wrong length"));
            }
            for element in elements {
                rows.push(match is_result {
                    true => b.destination_scalar(element, bits)?,
                    false => b.source_scalar(element, bits)?,
                });
            }
        }
        let list = b.list(&rows);
        let count = vector as u32 | u32::from(returns) << 16;
        let instruction = with_rows(Op::Atomic(op), ROW_SINK, &[address, list, count, number]);
        let flags = flags | FLAG_OPTIONAL;
        return Ok(Instruction { flags, count: ty as u8, immediate: offset, ..instruction });
    }
    let d = if returns { b.destination(s, 0, bits)? } else { ROW_SINK };
    let operand = b.source(s, first + 1, bits)?;
    let second = if sources == 2 { b.source(s, first + 2, bits)? } else { operand };
    let instruction = with_rows(Op::Atomic(op), d, &[address, operand, second, number]);
    Ok(Instruction { flags, count: ty as u8, immediate: offset, ..instruction })
}
